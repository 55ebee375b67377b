//! Decides what is cleaned. Pure.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use refloat_mount::{Mount, MountTable};
use refloat_record::{PodUid, RecordedMount, RelPath, UniqueVolumeName, VolumeMode};
use refloat_volume::{Plugins, Presence, layout};

use super::contents::Stray;
use super::{Action, CleanOptions, CleanPlan, Contents, Kept, MountKey, Stage, Step, StepResult, Unit, Verdict, What};
use crate::reconstruct::{self, Mounts};
use crate::{
    Actual, ActualDevice, ActualVolume, Exclusion, Leftover, LeftoverKind, Operation, ReconstructionResult,
    RecordState, VolumeState,
};

const EMPTY_DIR: &str = "kubernetes.io/empty-dir";

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
    pub unused: &'a BTreeMap<PathBuf, Verdict>,
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
    // The sort is stable: within a stage the order is that of the pods.
    plan.units.sort_by_key(|unit| unit.stage);
    plan.kept.sort_unstable();
    plan.kept.dedup();
    plan
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

    fn keep_volume(&mut self, volume: &ActualVolume, code: &'static str, reason: String) {
        let path = path_of(self.input.root, volume);
        self.keep(Kept {
            pod: Some(volume.key.pod.clone()),
            volume: Some(name_of(volume)),
            ..kept(path, code, reason)
        });
    }

    fn keep_data(&mut self, volume: &ActualVolume, path: &Path, contents: Contents, code: &'static str, reason: &str) {
        let more = if contents.complete { "" } else { " (and more: not all was counted)" };
        self.keep(Kept {
            pod: Some(volume.key.pod.clone()),
            volume: Some(name_of(volume)),
            bytes: Some(contents.bytes),
            entries: Some(contents.entries),
            command: self.remove_command(path),
            ..kept(path.to_path_buf(), code, format!("{reason}{more}"))
        });
    }

    /// The command that removes what lies there; none while anything is mounted at or below it: `rm` would go into a bind of the
    /// same file system, whatever its options say.
    fn remove_command(&self, path: &Path) -> Option<String> {
        let mounted = self.input.table.at(path).is_some() || self.input.table.under(path).next().is_some();
        if mounted { None } else { Some(format!("rm -rf --one-file-system -- {}", quoted(path)?)) }
    }

    // ── mounts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    /// Steps for every mount at and below a path, topmost and deepest first.
    fn unmounts(&self, at: &Path, action: Action, volume: Option<&str>, reason: &str) -> Vec<Step> {
        let below: Vec<Mount<'_>> = self.input.table.under(at).collect();
        let mut steps: Vec<Step> =
            below.iter().rev().map(|m| mount_step(Action::Unmount, *m, volume, "it is mounted inside")).collect();
        steps.extend(self.stack(at, action, volume, reason));
        steps
    }

    fn stack(&self, at: &Path, action: Action, volume: Option<&str>, reason: &str) -> Vec<Step> {
        let stack = self.mounts.stack(at);
        stack.iter().rev().map(|m| mount_step(action, *m, volume, reason)).collect()
    }

    /// The mount points below a path that are in no other one of them.
    fn topmost_under(&self, path: &Path) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = vec![];
        for mount in self.input.table.under(path) {
            if !found.last().is_some_and(|last| mount.point().starts_with(last)) {
                found.push(mount.point().to_path_buf());
            }
        }
        found
    }

    /// Who holds one of these mounts.
    fn holder(&self, steps: &[Step]) -> Option<String> {
        let (step, who) = steps.iter().find_map(|step| Some((step, self.input.held.get(&step.mount?)?)))?;
        Some(format!("{} is held: {who}", step.path.display()))
    }

    fn add(&mut self, unit: Unit) {
        self.unmounted.extend(unit.steps.iter().filter(|s| s.mount.is_some()).map(|s| s.path.clone()));
        self.plan.units.push(unit);
    }

    // ── volumes ────────────────────────────────────────────────────────────────────────────────────────────────────

    fn volume(&mut self, index: usize, volume: &ActualVolume) {
        if !self.names_volume(volume) {
            self.staying.insert(volume.key.pod.clone());
            return;
        }
        let Some(by) = self.may_go(&volume.key.pod) else { return };
        if let Some(unit) = self.tear_down(volume, &by) {
            self.planned.insert(index);
            self.add(unit);
        }
    }

    /// The unit that tears a volume down; none if it stays, which is said.
    fn tear_down(&mut self, volume: &ActualVolume, by: &str) -> Option<Unit> {
        let options = self.input.options;
        let path = path_of(self.input.root, volume);
        let contents = self.input.contents.get(&path).copied().filter(|c| c.what != What::Empty);
        let plugin = self.input.plugins.by_name(&volume.key.plugin);
        let is_empty_dir = volume.key.plugin.as_str() == EMPTY_DIR;
        let is_payload = plugin.is_some_and(|p| p.capabilities().content);
        let mounted = volume.mount.is_some();
        let mut record = match (&volume.record, &volume.reconstruction) {
            (Some(record), result) if *result != ReconstructionResult::Failed => record.clone(),
            _ => {
                let why = volume.conflict.clone().unwrap_or_else(|| "it is not understood".into());
                self.keep_volume(volume, "NotUnderstood", why);
                return None;
            }
        };
        let data = contents.filter(|_| !mounted && volume.key.mode == VolumeMode::Filesystem);
        let mut clear_payload = false;
        let mut trusted = volume.record_state == RecordState::Ok;
        let mut delete = false;
        match data {
            Some(found) if is_empty_dir && !options.delete_ephemeral => {
                let reason = "it is an emptyDir's content; --delete-ephemeral deletes it".to_owned();
                self.keep_data(volume, &path, found, "EphemeralData", &reason);
                self.nested(volume, &path, by);
                return None;
            }
            Some(_) if is_empty_dir => delete = true,
            Some(found) if is_payload && found.what == What::Payload => clear_payload = true,
            Some(found) => {
                let reason = match self.input.table.under(&path).next() {
                    Some(inside) => format!(
                        "files lie there that no mount holds, and {} is mounted inside",
                        inside.point().display()
                    ),
                    None => "files lie there, and nothing is mounted; nobody is known to have written them".to_owned(),
                };
                self.keep_data(volume, &path, found, "DataKept", &reason);
                return None;
            }
            None => {}
        }
        if volume.stray_files && !clear_payload && !delete {
            // Beside what is mounted: the folder of a CSI volume.
            let folder = path.parent().unwrap_or(&path).to_path_buf();
            let (reason, command) = ("files lie in its folder that nobody is known to have written", None);
            let kept_here = Kept { command, ..kept(folder, "DataKept", reason.into()) };
            self.keep(Kept { pod: Some(volume.key.pod.clone()), volume: Some(name_of(volume)), ..kept_here });
            return None;
        }
        if let Some(why) = &volume.conflict {
            self.keep_volume(volume, "Conflict", why.clone());
            return None;
        }
        let stack = self.mounts.stack(&path);
        if volume.key.mode == VolumeMode::Filesystem && !is_of_one_origin(&stack) {
            let why = "mounts of different origins lie over one another there".to_owned();
            self.keep_volume(volume, "Conflict", why);
            return None;
        }
        if is_empty_dir && mounted && !options.delete_ephemeral && !options.release {
            let reason = "its content is in memory and goes with its mount; --delete-ephemeral unmounts it".to_owned();
            self.keep_volume(volume, "EphemeralData", reason);
            self.nested(volume, &path, by);
            return None;
        }
        // Whatever a record says: content is deleted by the operator's word alone, and a payload by its own shape.
        if is_empty_dir {
            trusted = delete;
        } else if is_payload {
            trusted = false;
        }
        let mut driver = plugin.and_then(|p| p.recorded_driver((&record).into()));
        let mut reason = by.to_owned();
        if let Some(name) = driver.clone().filter(|name| !self.input.drivers.contains(name)) {
            if !options.without_driver {
                let why = format!("its driver {name} cannot be reached; --without-driver unmounts it all the same");
                self.keep_volume(volume, "DriverMissing", why);
                return None;
            }
            reason = format!("{by}; its driver {name} cannot be reached, and is not asked");
            // Without these nobody is named who could be asked.
            record.provider_info = None;
            record.persistent_volume = None;
            trusted = false;
            driver = None;
        }
        let name = name_of(volume);
        let steps = self.volume_steps(volume, &path, &name, &reason, &Doing { driver: &driver, clear_payload, delete });
        if let Some(who) = self.holder(&steps) {
            self.keep_volume(volume, "Held", who);
            return None;
        }
        let mut scope = vec![path];
        if let Some(sub_paths) = sub_path_folder(self.input.root, volume) {
            scope.push(sub_paths);
        }
        if let Some(block) = &record.block {
            scope.push(block.map_path.below(self.input.root));
        }
        scope.extend(published(self.input.root, volume));
        Some(Unit {
            subject: format!("volume {name}"),
            pod: Some(volume.key.pod.clone()),
            steps,
            stage: if volume.key.mode == VolumeMode::Block { Stage::Blocks } else { Stage::Volumes },
            operation: Operation::TearDown { key: volume.key.clone(), record: Box::new(record), trusted, reason },
            clear_payload,
            driver,
            scope,
        })
    }

    fn volume_steps(
        &self,
        volume: &ActualVolume,
        path: &Path,
        name: &str,
        reason: &str,
        doing: &Doing<'_>,
    ) -> Vec<Step> {
        let step = |action, path: &Path| plain_step(action, path, Some(name), reason);
        let mut steps = vec![];
        if let Some(folder) = sub_path_folder(self.input.root, volume) {
            let mounts: Vec<Mount<'_>> = self.input.table.under(&folder).collect();
            let steps_of = mounts.iter().rev().map(|m| mount_step(Action::UnmountSubPath, *m, Some(name), reason));
            steps.extend(steps_of);
        }
        if volume.key.mode == VolumeMode::Block {
            if let Some(block) = volume.record.as_ref().and_then(|r| r.block.as_ref()) {
                let at = block.map_path.below(self.input.root);
                steps.extend(self.stack(&at, Action::UnmapBlock, Some(name), reason));
            }
            if !steps.iter().any(|s| s.action == Action::UnmapBlock) {
                steps.push(step(Action::UnmapBlock, path));
            }
            if let Some(published) = published(self.input.root, volume) {
                let (action, reason) = match doing.driver {
                    Some(driver) => (Action::TearDown, format!("{reason}; by its driver {driver}")),
                    None => (Action::Unmount, reason.to_owned()),
                };
                let mut own = self.stack(&published, action, Some(name), &reason);
                if own.is_empty() && doing.driver.is_some() {
                    own.push(plain_step(action, &published, Some(name), &reason));
                }
                steps.extend(own);
            }
        } else if let Some(driver) = doing.driver {
            let mut own =
                self.unmounts(path, Action::TearDown, Some(name), &format!("{reason}; by its driver {driver}"));
            if !own.iter().any(|s| s.action == Action::TearDown) {
                own.push(step(Action::TearDown, path));
            }
            steps.extend(own);
        } else {
            steps.extend(self.unmounts(path, Action::Unmount, Some(name), reason));
        }
        if doing.clear_payload {
            steps.push(step(Action::RemoveFiles, path));
        }
        if doing.delete {
            steps.push(step(Action::DeleteContent, path));
        }
        if volume.key.mode == VolumeMode::Filesystem && self.input.contents.contains_key(path) || volume.mount.is_some()
        {
            steps.push(step(Action::RemoveFolder, path));
        }
        if volume.record_state == RecordState::Ok {
            steps.push(step(Action::ForgetRecord, path));
        }
        steps
    }

    /// What is mounted inside a volume that stays.
    fn nested(&mut self, volume: &ActualVolume, path: &Path, by: &str) {
        for point in self.topmost_under(path) {
            let name = name_of(volume);
            let of = Exclusion::Volume(volume.key.clone());
            self.unmount_leftover(&point, of, Some(volume.key.pod.clone()), Some(&name), by, Stage::Volumes, false);
        }
    }

    // ── leftovers ──────────────────────────────────────────────────────────────────────────────────────────────────

    fn leftover(&mut self, leftover: &Leftover) {
        if !self.names_leftover(leftover) {
            return;
        }
        let Some(pod) = &leftover.pod else {
            if leftover.kind == LeftoverKind::Socket {
                // A driver's, and no volume: nothing of a volume is left by it.
                return;
            }
            let message = leftover.problems.first().map(|p| p.message.clone());
            let command = leftover.mounted.then(|| unmount_command(&leftover.path)).flatten();
            let reason = "it is in no pod's folder, so nobody can tell whose it is";
            let reason = message.map_or_else(|| reason.to_owned(), |message| format!("{reason}: {message}"));
            return self.keep(Kept { command, ..kept(leftover.path.clone(), "NotOurs", reason) });
        };
        match leftover.kind {
            LeftoverKind::SubPath | LeftoverKind::StaleMount if leftover.mounted => {
                let Some(by) = self.may_go(pod) else { return };
                let sub_path = leftover.kind == LeftoverKind::SubPath;
                let stage = if sub_path { Stage::SubPaths } else { Stage::Volumes };
                let of = Exclusion::Pod(pod.clone());
                self.unmount_leftover(&leftover.path, of, Some(pod.clone()), None, &by, stage, true);
            }
            LeftoverKind::Socket | LeftoverKind::Unknown if self.may_go(pod).is_some() => {
                let reason = "nobody is known to have made it".into();
                self.keep(Kept { pod: Some(pod.clone()), ..kept(leftover.path.clone(), "NotUnderstood", reason) });
            }
            // With the pod's folder.
            _ => {}
        }
    }

    #[allow(clippy::too_many_arguments)] // what a unit is made of
    fn unmount_leftover(
        &mut self,
        point: &Path,
        of: Exclusion,
        pod: Option<PodUid>,
        volume: Option<&str>,
        by: &str,
        stage: Stage,
        folder: bool,
    ) {
        if self.unmounted.contains(point) {
            return;
        }
        let action = if stage == Stage::SubPaths { Action::UnmountSubPath } else { Action::Unmount };
        let mut steps = self.unmounts(point, action, volume, by);
        let rel = point.strip_prefix(self.input.root).ok().and_then(|rel| RelPath::new(rel.to_str()?).ok());
        let stack = self.mounts.stack(point);
        let trouble = match (&rel, stack.is_empty(), is_of_one_origin(&stack)) {
            (None, ..) => Some(("NotUnderstood", "its path cannot be written as text".to_owned())),
            (_, true, _) => Some(("Conflict", "another mount hides it".to_owned())),
            (_, _, false) => Some(("Conflict", "mounts of different origins lie over one another there".to_owned())),
            _ => self.holder(&steps).map(|who| ("Held", who)),
        };
        if let Some((code, reason)) = trouble {
            let command = unmount_command(point);
            let volume = volume.map(str::to_owned);
            return self.keep(Kept { pod, volume, command, ..kept(point.to_path_buf(), code, reason) });
        }
        let Some(path) = rel else { return };
        if folder {
            steps.push(plain_step(Action::RemoveFolder, point, volume, by));
        }
        self.add(Unit {
            subject: point.display().to_string(),
            pod,
            steps,
            stage,
            operation: Operation::UnmountLeftover {
                of,
                path,
                expected: expected(&stack),
                folder,
                reason: by.to_owned(),
            },
            clear_payload: false,
            driver: None,
            scope: vec![point.to_path_buf()],
        });
    }

    // ── devices ────────────────────────────────────────────────────────────────────────────────────────────────────

    fn device(&mut self, device: &ActualDevice) {
        let options = self.input.options;
        let (root, given) = (self.input.root, self.input.given_root);
        let named = options.targets.iter().any(|t| t.names_device(device, root, given));
        let of_named_pods = !device.users.is_empty() && device.users.iter().all(|pod| self.names_pod(pod));
        let of_planned = self.users(device).any(|index| self.planned.contains(&index));
        if !options.targets.is_empty() && !named && !of_named_pods && !of_planned {
            return;
        }
        let name = device.unique_name.as_ref().map_or_else(|| device.path.display().to_string(), ToString::to_string);
        let keep =
            |code, reason: String| Kept { volume: Some(name.clone()), ..kept(device.path.clone(), code, reason) };
        // Whoever uses it is looked for by the mount table and by records.
        let in_use = reconstruct::references(self.input.table, root, &device.path)
            .into_iter()
            .find(|point| !self.unmounted.contains(point));
        let by_record = self.users(device).find(|index| !self.planned.contains(index));
        if in_use.is_some() || by_record.is_some() {
            // What a wanted pod uses is no orphan's, whoever else used it.
            let leaving = |pod: &PodUid| self.is_torn_down(device, pod);
            let mut stay = device.users.iter().filter(|pod| !leaving(pod)).peekable();
            if !named && stay.peek().is_some() && stay.all(|pod| self.plan.wanted.contains(pod)) {
                return;
            }
            let by = match (in_use, by_record) {
                (Some(point), _) => format!("its file system is mounted at {}, which stays", point.display()),
                (None, Some(index)) => format!("volume {} stays", name_of(&self.input.actual.volumes[index])),
                (None, None) => return,
            };
            return self.keep(keep("InUse", by));
        }
        if device.mount.is_none()
            && device.state == VolumeState::NotMounted
            && device.record_state == RecordState::Missing
        {
            // A folder. The next volume of this name needs it again; an empty one harms nobody.
            return;
        }
        let had_users = !device.users.is_empty();
        let unknown = Verdict::Unknown { why: "nobody was asked".into() };
        let by = match (self.input.unused.get(&device.path).unwrap_or(&unknown), had_users) {
            (_, true) if options.including_running || options.release => "no pod uses it any more".to_owned(),
            (_, false) if options.release => "the node is released".to_owned(),
            (Verdict::Wanted { by }, _) => {
                return self.keep(keep("MayBeWanted", format!("{by} has a pod that may be about to use it")));
            }
            (Verdict::Unknown { .. } | Verdict::Gone { .. }, true) => "no pod uses it any more".to_owned(),
            (Verdict::Unknown { why }, false) => {
                return self.keep(keep("NotKnown", format!("whether a pod is about to use it is not known: {why}")));
            }
            (Verdict::Gone { by, .. }, false) => {
                if let Some(why) = self.too_recent(self.input.device_changes.get(&device.path).copied()) {
                    return self.keep(keep("TooRecent", format!("no pod uses it ({by}), but {why}")));
                }
                format!("no pod uses or wants it ({by})")
            }
        };
        self.undo_device(device, &name, &by);
    }

    fn undo_device(&mut self, device: &ActualDevice, name: &str, by: &str) {
        let options = self.input.options;
        let keep = |code, reason: String| Kept {
            volume: Some(name.to_owned()),
            command: device.mount.as_ref().and_then(|_| unmount_command(&device.path)),
            ..kept(device.path.clone(), code, reason)
        };
        let plugin = self.input.plugins.by_name(&device.plugin);
        let by_driver = plugin.is_some_and(|p| p.capabilities().presence == Presence::Driver);
        let record = device.record.as_ref().filter(|_| device.conflict.is_none());
        let driver = record.and_then(|r| plugin?.recorded_driver(r.into()));
        let reachable = driver.as_ref().is_none_or(|name| self.input.drivers.contains(name));
        if let (Some(record), true, true) = (record, reachable, plugin.is_some() && (!by_driver || driver.is_some())) {
            let mut steps = self.unmounts(&device.path, Action::UnmountDevice, Some(name), by);
            if !steps.iter().any(|s| s.action == Action::UnmountDevice) {
                steps.push(plain_step(Action::UnmountDevice, &device.path, Some(name), by));
            }
            steps.push(plain_step(Action::RemoveFolder, &device.path, Some(name), by));
            let trusted = device.record_state == RecordState::Ok;
            if trusted {
                steps.push(plain_step(Action::ForgetRecord, &device.path, Some(name), by));
            }
            if let Some(who) = self.holder(&steps) {
                return self.keep(keep("Held", who));
            }
            let operation =
                Operation::UnmountDevice { record: Box::new(record.clone()), trusted, reason: by.to_owned() };
            return self.add(Unit {
                subject: format!("device {name}"),
                pod: None,
                steps,
                stage: Stage::Devices,
                operation,
                clear_payload: false,
                driver,
                scope: vec![device.path.clone()],
            });
        }
        if by_driver {
            let who = driver
                .map_or_else(|| "its driver is not known".to_owned(), |d| format!("its driver {d} cannot be reached"));
            // Some drivers mount in a folder of their own below the path that they are told.
            let deeper = if device.mount.is_some() { vec![] } else { self.topmost_under(&device.path) };
            let mounted = device.mount.is_some() || !deeper.is_empty();
            if !options.without_driver || !mounted {
                let hint = if mounted { "; --without-driver unmounts it all the same" } else { "" };
                return self.keep(keep("DriverMissing", format!("{who}{hint}")));
            }
            let references = |point: &PathBuf| reconstruct::references(self.input.table, self.input.root, point);
            let user = deeper.iter().flat_map(references).find(|user| !self.unmounted.contains(user));
            if let Some(user) = user {
                let why = format!("its file system is mounted at {}, which stays", user.display());
                return self.keep(keep("InUse", why));
            }
            self.plan.kept.push(Kept {
                command: None,
                ..keep("NotUnstaged", format!("{who}, so it is unmounted without it and stays known as not unstaged"))
            });
            let by = format!("{by}; {who}, and is not asked");
            if device.mount.is_some() {
                return self.plain_device(&device.path, device, name, &by, false);
            }
            for point in deeper {
                self.plain_device(&point, device, name, &by, false);
            }
            return;
        }
        // Whoever asks for this takes what it needs besides on himself: an iSCSI session, say, stays open.
        let needs = plugin.and_then(refloat_volume::Plugin::device_needs);
        let by = &needs.map_or_else(|| by.to_owned(), |needs| format!("{by}; afterwards, {needs}"));
        match &device.conflict {
            Some(why) if needs.is_none() && plugin.is_some() && device.unique_name.is_some() => {
                self.keep(keep("Conflict", why.clone()));
            }
            _ if device.mount.is_some() => self.plain_device(&device.path, device, name, by, true),
            Some(why) => self.keep(keep("NotUnderstood", why.clone())),
            None => {}
        }
    }

    /// A plain unmount of a global mount, at its path or below.
    fn plain_device(&mut self, point: &Path, device: &ActualDevice, name: &str, by: &str, folder: bool) {
        let text = format!("{}/{}", device.plugin, device.path.display());
        let Ok(unique) = UniqueVolumeName::new(text) else {
            let reason = "its path cannot be a name".to_owned();
            return self
                .keep(Kept { volume: Some(name.to_owned()), ..kept(device.path.clone(), "NotUnderstood", reason) });
        };
        self.unmount_leftover(point, Exclusion::Device(unique), None, Some(name), by, Stage::Devices, folder);
    }

    /// The volumes that are on this device by what is known of them, by their places in the list.
    fn users<'s>(&'s self, device: &'s ActualDevice) -> impl Iterator<Item = usize> + 's {
        let root = self.input.root;
        let volumes = self.input.actual.volumes.iter().enumerate();
        let uses = volumes.filter(move |(_, volume)| {
            let by_name = device.unique_name.is_some() && volume.unique_name == device.unique_name;
            let recorded = volume.record.as_ref().and_then(|r| r.device_mount_path.as_ref());
            by_name || recorded.is_some_and(|path| path.below(root) == device.path)
        });
        uses.map(|(index, _)| index)
    }

    /// Whether all that a pod has of this device is torn down.
    fn is_torn_down(&self, device: &ActualDevice, pod: &PodUid) -> bool {
        let volumes = &self.input.actual.volumes;
        let mut of_pod = self.users(device).filter(|index| volumes[*index].key.pod == *pod).peekable();
        of_pod.peek().is_some() && of_pod.all(|index| self.planned.contains(&index))
    }

    // ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────

    fn pods(&mut self) {
        let actual = self.input.actual;
        let of_loops = actual.leftovers.iter().filter(|l| l.kind == LeftoverKind::LoopDevice);
        let mut pods: BTreeSet<&PodUid> = self.input.folders.keys().collect();
        pods.extend(of_loops.filter_map(|l| l.pod.as_ref()));
        pods.extend(actual.checkpoints.iter().map(|c| &c.pod.uid));
        for pod in pods {
            if self.names_pod(pod) {
                self.pod(pod);
            }
        }
    }

    fn pod(&mut self, pod: &PodUid) {
        let Some(by) = self.may_go(pod) else { return };
        let root = self.input.root;
        let path = root.join(layout::PODS).join(pod.as_str());
        let folder = self.input.folders.get(pod);
        for stray in folder.iter().flat_map(|folder| &folder.strays) {
            let path = root.join(&stray.path);
            if self.input.table.at(&path).is_some() {
                // What a file is mounted over: judged as a mount.
                continue;
            }
            self.keep(Kept {
                pod: Some(pod.clone()),
                bytes: Some(stray.bytes),
                entries: Some(1),
                command: self.remove_command(&path),
                ..kept(path, "DataKept", "nobody is known to have written it".into())
            });
        }
        if self.staying.contains(pod) {
            return;
        }
        let mut steps = vec![];
        let loops = self.input.actual.leftovers.iter();
        for one in loops.filter(|l| l.kind == LeftoverKind::LoopDevice && l.pod.as_ref() == Some(pod)) {
            steps.push(plain_step(Action::DetachLoop, &one.path, None, &by));
        }
        for known in folder.iter().flat_map(|folder| &folder.known) {
            steps.push(plain_step(Action::RemoveFiles, &root.join(known), None, &by));
        }
        if folder.is_some() {
            steps.push(plain_step(Action::RemoveFolder, &path, None, &by));
        }
        if self.input.actual.checkpoints.iter().any(|c| c.pod.uid == *pod) {
            steps.push(plain_step(Action::ForgetRecord, &path, None, &by));
        }
        if steps.is_empty() {
            return;
        }
        self.add(Unit {
            subject: format!("pod {pod}"),
            pod: Some(pod.clone()),
            steps,
            stage: Stage::Folders,
            operation: Operation::TidyPod { pod: pod.clone(), reason: by },
            clear_payload: false,
            driver: None,
            scope: vec![path],
        });
    }
}

