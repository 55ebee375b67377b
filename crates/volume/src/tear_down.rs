//! What every TearDown is made of.
//!
//! Undoing is believed when the mount table agrees: each step reads the table, takes off one mount, and reads it
//! again. Nothing here decides by a stat of the path, which a dead file system would not answer and a deleted bind
//! source would answer wrongly.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use refloat_mount::{Mount, MountTable, RemoveError, UniqueMountId, UnmountError, UnmountHow};
use refloat_record::{RecordedMount, RelPath};

use crate::{Host, Problem, VolumeError};

/// Takes off the layers at `path` that are the record's own (its id, or the same type, source and root), topmost first,
/// looking at the table after each, until none is left. A layer of another origin on top is refused: neither it nor
/// what lies under it is touched. `expected` is none for a mount that is known only from the table (each layer
/// of the topmost one's origin is taken off then).
pub fn unmount_own_layers(host: &Host, path: &RelPath, expected: Option<&RecordedMount>) -> Result<(), VolumeError> {
    let absolute = host.absolute(path);
    let mut origin: Option<RecordedMount> = None;
    loop {
        let table = host.mount_table_at(&absolute).map_err(VolumeError::Table)?;
        let Some(top) = table.at(&absolute) else { return Ok(()) };
        let own = match expected {
            Some(expected) => is_own(top, expected),
            None => is_own(top, origin.get_or_insert_with(|| origin_of(top))),
        };
        if !own {
            return Err(VolumeError::Refused(other_mount(&absolute, top)));
        }
        unmount_top(host, path.as_path(), top)?;
    }
}

/// Unmounts what was mounted inside a plain folder by somebody else (deepest first, each layer). Their data is theirs:
/// it is never deleted.
pub fn unmount_nested(host: &Host, path: &RelPath) -> Result<(), VolumeError> {
    let absolute = host.absolute(path);
    loop {
        let table = host.mount_table_at(&absolute).map_err(VolumeError::Table)?;
        let nested: Vec<Mount<'_>> = table.under(&absolute).collect();
        let Some(next) = next_to_unmount(&table, &nested) else {
            return match nested.last() {
                None => Ok(()),
                // Each of them is hidden by a mount above `path`, so no path leads to it.
                Some(hidden) => Err(VolumeError::Refused(Problem::new(
                    "HiddenMount",
                    format!("{} is mounted, but another mount hides it", hidden.point().display()),
                    "unmount what was mounted over it, see findmnt",
                ))),
            };
        };
        let rel = relative(host, next.point())?;
        unmount_top(host, &rel, next)?;
    }
}

/// Removes the volume's folder: with everything in it if `content` is the pod's own, else only if it is empty.
pub fn remove_volume_dir(host: &Host, path: &RelPath, content: bool) -> Result<(), VolumeError> {
    if content {
        let table = host.mount_table_at(&host.absolute(path)).map_err(VolumeError::Table)?;
        return host.root.remove_tree(path.as_path(), &table).map_err(VolumeError::Remove);
    }
    match host.root.remove_dir(path.as_path()) {
        Ok(true) => Ok(()),
        Ok(false) | Err(RemoveError::NotEmpty { .. }) => {
            let absolute = host.absolute(path);
            Err(VolumeError::Refused(Problem::new(
                "DataKept",
                format!("{} is not empty, and nothing says that its content may be deleted", absolute.display()),
                "look at what is in it; move it away or delete it by hand, then the folder is removed",
            )))
        }
        Err(error) => Err(VolumeError::Remove(error)),
    }
}

/// Whether this mount is the one that the record announces: its id, or, for a layer of the same origin and where the id
/// was not known, the same type, source and root. What the record left empty was not known beforehand.
pub(crate) fn is_own(mount: Mount<'_>, expected: &RecordedMount) -> bool {
    if let (Some(id), Some(expected)) = (mount.id(), expected.id)
        && id == UniqueMountId(expected)
    {
        return true;
    }
    let same = |announced: &str, seen: &str| announced.is_empty() || announced == seen;
    !(expected.fs_type.is_empty() && expected.source.is_empty())
        && same(&expected.fs_type, &mount.fs_type())
        && same(&expected.source, &mount.source())
        && (expected.root.is_empty() || living_root(Path::new(&expected.root)) == living_root(mount.root()))
}

/// The problem of a mount that is not the volume's own.
pub(crate) fn other_mount(path: &Path, found: Mount<'_>) -> Problem {
    Problem::new(
        "OtherMount",
        format!(
            "something else is mounted at {}: {} {} with the root {}",
            path.display(),
            found.fs_type(),
            found.source(),
            found.root().display()
        ),
        "neither it nor what lies under it is touched; if it is not needed, unmount it by hand",
    )
}

/// A mount's root without the mark that the kernel puts behind a folder that was removed.
pub(crate) fn living_root(root: &Path) -> &Path {
    let bytes = root.as_os_str().as_bytes();
    Path::new(OsStr::from_bytes(bytes.strip_suffix(b"//deleted").unwrap_or(bytes)))
}

/// A record's words for a mount of the table.
pub(crate) fn origin_of(mount: Mount<'_>) -> RecordedMount {
    RecordedMount {
        id: mount.id().map(|id| id.0),
        fs_type: mount.fs_type().into_owned(),
        source: mount.source().into_owned(),
        root: mount.root().to_string_lossy().into_owned(),
    }
}

pub(crate) fn relative(host: &Host, absolute: &Path) -> Result<PathBuf, VolumeError> {
    absolute
        .strip_prefix(host.root.path())
        .map(Path::to_path_buf)
        .map_err(|_| VolumeError::Path(refloat_mount::PathError::Escapes { path: absolute.to_path_buf() }))
}

/// How often a busy mount is tried again at once, and how long to wait in between.
///
/// Another thread that starts a tool shares every open descriptor with its child until the child's `exec`, ours into this
/// very mount among them: a moment in which nobody really uses it. Whoever does will still do so after 100 ms.
const BUSY_TRIES: u32 = 5;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// How long an operation waits for the unmount of a file system that asks a device or a server. Whoever answers does so in
/// this time, but for one that has much to write back; a longer one is waited for by a child process.
pub(crate) const UNMOUNT_PATIENCE: Duration = Duration::from_secs(3);

fn unmount_top(host: &Host, rel: &Path, top: Mount<'_>) -> Result<(), VolumeError> {
    // A reader of its own: an unmount that hangs must not keep the others from the table.
    let mut reader = host.table.lock().unwrap_or_else(PoisonError::into_inner).fork();
    let mut tries = 0;
    loop {
        tries += 1;
        match host.root.unmount_within(rel, top.id(), UnmountHow::Ordinary, &mut reader, Some(UNMOUNT_PATIENCE)) {
            Err(UnmountError::Busy { .. }) if tries < BUSY_TRIES => std::thread::sleep(BUSY_PAUSE),
            answer => return answer.map_err(VolumeError::Unmount),
        }
    }
}

/// The next of these mounts that can be taken off: nothing is mounted on it, and its path leads to it and not to a
/// mount that covers it or a folder above it. The deepest such path comes first.
fn next_to_unmount<'t>(table: &'t MountTable, nested: &[Mount<'t>]) -> Option<Mount<'t>> {
    let parents: HashSet<u32> = nested.iter().map(|m| m.parent_short_id()).collect();
    let on_top = |m: Mount<'t>| table.at(m.point()).is_some_and(|top| top.short_id() == m.short_id());
    nested.iter().rev().copied().find(|m| !parents.contains(&m.short_id()) && !m.hidden() && on_top(*m))
}
