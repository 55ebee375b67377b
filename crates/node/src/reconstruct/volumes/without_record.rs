//! Concludes what a volume without a record is, from its folder and its mounts.

use std::path::Path;

use refloat_mount::Mount;
use refloat_record::{
    PluginName, PodRef, PodVolume, ProviderAnswers, RecordKey, RecordedBlock, RelPath, SpecName, Verbatim, VolumeMode,
};
use refloat_volume::plugins::flex_volume::is_flex_volume;
use refloat_volume::{
    ForeignFile, ForeignRecord, FoundVolume, Plugin, Presence, Problem, RebuiltSpec, Reconstruction, Recorded, layout,
};

use super::super::Context;
use super::super::block::{Link, Objects};
use super::super::devices::LOCAL;
use super::super::foreign::{self, Told};
use super::super::mounts::{mounted, seen, told};
use super::{Conclusion, Found, Who, cannot_block, unknown_plugin, unrecorded_sub_path};
use crate::{ActualVolume, ReconstructionResult, RecordState, VolumeKey, VolumeState};

pub(super) fn conclude(context: &Context<'_>, found: &Found<'_>) -> ActualVolume {
    let root = context.mounts.root;
    let names = PluginName::from_escaped(&found.plugin).ok().zip(SpecName::new(found.name).ok());
    let valid = names.is_some() && found.rel().is_some();
    // Names that are none still need a key to be shown under.
    let (plugin_name, spec_name) = names
        .unwrap_or_else(|| (PluginName::new("unknown").expect("a name"), SpecName::new("unknown").expect("a name")));
    let checkpoint = context.checkpoints.get(&found.pod);
    let pod_name = checkpoint.map(|c| (c.pod.namespace.clone(), c.pod.name.clone()));
    let who = Who { pod: &found.pod, pod_name: pod_name.as_ref(), name: found.name };
    let key = VolumeKey {
        pod: found.pod.clone(),
        spec_name: spec_name.clone(),
        plugin: plugin_name.clone(),
        mode: found.mode,
    };
    let record_key = RecordKey::PodVolume {
        pod: found.pod.clone(),
        plugin: plugin_name.clone(),
        spec_name: spec_name.clone(),
        mode: found.mode,
    };
    let lost = context.unreadable.get(&record_key);
    let beside = (found.mode == VolumeMode::Block && plugin_name.as_str() == layout::CSI).then(|| {
        let folder = Path::new(layout::CSI_BLOCK).join(found.name).join("data");
        context.evidence.tree.as_ref()?.foreign.get(&folder)
    });
    let foreign = found.folder.and_then(|folder| folder.foreign.as_ref()).or(beside.flatten());
    let rel = found.rel();
    let is_csi = plugin_name.as_str() == layout::CSI && found.mode == VolumeMode::Filesystem;
    let rel = rel.and_then(|rel| if is_csi { rel.join(layout::CSI_MOUNT).ok() } else { Some(rel) });
    let path = rel.as_ref().map(|p| p.below(root));
    let plugin = context.plugins.by_name(&plugin_name);
    // A block volume's mount is not at its own path.
    let map_path = (found.mode == VolumeMode::Block && valid).then(|| map_path(found, plugin, &spec_name)).flatten();
    let at = match found.mode {
        VolumeMode::Filesystem => path.clone(),
        VolumeMode::Block => map_path.as_ref().map(|p| p.below(root)),
    };
    let stack = at.as_ref().map_or(vec![], |p| context.mounts.stack(p));

    let mut c = Conclusion {
        state: VolumeState::NotMounted,
        reason: "nothing is mounted there, and there is no record".into(),
        ours: false,
        conflict: None,
        reconstruction: ReconstructionResult::UnmountOnly,
        evidence: context.notes(),
        problems: lost.map(|(_, problem)| problem.clone()).into_iter().collect(),
        stray_files: false,
        kept: false,
    };
    c.evidence.add(|| format!("record: {}", if lost.is_some() { "there, but it cannot be used" } else { "none" }));
    c.evidence.add(|| mounted(&stack));
    match foreign {
        None => {}
        Some(ForeignFile::Good(data)) => c.evidence.add(|| format!("{}: {data}", layout::VOL_DATA)),
        Some(ForeignFile::Bad { why }) => {
            c.evidence.add(|| format!("{}: {why}", layout::VOL_DATA));
            let why = format!("the kubelet's {} says nothing: {why}", layout::VOL_DATA);
            c.problems.push(foreign::vol_data_damaged(&who.to_string(), &why));
        }
    }
    c.evidence.add(|| format!("folders: {}", if found.folder.is_some() { "there" } else { "not there" }));

    let seen_of_it = at.as_deref().or(path.as_deref()).map(|path| {
        let (folder, mode, table) = (found.name, found.mode, context.mounts.table);
        FoundVolume { folder, mode, path, table, memo: &context.memo, foreign }
    });
    let rebuilt = plugin
        .filter(|p| p.capabilities().reconstruction != Reconstruction::UnmountOnly)
        .and_then(|p| p.from_layout(seen_of_it?));
    let device = plugin.filter(|_| valid).and_then(|p| p.device_of(seen_of_it?));
    let volume_name = rebuilt.as_ref().and_then(|r| r.volume_name.clone());
    let own_provider_info = rebuilt.as_ref().and_then(|r| r.provider_info.clone());
    let doubts = rebuilt.as_ref().map(|r| r.doubts.clone()).filter(|doubts| doubts.of_identity);
    let from = device.as_ref().and_then(|device| device.path.strip_prefix(root).ok());
    let files = context.foreign.of_volume(&found.pod, &found.plugin, found.name, found.mode, from, &mut c.evidence);
    let rebuilt = c.merge(rebuilt.map(Told::from), &files, plugin, found, &who);
    c.kept = foreign.is_some_and(|file| file.good().is_some()) || files.iter().any(|file| file.says.is_ok());
    let record_state = match lost {
        Some((state, _)) => *state,
        None if c.kept => RecordState::Foreign,
        None if foreign.is_some() || !files.is_empty() => RecordState::Damaged,
        None => RecordState::Missing,
    };
    // Where its own file is lost, the device that it was bound from tells whose it is.
    let by_stage = if is_csi && rebuilt.is_none() { super::super::stages::of_mount(context, &stack) } else { None };
    let unique_name = plugin.filter(|_| valid).and_then(|p| {
        let pod = PodRef { uid: found.pod.clone(), namespace: String::new(), name: String::new() };
        if plugin_name.as_str() == layout::CSI {
            let shared = volume_name.as_deref().or(by_stage.as_ref().map(|stage| stage.volume_name.as_str()));
            match shared {
                Some(name) => layout::unique_name_of_device(&plugin_name, name).ok(),
                // An inline volume is its pod's own.
                None if rebuilt.as_ref().is_some_and(|r| matches!(r.spec, RebuiltSpec::Volume(_))) => {
                    Some(layout::unique_name_of_pod(&pod, &plugin_name, &spec_name))
                }
                None => None,
            }
        } else if let Some(name) = device.as_ref().and_then(|device| device.volume_name.as_deref()) {
            layout::unique_name_of_device(&plugin_name, name).ok()
        } else if !p.capabilities().device_mountable || is_flex_volume(&plugin_name) {
            let own = SpecName::new(p.spec_name(found.name)?).ok()?;
            Some(layout::unique_name_of_pod(&pod, &plugin_name, &own))
        } else if plugin_name.as_str() == LOCAL {
            layout::unique_name_of_device(&plugin_name, spec_name.as_str()).ok()
        } else {
            None
        }
    });
    // It may be another volume, which no driver is to be asked to undo.
    if let Some(why) = doubts.as_ref().and_then(|doubts| doubts.contradictions.first()) {
        c.conflict = Some(format!("{who}: {why}"));
    }
    c.judge_without_record(found, plugin, &plugin_name, rebuilt.as_ref(), &stack, &who, valid);
    if let Some(map_path) = map_path.as_ref().filter(|_| found.mode == VolumeMode::Block) {
        c.judge_block_without_record(context, found, map_path, !stack.is_empty());
    }
    c.look_at_folder(&who, found, plugin, at.clone(), &stack);
    if stack.is_empty() && at.as_ref().is_some_and(|p| context.mounts.is_hidden_at(p)) {
        c.conflict.get_or_insert_with(|| "another mount over a folder above hides what is mounted there".into());
    }
    let by_mount = |p: &dyn Plugin| matches!(p.capabilities().presence, Presence::Mount | Presence::Driver);
    if c.stray_files && plugin.is_some_and(by_mount) {
        c.conflict.get_or_insert_with(|| "its folder holds files, which a mount would hide".into());
    }
    let provider_info = own_provider_info.or(by_stage.map(|stage| stage.provider_info));
    if let Some(plugin) = plugin {
        let recorded = Recorded { provider_info: provider_info.as_ref(), ..Recorded::default() };
        c.problems.extend(super::super::by_driver::missing(context, plugin, Some(recorded), &who));
    }
    let (spec_volume, spec_persistent_volume) = match rebuilt.map(|r| r.spec) {
        Some(RebuiltSpec::Volume(v)) => (Some(Verbatim::from_value(&v)), None),
        Some(RebuiltSpec::PersistentVolume(v)) => (None, Some(Verbatim::from_value(&v))),
        None => (None, None),
    };
    let link = found.folder.and_then(|folder| folder.link.as_ref());
    let device_path = device.map(|device| device.path);
    let below_root = |path: &std::path::PathBuf| RelPath::new(path.strip_prefix(root).ok()?.to_str()?).ok();
    let device_mount_path = device_path.as_ref().and_then(below_root).or(doubts.and_then(|doubts| doubts.by_file));
    let block = map_path.map(|map_path| RecordedBlock {
        map_path,
        link_target: link.map_or_else(String::new, |says| says.to_string_lossy().into_owned()),
        mount: told(&stack),
        device: None,
    });
    let record = rel.filter(|_| c.reconstruction != ReconstructionResult::Failed).map(|rel| PodVolume {
        pod: PodRef {
            uid: found.pod.clone(),
            namespace: pod_name.as_ref().map_or(String::new(), |n| n.0.clone()),
            name: pod_name.as_ref().map_or(String::new(), |n| n.1.clone()),
        },
        volume_names: vec![],
        spec_name: spec_name.clone(),
        plugin: plugin_name.clone(),
        unique_name: unique_name.clone().unwrap_or_else(|| {
            let text = format!("{plugin_name}/{}-{spec_name}", found.pod);
            refloat_record::UniqueVolumeName::new(text).expect("made of names that are shorter than a path")
        }),
        mode: found.mode,
        read_only: stack.last().is_some_and(|m| m.read_only()),
        mount_options: vec![],
        fs_group: None,
        selinux_label: None,
        volume: spec_volume.clone().unwrap_or_else(|| Verbatim::from_value(&serde_json::Value::Null)),
        persistent_volume: spec_persistent_volume.clone(),
        claim: None,
        path: Some(rel),
        host_path: None,
        device_mount_path,
        mount: if block.is_some() { None } else { told(&stack) },
        block,
        sub_paths: vec![],
        confirmed: false,
        boot_id: context.evidence.boot_id.clone(),
        provider_info,
        providers: ProviderAnswers::new(),
        lost: vec![],
    });
    ActualVolume {
        key,
        pod_name,
        outer_names: vec![],
        unique_name,
        path,
        device_path: link.cloned().or(device_path),
        sub_paths: found.sub_paths.iter().map(|(c, i, p)| unrecorded_sub_path(c, *i, p)).collect(),
        mount: seen(&stack, false),
        state: c.state,
        state_reason: c.reason,
        record_state,
        record,
        reconstruction: c.reconstruction,
        spec_volume,
        spec_persistent_volume,
        stray_files: c.stray_files,
        evidence: c.evidence.into_texts(),
        conflict: c.conflict,
        problems: c.problems,
    }
}

