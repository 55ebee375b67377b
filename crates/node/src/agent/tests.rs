//! What records are to say.

use std::collections::BTreeMap;
use std::path::PathBuf;

use refloat_mount::MountTable;
use refloat_record::{OuterSpecName, Record, RecordKey, Verbatim};
use serde_json::json;

use super::enrich::{ObjectsError, WholeObjects, enrich};
use super::merge::merge;
use crate::testing::{BOOT, device_record, volume_record};
use crate::{Actual, ActualVolume, ReconstructionResult, RecordState, VolumeKey, VolumeState};
use refloat_volume::Plugins;

/// A volume as it is found without a record.
fn found(uid: &str, plugin: &str, name: &str) -> ActualVolume {
    let mut record = volume_record(uid, plugin, name, BOOT);
    record.pod.namespace = String::new();
    record.pod.name = String::new();
    record.volume_names = vec![];
    record.volume = Verbatim::from_value(&json!(null));
    ActualVolume {
        key: VolumeKey {
            pod: record.pod.uid.clone(),
            spec_name: record.spec_name.clone(),
            plugin: record.plugin.clone(),
            mode: record.mode,
        },
        pod_name: None,
        outer_names: vec![],
        unique_name: Some(record.unique_name.clone()),
        path: None,
        device_path: None,
        sub_paths: vec![],
        mount: None,
        state: VolumeState::Mounted,
        state_reason: String::new().into(),
        record_state: RecordState::Missing,
        record: Some(record),
        reconstruction: ReconstructionResult::Partial { lost: vec!["emptyDir.sizeLimit".into()] },
        spec_volume: None,
        spec_persistent_volume: None,
        stray_files: false,
        evidence: vec![],
        conflict: None,
        problems: vec![],
    }
}

fn actual(volumes: Vec<ActualVolume>) -> Actual {
    Actual { volumes, ..Actual::default() }
}

fn table(lines: &[&str]) -> MountTable {
    MountTable::from_mountinfo(lines.join("\n").as_bytes()).0
}

fn by_key(records: Vec<Record>) -> BTreeMap<RecordKey, Record> {
    records.into_iter().map(|record| (record.key(), record)).collect()
}

fn volume(records: &[Record]) -> &refloat_record::PodVolume {
    let [Record::PodVolume(record)] = records else { panic!("one volume: {records:?}") };
    record
}

#[test]
fn what_is_not_surely_true_is_not_recorded() {
    let good = found("u1", "kubernetes.io/empty-dir", "a");
    let unnamed = ActualVolume { unique_name: None, ..found("u2", "kubernetes.io/csi", "b") };
    let failed =
        ActualVolume { reconstruction: ReconstructionResult::Failed, ..found("u3", "kubernetes.io/secret", "c") };
    let conflict = ActualVolume { conflict: Some("two".into()), ..found("u4", "kubernetes.io/secret", "d") };
    let records = merge(&actual(vec![good, unnamed, failed, conflict]), &table(&[]), &BTreeMap::new());
    assert_eq!(volume(&records).lost, ["emptyDir.sizeLimit"]);
    assert_eq!(volume(&records).pod.uid.as_str(), "u1");
}

#[test]
fn a_poorer_look_takes_nothing_away() {
    let info = Verbatim::from_value(&json!({"driver": "d", "volumeHandle": "h"}));
    let mut first = found("u1", "kubernetes.io/csi", "pv");
    first.record.as_mut().unwrap().provider_info = Some(info.clone());
    let before = merge(&actual(vec![first.clone()]), &table(&[]), &BTreeMap::new());
    assert_eq!(merge(&actual(vec![first]), &table(&[]), &by_key(before.clone())), before, "looking twice");
    // The kubelet's file was torn meanwhile: nothing tells the name, and another is invented for the undoing.
    let mut poor = ActualVolume { unique_name: None, ..found("u1", "kubernetes.io/csi", "pv") };
    poor.reconstruction = ReconstructionResult::UnmountOnly;
    poor.record.as_mut().unwrap().unique_name = refloat_record::UniqueVolumeName::new("invented/x").unwrap();
    let after = merge(&actual(vec![poor]), &table(&[]), &by_key(before.clone()));
    assert_eq!(after, before);
    assert_eq!(volume(&after).provider_info, Some(info));
}

#[test]
fn a_whole_record_stays_whole() {
    let whole = volume_record("u1", "kubernetes.io/empty-dir", "a", BOOT);
    let records = by_key(vec![Record::PodVolume(whole.clone())]);
    let after = merge(&actual(vec![found("u1", "kubernetes.io/empty-dir", "a")]), &table(&[]), &records);
    assert_eq!(volume(&after), &whole);
}

