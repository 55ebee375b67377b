//! Looks at the registration folder, and arms the watch for the next look.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Held;
use crate::socket::{Socket, descriptor_path};

/// How deep folders in the folder are looked into. The usual registrar uses none.
const MAX_DEPTH: usize = 8;

/// How many sockets and folders are watched at most. A node has tens of drivers.
const MAX_FOUND: usize = 1000;

/// How often the folder may come and go during one look.
const MAX_TRIES: usize = 16;

/// What a folder's own life looks like.
const SELF: WatchFlags = WatchFlags::DELETE_SELF.union(WatchFlags::MOVE_SELF).union(WatchFlags::ONLYDIR);
/// Names that come and go in it.
const NAMES: WatchFlags =
    WatchFlags::CREATE.union(WatchFlags::DELETE).union(WatchFlags::MOVED_FROM).union(WatchFlags::MOVED_TO);

/// The folders that are watched.
#[derive(Debug, Default)]
pub(super) struct Watches {
    armed: BTreeSet<i32>,
}

/// What a look found.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) sockets: Vec<Found>,
    /// What could not be looked at. The rest was.
    pub(super) problem: Option<String>,
}

/// A registration socket.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) socket: Held,
    /// When it was made, in seconds and nanoseconds.
    pub(super) made: (i64, i64),
}

impl Look {
    /// The first problem is kept.
    fn note(&mut self, path: &Path, error: &dyn std::fmt::Display) {
        self.problem.get_or_insert_with(|| format!("{} cannot be looked at: {error}", path.display()));
    }
}

impl Watches {
    /// Lists the sockets in the folder. Each folder is watched before it is listed, so nothing is missed between. If the
    /// folder is missing, the nearest folder above it is watched.
    pub(super) fn look(&mut self, inotify: BorrowedFd<'_>, folder: &Path) -> io::Result<Look> {
        let mut armed = BTreeSet::new();
        let mut look = Look::default();
        let opened = arm_path(inotify, folder, &mut armed)?;
        if let Some(opened) = opened {
            walk(inotify, &opened, folder, 0, &mut armed, &mut look);
        }
        for old in self.armed.difference(&armed) {
            // It may have ended with its folder.
            let _ = inotify::remove_watch(inotify, *old);
        }
        self.armed = armed;
        Ok(look)
    }
}

/// Watches the folder and those above it. The folder, if it is there.
fn arm_path(inotify: BorrowedFd<'_>, folder: &Path, armed: &mut BTreeSet<i32>) -> io::Result<Option<OwnedFd>> {
    // From the top, so that the last watch on a folder that two paths lead to is the one that says more.
    let chain: Vec<&Path> = folder.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
    for _ in 0..MAX_TRIES {
        let mut above = None;
        let mut missing = None;
        for path in chain.iter().rev() {
            match open_folder(path) {
                Ok(opened) => {
                    add(inotify, &opened, SELF, armed)?;
                    above = Some((*path, opened));
                }
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    missing = Some(*path);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let Some((_, above)) = above else { return Err(Errno::NOENT.into()) };
        add(inotify, &above, SELF | NAMES, armed)?;
        // The folder itself is watched with the next line's answer; a part that came meanwhile is seen here.
        match missing {
            None => return Ok(Some(above)),
            Some(part) if open_folder(part).is_err() => return Ok(None),
            Some(_) => {}
        }
    }
    Err(io::Error::other("it comes and goes"))
}

fn open_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn add(inotify: BorrowedFd<'_>, folder: &OwnedFd, flags: WatchFlags, armed: &mut BTreeSet<i32>) -> io::Result<()> {
    armed.insert(inotify::add_watch(inotify, descriptor_path(folder), flags)?);
    Ok(())
}

/// Collects the sockets in an open folder that is watched already, and goes into its folders.
fn walk(
    inotify: BorrowedFd<'_>,
    folder: &OwnedFd,
    path: &Path,
    depth: usize,
    armed: &mut BTreeSet<i32>,
    look: &mut Look,
) {
    let entries = match Dir::read_from(folder) {
        Ok(entries) => entries,
        Err(error) => return look.note(path, &error),
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return look.note(path, &error),
        };
        let name = entry.file_name();
        // `.` and `..` too.
        if name.to_bytes().starts_with(b".") {
            continue;
        }
        let path = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        if armed.len() + look.sockets.len() >= MAX_FOUND {
            return look.note(&path, &"there are too many files");
        }
        match entry.file_type() {
            FileType::Socket | FileType::Unknown => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                // What went meanwhile is not there; what is no socket is ignored.
                let Ok(fd) = rustix::fs::openat(folder, name, flags, Mode::empty()) else { continue };
                let Ok(stat) = rustix::fs::fstat(&fd) else { continue };
                if let Ok(socket) = Socket::of(fd, &path) {
                    let made = (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or_default());
                    look.sockets.push(Found { socket: Arc::new(socket), made });
                }
            }
            FileType::Directory if depth < MAX_DEPTH => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
                match rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve) {
                    Ok(inner) => match add(inotify, &inner, SELF | NAMES, armed) {
                        Ok(()) => walk(inotify, &inner, &path, depth + 1, armed, look),
                        Err(error) => look.note(&path, &error),
                    },
                    // Gone meanwhile, or a mount.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
                    Err(error) => look.note(&path, &error),
                }
            }
            _ => {}
        }
    }
}
