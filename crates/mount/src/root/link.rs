//! Symlinks and empty files beneath the root: what a block volume is made of. A symlink here is a thing to make, read
//! and remove; it is never followed.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, OFlags, RenameFlags};
use rustix::io::Errno;

use super::dir::Dir;
use super::walk::{Xdev, checked, diagnose, open_beneath, open_entry, split};
use super::{NodeRoot, PathError, RemoveError};

/// What stands at a path, with nothing followed and no mounted file system asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    Nothing,
    /// Something that a mount lies on.
    MountPoint,
    /// A folder.
    Dir,
    /// A regular file without content.
    EmptyFile,
    /// A regular file with content.
    File,
    /// A symlink, and what it says.
    Symlink(PathBuf),
    /// A device, a socket or a pipe.
    Other,
}

impl Standing {
    /// What it is, for a sentence.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::MountPoint => "a mount point",
            Self::Dir => "a folder",
            Self::EmptyFile => "an empty file",
            Self::File => "a file with content",
            Self::Symlink(_) => "a symlink",
            Self::Other => "a device, socket or pipe",
        }
    }
}

/// How often a symlink that somebody else changes at the same moment is tried.
const MAX_TRIES: u32 = 16;

impl NodeRoot {
    /// What stands at the path. A folder on the way that is missing means nothing.
    pub fn look(&self, rel: &Path) -> Result<Standing, PathError> {
        const DOING: &str = "look at";
        let Some((parent, name)) = self.open_parent_of(rel, DOING)? else { return Ok(Standing::Nothing) };
        standing(&parent, name).map_err(|errno| diagnose(&parent, Path::new(name), errno, DOING, &self.absolute(rel)))
    }

    /// Makes a symlink that says `target`, or lets the one that is there say so; at no time is there none or half a one.
    /// The folder that it is in must exist. `temporary` is a name in the same folder that is the caller's own: a crash
    /// while a symlink is changed may leave a symlink there.
    ///
    /// # Safety of the node
    /// Only a symlink is ever replaced; anything else is refused, and is put back should it have come in between.
    pub fn make_symlink(&self, rel: &Path, target: &Path, temporary: &OsStr) -> Result<(), PathError> {
        const DOING: &str = "make the symlink";
        let shown = self.absolute(rel);
        let io = |errno: Errno| PathError::Io { doing: DOING, path: shown.clone(), source: errno.into() };
        let Some((parent, name)) = self.open_parent_of(rel, DOING)? else { return Err(io(Errno::NOENT)) };
        for _ in 0..MAX_TRIES {
            match rustix::fs::symlinkat(target, &parent, name) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(io(errno)),
            }
            match standing(&parent, name).map_err(io)? {
                Standing::Symlink(says) if says == target => return Ok(()),
                Standing::Symlink(_) => {}
                Standing::Nothing => continue,
                Standing::Dir => return Err(io(Errno::ISDIR)),
                Standing::MountPoint => {
                    return Err(PathError::Mount { doing: DOING, mount: shown.clone(), path: shown });
                }
                Standing::EmptyFile | Standing::File | Standing::Other => return Err(io(Errno::EXIST)),
            }
            match replace(&parent, name, target, temporary) {
                Ok(()) => return Ok(()),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(io(errno)),
            }
        }
        Err(io(Errno::AGAIN))
    }

    /// Removes a symlink, if one is there. Anything else is refused.
    pub fn remove_symlink(&self, rel: &Path) -> Result<(), RemoveError> {
        self.remove_if(rel, "remove the symlink", |found| matches!(found, Standing::Symlink(_)))
    }

    /// Removes an empty regular file, if one is there. Anything else is refused, a mount point too.
    pub fn remove_empty_file(&self, rel: &Path) -> Result<(), RemoveError> {
        self.remove_if(rel, "remove the empty file", |found| *found == Standing::EmptyFile)
    }

    /// Between the look and the removal somebody may put another file there, since the kernel has no call that removes
    /// by descriptor; it is never a folder or a mount point that goes.
    fn remove_if(
        &self,
        rel: &Path,
        doing: &'static str,
        fits: impl FnOnce(&Standing) -> bool,
    ) -> Result<(), RemoveError> {
        let Some((parent, name)) = self.open_parent_of(rel, doing).map_err(RemoveError::Path)? else { return Ok(()) };
        let shown = self.absolute(rel);
        let io = |errno: Errno| RemoveError::Io { path: shown.clone(), source: errno.into() };
        match standing(&parent, name).map_err(io)? {
            Standing::Nothing => return Ok(()),
            Standing::MountPoint => return Err(RemoveError::Mounts { mounts: vec![shown.clone()], path: shown }),
            found if fits(&found) => {}
            found => return Err(RemoveError::Unexpected { path: shown, found: found.name() }),
        }
        match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Self::not_removed(&parent, Path::new(name), errno, shown)),
        }
    }

    /// Opens what is mounted at the path, or what stands there if nothing is, by name only (`O_PATH`): for a bound
    /// device, which answers at once. `None` if it does not exist. A symlink is refused.
    pub fn open_mounted(&self, rel: &Path) -> Result<Option<OwnedFd>, PathError> {
        const DOING: &str = "open";
        let Some((parent, name)) = self.open_parent_of(rel, DOING)? else { return Ok(None) };
        match open_beneath(&parent, Path::new(name), OFlags::PATH, Xdev::Cross) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(diagnose(&parent, Path::new(name), errno, DOING, &self.absolute(rel))),
        }
    }

    /// Opens the folder that an entry is in. `None` if that folder does not exist.
    fn open_parent_of<'p>(&self, rel: &'p Path, doing: &'static str) -> Result<Option<(Dir, &'p OsStr)>, PathError> {
        let Some((parent, name)) = split(checked(rel)?) else {
            return Err(PathError::Escapes { path: rel.to_owned() });
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let opened = self.open_folder(parent, doing, OFlags::PATH);
        Ok(opened.map_err(|error| error.on_the_way_to(self.absolute(rel)))?.map(|dir| (dir, name)))
    }
}

