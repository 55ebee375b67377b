//! Calls that may never come back, made by a child process.
//!
//! The unmount of a file system whose device or server does not answer waits in the kernel where no signal reaches it. A
//! thread that waits there keeps its whole process from ending; a child keeps nobody. It ends by itself when the
//! file system answers at last.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use rustix::time::Timespec;

use crate::sys::{self, ChildCall};
use crate::{Device, Mount};

/// A child that makes one call.
#[derive(Debug)]
pub(super) struct Child {
    pidfd: OwnedFd,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// With what the call answered.
    Answered(Result<(), Errno>),
    /// By a signal: it is not known how far it came.
    Killed,
}

impl Child {
    /// Unmounts the entry of an open folder.
    pub(super) fn unmount(folder: impl AsFd, name: &OsStr, flags: u32) -> io::Result<Self> {
        let path = path_in_child(&folder, name)?;
        Self::start(folder, ChildCall::Unmount(&path, flags.cast_signed()))
    }

    /// Asks the file system at the entry of an open folder for its numbers.
    pub(super) fn stat_fs(folder: impl AsFd, name: &OsStr) -> io::Result<Self> {
        let path = path_in_child(&folder, name)?;
        Self::start(folder, ChildCall::StatFs(&path))
    }

    /// Writes to an open file.
    fn write(file: impl AsFd, text: &[u8]) -> io::Result<Self> {
        Self::start(file, ChildCall::Write(text))
    }

    fn start(folder: impl AsFd, call: ChildCall<'_>) -> io::Result<Self> {
        let id = sys::call_in_child(folder, call)?;
        let pid = Pid::from_raw(id).ok_or_else(|| io::Error::other("fork answered no process id"))?;
        // Nobody else waits for it, so the id stays its own until then.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pidfd })
    }

    /// Waits for its end at most this long.
    pub(super) fn wait(&self, patience: Duration) -> io::Result<Option<Ended>> {
        let end = Instant::now() + patience;
        loop {
            if let Some(ended) = self.try_wait()? {
                return Ok(Some(ended));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = Timespec::try_from(left).ok();
            match rustix::event::poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn try_wait(&self) -> io::Result<Option<Ended>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let Some(status) = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options)? else {
            return Ok(None);
        };
        Ok(Some(match status.exit_status() {
            Some(0) => Ended::Answered(Ok(())),
            Some(errno) => Ended::Answered(Err(Errno::from_raw_os_error(errno))),
            None => Ended::Killed,
        }))
    }

    pub(super) fn kill(&self) {
        // It may have ended meanwhile.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// Writes to an open file of the kernel's and waits at most this long. `false`: it has not come back, and goes on by itself.
///
/// # Errors
/// What the write answered, or why there was no child to make it.
pub fn write_within(file: impl AsFd, text: &[u8], patience: Duration) -> io::Result<bool> {
    match Child::write(file, text)?.wait(patience)? {
        None => Ok(false),
        Some(Ended::Answered(answer)) => answer.map(|()| true).map_err(io::Error::from),
        Some(Ended::Killed) => Err(io::Error::other("the process that wrote it was killed")),
    }
}

/// The path of an entry as the child, which has the folder open under the same number, spells it.
fn path_in_child(folder: &impl AsFd, name: &OsStr) -> io::Result<CString> {
    use std::os::fd::AsRawFd;
    let mut path = format!("/proc/self/fd/{}/", folder.as_fd().as_raw_fd()).into_bytes();
    path.extend_from_slice(name.as_bytes());
    Ok(CString::new(path)?)
}

/// An unmount that has not come back in time. A child process waits for it, and ends when the file system answers.
///
/// Becomes readable when the child has ended ([`PendingUnmount::has_ended`]); dropping it leaves the child alone.
#[derive(Debug)]
pub struct PendingUnmount {
    pub(super) child: Child,
    pub(super) path: PathBuf,
    pub(super) device: Device,
    pub(super) fs_type: String,
}

impl PendingUnmount {
    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The type of the file system.
    pub fn fs_type(&self) -> &str {
        &self.fs_type
    }

    /// Whether it has come back. Only the mount table says whether it worked.
    pub fn has_ended(&self) -> bool {
        // What cannot be waited for is not there any more.
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether the file system is one that a server or daemon stands behind, and no block device of this machine.
    pub fn is_served(&self) -> bool {
        self.device.major == 0 || self.fs_type.starts_with("fuse")
    }

    /// Makes it give up, as `umount -f` does for what can still be reached by its path: the connection to a FUSE daemon is
    /// aborted, and the child is killed, so that it stops waiting where the kernel lets it. What was not written yet is
    /// lost. Comes back at once.
    ///
    /// # Source
    /// `/sys/fs/fuse/connections/<minor>/abort`: "Aborting a filesystem connection" in the kernel's fuse.rst.
    pub fn give_up(&self) {
        if self.fs_type.starts_with("fuse") {
            let abort = format!("/sys/fs/fuse/connections/{}/abort", self.device.minor);
            // Where this is not to be had the other half has to do.
            let _ = std::fs::write(abort, "1");
        }
        self.child.kill();
    }
}

impl AsFd for PendingUnmount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.child.pidfd.as_fd()
    }
}

/// Whether unmounting the last mount of this may wait for a device or a server: what lives in memory does not. (Taking one of
/// several mounts of a file system away asks nobody.)
pub(super) fn asks_somebody(mount: Mount<'_>) -> bool {
    let in_memory = ["tmpfs", "ramfs", "hugetlbfs", "devtmpfs", "proc", "sysfs", "cgroup", "cgroup2", "mqueue"];
    !in_memory.contains(&&*mount.fs_type())
}
