//! Keeps the manager's list of records as the store is.

use std::collections::BTreeMap;

use refloat_record::{DeviceMount, PodUid, PodVolume, Record, RecordKey, UniqueVolumeName, Unreadable};

use crate::VolumeKey;
use crate::execute::Change;

/// Applies what operations did to the store: one pass over the list, however many changes there are.
pub(super) fn apply(records: &mut Vec<Record>, unreadable: &mut Vec<Unreadable>, changes: Vec<Change>) {
    if changes.is_empty() {
        return;
    }
    // The last change to a record counts.
    let mut last: BTreeMap<RecordKey, Option<Record>> = BTreeMap::new();
    for change in changes {
        match change {
            Change::Put(record) => last.insert(record.key(), Some(*record)),
            Change::Removed(key) => last.insert(key, None),
        };
    }
    // A record that was written anew, or undone, is not the unreadable one any more; that stays set aside.
    unreadable.retain(|file| !file.key.as_ref().is_some_and(|key| last.contains_key(key)));
    let mut old = std::mem::take(records).into_iter().peekable();
    let mut merged = Vec::with_capacity(old.len() + last.len());
    for (key, new) in last {
        while let Some(record) = old.next_if(|r| r.key() < key) {
            merged.push(record);
        }
        old.next_if(|r| r.key() == key);
        merged.extend(new);
    }
    merged.extend(old);
    *records = merged;
}

/// The record of a volume.
pub(super) fn volume<'r>(records: &'r [Record], key: &VolumeKey) -> Option<&'r PodVolume> {
    let key = RecordKey::PodVolume {
        pod: key.pod.clone(),
        plugin: key.plugin.clone(),
        spec_name: key.spec_name.clone(),
        mode: key.mode,
    };
    match find(records, &key)? {
        Record::PodVolume(record) => Some(record),
        Record::DeviceMount(_) | Record::PodCheckpoint(_) | Record::Driver(_) => None,
    }
}

/// The record of a device.
pub(super) fn device<'r>(records: &'r [Record], name: &UniqueVolumeName) -> Option<&'r DeviceMount> {
    match find(records, &RecordKey::DeviceMount(name.clone()))? {
        Record::DeviceMount(record) => Some(record),
        Record::PodVolume(_) | Record::PodCheckpoint(_) | Record::Driver(_) => None,
    }
}

pub(super) fn find<'r>(records: &'r [Record], key: &RecordKey) -> Option<&'r Record> {
    records.binary_search_by(|r| r.key().cmp(key)).ok().map(|index| &records[index])
}

/// The pod whose folder a change concerns.
pub(super) fn pod(change: &Change) -> Option<PodUid> {
    let key = match change {
        Change::Put(record) => record.key(),
        Change::Removed(key) => key.clone(),
    };
    match key {
        RecordKey::PodVolume { pod, .. } | RecordKey::PodCheckpoint(pod) => Some(pod),
        RecordKey::DeviceMount(_) | RecordKey::Driver(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refloat_record::{PodCheckpoint, PodRef, PodSource, Verbatim};

    fn checkpoint(uid: &str, name: &str) -> Record {
        Record::PodCheckpoint(PodCheckpoint {
            pod: PodRef { uid: PodUid::new(uid).unwrap(), namespace: "n".into(), name: name.into() },
            source: PodSource::Manifest { folder: "/m".into(), folder_id: None, file: "f".into() },
            object: Verbatim::from_text("{}".into()).unwrap(),
        })
    }

    #[test]
    fn changes_are_merged_in_order_of_key() {
        let mut records = vec![checkpoint("b", "1"), checkpoint("d", "1"), checkpoint("f", "1")];
        let key = |uid: &str| RecordKey::PodCheckpoint(PodUid::new(uid).unwrap());
        let put = |uid: &str, name: &str| Change::Put(Box::new(checkpoint(uid, name)));
        let changes = vec![
            put("g", "2"),
            put("a", "2"),
            Change::Removed(key("d")),
            put("f", "2"),
            put("c", "2"),
            Change::Removed(key("c")),
            Change::Removed(key("zz")),
        ];
        apply(&mut records, &mut vec![], changes);
        let expected = [checkpoint("a", "2"), checkpoint("b", "1"), checkpoint("f", "2"), checkpoint("g", "2")];
        assert_eq!(records, expected);
        assert!(find(&records, &key("f")).is_some() && find(&records, &key("d")).is_none());
    }
}
