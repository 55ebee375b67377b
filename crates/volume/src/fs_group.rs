//! Gives a volume's files to the pod's fsGroup.
//!
//! # Source
//! `SetVolumeOwnership` in `pkg/volume/volume_linux.go` of Kubernetes v1.36: children first; everything is given to
//! the group, symlinks themselves too; all but symlinks get `0660` (`0440` in a read-only volume), folders also
//! `0110` and setgid, added to what they have.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use refloat_record::{FsGroup, FsGroupChangePolicy};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::{VolumeError, beneath};

/// Gives the tree below `dir` to the group: children first, symlinks only their owner, no mount crossed.
///
/// A mount inside is somebody else's and is left out without an error, the mount point and all below it. What has the
/// group and the bits already is not touched. With `OnRootMismatch` nothing is done if the root has them.
///
/// # Errors
/// [`VolumeError::FsGroup`] after all that could be done was done, if some files could not be changed. The root is then
/// left as it was, so that `OnRootMismatch` does not take the tree for finished the next time. The kubelet only
/// logs such files; a pod that then cannot read its volume is harder to understand than a SetUp that says why.
///
/// # Safety of the node
/// Only descriptors opened beneath `dir`, no symlink followed: a container that swaps a folder for a symlink while this
/// runs cannot have a file outside the volume changed.
pub fn apply(dir: BorrowedFd<'_>, shown: &Path, group: FsGroup, read_only: bool) -> Result<(), VolumeError> {
    let io = |doing| move |e: Errno| VolumeError::Io { doing, path: shown.to_owned(), source: e.into() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(dir, c".", flags, Mode::empty()).map_err(io("open the volume's folder"))?;
    let bits = Bits::new(read_only);
    let stat = rustix::fs::fstat(&root).map_err(io("look at the volume's folder"))?;
    if group.policy == FsGroupChangePolicy::OnRootMismatch
        && stat.st_gid == group.gid
        && beneath::bits(&stat) & bits.folder == bits.folder
    {
        return Ok(());
    }
    let mut walk = Walk { gid: Gid::from_raw(group.gid), bits, path: shown.to_owned(), failed: 0, first: None };
    walk.tree(&root);
    match walk.first {
        Some((path, errno)) => {
            Err(VolumeError::FsGroup { gid: group.gid, failed: walk.failed, path, source: errno.into() })
        }
        None => walk.one(&root, &stat).map_err(io("give the pod's fsGroup the folder")),
    }
}

/// The bits that are added.
#[derive(Clone, Copy)]
struct Bits {
    file: u32,
    folder: u32,
}

impl Bits {
    fn new(read_only: bool) -> Self {
        let file = if read_only { 0o440 } else { 0o660 };
        Self { file, folder: file | 0o2110 }
    }
}

struct Walk {
    gid: Gid,
    bits: Bits,
    path: PathBuf,
    failed: usize,
    first: Option<(PathBuf, Errno)>,
}

impl Walk {
    fn fail(&mut self, name: Option<&CStr>, errno: Errno) {
        self.failed += 1;
        let name = name.map(|n| n.to_string_lossy().into_owned());
        let path = name.map_or_else(|| self.path.clone(), |name| self.path.join(name));
        tracing::warn!(path = %path.display(), error = %errno, "cannot give a file to the pod's fsGroup");
        self.first.get_or_insert((path, errno));
    }

    /// Everything below the folder, without the folder itself. Its own stack and one open folder a level: a tree that
    /// is too deep ends in an error of the system, not of this program.
    fn tree(&mut self, root: &OwnedFd) {
        struct Level {
            fd: OwnedFd,
            rest: std::vec::IntoIter<(CString, FileType)>,
        }
        let mut levels = Vec::new();
        match root.try_clone().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)).and_then(|fd| {
            let rest = beneath::list(&fd)?.into_iter();
            Ok(Level { fd, rest })
        }) {
            Ok(level) => levels.push(level),
            Err(e) => self.fail(None, e),
        }
        while let Some(level) = levels.last_mut() {
            let Some((name, kind)) = level.rest.next() else {
                let done = levels.pop().expect("the last level was just looked at");
                if levels.is_empty() {
                    break; // the root, which comes last of all
                }
                let changed = rustix::fs::fstat(&done.fd).and_then(|stat| self.one(&done.fd, &stat));
                if let Err(e) = changed {
                    self.fail(None, e);
                }
                self.path.pop();
                continue;
            };
            if kind == FileType::Directory {
                match beneath::open_dir(&level.fd, &name) {
                    Ok(fd) => {
                        self.path.push(name.to_string_lossy().as_ref());
                        // A folder that cannot be listed is still given to the group itself.
                        let rest = beneath::list(&fd).unwrap_or_else(|e| {
                            self.fail(None, e);
                            Vec::new()
                        });
                        levels.push(Level { fd, rest: rest.into_iter() });
                    }
                    // A mount, or removed or replaced meanwhile.
                    Err(Errno::XDEV | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(e) => self.fail(Some(&name), e),
                }
                continue;
            }
            let changed = beneath::open_path(&level.fd, &name)
                .and_then(|fd| rustix::fs::fstat(&fd).and_then(|stat| self.one(&fd, &stat)));
            match changed {
                Ok(()) | Err(Errno::XDEV | Errno::NOENT) => {}
                Err(e) => self.fail(Some(&name), e),
            }
        }
    }

    /// One entry, by a descriptor that may be `O_PATH`.
    fn one(&self, fd: &OwnedFd, stat: &Stat) -> rustix::io::Result<()> {
        let kind = beneath::kind(stat);
        if stat.st_gid != self.gid.as_raw() {
            rustix::fs::chownat(fd, c"", None, Some(self.gid), AtFlags::EMPTY_PATH)?;
        }
        if kind == FileType::Symlink {
            return Ok(());
        }
        let add = if kind == FileType::Directory { self.bits.folder } else { self.bits.file };
        let mode = beneath::bits(stat) | add;
        // The change of owner drops setuid and setgid of files, so look at what was and what is now.
        if mode != beneath::bits(&rustix::fs::fstat(fd)?) {
            // fchmod(2) does not take an O_PATH descriptor; the kernel's link to it is no symlink that anybody could
            // have planted.
            rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
