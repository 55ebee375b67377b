//! The planner, on values alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use refloat_mount::MountTable;
use refloat_record::PodUid;
use refloat_volume::Plugins;

use super::{Action, CleanInput, CleanOptions, CleanPlan, Contents, PodFolder, Verdict, What, plan};
use crate::evidence::{PodTree, Tree, VolumeFolder};
use crate::testing::{ROOT, boot};
use crate::{Evidence, reconstruct};

const NOW: i64 = 1_000_000;
const EMPTY_DIR: &str = "/r/pods/u1/volumes/kubernetes.io~empty-dir/v";

/// A node with one pod, `u1`, that has this volume.
struct World {
    table: String,
    plugin: &'static str,
    contents: Option<Contents>,
    verdict: Option<Verdict>,
    last_change: i64,
    options: CleanOptions,
}

impl World {
    fn new(plugin: &'static str, mounts: &[&str]) -> Self {
        let lines = ["20 1 8:1 / / rw - ext4 /dev/sda1 rw"].iter().chain(mounts).copied();
        Self {
            table: lines.flat_map(|line| [line, "\n"]).collect(),
            plugin,
            contents: None,
            verdict: Some(Verdict::Gone { by: "the test".into(), since: None }),
            last_change: 0,
            options: CleanOptions::default(),
        }
    }

    fn with_data(mut self, what: What) -> Self {
        self.contents = Some(Contents { what, entries: 2, bytes: 10, complete: true });
        self
    }

    fn plan(&self) -> CleanPlan {
        let (table, bad) = MountTable::from_mountinfo(self.table.as_bytes());
        assert!(bad.is_empty(), "{bad:?}");
        let uid = PodUid::new("u1").unwrap();
        let folder = VolumeFolder {
            plugin: self.plugin.into(),
            name: "v".into(),
            is_dir: true,
            link: None,
            link_device: None,
            empty: self.contents.map(|c| c.what == What::Empty),
            foreign: None,
        };
        let pod = PodTree { volumes: vec![folder], ..PodTree::new(uid.as_str().as_ref()) };
        let evidence = Evidence {
            root: ROOT.into(),
            boot_id: boot("this"),
            records: refloat_record::Loaded::default(),
            table: std::sync::Arc::new(table),
            tree: Some(Tree { pods: vec![pod], ..Tree::default() }),
            missing_drivers: BTreeMap::new(),
            hanging: std::collections::BTreeMap::new(),
        };
        let plugins = Plugins::builtin();
        let actual = reconstruct(&evidence, &plugins);
        let path = std::path::PathBuf::from(format!("/r/pods/u1/volumes/{}/v", self.plugin));
        let last_change = Some(Timestamp::from_second(self.last_change).unwrap());
        plan(CleanInput {
            actual: &actual,
            table: &evidence.table,
            root: Path::new(ROOT),
            given_root: Path::new(ROOT),
            plugins: &plugins,
            drivers: &BTreeSet::new(),
            verdicts: &self.verdict.clone().into_iter().map(|verdict| (uid.clone(), verdict)).collect(),
            unused: &BTreeMap::new(),
            contents: &self
                .contents
                .into_iter()
                .map(|contents| (path.clone(), contents))
                .collect::<BTreeMap<std::path::PathBuf, _>>(),
            folders: &BTreeMap::from([(uid.clone(), PodFolder { last_change, ..PodFolder::default() })]),
            device_changes: &BTreeMap::new(),
            held: &BTreeMap::new(),
            now: Timestamp::from_second(NOW).unwrap(),
            options: &self.options,
        })
    }
}

fn actions(plan: &CleanPlan) -> Vec<Action> {
    plan.steps().map(|step| step.action).collect()
}

fn codes(plan: &CleanPlan) -> Vec<&'static str> {
    plan.kept.iter().map(|kept| kept.code).collect()
}

const NFS: &str = "kubernetes.io~nfs";
const MOUNTED: &str = "30 20 0:50 / /r/pods/u1/volumes/kubernetes.io~nfs/v rw - nfs4 srv:/e rw";
const OVER_IT: &str = "31 30 0:50 / /r/pods/u1/volumes/kubernetes.io~nfs/v rw - nfs4 srv:/e rw";
const OTHER: &str = "31 30 0:51 / /r/pods/u1/volumes/kubernetes.io~nfs/v rw - tmpfs t rw";

