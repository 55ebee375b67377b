//! Lets a mounted file system fill its device again, after that has grown.

use std::ffi::OsStr;
use std::path::Path;

use crate::{Host, VolumeError, run_tool};

/// Grows what is mounted at a path to the size of its device, online. Answers whether there was something that can grow: of
/// other file systems, and where nothing is mounted, there is nothing to do.
///
/// # Source
/// `ResizeFs.Resize` of `k8s.io/mount-utils`: ext3, ext4, xfs and btrfs, each by its own tool.
pub(crate) fn grow_file_system(host: &Host, path: &Path) -> Result<bool, VolumeError> {
    let table = host.mount_table().map_err(VolumeError::Table)?;
    let Some(mount) = table.at(path) else { return Ok(false) };
    let source = mount.source();
    if !source.starts_with("/dev/") {
        return Ok(false);
    }
    let (program, args): (_, &[&OsStr]) = match &*mount.fs_type() {
        "ext3" | "ext4" => ("resize2fs", &[OsStr::new(&*source)]),
        "xfs" => ("xfs_growfs", &[OsStr::new("-d"), path.as_os_str()]),
        "btrfs" => ("btrfs", &[OsStr::new("filesystem"), OsStr::new("resize"), OsStr::new("max"), path.as_os_str()]),
        _ => return Ok(false),
    };
    let output = run_tool(program, args, host.tool_deadline).and_then(|output| output.success(program));
    output.map(|_| true).map_err(VolumeError::Tool)
}
