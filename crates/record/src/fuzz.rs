//! What the fuzz targets check: any bytes are a record or a reason why not, never a panic, and what was read is
//! written and read again without a change. Called by the targets in `fuzz/` and, with the corpus that is kept there,
//! by the tests below.

use std::path::Component;

use crate::codec::{Stored, decode_stored, encode_with, file_name, key_in, key_of_file_name, reseal};
use crate::{OuterSpecName, PluginName, PodUid, RecordKey, RelPath, SpecName, UniqueVolumeName};

/// Reads bytes as a record's file, as what its checksum covers, and as its name.
pub fn record(bytes: &[u8]) {
    let mut outcomes = vec![decode_stored(bytes)];
    // No fuzzer guesses a checksum: without this, none would ever come past it.
    outcomes.extend(reseal(bytes).map(|sealed| decode_stored(&sealed)));
    for stored in outcomes.into_iter().flatten() {
        round_trip(&stored);
    }
    if let Some(key) = key_in(bytes) {
        check_name(&key);
    }
    if let Ok(name) = std::str::from_utf8(bytes)
        && let Some(key) = key_of_file_name(name)
    {
        assert_eq!(file_name(&key), name);
        check_name(&key);
    }
}

/// Reads a text as each kind of name, escaped plugin names and paths included.
pub fn names(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let element = text != "." && text != ".." && !text.contains(['/', '\0']) && (1..=255).contains(&text.len());
    assert_eq!(PodUid::new(text).is_ok(), element);
    assert_eq!(SpecName::new(text).is_ok(), element);
    assert_eq!(OuterSpecName::new(text).is_ok(), element);
    let free = !text.contains('\0') && (1..=4096).contains(&text.len());
    assert_eq!(UniqueVolumeName::new(text).is_ok(), free);
    assert_eq!(PluginName::new(text).is_ok(), free);
    if let Ok(plugin) = PluginName::from_escaped(text) {
        let escaped = plugin.escaped();
        assert!(!escaped.contains('/'), "a folder's name");
        assert_eq!(escaped, text.replace('/', "~"));
        assert_eq!(PluginName::from_escaped(&escaped).as_ref(), Ok(&plugin));
    }
    if let Ok(path) = RelPath::new(text) {
        assert_eq!(path.as_str(), text);
        let normal = path.as_path().components().all(|part| matches!(part, Component::Normal(_)));
        assert!(normal, "nothing that leaves the root or stays in place: {text:?}");
        assert_eq!(path.as_path().components().count(), text.split('/').count());
        assert!(path.below(std::path::Path::new("/root")).starts_with("/root"));
        let json = serde_json::to_string(&path).expect("a text");
        assert_eq!(serde_json::from_str::<RelPath>(&json).ok(), Some(path));
    }
}

fn round_trip(stored: &Stored) {
    let encoded = encode_with(&stored.record, &stored.extra);
    assert_eq!(decode_stored(&encoded).as_ref(), Ok(stored));
    let key = stored.record.key();
    check_name(&key);
    // A field that this version does not know may have the name of one of another kind.
    if stored.extra.is_empty() {
        assert_eq!(key_in(&encoded), Some(key));
    }
}

fn check_name(key: &RecordKey) {
    let name = file_name(key);
    assert!(name.len() <= 255 && !name.contains('/') && !name.starts_with('.'), "{name:?}");
    if let Some(told) = key_of_file_name(&name) {
        assert_eq!(told, *key);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::samples::any_record;

    #[test]
    fn seeds_of_record() {
        refloat_test_support::corpus(env!("CARGO_MANIFEST_DIR"), "record", super::record);
    }

    #[test]
    fn seeds_of_unescape() {
        refloat_test_support::corpus(env!("CARGO_MANIFEST_DIR"), "unescape", super::names);
    }

    proptest! {
        #[test]
        fn any_record_passes(record in any_record(), cut in 0..20_usize) {
            let bytes = crate::codec::encode(&record);
            super::record(&bytes);
            super::record(&bytes[..bytes.len().saturating_sub(cut)]);
        }

        #[test]
        fn any_name_passes(text in "(\\.|\\.\\.|/|~|\0|[a-z]{1,3}|\\PC){0,6}") {
            super::names(text.as_bytes());
        }
    }
}
