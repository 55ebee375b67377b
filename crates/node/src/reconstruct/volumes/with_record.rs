//! Concludes what a volume with a record is.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use refloat_mount::Mount;
use refloat_record::{PodVolume, RelPath, VolumeMode};
use refloat_volume::{Plugin, Presence, Problem, layout};

use super::super::Context;
use super::super::block::{Link, Objects};
use super::super::by_driver::{self, Recorded};
use super::super::mounts::{Match, mounted, seen};
use super::{Conclusion, Found, Who, cannot_block, unknown_plugin, unrecorded_sub_path};
use crate::evidence::MapPlace;
use crate::{ActualVolume, ReconstructionResult, RecordState, SubPathSeen, VolumeKey, VolumeState};

pub(super) fn conclude(context: &Context<'_>, found: &Found<'_>, record: &PodVolume) -> ActualVolume {
    let root = context.mounts.root;
    let plugin = context.plugins.by_name(&record.plugin);
    // A record of what somebody else set up may not know its pod.
    let pod_name = Some((record.pod.namespace.clone(), record.pod.name.clone())).filter(|(_, name)| !name.is_empty());
    let who = Who { pod: &record.pod.uid, pod_name: pod_name.as_ref(), name: found.name };
    let same_boot = record.boot_id == context.evidence.boot_id;
    let path = record.path.as_ref().map(|p| p.below(root));
    // A block volume's mount is not at its own path.
    let (at, recorded) = match record.mode {
        VolumeMode::Filesystem => (path.clone(), record.mount.as_ref()),
        VolumeMode::Block => {
            let told = || plugin?.map_path(&record.pod.uid, &record.spec_name);
            let at = record.block.as_ref().map(|b| b.map_path.clone()).or_else(told);
            (at.map(|p| p.below(root)), record.block.as_ref().and_then(|b| b.mount.as_ref()))
        }
    };
    let stack = at.as_ref().map_or(vec![], |p| context.mounts.stack(p));
    let matched = at.as_ref().map_or(Match::Nothing, |path| context.mounts.matches(path, &stack, recorded, same_boot));

    let mut c = Conclusion {
        state: VolumeState::NotMounted,
        reason: "".into(),
        ours: matches!(matched, Match::Ours | Match::Adopted),
        conflict: None,
        reconstruction: told(record),
        evidence: context.notes(),
        problems: vec![],
        stray_files: false,
        kept: false,
    };
    c.evidence.add(|| format!("record: {} of {} boot", record.plugin, if same_boot { "this" } else { "another" }));
    c.evidence.add(|| mounted(&stack));
    if context.evidence.tree.is_some() {
        let ready = if found.ready { ", ready marker" } else { "" };
        c.evidence.add(|| format!("folders: {}{ready}", if found.folder.is_some() { "there" } else { "not there" }));
    }

    if let Some(why) = misplaced(found, record) {
        c.fail(format!("{who}: {why}; nothing is done to it"));
    } else if let Some(plugin) = plugin {
        match record.mode {
            VolumeMode::Filesystem => c.judge(context, found, plugin, record, matched, &stack, same_boot),
            VolumeMode::Block if !plugin.capabilities().block => c.conflict = Some(cannot_block(&record.plugin)),
            VolumeMode::Block => {
                c.judge_block(&who, context, found, record, matched, same_boot);
                if plugin.capabilities().presence == Presence::Driver && c.conflict.is_none() {
                    c.judge_published(record.confirmed, same_boot);
                }
            }
        }
    } else {
        c.state = if c.ours { VolumeState::Mounted } else { VolumeState::Unknown };
        c.reason = format!("no plugin {} is built in", record.plugin).into();
        c.conflict = Some(format!("{} is not built in, and only it knows how its volumes are undone", record.plugin));
        c.problems.push(unknown_plugin(&who, &record.plugin));
    }
    c.look_at_folder(&who, found, plugin, at, &stack);
    if let Some(plugin) = plugin {
        c.driver_problems(context, plugin, record, path.as_deref(), &who);
    }
    let sub_paths = c.sub_paths(context, found, record, same_boot);
    let explained = |p: &Problem| matches!(p.code, "NotUnderstood" | "StrayFiles" | "UnknownPlugin");
    if let (Some(conflict), false) = (&c.conflict, c.problems.iter().any(explained)) {
        let problem = Problem::new(
            "Conflict",
            format!("{who}: {conflict}"),
            "Refloat keeps its hands off it. Unmount what does not belong there, and it goes on by itself.",
        );
        c.problems.insert(0, problem);
    }
    ActualVolume {
        key: VolumeKey {
            pod: record.pod.uid.clone(),
            spec_name: record.spec_name.clone(),
            plugin: record.plugin.clone(),
            mode: record.mode,
        },
        pod_name,
        outer_names: record.volume_names.clone(),
        unique_name: Some(record.unique_name.clone()),
        path: path.or(record.host_path.as_ref().map(PathBuf::from)),
        device_path: match &record.block {
            Some(block) => Some(PathBuf::from(&block.link_target)),
            None => record.device_mount_path.as_ref().map(|p| p.below(root)),
        },
        sub_paths,
        mount: seen(&stack, c.ours),
        state: c.state,
        state_reason: c.reason,
        record_state: RecordState::Ok,
        record: Some(record.clone()),
        reconstruction: c.reconstruction,
        spec_volume: Some(record.volume.clone()).filter(|volume| volume.get() != "null"),
        spec_persistent_volume: record.persistent_volume.clone(),
        stray_files: c.stray_files,
        evidence: c.evidence.into_texts(),
        conflict: c.conflict,
        problems: c.problems,
    }
}

