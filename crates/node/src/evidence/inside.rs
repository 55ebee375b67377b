//! Looks into folders where nothing is mounted, and only where the answer matters.
//!
//! A volume whose record says that it is a plain folder needs no look inside. A folder without a record is told
//! empty from full, since files that nobody's record knows are kept; so is the folder of a recorded mount that is
//! not there, since mounting over files would hide them.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use refloat_mount::{MountTable, NodeRoot};
use refloat_record::{PodUid, PodVolume, Record, VolumeMode};
use refloat_volume::plugins::csi::{TEMPORARY_VOL_DATA, look_for_vol_data};
use refloat_volume::{ForeignFile, layout};
use rustix::fs::{FileType, OFlags};

use super::walk::{Entry, Lister, is_volume, open};
use super::{PodTree, VolumeFolder};

/// How deep a gone pod's folder is searched for files. The kubelet's own folders are four deep.
const DEPTH: usize = 16;

/// The records of one pod's volumes, in a list that is sorted by key as a store's is (devices, volumes by pod,
/// checkpoints).
pub(super) fn volumes_of<'r>(records: &'r [Record], pod: &PodUid) -> &'r [Record] {
    let before = |record: &Record, or_same: bool| match record {
        Record::DeviceMount(_) => true,
        Record::PodVolume(volume) => volume.pod.uid < *pod || (or_same && volume.pod.uid == *pod),
        Record::PodCheckpoint(_) | Record::Driver(_) => false,
    };
    let from = records.partition_point(|r| before(r, false));
    let to = records.partition_point(|r| before(r, true));
    &records[from..to]
}

/// From this many pods on, two threads look: a thread costs about as much as looking at some ten.
const SPLIT: usize = 128;

/// Fills `empty` of the volume folders and `files` of the pods, where it matters.
pub(super) fn look(root: &NodeRoot, pods: &mut [PodTree], records: &[Record], table: &MountTable) {
    if pods.len() < SPLIT {
        return look_at(root, pods, records, table);
    }
    let (left, right) = pods.split_at_mut(pods.len() / 2);
    std::thread::scope(|scope| {
        scope.spawn(|| look_at(root, right, records, table));
        look_at(root, left, records, table);
    });
}

fn look_at(root: &NodeRoot, pods: &mut [PodTree], records: &[Record], table: &MountTable) {
    let mut lister = Lister::new();
    for pod in pods {
        let of_pod = pod.uid.as_ref().map_or(&[][..], |uid| volumes_of(records, uid));
        for folder in pod.volumes.iter_mut().filter(|f| f.is_dir) {
            let rel = pod.path.join(layout::VOLUMES).join(&folder.plugin).join(&folder.name);
            if folder.plugin == layout::CSI_FOLDER {
                csi(root, folder, &rel, record_of(of_pod, &folder.plugin, &folder.name), table);
                continue;
            }
            if record_of(of_pod, &folder.plugin, &folder.name).is_some_and(|record| record.mount.is_none()) {
                continue;
            }
            if table.at(&root.path().join(&rel)).is_none() {
                folder.empty = root.list(&rel).ok().flatten().map(|entries| entries.is_empty());
            }
        }
        super::block::read_links(root, pod);
        // Only of a pod without volumes is it asked whether anything is left.
        if of_pod.is_empty() && pod.volumes.is_empty() && pod.volume_devices.is_empty() {
            pod.files = has_files(root, &mut lister, pod);
        }
    }
}

/// The record of a volume, of one pod's records, which are sorted by key.
fn record_of<'r>(of_pod: &'r [Record], plugin: &str, name: &str) -> Option<&'r PodVolume> {
    let unescaped = |byte: u8| if byte == b'~' { b'/' } else { byte };
    let found = of_pod.binary_search_by(|record| match record {
        Record::PodVolume(volume) => volume
            .plugin
            .as_str()
            .bytes()
            .cmp(plugin.bytes().map(unescaped))
            .then_with(|| volume.spec_name.as_str().cmp(name))
            .then_with(|| volume.mode.cmp(&VolumeMode::Filesystem)),
        Record::DeviceMount(_) | Record::PodCheckpoint(_) | Record::Driver(_) => std::cmp::Ordering::Less,
    });
    match &of_pod[found.ok()?] {
        Record::PodVolume(volume) => Some(volume),
        Record::DeviceMount(_) | Record::PodCheckpoint(_) | Record::Driver(_) => None,
    }
}

