//! subPath mounts: a part of a volume, bound where a container's runtime finds it.
//!
//! The source is opened by descriptors beneath the volume's root: the kernel resolves the path and refuses to leave it,
//! so a symlink that a container plants, also one swapped in between two steps, cannot lead out. A symlink that stays
//! inside is followed, since every file of a configMap or secret volume is one. What was opened is what is bound.
//!
//! Undoing asks the mount table and the folders, not only the record: a subPath mount is found also where the volume
//! has no folder (hostPath), where its source was deleted, and where no record is left.
//!
//! # Source
//! `pkg/volume/util/subpath/subpath_linux.go`, `makeMounts` of `pkg/kubelet/kubelet_pods.go` of Kubernetes v1.36.

mod source;
use std::os::fd::AsFd;
use std::path::Path;

use refloat_mount::{BindOptions, Dir, EntryKind, NewMount};
use refloat_record::{PodUid, PodVolume, RecordedMount, RecordedSubPath, RelPath, SpecName};

use crate::plugin::recorded;
use crate::tear_down::{is_own, origin_of, other_mount};
use crate::{Host, Problem, SpecError, SubPathSpec, VolumeError, layout};

/// Mode of a target that is a folder, and of the folders above it.
const DIR_MODE: u32 = 0o750;
/// Mode of a target that is a file.
const FILE_MODE: u32 = 0o640;

/// The record entries for these subPaths, without mounts.
pub fn plan(
    pod: &PodUid,
    spec: &SpecName,
    sub_paths: &[SubPathSpec],
) -> Result<Vec<RecordedSubPath>, crate::SpecError> {
    sub_paths
        .iter()
        .map(|sub_path| {
            if let Some(why) = wrong_sub_path(&sub_path.sub_path) {
                return Err(SpecError::Field {
                    volume: spec.to_string(),
                    field: format!("containers[{}].volumeMounts[{}].subPath", sub_path.container, sub_path.index),
                    why,
                });
            }
            Ok(RecordedSubPath {
                container: sub_path.container.clone(),
                index: sub_path.index,
                sub_path: sub_path.sub_path.clone(),
                path: target_path(pod, spec, sub_path)?,
                mount: None,
            })
        })
        .collect()
}

fn target_path(pod: &PodUid, spec: &SpecName, sub_path: &SubPathSpec) -> Result<RelPath, SpecError> {
    let name = |source| SpecError::Name { volume: spec.to_string(), source };
    // One element: a slash in it would be another folder.
    refloat_record::OuterSpecName::new(&sub_path.container).map_err(name)?;
    layout::sub_path(pod, spec, &sub_path.container, sub_path.index).map_err(name)
}

/// # Source
/// `validateLocalNonReservedPath`/`validateLocalDescendingPath` of Kubernetes: relative, no `..`.
fn wrong_sub_path(path: &str) -> Option<String> {
    if path.is_empty() {
        Some("is empty".into())
    } else if path.starts_with('/') {
        Some(format!("is {path:?}; it must be relative"))
    } else if path.split('/').any(|part| part == "..") {
        Some(format!("is {path:?}; \"..\" is not allowed in it"))
    } else if path.contains('\0') {
        Some("holds a NUL byte".into())
    } else if path.split('/').any(|part| part.len() > 255) || path.len() > 4095 {
        Some("is too long for a path".into())
    } else {
        None
    }
}

/// What is about to be mounted.
struct New {
    mount: NewMount,
    target: RelPath,
    is_dir: bool,
}

