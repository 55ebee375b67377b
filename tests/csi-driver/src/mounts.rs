//! Mounting, and asking what is mounted.

use std::ffi::CString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::disk::FileSystem;
use refloat_mount::MountTable;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

/// More mounts than this over one another are not taken down one by one.
const MAX_STACK: usize = 64;

/// The mount table now.
pub(crate) fn table() -> io::Result<MountTable> {
    Ok(MountTable::from_mountinfo(&std::fs::read("/proc/self/mountinfo")?).0)
}

pub(crate) fn is_mounted(path: &Path) -> io::Result<bool> {
    Ok(table()?.at(path).is_some())
}

/// Whether a mount of this device, or of its node, is anywhere.
pub(crate) fn is_in_use(device: &Path) -> io::Result<bool> {
    let number = std::fs::metadata(device)?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let name = device.file_name().unwrap_or_default();
    let table = table()?;
    Ok(table.iter().any(|mount| {
        let of_device = (mount.device().major, mount.device().minor) == (major, minor);
        let of_node = mount.fs_type() == "devtmpfs" && mount.root_path().file_name() == Some(name);
        of_device || of_node
    }))
}

/// Whether what is mounted at this path is this device's file system.
pub(crate) fn is_device_at(device: &Path, path: &Path) -> io::Result<bool> {
    let number = std::fs::metadata(device)?.rdev();
    let wanted = (rustix::fs::major(number), rustix::fs::minor(number));
    Ok(table()?.at(path).is_some_and(|mount| (mount.device().major, mount.device().minor) == wanted))
}

/// Mounts a device's file system.
pub(crate) fn mount_device(
    device: &Path,
    target: &Path,
    file_system: FileSystem,
    options: &[String],
    read_only: bool,
) -> io::Result<()> {
    let (mut flags, data) = parse(options);
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    let data = CString::new(data).map_err(io::Error::other)?;
    rustix::mount::mount(device, target, file_system.name(), flags, data.as_c_str())?;
    private(target)
}

/// Mounts an empty file system in memory.
pub(crate) fn mount_memory(target: &Path, read_only: bool) -> io::Result<()> {
    let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    rustix::mount::mount("refloat-test", target, "tmpfs", flags, c"size=16m,mode=0777")?;
    private(target)
}

/// Shows a folder or file at a second place.
pub(crate) fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    rustix::mount::mount_bind(source, target)?;
    if read_only {
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        if let Err(error) = rustix::mount::mount_remount(target, flags, c"") {
            // Never leave it writable.
            let _ = rustix::mount::unmount(target, UnmountFlags::DETACH);
            return Err(error.into());
        }
    }
    private(target)
}

/// So that a mount does not multiply on a machine where everything is shared.
fn private(target: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_change(target, MountPropagationFlags::PRIVATE)?)
}

/// Unmounts all that is mounted at a path.
pub(crate) fn unmount_all(path: &Path) -> io::Result<()> {
    for _ in 0..MAX_STACK {
        if !is_mounted(path)? {
            return Ok(());
        }
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)?;
    }
    Err(io::Error::other("there are too many mounts over one another"))
}

/// Mount options as flags, and the rest as text.
fn parse(options: &[String]) -> (MountFlags, String) {
    let mut flags = MountFlags::empty();
    let mut data = Vec::new();
    for option in options.iter().flat_map(|option| option.split(',')).filter(|option| !option.is_empty()) {
        match option {
            "ro" => flags |= MountFlags::RDONLY,
            "noatime" => flags |= MountFlags::NOATIME,
            "nodiratime" => flags |= MountFlags::NODIRATIME,
            "nodev" => flags |= MountFlags::NODEV,
            "noexec" => flags |= MountFlags::NOEXEC,
            "nosuid" => flags |= MountFlags::NOSUID,
            "sync" => flags |= MountFlags::SYNCHRONOUS,
            "rw" | "defaults" => {}
            other => data.push(other),
        }
    }
    (flags, data.join(","))
}
