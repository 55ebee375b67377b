use std::path::Path;
use std::sync::Arc;

use refloat_mount::MountTable;
use refloat_record::{Loaded, PodUid, Record, RecordedMount, Unreadable, UnreadableReason};
use refloat_volume::Plugins;

use super::*;
use crate::evidence::{PodTree, Tree, VolumeFolder};
use crate::testing::{self, BOOT, ROOT, device_record, volume_record};
use crate::{ActualVolume, LeftoverKind, ReconstructionResult, VolumeState};

const EMPTY_DIR: &str = "kubernetes.io/empty-dir";
const LOCAL: &str = "kubernetes.io/local-volume";

struct World(Evidence);

impl World {
    fn new(mounts: &[&str]) -> Self {
        let lines: Vec<_> = ["1 0 8:1 / / rw - ext4 /dev/sda1 rw"].iter().chain(mounts).copied().collect();
        let (table, bad) = MountTable::from_mountinfo(lines.join("\n").as_bytes());
        assert_eq!(bad, []);
        Self(Evidence {
            root: ROOT.into(),
            boot_id: testing::boot(BOOT),
            records: Loaded::default(),
            table: Arc::new(table),
            tree: Some(Tree::default()),
            missing_drivers: std::collections::BTreeMap::new(),
            hanging: std::collections::BTreeMap::new(),
        })
    }

    fn record(mut self, record: impl Into<Record>) -> Self {
        self.0.records.records.push(record.into());
        self.0.records.records.sort_by_key(Record::key);
        self
    }

    fn pod(&mut self, uid: &str) -> &mut PodTree {
        let pods = &mut self.0.tree.as_mut().unwrap().pods;
        let index = pods.iter().position(|p| p.uid.as_ref().is_some_and(|u| u.as_str() == uid));
        let index = index.unwrap_or_else(|| {
            pods.push(PodTree { files: Some(false), ..PodTree::new(uid.as_ref()) });
            pods.len() - 1
        });
        &mut pods[index]
    }

    fn folder(mut self, uid: &str, plugin: &str, name: &str, empty: Option<bool>) -> Self {
        let folder = VolumeFolder {
            plugin: plugin.replace('/', "~"),
            name: name.to_owned(),
            is_dir: true,
            link: None,
            link_device: None,
            empty,
            foreign: None,
        };
        self.pod(uid).volumes.push(folder);
        self
    }

    fn ready(mut self, uid: &str, name: &str) -> Self {
        self.pod(uid).ready.push(name.into());
        self
    }

    fn actual(&self) -> Actual {
        reconstruct(&self.0, &Plugins::builtin())
    }

    fn only(&self) -> ActualVolume {
        let mut actual = self.actual();
        assert_eq!(actual.volumes.len(), 1, "{actual:#?}");
        actual.volumes.remove(0)
    }
}

fn mount(fs_type: &str, source: &str, root: &str) -> RecordedMount {
    RecordedMount { id: None, fs_type: fs_type.into(), source: source.into(), root: root.into() }
}

const LOCAL_MOUNT: &str = "20 1 8:1 /data/x /r/pods/u1/volumes/kubernetes.io~local-volume/pv rw - ext4 /dev/sda1 rw";

#[test]
fn a_recorded_mount_that_is_there_is_mounted() {
    let mut record = volume_record("u1", LOCAL, "pv", BOOT);
    record.mount = Some(mount("ext4", "/dev/sda1", "/data/x"));
    let volume = World::new(&[LOCAL_MOUNT]).record(Record::PodVolume(record)).only();
    assert_eq!(volume.state, VolumeState::Mounted);
    assert_eq!(volume.reconstruction, ReconstructionResult::Full);
    assert!(volume.conflict.is_none() && volume.problems.is_empty());
    assert!(volume.mount.unwrap().ours);
}

#[test]
fn another_mount_than_the_recorded_one_is_a_conflict() {
    let mut record = volume_record("u1", LOCAL, "pv", BOOT);
    record.mount = Some(mount("ext4", "/dev/sda1", "/data/other"));
    let volume = World::new(&[LOCAL_MOUNT]).record(Record::PodVolume(record)).only();
    assert!(volume.conflict.unwrap().contains("/data/other"));
    assert_eq!(volume.problems[0].code, "Conflict");
    assert!(!volume.mount.unwrap().ours);
}

