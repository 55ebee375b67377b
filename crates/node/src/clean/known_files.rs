//! Files in a pod's folder that its kubelet or volume manager is known to have written.
//!
//! # Source
//! `makePodDataDirs`, `ensureHostsFile` of `pkg/kubelet/kubelet_pods.go`: `etc-hosts` begins with a fixed line;
//! `containers/<name>/<id>` is made empty for the container's termination message. `doBindSubPath` of
//! `pkg/volume/util/subpath`: an empty file where a file is to be mounted.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use refloat_mount::{Dir, EntryKind, NodeRoot, PathError};
use refloat_record::PodUid;
use refloat_volume::layout;
use rustix::fs::OFlags;

use crate::evidence::open_beneath;

/// How the kubelet's `etc-hosts` begins, in both of its forms.
const HOSTS: &[u8] = b"# Kubernetes-managed hosts file";

/// A file that may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// Relative to the node root.
    pub(crate) path: PathBuf,
    /// Whether it is known by being empty, so that it may go only as long as it is.
    pub(crate) empty: bool,
}

/// Those of this pod. Nothing below a mount point is looked at.
pub(crate) fn of_pod(root: &NodeRoot, pod: &PodUid) -> Result<Vec<Known>, PathError> {
    let folder = layout::pod_path(pod);
    let mut found = vec![];
    let Some(dir) = root.open_dir(folder.as_path())? else { return Ok(found) };
    if begins_with(&dir, "etc-hosts", HOSTS) {
        found.push(Known { path: folder.as_path().join("etc-hosts"), empty: false });
    }
    for depth in [("containers", 1), (layout::VOLUME_SUBPATHS, 2)] {
        let (name, levels) = depth;
        empty_files(&dir, folder.as_path(), Path::new(name), levels, &mut found);
    }
    Ok(found)
}

/// Whether this path, relative to a pod's folder, is where such files are.
pub(crate) fn is_place(parts: &[&OsStr]) -> bool {
    match parts {
        [name] => *name == "etc-hosts",
        [first, _, _] => *first == "containers",
        [first, _, _, _] => *first == layout::VOLUME_SUBPATHS,
        _ => false,
    }
}

/// The empty files that are so many levels below this folder.
fn empty_files(dir: &Dir, pod: &Path, rel: &Path, levels: usize, found: &mut Vec<Known>) {
    let Ok(Some(folder)) = dir.open_dir(rel) else { return };
    for entry in folder.entries().unwrap_or_default() {
        let child = rel.join(&entry.name);
        match entry.kind {
            EntryKind::Dir if levels > 0 => empty_files(dir, pod, &child, levels - 1, found),
            EntryKind::File if levels == 0 && size(&folder, &entry.name) == Some(0) => {
                found.push(Known { path: pod.join(child), empty: true });
            }
            _ => {}
        }
    }
}

/// The size of a file, if it is none that is mounted there.
pub(super) fn size(dir: &Dir, name: &OsStr) -> Option<u64> {
    let fd = open(dir, name, OFlags::PATH)?;
    rustix::fs::fstat(&fd).ok()?.st_size.try_into().ok()
}

fn begins_with(dir: &Dir, name: &str, text: &[u8]) -> bool {
    let is_file = || dir.entries().ok()?.into_iter().find(|e| e.name == name).map(|e| e.kind == EntryKind::File);
    if is_file() != Some(true) {
        return false;
    }
    let Some(fd) = open(dir, name.as_ref(), OFlags::RDONLY | OFlags::NONBLOCK) else { return false };
    let mut buffer = vec![0; text.len()];
    matches!(rustix::io::read(&fd, &mut buffer), Ok(count) if buffer.get(..count) == Some(text))
}

fn open(dir: &Dir, name: &OsStr, flags: OFlags) -> Option<rustix::fd::OwnedFd> {
    open_beneath(dir, &CString::new(name.as_bytes()).ok()?, flags | OFlags::NOFOLLOW).ok()
}
