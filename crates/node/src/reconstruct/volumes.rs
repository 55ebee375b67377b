//! One pod's use of one volume: brings together what record, folder and mount table say of it, and concludes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    plugin: Cow<'e, str>,
    name: &'e str,
    mode: VolumeMode,
    record: Option<&'e PodVolume>,
    folder: Option<&'e VolumeFolder>,
    /// Whether the pod has the `ready` marker that is the volume's.
    ready: bool,
    /// Mounts at `volume-subpaths/<spec>/<container>/<index>` that lie in this volume's place.
    sub_paths: Vec<(&'e str, u32, &'e Path)>,
    /// Mount points strictly below its folder.
    nested: Vec<&'e Path>,
}

/// All volumes, and the mounts and folders that belong to none.
#[derive(Default)]
pub(super) struct AllFound<'e> {
    pub(super) volumes: Vec<Found<'e>>,
    pub(super) leftovers: Vec<Leftover>,
    places: HashMap<Place<'e>, usize>,
}

/// Where a volume is looked up: pod, folder of the plugin, folder of the volume, and whether it is a block volume.
type Place<'e> = (&'e str, Cow<'e, str>, &'e str, bool);

impl<'e> AllFound<'e> {
    /// The volume at this place; a new one if none is known there.
    fn at(&mut self, pod: &'e str, plugin: &'e str, name: &'e str, mode: VolumeMode) -> Option<&mut Found<'e>> {
        let place = (pod, Cow::Borrowed(plugin), name, mode == VolumeMode::Block);
        let index = match self.places.entry(place) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.volumes.push(Found::new(PodUid::new(pod).ok()?, Cow::Borrowed(plugin), name, mode));
                *new.insert(self.volumes.len() - 1)
            }
        };
        Some(&mut self.volumes[index])
    }

    fn mark_ready(&mut self, pod: &'e str, plugin: &'e str, name: &'e str) {
        if let Some(index) = self.places.get(&(pod, Cow::Borrowed(plugin), name, false)) {
            self.volumes[*index].ready = true;
        }
    }
}

/// Looks through records, folders and mounts, once each.
pub(super) fn find<'e>(context: &Context<'e>) -> AllFound<'e> {
    let evidence = context.evidence;
    let mut all = AllFound::default();
    all.places.reserve(evidence.records.records.len());
    for record in &evidence.records.records {
        let Record::PodVolume(record) = record else { continue };
        let plugin: Cow<'e, str> = Cow::Owned(record.plugin.escaped());
        // A name with a tilde is no plugin's: its folder would be taken for another's.
        if !record.plugin.as_str().contains('~') {
            let block = record.mode == VolumeMode::Block;
            let place = (record.pod.uid.as_str(), plugin.clone(), record.spec_name.as_str(), block);
            all.places.insert(place, all.volumes.len());
        }
        let mut found = Found::new(record.pod.uid.clone(), plugin, record.spec_name.as_str(), record.mode);
        found.record = Some(record);
        all.volumes.push(found);
    }
    for pod in evidence.tree.iter().flat_map(|tree| &tree.pods) {
        let Some(uid) = pod.uid.as_ref().map(PodUid::as_str) else { continue };
        let file_system = pod.volumes.iter().map(|f| (f, VolumeMode::Filesystem));
        let block = pod.volume_devices.iter().map(|f| (f, VolumeMode::Block));
        for (folder, mode) in file_system.chain(block) {
            if let Some(found) = all.at(uid, &folder.plugin, &folder.name, mode) {
                found.folder = Some(folder);
            }
        }
        for name in &pod.ready {
            if let Some(wrapped) = name.strip_prefix("wrapped_") {
                for plugin in WRAPPING {
                    all.mark_ready(uid, plugin, wrapped);
                }
            }
            all.mark_ready(uid, "kubernetes.io~empty-dir", name);
        }
    }
    mounts_below_pods(context, &mut all);
    all.volumes.sort_unstable_by(Found::cmp_by_key);
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
fn mounts_below_pods<'e>(context: &Context<'e>, all: &mut AllFound<'e>) {
    let pods = context.mounts.root.join(layout::PODS);
    let mut sub_path_mounts = vec![];
    let mut last: Option<&'e Path> = None;
    for mount in context.mounts.table.under(&pods) {
        let point: &'e Path = mount.point();
        if last == Some(point) {
            continue;
        }
        last = Some(point);
        let Ok(below) = point.strip_prefix(&pods) else { continue };
        let parts: Option<Vec<&'e str>> = below.iter().map(|p| p.to_str()).collect();
        let parts = parts.unwrap_or_default();
        let uid = || parts.first().and_then(|uid| PodUid::new(uid).ok());
        match parts.as_slice() {
            [uid, kind @ (layout::VOLUMES | layout::VOLUME_DEVICES), plugin, name, nested @ ..] => {
                let mode = if *kind == layout::VOLUMES { VolumeMode::Filesystem } else { VolumeMode::Block };
                match all.at(uid, plugin, name, mode) {
                    Some(found) if !nested.is_empty() => found.nested.push(point),
                    Some(_) => {}
                    None => all.leftovers.push(stale(point, None)),
                }
            }
            [pod, layout::VOLUME_SUBPATHS, rest @ ..] => match (rest, uid()) {
                ([spec, container, index], Some(_)) if index.parse::<u32>().is_ok() => {
                    let index = index.parse().expect("just parsed");
                    sub_path_mounts.push((*pod, *spec, (*container, index, point)));
                }
                (_, Some(uid)) => all.leftovers.push(sub_path(point, uid)),
                (_, None) => all.leftovers.push(stale(point, None)),
            },
            _ => all.leftovers.push(stale(point, uid())),
        }
    }
    if sub_path_mounts.is_empty() {
        return;
    }
    // The path of a subPath mount does not name the plugin.
    let mut specs: HashMap<(PodUid, &'e str), usize> = HashMap::new();
    for (index, found) in all.volumes.iter().enumerate() {
        specs.entry((found.pod.clone(), found.name)).or_insert(index);
    }
    for (pod, spec, mount) in sub_path_mounts {
        let Ok(pod) = PodUid::new(pod) else { continue };
        match specs.get(&(pod.clone(), spec)) {
            Some(index) => all.volumes[*index].sub_paths.push(mount),
            None => all.leftovers.push(sub_path(mount.2, pod)),
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

impl<'e> Found<'e> {
    fn new(pod: PodUid, plugin: Cow<'e, str>, name: &'e str, mode: VolumeMode) -> Self {
        Self { pod, plugin, name, mode, record: None, folder: None, ready: false, sub_paths: vec![], nested: vec![] }
    }

    /// As the keys that their names make are ordered.
    fn cmp_by_key(a: &Self, b: &Self) -> std::cmp::Ordering {
        let unescaped = |byte: u8| if byte == b'~' { b'/' } else { byte };
        (&a.pod, a.name)
            .cmp(&(&b.pod, b.name))
            .then_with(|| a.plugin.bytes().map(unescaped).cmp(b.plugin.bytes().map(unescaped)))
            .then_with(|| a.mode.cmp(&b.mode))
    }

    /// The folder that the layout gives it, if its names make a path at all.
    fn rel(&self) -> Option<RelPath> {
        let kind = self.kind();
        RelPath::new(format!("{}/{}/{kind}/{}/{}", layout::PODS, self.pod, self.plugin, self.name)).ok()
    }

    fn kind(&self) -> &'static str {
        match self.mode {
            VolumeMode::Filesystem => layout::VOLUMES,
            VolumeMode::Block => layout::VOLUME_DEVICES,
        }
    }

    /// Whether the path is that folder's, or lies in it.
    fn holds(&self, path: &RelPath) -> bool {
        let mut parts = path.as_str().split('/');
        let own = [layout::PODS, self.pod.as_str(), self.kind(), &self.plugin, self.name];
        own.into_iter().all(|part| parts.next() == Some(part))
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

/// Volume and pod, as a person names them.
struct Who<'a> {
    pod: &'a PodUid,
    pod_name: Option<&'a (String, String)>,
    name: &'a str,
}

impl std::fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pod, pod_name, name } = self;
        match pod_name {
            Some((namespace, pod_name)) => write!(f, "volume {name:?} of pod {namespace}/{pod_name} ({pod})"),
            None => write!(f, "volume {name:?} of pod {pod}"),
        }
    }
}

