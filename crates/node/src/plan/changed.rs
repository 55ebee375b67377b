//! Specs that changed under what is set up.
//!
//! The content of configMap, secret, downwardAPI and projected volumes follows its source. Everything else of a volume
//! is what it was when it was mounted: a pod's containers hold it, and a mount cannot be exchanged under them. The API
//! server does not let such fields be changed; a manifest can be. What is mounted then stays, with its record, and the
//! difference is told.
//!
//! # Source
//! `ValidatePersistentVolumeUpdate` of Kubernetes: "spec.persistentvolumesource is immutable after creation".

use std::collections::HashMap;

use refloat_record::{DeviceMount, PodVolume, Verbatim};
use refloat_volume::Problem;
use serde_json::{Map, Value};

use crate::{Actual, ActualDevice, ActualVolume, Desired, DesiredVolume, RecordState, VolumeState};

/// The fields of a `PersistentVolume`'s spec that change nothing about what is mounted.
///
/// # Source
/// `PersistentVolumeSpec` of the Kubernetes core API v1.36; `mountOptions` is compared.
const NOT_MOUNTED: [&str; 8] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

/// Adds to each volume and device the problem that what is wanted of it is no longer what is set up.
pub fn compare(desired: &Desired, actual: &mut Actual) {
    let wanted = || desired.pods.values().flat_map(|pod| &pod.volumes);
    let mut of_devices: HashMap<&str, Vec<&DesiredVolume>> = HashMap::new();
    for volume in wanted() {
        if volume.device_mount_path.is_some() {
            of_devices.entry(volume.unique_name.as_str()).or_default().push(volume);
        }
        let Ok(index) = actual.volumes.binary_search_by(|v| v.key.cmp(&volume.key)) else { continue };
        let seen = &mut actual.volumes[index];
        if let Some(field) = volume_changed(volume, seen) {
            let message = format!(
                "volume {:?} of pod {}/{} ({}): {field} is not what it was when the volume was set up; the pod keeps \
                 what it has",
                volume.outer_names.first().map_or(volume.key.spec_name.as_str(), |n| n.as_str()),
                volume.pod.namespace,
                volume.pod.name,
                volume.pod.uid
            );
            seen.problems.push(Problem::new(
                "SpecChanged",
                message,
                "Undo the change, or remove the pod and create it again: only a new set-up can follow it.",
            ));
        }
    }
    for device in &mut actual.devices {
        let wanted = device.unique_name.as_ref().and_then(|name| of_devices.get(name.as_str()));
        if let Some(field) = wanted.and_then(|all| all.iter().find_map(|volume| device_changed(volume, device))) {
            let name = device.unique_name.as_ref().map_or("", |n| n.as_str());
            let message =
                format!("device {name}: {field} is not what it was when the device was mounted; it stays as it is");
            device.problems.push(Problem::new(
                "SpecChanged",
                message,
                "Undo the change, or remove the pods that use it: when the last is gone, the new device is mounted.",
            ));
        }
    }
}

/// The field that is another one than that which is set up, if what is set up stays for that reason.
pub(super) fn volume_changed(volume: &DesiredVolume, seen: &ActualVolume) -> Option<String> {
    let holds = seen.record_state == RecordState::Ok && (seen.state == VolumeState::Mounted || seen.mount.is_some());
    if !holds || volume.content.is_some() {
        return None;
    }
    changed(volume, seen.record.as_ref()?)
}

fn changed(volume: &DesiredVolume, record: &PodVolume) -> Option<String> {
    let source = &volume.spec.source;
    if record.read_only != volume.spec.read_only {
        return Some("whether it is read-only".into());
    }
    // What is translated may be told apart by more than its source: the labels of a disk's zones.
    if volume.spec.migrated.is_some() && record.unique_name != volume.unique_name {
        return Some("the volume that its CSI driver has for it".into());
    }
    match (&record.persistent_volume, source.persistent_volume()) {
        (Some(old), Some(new)) => of_persistent_volume(old, &new.raw),
        (Some(_), None) | (None, Some(_)) => Some("its type".into()),
        (None, None) => of_entry(&record.volume, &source.volume().raw),
    }
}

