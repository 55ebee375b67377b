//! Opening paths beneath a folder, and finding out what stood in the way.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Components, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::PathError;

/// What to do at a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Xdev {
    /// Fail with EXDEV, also for a bind of the same device.
    Stop,
    /// Go into it.
    Cross,
}

/// The elements of a relative path that has nothing but names. `.` alone is the root: no elements.
pub(super) fn checked(rel: &Path) -> Result<Names<'_>, PathError> {
    let escapes = || PathError::Escapes { path: rel.to_owned() };
    if rel.as_os_str().is_empty() {
        return Err(escapes());
    }
    let names = rel == Path::new(".") || rel.components().all(|part| matches!(part, Component::Normal(_)));
    if !names {
        return Err(escapes());
    }
    Ok(Names { path: rel, parts: rel.components() })
}

/// The names of a checked path.
pub(super) struct Names<'p> {
    path: &'p Path,
    parts: Components<'p>,
}

impl<'p> Iterator for Names<'p> {
    type Item = &'p OsStr;
    fn next(&mut self) -> Option<&'p OsStr> {
        self.parts.find_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
    }
}

/// The folder (empty: the root) and the last name. `None` for the root itself.
#[allow(clippy::needless_pass_by_value)] // a path is checked once
pub(super) fn split(names: Names<'_>) -> Option<(&Path, &OsStr)> {
    Some((names.path.parent()?, names.path.file_name()?))
}

/// `openat2` beneath a folder, following nothing.
pub(super) fn open_beneath(dir: impl AsFd, rel: &Path, flags: OFlags, xdev: Xdev) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if xdev == Xdev::Stop {
        resolve |= ResolveFlags::NO_XDEV;
    }
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(&dir, rel, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // EAGAIN: a rename elsewhere raced with the walk and the kernel could not be sure.
            Err(Errno::INTR | Errno::AGAIN) if tries < 128 => tries += 1,
            answer => return answer,
        }
    }
}

/// The path of an open descriptor as the kernel spells it now.
pub(crate) fn path_of(fd: impl AsFd) -> io::Result<PathBuf> {
    std::fs::read_link(proc_path(fd))
}

/// The path that stands for an open descriptor.
pub(crate) fn proc_path(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/thread-self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Opens an absolute path that holds no symlink, crossing mounts. For paths that the kernel itself spelled.
pub(crate) fn open_real(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Opens one name in a folder as what it is (`O_PATH`), failing with EXDEV if something is mounted there. Neither
/// follows it nor asks the mounted file system anything.
pub(crate) fn open_entry(dir: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    open_beneath(dir, Path::new(name), OFlags::PATH | OFlags::NOFOLLOW, Xdev::Stop)
}

/// Makes one folder with exactly this mode if it is missing, and opens it.
pub(super) fn make_dir(
    parent: impl AsFd,
    name: &Path,
    mode: u32,
    doing: &'static str,
    shown: &Path,
) -> Result<OwnedFd, PathError> {
    let parent = parent.as_fd();
    let mode = Mode::from_raw_mode(mode & 0o7777);
    let io = |errno: Errno| PathError::Io { doing, path: shown.to_owned(), source: errno.into() };
    let open = || open_beneath(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, Xdev::Stop);
    // A folder that vanishes between the two calls is made again.
    for _ in 0..16 {
        match open() {
            Ok(fd) => return Ok(fd),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(diagnose(parent, name, errno, doing, shown)),
        }
        match rustix::fs::mkdirat(parent, name, mode) {
            Ok(()) => {}
            Err(Errno::EXIST) => continue,
            Err(errno) => return Err(io(errno)),
        }
        match open() {
            Ok(fd) => {
                if Mode::from_raw_mode(rustix::fs::fstat(&fd).map_err(io)?.st_mode & 0o7777) != mode {
                    rustix::fs::fchmod(&fd, mode).map_err(io)?;
                }
                return Ok(fd);
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(diagnose(parent, name, errno, doing, shown)),
        }
    }
    Err(io(Errno::AGAIN))
}

/// Turns what `open_beneath` said into an error that names the part of the path that is to blame. `shown` is the
/// absolute path of `rel`.
pub(super) fn diagnose(dir: impl AsFd, rel: &Path, errno: Errno, doing: &'static str, shown: &Path) -> PathError {
    let path = shown.to_owned();
    let part = |part: Option<PathBuf>| part.unwrap_or_else(|| shown.to_owned());
    match errno {
        Errno::LOOP => {
            let link = first_failing(&dir, rel, Errno::LOOP, shown);
            PathError::Symlink { doing, link: part(link), path }
        }
        Errno::XDEV => {
            let mount = first_failing(&dir, rel, Errno::XDEV, shown);
            PathError::Mount { doing, mount: part(mount), path }
        }
        Errno::NOTDIR => match blocking_part(&dir, rel, shown) {
            Some((link, FileType::Symlink)) => PathError::Symlink { doing, link, path },
            found => PathError::NotAFolder { doing, part: part(found.map(|(part, _)| part)), path },
        },
        errno => PathError::Io { doing, path, source: errno.into() },
    }
}

/// Each beginning of `rel` with its absolute path.
fn beginnings<'p>(rel: &'p Path, shown: &'p Path) -> impl Iterator<Item = (PathBuf, PathBuf)> + 'p {
    let names = rel.components().count();
    let above: PathBuf = {
        let all: Vec<_> = shown.components().collect();
        all[..all.len().saturating_sub(names)].iter().collect()
    };
    (1..=names).map(move |count| {
        let part: PathBuf = rel.components().take(count).collect();
        let absolute = above.join(&part);
        (part, absolute)
    })
}

fn first_failing(dir: impl AsFd, rel: &Path, errno: Errno, shown: &Path) -> Option<PathBuf> {
    beginnings(rel, shown).find_map(|(part, absolute)| {
        let answer = open_beneath(&dir, &part, OFlags::PATH | OFlags::DIRECTORY, Xdev::Stop);
        (answer.err() == Some(errno)).then_some(absolute)
    })
}

/// The first part that is no folder, and what it is.
fn blocking_part(dir: impl AsFd, rel: &Path, shown: &Path) -> Option<(PathBuf, FileType)> {
    beginnings(rel, shown).find_map(|(part, absolute)| {
        let fd = open_beneath(&dir, &part, OFlags::PATH | OFlags::NOFOLLOW, Xdev::Stop).ok()?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd).ok()?.st_mode);
        (kind != FileType::Directory).then_some((absolute, kind))
    })
}
