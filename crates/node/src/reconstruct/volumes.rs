//! One pod's use of one volume: brings together what record, folder and mount table say of it, and concludes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use refloat_mount::Mount;
use refloat_record::{
    PluginName, PodRef, PodUid, PodVolume, Record, RecordKey, RelPath, SpecName, Verbatim, VolumeMode,
};
use refloat_volume::{FoundVolume, Plugin, Presence, Problem, Rebuilt, RebuiltSpec, Reconstruction, layout};

use super::Context;
use super::mounts::{Match, seen, shown, told};
use crate::evidence::VolumeFolder;
use crate::{
    ActualVolume, Leftover, LeftoverKind, ReconstructionResult, RecordState, SubPathSeen, VolumeKey, VolumeState,
};

/// What is known of one volume before anything is concluded.
pub(super) struct Found<'e> {
    pod: PodUid,
    /// The plugin's folder name.
    plugin: String,
    name: String,
    mode: VolumeMode,
    record: Option<&'e PodVolume>,
    folder: Option<&'e VolumeFolder>,
    /// Whether the pod has the `ready` marker that is the volume's.
    ready: bool,
    /// Mounts at `volume-subpaths/<spec>/<container>/<index>` that lie in this volume's place.
    sub_paths: Vec<(String, u32, PathBuf)>,
    /// Mount points strictly below its folder.
    nested: Vec<PathBuf>,
}

/// All volumes, and the mounts and folders that belong to none.
#[derive(Default)]
pub(super) struct AllFound<'e> {
    pub(super) volumes: Vec<Found<'e>>,
    pub(super) leftovers: Vec<Leftover>,
}

/// Where a volume is looked up: pod, folder of the plugin, folder of the volume, and whether it is a block volume.
type Place = (String, String, String, bool);

/// Looks through records, folders and mounts, once each.
pub(super) fn find<'e>(context: &Context<'e>) -> AllFound<'e> {
    let mut all = AllFound::default();
    let mut places: HashMap<Place, usize> = HashMap::new();
    for record in &context.evidence.records.records {
        let Record::PodVolume(record) = record else { continue };
        let mut found =
            Found::new(record.pod.uid.clone(), record.plugin.escaped(), record.spec_name.to_string(), record.mode);
        found.record = Some(record);
        // A name with a tilde is no plugin's: its folder would be taken for another's.
        if !record.plugin.as_str().contains('~') {
            places.insert(found.place(), all.volumes.len());
        }
        all.volumes.push(found);
    }
    if let Some(tree) = &context.evidence.tree {
        for pod in &tree.pods {
            let Some(uid) = &pod.uid else { continue };
            let file_system = pod.volumes.iter().map(|f| (f, VolumeMode::Filesystem));
            let block = pod.volume_devices.iter().map(|f| (f, VolumeMode::Block));
            for (folder, mode) in file_system.chain(block) {
                let mut found = Found::new(uid.clone(), folder.plugin.clone(), folder.name.clone(), mode);
                let index = *places.entry(found.place()).or_insert_with(|| {
                    all.volumes.push(found.take());
                    all.volumes.len() - 1
                });
                all.volumes[index].folder = Some(folder);
            }
            for name in &pod.ready {
                let candidates = match name.strip_prefix("wrapped_") {
                    Some(wrapped) => WRAPPING.iter().map(|p| ((*p).to_owned(), wrapped)).collect::<Vec<_>>(),
                    None => vec![],
                };
                let own = [("kubernetes.io~empty-dir".to_owned(), name.as_str())];
                for (plugin, volume) in candidates.into_iter().chain(own) {
                    let place = (uid.to_string(), plugin, volume.to_owned(), false);
                    if let Some(index) = places.get(&place) {
                        all.volumes[*index].ready = true;
                    }
                }
            }
        }
    }
    mounts_below_pods(context, &mut all, &mut places);
    all
}

/// The plugins whose marker is named `wrapped_<volume>`, by folder name.
///
/// # Source
/// They wrap an emptyDir under that name: `wrappedVolumeSpec` in the kubelet's plugins.
const WRAPPING: [&str; 5] = [
    "kubernetes.io~configmap",
    "kubernetes.io~secret",
    "kubernetes.io~downward-api",
    "kubernetes.io~projected",
    "kubernetes.io~git-repo",
];