#[test]
fn a_record_of_another_boot_is_not_mounted_and_claims_no_mount() {
    let mut record = volume_record("u1", LOCAL, "pv", "another");
    record.mount = Some(mount("ext4", "/dev/sda1", "/data/x"));
    let volume = World::new(&[]).record(Record::PodVolume(record.clone())).folder("u1", LOCAL, "pv", Some(true)).only();
    assert_eq!(volume.state, VolumeState::NotMounted);
    assert!(volume.conflict.is_none());
    let volume = World::new(&[LOCAL_MOUNT]).record(Record::PodVolume(record)).only();
    assert!(volume.conflict.unwrap().contains("another boot"));
}

/// B33: what was written while nothing was mounted is neither hidden nor deleted.
#[test]
fn files_in_the_folder_of_a_missing_mount_keep_hands_off() {
    let mut record = volume_record("u1", LOCAL, "pv", "another");
    record.mount = Some(mount("ext4", "/dev/sda1", "/data/x"));
    let volume = World::new(&[]).record(Record::PodVolume(record)).folder("u1", LOCAL, "pv", Some(false)).only();
    assert_eq!(volume.state, VolumeState::NotMounted);
    assert!(volume.stray_files && volume.conflict.is_some());
    assert_eq!(volume.problems[0].code, "StrayFiles");
}

/// B26: layers of the volume's own origin are a stack, a foreign one is a conflict.
#[test]
fn layers_of_the_same_origin_are_counted_and_foreign_ones_are_a_conflict() {
    let mut record = volume_record("u1", LOCAL, "pv", BOOT);
    record.mount = Some(mount("ext4", "/dev/sda1", "/data/x"));
    let point = "/r/pods/u1/volumes/kubernetes.io~local-volume/pv";
    let second = format!("21 20 8:1 /data/x {point} rw - ext4 /dev/sda1 rw");
    let third = format!("22 21 8:1 /data/x {point} rw - ext4 /dev/sda1 rw");
    let volume = World::new(&[LOCAL_MOUNT, &second, &third]).record(Record::PodVolume(record.clone())).only();
    assert_eq!((volume.mount.as_ref().unwrap().stack, &volume.conflict), (3, &None));
    assert_eq!(volume.problems[0].code, "StackedMount");
    let foreign = format!("21 20 0:50 / {point} rw - tmpfs tmpfs rw");
    for mounts in [&[LOCAL_MOUNT, &foreign, &third][..], &[LOCAL_MOUNT, &foreign][..]] {
        let volume = World::new(mounts).record(Record::PodVolume(record.clone())).only();
        assert!(volume.conflict.is_some());
    }
}

#[test]
fn an_empty_dir_needs_folder_and_marker() {
    let record = Record::PodVolume(volume_record("u1", EMPTY_DIR, "v", BOOT));
    let state = |world: World| world.record(record.clone()).only().state;
    let new = || World::new(&[]);
    assert_eq!(state(new()), VolumeState::NotMounted);
    assert_eq!(state(new().folder("u1", EMPTY_DIR, "v", None)), VolumeState::Uncertain);
    assert_eq!(state(new().folder("u1", EMPTY_DIR, "v", None).ready("u1", "v")), VolumeState::Mounted);
    assert_eq!(state(new().folder("u1", EMPTY_DIR, "v", None).ready("u1", "wrapped_v")), VolumeState::Uncertain);
    let mut unlisted = new();
    unlisted.0.tree = None;
    assert_eq!(state(unlisted), VolumeState::Unknown);
}

