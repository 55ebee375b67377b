//! Brings together what records, folders and mounts say of each volume.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use refloat_record::{PodUid, PodVolume, Record, RelPath, VolumeMode};
use refloat_volume::{Problem, layout};

use super::super::Context;
use crate::evidence::{MapPlace, VolumeFolder};
use crate::{Leftover, LeftoverKind};

/// What is known of one volume before anything is concluded.
pub(in crate::reconstruct) struct Found<'e> {
    pub(super) pod: PodUid,
    /// The plugin's folder name.
    pub(super) plugin: Cow<'e, str>,
    pub(super) name: &'e str,
    pub(super) mode: VolumeMode,
    pub(super) record: Option<&'e PodVolume>,
    pub(super) folder: Option<&'e VolumeFolder>,
    /// Whether the pod has the `ready` marker that is the volume's.
    pub(super) ready: bool,
    /// Mounts at `volume-subpaths/<spec>/<container>/<index>` that lie in this volume's place.
    pub(super) sub_paths: Vec<(&'e str, u32, &'e Path)>,
    /// Of a block volume: the file that the device is bound over, relative to the root, if it or a mount there was seen.
    pub(super) map: Option<&'e Path>,
    /// Of a CSI block volume: whether anything stands where its driver publishes it.
    pub(super) published: bool,
    /// Mount points strictly below its folder.
    pub(super) nested: Vec<&'e Path>,
}

/// All volumes, and the mounts and folders that belong to none.
#[derive(Default)]
pub(in crate::reconstruct) struct AllFound<'e> {
    pub(in crate::reconstruct) volumes: Vec<Found<'e>>,
    pub(in crate::reconstruct) leftovers: Vec<Leftover>,
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
pub(in crate::reconstruct) fn find<'e>(context: &Context<'e>) -> AllFound<'e> {
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
    map_paths(context, &mut all);
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

/// Gives each file and each mount in a global map folder to its block volume.
fn map_paths<'e>(context: &Context<'e>, all: &mut AllFound<'e>) {
    let root = context.mounts.root;
    let files = context.evidence.tree.iter().flat_map(|tree| &tree.blocks.maps).map(std::path::PathBuf::as_path);
    let plugins = root.join(layout::PLUGINS);
    let mounts = context.mounts.table.under(&plugins).filter_map(|mount| mount.point().strip_prefix(root).ok());
    let mut unnamed: BTreeMap<(&'e str, String), Vec<&'e Path>> = BTreeMap::new();
    let recorded = all.volumes.iter().filter_map(|found| found.record?.block.as_ref());
    let recorded: HashSet<&Path> = recorded.map(|block| block.map_path.as_path()).collect();
    for path in files.chain(mounts) {
        if let Some(place) = MapPlace::of(path) {
            if let Some(found) = all.at(place.pod, place.plugin, place.name, VolumeMode::Block) {
                found.map = Some(path);
            }
        } else if let Some((global, pod)) =
            path.to_str().and_then(layout::map_file).filter(|_| !recorded.contains(path))
        {
            unnamed.entry((pod, global.plugin.escaped())).or_default().push(path);
        }
    }
    if !unnamed.is_empty() {
        let mut candidates: HashMap<(String, String), Vec<usize>> = HashMap::new();
        for (index, found) in all.volumes.iter().enumerate() {
            if found.mode == VolumeMode::Block && found.record.is_none() {
                let place = (found.pod.to_string(), found.plugin.to_string());
                candidates.entry(place).or_default().push(index);
            }
        }
        for ((pod, plugin), mut maps) in unnamed {
            maps.sort_unstable();
            maps.dedup();
            let candidates = candidates.get(&(pod.to_owned(), plugin));
            match_maps(context, all, pod, candidates, maps);
        }
    }
    // What a driver published is its pod's, also if nothing of that is left where the pod sees it.
    let files = context.evidence.tree.iter().flat_map(|tree| &tree.blocks.published).map(std::path::PathBuf::as_path);
    let published = root.join(layout::CSI_BLOCK);
    let mounts = context.mounts.table.under(&published).filter_map(|mount| mount.point().strip_prefix(root).ok());
    for path in files.chain(mounts) {
        let Some(place) = MapPlace::published(path) else { continue };
        if let Some(found) = all.at(place.pod, place.plugin, place.name, VolumeMode::Block) {
            found.published = true;
        }
    }
}

