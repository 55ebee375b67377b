//! `ForgetPod`: leftover mounts in the folder of a pod that is gone, its loop devices, its empty folders and markers, and its
//! checkpoint last. Files stay.

use std::path::Path;

use refloat_mount::{EntryKind, RemoveError};
use refloat_record::{PodUid, RecordKey, SpecName};
use refloat_volume::{VolumeError, block, layout, sub_path, unmount_nested};

use super::{Executor, Journal, Success};

/// How deep a pod's folder is searched for empty folders. The kubelet's own are four deep.
const DEPTH: usize = 16;

pub(super) fn run(executor: &Executor, journal: &Journal<'_>, pod: &PodUid) -> Result<Success, VolumeError> {
    let path = layout::pod_path(pod);
    unmount_nested(&executor.host, &path)?;
    executor.check_unmounted(&path)?;
    sub_path_targets(executor, pod)?;
    block::detach_left(&executor.host, pod)?;
    remove_empty(executor, path.as_path(), 0)?;
    journal.remove(RecordKey::PodCheckpoint(pod.clone()))?;
    Ok(Success::Done)
}

/// Removes the folder if nothing but empty folders and markers is in it.
pub(super) fn remove_empty(executor: &Executor, rel: &Path, depth: usize) -> Result<(), VolumeError> {
    let root = &executor.host.root;
    let Some(entries) = root.list(rel).map_err(VolumeError::Path)? else { return Ok(()) };
    for entry in &entries {
        let child = rel.join(&entry.name);
        if entry.kind == EntryKind::Dir && depth < DEPTH {
            remove_empty(executor, &child, depth + 1)?;
        } else if entry.kind == EntryKind::File && is_marker(&child) {
            root.remove_file(&child).map_err(VolumeError::Remove)?;
        } else if entry.kind == EntryKind::Symlink && is_temporary_link(&child) {
            root.remove_symlink(&child).map_err(VolumeError::Remove)?;
        }
    }
    match root.remove_dir(rel) {
        Ok(_) | Err(RemoveError::NotEmpty { .. }) => Ok(()),
        Err(error) => Err(VolumeError::Remove(error)),
    }
}

/// Removes what subPaths were mounted on: folders, and the empty files of those that were files.
fn sub_path_targets(executor: &Executor, pod: &PodUid) -> Result<(), VolumeError> {
    let host = &executor.host;
    let Ok(folder) = layout::pod_path(pod).join(layout::VOLUME_SUBPATHS) else { return Ok(()) };
    for entry in host.root.list(folder.as_path()).map_err(VolumeError::Path)?.unwrap_or_default() {
        if let Some(Ok(spec)) = entry.name.to_str().map(SpecName::new) {
            sub_path::tear_down_of(host, pod, &spec)?;
        }
    }
    Ok(())
}

/// `pods/<uid>/plugins/kubernetes.io~empty-dir/<name>/ready`.
fn is_marker(rel: &Path) -> bool {
    let parts: Vec<&[u8]> = rel.iter().map(std::os::unix::ffi::OsStrExt::as_bytes).collect();
    matches!(parts.as_slice(), [b"pods", _, b"plugins", b"kubernetes.io~empty-dir", _, b"ready"])
}

/// `pods/<uid>/volumeDevices/<plugin>/.refloat-…`: a symlink that was about to replace a block volume's.
fn is_temporary_link(rel: &Path) -> bool {
    let parts: Vec<&[u8]> = rel.iter().map(std::os::unix::ffi::OsStrExt::as_bytes).collect();
    matches!(parts.as_slice(), [b"pods", _, b"volumeDevices", _, name] if name.starts_with(block::TEMPORARY.as_bytes()))
}
