//! The file calls that the store needs, behind one small trait, so that a simulated disk which forgets what was
//! not synced can stand under the store in tests.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags};

/// What a folder's listing says an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryType {
    /// A regular file.
    File,
    /// Surely something else; its name in words.
    Other(&'static str),
    /// The file system does not say.
    Unknown,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: OsString,
    /// What it is.
    pub kind: EntryType,
}

/// What reading a file gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRead {
    /// All of it is in the buffer.
    Whole,
    /// It is no regular file; what it is instead. Nothing was read.
    NotAFile(&'static str),
    /// It has this many bytes, more than the limit. Nothing was read.
    TooLarge(u64),
}

/// The file calls of the store. Names are single folder entries; no call follows a symlink.
pub trait Disk: Send + Sync {
    /// An open folder.
    type Folder: Send + Sync;
    /// A file open for writing.
    type File: Send;

    /// Makes a folder (0700). Answers whether it was made; false if something has that name already.
    fn make_folder(&self, parent: &Self::Folder, name: &str) -> io::Result<bool>;
    /// Opens a folder, not through a symlink.
    fn open_folder(&self, parent: &Self::Folder, name: &str) -> io::Result<Self::Folder>;
    /// Makes the folder's names durable.
    fn sync_folder(&self, folder: &Self::Folder) -> io::Result<()>;
    /// The folder's entries in any order, without `.` and `..`.
    fn list(&self, folder: &Self::Folder) -> io::Result<Vec<Entry>>;
    /// Reads a whole regular file into the buffer, which is emptied first. Never waits for a FIFO's writer.
    fn read(&self, folder: &Self::Folder, name: &OsStr, limit: u64, into: &mut Vec<u8>) -> io::Result<FileRead>;
    /// Makes a new file (0600) and opens it for writing. Fails if the name is taken.
    fn create(&self, folder: &Self::Folder, name: &str) -> io::Result<Self::File>;
    /// Writes all bytes.
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;
    /// Starts to write the file's data (this many bytes) back and does not wait for it. Only a hint.
    fn start_sync(&self, file: &Self::File, bytes: u64);
    /// Makes the file's data, and what is needed to read it back, durable.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Renames in one step, replacing nothing: fails with `AlreadyExists` if the new name is taken.
    fn rename_new(&self, from: &Self::Folder, name: &OsStr, to: &Self::Folder, new: &OsStr) -> io::Result<()>;
    /// Exchanges two names in one step.
    fn exchange(&self, folder: &Self::Folder, a: &str, b: &str) -> io::Result<()>;
    /// Renames in one step, replacing what had the new name.
    fn replace(&self, from: &Self::Folder, name: &OsStr, to: &Self::Folder, new: &OsStr) -> io::Result<()>;
    /// Removes a name that is no folder's.
    fn unlink(&self, folder: &Self::Folder, name: &OsStr) -> io::Result<()>;
}

/// The real file system, by descriptors of folders opened once.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn words(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symlink",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Unknown => "something unknown",
    }
}

impl RealDisk {
    /// Opens the state folder itself. Its own path may lead through symlinks: where it is, is the operator's choice.
    pub(crate) fn open_state(path: &std::path::Path) -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(path, FOLDER, Mode::empty())?)
    }

    /// Makes the state folder (0700) and those above it that are missing, each durable in the one above.
    pub(crate) fn make_state(path: &std::path::Path) -> io::Result<()> {
        let missing = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
        match rustix::fs::mkdir(path, Mode::RWXU).map_err(io::Error::from) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(e) => match path.parent() {
                Some(parent) if missing(&e) && !parent.as_os_str().is_empty() => {
                    Self::make_state(parent)?;
                    match rustix::fs::mkdir(path, Mode::RWXU) {
                        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                _ => return Err(e),
            },
        }
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
        rustix::fs::fsync(Self::open_state(parent)?)?;
        Ok(())
    }

    /// Opens (and makes) the lock file.
    pub(crate) fn open_lock(folder: &OwnedFd, name: &str) -> io::Result<std::fs::File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = match rustix::fs::openat(folder, name, flags, mode) {
            Err(rustix::io::Errno::NOENT) => rustix::fs::openat(folder, name, flags | OFlags::CREATE, mode)?,
            opened => opened?,
        };
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        if kind != FileType::RegularFile {
            return Err(io::Error::other(format!("it is not a regular file but {}", words(kind))));
        }
        Ok(fd.into())
    }
}