/// How much of the spec the record has: all, unless it was written of a volume that somebody else set up.
fn told(record: &PodVolume) -> ReconstructionResult {
    match record.lost.as_slice() {
        [] => ReconstructionResult::Full,
        [all] if all == "volume" => ReconstructionResult::UnmountOnly,
        lost => ReconstructionResult::Partial { lost: lost.iter().cloned().map(Cow::Owned).collect() },
    }
}

/// Why a record's paths are not those of its own volume, if so. Such a record was made by hand or by a fault; acting on
/// it would undo another's volume.
fn misplaced(found: &Found<'_>, record: &PodVolume) -> Option<String> {
    if record.plugin.as_str().contains('~') {
        return Some(format!("its record has the plugin name {:?}, and no plugin's name holds a tilde", record.plugin));
    }
    let below = |path: &RelPath, top: &str| path.as_str().strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
    if let Some(path) = record.path.as_ref().filter(|path| !found.holds(path)) {
        return Some(format!("its record has the path {path}, which is not in its own folder"));
    }
    if let Some(path) = record.device_mount_path.as_ref().filter(|p| !below(p, layout::PLUGINS)) {
        return Some(format!("its record has the global mount path {path}, which is not below {}", layout::PLUGINS));
    }
    if let Some(block) = &record.block {
        let own = match MapPlace::of(block.map_path.as_path()) {
            Some(place) => {
                place.pod == record.pod.uid.as_str() && place.plugin == found.plugin && place.name == found.name
            }
            // Called after the device.
            None => layout::map_file(block.map_path.as_str())
                .is_some_and(|(path, pod)| pod == record.pod.uid.as_str() && path.plugin == record.plugin),
        };
        if !own || record.mode != VolumeMode::Block {
            let path = &block.map_path;
            return Some(format!("its record has the device bound at {path}, which is not this volume's place"));
        }
    }
    if record.sub_paths.is_empty() {
        return None;
    }
    let sub_paths = format!("{}/{}/{}/{}", layout::PODS, record.pod.uid, layout::VOLUME_SUBPATHS, record.spec_name);
    let stray = record.sub_paths.iter().find(|s| !below(&s.path, &sub_paths))?;
    Some(format!("its record has the subPath {}, which is not below {sub_paths}", stray.path))
}

/// What stands in the symlink's place has to go before the volume can be set up or forgotten.
fn path_taken(who: &Who<'_>, record: &PodVolume) -> Problem {
    let path = record.path.as_ref().map_or_else(String::new, ToString::to_string);
    Problem::new(
        "PathTaken",
        format!("{who}: {path} is no symlink, but a file, a folder or the like"),
        "It is not touched. Look what it is, and move it away.",
    )
}