/// Where the device of a block volume is bound: as its plugin says, or where a file or mount was found.
fn map_path(found: &Found<'_>, plugin: Option<&dyn Plugin>, spec_name: &SpecName) -> Option<RelPath> {
    let told = plugin.and_then(|plugin| plugin.map_path(&found.pod, spec_name));
    told.or_else(|| RelPath::new(found.map?.to_str()?).ok())
}

impl Conclusion {
    /// The state of a block volume without a record, by its three objects.
    fn judge_block_without_record(
        &mut self,
        context: &Context<'_>,
        found: &Found<'_>,
        map_path: &RelPath,
        bound: bool,
    ) {
        let seen = Objects::look(context, found.folder, map_path, None, true, &mut self.evidence);
        if self.reconstruction == ReconstructionResult::Failed || self.state == VolumeState::Unknown {
            return;
        }
        if bound && !seen.wrong.is_empty() {
            self.state = VolumeState::Uncertain;
            self.reason = format!("its device is bound, but {}", seen.wrong.join(", and ")).into();
        } else if !bound && (seen.held || seen.link == Link::Taken) {
            self.state = VolumeState::Uncertain;
            self.reason = "its device is not bound, but something of it is there".into();
        } else if self.state == VolumeState::NotMounted && found.published {
            self.state = VolumeState::Uncertain;
            self.reason = "its device is not bound, but something stands where its driver publishes it".into();
        }
    }