#[test]
fn a_record_of_a_device_is_found_by_its_path() {
    let record = device_record("pv", BOOT);
    let records = by_key(vec![Record::DeviceMount(record.clone())]);
    let device = crate::ActualDevice {
        unique_name: None,
        plugin: record.plugin.clone(),
        path: PathBuf::from("/r").join(record.device_mount_path.as_str()),
        device: None,
        mount: None,
        state: VolumeState::NotMounted,
        record_state: RecordState::Missing,
        record: Some(device_record("other", BOOT)),
        users: vec![],
        other_references: vec![],
        evidence: vec![],
        conflict: None,
        problems: vec![],
    };
    let mut at_its_path = device.clone();
    at_its_path.record.as_mut().unwrap().device_mount_path = record.device_mount_path.clone();
    let fresh = Actual { devices: vec![at_its_path, device], ..Actual::default() };
    assert_eq!(merge(&fresh, &table(&[]), &records), [Record::DeviceMount(record)]);
}

/// One pod, a claim and a volume.
struct Known {
    asked: usize,
}

impl WholeObjects for Known {
    fn pods(&mut self) -> Result<Vec<Verbatim>, ObjectsError> {
        self.asked += 1;
        let pod = json!({
            "metadata": {"uid": "u1", "namespace": "ns", "name": "web"},
            "spec": {
                "securityContext": {"fsGroup": 7},
                "containers": [{"name": "c", "volumeMounts": [
                    {"name": "a", "mountPath": "/a"},
                    {"name": "data", "mountPath": "/d", "subPath": "sub"},
                ]}],
                "volumes": [
                    {"name": "a", "emptyDir": {"sizeLimit": "1Gi", "tomorrow": true}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "c1", "readOnly": true}},
                    {"name": "again", "persistentVolumeClaim": {"claimName": "c1"}},
                    {"name": "pv", "emptyDir": {}},
                ],
            },
        });
        Ok(vec![Verbatim::from_value(&json!("no pod")), Verbatim::from_value(&pod)])
    }

    fn claim(&mut self, namespace: &str, name: &str) -> Result<Option<Verbatim>, ObjectsError> {
        assert_eq!((namespace, name), ("ns", "c1"));
        Ok(Some(Verbatim::from_value(&json!({"metadata": {"uid": "c-uid"}, "spec": {"volumeName": "pv"}}))))
    }

    fn persistent_volume(&mut self, name: &str) -> Result<Option<Verbatim>, ObjectsError> {
        assert_eq!(name, "pv");
        let spec = json!({"csi": {"driver": "d", "volumeHandle": "h"}, "mountOptions": ["noatime"]});
        Ok(Some(Verbatim::from_value(&json!({"metadata": {"name": "pv"}, "spec": spec}))))
    }
}

#[test]
fn pods_claims_and_volumes_complete_the_records() {
    let volumes = vec![
        found("u1", "kubernetes.io/csi", "pv"),
        found("u1", "kubernetes.io/empty-dir", "a"),
        found("u1", "kubernetes.io/empty-dir", "pv"),
        found("u2", "kubernetes.io/empty-dir", "a"),
    ];
    let mut records = merge(&actual(volumes), &table(&[]), &BTreeMap::new());
    let mut known = Known { asked: 0 };
    enrich(&mut records, &Plugins::builtin(), &mut known).unwrap();
    let [Record::PodVolume(claimed), Record::PodVolume(own), Record::PodVolume(same_name), Record::PodVolume(gone)] =
        records.as_slice()
    else {
        panic!("four volumes: {records:?}")
    };
    let names: Vec<&str> = claimed.volume_names.iter().map(OuterSpecName::as_str).collect();
    assert_eq!(names, ["data", "again"]);
    assert_eq!((claimed.pod.namespace.as_str(), claimed.pod.name.as_str()), ("ns", "web"));
    assert_eq!(claimed.claim.as_ref().unwrap().uid.as_deref(), Some("c-uid"));
    assert!(claimed.persistent_volume.as_ref().unwrap().get().contains("volumeHandle"));
    assert_eq!(claimed.mount_options, ["noatime"]);
    assert!(!claimed.read_only, "one of both entries is writable");
    assert_eq!(claimed.fs_group.unwrap().gid, 7);
    assert_eq!(claimed.sub_paths[0].path.as_str(), "pods/u1/volume-subpaths/pv/c/1");
    assert!(claimed.lost.is_empty() && own.lost.is_empty() && same_name.lost.is_empty());
    assert!(own.volume.get().contains("tomorrow"), "verbatim: {:?}", own.volume);
    assert!(same_name.persistent_volume.is_none() && same_name.claim.is_none());
    assert_eq!((gone.pod.name.as_str(), gone.lost.len()), ("", 1), "nobody knows that pod");
    // What is whole asks for nothing.
    let mut whole = records[..3].to_vec();
    enrich(&mut whole, &Plugins::builtin(), &mut known).unwrap();
    assert_eq!((known.asked, &whole[..]), (1, &records[..3]));
}
