//! File calls below an open folder that follow no symlink and cross no mount.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, unlinkat};
use rustix::io::{Errno, Result};

/// The deepest tree that is walked. A path of Linux's `PATH_MAX` has at most half as many elements as bytes; what is
/// deeper was made to hurt, and would end in an overflow of the stack.
pub(crate) const MAX_DEPTH: usize = 2050;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens a folder for reading. `NOTDIR` or `LOOP` if it is something else, `XDEV` if it is a mount point.
pub(crate) fn open_dir(dir: impl AsFd, name: &CStr) -> Result<OwnedFd> {
    openat2(dir, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), RESOLVE)
}

/// Opens whatever it is without touching it (`O_PATH`); a symlink itself. `XDEV` if it is a mount point.
pub(crate) fn open_path(dir: impl AsFd, name: &CStr) -> Result<OwnedFd> {
    openat2(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), RESOLVE)
}

/// Opens a file for reading; a pipe or device does not block.
pub(crate) fn open_file(dir: impl AsFd, name: &CStr) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat2(dir, name, flags, Mode::empty(), RESOLVE)
}

/// The names in a folder and what they are, without `.` and `..`, sorted.
pub(crate) fn list(dir: impl AsFd) -> Result<Vec<(CString, FileType)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            // Some file systems do not tell.
            FileType::Unknown => kind(&rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?),
            kind => kind,
        };
        names.push((name.to_owned(), kind));
    }
    names.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(names)
}

/// Whether the file system forgets everything at a power cut anyway.
pub(crate) fn is_in_memory(fd: impl AsFd) -> Result<bool> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    // The field's width and sign differ between architectures; the magic numbers have 32 bits.
    #[allow(clippy::cast_sign_loss)]
    let magic = rustix::fs::fstatfs(fd)?.f_type as u64 & 0xffff_ffff;
    Ok(matches!(magic, TMPFS_MAGIC | RAMFS_MAGIC))
}

/// What it is.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Permission bits, setuid, setgid and sticky included.
pub(crate) fn bits(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

/// Removes a folder with everything in it. Stops at a mount (`XDEV`, or `BUSY` for one over a file).
/// `before` is called before each removal.
pub(crate) fn remove_tree(dir: impl AsFd, name: &CStr, before: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    fn empty(folder: &OwnedFd, depth: usize, before: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        for (name, kind) in list(folder)? {
            if kind == FileType::Directory {
                empty(&open_dir(folder, &name)?, depth + 1, before)?;
                before()?;
                unlinkat(folder, &name, AtFlags::REMOVEDIR)?;
            } else {
                before()?;
                unlinkat(folder, &name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
    empty(&open_dir(&dir, name)?, 0, before)?;
    before()?;
    unlinkat(dir, name, AtFlags::REMOVEDIR)
}
