//! The node root: the folder that everything happens beneath.
//!
//! All calls take paths relative to the root and resolve them with `openat2` beneath it, without following a
//! symlink. Except where it says otherwise they do not cross a mount either, so a mount is seen as a mount and
//! nothing below it is ever touched.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::{MountTable, TableReader, UniqueMountId};

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

/// What a folder entry is, as the directory read tells it (no stat).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder.
    Dir,
    /// A regular file.
    File,
    /// A symlink.
    Symlink,
    /// A socket.
    Socket,
    /// A device, a pipe, or not told.
    Other,
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name.
    pub name: OsString,
    /// What it is.
    pub kind: EntryKind,
}

/// A folder (or, as a mount target, a file) beneath the root, held open.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Wraps an open descriptor; `path` is its absolute path, for messages.
    pub fn new(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path }
    }
    /// The absolute path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
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

impl NodeRoot {
    /// Opens the root. It may itself be a symlink or a mount point; that is resolved here, once. An error if it
    /// does not exist or is no folder.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        let _ = path;
        todo!()
    }
    /// The root as the mount table spells it.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The root as it was given.
    pub fn given_path(&self) -> &Path {
        &self.given
    }
    /// Opens a folder for reading. `None` if it, or a folder on the way, does not exist.
    pub fn open_dir(&self, rel: &Path) -> Result<Option<Dir>, PathError> {
        let _ = rel;
        todo!()
    }
    /// As [`NodeRoot::open_dir`], but the last element may be a mount point (the open folder is then the mount's
    /// root). For SetUp, which fills and owns what it mounted; never for scanning.
    pub fn open_dir_in_mount(&self, rel: &Path) -> Result<Option<Dir>, PathError> {
        let _ = rel;
        todo!()
    }
    /// Makes the folders that are missing, each with `mode` whatever the umask, and opens the last one. Those
    /// that exist keep their mode.
    pub fn make_dirs(&self, rel: &Path, mode: u32) -> Result<Dir, PathError> {
        let _ = (rel, mode);
        todo!()
    }
    /// Makes an empty file as a mount target (folders on the way with 0750) and opens it (O_PATH). Existing is fine
    /// if it is a regular file.
    pub fn make_file(&self, rel: &Path, mode: u32) -> Result<Dir, PathError> {
        let _ = (rel, mode);
        todo!()
    }
    /// Lists a folder by one directory read, without `.` and `..`, sorted by name. `None` if it does not exist.
    /// Touches nothing below it.
    pub fn list(&self, rel: &Path) -> Result<Option<Vec<DirEntry>>, PathError> {
        let _ = rel;
        todo!()
    }
    /// Removes one empty folder, if it is there and empty. Answers whether it is gone.
    pub fn remove_dir(&self, rel: &Path) -> Result<bool, RemoveError> {
        let _ = rel;
        todo!()
    }
    /// Removes the empty folders from `rel` upwards, up to but without `stop`. The first one that is not empty
    /// ends it without an error.
    pub fn remove_empty_dirs_up(&self, rel: &Path, stop: &Path) -> Result<(), RemoveError> {
        let _ = (rel, stop);
        todo!()
    }
    /// Removes one file or symlink, if it is there.
    pub fn remove_file(&self, rel: &Path) -> Result<(), RemoveError> {
        let _ = rel;
        todo!()
    }
    /// Removes a tree with everything in it.
    ///
    /// # Safety of the node
    /// Refuses before anything is removed if the table has a mount at or below it; and since each step down is
    /// an `openat2` that crosses no mount, one that appears meanwhile stops it too. Follows no symlink: removes it.
    pub fn remove_tree(&self, rel: &Path, table: &MountTable) -> Result<(), RemoveError> {
        let _ = (rel, table);
        todo!()
    }
    /// Unmounts exactly the mount with this id at this path (or, without an id, the topmost one), if it is there
    /// and on top; then reads the table and believes only that.
    pub fn unmount(
        &self,
        rel: &Path,
        id: Option<UniqueMountId>,
        how: UnmountHow,
        table: &mut TableReader,
    ) -> Result<(), UnmountError> {
        let _ = (rel, id, how, table);
        todo!()
    }
}
