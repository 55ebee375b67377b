//! What logical units are known by, in one spelling.
//!
//! The kernel says `naa.600508b4…` or `t10.ATA     QEMU HARDDISK …`; udev, multipath and the specs of pods say `3600508b4…` and
//! `1ATA_QEMU_HARDDISK_…`: the type of the designator as a digit, blanks as one underscore.
//!
//! # Source
//! SPC-4, 7.8.6 (device identification page); `scsi_vpd_lun_id` of the kernel; `scsi_id(8)` of udev.

/// The ids of a logical unit: the one in the kernel's `wwid` first, then those of its page 83, the longest of the most
/// trustworthy kind first.
pub(super) fn all(wwid: Option<&str>, page: Option<&[u8]>) -> Vec<String> {
    let mut ids: Vec<String> = wwid.and_then(of_wwid).into_iter().collect();
    for id in page.map(of_page).unwrap_or_default() {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// What the kernel's `wwid` says.
fn of_wwid(text: &str) -> Option<String> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    let id = match text.split_once('.') {
        Some(("naa", digits)) => format!("3{}", hex(digits)?),
        Some(("eui", digits)) => format!("2{}", hex(digits)?),
        Some(("t10", text)) => format!("1{}", some(underscored(text))?),
        // A SCSI name: `iqn.2003-01.org.example:…`.
        Some(_) => format!("8{}", some(underscored(text))?),
        None => return None,
    };
    Some(id)
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn hex(digits: &str) -> Option<String> {
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit())).then(|| digits.to_ascii_lowercase())
}

/// What a page 83 says of the logical unit. A page that is cut off says what comes before that.
fn of_page(page: &[u8]) -> Vec<String> {
    const PAGE: u8 = 0x83;
    let Some((header, rest)) = page.split_at_checked(4).filter(|(header, _)| header[1] == PAGE) else { return vec![] };
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let mut rest = &rest[..length.min(rest.len())];
    // Kind, how much it is trusted, id.
    let mut found: Vec<(u8, usize, String)> = vec![];
    while let Some((head, more)) = rest.split_at_checked(4) {
        let Some((body, more)) = more.split_at_checked(head[3].into()) else { break };
        rest = more;
        let (code_set, association, kind) = (head[0] & 0xf, head[1] >> 4 & 3, head[1] & 0xf);
        // Others name the target or its port.
        if association != 0 {
            continue;
        }
        let text = || some(underscored(&String::from_utf8_lossy(body)));
        let digits = || match code_set {
            1 => Some(body.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))),
            _ => hex(String::from_utf8_lossy(body).trim_matches(['\0', ' '])),
        };
        let (rank, id) = match kind {
            3 => (0, digits()),
            2 => (1, digits()),
            8 => (2, text()),
            1 => (3, text()),
            _ => continue,
        };
        if let Some(id) = id.filter(|_| !body.is_empty()) {
            found.push((rank, usize::MAX - body.len(), format!("{kind}{id}")));
        }
    }
    found.sort();
    found.into_iter().map(|(_, _, id)| id).collect()
}

/// Blanks and what no name may have as underscores, as many blanks as one; none at the ends.
///
/// # Source
/// `udev_replace_whitespace` of systemd.
fn underscored(text: &str) -> String {
    let whole: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    whole.split_whitespace().collect::<Vec<_>>().join("_")
}

/// An id as this module spells it: what a person wrote, with blanks or underscores, as the kernel or as udev says it.
pub fn normal(id: &str) -> String {
    let id = id.trim().strip_prefix("scsi-").unwrap_or(id.trim());
    let kernels = ["naa.", "eui.", "t10."].iter().any(|kind| id.starts_with(kind));
    if let Some(id) = kernels.then(|| of_wwid(id)).flatten() {
        return id;
    }
    let id = underscored(id);
    // Of these two the rest is a number, in whichever case.
    match id.strip_prefix(['2', '3']).and_then(hex) {
        Some(digits) => format!("{}{digits}", &id[..1]),
        None => id,
    }
}

/// Whether two ids are of one logical unit.
pub(super) fn same(one: &str, other: &str) -> bool {
    !one.is_empty() && normal(one) == normal(other)
}

/// Whether a logical unit with these ids is the one that is called so.
pub(super) fn has(ids: &[String], id: &str) -> bool {
    let id = normal(id);
    !id.is_empty() && ids.iter().any(|its| *its == id || normal(its) == id)
}