/// Files in a plain folder are the volume itself, where its content may lie in one; the marker says that it was set up.
#[test]
fn files_of_an_unrecorded_volume_in_a_plain_folder_are_no_problem() {
    let git_repo = "kubernetes.io/git-repo";
    for (plugin, marker) in [(EMPTY_DIR, "v"), ("kubernetes.io/configmap", "wrapped_v"), (git_repo, "wrapped_v")] {
        let world = || World::new(&[]).folder("u1", plugin, "v", Some(false));
        let volume = world().ready("u1", marker).only();
        assert_eq!((volume.state, volume.problems.len()), (VolumeState::Mounted, 0), "{plugin}: {:?}", volume.problems);
        // Nobody knows whose they are, so a gone pod's stay.
        assert!(volume.stray_files && volume.conflict.is_none(), "{plugin}");
        let unfinished = world().only();
        assert_eq!((unfinished.state, unfinished.problems.len()), (VolumeState::Uncertain, 0), "{plugin}");
        let empty = World::new(&[]).folder("u1", plugin, "v", Some(true)).ready("u1", marker).only();
        assert_eq!((empty.state, empty.problems.len()), (VolumeState::Mounted, 0), "{plugin}");
    }
    for plugin in ["kubernetes.io/secret", "kubernetes.io/projected", "kubernetes.io/downward-api"] {
        let volume = World::new(&[]).folder("u1", plugin, "v", Some(false)).ready("u1", "wrapped_v").only();
        assert_eq!((volume.state, volume.problems.len()), (VolumeState::Uncertain, 0), "{plugin}");
    }
    for plugin in [LOCAL, "kubernetes.io/nfs"] {
        let volume = World::new(&[]).folder("u1", plugin, "v", Some(false)).only();
        assert_eq!(volume.problems[0].code, "StrayFiles", "{plugin}");
    }
    // A recorded one in memory that is not mounted: the files are none of its.
    let mut record = volume_record("u1", EMPTY_DIR, "v", BOOT);
    record.mount = Some(mount("tmpfs", "tmpfs", "/"));
    let world = World::new(&[]).record(Record::PodVolume(record)).folder("u1", EMPTY_DIR, "v", Some(false));
    assert_eq!(world.ready("u1", "v").only().problems[0].code, "StrayFiles");
}

#[test]
fn a_mount_without_a_record_is_rebuilt_as_far_as_the_layout_tells() {
    let volume = World::new(&[LOCAL_MOUNT]).only();
    assert_eq!(volume.record_state, RecordState::Missing);
    assert_eq!(volume.unique_name.unwrap().as_str(), "kubernetes.io/local-volume/pv");
    assert!(matches!(volume.reconstruction, ReconstructionResult::Partial { .. }));
    assert!(volume.outer_names.is_empty());
    assert_eq!(volume.record.unwrap().mount, Some(mount("ext4", "/dev/sda1", "/data/x")));
    let unknown = World::new(&["20 1 0:9 / /r/pods/u1/volumes/acme~nfs/v rw - nfs srv:/e rw"]).only();
    assert!(matches!(unknown.reconstruction, ReconstructionResult::Partial { .. }), "any driver is a flexVolume's");
    assert_eq!(unknown.key.plugin.as_str(), "acme/nfs");
    let unknown = World::new(&["20 1 0:9 / /r/pods/u1/volumes/kubernetes.io~later/v rw - nfs srv:/e rw"]).only();
    assert_eq!(unknown.reconstruction, ReconstructionResult::UnmountOnly);
    assert!(unknown.problems.iter().any(|p| p.code == "UnknownPlugin"));
}

#[test]
fn a_damaged_record_marks_its_volume_and_stops_nothing_else() {
    let record = volume_record("u1", LOCAL, "pv", BOOT);
    let mut world = World::new(&[LOCAL_MOUNT]).record(Record::PodVolume(volume_record("u2", EMPTY_DIR, "v", BOOT)));
    let unreadable = |reason| Unreadable {
        path: "/state/x".into(),
        name: "x".into(),
        key: Some(record.key()),
        reason,
        set_aside: true,
    };
    world.0.records.unreadable = vec![unreadable(UnreadableReason::Torn { detail: "empty".into() })];
    let actual = world.actual();
    assert_eq!(actual.volumes.len(), 2);
    assert_eq!(actual.volumes[0].record_state, RecordState::Damaged);
    assert_eq!(actual.volumes[0].state, VolumeState::Mounted);
    assert_eq!(actual.problems[0].code, "RecordDamaged");
    world.0.records.unreadable = vec![unreadable(UnreadableReason::Newer { version: "v9".into() })];
    assert_eq!(world.actual().volumes[0].record_state, RecordState::Newer);
}