impl Conclusion {
    /// The state of a volume with a good record.
    #[allow(clippy::too_many_arguments)] // what is known of one volume with a record
    fn judge(
        &mut self,
        context: &Context<'_>,
        found: &Found<'_>,
        plugin: &dyn Plugin,
        record: &PodVolume,
        matched: Match,
        stack: &[Mount<'_>],
        same_boot: bool,
    ) {
        if plugin.capabilities().presence == Presence::Driver {
            let recorded = Recorded { confirmed: record.confirmed, mount: record.mount.is_some(), same_boot };
            let told = by_driver::tell(recorded, &matched, stack);
            (self.state, self.reason, self.conflict) = (told.state, told.reason, told.conflict);
            return;
        }
        if let Match::Conflict(why) = matched {
            self.state = VolumeState::Uncertain;
            self.reason = why.clone().into();
            self.conflict = Some(why);
            return;
        }
        let listed = context.evidence.tree.is_some();
        let (state, reason): (_, Cow<'static, str>) = match plugin.capabilities().presence {
            // Told above.
            Presence::Driver => (VolumeState::Unknown, "".into()),
            Presence::Record if same_boot => (VolumeState::Mounted, "the record is of this boot".into()),
            Presence::Record => (VolumeState::NotMounted, "the record is of another boot".into()),
            Presence::Mount => match matched {
                Match::Ours => (VolumeState::Mounted, "the recorded mount is in the mount table".into()),
                Match::Adopted => (VolumeState::Mounted, "a mount as the record announces it is there".into()),
                _ if same_boot => (VolumeState::NotMounted, "the recorded mount is not in the mount table".into()),
                _ => (VolumeState::NotMounted, "it was mounted in another boot".into()),
            },
            Presence::Marker if record.mount.is_some() && matched == Match::Nothing => {
                let when = if same_boot { "is not in the mount table" } else { "was of another boot" };
                (VolumeState::NotMounted, format!("the recorded mount {when}").into())
            }
            Presence::Marker if !listed => (VolumeState::Unknown, "the folders were not listed".into()),
            Presence::Marker if found.folder.is_none() && !found.ready => {
                (VolumeState::NotMounted, "its folder is not there".into())
            }
            Presence::Marker if !found.ready || found.folder.is_none() => {
                (VolumeState::Uncertain, "its ready marker or its folder is missing, so SetUp was not finished".into())
            }
            Presence::Marker if !same_boot => {
                (VolumeState::Uncertain, "its folder is there, but was set up in another boot".into())
            }
            Presence::Marker => (VolumeState::Mounted, "its folder and its ready marker are there".into()),
        };
        self.state = state;
        self.reason = reason;
    }

    /// What a driver left undone, and a driver that is not there.
    fn driver_problems(
        &mut self,
        context: &Context<'_>,
        plugin: &dyn Plugin,
        record: &PodVolume,
        path: Option<&Path>,
        who: &Who<'_>,
    ) {
        if plugin.capabilities().presence != Presence::Driver {
            return;
        }
        let deeper = |path: &Path| context.mounts.table.under(path).next().is_some();
        let mount = record.mount.is_some() || record.block.is_some();
        if self.state == VolumeState::Mounted && !mount && !path.is_some_and(deeper) {
            let shown = path.map(|path| path.display().to_string()).unwrap_or_default();
            self.problems.push(Problem::new(
                "NothingMounted",
                format!("{who}: its driver said that it is published, and nothing is mounted at {shown}"),
                "Some drivers mount nothing. If this one should, look into its log: the pod sees a folder of this node.",
            ));
        }
        self.problems.extend(by_driver::missing(context, plugin, Some(record.into()), who));
    }

    /// The state of a block volume with a good record: its three objects, each for itself.
    fn judge_block(
        &mut self,
        who: &Who<'_>,
        context: &Context<'_>,
        found: &Found<'_>,
        record: &PodVolume,
        matched: Match,
        same_boot: bool,
    ) {
        if let Match::Conflict(why) = matched {
            self.state = VolumeState::Uncertain;
            self.reason = why.clone().into();
            self.conflict = Some(why);
            return;
        }
        let Some(block) = &record.block else {
            self.reason = "its record does not say where its device is bound".into();
            return;
        };
        let target = Some(block.link_target.as_str());
        let seen = Objects::look(context, found.folder, &block.map_path, target, false, &mut self.evidence);
        if seen.link == Link::Taken {
            self.problems.push(path_taken(who, record));
        }
        let bound = matches!(matched, Match::Ours | Match::Adopted);
        (self.state, self.reason) = match (bound, seen.wrong.is_empty()) {
            (true, true) => {
                (VolumeState::Mounted, "the recorded bind mount, its symlink and its loop device are there".into())
            }
            (true, false) => {
                (VolumeState::Uncertain, format!("its device is bound, but {}", seen.wrong.join(", and ")).into())
            }
            (false, _) if seen.held => {
                (VolumeState::Uncertain, "its loop device is there, and its bind mount is not".into())
            }
            (false, _) if same_boot => {
                (VolumeState::NotMounted, "the recorded bind mount is not in the mount table".into())
            }
            (false, _) => (VolumeState::NotMounted, "it was mapped in another boot".into()),
        };
    }

    /// What its driver has not confirmed is uncertain, whatever is mapped: it may have been published, or be about to be.
    /// Nothing is published any more after a reboot.
    fn judge_published(&mut self, confirmed: bool, same_boot: bool) {
        self.reason = match self.state {
            VolumeState::Mounted if !(confirmed && same_boot) => {
                "it is mapped, and its driver has not confirmed that it is published".into()
            }
            VolumeState::NotMounted if !confirmed && same_boot => {
                "its driver has not confirmed that it is published, or may have begun to undo it".into()
            }
            _ => return,
        };
        self.state = VolumeState::Uncertain;
    }

    /// The volume's subPath mounts: those of the record, then those that only the table knows.
    fn sub_paths(
        &mut self,
        context: &Context<'_>,
        found: &Found<'_>,
        record: &PodVolume,
        same_boot: bool,
    ) -> Vec<SubPathSeen> {
        let mut all = vec![];
        for recorded in &record.sub_paths {
            let path = recorded.path.below(context.mounts.root);
            let stack = context.mounts.stack(&path);
            let matched = context.mounts.matches(&path, &stack, recorded.mount.as_ref(), same_boot);
            let ours = matches!(matched, Match::Ours | Match::Adopted);
            if let (Match::Conflict(why), None) = (&matched, &self.conflict) {
                self.conflict = Some(format!("subPath {}: {why}", path.display()));
            }
            all.push(SubPathSeen {
                path,
                container: recorded.container.clone(),
                index: Some(recorded.index),
                sub_path: Some(recorded.sub_path.clone()),
                mounted: !stack.is_empty(),
                ours,
            });
        }
        for (container, index, path) in &found.sub_paths {
            if !all.iter().any(|s| s.path == *path) {
                all.push(unrecorded_sub_path(container, *index, path));
            }
        }
        all
    }
}
