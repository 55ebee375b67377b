//! Decides what is cleaned. Pure.

mod devices;
mod leftovers;
mod pods;
mod steps;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use refloat_mount::MountTable;
use refloat_record::PodUid;
use refloat_volume::{Plugins, layout};

use self::steps::{kept, quoted};
use super::contents::Stray;
use super::{CleanOptions, CleanPlan, Contents, Kept, MountKey, Target, Unused, Verdict};
use crate::reconstruct::Mounts;
use crate::{Actual, ActualVolume, Leftover};

/// A pod's folder, outside its volumes'.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFolder {
    /// Files that nobody is known to have written.
    pub strays: Vec<Stray>,
    /// Files that a kubelet or volume manager wrote there, relative to the root.
    pub known: Vec<PathBuf>,
    /// When something in it was made or removed last.
    pub last_change: Option<Timestamp>,
}

/// All that is decided from.
#[derive(Debug, Clone, Copy)]
pub struct CleanInput<'a> {
    /// What was concluded of the node.
    pub actual: &'a Actual,
    /// The mount table that it was concluded from.
    pub table: &'a MountTable,
    /// The node root as the table spells it.
    pub root: &'a Path,
    /// The node root as it was given.
    pub given_root: &'a Path,
    /// The plugins.
    pub plugins: &'a Plugins,
    /// The drivers that can be asked.
    pub drivers: &'a BTreeSet<String>,
    /// What the sources of pods say of each pod that is on the node.
    pub verdicts: &'a BTreeMap<PodUid, Verdict>,
    /// What they say of devices that no pod uses, by absolute path.
    pub unused: &'a BTreeMap<PathBuf, Unused>,
    /// What lies in the folders of volumes where nothing is mounted, by absolute path.
    pub contents: &'a BTreeMap<PathBuf, Contents>,
    /// The pods' folders.
    pub folders: &'a BTreeMap<PodUid, PodFolder>,
    /// When something was made or removed last beside a device's global mount.
    pub device_changes: &'a BTreeMap<PathBuf, Timestamp>,
    /// Mounts that a process outside of this mount namespace holds, with who.
    pub held: &'a BTreeMap<MountKey, String>,
    /// Now.
    pub now: Timestamp,
    /// What is allowed.
    pub options: &'a CleanOptions,
}

/// Plans the clean-up.
pub fn plan(input: CleanInput<'_>) -> CleanPlan {
    let mut planner = Planner {
        input,
        mounts: Mounts::new(input.table, input.root),
        plan: CleanPlan::default(),
        unmounted: HashSet::new(),
        planned: HashSet::new(),
        staying: BTreeSet::new(),
        told: BTreeSet::new(),
    };
    for leftover in &input.actual.leftovers {
        planner.leftover(leftover);
    }
    for (index, volume) in input.actual.volumes.iter().enumerate() {
        planner.volume(index, volume);
    }
    for device in &input.actual.devices {
        planner.device(device);
    }
    planner.pods();
    let mut plan = planner.plan;
    plan.not_here = not_here(&input);
    // The sort is stable: within a stage the order is that of the pods.
    plan.units.sort_by_key(|unit| unit.stage);
    plan.kept.sort_unstable();
    plan.kept.dedup();
    plan
}

/// What the operator says is gone, of which nothing is on the node: a name with a mistake in it, perhaps.
fn not_here(input: &CleanInput<'_>) -> Vec<String> {
    let options = input.options;
    let pods = options.assume_gone.iter().filter(|pod| !input.verdicts.contains_key(*pod)).map(ToString::to_string);
    let is_here = |target: &&Target| {
        input.actual.devices.iter().any(|device| target.names_device(device, input.root, input.given_root))
    };
    let devices = options.assume_unused.iter().filter(|target| !is_here(target)).map(|target| target.0.clone());
    pods.chain(devices).collect()
}

/// What becomes of a pod's things.
enum Fate {
    /// They may go; the text says by whose word.
    Gone(String),
    /// Somebody wants them.
    Wanted,
    /// They stay, for this reason.
    Stays(&'static str, String),
}

struct Planner<'a> {
    input: CleanInput<'a>,
    mounts: Mounts<'a>,
    plan: CleanPlan,
    /// The mount points that this plan frees.
    unmounted: HashSet<PathBuf>,
    /// The volumes that it tears down, by their place in the list.
    planned: HashSet<usize>,
    /// Pods that keep something.
    staying: BTreeSet<PodUid>,
    /// Pods of which it was said why they stay.
    told: BTreeSet<PodUid>,
}

