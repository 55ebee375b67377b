//! Removal of a tree that follows nothing and crosses nothing.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::dir::Dir;
use super::walk::{Xdev, open_beneath};
use super::{EntryKind, NodeRoot, RemoveError};
use crate::MountTable;

/// How many folders are held open at once, however deep the tree is.
const MAX_OPEN: usize = 32;

/// How often a folder that somebody keeps filling is emptied again before that is an error.
const MAX_ROUNDS: u32 = 16;

/// How often a name that changes between folder and no folder under our hands is tried.
const MAX_FLIPS: u32 = 1000;

/// One folder on the way down.
struct Level {
    name: OsString,
    /// Closed in ancestors that are far above.
    fd: Option<OwnedFd>,
    /// Device and inode: to know it again when coming back up.
    identity: (u64, u64),
    /// What is left in it.
    entries: Vec<(OsString, EntryKind)>,
    rounds: u32,
}

/// What became of one attempt to remove an entry.
enum Step {
    Gone,
    Descend(OwnedFd),
}

impl NodeRoot {
    /// Removes a tree with everything in it. A file or symlink is removed as such; what is not there is done.
    ///
    /// # Safety of the node
    /// Refuses before anything is removed if the table has a mount at or below it (also one that another mount
    /// hides); and since each step down is an `openat2` that crosses no mount, one that appears meanwhile stops it
    /// too, binds of the same device included. Follows no symlink: removes it. Entries that vanish meanwhile are
    /// fine; the first one that cannot be removed ends the removal.
    pub fn remove_tree(&self, rel: &Path, table: &MountTable) -> Result<(), RemoveError> {
        let shown = self.absolute(rel);
        let mounts: Vec<PathBuf> =
            table.stack(&shown).into_iter().chain(table.under(&shown)).map(|mount| mount.point().to_owned()).collect();
        if !mounts.is_empty() {
            return Err(RemoveError::Mounts { path: shown, mounts });
        }
        let Some((parent, name)) = self.open_parent(rel, "remove")? else { return Ok(()) };
        Removal { parent, shown, levels: Vec::new() }.run(name)
    }
}

/// A removal that is under way.
struct Removal {
    /// The folder that the tree is in.
    parent: Dir,
    /// The tree's absolute path, for messages.
    shown: PathBuf,
    levels: Vec<Level>,
}

impl Removal {
    fn run(mut self, name: &OsStr) -> Result<(), RemoveError> {
        if let Step::Descend(fd) = self.remove(name, EntryKind::Dir)? {
            self.push(name, fd)?;
        }
        while let Some(level) = self.levels.last_mut() {
            if let Some((name, kind)) = level.entries.pop() {
                if let Step::Descend(fd) = self.remove(&name, kind)? {
                    self.push(&name, fd)?;
                }
                continue;
            }
            self.leave()?;
        }
        Ok(())
    }

