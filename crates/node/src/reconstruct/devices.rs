//! Devices mounted for pods, by records and by the mounts at global paths; and who uses them.
//!
//! Users are counted from records and from the mount table, so that a missing record hides nobody: each mount of
//! the same file system whose root is the device's or lies in it is a reference. The mounts of one file system are
//! looked through once, however many devices share it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use refloat_mount::{Device, Mount, MountTable};
use refloat_record::{DeviceMount, PodUid, ProviderAnswers, Record, RecordKey, RelPath, VolumeMode};
use refloat_volume::layout::GlobalPath;
use refloat_volume::plugins::flex_volume::is_flex_volume;
use refloat_volume::{ForeignFile, Presence, Problem, RebuiltDevice, Recorded as RecordOf, layout};

use super::by_driver::{self, Recorded};
use super::foreign as foreign_files;
use super::mounts::{Match, mounted, seen, told};
use super::notes::Notes;
use super::volumes::stale;
use super::{Context, Mounts};
use crate::evidence::MapPlace;
use crate::{ActualDevice, ActualVolume, Leftover, RecordState, VolumeState};

/// The one plugin with devices whose global path names the volume: the `PersistentVolume`'s name is the folder's and
/// the volume's own.
pub(super) const LOCAL: &str = "kubernetes.io/local-volume";

/// Devices, and where in the list each path's is. Paths are told apart as text: comparing them part by part costs more than
/// all else here.
#[derive(Default)]
struct Devices {
    list: Vec<ActualDevice>,
    places: HashMap<OsString, usize>,
}

impl Devices {
    fn contains(&self, path: &Path) -> bool {
        self.places.contains_key(path.as_os_str())
    }

    fn add(&mut self, device: ActualDevice) {
        match self.places.entry(device.path.clone().into_os_string()) {
            Entry::Vacant(place) => {
                place.insert(self.list.len());
                self.list.push(device);
            }
            // Both are kept and shown, neither is acted on.
            Entry::Occupied(place) => {
                let why = format!("two records have the global path {}", device.path.display());
                self.list[*place.get()].conflict.get_or_insert_with(|| why.clone());
                self.list.push(ActualDevice { conflict: Some(why), ..device });
            }
        }
    }
}

/// Finds and concludes the devices. Mounts below the root that are no device's and no pod's come back as leftovers.
pub(super) fn conclude(context: &Context<'_>, volumes: &[ActualVolume]) -> (Vec<ActualDevice>, Vec<Leftover>) {
    let root = context.mounts.root;
    let records: Vec<&DeviceMount> = context
        .evidence
        .records
        .records
        .iter()
        .filter_map(|record| match record {
            Record::DeviceMount(record) => Some(record),
            Record::PodVolume(_) | Record::PodCheckpoint(_) | Record::Driver(_) => None,
        })
        .collect();
    let mut devices = Devices::default();
    for device in super::on_two_threads(&records, |record| with_record(context, record)) {
        devices.add(device);
    }
    let mut leftovers = vec![];
    let mut deeper = vec![];
    let mut unknown = vec![];
    let pods = root.join(layout::PODS);
    let mut last: Option<&OsStr> = None;
    for mount in context.mounts.table.under(root) {
        let point = mount.point();
        // The pods' own mounts, nearly all.
        if below(&pods, point).is_some() || last == Some(point.as_os_str()) || devices.contains(point) {
            continue;
        }
        last = Some(point.as_os_str());
        if point.strip_prefix(root).ok().is_some_and(is_map) {
            // A block volume's.
            continue;
        }
        match point.strip_prefix(root).ok().and_then(global) {
            Some(found) => unknown.push(found),
            None => deeper.push(point),
        }
    }
    // Both are sorted by path, and may name the same ones.
    for folder in context.evidence.tree.iter().flat_map(|t| &t.global_folders) {
        if !devices.contains(&root.join(folder)) {
            unknown.extend(global(folder));
        }
    }
    unknown.sort_unstable_by(|a, b| a.1.as_str().cmp(b.1.as_str()));
    unknown.dedup_by(|a, b| a.1 == b.1);
    let without = super::on_two_threads(&unknown, |(path, rel)| without_record(context, path, rel.clone()));
    for device in without {
        devices.add(device);
    }
    for point in deeper {
        // Some drivers stage below the path that they were given.
        let device = |path: &Path| {
            devices.contains(path)
                || path
                    .strip_prefix(root)
                    .is_ok_and(|rel| global(rel).is_some_and(|(path, _)| path.plugin.as_str() == layout::CSI))
        };
        if !point.ancestors().skip(1).any(device) && !is_published(root, point, volumes) {
            leftovers.push(stale(point, None));
        }
    }
    let Devices { mut list, places } = devices;
    users_by_record(context, &mut list, volumes);
    users_by_table(&context.mounts, &mut list, &places);
    list.sort_unstable_by(|a, b| (&a.unique_name, &a.path).cmp(&(&b.unique_name, &b.path)));
    (list, leftovers)
}

