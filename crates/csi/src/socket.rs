//! Unix sockets by identity: a socket that was looked at is the one that is connected to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use tokio::net::UnixStream;

/// A socket file that is held open, so that nothing else can get its inode number.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    path: PathBuf,
    id: SocketId,
}

/// What tells a socket from another at the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketId {
    device: u64,
    inode: u64,
}

impl Socket {
    /// The socket at a path. Symlinks are followed: the node's root may be one.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Self::of(fd, path)
    }

    /// The socket that this descriptor (opened with `O_PATH`) is of.
    pub(crate) fn of(fd: OwnedFd, path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no socket"));
        }
        let id = SocketId { device: stat.st_dev, inode: stat.st_ino };
        Ok(Self { fd, path: path.to_owned(), id })
    }

    /// Whether the path still leads to this socket. An error is a no.
    pub(crate) fn is_current(&self) -> bool {
        rustix::fs::stat(&self.path).is_ok_and(|s| SocketId { device: s.st_dev, inode: s.st_ino } == self.id)
    }

    pub(crate) fn id(&self) -> SocketId {
        self.id
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Connects. Through the descriptor, so that it is this socket whatever its path says by now, and so that its
    /// path may be longer than the 107 bytes of a socket address.
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(descriptor_path(&self.fd)).await
    }
}

/// A path that leads to what a descriptor is of.
pub(crate) fn descriptor_path(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}
