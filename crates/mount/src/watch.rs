//! Notices that the mount table changed, without reading it.

use std::os::fd::{AsFd, BorrowedFd};

/// A descriptor that becomes ready (`POLLPRI`) when the mount table of this namespace changed: a mount came, went, was
/// moved or got other options. Renamed folders above a mount point do not wake it.
#[derive(Debug)]
pub struct TableWatch {
    file: std::fs::File,
}

impl TableWatch {
    /// Opens the watch. Changes from now on are seen.
    pub fn open() -> std::io::Result<Self> {
        Ok(Self { file: std::fs::File::open(crate::table::MOUNTINFO)? })
    }
}

/// To poll for `POLLPRI | POLLERR`. Polling itself re-arms it.
impl AsFd for TableWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