/// How a volume is torn down.
struct Doing<'a> {
    driver: &'a Option<String>,
    clear_payload: bool,
    delete: bool,
}

fn kept(path: PathBuf, code: &'static str, reason: String) -> Kept {
    Kept { path, code, reason, pod: None, volume: None, bytes: None, entries: None, command: None }
}

fn plain_step(action: Action, path: &Path, volume: Option<&str>, reason: &str) -> Step {
    Step {
        action,
        path: path.to_path_buf(),
        volume: volume.map(str::to_owned),
        reason: reason.to_owned(),
        result: StepResult::Planned,
        mount: None,
    }
}

fn mount_step(action: Action, mount: Mount<'_>, volume: Option<&str>, reason: &str) -> Step {
    let id = mount.id().map_or_else(|| mount.short_id().to_string(), |id| id.0.to_string());
    let what = format!("{reason}; mount {id}: {} {:?}", mount.fs_type(), mount.source());
    Step { mount: Some(MountKey::of(mount)), ..plain_step(action, mount.point(), volume, &what) }
}

/// Whether all layers show the same part of the same file system.
fn is_of_one_origin(stack: &[Mount<'_>]) -> bool {
    stack.windows(2).all(|two| two[0].device() == two[1].device() && two[0].root() == two[1].root())
}

/// What is to be found at a path when it is unmounted.
fn expected(stack: &[Mount<'_>]) -> Option<RecordedMount> {
    reconstruct::told(stack)
}

/// Where a volume is, or would be.
fn path_of(root: &Path, volume: &ActualVolume) -> PathBuf {
    volume
        .path
        .clone()
        .unwrap_or_else(|| layout::volume_path(&volume.key.pod, &volume.key.plugin, &volume.key.spec_name).below(root))
}

fn sub_path_folder(root: &Path, volume: &ActualVolume) -> Option<PathBuf> {
    let folder = layout::pod_path(&volume.key.pod).join(layout::VOLUME_SUBPATHS).ok()?;
    Some(folder.join(volume.key.spec_name.as_str()).ok()?.below(root))
}

/// Where a CSI driver publishes a block volume, which is not where it is bound for its pod.
fn published(root: &Path, volume: &ActualVolume) -> Option<PathBuf> {
    let is_one = volume.key.mode == VolumeMode::Block && volume.key.plugin.as_str() == layout::CSI;
    let path = format!("{}/publish/{}/{}", layout::CSI_BLOCK, volume.key.spec_name, volume.key.pod);
    is_one.then(|| root.join(path))
}

/// A volume as steps name it.
fn name_of(volume: &ActualVolume) -> String {
    volume
        .unique_name
        .as_ref()
        .map_or_else(|| format!("{}/{}", volume.key.pod, volume.key.spec_name), ToString::to_string)
}

/// The path as one word of a shell, if it is text.
fn quoted(path: &Path) -> Option<String> {
    Some(format!("'{}'", path.to_str()?.replace('\'', r"'\''")))
}

fn unmount_command(path: &Path) -> Option<String> {
    Some(format!("umount -- {}", quoted(path)?))
}
