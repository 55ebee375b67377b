//! What lies in the folders of pods that may be gone. Nothing at or below a mount point is opened.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use refloat_mount::{Dir, EntryKind, NodeRoot, PathError};
use refloat_record::PodUid;
use refloat_volume::{holds_only_payload, layout};

use super::known_files;
use crate::evidence::is_volume;

/// How long one folder's content is counted. What is larger is told as at least so much.
const PATIENCE: Duration = Duration::from_secs(2);

/// How deep. What is deeper was made to hurt.
const DEPTH: usize = 256;

/// How many files of one pod's folder are named.
const NAMED: usize = 32;

/// What kind of content it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Nothing.
    Empty,
    /// Only what an atomic writer made of a configMap, secret or the like.
    Payload,
    /// Anything else, also a folder.
    Data,
}

/// A folder's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents {
    /// What it is.
    pub what: What,
    /// Files, folders and all else.
    pub entries: u64,
    /// The sizes of its files, in bytes.
    pub bytes: u64,
    /// Whether all was counted.
    pub complete: bool,
}

/// Counts what is in this folder, relative to the root. `None` if it is not there, or is a mount point or no folder.
pub(crate) fn of_folder(root: &NodeRoot, rel: &Path) -> Option<Contents> {
    let dir = root.open_dir(rel).ok()??;
    let mut all = Contents { what: What::Empty, entries: 0, bytes: 0, complete: true };
    let end = Instant::now() + PATIENCE;
    count(&dir, &mut all, end, DEPTH);
    if all.entries > 0 || !all.complete {
        let payload = holds_only_payload(dir.as_fd(), dir.path()).unwrap_or(false);
        all.what = if payload { What::Payload } else { What::Data };
    }
    Some(all)
}

fn count(dir: &Dir, all: &mut Contents, end: Instant, depth: usize) {
    let Ok(entries) = dir.entries() else {
        all.complete = false;
        return;
    };
    for entry in entries {
        if Instant::now() > end {
            all.complete = false;
            return;
        }
        all.entries += 1;
        match entry.kind {
            EntryKind::Dir if depth > 0 => {
                // A mount point is an entry like any other; what is in it is not.
                if let Ok(Some(child)) = dir.open_dir(Path::new(&entry.name)) {
                    count(&child, all, end, depth - 1);
                }
            }
            EntryKind::Dir => all.complete = false,
            EntryKind::File => all.bytes += known_files::size(dir, &entry.name).unwrap_or(0),
            _ => {}
        }
    }
}

/// A file in a pod's folder, outside its volumes' own folders, that nobody is known to have written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// Relative to the root.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The files of a pod's folder that are nobody's: not in a volume's folder, and not known ([`known_files::of_pod`]).
pub(crate) fn of_pod(root: &NodeRoot, pod: &PodUid, known: &[PathBuf]) -> Result<Vec<Stray>, PathError> {
    let folder = layout::pod_path(pod);
    let mut found = vec![];
    let Some(dir) = root.open_dir(folder.as_path())? else { return Ok(found) };
    strays(&dir, folder.as_path(), Path::new(""), known, &mut found, 16);
    Ok(found)
}

fn strays(dir: &Dir, pod: &Path, rel: &Path, known: &[PathBuf], found: &mut Vec<Stray>, depth: usize) {
    for entry in dir.entries().unwrap_or_default() {
        if found.len() >= NAMED {
            return;
        }
        let child = rel.join(&entry.name);
        let parts: Vec<&OsStr> = child.iter().collect();
        let is = |part: usize, name: &str| parts.get(part).is_some_and(|p| *p == name);
        // Volumes are judged on their own.
        let names: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        if is_volume(&names, entry.kind == EntryKind::Dir) {
            continue;
        }
        if parts.len() == 4 && is(0, layout::PLUGINS) && is(1, "kubernetes.io~empty-dir") && is(3, "ready") {
            continue;
        }
        match entry.kind {
            EntryKind::Dir if depth > 0 => {
                if let Ok(Some(folder)) = dir.open_dir(Path::new(&entry.name)) {
                    strays(&folder, pod, &child, known, found, depth - 1);
                }
            }
            _ => {
                let path = pod.join(&child);
                if !(known_files::is_place(&parts) && known.contains(&path)) {
                    found.push(Stray { path, bytes: known_files::size(dir, &entry.name).unwrap_or(0) });
                }
            }
        }
    }
}