impl Disk for RealDisk {
    type Folder = OwnedFd;
    type File = OwnedFd;

    fn make_folder(&self, parent: &OwnedFd, name: &str) -> io::Result<bool> {
        match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::EXIST) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn open_folder(&self, parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(parent, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?)
    }

    fn sync_folder(&self, folder: &OwnedFd) -> io::Result<()> {
        Ok(rustix::fs::fsync(folder)?)
    }

    fn list(&self, folder: &OwnedFd) -> io::Result<Vec<Entry>> {
        // A descriptor of its own: the reading position belongs to the open file, and folders are listed again.
        let fd = rustix::fs::openat(folder, ".", FOLDER, Mode::empty())?;
        let mut buffer = Vec::with_capacity(256 << 10);
        let mut raw = RawDir::new(fd.as_fd(), buffer.spare_capacity_mut());
        let mut entries = Vec::new();
        while let Some(entry) = raw.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::RegularFile => EntryType::File,
                FileType::Unknown => EntryType::Unknown,
                other => EntryType::Other(words(other)),
            };
            entries.push(Entry { name: OsStr::from_bytes(name).to_owned(), kind });
        }
        Ok(entries)
    }

    fn read(&self, folder: &OwnedFd, name: &OsStr, limit: u64, into: &mut Vec<u8>) -> io::Result<FileRead> {
        into.clear();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::LOOP) => return Ok(FileRead::NotAFile(words(FileType::Symlink))),
            // Nothing can be opened that way but a socket or a device without a driver.
            Err(rustix::io::Errno::NXIO) => return Ok(FileRead::NotAFile("a socket or device")),
            Err(e) => return Err(e.into()),
        };
        let stat = rustix::fs::fstat(&fd)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Ok(FileRead::NotAFile(words(kind)));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if size > limit {
            return Ok(FileRead::TooLarge(size));
        }
        // One byte more than the size, so that one call that leaves room proves the end.
        let want = usize::try_from(size).expect("at most the limit") + 1;
        into.reserve(want);
        loop {
            let room = want.saturating_sub(into.len()).max(1);
            into.reserve(room);
            let read = rustix::io::retry_on_intr(|| rustix::io::read(&fd, rustix::buffer::spare_capacity(&mut *into)))?;
            if read == 0 || into.len() < want {
                return Ok(FileRead::Whole);
            }
            if into.len() as u64 > limit {
                return Ok(FileRead::TooLarge(into.len() as u64));
            }
        }
    }

    fn create(&self, folder: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?)
    }

    fn write(&self, file: &mut OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::io::retry_on_intr(|| rustix::io::write(&*file, bytes))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => bytes = &bytes[n..],
            }
        }
        Ok(())
    }

    fn start_sync(&self, file: &OwnedFd, bytes: u64) {
        // Linux starts write-back of the range's pages, then drops those that are clean and wholly inside it; a range
        // without the first and last byte keeps the pages of a small file cached for the next start. A failure
        // shows in `sync`.
        // # Source: posix_fadvise(2), generic_fadvise in mm/fadvise.c of Linux.
        let inner = bytes.checked_sub(2).and_then(std::num::NonZeroU64::new);
        if inner.is_some() {
            let _ = rustix::fs::fadvise(file, 1, inner, rustix::fs::Advice::DontNeed);
        }
    }

    fn sync(&self, file: &OwnedFd) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(file)?)
    }

    fn rename_new(&self, from: &OwnedFd, name: &OsStr, to: &OwnedFd, new: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat_with(from, name, to, new, RenameFlags::NOREPLACE)?)
    }

    fn exchange(&self, folder: &OwnedFd, a: &str, b: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat_with(folder, a, folder, b, RenameFlags::EXCHANGE)?)
    }

    fn replace(&self, from: &OwnedFd, name: &OsStr, to: &OwnedFd, new: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(from, name, to, new)?)
    }

    fn unlink(&self, folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(folder, name, AtFlags::empty())?)
    }
}