#[test]
fn a_pod_that_is_gone_loses_its_mounts_topmost_first() {
    let plan = World::new(NFS, &[MOUNTED, OVER_IT]).plan();
    assert_eq!(actions(&plan), [Action::Unmount, Action::Unmount, Action::RemoveFolder, Action::RemoveFolder]);
    let mounts: Vec<u32> = plan.steps().filter_map(|s| s.mount).map(|m| m.short).collect();
    assert_eq!(mounts, [31, 30]);
    assert!(plan.kept.is_empty());
}

#[test]
fn layers_of_another_origin_stay_with_what_is_under_them() {
    let plan = World::new(NFS, &[MOUNTED, OTHER]).plan();
    assert_eq!((actions(&plan), codes(&plan)), (vec![], vec!["Conflict"]));
}

#[test]
fn only_a_pod_that_is_surely_gone_for_long_enough_is_touched() {
    let wanted = Verdict::Wanted { by: "x".into() };
    let unknown = Verdict::Unknown { why: "x".into() };
    let gone_at = |second| Verdict::Gone { by: "x".into(), since: Some(Timestamp::from_second(second).unwrap()) };
    for (verdict, assumed, last_change, expected) in [
        (None, false, 0, Some("NotKnown")),
        (Some(unknown.clone()), false, 0, Some("NotKnown")),
        (Some(wanted.clone()), true, 0, Some("StillWanted")),
        (Some(unknown), true, NOW, None),
        (Some(gone_at(NOW - 599)), false, 0, Some("TooRecent")),
        (Some(gone_at(NOW - 600)), false, NOW, None),
        (Some(Verdict::Gone { by: "x".into(), since: None }), false, NOW - 599, Some("TooRecent")),
        (Some(Verdict::Gone { by: "x".into(), since: None }), false, NOW - 600, None),
        // A clock that was put back.
        (Some(gone_at(NOW + 100)), false, 0, Some("TooRecent")),
    ] {
        let mut world = World { verdict: verdict.clone(), last_change, ..World::new(NFS, &[MOUNTED]) };
        if assumed {
            world.options.assume_gone.insert(PodUid::new("u1").unwrap());
        }
        let plan = world.plan();
        assert_eq!(codes(&plan), expected.into_iter().collect::<Vec<_>>(), "{verdict:?}");
        assert_eq!(plan.units.is_empty(), expected.is_some(), "{verdict:?}");
    }
    let plan = World { verdict: Some(wanted), ..World::new(NFS, &[MOUNTED]) }.plan();
    assert!(plan.units.is_empty() && plan.kept.is_empty() && plan.wanted.len() == 1);
}

#[test]
fn data_stays_and_is_named() {
    let plan = World::new(NFS, &[]).with_data(What::Data).plan();
    assert_eq!((actions(&plan), codes(&plan)), (vec![], vec!["DataKept"]));
    let kept = &plan.kept[0];
    assert_eq!((kept.bytes, kept.entries), (Some(10), Some(2)));
    assert_eq!(kept.command.as_deref(), Some("rm -rf --one-file-system -- '/r/pods/u1/volumes/kubernetes.io~nfs/v'"));
    let plan = World::new("kubernetes.io~secret", &[]).with_data(What::Payload).plan();
    assert_eq!(actions(&plan), [Action::RemoveFiles, Action::RemoveFolder, Action::RemoveFolder]);
    let plan = World::new("kubernetes.io~secret", &[]).with_data(What::Data).plan();
    assert_eq!(codes(&plan), ["DataKept"]);
}

#[test]
fn ephemeral_content_goes_only_when_told() {
    let inside = format!("30 20 0:50 / {EMPTY_DIR}/n rw - nfs4 srv:/e rw");
    let mut world = World::new("kubernetes.io~empty-dir", &[&inside]).with_data(What::Data);
    let plan = world.plan();
    assert_eq!((actions(&plan), codes(&plan)), (vec![Action::Unmount], vec!["EphemeralData"]));
    world.options.delete_ephemeral = true;
    let plan = world.plan();
    assert_eq!(codes(&plan), [""; 0]);
    let order = [Action::Unmount, Action::DeleteContent, Action::RemoveFolder, Action::RemoveFolder];
    assert_eq!(actions(&plan), order);
}

#[test]
fn a_release_waits_for_nothing_but_running_pods() {
    let mut world = World { last_change: NOW, ..World::new(NFS, &[MOUNTED]) };
    world.options.release = true;
    assert_eq!(actions(&world.plan())[0], Action::Unmount);
    world.verdict = Some(Verdict::Wanted { by: "x".into() });
    assert_eq!(codes(&world.plan()), ["StillWanted"]);
    world.options.including_running = true;
    assert_eq!(actions(&world.plan())[0], Action::Unmount);
    world.options.grace = Duration::ZERO;
    assert_eq!(codes(&world.plan()), [""; 0]);
}