/// The same of a pod's own entry.
fn of_entry(old: &Verbatim, new: &Verbatim) -> Option<String> {
    let entry = |raw: &Verbatim| {
        let mut fields = raw.parse::<Map<String, Value>>().ok()?;
        fields.shift_remove("name");
        Some(Value::Object(fields))
    };
    difference(&entry(old)?, &entry(new)?, "")
}

/// The same of a device, which pods share. Two pods may call volumes of their own the same, and mean different disks.
pub(super) fn device_changed(volume: &DesiredVolume, seen: &ActualDevice) -> Option<String> {
    let record: &DeviceMount = seen.record.as_ref()?;
    let holds = seen.record_state == RecordState::Ok && (seen.state == VolumeState::Mounted || seen.mount.is_some());
    if !holds {
        return None;
    }
    let source = &volume.spec.source;
    match (&record.persistent_volume, &record.volume, source.persistent_volume()) {
        (Some(old), _, Some(new)) => of_persistent_volume(old, &new.raw),
        (None, Some(old), None) => of_entry(old, &source.volume().raw),
        (Some(_), _, None) | (None, Some(_), Some(_)) => Some("its type".into()),
        (None, None, _) => None,
    }
}

fn of_persistent_volume(old: &Verbatim, new: &Verbatim) -> Option<String> {
    let spec = |raw: &Verbatim| {
        let mut whole = raw.parse::<Map<String, Value>>().ok()?;
        let Some(Value::Object(mut spec)) = whole.shift_remove("spec") else { return None };
        spec.retain(|name, _| !NOT_MOUNTED.contains(&name.as_str()));
        Some(Value::Object(spec))
    };
    difference(&spec(old)?, &spec(new)?, "spec").map(|field| format!("{field} of its PersistentVolume"))
}

/// The path of the first field that differs. A field that is null or empty is one that is absent. Values are not told:
/// what is in them is the drivers' affair.
fn difference(old: &Value, new: &Value, path: &str) -> Option<String> {
    let nothing = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Bool(value) => !value,
        Value::Object(_) | Value::Number(_) => false,
    };
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort_unstable();
            names.dedup();
            names.into_iter().find_map(|name| {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                difference(a.get(name).unwrap_or(&Value::Null), b.get(name).unwrap_or(&Value::Null), &path)
            })
        }
        _ if old == new || (nothing(old) && nothing(new)) => None,
        _ => Some(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differs(old: &str, new: &str) -> Option<String> {
        of_persistent_volume(&Verbatim::from_text(old.into()).unwrap(), &Verbatim::from_text(new.into()).unwrap())
    }

    #[test]
    fn only_what_is_mounted_counts() {
        let old = r#"{"spec":{"capacity":{"storage":"1Gi"},"local":{"path":"/a","fsType":null}}}"#;
        let other = |new: &str| differs(old, new);
        assert_eq!(other(r#"{"metadata":{"labels":{"a":"b"}},"spec":{"local":{"path":"/a"}}}"#), None);
        assert_eq!(other(r#"{"spec":{"local":{"path":"/b"}}}"#).unwrap(), "spec.local.path of its PersistentVolume");
        assert_eq!(
            other(r#"{"spec":{"local":{"path":"/a","fsType":"xfs"}}}"#).unwrap(),
            "spec.local.fsType of its PersistentVolume"
        );
        assert_eq!(other(r#"{"spec":{"nfs":{"path":"/a"}}}"#).unwrap(), "spec.local of its PersistentVolume");
        assert_eq!(
            other(r#"{"spec":{"local":{"path":"/a"},"mountOptions":["ro"]}}"#).unwrap(),
            "spec.mountOptions of its PersistentVolume"
        );
    }
}