/// Makes the subPath mounts that are missing. `announce` makes the record durable with what is about to be mounted
/// and is called once, before the first one is attached; not at all if none is missing. It gets one entry for each of
/// `sub_paths`, in order: also for those that are mounted already.
pub fn set_up(
    host: &Host,
    record: &PodVolume,
    sub_paths: &[SubPathSpec],
    announce: &mut dyn FnMut(Vec<Option<RecordedMount>>) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    if sub_paths.is_empty() {
        return Ok(());
    }
    let planned = plan(&record.pod.uid, &record.spec_name, sub_paths).map_err(|error| {
        VolumeError::Refused(Problem::new("BadSpec", error.to_string(), "correct the pod's volumeMounts"))
    })?;
    let table = host.mount_table().map_err(VolumeError::Table)?;
    let known = |entry: &RecordedSubPath| {
        let same = |r: &&RecordedSubPath| r.path == entry.path && r.sub_path == entry.sub_path;
        let mount = record.sub_paths.iter().find(same).and_then(|r| r.mount.as_ref());
        host.announced_mount(mount, &record.boot_id)
    };
    let mut mounts: Vec<Option<RecordedMount>> = vec![];
    let mut new: Vec<New> = vec![];
    let mut root: Option<Dir> = None;
    let mut adopted = false;
    let mut again: Vec<(&RelPath, BindOptions)> = vec![];
    for (entry, sub_path) in planned.iter().zip(sub_paths) {
        let absolute = host.absolute(&entry.path);
        let found = table.at(&absolute);
        if let Some((found, known)) = found.zip(known(entry))
            && known.id.is_some()
            && found.id().map(|id| id.0) == known.id
        {
            mounts.push(Some(known));
            continue;
        }
        let root = match &root {
            Some(root) => root,
            None => root.insert(source::open_root(host, record, &table)?),
        };
        let create = !record.read_only && !source::is_written_by_us(&record.plugin);
        let opened = source::open(root, &entry.sub_path, create)?;
        let options = BindOptions { read_only: record.read_only || sub_path.read_only, ..BindOptions::default() };
        let mount =
            NewMount::bind(host.kernel, opened.fd.as_fd(), &opened.shown, &options).map_err(VolumeError::Mount)?;
        let announced = recorded(&mount);
        match found {
            None => {
                mounts.push(Some(announced));
                new.push(New { mount, target: entry.path.clone(), is_dir: opened.is_dir });
            }
            // The same part of the same file system is mounted there: by us, before a crash or a lost record.
            Some(found) if is_own(found, &RecordedMount { id: None, ..announced.clone() }) => {
                let origin = origin_of(found);
                adopted |= known(entry).is_none_or(|k| k.id.is_none() && origin.id.is_some());
                mounts.push(Some(origin));
                again.push((&entry.path, options));
            }
            Some(found) => return Err(VolumeError::Refused(other_mount(&absolute, found))),
        }
    }
    if !new.is_empty() || adopted {
        announce(mounts)?;
    }
    for (path, options) in again {
        crate::set_options_again(host, path, &options)?;
    }
    for New { mount, target, is_dir } in new {
        let target = make_target(host, &target, is_dir)?;
        mount.attach(&target).map_err(VolumeError::Mount)?;
    }
    Ok(())
}

fn make_target(host: &Host, target: &RelPath, is_dir: bool) -> Result<Dir, VolumeError> {
    let parent = target.as_path().parent().expect("below volume-subpaths");
    host.root.make_dirs(parent, DIR_MODE).map_err(VolumeError::Path)?;
    // A target of the other kind is left from a source that was of the other kind then.
    let name = target.as_path().file_name();
    let entries = host.root.list(parent).map_err(VolumeError::Path)?.unwrap_or_default();
    match entries.iter().find(|e| Some(e.name.as_os_str()) == name).map(|e| e.kind) {
        Some(EntryKind::Dir) if !is_dir => crate::remove_volume_dir(host, target, false)?,
        Some(EntryKind::File) if is_dir => host.root.remove_file(target.as_path()).map_err(VolumeError::Remove)?,
        _ => {}
    }
    if is_dir {
        host.root.make_dirs(target.as_path(), DIR_MODE).map_err(VolumeError::Path)
    } else {
        host.root.make_file(target.as_path(), FILE_MODE).map_err(VolumeError::Path)
    }
}

