use sha2::{Digest, Sha256};

use super::*;
use crate::output::node_volumes::{Node, Summary};

fn nothing() -> NodeVolumes {
    NodeVolumes {
        api_version: "refloat.dev/v1",
        kind: "NodeVolumes",
        node: Node {
            root_dir: "/var/lib/<kubelet>".into(),
            state_dir: Some("/s".into()),
            boot_id: None,
            mountinfo: None,
            scanned_at: "2026-01-02T03:04:05.678Z".into(),
        },
        sources: vec![],
        volumes: vec![],
        devices: vec![],
        leftovers: vec![],
        problems: vec![],
        summary: Summary {
            volumes: 0,
            devices: 0,
            leftovers: 0,
            state: [].into(),
            reconstruction: [].into(),
            problems: [].into(),
        },
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let bits = part.iter().chain([0, 0].iter()).take(3).fold(0_usize, |bits, &byte| bits << 8 | usize::from(byte));
        for i in 0..4 {
            let digit = char::from(DIGITS[bits >> (18 - 6 * i) & 63]);
            text.push(if i <= part.len() { digit } else { '=' });
        }
    }
    text
}

#[test]
fn the_policy_names_what_is_on_the_page() {
    assert_eq!(base64(b"ab"), "YWI=");
    for (what, text) in [("style", STYLE), ("script", SCRIPT)] {
        let hash = base64(&Sha256::digest(text.as_bytes()));
        assert!(
            POLICY.contains(&format!("{what}-src 'sha256-{hash}'")),
            "the policy must have the {what}'s hash {hash}"
        );
        assert!(!text.contains("</"), "the {what} would end early");
    }
}

#[test]
fn a_page_without_anything_is_a_page() {
    let mut text = Vec::new();
    page(&mut text, &nothing()).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("Nothing is wrong") && text.contains("2026-01-02 03:04:05 UTC"), "{text}");
    assert!(text.contains("/var/lib/&lt;kubelet&gt;") && !text.contains("<kubelet>"), "{text}");
}

#[test]
fn the_bar_shows_every_state_that_is_there() {
    let text = bar(&[("Mounted", "good", 3), ("Uncertain", "bad", 0), ("Unknown", "odd", 1)], 4).into_string();
    assert!(text.contains("aria-label=\"3 Mounted, 1 Unknown\"") && !text.contains("Uncertain"), "{text}");
    assert!(text.contains("<rect class=\"odd\" x=\"3\" y=\"0\" width=\"1\""), "{text}");
}