/// Looks into a CSI volume's folder, unless what its driver confirmed is there. The mount itself is not looked into.
fn csi(root: &NodeRoot, folder: &mut VolumeFolder, rel: &Path, record: Option<&PodVolume>, table: &MountTable) {
    let mount = rel.join(layout::CSI_MOUNT);
    let absolute = root.path().join(&mount);
    let mounted = table.at(&absolute).is_some();
    if record.is_some_and(|record| record.confirmed && mounted == record.mount.is_some()) {
        return;
    }
    let Ok(Some(dir)) = root.open_dir(rel) else { return };
    if record.is_none() {
        folder.foreign = look_for_vol_data(&dir, Path::new(""));
    }
    let Ok(entries) = dir.entries() else { return };
    let known = [layout::CSI_MOUNT, layout::VOL_DATA, TEMPORARY_VOL_DATA];
    let nobodys = entries.iter().any(|entry| entry.name.to_str().is_none_or(|name| !known.contains(&name)));
    // Those of a driver that mounts nothing are its own; what lies beside a mount deeper down is not told from it.
    let own = record.is_some_and(|record| record.confirmed && record.mount.is_none());
    if mounted || own || table.under(&absolute).next().is_some() {
        folder.empty = nobodys.then_some(false);
        return;
    }
    let inside = root.list(&mount).ok().flatten().is_some_and(|entries| !entries.is_empty());
    folder.empty = Some(!nobodys && !inside);
}

/// The kubelet's files beside staged CSI volumes that no record is of.
pub(super) fn beside_stages(root: &NodeRoot, folders: &[PathBuf], records: &[Record]) -> HashMap<PathBuf, ForeignFile> {
    let recorded: HashSet<&Path> = records
        .iter()
        .filter_map(|record| match record {
            Record::DeviceMount(device) => Some(device.device_mount_path.as_path()),
            Record::PodVolume(_) | Record::PodCheckpoint(_) | Record::Driver(_) => None,
        })
        .collect();
    let csi = Path::new(layout::PLUGINS).join(layout::CSI);
    let stages = folders.iter().filter(|f| f.starts_with(&csi) && !recorded.contains(f.as_path()));
    let of_stages = stages.filter_map(|stage| layout::csi_data_folder(stage));
    // Drivers that stage nothing have block volumes too.
    let block = Path::new(layout::CSI_BLOCK);
    let named: HashSet<&str> = records
        .iter()
        .filter_map(|record| match record {
            Record::PodVolume(volume) if volume.mode == VolumeMode::Block => Some(volume.spec_name.as_str()),
            _ => None,
        })
        .collect();
    let volumes = root.list(block).ok().flatten().unwrap_or_default().into_iter();
    let unnamed = volumes.filter(|entry| entry.name.to_str().is_none_or(|name| !named.contains(name)));
    let top = Path::new(layout::PLUGINS);
    let Ok(Some(dir)) = root.open_dir(top) else { return HashMap::new() };
    of_stages
        .chain(unnamed.map(|entry| block.join(entry.name).join("data")))
        .filter_map(|folder| {
            let foreign = look_for_vol_data(&dir, folder.strip_prefix(top).ok()?)?;
            Some((folder, foreign))
        })
        .collect()
}

/// Whether any file that is no marker lies in the pod's folder outside its volumes.
fn has_files(root: &NodeRoot, lister: &mut Lister, pod: &PodTree) -> Option<bool> {
    let dir = root.open_dir(&pod.path).ok().flatten()?;
    let entries = lister.entries(&dir).ok()?;
    Some(any_file(lister, &dir, &entries, Path::new(""), DEPTH))
}

fn any_file(lister: &mut Lister, dir: impl AsFd, entries: &[Entry], path: &Path, depth: usize) -> bool {
    for entry in entries {
        let path = path.join(entry.path());
        let parts: Vec<&[u8]> = path.iter().map(OsStrExt::as_bytes).collect();
        match parts.as_slice() {
            [b"volume-subpaths", _, _, _] | [b"plugins", b"kubernetes.io~empty-dir", _, b"ready"] => continue,
            parts if is_volume(parts, entry.kind == FileType::Directory) => continue,
            _ => {}
        }
        let name = CString::from(entry.name.as_c_str());
        if !matches!(entry.kind, FileType::Directory | FileType::Unknown) {
            return true;
        }
        let Ok(child) = open(&dir, &name, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
        let Ok(entries) = lister.entries(&child) else { continue };
        if depth == 0 || any_file(lister, &child, &entries, &path, depth - 1) {
            return true;
        }
    }
    false
}