#[test]
fn a_record_with_anothers_path_is_not_understood() {
    let mut record = volume_record("u1", LOCAL, "pv", BOOT);
    record.path = volume_record("u2", LOCAL, "pv", BOOT).path;
    let volume = World::new(&[]).record(Record::PodVolume(record)).only();
    assert_eq!(volume.reconstruction, ReconstructionResult::Failed);
    assert!(volume.conflict.is_some());
}

/// B20: a subPath mount is evidence of its own.
#[test]
fn a_sub_path_without_a_volume_is_a_leftover() {
    let line = "20 1 8:1 /opt/logs /r/pods/u1/volume-subpaths/h/c/0 rw - ext4 /dev/sda1 rw";
    let actual = World::new(&[line]).actual();
    assert_eq!(actual.leftovers.len(), 1);
    assert_eq!(actual.leftovers[0].kind, LeftoverKind::SubPath);
    let mut record = volume_record("u1", "kubernetes.io/host-path", "h", BOOT);
    record.path = None;
    record.host_path = Some("/opt".into());
    let actual = World::new(&[line]).record(Record::PodVolume(record)).actual();
    assert_eq!(actual.leftovers, []);
    assert!(actual.volumes[0].sub_paths[0].mounted && !actual.volumes[0].sub_paths[0].ours);
}

const GLOBAL: &str = "20 1 8:16 / /r/plugins/kubernetes.io/local-volume/mounts/pv rw - ext4 /dev/sdb rw";