/// Gives each mount below `pods/` to its volume, or makes it a leftover.
fn mounts_below_pods<'e>(context: &Context<'e>, all: &mut AllFound<'e>, places: &mut HashMap<Place, usize>) {
    let pods = context.mounts.root.join(layout::PODS);
    // By pod and spec name, for subPath mounts, whose path does not name the plugin.
    let mut specs: HashMap<(String, String), usize> = HashMap::new();
    for (index, found) in all.volumes.iter().enumerate() {
        specs.entry((found.pod.to_string(), found.name.clone())).or_insert(index);
    }
    let mut sub_path_mounts = vec![];
    let mut last: Option<PathBuf> = None;
    for mount in context.mounts.table.under(&pods) {
        let point = mount.point();
        if last.as_deref() == Some(point) {
            continue;
        }
        last = Some(point.to_path_buf());
        let Ok(below) = point.strip_prefix(&pods) else { continue };
        let parts: Option<Vec<&str>> = below.iter().map(|p| p.to_str()).collect();
        let parts = parts.unwrap_or_default();
        let uid = parts.first().and_then(|uid| PodUid::new(uid).ok());
        let (Some(uid), [_, kind, rest @ ..]) = (uid, parts.as_slice()) else {
            all.leftovers.push(stale(point, parts.first().and_then(|u| PodUid::new(u).ok())));
            continue;
        };
        match (*kind, rest) {
            (layout::VOLUMES | layout::VOLUME_DEVICES, [plugin, name, nested @ ..]) => {
                let mode = if *kind == layout::VOLUMES { VolumeMode::Filesystem } else { VolumeMode::Block };
                let mut found = Found::new(uid, (*plugin).to_owned(), (*name).to_owned(), mode);
                let index = *places.entry(found.place()).or_insert_with(|| {
                    specs.entry((found.pod.to_string(), found.name.clone())).or_insert(all.volumes.len());
                    all.volumes.push(found.take());
                    all.volumes.len() - 1
                });
                if !nested.is_empty() {
                    all.volumes[index].nested.push(point.to_path_buf());
                }
            }
            (layout::VOLUME_SUBPATHS, [spec, container, index]) => match index.parse::<u32>() {
                Ok(index) => sub_path_mounts.push((
                    uid,
                    (*spec).to_owned(),
                    ((*container).to_owned(), index, point.to_path_buf()),
                )),
                Err(_) => all.leftovers.push(sub_path(point, uid)),
            },
            (layout::VOLUME_SUBPATHS, _) => all.leftovers.push(sub_path(point, uid)),
            _ => all.leftovers.push(stale(point, Some(uid))),
        }
    }
    for (uid, spec, mount) in sub_path_mounts {
        match specs.get(&(uid.to_string(), spec)) {
            Some(index) => all.volumes[*index].sub_paths.push(mount),
            None => all.leftovers.push(sub_path(&mount.2, uid)),
        }
    }
}

/// A mount that belongs to no volume.
pub(super) fn stale(point: &std::path::Path, pod: Option<PodUid>) -> Leftover {
    let problem = Problem::new(
        "StaleMount",
        format!("something is mounted at {}, which is no volume's place", point.display()),
        "Find out who mounted it. In the folder of a pod that is gone it is unmounted with the rest.",
    );
    Leftover { path: point.to_path_buf(), kind: LeftoverKind::StaleMount, pod, mounted: true, problems: vec![problem] }
}

fn sub_path(point: &std::path::Path, pod: PodUid) -> Leftover {
    let problem = Problem::new(
        "SubPathWithoutVolume",
        format!("a subPath mount at {} belongs to no known volume", point.display()),
        "When its pod is gone it is unmounted; what is mounted there is not touched.",
    );
    Leftover {
        path: point.to_path_buf(),
        kind: LeftoverKind::SubPath,
        pod: Some(pod),
        mounted: true,
        problems: vec![problem],
    }
}

