//! What the records are to say, from what is on the node and from what they say already. Pure.
//!
//! What was learned once is never lost: a file that a kubelet or driver wrote may be torn or gone at the next look, and a pod
//! may be deleted. Only where and how something is mounted follows the mount table.

use std::collections::{BTreeMap, BTreeSet};

use refloat_mount::{MountTable, UniqueMountId};
use refloat_record::{DeviceMount, PluginName, PodVolume, Record, RecordKey, RecordedMount};
use refloat_volume::layout;
use refloat_volume::plugins::flex_volume::is_flex_volume;

use crate::{Actual, ActualDevice, ActualVolume, ReconstructionResult};

/// The records of all that is on the node and understood, each as it is to be: new ones, and those that stay as they are.
///
/// `fresh` was concluded without any record.
pub fn merge(fresh: &Actual, table: &MountTable, records: &BTreeMap<RecordKey, Record>) -> Vec<Record> {
    let mut all = vec![];
    for volume in &fresh.volumes {
        let Some(found) = &volume.record else { continue };
        let key = RecordKey::PodVolume {
            pod: found.pod.uid.clone(),
            plugin: found.plugin.clone(),
            spec_name: found.spec_name.clone(),
            mode: found.mode,
        };
        let merged = match records.get(&key) {
            Some(Record::PodVolume(known)) => Some(again(known, volume, found, table)),
            _ => first(volume, found),
        };
        all.extend(merged.map(Record::PodVolume));
    }
    let by_path: BTreeMap<&str, &DeviceMount> = records
        .values()
        .filter_map(|record| match record {
            Record::DeviceMount(device) => Some((device.device_mount_path.as_str(), device)),
            Record::PodVolume(_) | Record::PodCheckpoint(_) | Record::Driver(_) => None,
        })
        .collect();
    let mut named = BTreeSet::new();
    for device in &fresh.devices {
        let rel = device.record.as_ref().map(|found| found.device_mount_path.as_str());
        let merged = match rel.and_then(|rel| by_path.get(rel)) {
            Some(known) => Some(device_again(known, device, table)),
            None => first_device(device),
        };
        // Of two places with one name neither is overwritten by the other.
        all.extend(merged.filter(|record| named.insert(record.unique_name.clone())).map(Record::DeviceMount));
    }
    all
}

/// The first record of a volume; none if it is not understood, or if what it would say is not surely true.
fn first(volume: &ActualVolume, found: &PodVolume) -> Option<PodVolume> {
    if volume.conflict.is_some() || volume.reconstruction == ReconstructionResult::Failed {
        return None;
    }
    // Without it the record would have an invented name. Whoever knows the volume whole can tell it later.
    let unique_name = volume.unique_name.clone()?;
    let lost = match &volume.reconstruction {
        ReconstructionResult::Full => vec![],
        ReconstructionResult::Partial { lost } => lost.iter().map(ToString::to_string).collect(),
        ReconstructionResult::UnmountOnly | ReconstructionResult::Failed => vec!["volume".into()],
    };
    Some(PodVolume { unique_name, confirmed: is_driven(&found.plugin) && is_mounted(found), lost, ..found.clone() })
}

fn is_mounted(found: &PodVolume) -> bool {
    found.mount.is_some() || found.block.as_ref().is_some_and(|block| block.mount.is_some())
}

/// The record of a volume that has one.
fn again(known: &PodVolume, volume: &ActualVolume, found: &PodVolume, table: &MountTable) -> PodVolume {
    let mut record = known.clone();
    if let Some(name) = &volume.unique_name {
        record.unique_name = name.clone();
    }
    record.provider_info = found.provider_info.clone().or(record.provider_info);
    record.device_mount_path = found.device_mount_path.clone().or(record.device_mount_path);
    if volume.conflict.is_some() || !is_mounted(found) {
        return record;
    }
    let recorded = known.mount.as_ref().or(known.block.as_ref().and_then(|block| block.mount.as_ref()));
    if recorded.is_some_and(|mount| is_there(mount, table)) {
        return record;
    }
    // It was mounted since, perhaps anew.
    record.mount.clone_from(&found.mount);
    if found.block.is_some() {
        record.block.clone_from(&found.block);
    }
    record.path = found.path.clone().or(record.path);
    record.boot_id = found.boot_id.clone();
    record.confirmed = is_driven(&found.plugin);
    record
}

/// Whether a driver made it: what it made and the kubelet kept, it has confirmed.
fn is_driven(plugin: &PluginName) -> bool {
    plugin.as_str() == layout::CSI || is_flex_volume(plugin)
}

/// Whether the recorded mount itself is in the table. Where the kernel tells no ids, nobody can say so.
fn is_there(mount: &RecordedMount, table: &MountTable) -> bool {
    mount.id.is_some_and(|id| table.by_id(UniqueMountId(id)).is_some())
}

fn first_device(device: &ActualDevice) -> Option<DeviceMount> {
    let found = device.record.as_ref()?;
    // A folder alone is not a device.
    device.mount.as_ref()?;
    let unique_name = device.unique_name.clone()?;
    if device.conflict.is_some() {
        return None;
    }
    let confirmed = is_driven(&device.plugin);
    Some(DeviceMount { unique_name, confirmed, device: device.device.clone(), ..found.clone() })
}

fn device_again(known: &DeviceMount, device: &ActualDevice, table: &MountTable) -> DeviceMount {
    let mut record = known.clone();
    let Some(found) = &device.record else { return record };
    record.provider_info = found.provider_info.clone().or(record.provider_info);
    if device.mount.is_none() || device.conflict.is_some() {
        return record;
    }
    if known.mount.as_ref().is_some_and(|mount| is_there(mount, table)) {
        return record;
    }
    record.mount.clone_from(&found.mount);
    record.device = device.device.clone().or(record.device);
    record.boot_id = found.boot_id.clone();
    record.confirmed = is_driven(&device.plugin);
    record
}