    /// The innermost open folder.
    fn here(&self) -> Result<std::os::fd::BorrowedFd<'_>, RemoveError> {
        match self.levels.last() {
            None => Ok(self.parent.as_fd()),
            Some(level) => level.fd.as_ref().map(AsFd::as_fd).ok_or_else(|| self.io(None, Errno::BADF)),
        }
    }

    /// Removes an entry of the innermost folder, or opens it if it is a folder itself.
    fn remove(&self, name: &OsStr, kind: EntryKind) -> Result<Step, RemoveError> {
        let here = self.here()?;
        let mut try_dir = kind == EntryKind::Dir;
        for _ in 0..MAX_FLIPS {
            if try_dir {
                match open_beneath(here, Path::new(name), OFlags::RDONLY | OFlags::DIRECTORY, Xdev::Stop) {
                    Ok(fd) => return Ok(Step::Descend(fd)),
                    Err(Errno::NOENT) => return Ok(Step::Gone),
                    // No folder (any more): a symlink gives ELOOP, all else ENOTDIR.
                    Err(Errno::LOOP | Errno::NOTDIR) => try_dir = false,
                    Err(errno) => return Err(self.io(Some(name), errno)),
                }
            } else {
                match rustix::fs::unlinkat(here, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => return Ok(Step::Gone),
                    Err(Errno::ISDIR) => try_dir = true,
                    Err(errno) => return Err(self.io(Some(name), errno)),
                }
            }
        }
        Err(self.io(Some(name), Errno::AGAIN))
    }

    /// Goes down into an open folder.
    fn push(&mut self, name: &OsStr, fd: OwnedFd) -> Result<(), RemoveError> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.io(Some(name), errno))?;
        let mut level = Level {
            name: name.to_owned(),
            fd: Some(fd),
            identity: (stat.st_dev, stat.st_ino),
            entries: Vec::new(),
            rounds: 0,
        };
        self.read(&mut level)?;
        if self.levels.len() >= MAX_OPEN {
            let far = self.levels.len() - MAX_OPEN;
            self.levels[far].fd = None;
        }
        self.levels.push(level);
        Ok(())
    }

    /// Lists what is in the level's folder now.
    fn read(&self, level: &mut Level) -> Result<(), RemoveError> {
        let Some(fd) = level.fd.take() else { return Err(self.io(Some(&level.name), Errno::BADF)) };
        let dir = Dir::fresh(fd, self.path_of(Some(&level.name)));
        let entries = &mut level.entries;
        dir.each_entry(|name, kind| {
            entries.push((name.to_owned(), kind));
            true
        })
        .map_err(RemoveError::Path)?;
        level.fd = Some(dir.into_fd());
        level.rounds += 1;
        Ok(())
    }

    /// Removes the innermost folder, whose entries are done, and goes up.
    fn leave(&mut self) -> Result<(), RemoveError> {
        let Some(mut level) = self.levels.pop() else { return Ok(()) };
        self.reopen_innermost(&level)?;
        let here = self.here()?;
        let mut flips = 0;
        loop {
            match rustix::fs::unlinkat(here, &level.name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::NOTEMPTY | Errno::EXIST) if level.rounds < MAX_ROUNDS => {
                    // Something was put there meanwhile, or it is another folder by now: look again by its name.
                    match self.remove(&level.name, EntryKind::Dir)? {
                        Step::Gone => return Ok(()),
                        Step::Descend(fd) => {
                            let stat = rustix::fs::fstat(&fd).map_err(|errno| self.io(Some(&level.name), errno))?;
                            level.identity = (stat.st_dev, stat.st_ino);
                            level.fd = Some(fd);
                            self.read(&mut level)?;
                            self.levels.push(level);
                            return Ok(());
                        }
                    }
                }
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    return Err(RemoveError::NotEmpty { path: self.path_of(Some(&level.name)) });
                }
                Err(Errno::NOTDIR) if flips < MAX_FLIPS => {
                    flips += 1;
                    if let Step::Descend(fd) = self.remove(&level.name, EntryKind::Other)? {
                        drop(fd);
                        continue;
                    }
                    return Ok(());
                }
                Err(errno) => return Err(self.io(Some(&level.name), errno)),
            }
        }
    }

    /// Opens the level above `child` again if it was closed: by `..`, and only if that is the same folder.
    fn reopen_innermost(&mut self, child: &Level) -> Result<(), RemoveError> {
        let Some(above) = self.levels.last() else { return Ok(()) };
        if above.fd.is_some() {
            return Ok(());
        }
        let reopened = child.fd.as_ref().ok_or(Errno::BADF).and_then(|fd| {
            let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let up = rustix::fs::openat2(fd, "..", flags, rustix::fs::Mode::empty(), resolve)?;
            let stat = rustix::fs::fstat(&up)?;
            // Moved away meanwhile: whatever is above it now is not ours to empty.
            if (stat.st_dev, stat.st_ino) == above.identity { Ok(up) } else { Err(Errno::STALE) }
        });
        let fd = reopened.map_err(|errno| self.io(Some(&child.name), errno))?;
        if let Some(above) = self.levels.last_mut() {
            above.fd = Some(fd);
        }
        Ok(())
    }

    /// The absolute path of an entry of the innermost folder, for messages.
    fn path_of(&self, name: Option<&OsStr>) -> PathBuf {
        let mut path = self.shown.as_os_str().as_bytes().to_vec();
        let below = self.levels.iter().skip(1).map(|level| level.name.as_os_str());
        let name = if self.levels.is_empty() { None } else { name };
        for part in below.chain(name) {
            path.push(b'/');
            path.extend_from_slice(part.as_bytes());
        }
        PathBuf::from(OsStr::from_bytes(&path).to_owned())
    }

    /// What went wrong at an entry of the innermost folder. EXDEV (on the way down) and EBUSY (at removal) are how
    /// the kernel tells that something is mounted there.
    fn io(&self, name: Option<&OsStr>, errno: Errno) -> RemoveError {
        let path = self.path_of(name);
        match errno {
            Errno::XDEV | Errno::BUSY => RemoveError::Mounts { path: self.shown.clone(), mounts: vec![path] },
            errno => RemoveError::Io { path, source: errno.into() },
        }
    }
}