impl Found<'_> {
    fn new(pod: PodUid, plugin: String, name: String, mode: VolumeMode) -> Self {
        Self { pod, plugin, name, mode, record: None, folder: None, ready: false, sub_paths: vec![], nested: vec![] }
    }

    fn place(&self) -> Place {
        (self.pod.to_string(), self.plugin.clone(), self.name.clone(), self.mode == VolumeMode::Block)
    }

    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new(self.pod.clone(), String::new(), String::new(), self.mode))
    }

    /// The folder that the layout gives it, if its names make a path at all.
    fn rel(&self) -> Option<RelPath> {
        let kind = match self.mode {
            VolumeMode::Filesystem => layout::VOLUMES,
            VolumeMode::Block => layout::VOLUME_DEVICES,
        };
        RelPath::new(format!("{}/{}/{kind}/{}/{}", layout::PODS, self.pod, self.plugin, self.name)).ok()
    }
}

/// What was concluded on the way; becomes an [`ActualVolume`].
struct Conclusion {
    state: VolumeState,
    reason: String,
    ours: bool,
    conflict: Option<String>,
    reconstruction: ReconstructionResult,
    evidence: Vec<String>,
    problems: Vec<Problem>,
    stray_files: bool,
}

/// Concludes what one volume is.
pub(super) fn conclude(context: &Context<'_>, found: &Found<'_>) -> ActualVolume {
    match found.record {
        Some(record) => with_record(context, found, record),
        None => without_record(context, found),
    }
}

fn who(pod: &PodUid, pod_name: Option<&(String, String)>, name: &str) -> String {
    match pod_name {
        Some((namespace, pod_name)) => format!("volume {name:?} of pod {namespace}/{pod_name} ({pod})"),
        None => format!("volume {name:?} of pod {pod}"),
    }
}

fn with_record(context: &Context<'_>, found: &Found<'_>, record: &PodVolume) -> ActualVolume {
    let root = context.mounts.root;
    let plugin = context.plugins.by_name(&record.plugin);
    let pod_name = Some((record.pod.namespace.clone(), record.pod.name.clone()));
    let who = who(&record.pod.uid, pod_name.as_ref(), found.name.as_str());
    let same_boot = record.boot_id == context.evidence.boot_id;
    let path = record.path.as_ref().map(|p| p.below(root));
    let stack = path.as_ref().map_or(vec![], |p| context.mounts.stack(p));
    let matched = path
        .as_ref()
        .map_or(Match::Nothing, |path| context.mounts.matches(path, &stack, record.mount.as_ref(), same_boot));

    let mut c = Conclusion {
        state: VolumeState::NotMounted,
        reason: String::new(),
        ours: matches!(matched, Match::Ours | Match::Adopted),
        conflict: None,
        reconstruction: ReconstructionResult::Full,
        evidence: vec![format!("record: {} of {} boot", record.plugin, if same_boot { "this" } else { "another" })],
        problems: vec![],
        stray_files: false,
    };
    c.evidence.push(match stack.last() {
        Some(top) => format!("mount table: {}, {} layer(s)", shown(*top), stack.len()),
        None => "mount table: nothing at its path".into(),
    });
    if context.evidence.tree.is_some() {
        let ready = if found.ready { ", ready marker" } else { "" };
        c.evidence.push(format!("folders: {}{ready}", if found.folder.is_some() { "there" } else { "not there" }));
    }

    if let Some(why) = misplaced(found, record) {
        c.fail(format!("{who}: {why}; nothing is done to it"));
    } else if let Some(plugin) = plugin {
        c.judge(context, found, plugin, record, matched, same_boot);
    } else {
        c.state = if c.ours { VolumeState::Mounted } else { VolumeState::Unknown };
        c.reason = format!("no plugin {} is built in", record.plugin);
        c.conflict = Some(format!("{} is not built in, and only it knows how its volumes are undone", record.plugin));
        c.problems.push(unknown_plugin(&who, &record.plugin));
    }
    c.look_at_folder(&who, found, path.clone(), &stack);
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
        device_path: record.device_mount_path.as_ref().map(|p| p.below(root)),
        sub_paths,
        mount: seen(&stack, c.ours),
        state: c.state,
        state_reason: c.reason,
        record_state: RecordState::Ok,
        record: Some(record.clone()),
        reconstruction: c.reconstruction,
        spec_volume: Some(record.volume.clone()),
        spec_persistent_volume: record.persistent_volume.clone(),
        stray_files: c.stray_files,
        evidence: c.evidence,
        conflict: c.conflict,
        problems: c.problems,
    }
}

