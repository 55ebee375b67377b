use std::path::Path;

use proptest::prelude::*;
use refloat_record::{PodCheckpoint, PodVolume};

use super::*;
use crate::testing::{BOOT, arbitrary, boot, volume_record};
use crate::{
    Actual, ActualDevice, ActualVolume, Desired, LeftoverKind, ReconstructionResult, RecordState, SubPathSeen,
    VolumeState, Wanted, reconstruct,
};

/// What an operation does when everything goes well.
fn ideal(actual: &mut Actual, desired: &Desired, input: &mut PlanInput, operation: &Operation) {
    match operation {
        Operation::AdmitPod { pod, .. } => {
            let wanted = &desired.pods[pod];
            actual.checkpoints.retain(|c| c.pod.uid != *pod);
            actual.checkpoints.push(PodCheckpoint {
                pod: wanted.pod.clone(),
                source: wanted.source.clone(),
                object: wanted.object.clone(),
            });
        }
        Operation::MountDevice { volume, .. } => {
            // Of the names, one is that of a folder that has no device.
            if volume.key.spec_name.as_str() == "w" {
                input.no_device.insert(volume.unique_name.clone());
                return;
            }
            actual.devices.retain(|d| d.unique_name.as_ref() != Some(&volume.unique_name));
            let record = DeviceMount {
                device_mount_path: volume.device_mount_path.clone().unwrap(),
                unique_name: volume.unique_name.clone(),
                ..crate::testing::device_record("x", BOOT)
            };
            actual.devices.push(ActualDevice {
                unique_name: Some(volume.unique_name.clone()),
                plugin: volume.key.plugin.clone(),
                path: record.device_mount_path.below(Path::new("/r")),
                device: None,
                mount: None,
                state: VolumeState::Mounted,
                record_state: RecordState::Ok,
                record: Some(record),
                users: vec![],
                evidence: vec![],
                other_references: vec![],
                conflict: None,
                problems: vec![],
            });
        }
        Operation::SetUp { volume, .. } => {
            actual.volumes.retain(|v| v.key != volume.key);
            let record = PodVolume {
                fs_group: volume.fs_group,
                volume: volume.spec.source.volume().raw.clone(),
                persistent_volume: volume.spec.source.persistent_volume().map(|p| p.raw.clone()),
                boot_id: boot(BOOT),
                ..volume_record(
                    volume.key.pod.as_str(),
                    volume.key.plugin.as_str(),
                    volume.key.spec_name.as_str(),
                    BOOT,
                )
            };
            let sub_paths = volume.sub_paths.iter().map(|s| SubPathSeen {
                path: "/r/x".into(),
                container: s.container.clone(),
                index: Some(s.index),
                sub_path: Some(s.sub_path.clone()),
                mounted: true,
                ours: true,
            });
            actual.volumes.push(ActualVolume {
                key: volume.key.clone(),
                pod_name: None,
                outer_names: volume.outer_names.clone(),
                unique_name: Some(volume.unique_name.clone()),
                path: None,
                device_path: None,
                sub_paths: sub_paths.collect(),
                mount: None,
                state: VolumeState::Mounted,
                state_reason: "it was set up".into(),
                record_state: RecordState::Ok,
                record: Some(record),
                reconstruction: ReconstructionResult::Full,
                spec_volume: None,
                spec_persistent_volume: None,
                stray_files: false,
                evidence: vec![],
                conflict: None,
                problems: vec![],
            });
            input.verified.insert(volume.key.clone(), digest(volume));
        }
        Operation::TearDown { key, .. } => {
            actual.volumes.retain(|v| v.key != *key);
            let still: Vec<_> = actual.volumes.iter().map(|v| v.key.pod.clone()).collect();
            for device in &mut actual.devices {
                device.users.retain(|user| still.contains(user));
            }
        }
        Operation::UnmountDevice { record, .. } => {
            actual.devices.retain(|d| d.unique_name.as_ref() != Some(&record.unique_name));
        }
        Operation::ForgetPod { pod, .. } => {
            actual.checkpoints.retain(|c| c.pod.uid != *pod);
            actual.leftovers.retain(|l| l.pod.as_ref() != Some(pod) || l.kind == LeftoverKind::PodDirWithData);
        }
        // Only a clean-up plans them.
        Operation::UnmountLeftover { .. }
        | Operation::TidyPod { .. }
        // There are no providers.
        | Operation::AskProvider { .. }
        | Operation::NoteAnswer { .. } => {}
    }
}

