//! Loop devices: attach with one atomic ioctl, detach, and find by backing file (device and inode, never text).

use std::path::{Path, PathBuf};

/// Attaches a file to a free loop device and returns its path (`/dev/loop3`).
pub fn attach(backing: &Path, read_only: bool) -> std::io::Result<PathBuf> {
    let _ = (backing, read_only);
    todo!()
}

/// Detaches a loop device. Already detached is done.
pub fn detach(device: &Path) -> std::io::Result<()> {
    let _ = device;
    todo!()
}

/// The loop devices whose backing file is this file, by device and inode as the kernel tells.
pub fn find(backing: &Path) -> std::io::Result<Vec<PathBuf>> {
    let _ = backing;
    todo!()
}