/// What is below a folder, as text.
fn below<'p>(folder: &Path, path: &'p Path) -> Option<&'p [u8]> {
    let folder = folder.as_os_str().as_bytes();
    let rest = path.as_os_str().as_bytes().strip_prefix(folder)?;
    if folder.ends_with(b"/") { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// Whether a driver published a block volume of these at this path, from where it is bound for its pod.
fn is_published(root: &Path, point: &Path, volumes: &[ActualVolume]) -> bool {
    let Some(place) = point.strip_prefix(root).ok().and_then(MapPlace::published) else { return false };
    volumes.iter().any(|v| {
        let key = &v.key;
        key.mode == VolumeMode::Block
            && key.plugin.as_str() == layout::CSI
            && (key.spec_name.as_str(), key.pod.as_str()) == (place.name, place.pod)
    })
}

/// The global mount path that a path below the root is, by the kubelet's layout.
fn global(rel: &Path) -> Option<(GlobalPath<'_>, RelPath)> {
    let text = rel.to_str()?;
    let path = layout::global_path(text)?;
    Some((path, RelPath::new(text).ok()?))
}

/// Whether a device is bound there for a pod.
fn is_map(rel: &Path) -> bool {
    MapPlace::of(rel).is_some() || rel.to_str().is_some_and(|rel| layout::map_file(rel).is_some())
}

fn with_record(context: &Context<'_>, record: &DeviceMount) -> ActualDevice {
    let path = record.device_mount_path.below(context.mounts.root);
    let same_boot = record.boot_id == context.evidence.boot_id;
    let stack = context.mounts.stack(&path);
    let matched = context.mounts.matches(&path, &stack, record.mount.as_ref(), same_boot);
    let mut notes = context.notes();
    notes.add(|| "record: there".into());
    notes.add(|| mounted(&stack));
    let mut device = ActualDevice {
        unique_name: Some(record.unique_name.clone()),
        plugin: record.plugin.clone(),
        path,
        device: record.device.clone(),
        mount: seen(&stack, matches!(matched, Match::Ours | Match::Adopted)),
        state: VolumeState::NotMounted,
        record_state: RecordState::Ok,
        record: Some(record.clone()),
        users: vec![],
        other_references: vec![],
        evidence: notes.into_texts(),
        conflict: None,
        problems: vec![],
    };
    let plugin = context.plugins.by_name(&record.plugin);
    match matched {
        // A device that is presented as it is has no mount, and is there if that was confirmed.
        matched
            if record.mode == VolumeMode::Block
                || plugin.is_some_and(|p| p.capabilities().presence == Presence::Driver) =>
        {
            let recorded = Recorded { confirmed: record.confirmed, mount: record.mount.is_some(), same_boot };
            let told = by_driver::tell(recorded, &matched, &stack);
            (device.state, device.conflict) = (told.state, told.conflict);
        }
        Match::Nothing => {}
        Match::Ours | Match::Adopted => device.state = VolumeState::Mounted,
        Match::Conflict(why) => {
            device.state = VolumeState::Uncertain;
            device.conflict = Some(why);
        }
    }
    let below = record.device_mount_path.as_str().strip_prefix(layout::PLUGINS);
    if !below.is_some_and(|rest| rest.starts_with('/')) {
        let path = &record.device_mount_path;
        device.state = VolumeState::Unknown;
        device.conflict =
            Some(format!("its record has the global path {path}, which is not below {}", layout::PLUGINS));
    } else if plugin.is_none() {
        device.conflict =
            Some(format!("{} is not built in, and only it knows how its devices are undone", record.plugin));
    }
    if let Some(why) = &device.conflict {
        device.problems.push(Problem::new(
            "Conflict",
            format!("device {}: {why}", record.unique_name),
            "Refloat keeps its hands off it until that changes.",
        ));
    }
    if let Some(plugin) = plugin {
        let who = format_args!("device {}", record.unique_name);
        device.problems.extend(by_driver::missing(context, plugin, Some(record.into()), &who));
    }
    device
}

fn without_record(context: &Context<'_>, global: &GlobalPath<'_>, rel: RelPath) -> ActualDevice {
    let plugin = global.plugin.clone();
    let path = rel.below(context.mounts.root);
    let stack = context.mounts.stack(&path);
    let folder = layout::csi_data_folder(rel.as_path());
    let foreign = folder.and_then(|folder| context.evidence.tree.as_ref()?.foreign.get(&folder));
    let files = context.foreign.of_folder(rel.as_path());
    let bound = bound_for(context, &path, global);
    let by_name = context.plugins.by_name(&plugin);
    let rebuilt: Option<Result<RebuiltDevice, String>> =
        foreign.and_then(|foreign| by_name?.device_from_foreign(&rel, foreign));
    let by_path = || by_name?.device_name(global.rest);
    let volume_name = match &rebuilt {
        Some(rebuilt) => rebuilt.as_ref().ok().map(|rebuilt| rebuilt.volume_name.clone()),
        None => by_path(),
    };
    let unique_name = volume_name.and_then(|name| layout::unique_name_of_device(&plugin, &name).ok());
    let needs = by_name.and_then(refloat_volume::Plugin::device_needs);
    let provider_info = match &rebuilt {
        Some(Ok(rebuilt)) => Some(rebuilt.provider_info.clone()),
        _ => None,
    };
    let key = unique_name.clone().map(RecordKey::DeviceMount);
    let lost = key.as_ref().and_then(|key| context.unreadable.get(key));
    let mut problems: Vec<_> = lost.map(|(_, p)| p.clone()).into_iter().collect();
    let who = format!("the device at {}", path.display());
    if let Some(Err(why)) = &rebuilt {
        let is_good = foreign.is_some_and(|file| file.good().is_some());
        let problem = if is_good { foreign_files::contradicts } else { foreign_files::vol_data_damaged };
        problems.push(problem(&who, why));
    }
    let stays_a_block_device =
        global.mode == VolumeMode::Block && !by_name.is_some_and(|plugin| plugin.capabilities().block);
    let conflict = if by_name.is_none() {
        Some(format!("{plugin} is not built in, and only it knows how its devices are undone"))
    } else if let Some(Err(why)) = rebuilt {
        Some(why)
    } else if unique_name.is_none() {
        Some("its unique volume name cannot be told".to_owned())
    } else if stays_a_block_device {
        let needs = needs.unwrap_or("it is a block volume's, which this version cannot undo without a record");
        Some(format!("the device at {} stays: {needs}", path.display()))
    } else {
        needs.map(|needs| format!("the device at {} stays: {needs}", path.display()))
    };
    let fields = by_name.map(|plugin| plugin.device_fields(global.rest, global.mode)).unwrap_or_default();
    let mut notes = context.notes();
    note_device(&mut notes, &stack, &bound, foreign);
    for file in files {
        match &file.says {
            Ok(says) => {
                notes.add(|| format!("{}: {says}", file.path.display()));
                for why in foreign_files::of_path(file, &fields) {
                    notes.add(|| format!("contradiction: {why}"));
                    problems.push(foreign_files::contradicts(&who, &why));
                }
            }
            Err(why) => {
                notes.add(|| format!("{}: {why}", file.path.display()));
                problems.push(foreign_files::damaged(&who, file, why));
            }
        }
    }
    if !fields.is_empty() {
        let fields = || fields.iter().map(|(field, value)| format!("{field} {value}")).collect::<Vec<_>>().join(", ");
        notes.add(|| format!("path: {}", fields()));
    }
    if !stack.is_empty() && problems.is_empty() && provider_info.is_none() {
        problems.push(Problem::new(
            "RecordMissing",
            format!("a device is mounted at {}, and no record tells what it is", path.display()),
            "It stays while anything uses it.",
        ));
    }
    let stays = needs.is_some() || stays_a_block_device;
    if let (true, Some(why)) = (stays, &conflict) {
        problems.push(Problem::new(
            "DeviceNotUndone",
            why,
            "Undo it by hand when no pod uses it any more, or leave it to the program that mounted it.",
        ));
    }
    if let Some(plugin) = by_name {
        let recorded = RecordOf { provider_info: provider_info.as_ref(), ..RecordOf::default() };
        problems.extend(by_driver::missing(context, plugin, Some(recorded), &who));
    }
    let kept = foreign.is_some_and(|file| file.good().is_some()) || files.iter().any(|file| file.says.is_ok());
    let record_state = match lost {
        Some((state, _)) => *state,
        None if kept => RecordState::Foreign,
        None if foreign.is_some() || !files.is_empty() => RecordState::Damaged,
        None => RecordState::Missing,
    };
    let state = match (stack.is_empty() && bound.iter().all(|(_, mounted)| !mounted), foreign) {
        (false, _) => VolumeState::Mounted,
        // Its driver may have staged it without a mount.
        (true, Some(_)) => VolumeState::Uncertain,
        (true, None) => VolumeState::NotMounted,
    };
    // Whoever cleans asks the driver, which is a program.
    let by_program = needs.is_some() && is_flex_volume(&plugin) && global.mode == VolumeMode::Filesystem;
    let record = unique_name.clone().filter(|_| conflict.is_none() || by_program).map(|unique_name| DeviceMount {
        unique_name,
        plugin: plugin.clone(),
        mode: global.mode,
        persistent_volume: None,
        volume: None,
        device: None,
        device_mount_path: rel,
        mount: told(&stack),
        publish_context: None,
        confirmed: false,
        boot_id: context.evidence.boot_id.clone(),
        provider_info,
        providers: ProviderAnswers::new(),
    });
    ActualDevice {
        unique_name,
        plugin,
        path,
        device: stack.last().map(|m| m.source().into_owned()),
        mount: seen(&stack, false),
        state,
        record_state,
        record,
        users: bound.into_iter().map(|(pod, _)| pod).collect(),
        other_references: vec![],
        evidence: notes.into_texts(),
        conflict,
        problems,
    }
}

/// The pods that a block device has a file or a mount for in its global map folder, and whether it is a mount.
fn bound_for(context: &Context<'_>, path: &Path, global: &GlobalPath<'_>) -> Vec<(PodUid, bool)> {
    if global.mode != VolumeMode::Block || global.plugin.as_str() == layout::CSI {
        return vec![];
    }
    let root = context.mounts.root;
    let maps = context.evidence.tree.as_ref().map_or(&[][..], |tree| &tree.blocks.maps);
    let folder = path.strip_prefix(root).unwrap_or(path);
    // Sorted.
    let from = maps.partition_point(|map| map.as_path() < folder);
    let files = maps[from..].iter().take_while(|map| map.starts_with(folder)).map(|rel| root.join(rel));
    let mounts = context.mounts.table.under(path).map(|mount| mount.point().to_path_buf());
    let mut found: Vec<(PodUid, bool)> = files
        .chain(mounts)
        .filter(|point| point.parent() == Some(path))
        .filter_map(|point| {
            let pod = PodUid::new(point.file_name()?.to_str()?).ok()?;
            Some((pod, context.mounts.table.at(&point).is_some()))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn note_device(notes: &mut Notes, stack: &[Mount<'_>], bound: &[(PodUid, bool)], foreign: Option<&ForeignFile>) {
    notes.add(|| "record: none".to_owned());
    notes.add(|| mounted(stack));
    for (pod, mounted) in bound {
        let what = if *mounted { "the device is bound" } else { "a file is there, and nothing is bound over it" };
        notes.add(|| format!("map folder: {what} for pod {pod}"));
    }
    match foreign {
        None => {}
        Some(ForeignFile::Good(data)) => notes.add(|| format!("{}: {data}", layout::VOL_DATA)),
        Some(ForeignFile::Bad { why }) => notes.add(|| format!("{}: {why}", layout::VOL_DATA)),
    }
}

fn users_by_record(context: &Context<'_>, devices: &mut [ActualDevice], volumes: &[ActualVolume]) {
    if devices.is_empty() {
        return;
    }
    let mut by_name: HashMap<&str, Vec<&PodUid>> = HashMap::new();
    let mut by_path: HashMap<&[u8], Vec<&PodUid>> = HashMap::new();
    for volume in volumes {
        if let Some(name) = &volume.unique_name {
            by_name.entry(name.as_str()).or_default().push(&volume.key.pod);
        }
        if let Some(path) = volume.record.as_ref().and_then(|r| r.device_mount_path.as_ref()) {
            by_path.entry(path.as_str().as_bytes()).or_default().push(&volume.key.pod);
        }
    }
    for device in devices {
        let named = device.unique_name.as_ref().and_then(|n| by_name.get(n.as_str()));
        let placed = below(context.mounts.root, &device.path).and_then(|path| by_path.get(path));
        let users = named.into_iter().chain(placed).flatten();
        device.users.extend(users.map(|pod| (*pod).clone()));
    }
}

/// `places`: the devices' paths.
fn users_by_table(mounts: &Mounts<'_>, devices: &mut [ActualDevice], places: &HashMap<OsString, usize>) {
    let mut roots: HashMap<Device, HashMap<&OsStr, Vec<usize>>> = HashMap::new();
    for (index, device) in devices.iter().enumerate() {
        if let Some(top) = mounts.stack(&device.path).last() {
            roots.entry(top.device()).or_default().entry(top.root().as_os_str()).or_default().push(index);
        }
    }
    if !roots.is_empty() {
        let pods = mounts.root.join(layout::PODS);
        for mount in mounts.table.iter() {
            let Some(roots) = roots.get(&mount.device()) else { continue };
            let Some(users) = mount.root().ancestors().find_map(|root| roots.get(root.as_os_str())) else { continue };
            match reference(mounts, mount, &pods, &|point| places.contains_key(point.as_os_str())) {
                Reference::None => {}
                Reference::Pod(pod) => {
                    for i in users {
                        devices[*i].users.push(pod.clone());
                    }
                }
                Reference::Other => {
                    for i in users {
                        devices[*i].other_references.push(mount.point().to_path_buf());
                    }
                }
            }
        }
    }
    for device in devices {
        device.users.sort_unstable();
        device.users.dedup();
        device.other_references.sort_unstable();
        device.other_references.dedup();
    }
}

/// Whose mount it is.
enum Reference {
    /// Nobody's that counts: a global path, or a mirror of something below the root.
    None,
    Pod(PodUid),
    Other,
}

fn reference(mounts: &Mounts<'_>, mount: Mount<'_>, pods: &Path, is_global: &dyn Fn(&Path) -> bool) -> Reference {
    let point = mount.point();
    if is_global(point) {
        return Reference::None;
    }
    let uid = |point: &Path| {
        let first = below(pods, point)?.split(|&b| b == b'/').next()?;
        PodUid::new(std::str::from_utf8(first).ok()?).ok()
    };
    if let Some(pod) = uid(point) {
        return Reference::Pod(pod);
    }
    if mounts.mirrored(mount).is_some() {
        // What it mirrors is counted at its own path.
        return Reference::None;
    }
    Reference::Other
}

/// The mount points that show the file system at this global path, or a part of it, besides the global path itself:
/// what is asked once more right before a device is unmounted.
pub(crate) fn references(table: &MountTable, root: &Path, path: &Path) -> Vec<PathBuf> {
    let mounts = Mounts::new(table, root);
    let stack = mounts.stack(path);
    let Some(top) = stack.last() else { return vec![] };
    let pods = root.join(layout::PODS);
    let mut found: Vec<PathBuf> = table
        .of_device(top.device())
        .into_iter()
        .filter(|m| m.root().starts_with(top.root()) && m.point() != path)
        .filter(|m| !matches!(reference(&mounts, *m, &pods, &|point| is_global(root, point)), Reference::None))
        .map(|m| m.point().to_path_buf())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn is_global(root: &Path, point: &Path) -> bool {
    point.strip_prefix(root).is_ok_and(|rel| global(rel).is_some())
}