/// Why a record's paths are not those of its own volume, if so. Such a record was made by hand or by a fault; acting on
/// it would undo another's volume.
fn misplaced(found: &Found<'_>, record: &PodVolume) -> Option<String> {
    if record.plugin.as_str().contains('~') {
        return Some(format!("its record has the plugin name {:?}, and no plugin's name holds a tilde", record.plugin));
    }
    let Some(own) = found.rel() else { return Some("its record's names make no path".into()) };
    let below = |path: &RelPath, top: &str| path.as_str().strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
    if let Some(path) = &record.path
        && *path != own
        && !below(path, own.as_str())
    {
        return Some(format!("its record has the path {path}, which is not in its own folder {own}"));
    }
    if let Some(path) = record.device_mount_path.as_ref().filter(|p| !below(p, layout::PLUGINS)) {
        return Some(format!("its record has the global mount path {path}, which is not below {}", layout::PLUGINS));
    }
    let sub_paths = format!("{}/{}/{}/{}", layout::PODS, record.pod.uid, layout::VOLUME_SUBPATHS, record.spec_name);
    let stray = record.sub_paths.iter().find(|s| !below(&s.path, &sub_paths))?;
    Some(format!("its record has the subPath {}, which is not below {sub_paths}", stray.path))
}

fn unknown_plugin(who: &str, plugin: &PluginName) -> Problem {
    Problem::new(
        "UnknownPlugin",
        format!("{who}: this program has no plugin {plugin}"),
        "Use a version that has it, or unmount the volume by hand.",
    )
}

impl Conclusion {
    /// Not understood: kept, shown, never acted on.
    fn fail(&mut self, why: String) {
        self.state = VolumeState::Unknown;
        self.reason.clone_from(&why);
        self.reconstruction = ReconstructionResult::Failed;
        self.conflict = Some(why.clone());
        self.problems.push(Problem::new(
            "NotUnderstood",
            why,
            "Look at the record and the folder; correct or remove what is wrong.",
        ));
    }

