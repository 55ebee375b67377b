//! The node root: the folder that everything happens beneath.
//!
//! All calls take paths relative to the root and resolve them with `openat2` beneath it, without following a
//! symlink. Except where it says otherwise they do not cross a mount either, so a mount is seen as a mount and
//! nothing below it is ever touched.

mod child;
mod dir;
mod link;
mod place;
mod tree;
mod unmount;
mod walk;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

pub use child::{PendingUnmount, write_within};
pub use dir::{Dir, DirEntry, EntryKind};
pub use link::Standing;
pub use place::RootPlace;
use walk::{Xdev, checked, open_beneath, split};
pub(crate) use walk::{open_entry, open_real, path_of, proc_path};

/// Why a path beneath the root could not be opened, made or listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The path is absolute, empty, or has `..`.
    #[error("the path {} leaves the node root", .path.display())]
    Escapes {
        /// The path as given.
        path: PathBuf,
    },
    /// A symlink is on the way; it is not followed.
    #[error("cannot {doing} {}: {} is a symlink, which is never followed here", .path.display(), .link.display())]
    Symlink {
        /// What was being done.
        doing: &'static str,
        /// The whole path.
        path: PathBuf,
        /// The part that is a symlink.
        link: PathBuf,
    },
    /// A mount is on the way; it is not crossed.
    #[error("cannot {doing} {}: {} is a mount point, which is not crossed here", .path.display(), .mount.display())]
    Mount {
        /// What was being done.
        doing: &'static str,
        /// The whole path.
        path: PathBuf,
        /// The part that is a mount point.
        mount: PathBuf,
    },
    /// Something that is no folder stands where one is needed.
    #[error("cannot {doing} {}: {} is not a folder", .path.display(), .part.display())]
    NotAFolder {
        /// What was being done.
        doing: &'static str,
        /// The whole path.
        path: PathBuf,
        /// The part that is no folder.
        part: PathBuf,
    },
    /// The system said no.
    #[error("cannot {doing} {}", .path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl PathError {
    /// The same of a longer path, of which what stands in the way is only a part.
    fn on_the_way_to(mut self, whole: PathBuf) -> Self {
        match &mut self {
            Self::Symlink { path, .. } | Self::Mount { path, .. } | Self::NotAFolder { path, .. } => *path = whole,
            Self::Escapes { .. } | Self::Io { .. } => {}
        }
        self
    }
}