impl Planner<'_> {
    fn fate(&self, pod: &PodUid) -> Fate {
        let options = self.input.options;
        let assumed = options.assume_gone.contains(pod);
        match self.input.verdicts.get(pod) {
            Some(Verdict::Wanted { by }) if options.including_running => {
                Fate::Gone(format!("{by} wants it, and the node is released with running pods"))
            }
            Some(Verdict::Wanted { by }) if assumed => {
                Fate::Stays("StillWanted", format!("it was to be assumed gone, but {by} wants it"))
            }
            Some(Verdict::Wanted { by }) if options.release => {
                Fate::Stays("StillWanted", format!("{by} wants it; --including-running releases it too"))
            }
            Some(Verdict::Wanted { .. }) => Fate::Wanted,
            _ if assumed => Fate::Gone("the operator says that its pod is gone".into()),
            Some(Verdict::Gone { by, since }) => {
                let since = since.or_else(|| self.input.folders.get(pod).and_then(|folder| folder.last_change));
                match self.too_recent(since) {
                    Some(why) => Fate::Stays("TooRecent", format!("its pod is gone ({by}), but {why}")),
                    None => Fate::Gone(format!("its pod is gone ({by})")),
                }
            }
            Some(Verdict::Unknown { .. }) | None if options.including_running => {
                Fate::Gone("the node is released with running pods".into())
            }
            Some(Verdict::Unknown { why }) => {
                Fate::Stays("NotKnown", format!("whether its pod is gone is not known: {why}"))
            }
            None => Fate::Stays("NotKnown", "no source of pods was asked about its pod".into()),
        }
    }

    /// Why something that happened then is too recent, if it is.
    fn too_recent(&self, since: Option<Timestamp>) -> Option<String> {
        let grace = self.input.options.grace;
        if grace.is_zero() || self.input.options.release {
            return None;
        }
        let Some(since) = since else { return Some("nothing tells since when".into()) };
        let age = self.input.now.duration_since(since).as_secs();
        let wanted = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        (age < wanted).then(|| {
            format!("only for {} s, as far as can be told; --grace asks for {} s", age.max(0), grace.as_secs())
        })
    }

    // ── what is asked for ──────────────────────────────────────────────────────────────────────────────────────────

    fn names_pod(&self, pod: &PodUid) -> bool {
        let targets = &self.input.options.targets;
        let mut volumes = self.input.actual.volumes.iter().filter(|v| v.key.pod == *pod);
        let checkpoint = self.input.actual.checkpoints.iter().find(|c| c.pod.uid == *pod);
        let name = checkpoint
            .map(|c| (c.pod.namespace.clone(), c.pod.name.clone()))
            .or_else(|| volumes.find_map(|v| v.pod_name.clone()));
        let (root, given) = (self.input.root, self.input.given_root);
        targets.is_empty() || targets.iter().any(|t| t.names_pod(pod.as_str(), name.as_ref(), root, given))
    }

    fn names_volume(&self, volume: &ActualVolume) -> bool {
        let (root, given) = (self.input.root, self.input.given_root);
        self.names_pod(&volume.key.pod)
            || self.input.options.targets.iter().any(|t| t.names_volume(volume, root, given))
    }

    fn names_leftover(&self, leftover: &Leftover) -> bool {
        let (root, given) = (self.input.root, self.input.given_root);
        let targets = &self.input.options.targets;
        targets.is_empty()
            || leftover.pod.as_ref().is_some_and(|pod| self.names_pod(pod))
            || targets.iter().any(|t| t.names_leftover(leftover, root, given))
    }

    // ── what stays ─────────────────────────────────────────────────────────────────────────────────────────────────

    fn keep(&mut self, kept: Kept) {
        self.staying.extend(kept.pod.clone());
        self.plan.kept.push(kept);
    }

    /// Says once why a pod's things stay. Answers by whose word they may go, if they may.
    fn may_go(&mut self, pod: &PodUid) -> Option<String> {
        match self.fate(pod) {
            Fate::Gone(by) => return Some(by),
            Fate::Wanted => {
                self.plan.wanted.insert(pod.clone());
                self.staying.insert(pod.clone());
            }
            Fate::Stays(code, reason) => {
                if self.told.insert(pod.clone()) {
                    let path = self.input.root.join(layout::PODS).join(pod.as_str());
                    self.keep(Kept { pod: Some(pod.clone()), ..kept(path, code, reason) });
                }
            }
        }
        None
    }

    /// The command that removes what lies there; none while anything is mounted at or below it: `rm` would go into a bind of the
    /// same file system, whatever its options say.
    fn remove_command(&self, path: &Path) -> Option<String> {
        let mounted = self.input.table.at(path).is_some() || self.input.table.under(path).next().is_some();
        if mounted { None } else { Some(format!("rm -rf --one-file-system -- {}", quoted(path)?)) }
    }
}