/// The name of a Fibre Channel port as its digits.
pub(super) fn wwn(text: &str) -> String {
    let text = text.trim().to_ascii_lowercase();
    text.strip_prefix("0x").unwrap_or(&text).chars().filter(|c| *c != ':').collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_kernels_words_and_those_of_udev_are_one() {
        for (wwid, id) in [
            ("naa.600508b400105e210000900000490000\n", Some("3600508b400105e210000900000490000")),
            ("naa.600508B4", Some("3600508b4")),
            ("eui.0025385971b1e1d0", Some("20025385971b1e1d0")),
            (
                "t10.ATA     QEMU HARDDISK                           QM00005             ",
                Some("1ATA_QEMU_HARDDISK_QM00005"),
            ),
            ("iqn.2003-01.org.example:disk1", Some("8iqn.2003-01.org.example:disk1")),
            ("naa.", None),
            ("naa.xyz", None),
            ("t10. \0 ", None),
            ("", None),
            ("\u{fffd}", None),
        ] {
            assert_eq!(of_wwid(wwid).as_deref(), id, "{wwid:?}");
        }
    }

    /// One designator of a page.
    fn designator(code_set: u8, association: u8, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut all = vec![code_set, association << 4 | kind, 0, u8::try_from(body.len()).unwrap()];
        all.extend_from_slice(body);
        all
    }

    fn page(designators: &[Vec<u8>]) -> Vec<u8> {
        let body = designators.concat();
        let mut page = vec![0, 0x83];
        page.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        page.extend(body);
        page
    }

    #[test]
    fn a_page_is_read() {
        let (short, long) = ([0x50, 0x06, 0x01, 0x60, 1, 2, 3, 4], [0x60; 16]);
        let page = page(&[
            designator(2, 0, 1, b"VENDOR  serial 7 "),
            designator(1, 0, 3, &short),
            designator(1, 1, 3, &[0x50; 8]),
            designator(1, 0, 3, &long),
            designator(1, 0, 2, &short),
            designator(3, 0, 8, b"iqn.2003-01.org.example:x\0\0"),
            designator(1, 0, 4, &[0; 4]),
            designator(1, 0, 3, &[]),
        ]);
        let ids = [
            "360606060606060606060606060606060",
            "35006016001020304",
            "25006016001020304",
            "8iqn.2003-01.org.example:x",
            "1VENDOR_serial_7",
        ];
        assert_eq!(of_page(&page), ids);
        // The kernel's own choice comes first, and no id twice.
        let all = all(Some("t10.VENDOR  serial 7"), Some(&page));
        assert_eq!(all.iter().map(String::as_str).collect::<Vec<_>>(), [ids[4], ids[0], ids[1], ids[2], ids[3]]);
    }

    #[test]
    fn ids_of_specs_are_those_of_disks() {
        let ids = |wwid: &str| all(Some(wwid), None);
        let naa = ids("naa.600508b400105e21");
        for id in ["3600508b400105e21", "3600508B400105E21", "naa.600508B400105e21", "scsi-3600508b400105e21"] {
            assert!(has(&naa, id), "{id}");
        }
        for id in ["600508b400105e21", "3600508b400105e2", "2600508b400105e21", "", " "] {
            assert!(!has(&naa, id), "{id:?}");
        }
        let t10 = ids("t10.ATA     QEMU HARDDISK  QM5 ");
        for id in ["1ATA QEMU HARDDISK QM5", "1ATA_QEMU_HARDDISK_QM5", "1ATA     QEMU HARDDISK  QM5 "] {
            assert!(has(&t10, id), "{id}");
        }
        assert!(!has(&[], "") && !same("", ""));
        assert_eq!(wwn("0x50:0A:09:81:89:1b:8d:c5\n"), "500a0981891b8dc5");
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), text in "\\PC*") {
            of_page(&bytes);
            let mut page = vec![0, 0x83];
            page.extend(&bytes);
            of_page(&page);
            of_wwid(&text);
            prop_assert_eq!(normal(&normal(&text)), normal(&text));
            wwn(&text);
        }

        #[test]
        fn what_is_read_is_found_by_its_own_id(
            bodies in proptest::collection::vec((1u8..4, 1u8..9, "[a-zA-Z0-9 :.-]{1,20}"), 0..6)
        ) {
            let designators: Vec<_> = bodies.iter().map(|(set, kind, body)| designator(*set, 0, *kind, body.as_bytes())).collect();
            let ids = all(None, Some(&page(&designators)));
            for id in &ids {
                prop_assert!(has(&ids, id), "{} in {:?}", id, ids);
            }
        }
    }
}