/// What must hold for every operation, told without the planner's own means.
fn check_safety(desired: &Desired, actual: &Actual, operation: &Operation) -> Result<(), TestCaseError> {
    let inside = |path: &str, top: &str| {
        path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
            && !path.split('/').any(|part| matches!(part, "" | "." | ".."))
    };
    match operation {
        Operation::TearDown { key, record, .. } => {
            prop_assert!(matches!(desired.wanted_volume(key), Wanted::No { .. }), "{:?} is wanted", key);
            let own = format!("pods/{}", key.pod);
            prop_assert_eq!(&record.pod.uid, &key.pod);
            for path in record.path.iter().chain(record.sub_paths.iter().map(|s| &s.path)) {
                prop_assert!(inside(path.as_str(), &own), "{} of {:?}", path, key);
            }
        }
        Operation::UnmountDevice { record, .. } => {
            prop_assert!(inside(record.device_mount_path.as_str(), "plugins"));
            prop_assert_eq!(&desired.incomplete, &None);
            for pod in desired.pods.values() {
                for volume in &pod.volumes {
                    prop_assert_ne!(&volume.unique_name, &record.unique_name);
                    prop_assert_ne!(volume.device_mount_path.as_ref(), Some(&record.device_mount_path));
                }
            }
            for volume in &actual.volumes {
                let used = volume.record.as_ref().and_then(|r| r.device_mount_path.as_ref());
                prop_assert_ne!(used, Some(&record.device_mount_path));
                prop_assert_ne!(volume.unique_name.as_ref(), Some(&record.unique_name));
            }
            let device = actual.devices.iter().find(|d| d.record.as_ref() == Some(record)).unwrap();
            prop_assert!(device.users.is_empty() && device.other_references.is_empty());
        }
        Operation::ForgetPod { pod, .. } => {
            let is_gone = matches!(desired.wanted(pod), Wanted::No { .. });
            prop_assert!(is_gone, "pod {} is wanted", pod);
            prop_assert!(actual.volumes.iter().all(|v| v.key.pod != *pod));
        }
        Operation::UnmountLeftover { .. } | Operation::TidyPod { .. } => {
            prop_assert!(false, "only a clean-up plans {:?}", operation);
        }
        Operation::AskProvider { .. } | Operation::NoteAnswer { .. } => prop_assert!(false, "there are no providers"),
        Operation::SetUp { volume, .. } | Operation::MountDevice { volume, .. } => {
            prop_assert!(desired.pods[&volume.key.pod].volumes.iter().any(|v| v.key == volume.key));
            prop_assert!(actual.checkpoints.iter().any(|c| c.pod.uid == volume.key.pod));
            let found = actual.volumes.iter().find(|v| v.key == volume.key);
            prop_assert!(found.is_none_or(|v| v.conflict.is_none()));
        }
        Operation::AdmitPod { pod, .. } => prop_assert!(desired.pods[pod].only_checkpoint.is_none()),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Whatever the evidence and the wishes: each operation is safe, no two of a plan exclude each other, every thing has
    /// a report, two runs are equal, and carrying the plans out leads to rest.
    #[test]
    fn planning_is_safe_and_reaches_rest(evidence in arbitrary::evidence(), desired in arbitrary::desired()) {
        let plugins = arbitrary::plugins();
        let mut actual = reconstruct(&evidence, &plugins);
        let mut input = PlanInput::new(&plugins);
        for _ in 0..12 {
            let plan = super::plan(&desired, &actual, &input);
            let again = super::plan(&desired, &actual, &input);
            prop_assert_eq!(format!("{plan:?}"), format!("{again:?}"));
            let mut taken = BTreeSet::new();
            for operation in &plan.operations {
                check_safety(&desired, &actual, operation)?;
                for exclusion in operation.excludes() {
                    prop_assert!(taken.insert(exclusion.clone()), "{exclusion} is excluded twice");
                }
            }
            let reported: BTreeSet<_> = plan.report.iter().filter_map(|r| r.volume.as_ref()).collect();
            for key in actual.volumes.iter().map(|v| &v.key).chain(desired.pods.values().flat_map(|p| &p.volumes).map(|v| &v.key)) {
                prop_assert!(reported.contains(key), "{key:?} has no report");
            }
            if plan.operations.is_empty() {
                return Ok(());
            }
            for operation in &plan.operations {
                ideal(&mut actual, &desired, &mut input, operation);
            }
        }
        prop_assert!(false, "no rest after 12 rounds: {:?}", super::plan(&desired, &actual, &input).operations);
    }

    /// What may be unmounted is not wanted, not unknown, and not in use.
    #[test]
    fn may_unmount_is_never_wrong(evidence in arbitrary::evidence(), desired in arbitrary::desired()) {
        let actual = reconstruct(&evidence, &arbitrary::plugins());
        let may = MayUnmount::new(&desired, &actual);
        for volume in &actual.volumes {
            let wanted = desired.wanted_volume(&volume.key);
            if may.volume(volume).is_ok() {
                let unwanted = matches!(wanted, Wanted::No { .. });
                prop_assert!(unwanted, "{wanted:?}");
                prop_assert!(volume.conflict.is_none() && volume.reconstruction != ReconstructionResult::Failed);
                prop_assert!(!volume.stray_files);
            } else if matches!(wanted, Wanted::No { .. }) {
                let held = volume.conflict.is_some() || volume.stray_files || volume.record.is_none();
                prop_assert!(held, "{:?} is held without a reason", volume.key);
            }
        }
        for device in &actual.devices {
            if may.device(device).is_ok() {
                prop_assert!(device.users.is_empty() && device.other_references.is_empty() && device.conflict.is_none());
                prop_assert!(desired.incomplete.is_none());
            }
        }
    }

    /// Nothing is started that excludes what is under way, or whose pause is not over.
    #[test]
    fn what_is_under_way_or_pausing_is_left_alone(
        evidence in arbitrary::evidence(),
        desired in arbitrary::desired(),
        which in any::<u64>(),
    ) {
        let plugins = arbitrary::plugins();
        let actual = reconstruct(&evidence, &plugins);
        let mut input = PlanInput::new(&plugins);
        let all = super::plan(&desired, &actual, &input).operations;
        for (index, operation) in all.iter().enumerate() {
            let exclusion = operation.excludes().swap_remove(0);
            match which >> (index % 32 * 2) & 3 {
                0 => drop(input.running.insert(exclusion)),
                1 => drop(input.not_before.insert(exclusion, Duration::from_secs(9))),
                _ => {}
            }
        }
        let plan = super::plan(&desired, &actual, &input);
        for operation in &plan.operations {
            for exclusion in operation.excludes() {
                prop_assert!(!input.running.contains(&exclusion));
            }
            prop_assert!(!input.not_before.contains_key(&operation.excludes()[0]));
        }
        let pausing = plan.report.iter().any(|r| r.reason.contains("tried again in"));
        prop_assert_eq!(plan.wake_at.is_some(), pausing);
    }
}

/// What `explain` and the logs print: a change of these words is seen.
#[test]
fn reports_say_what_is_done_and_why() {
    use crate::testing::{desired_of, world};
    let (desired, actual) = (desired_of(&["u1"]), world());
    let mut input = PlanInput::default();
    let show = |plan: &Plan| -> String {
        plan.report
            .iter()
            .map(|r| format!("{}: {}: {}\n", r.decision, r.subject, r.reason))
            .collect::<Vec<_>>()
            .concat()
    };
    assert_eq!(FIRST, show(&super::plan(&desired, &actual, &input)));
    // The second round, one operation under way and one pausing.
    let first = super::plan(&desired, &actual, &input);
    let mut exclusions = first.operations.iter().map(|o| o.excludes().swap_remove(0));
    input.running.extend(exclusions.next());
    input.not_before.extend(exclusions.map(|e| (e, Duration::from_millis(1500))));
    assert_eq!(PAUSING, show(&super::plan(&desired, &actual, &input)));
    let unknown = Desired { incomplete: Some("the manifest folder is not there".into()), ..Desired::default() };
    assert_eq!(UNKNOWN, show(&super::plan(&unknown, &actual, &PlanInput::default())));
}

const FIRST: &str = r#"HandsOff: volume "other" of pod default/pod-u2 (u2): tmpfs "tmpfs" (root /) is mounted there; the record announces type "ext4", source "/dev/sda1", root "/data"
TearDown: volume "old" of pod default/pod-u3 (u3): not wanted any more (manifests in /m)
SetUp: volume "v" of pod default/pod-u1 (u1): its folder is not there
SetUp: volume "pv" of pod default/pod-u1 (u1): it is not there yet
Keep: device kubernetes.io/local-volume/pv: wanted by manifests in /m
ForgetPod: pod u5: it is gone and has no volume left
HandsOff: /r/pods/u4: pod u4 is gone, but these files are nobody's known volume; they are kept
ForgetPod: /r/pods/u5/volume-subpaths/h/c/0: pod u5 is gone
"#;

const PAUSING: &str = r#"HandsOff: volume "other" of pod default/pod-u2 (u2): tmpfs "tmpfs" (root /) is mounted there; the record announces type "ext4", source "/dev/sda1", root "/data"
Wait: volume "old" of pod default/pod-u3 (u3): TearDown (not wanted any more (manifests in /m)) waits for an operation under way
Wait: volume "v" of pod default/pod-u1 (u1): SetUp failed and is tried again in 1.5 s (its folder is not there)
Wait: volume "pv" of pod default/pod-u1 (u1): SetUp failed and is tried again in 1.5 s (it is not there yet)
Keep: device kubernetes.io/local-volume/pv: wanted by manifests in /m
Wait: pod u5: ForgetPod failed and is tried again in 1.5 s (it is gone and has no volume left)
HandsOff: /r/pods/u4: pod u4 is gone, but these files are nobody's known volume; they are kept
Wait: /r/pods/u5/volume-subpaths/h/c/0: its pod is forgotten when what is under way or pausing is done
"#;

const UNKNOWN: &str = r#"Keep: volume "v" of pod default/pod-u1 (u1): not known whether it is wanted: the manifest folder is not there
Keep: volume "other" of pod default/pod-u2 (u2): not known whether it is wanted: the manifest folder is not there
Keep: volume "old" of pod default/pod-u3 (u3): not known whether it is wanted: the manifest folder is not there
Keep: device kubernetes.io/local-volume/pv: not known whether it is wanted: the manifest folder is not there
Keep: /r/pods/u4: not known whether it is wanted: the manifest folder is not there
Keep: /r/pods/u5/volume-subpaths/h/c/0: not known whether it is wanted: the manifest folder is not there
"#;
