//! Sockets of drivers that nobody listens on any more: a driver that was killed or removed leaves its own behind.
//!
//! # Source
//! `pkg/kubelet/pluginmanager` of Kubernetes v1.36: any socket below `plugins_registry/` is tried. `plugins/<driver>/csi.sock` is the
//! custom of CSI drivers.

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use refloat_mount::{EntryKind, NodeRoot};

use super::drivers::answers;

/// How deep below the folder of registrations sockets are looked for.
const DEPTH: usize = 3;
/// How many folders and sockets are looked at. A node has tens of drivers.
const MAX: usize = 1000;

/// Those sockets, relative to the root, sorted. Nothing is said to whoever listens; a full queue is a listener too.
pub(super) fn look(root: &NodeRoot) -> Vec<PathBuf> {
    let mut seen = vec![];
    below(root, Path::new("plugins_registry"), DEPTH, &mut seen);
    // `kubernetes.io` has no driver of its own.
    below(root, Path::new("plugins"), 1, &mut seen);
    seen.retain(|path| {
        // By a path that leads to this very socket: through no symlink, and into no mount.
        let fd = root.open_mounted(path).ok().flatten();
        fd.is_some_and(|fd| !answers(Path::new(&format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))))
    });
    seen.sort_unstable();
    seen
}

fn below(root: &NodeRoot, folder: &Path, depth: usize, seen: &mut Vec<PathBuf>) {
    let entries = root.list(folder).ok().flatten().unwrap_or_default();
    for entry in entries.into_iter().take(MAX) {
        let path = folder.join(&entry.name);
        match entry.kind {
            EntryKind::Socket if seen.len() < MAX => seen.push(path),
            EntryKind::Dir if depth > 0 && path != Path::new("plugins/kubernetes.io") => {
                below(root, &path, depth - 1, seen);
            }
            _ => {}
        }
    }
}