    /// Takes what other programs' files say into what paths and mounts told.
    fn merge(
        &mut self,
        rebuilt: Option<Told>,
        files: &[&ForeignRecord],
        plugin: Option<&dyn Plugin>,
        found: &Found<'_>,
        who: &Who<'_>,
    ) -> Option<Told> {
        let name = plugin.and_then(|plugin| plugin.spec_name(found.name)).unwrap_or(found.name);
        let mut told = rebuilt;
        for file in files {
            match &file.says {
                Ok(says) => {
                    self.evidence.add(|| format!("{}: {says}", file.path.display()));
                    told = match told {
                        Some(told) => Some(told.merge(file, name, found.mode)),
                        None => foreign::alone(file, name, found.mode),
                    };
                }
                Err(why) => {
                    self.evidence.add(|| format!("{}: {why}", file.path.display()));
                    self.problems.push(foreign::damaged(&who.to_string(), file, why));
                }
            }
        }
        for why in told.iter().flat_map(|told| &told.contradictions) {
            self.evidence.add(|| format!("contradiction: {why}"));
            self.problems.push(foreign::contradicts(&who.to_string(), why));
        }
        told
    }

    #[allow(clippy::too_many_arguments)] // what is known of one volume without a record
    fn judge_without_record(
        &mut self,
        found: &Found<'_>,
        plugin: Option<&dyn Plugin>,
        plugin_name: &PluginName,
        rebuilt: Option<&Told>,
        stack: &[Mount<'_>],
        who: &Who<'_>,
        valid: bool,
    ) {
        if !valid {
            self.fail(format!("{who}: the folder names {:?} and {:?} name no volume", found.plugin, found.name));
            return;
        }
        let link = found.folder.is_none_or(|folder| folder.link.is_some());
        if found.mode == VolumeMode::Block && (plugin.is_none() || found.map.is_none()) && !link {
            self.fail(format!("{who}: it is no symlink, as a block volume is, and no record tells what it is"));
            return;
        }
        let mounted = !stack.is_empty();
        if mounted {
            self.state = VolumeState::Mounted;
            self.reason = "it is in the mount table; no record tells more".into();
            // Another program that keeps it has a file about it.
            if self.problems.is_empty() && !self.kept {
                self.problems.push(Problem::new(
                    "RecordMissing",
                    format!("{who}: it is mounted, and no record tells what it is"),
                    "It stays as it is while its pod is wanted, and is unmounted when the pod is gone.",
                ));
            }
        }
        let Some(plugin) = plugin else {
            self.problems.push(unknown_plugin(who, plugin_name));
            if !mounted && found.folder.is_some_and(|f| f.empty != Some(true)) {
                self.state = VolumeState::Unknown;
                self.reason = format!("no plugin {plugin_name} is built in to tell what its folder is").into();
            }
            return;
        };
        if let Some(rebuilt) = rebuilt {
            self.reconstruction = ReconstructionResult::Partial { lost: rebuilt.lost.clone() };
        }
        if found.mode == VolumeMode::Block {
            if !plugin.capabilities().block {
                self.conflict = Some(cannot_block(plugin_name));
            }
            return;
        }
        let presence = plugin.capabilities().presence;
        if presence == Presence::Driver && !mounted && found.folder.is_some_and(|f| f.foreign.is_some()) {
            self.state = VolumeState::Uncertain;
            self.reason = "nothing is mounted there, and no record says whether its driver has anything to undo".into();
        }
        if presence == Presence::Marker {
            self.judge_by_marker(found, plugin.in_memory(), mounted);
        }
    }
    /// The state of a volume without a record that a marker tells of when it is whole. Its content may lie in the plain folder;
    /// then the files there are the volume.
    fn judge_by_marker(&mut self, found: &Found<'_>, in_memory: bool, mounted: bool) {
        let folder = found.folder.filter(|folder| folder.is_dir);
        let filled = folder.is_some_and(|folder| folder.empty == Some(false));
        let (state, reason) = match (mounted, found.ready) {
            (true, true) => return,
            (false, false) if !filled => return,
            (false, true) if folder.is_some() && !in_memory => {
                (VolumeState::Mounted, "its folder and its ready marker are there; no record tells more")
            }
            (false, _) if in_memory => {
                (VolumeState::Uncertain, "the file system in memory that it lies in is not mounted")
            }
            _ => (VolumeState::Uncertain, "no record says whether it is whole"),
        };
        self.state = state;
        self.reason = reason.into();
    }
}