/// Gives each of these files and mounts, all of one plugin and pod, to the volume of which it is: by the device that is bound
/// there and that the volume's symlink leads to; else to the only one there is, if nothing contradicts that. What is
/// mounted of the rest is a leftover.
fn match_maps<'e>(
    context: &Context<'e>,
    all: &mut AllFound<'e>,
    pod: &str,
    candidates: Option<&Vec<usize>>,
    maps: Vec<&'e Path>,
) {
    let mut volumes: Vec<(usize, Option<Origin<'e>>)> = vec![];
    for index in candidates.into_iter().flatten() {
        let folder = all.volumes[*index].folder;
        volumes.push((*index, folder.and_then(|folder| Origin::of_link(context, folder))));
    }
    let bound = |map: &'e Path| (map, Origin::of_mount(context, &context.mounts.root.join(map)));
    let maps: Vec<(&Path, Option<Origin<'e>>)> = maps.into_iter().map(bound).collect();
    // Of two binds of one device nobody can tell which is the volume's.
    let twice: Vec<bool> = maps
        .iter()
        .map(|(_, bound)| bound.is_some() && maps.iter().filter(|(_, other)| other == bound).count() > 1)
        .collect();
    let mut rest = vec![];
    for ((map, bound), twice) in maps.into_iter().zip(twice) {
        let mut same = volumes.iter().enumerate().filter(|(_, (_, link))| bound.is_some() && *link == bound);
        match (same.next(), same.next()) {
            (Some((place, _)), None) if !twice => {
                let (index, _) = volumes.remove(place);
                all.volumes[index].map = Some(map);
            }
            _ => rest.push((map, bound)),
        }
    }
    if let ([(map, bound)], [(index, link)]) = (rest.as_slice(), volumes.as_slice())
        && (bound.is_none() || link.is_none() || bound == link)
    {
        all.volumes[*index].map = Some(map);
        return;
    }
    for (map, _) in rest.into_iter().filter(|(_, bound)| bound.is_some()) {
        let point = context.mounts.root.join(map);
        let problem = Problem::new(
            "BlockMapLeft",
            format!(
                "a device is bound at {} for pod {pod}, and no block volume of the pod is known to be it",
                point.display()
            ),
            "Look who has the device open; unmount it by hand when nobody does.",
        );
        let problems = vec![problem];
        all.leftovers.push(Leftover {
            path: point,
            kind: LeftoverKind::StaleMount,
            pod: None,
            mounted: true,
            problems,
        });
    }
}

/// Which file of which file system a device node is.
#[derive(PartialEq)]
struct Origin<'e> {
    device: refloat_mount::Device,
    root: Cow<'e, Path>,
}

impl<'e> Origin<'e> {
    /// What is bound there.
    fn of_mount(context: &Context<'e>, point: &Path) -> Option<Self> {
        let top = context.mounts.table.at(point)?;
        Some(Self { device: top.device(), root: Cow::Borrowed(top.root()) })
    }

    /// Where the symlink of a block volume leads, by the mount that covers that path. Only `/dev` is known to have no
    /// symlinks besides those that were looked at.
    fn of_link(context: &Context<'e>, folder: &'e VolumeFolder) -> Option<Self> {
        let end = folder.link_device.as_deref().or(folder.link.as_deref()).filter(|end| end.starts_with("/dev"))?;
        let cover = context.mounts.table.covering(end)?;
        let root = cover.root().join(end.strip_prefix(cover.point()).ok()?);
        Some(Self { device: cover.device(), root: Cow::Owned(root) })
    }
}

/// Gives each mount below `pods/` to its volume, or makes it a leftover.
fn mounts_below_pods<'e>(context: &Context<'e>, all: &mut AllFound<'e>) {
    let pods = context.mounts.root.join(layout::PODS);
    let pods_len = pods.as_os_str().len();
    let mut sub_path_mounts = vec![];
    let mut last: Option<&'e Path> = None;
    let mut parts: Vec<&'e str> = vec![];
    for mount in context.mounts.table.under(&pods) {
        let point: &'e Path = mount.point();
        // As text: mount points have no doubled slashes, and taking paths apart by their rules costs more than the rest.
        if last.is_some_and(|last| last.as_os_str() == point.as_os_str()) {
            continue;
        }
        last = Some(point);
        parts.clear();
        if let Some(point) = point.to_str() {
            let Some(below) = point.get(pods_len..).and_then(|below| below.strip_prefix('/')) else { continue };
            parts.extend(below.split('/'));
        }
        let uid = || parts.first().and_then(|uid| PodUid::new(uid).ok());
        match parts.as_slice() {
            [uid, kind @ (layout::VOLUMES | layout::VOLUME_DEVICES), plugin, name, nested @ ..] => {
                let mode = if *kind == layout::VOLUMES { VolumeMode::Filesystem } else { VolumeMode::Block };
                // A CSI volume's own mount is one level deeper.
                let own = *plugin == layout::CSI_FOLDER && nested == [layout::CSI_MOUNT];
                match all.at(uid, plugin, name, mode) {
                    Some(found) if !nested.is_empty() && !own => found.nested.push(point),
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
pub(in crate::reconstruct) fn stale(point: &std::path::Path, pod: Option<PodUid>) -> Leftover {
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
        Self {
            pod,
            plugin,
            name,
            mode,
            record: None,
            folder: None,
            ready: false,
            sub_paths: vec![],
            map: None,
            published: false,
            nested: vec![],
        }
    }

    /// As the keys that their names make are ordered.
    fn cmp_by_key(a: &Self, b: &Self) -> std::cmp::Ordering {
        let unescaped = |byte: u8| if byte == b'~' { b'/' } else { byte };
        (&a.pod, a.name)
            .cmp(&(&b.pod, b.name))
            .then_with(|| a.plugin.bytes().map(unescaped).cmp(b.plugin.bytes().map(unescaped)))
            .then_with(|| a.mode.cmp(&b.mode))
    }

    /// The name of its plugin's folder.
    pub(in crate::reconstruct) fn plugin_folder(&self) -> &str {
        &self.plugin
    }

    /// The name of its own folder.
    pub(in crate::reconstruct) fn folder_name(&self) -> &'e str {
        self.name
    }

    /// Its pod.
    pub(in crate::reconstruct) fn pod_uid(&self) -> &PodUid {
        &self.pod
    }

    /// The folder that the layout gives it, if its names make a path at all.
    pub(super) fn rel(&self) -> Option<RelPath> {
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
    pub(super) fn holds(&self, path: &RelPath) -> bool {
        let mut parts = path.as_str().split('/');
        let own = [layout::PODS, self.pod.as_str(), self.kind(), &self.plugin, self.name];
        own.into_iter().all(|part| parts.next() == Some(part))
    }
}