/// B07 and B08 with a local device: a record that is missing hides no user.
#[test]
fn users_of_a_device_come_from_records_and_table() {
    let pod = |id: u32, uid: &str, root: &str, place: &str| {
        format!("{id} 1 8:16 {root} /r/pods/{uid}/{place} ro - ext4 /dev/sdb rw")
    };
    let lines = [
        GLOBAL.to_owned(),
        pod(21, "u2", "/", "volumes/kubernetes.io~local-volume/pv"),
        pod(22, "u3", "/a", "volume-subpaths/h/c/0"),
        "23 1 8:16 /a /srv rw - ext4 /dev/sdb rw".into(),
        "24 1 8:17 / /srv2 rw - ext4 /dev/sdc rw".into(),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut device = device_record("pv", BOOT);
    device.mount = Some(mount("ext4", "/dev/sdb", "/"));
    let mut user = volume_record("u1", LOCAL, "pv", BOOT);
    user.device_mount_path = Some(device.device_mount_path.clone());
    let actual = World::new(&lines).record(Record::DeviceMount(device)).record(Record::PodVolume(user)).actual();
    let device = &actual.devices[0];
    let users: Vec<_> = device.users.iter().map(PodUid::as_str).collect();
    assert_eq!(users, ["u1", "u2", "u3"]);
    assert_eq!(device.other_references, [Path::new("/srv")]);
    assert_eq!(device.state, VolumeState::Mounted);
    let alone = World::new(&[GLOBAL]).actual();
    assert_eq!((alone.devices[0].users.len(), alone.devices[0].record_state), (0, RecordState::Missing));
    assert_eq!(alone.leftovers, []);
}

/// The root bound elsewhere shows each mount twice; neither copy is another user or a leftover.
#[test]
fn mirrors_of_the_root_are_no_users() {
    let lines = [
        GLOBAL,
        "30 1 8:1 / /host rw - ext4 /dev/sda1 rw",
        "31 30 8:16 / /host/r/plugins/kubernetes.io/local-volume/mounts/pv rw - ext4 /dev/sdb rw",
        "32 1 8:1 /r/plugins /mirror rw - ext4 /dev/sda1 rw",
        "33 32 8:16 / /mirror/kubernetes.io/local-volume/mounts/pv rw - ext4 /dev/sdb rw",
    ];
    let actual = World::new(&lines).actual();
    assert_eq!(actual.devices[0].other_references, Vec::<std::path::PathBuf>::new());
    assert_eq!(actual.leftovers, []);
    let real = [GLOBAL, "31 1 8:16 / /host/r/plugins/x rw - ext4 /dev/sdb rw"];
    assert_eq!(World::new(&real).actual().devices[0].other_references.len(), 1);
}

#[test]
fn a_root_bound_on_itself_shows_each_mount_once() {
    let point = "/r/pods/u1/volumes/kubernetes.io~local-volume/pv";
    let lines = [
        "10 1 8:1 /r /r rw shared:1 - ext4 /dev/sda1 rw".to_owned(),
        format!("20 10 8:1 /data/x {point} rw - ext4 /dev/sda1 rw"),
        format!("21 1 8:1 /data/x {point} rw - ext4 /dev/sda1 rw"),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let actual = World::new(&lines).actual();
    assert_eq!(actual.volumes[0].mount.as_ref().unwrap().stack, 1);
    // The bind of the root itself is no volume's; it is not below the root.
    assert_eq!(actual.leftovers, []);
}

#[test]
fn empty_pod_folders_and_those_with_files_are_told_apart() {
    let mut world = World::new(&[]);
    world.pod("u1");
    world.pod("u2").files = Some(true);
    let kinds: Vec<_> = world.actual().leftovers.iter().map(|l| l.kind).collect();
    assert_eq!(kinds, [LeftoverKind::EmptyPodDir, LeftoverKind::PodDirWithData]);
}

#[test]
fn a_file_where_a_folder_should_be_is_not_understood() {
    let mut world = World::new(&[]).folder("u1", EMPTY_DIR, "v", None);
    world.pod("u1").volumes[0].is_dir = false;
    assert_eq!(world.only().reconstruction, ReconstructionResult::Failed);
}

/// B27: 75,000 lines, 859 places, the root bound on itself again and again.
#[test]
fn a_huge_table_takes_linear_time() {
    let mut lines = vec!["1 0 8:1 / / rw - ext4 /dev/sda1 rw".to_owned()];
    let mut id = 1;
    for layer in 0..87 {
        id += 1;
        let root = id;
        lines.push(format!(
            "{root} {} 8:1 /r /r rw shared:1 - ext4 /dev/sda1 rw",
            if layer == 0 { 1 } else { root - 860 }
        ));
        for place in 0..859 {
            id += 1;
            lines.push(format!(
                "{id} {root} 0:{} / /r/pods/u{}/volumes/kubernetes.io~secret/s{place} rw shared:{id} - tmpfs tmpfs rw",
                place + 100,
                place % 500
            ));
        }
    }
    let begun = std::time::Instant::now();
    let (table, _) = MountTable::from_mountinfo(lines.join("\n").as_bytes());
    let evidence = Evidence { table: Arc::new(table), ..World::new(&[]).0 };
    let actual = reconstruct(&evidence, &Plugins::builtin());
    assert_eq!(actual.volumes.len(), 859);
    assert!(actual.volumes.iter().all(|v| v.mount.as_ref().is_some_and(|m| m.stack == 1)));
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

mod properties {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::arbitrary;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn any_evidence_gives_one_answer(evidence in arbitrary::evidence()) {
            let plugins = Plugins::builtin();
            let once = reconstruct(&evidence, &plugins);
            prop_assert_eq!(&once, &reconstruct(&evidence, &plugins));
            for volume in &once.volumes {
                let own = Path::new(ROOT).join("pods").join(volume.key.pod.as_str());
                if volume.conflict.is_none() && let Some(path) = &volume.record.as_ref().and_then(|r| r.path.clone()) {
                    prop_assert!(path.below(Path::new(ROOT)).starts_with(&own));
                }
                if volume.reconstruction == ReconstructionResult::Failed {
                    prop_assert!(volume.conflict.is_some());
                }
            }
            // Every record is shown.
            let records = evidence.records.records.iter().filter(|r| matches!(r, Record::PodVolume(_))).count();
            prop_assert_eq!(once.volumes.iter().filter(|v| v.record_state == RecordState::Ok).count(), records);
        }
    }
}