fn with_record(context: &Context<'_>, found: &Found<'_>, record: &PodVolume) -> ActualVolume {
    let root = context.mounts.root;
    let plugin = context.plugins.by_name(&record.plugin);
    let pod_name = Some((record.pod.namespace.clone(), record.pod.name.clone()));
    let who = Who { pod: &record.pod.uid, pod_name: pod_name.as_ref(), name: found.name };
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
    let below = |path: &RelPath, top: &str| path.as_str().strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
    if let Some(path) = record.path.as_ref().filter(|path| !found.holds(path)) {
        return Some(format!("its record has the path {path}, which is not in its own folder"));
    }
    if let Some(path) = record.device_mount_path.as_ref().filter(|p| !below(p, layout::PLUGINS)) {
        return Some(format!("its record has the global mount path {path}, which is not below {}", layout::PLUGINS));
    }
    if record.sub_paths.is_empty() {
        return None;
    }
    let sub_paths = format!("{}/{}/{}/{}", layout::PODS, record.pod.uid, layout::VOLUME_SUBPATHS, record.spec_name);
    let stray = record.sub_paths.iter().find(|s| !below(&s.path, &sub_paths))?;
    Some(format!("its record has the subPath {}, which is not below {sub_paths}", stray.path))
}

fn unknown_plugin(who: &Who<'_>, plugin: &PluginName) -> Problem {
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
    fn look_at_folder(&mut self, who: &Who<'_>, found: &Found<'_>, path: Option<PathBuf>, stack: &[Mount<'_>]) {
        let shown = path.map_or_else(|| found.name.to_owned(), |p| p.display().to_string());
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

    let rebuilt = plugin.filter(|p| p.capabilities().reconstruction != Reconstruction::UnmountOnly).and_then(|p| {
        let (folder, table) = (found.name, context.mounts.table);
        p.from_layout(FoundVolume { folder, path: path.as_deref()?, table, memo: &context.memo })
    });
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
        block: None,
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

impl Conclusion {
    #[allow(clippy::too_many_arguments)] // what is known of one volume without a record
    fn judge_without_record(
        &mut self,
        found: &Found<'_>,
        plugin: Option<&dyn Plugin>,
        plugin_name: &PluginName,
        rebuilt: Option<&Rebuilt>,
        stack: &[Mount<'_>],
        who: &Who<'_>,
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
