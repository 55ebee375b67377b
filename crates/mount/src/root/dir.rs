//! An open folder, and reading it.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::PathError;
use super::walk::{Xdev, checked, diagnose, open_beneath, open_entry};

/// The bytes of directory entries asked for at once.
const READ_SIZE: usize = 16 * 1024;

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

impl From<FileType> for EntryKind {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::Directory => Self::Dir,
            FileType::RegularFile => Self::File,
            FileType::Symlink => Self::Symlink,
            FileType::Socket => Self::Socket,
            _ => Self::Other,
        }
    }
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
    /// Whether it may have been read before, so that reading it begins with going back.
    read: AtomicBool,
}

impl Dir {
    /// Wraps an open descriptor; `path` is its absolute path, for messages and, where it is a mount target, to
    /// check that it still is what stands there.
    pub fn new(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path, read: AtomicBool::new(true) }
    }

    /// As [`Dir::new`], of a folder that was opened a moment ago and not read yet.
    pub(super) fn fresh(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path, read: AtomicBool::new(false) }
    }

    /// The absolute path, as the mount table spells it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it exactly this mode, whatever the umask. Not for descriptors that are opened by path only (a file
    /// from `make_file`).
    pub fn set_mode(&self, mode: u32) -> Result<(), PathError> {
        rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode & 0o7777))
            .map_err(|errno| self.error("set the mode of", errno))
    }

    /// Opens a folder below this one for reading, by the rules of the node root: no symlink, no mount. `None` if a
    /// part of the path does not exist. One call to the kernel: this is the cheap way to walk several levels.
    pub fn open_dir(&self, rel: &Path) -> Result<Option<Self>, PathError> {
        checked(rel)?;
        match open_beneath(&self.fd, rel, OFlags::RDONLY | OFlags::DIRECTORY, Xdev::Stop) {
            Ok(fd) => Ok(Some(Self::fresh(fd, self.path.join(rel)))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(diagnose(&self.fd, rel, errno, "open", &self.path.join(rel))),
        }
    }

    /// Its entries without `.` and `..`, sorted by name. Reads the folder from its beginning, touches nothing in it.
    pub fn entries(&self) -> Result<Vec<DirEntry>, PathError> {
        let mut entries = Vec::new();
        self.each_entry(|name, kind| {
            entries.push(DirEntry { name: name.to_owned(), kind });
            true
        })?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Whether it has no entries. Reads no more than the beginning of the folder.
    pub fn is_empty(&self) -> Result<bool, PathError> {
        let mut empty = true;
        self.each_entry(|_, _| {
            empty = false;
            false
        })?;
        Ok(empty)
    }

    /// Shows each entry but `.` and `..` in the folder's own order, until told to stop by `false`.
    pub fn each_entry(&self, mut show: impl FnMut(&OsStr, EntryKind) -> bool) -> Result<(), PathError> {
        let error = |errno| self.error("list", errno);
        if self.read.swap(true, Ordering::Relaxed) {
            rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::Start(0)).map_err(error)?;
        }
        let mut buffer = [MaybeUninit::<u8>::uninit(); READ_SIZE];
        let mut read = RawDir::new(&self.fd, &mut buffer);
        while let Some(entry) = read.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // The folder was removed while it was read: it has nothing more.
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(error(errno)),
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let name = OsStr::from_bytes(name);
            let kind = match entry.file_type() {
                FileType::Unknown => self.ask_kind(name),
                kind => kind.into(),
            };
            if !show(name, kind) {
                break;
            }
        }
        Ok(())
    }

    /// For file systems that do not tell kinds in the directory: asks for one, unless something is mounted there.
    fn ask_kind(&self, name: &OsStr) -> EntryKind {
        open_entry(&self.fd, name)
            .and_then(rustix::fs::fstat)
            .map_or(EntryKind::Other, |stat| FileType::from_raw_mode(stat.st_mode).into())
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    fn error(&self, doing: &'static str, errno: Errno) -> PathError {
        PathError::Io { doing, path: self.path.clone(), source: errno.into() }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