/// Why something could not be unmounted, or is not believed to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnmountError {
    /// It is in use.
    #[error("cannot unmount {}: it is busy", .path.display())]
    Busy {
        /// The mount point.
        path: PathBuf,
    },
    /// Another mount is there than the one that was to be undone, or one lies over it.
    #[error("cannot unmount {}: the mount there is not the expected one ({found})", .path.display())]
    OtherMount {
        /// The mount point.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// The call said OK, and the table still shows the mount.
    #[error("unmounting {} was answered with success, but the mount table still shows it", .path.display())]
    StillMounted {
        /// The mount point.
        path: PathBuf,
    },
    /// It has not come back in time, and a child process waits for it.
    #[error("unmounting {} has not ended: its device or server does not answer", .0.path().display())]
    Hangs(PendingUnmount),
    /// The path could not be reached safely.
    #[error("cannot reach the mount point safely")]
    Path(#[source] PathError),
    /// The table could not be read.
    #[error("cannot check the mount table")]
    Table(#[source] crate::TableError),
    /// The system said no.
    #[error("cannot unmount {}", .path.display())]
    Io {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// Why a tree was not, or not wholly, removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// Mounts are in it. If they were known beforehand nothing was removed; one that appeared meanwhile stopped
    /// the removal there.
    #[error("cannot remove {}: {} is mounted in it", .path.display(), .mounts.first().map(|m| m.display().to_string()).unwrap_or_default())]
    Mounts {
        /// The tree.
        path: PathBuf,
        /// The mount points in it.
        mounts: Vec<PathBuf>,
    },
    /// A folder is not empty and its content is not ours to delete.
    #[error("{} is not empty", .path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// Something else stands there than what was to be removed.
    #[error("cannot remove {}: it is {found}", .path.display())]
    Unexpected {
        /// The path.
        path: PathBuf,
        /// What stands there.
        found: &'static str,
    },
    /// The path could not be reached safely.
    #[error("cannot reach the tree safely")]
    Path(#[source] PathError),
    /// The system said no.
    #[error("cannot remove {}", .path.display())]
    Io {
        /// The entry.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// How hard to unmount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnmountHow {
    /// As `umount`.
    #[default]
    Ordinary,
    /// As `umount -f`: the file system gives up what it waits for.
    Force,
    /// As `umount -l`: out of sight at once, gone when nobody uses it.
    Lazy,
}

/// What a file system said when it was asked whether anybody is there.
#[derive(Debug)]
pub enum Liveness {
    /// It answers.
    Answers,
    /// Its server, daemon or device is gone, says this error.
    Dead(std::io::Error),
    /// It says nothing.
    Silent,
}

/// The node root, opened once.
#[derive(Debug)]
pub struct NodeRoot {
    fd: OwnedFd,
    /// As the mount table spells it: symlinks resolved.
    path: PathBuf,
    /// As it was given.
    given: PathBuf,
}

impl AsFd for NodeRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl NodeRoot {
    /// Opens the root. It may itself be a symlink or a mount point; that is resolved here, once. An error if it
    /// does not exist or is no folder.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        const DOING: &str = "open the node root";
        let io = |source: std::io::Error| PathError::Io { doing: DOING, path: path.to_owned(), source };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOTDIR) => {
                return Err(PathError::NotAFolder { doing: DOING, path: path.to_owned(), part: path.to_owned() });
            }
            Err(errno) => return Err(io(errno.into())),
        };
        // The kernel spells this path as it spells the mount points below: from this process's root, no symlinks.
        let real = path_of(&fd).map_err(io)?;
        if !real.is_absolute() || rustix::fs::fstat(&fd).map_err(|errno| io(errno.into()))?.st_nlink == 0 {
            return Err(io(std::io::Error::new(std::io::ErrorKind::NotFound, "it has no path any more")));
        }
        Ok(Self { fd, path: real, given: path.to_owned() })
    }

    /// The same folder, said to be at another path: a root that was unpacked elsewhere, looked at beside a mount table
    /// in which it is at `path`. All paths that are told start with that.
    ///
    /// # Safety of the node
    /// It is for looking only. Who unmounts or removes asks this machine's mount table for that path.
    #[must_use]
    pub fn said_to_be_at(self, path: PathBuf) -> Self {
        Self { path, ..self }
    }

    /// The root as the mount table spells it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The root as it was given.
    pub fn given_path(&self) -> &Path {
        &self.given
    }

    /// The absolute path of a relative one, as the mount table spells it. `.` is the root.
    pub fn absolute(&self, rel: &Path) -> PathBuf {
        if rel == Path::new(".") { self.path.clone() } else { self.path.join(rel) }
    }

    /// Opens a folder for reading. `None` if it, or a folder on the way, does not exist. `.` is the root itself.
    pub fn open_dir(&self, rel: &Path) -> Result<Option<Dir>, PathError> {
        self.open_folder(rel, "open", OFlags::RDONLY)
    }

    /// Opens a mount point's folder or file by name only: the root of what is mounted there. `None` if it, or a folder on
    /// the way, does not exist. The mounted file system is asked nothing but what it is at.
    pub fn open_mount_point(&self, rel: &Path) -> Result<Option<Dir>, PathError> {
        const DOING: &str = "open";
        let Some((parent, name)) = split(checked(rel)?) else { return Ok(None) };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let whole = |error: PathError| error.on_the_way_to(self.absolute(rel));
        let Some(parent) = self.open_folder(parent, DOING, OFlags::PATH).map_err(whole)? else { return Ok(None) };
        match open_beneath(&parent, Path::new(name), OFlags::PATH | OFlags::NOFOLLOW, Xdev::Cross) {
            Ok(fd) => Ok(Some(Dir::fresh(fd, self.absolute(rel)))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(walk::diagnose(&parent, Path::new(name), errno, DOING, &self.absolute(rel))),
        }
    }

    /// As [`NodeRoot::open_dir`], but the last element may be a mount point (the open folder is then the mount's
    /// root). For SetUp, which fills and owns what it mounted; never for scanning.
    pub fn open_dir_in_mount(&self, rel: &Path) -> Result<Option<Dir>, PathError> {
        const DOING: &str = "open";
        let Some((parent, name)) = split(checked(rel)?) else { return self.open_dir(rel) };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let whole = |error: PathError| error.on_the_way_to(self.absolute(rel));
        let Some(parent) = self.open_folder(parent, DOING, OFlags::PATH).map_err(whole)? else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match open_beneath(&parent, Path::new(name), flags, Xdev::Cross) {
            Ok(fd) => Ok(Some(Dir::fresh(fd, self.absolute(rel)))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(walk::diagnose(&parent, Path::new(name), errno, DOING, &self.absolute(rel))),
        }
    }

    /// Makes the folders that are missing, each with `mode` whatever the umask, and opens the last one. Those
    /// that exist keep their mode.
    ///
    /// Making and giving the mode are two calls: a process that dies between them leaves a folder with the mode
    /// less the umask, which the next call finds as existing. Who needs an exact mode on the last folder sets it on
    /// the descriptor ([`Dir::set_mode`]).
    pub fn make_dirs(&self, rel: &Path, mode: u32) -> Result<Dir, PathError> {
        const DOING: &str = "make the folder";
        if let Some(there) = self.open_folder(rel, DOING, OFlags::RDONLY)? {
            return Ok(there);
        }
        let mut shown = self.path.clone();
        let mut dir: Option<OwnedFd> = None;
        for name in checked(rel)? {
            shown.push(name);
            let parent = dir.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
            let answer = walk::make_dir(parent, Path::new(name), mode, DOING, &shown);
            dir = Some(answer.map_err(|error| error.on_the_way_to(self.absolute(rel)))?);
        }
        match dir {
            Some(fd) => Ok(Dir::new(fd, shown)),
            None => Err(PathError::Escapes { path: rel.to_owned() }),
        }
    }

    /// Makes an empty file as a mount target (folders on the way with 0750) and opens it (`O_PATH`). Existing is
    /// fine if it is a regular file.
    pub fn make_file(&self, rel: &Path, mode: u32) -> Result<Dir, PathError> {
        const DOING: &str = "make the file";
        let Some((parent, name)) = split(checked(rel)?) else {
            return Err(PathError::Escapes { path: rel.to_owned() });
        };
        let shown = self.absolute(rel);
        let parent = if parent.as_os_str().is_empty() {
            Dir::new(
                self.fd.try_clone().map_err(|source| PathError::Io { doing: DOING, path: shown.clone(), source })?,
                self.path.clone(),
            )
        } else {
            self.make_dirs(parent, 0o750)?
        };
        let io = |errno: Errno| PathError::Io { doing: DOING, path: shown.clone(), source: errno.into() };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(mode & 0o7777)) {
            Ok(fd) => rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode & 0o7777)).map_err(io)?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(io(errno)),
        }
        let fd = open_beneath(&parent, Path::new(name), OFlags::PATH | OFlags::NOFOLLOW, Xdev::Stop)
            .map_err(|errno| walk::diagnose(&parent, Path::new(name), errno, DOING, &shown))?;
        match FileType::from_raw_mode(rustix::fs::fstat(&fd).map_err(io)?.st_mode) {
            FileType::RegularFile => Ok(Dir::new(fd, shown)),
            FileType::Symlink => Err(PathError::Symlink { doing: DOING, path: shown.clone(), link: shown }),
            FileType::Directory => Err(io(Errno::ISDIR)),
            _ => Err(io(Errno::EXIST)),
        }
    }

    /// Lists a folder by one directory read, without `.` and `..`, sorted by name. `None` if it does not exist.
    /// Touches nothing below it. `.` is the root itself.
    pub fn list(&self, rel: &Path) -> Result<Option<Vec<DirEntry>>, PathError> {
        match self.open_folder(rel, "list", OFlags::RDONLY)? {
            Some(dir) => dir.entries().map(Some),
            None => Ok(None),
        }
    }

    /// Removes one empty folder, if it is there and empty. Answers whether it is gone.
    pub fn remove_dir(&self, rel: &Path) -> Result<bool, RemoveError> {
        let shown = self.absolute(rel);
        let Some((parent, name)) = self.open_parent(rel, "remove the folder")? else { return Ok(true) };
        match rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(Self::not_removed(&parent, Path::new(name), errno, shown)),
        }
    }

    /// Removes the empty folders from `rel` upwards, up to but without `stop` (an empty path or `.` is the root).
    /// The first one that is not empty ends it without an error.
    pub fn remove_empty_dirs_up(&self, rel: &Path, stop: &Path) -> Result<(), RemoveError> {
        let stop = if stop == Path::new(".") { Path::new("") } else { stop };
        let mut at = rel;
        while at != stop && !at.as_os_str().is_empty() && at.starts_with(stop) {
            if !self.remove_dir(at)? {
                break;
            }
            let Some(parent) = at.parent() else { break };
            at = parent;
        }
        Ok(())
    }

    /// Removes one file or symlink, if it is there.
    pub fn remove_file(&self, rel: &Path) -> Result<(), RemoveError> {
        let Some((parent, name)) = self.open_parent(rel, "remove the file")? else { return Ok(()) };
        match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Self::not_removed(&parent, Path::new(name), errno, self.absolute(rel))),
        }
    }

    /// Opens a folder with the given access. `None` if a part of the path does not exist.
    fn open_folder(&self, rel: &Path, doing: &'static str, access: OFlags) -> Result<Option<Dir>, PathError> {
        checked(rel)?;
        match open_beneath(&self.fd, rel, access | OFlags::DIRECTORY, Xdev::Stop) {
            Ok(fd) => Ok(Some(Dir::fresh(fd, self.absolute(rel)))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(walk::diagnose(&self.fd, rel, errno, doing, &self.absolute(rel))),
        }
    }

    /// Opens the folder that an entry is in. `None` if that folder does not exist.
    fn open_parent<'p>(
        &self,
        rel: &'p Path,
        doing: &'static str,
    ) -> Result<Option<(Dir, &'p std::ffi::OsStr)>, RemoveError> {
        let Some((parent, name)) = split(checked(rel).map_err(RemoveError::Path)?) else {
            return Err(RemoveError::Path(PathError::Escapes { path: rel.to_owned() }));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match self.open_folder(parent, doing, OFlags::PATH) {
            Ok(Some(dir)) => Ok(Some((dir, name))),
            Ok(None) => Ok(None),
            Err(error) => Err(RemoveError::Path(error.on_the_way_to(self.absolute(rel)))),
        }
    }

    /// Says why an entry could not be removed.
    fn not_removed(parent: &Dir, name: &Path, errno: Errno, shown: PathBuf) -> RemoveError {
        match errno {
            // The kernel removes no entry that something is mounted on in this mount namespace.
            Errno::BUSY => RemoveError::Mounts { mounts: vec![shown.clone()], path: shown },
            Errno::NOTDIR => RemoveError::Path(walk::diagnose(parent, name, errno, "remove the folder", &shown)),
            _ => RemoveError::Io { path: shown, source: errno.into() },
        }
    }
}
