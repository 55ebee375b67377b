//! Tests of the codec: what is written is read again, and nothing else is.

use proptest::prelude::*;

use super::*;
use crate::samples::{any_record, checkpoint, device, driver, volume};

fn all() -> [Record; 4] {
    [device("pv1", "d"), volume("u1", "data", "v"), checkpoint("u1", "c"), driver("d.example", "d")]
}

/// The file with other content and a right checksum.
fn resealed(record: &Record, edit: impl Fn(&str) -> String) -> Vec<u8> {
    let bytes = encode(record);
    let body = edit(std::str::from_utf8(&bytes[..bytes.len() - TAIL]).unwrap());
    format!("{body}{CHECKSUM}{:08x}{END}", crc32c::crc32c(body.as_bytes())).into_bytes()
}

#[test]
fn a_file_is_one_line_with_the_checksum_last() {
    for record in all() {
        let text = String::from_utf8(encode(&record)).unwrap();
        assert!(
            text.starts_with(&format!("{{\"apiVersion\":\"{API_VERSION}\",\"kind\":\"{}\",", record.kind().name()))
        );
        assert_eq!(text.find('\n'), Some(text.len() - 1));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value.as_object().unwrap().keys().next_back().unwrap(), "checksum");
        assert_eq!(decode(text.as_bytes()), Ok(record));
    }
}

/// B11: each cut of each file.
#[test]
fn every_cut_is_torn() {
    for record in all() {
        let bytes = encode(&record);
        for end in 0..bytes.len() {
            let outcome = decode(&bytes[..end]);
            assert!(matches!(outcome, Err(UnreadableReason::Torn { .. })), "cut after {end}: {outcome:?}");
        }
    }
}

/// B11: filled with NUL, as a file is whose blocks never reached the disk.
#[test]
fn nuls_are_torn() {
    let bytes = encode(&all()[1]);
    for from in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[from..].fill(0);
        assert!(matches!(decode(&bytes), Err(UnreadableReason::Torn { .. })), "NUL from {from}");
    }
}

#[test]
fn a_newer_version_is_newer_however_it_ends() {
    for record in all() {
        let newer = |s: &str| s.replace("refloat.dev/v1", "refloat.dev/v2");
        let expected = Err(UnreadableReason::Newer { version: "volume.refloat.dev/v2".into() });
        assert_eq!(decode(&resealed(&record, newer)), expected);
        let other_end = newer(std::str::from_utf8(&encode(&record)).unwrap()).replace("crc32c:", "sha256:");
        assert_eq!(decode(other_end.as_bytes()), expected);
    }
}

#[test]
fn an_edited_file_is_seen() {
    let record = volume("u1", "data", "v");
    let text = String::from_utf8(encode(&record)).unwrap();
    let edited = text.replace("\"readOnly\":false", "\"readOnly\":true");
    assert!(matches!(decode(edited.as_bytes()), Err(UnreadableReason::Checksum { .. })));
    // Equal as JSON, and yet not what was written.
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    for anew in [serde_json::to_string(&value).unwrap() + "\n\n", serde_json::to_string_pretty(&value).unwrap()] {
        assert!(matches!(decode(anew.as_bytes()), Err(UnreadableReason::Malformed { .. })), "{anew}");
    }
}

#[test]
fn what_is_no_record_is_malformed_or_of_the_wrong_kind() {
    let malformed = |bytes: &[u8]| matches!(decode(bytes), Err(UnreadableReason::Malformed { .. }));
    for text in ["[]", "{}", "null", "x", "{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}", "\u{feff}{}"] {
        assert!(malformed(text.as_bytes()), "{text}");
    }
    assert!(malformed(b"\xff\xfe{}"));
    let record = volume("u1", "data", "v");
    assert!(malformed(&resealed(&record, |s| s.replace("\"specName\":\"data\"", "\"specName\":\"../x\""))));
    assert!(malformed(&resealed(&record, |s| s.replace("\"specName\":", "\"specname\":"))));
    assert!(malformed(&resealed(&record, |s| s.replace("refloat.dev/v1", "example.com/v1"))));
    let other = resealed(&record, |s| s.replace("\"kind\":\"PodVolume\"", "\"kind\":\"PodGroup\""));
    assert!(matches!(decode(&other), Err(UnreadableReason::WrongKind { found, .. }) if found == "PodGroup"));
}

#[test]
fn the_order_of_fields_does_not_matter() {
    let record = device("pv1", "d");
    let moved = resealed(&record, |s| {
        let (header, rest) = s.split_at(s.find(",\"uniqueName\"").unwrap());
        format!("{{{},{}", &rest[1..], &header[1..])
    });
    assert_eq!(decode(&moved), Ok(record));
}