/// Undoes every subPath mount of the volume: those of the record, and those that the table or the folders show
/// for its spec name. Removes the empty folders upwards.
///
/// # Safety of the node
/// Everything below `volume-subpaths/<spec>` is made by a volume manager, so each mount there is taken off, each layer,
/// and believed gone only when the table agrees. Targets are removed by rmdir and unlink of empty files alone: the
/// source's data is never touched, and a file with content stays and is reported.
pub fn tear_down(host: &Host, record: &PodVolume) -> Result<(), VolumeError> {
    let pod = layout::pod_path(&record.pod.uid);
    let all = pod
        .join(layout::VOLUME_SUBPATHS)
        .and_then(|p| p.join(record.spec_name.as_str()))
        .map_err(|error| VolumeError::Refused(Problem::new("BadName", error.to_string(), "correct the record")))?;
    for entry in &record.sub_paths {
        // A record edited by hand must not lead an unmount elsewhere.
        if !entry.path.as_path().starts_with(all.as_path()) {
            return Err(VolumeError::Refused(Problem::new(
                "BadRecord",
                format!("the record's subPath target {} is not below {all}", entry.path),
                "the record was changed by hand; correct it, see `refloat record show`",
            )));
        }
    }
    tear_down_of(host, &record.pod.uid, &record.spec_name)
}

/// As [`tear_down`], for subPaths of which nothing but the pod and the spec name is known.
pub fn tear_down_of(host: &Host, pod: &PodUid, spec: &SpecName) -> Result<(), VolumeError> {
    let pod = layout::pod_path(pod);
    let all = pod
        .join(layout::VOLUME_SUBPATHS)
        .and_then(|p| p.join(spec.as_str()))
        .map_err(|error| VolumeError::Refused(Problem::new("BadName", error.to_string(), "correct the record")))?;
    crate::unmount_nested(host, &all)?;
    let table = host.mount_table_at(&host.absolute(&all)).map_err(VolumeError::Table)?;
    if let Some(over) = table.at(&host.absolute(&all)) {
        return Err(VolumeError::Refused(other_mount(&host.absolute(&all), over)));
    }
    for container in host.root.list(all.as_path()).map_err(VolumeError::Path)?.unwrap_or_default() {
        let folder = all.as_path().join(&container.name);
        if container.kind != EntryKind::Dir {
            return Err(kept(&host.root.path().join(folder), "is no folder of a container"));
        }
        for target in host.root.list(&folder).map_err(VolumeError::Path)?.unwrap_or_default() {
            remove_target(host, &folder.join(&target.name), target.kind)?;
        }
        host.root.remove_dir(&folder).map_err(VolumeError::Remove)?;
    }
    host.root.remove_empty_dirs_up(all.as_path(), pod.as_path()).map_err(VolumeError::Remove)
}

fn remove_target(host: &Host, rel: &Path, kind: EntryKind) -> Result<(), VolumeError> {
    let absolute = host.root.path().join(rel);
    match kind {
        EntryKind::Dir => match host.root.remove_dir(rel) {
            Ok(true) => Ok(()),
            Ok(false) | Err(refloat_mount::RemoveError::NotEmpty { .. }) => Err(kept(&absolute, "is not empty")),
            Err(error) => Err(VolumeError::Remove(error)),
        },
        EntryKind::File => match source::file_size(host, rel)? {
            None => Ok(()),
            Some(0) => host.root.remove_file(rel).map_err(VolumeError::Remove),
            Some(_) => Err(kept(&absolute, "is not empty")),
        },
        _ => Err(kept(&absolute, "is neither a folder nor a file")),
    }
}

fn kept(path: &Path, why: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "DataKept",
        format!("{} stands where a subPath was mounted, and {why}", path.display()),
        "look at it; move it away or delete it by hand, then the folders are removed",
    ))
}