    /// The state of a volume with a good record.
    fn judge(
        &mut self,
        context: &Context<'_>,
        found: &Found<'_>,
        plugin: &dyn Plugin,
        record: &PodVolume,
        matched: Match,
        same_boot: bool,
    ) {
        if let Match::Conflict(why) = matched {
            self.state = VolumeState::Uncertain;
            self.reason.clone_from(&why);
            self.conflict = Some(why);
            return;
        }
        let listed = context.evidence.tree.is_some();
        let (state, reason) = match plugin.capabilities().presence {
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
                (VolumeState::NotMounted, format!("the recorded mount {when}"))
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

    /// What stands where the folder should be, and what else is in it.
    fn look_at_folder(&mut self, who: &str, found: &Found<'_>, path: Option<PathBuf>, stack: &[Mount<'_>]) {
        let shown = path.map_or_else(|| found.name.clone(), |p| p.display().to_string());
        if let Some(folder) = found.folder
            && !folder.is_dir
            && found.mode == VolumeMode::Filesystem
        {
            self.fail(format!("{who}: {shown} is no folder but a file, symlink or the like"));
            return;
        }
        let record_mounts = found.record.is_none_or(|r| r.mount.is_some());
        if record_mounts && stack.is_empty() && found.folder.is_some_and(|f| f.empty == Some(false)) {
            self.stray_files = true;
            let files = format!("{shown} holds files, and nothing is mounted there");
            self.problems.push(Problem::new(
                "StrayFiles",
                format!("{who}: {files}"),
                "They are kept, and neither deleted nor hidden by a mount. Move them away if they are of use to nobody.",
            ));
            if found.record.is_some() && self.conflict.is_none() {
                self.conflict = Some(files);
            }
        }
        if stack.len() > 1 {
            self.problems.push(Problem::new(
                "StackedMount",
                format!("{who}: {} mounts lie over one another at {shown}", stack.len()),
                "TearDown takes off those of the volume's own origin one after another.",
            ));
        }
        if let Some(nested) = found.nested.first() {
            self.evidence.push(format!(
                "mount table: {} mount(s) inside it, {} first",
                found.nested.len(),
                nested.display()
            ));
            self.problems.push(Problem::new(
                "NestedMount",
                format!("{who}: something is mounted inside it, at {}", nested.display()),
                "It is unmounted before the volume is torn down; its data is not touched.",
            ));
        }
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

fn unrecorded_sub_path(container: &str, index: u32, path: &std::path::Path) -> SubPathSeen {
    SubPathSeen {
        path: path.to_path_buf(),
        container: container.to_owned(),
        index: Some(index),
        sub_path: None,
        mounted: true,
        ours: false,
    }
}

/// A CSI volume's mount is one level deeper than its folder.
///
/// # Source
/// `GetPath` of the kubelet's `csiMountMgr`.
const CSI: &str = "kubernetes.io/csi";

fn without_record(context: &Context<'_>, found: &Found<'_>) -> ActualVolume {
    let root = context.mounts.root;
    let names = PluginName::from_escaped(&found.plugin).ok().zip(SpecName::new(&found.name).ok());
    let valid = names.is_some() && found.rel().is_some();
    // Names that are none still need a key to be shown under.
    let (plugin_name, spec_name) = names
        .unwrap_or_else(|| (PluginName::new("unknown").expect("a name"), SpecName::new("unknown").expect("a name")));
    let checkpoint = context.checkpoints.get(&found.pod);
    let pod_name = checkpoint.map(|c| (c.pod.namespace.clone(), c.pod.name.clone()));
    let who = who(&found.pod, pod_name.as_ref(), &found.name);
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
    let record_state = lost.map_or(RecordState::Missing, |(state, _)| *state);

    let rel = found.rel();
    let is_csi = plugin_name.as_str() == CSI && found.mode == VolumeMode::Filesystem;
    let mount_rel = rel.as_ref().and_then(|rel| if is_csi { rel.join("mount").ok() } else { Some(rel.clone()) });
    let path = mount_rel.as_ref().map(|p| p.below(root));
    let stack = path.as_ref().map_or(vec![], |p| context.mounts.stack(p));
    let plugin = context.plugins.by_name(&plugin_name);

    let mut c = Conclusion {
        state: VolumeState::NotMounted,
        reason: "nothing is mounted there, and there is no record".into(),
        ours: false,
        conflict: None,
        reconstruction: ReconstructionResult::UnmountOnly,
        evidence: vec![format!("record: {}", if lost.is_some() { "there, but it cannot be used" } else { "none" })],
        problems: lost.map(|(_, problem)| problem.clone()).into_iter().collect(),
        stray_files: false,
    };
    c.evidence.push(match stack.last() {
        Some(top) => format!("mount table: {}, {} layer(s)", shown(*top), stack.len()),
        None => "mount table: nothing at its path".into(),
    });
    c.evidence.push(format!("folders: {}", if found.folder.is_some() { "there" } else { "not there" }));

    let rebuilt = plugin.zip(path.as_deref()).and_then(|(plugin, path)| rebuild(context, found, plugin, path, &stack));
    let unique_name = plugin.filter(|_| valid).and_then(|p| {
        let pod = PodRef { uid: found.pod.clone(), namespace: String::new(), name: String::new() };
        if !p.capabilities().device_mountable {
            Some(layout::unique_name_of_pod(&pod, &plugin_name, &spec_name))
        } else if plugin_name.as_str() == super::devices::LOCAL {
            layout::unique_name_of_device(&plugin_name, spec_name.as_str()).ok()
        } else {
            None
        }
    });
    c.judge_without_record(found, plugin, &plugin_name, rebuilt.as_ref(), &stack, &who, valid);
    c.look_at_folder(&who, found, path.clone(), &stack);
    if stack.is_empty() && path.as_ref().is_some_and(|p| context.mounts.is_hidden_at(p)) {
        c.conflict.get_or_insert_with(|| "another mount over a folder above hides what is mounted there".into());
    }
    if c.stray_files && plugin.is_some_and(|p| p.capabilities().presence == Presence::Mount) {
        c.conflict.get_or_insert_with(|| "its folder holds files, which a mount would hide".into());
    }
    let (spec_volume, spec_persistent_volume) = match rebuilt.map(|r| r.spec) {
        Some(RebuiltSpec::Volume(v)) => (Some(Verbatim::from_value(&v)), None),
        Some(RebuiltSpec::PersistentVolume(v)) => (None, Some(Verbatim::from_value(&v))),
        None => (None, None),
    };
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
        device_mount_path: None,
        mount: told(&stack),
        sub_paths: vec![],
        boot_id: context.evidence.boot_id.clone(),
        provider_info: None,
    });
    ActualVolume {
        key,
        pod_name,
        outer_names: vec![],
        unique_name,
        path,
        device_path: None,
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
        evidence: c.evidence,
        conflict: c.conflict,
        problems: c.problems,
    }
}

/// What the plugin can tell of a volume without a record. Of volumes that pods share it is asked once: there may be
/// thousands of mounts of one, and what it tells follows from what is mounted.
fn rebuild(
    context: &Context<'_>,
    found: &Found<'_>,
    plugin: &dyn Plugin,
    path: &Path,
    stack: &[Mount<'_>],
) -> Option<Rebuilt> {
    let capabilities = plugin.capabilities();
    if capabilities.reconstruction == Reconstruction::UnmountOnly {
        return None;
    }
    let ask = || plugin.from_layout(FoundVolume { folder: &found.name, path, table: context.mounts.table });
    let Some(top) = stack.last().filter(|_| capabilities.device_mountable) else { return ask() };
    let shared = (found.plugin.clone(), found.name.clone(), top.device(), top.root().to_path_buf());
    context.rebuilt.borrow_mut().entry(shared).or_insert_with(ask).clone()
}

impl Conclusion {
    #[allow(clippy::too_many_arguments)] // what is known of one volume without a record
    fn judge_without_record(
        &mut self,
        found: &Found<'_>,
        plugin: Option<&dyn Plugin>,
        plugin_name: &PluginName,
        rebuilt: Option<&Rebuilt>,
        stack: &[Mount<'_>],
        who: &str,
        valid: bool,
    ) {
        if !valid {
            self.fail(format!("{who}: the folder names {:?} and {:?} name no volume", found.plugin, found.name));
            return;
        }
        if found.mode == VolumeMode::Block {
            self.fail(format!("{who}: it is a block volume without a record, and how it is mapped cannot be told"));
            return;
        }
        let mounted = !stack.is_empty();
        if mounted {
            self.state = VolumeState::Mounted;
            self.reason = "it is in the mount table; no record tells more".into();
            if self.problems.is_empty() {
                self.problems.push(Problem::new(
                    "RecordMissing",
                    format!("{who}: it is mounted, and no record tells what it is"),
                    "It stays as it is while its pod is wanted, and is unmounted when the pod is gone.",
                ));
            }
        }
        let Some(plugin) = plugin else {
            self.problems.push(unknown_plugin(who, plugin_name));
            if plugin_name.as_str() == CSI {
                self.conflict = Some("its driver has to be asked, and this version of Refloat cannot ask it".into());
            }
            if !mounted && found.folder.is_some_and(|f| f.empty != Some(true)) {
                self.state = VolumeState::Unknown;
                self.reason = format!("no plugin {plugin_name} is built in to tell what its folder is");
            }
            return;
        };
        if let Some(rebuilt) = rebuilt {
            let lost = rebuilt.lost.iter().map(|field| (*field).to_owned()).collect();
            self.reconstruction = ReconstructionResult::Partial { lost };
        }
        let marker = plugin.capabilities().presence == Presence::Marker;
        if marker && (found.ready != mounted || (!mounted && found.folder.is_some_and(|f| f.empty == Some(false)))) {
            self.state = VolumeState::Uncertain;
            self.reason = "no record says whether it is whole".into();
        }
    }
}