/// A field that a later minor release added survives an update by this one, to the byte.
#[test]
fn unknown_fields_are_kept() {
    for record in all() {
        let later =
            resealed(&record, |s| format!("{s},\"later\":{{ \"n\":1.50, \"a\":[] }},\"gr\\u00f6\\u00dfe\":null"));
        let stored = decode_stored(&later).unwrap();
        assert_eq!(stored.record, record);
        let names: Vec<_> = stored.extra.iter().map(|(n, v)| (n, v.get())).collect();
        assert_eq!(names, [("later", "{ \"n\":1.50, \"a\":[] }"), ("größe", "null")]);
        let updated = decode_stored(&encode_with(&all()[0], &stored.extra)).unwrap();
        assert_eq!(updated, Stored { record: all()[0].clone(), extra: stored.extra });
    }
}

#[test]
fn objects_stay_as_they_came() {
    let text = r#"{"z":1,"a":1.0e3,"a":"\u0041","n":123456789012345678901234567890}"#;
    let Record::PodVolume(mut v) = volume("u1", "data", "v") else { unreachable!() };
    v.persistent_volume = Some(crate::Verbatim::from_text(text.into()).unwrap());
    let Ok(Record::PodVolume(back)) = decode(&encode(&Record::PodVolume(v))) else { panic!() };
    assert_eq!(back.persistent_volume.unwrap().get(), text);
}

#[test]
fn file_names_are_readable() {
    let Record::PodVolume(v) = volume("0a1b-u1", "data", "") else { unreachable!() };
    let name = file_name(&v.key());
    assert!(name.starts_with("0a1b-u1+kubernetes.io~empty-dir+data+fs+"), "{name}");
    assert!(file_name(&device("pv1", "").key()).starts_with("kubernetes.io~local-volume~pv1+"));
    for record in all() {
        assert_eq!(key_of_file_name(&file_name(&record.key())), Some(record.key()));
    }
}

#[test]
fn long_and_odd_names_have_file_names_of_their_own() {
    let names = ["a".repeat(253), "a".repeat(252) + "b", "ä".repeat(126), ".".repeat(64), "x+y".into(), "x_y".into()];
    let mut seen = std::collections::HashSet::new();
    for name in &names {
        let key = volume("u1", name, "").key();
        let file = file_name(&key);
        assert!(file.len() <= 255 && !file.starts_with('.') && file.is_ascii(), "{file}");
        assert!(seen.insert(file), "{name}");
    }
}

/// Parts that run into each other must not meet.
#[test]
fn shifted_parts_do_not_collide() {
    let key = |uid, plugin, spec| RecordKey::PodVolume {
        pod: PodUid::new(uid).unwrap(),
        plugin: PluginName::new(plugin).unwrap(),
        spec_name: SpecName::new(spec).unwrap(),
        mode: VolumeMode::Filesystem,
    };
    let keys =
        [key("u", "a", "b"), key("u+a", "b", "b"), key("u", "a+b", "b"), key("u", "a~b", "c"), key("u", "a/b", "c")];
    let names: std::collections::HashSet<_> = keys.iter().map(file_name).collect();
    assert_eq!(names.len(), keys.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn round_trip(record in any_record()) {
        let bytes = encode(&record);
        prop_assert_eq!(decode(&bytes), Ok(record.clone()));
        let name = file_name(&record.key());
        prop_assert!(name.len() <= 255 && !name.starts_with('.') && !name.contains('/'));
        prop_assert_eq!(key_in(&bytes), Some(record.key()));
        if let Some(key) = key_of_file_name(&name) {
            prop_assert_eq!(key, record.key());
        }
    }

    #[test]
    fn any_cut_or_flip_is_seen(record in any_record(), at: prop::sample::Index, flip in 1..=255u8) {
        let mut bytes = encode(&record);
        let at = at.index(bytes.len());
        prop_assert!(decode(&bytes[..at]).is_err());
        bytes[at] ^= flip;
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, text in "\\PC*") {
        prop_assert!(decode(&bytes).is_err());
        prop_assert!(decode(text.as_bytes()).is_err());
        let _ = (key_in(&bytes), key_of_file_name(&text));
    }

    /// Damage that the checksum would let pass is no danger either.
    #[test]
    fn resealed_damage_never_panics(record in any_record(), at: prop::sample::Index, with in "\\PC{0,4}") {
        let sealed = resealed(&record, |s| {
            let at = (0..=at.index(s.len())).rev().find(|&i| s.is_char_boundary(i)).unwrap();
            let end = (at + 1..s.len()).find(|&i| s.is_char_boundary(i)).unwrap_or(s.len());
            format!("{}{with}{}", &s[..at], &s[end..])
        });
        if let Ok(stored) = decode_stored(&sealed) {
            prop_assert_eq!(decode_stored(&encode_with(&stored.record, &stored.extra)), Ok(stored));
        }
    }
}