fn standing(parent: &Dir, name: &OsStr) -> Result<Standing, Errno> {
    let entry = match open_entry(parent, name) {
        Ok(entry) => entry,
        Err(Errno::NOENT) => return Ok(Standing::Nothing),
        Err(Errno::XDEV) => return Ok(Standing::MountPoint),
        Err(errno) => return Err(errno),
    };
    let stat = rustix::fs::fstat(&entry)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Standing::Dir,
        FileType::RegularFile if stat.st_size == 0 => Standing::EmptyFile,
        FileType::RegularFile => Standing::File,
        FileType::Symlink => {
            let says = rustix::fs::readlinkat(&entry, "", Vec::new())?;
            Standing::Symlink(OsString::from_vec(says.into_bytes()).into())
        }
        _ => Standing::Other,
    })
}

/// Exchanges the symlink for a new one, and what then is at the temporary name is the old one.
fn replace(parent: &Dir, name: &OsStr, target: &Path, temporary: &OsStr) -> Result<(), Errno> {
    if matches!(standing(parent, temporary)?, Standing::Symlink(_)) {
        rustix::fs::unlinkat(parent, temporary, AtFlags::empty())?;
    }
    rustix::fs::symlinkat(target, parent, temporary)?;
    match rustix::fs::renameat_with(parent, temporary, parent, name, RenameFlags::EXCHANGE) {
        // A file system that cannot exchange.
        Err(Errno::INVAL | Errno::NOSYS) => return rustix::fs::renameat(parent, temporary, parent, name),
        Err(errno) => {
            rustix::fs::unlinkat(parent, temporary, AtFlags::empty())?;
            return Err(errno);
        }
        Ok(()) => {}
    }
    if !matches!(standing(parent, temporary)?, Standing::Symlink(_)) {
        rustix::fs::renameat_with(parent, temporary, parent, name, RenameFlags::EXCHANGE)?;
        rustix::fs::unlinkat(parent, temporary, AtFlags::empty())?;
        return Err(Errno::EXIST);
    }
    rustix::fs::unlinkat(parent, temporary, AtFlags::empty())
}
