//! Which records are of something that is not there any more.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use refloat_mount::{MountTable, NodeRoot, Standing};
use refloat_record::{Record, RecordKey};
use refloat_volume::layout;

use crate::{Actual, VolumeKey};

/// The keys of records whose volume or device is gone: neither folder nor mount of it was found, and none is there now.
pub(super) fn gone(
    fresh: &Actual,
    table: &MountTable,
    root: &NodeRoot,
    records: &BTreeMap<RecordKey, Record>,
) -> Vec<RecordKey> {
    let volumes: HashSet<&VolumeKey> = fresh.volumes.iter().map(|v| &v.key).collect();
    let devices: HashSet<&Path> = fresh.devices.iter().map(|d| d.path.as_path()).collect();
    // What stands there is asked once more: a list may be older than what was mounted since.
    let nothing = |rel: &Path| {
        let path = root.path().join(rel);
        table.at(&path).is_none()
            && table.under(&path).next().is_none()
            && matches!(root.look(rel), Ok(Standing::Nothing))
    };
    let is_gone = |record: &Record| match record {
        Record::PodVolume(r) => {
            let key = VolumeKey {
                pod: r.pod.uid.clone(),
                spec_name: r.spec_name.clone(),
                plugin: r.plugin.clone(),
                mode: r.mode,
            };
            let block = r.block.as_ref().is_none_or(|block| nothing(block.map_path.as_path()));
            let sub_paths = r.sub_paths.iter().all(|s| nothing(s.path.as_path()));
            let path = match &r.path {
                Some(path) => nothing(path.as_path()),
                // It has nothing of its own below the root, and lives as long as its pod.
                None => nothing(layout::pod_path(&r.pod.uid).as_path()),
            };
            !volumes.contains(&key) && path && block && sub_paths
        }
        Record::DeviceMount(r) => {
            let path = r.device_mount_path.below(root.path());
            !devices.contains(path.as_path()) && nothing(r.device_mount_path.as_path())
        }
        // Others keep these.
        Record::PodCheckpoint(_) | Record::Driver(_) => false,
    };
    records.iter().filter(|(_, record)| is_gone(record)).map(|(key, _)| key.clone()).collect()
}
