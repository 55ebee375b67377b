//! SetUp of a volume whose folder is a bind: of the root of its device's mount, or of another folder of the node.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use refloat_mount::{BindOptions, Device, MountTable, NewMount};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::known::no_folder;
use crate::tear_down::{is_own, other_mount};
use crate::{Problem, SetUp, VolumeError};

/// Binds the device's mount to the pod's folder; where the volume has no device, what `source` opens, with its path for messages.
/// Options that changed are set again.
pub(super) fn set_up(
    step: &SetUp<'_>,
    read_only: bool,
    source: impl FnOnce() -> Result<(OwnedFd, PathBuf), VolumeError>,
) -> Result<(), VolumeError> {
    let options = BindOptions { read_only, options: step.spec.mount_options.clone(), ..BindOptions::default() };
    let path = step.path.ok_or_else(no_folder)?;
    if step.mounted {
        // The group was given before it was attached.
        step.announce(None, None)?;
        return crate::set_options_again(step.host, path, &options);
    }
    let table = step.host.mount_table().map_err(VolumeError::Table)?;
    let absolute = step.host.absolute(path);
    if let Some(found) = table.at(&absolute) {
        return Err(VolumeError::Refused(other_mount(&absolute, found)));
    }
    super::refuse_hidden_data(step.host, path)?;
    let (fd, shown) = of_device(step, &table).unwrap_or_else(source)?;
    let ignored = options.ignored();
    // Those of a device went to its file system.
    if step.device.is_none() && !ignored.is_empty() {
        tracing::warn!(
            code = "MountOptionIgnored",
            "the PersistentVolume {} is a folder, and its mount options {ignored:?} are those of a file system: they change \
             nothing",
            step.spec.spec_name
        );
    }
    let mount = NewMount::bind(step.host.kernel, fd.as_fd(), &shown, &options).map_err(VolumeError::Mount)?;
    let announced = step.announce(Some(&mount), None)?;
    if let Some(group) = step.fs_group
        && !options.is_read_only()
    {
        share(step, &fd, &shown, group, &mount.announced().2, &table)?;
    }
    let dir = announced.make_volume_dir(0o750)?;
    announced.attach(mount, &dir)
}

/// The root of the device's mount, if the volume has a device.
fn of_device(step: &SetUp<'_>, table: &MountTable) -> Option<Result<(OwnedFd, PathBuf), VolumeError>> {
    let device = step.device?;
    let open = || {
        let missing = || not_mounted(&format!("the volume {}", step.spec.spec_name));
        let absolute = step.host.absolute(&device.device_mount_path);
        let expected = step.host.announced_mount(device.mount.as_ref(), &device.boot_id);
        match (table.at(&absolute), &expected) {
            (Some(top), Some(expected)) if is_own(top, expected) => {}
            (Some(top), _) => return Err(VolumeError::Refused(other_mount(&absolute, top))),
            (None, _) => return Err(missing()),
        }
        let dir = step.host.root.open_dir_in_mount(device.device_mount_path.as_path()).map_err(VolumeError::Path)?;
        let dir = dir.ok_or_else(missing)?;
        let fd = dir.as_fd().try_clone_to_owned().map_err(|source| VolumeError::Io {
            doing: "hold open",
            path: absolute.clone(),
            source,
        })?;
        Ok((fd, absolute))
    };
    Some(open())
}

/// The problem of a device that MountDevice has not mounted. `who` is the volume.
pub(super) fn not_mounted(who: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "DeviceNotMounted",
        format!("{who} cannot be used: its device is not mounted yet"),
        "MountDevice comes first; see what it says of this volume",
    ))
}

/// Gives the volume to the pod's group, unless another pod has it mounted already: then its group stays.
///
/// # Source
/// `SetUpAt` of `pkg/volume/local`: the owner is written only once, on the first mount.
fn share(
    step: &SetUp<'_>,
    fd: &OwnedFd,
    shown: &Path,
    group: refloat_record::FsGroup,
    root: &str,
    table: &MountTable,
) -> Result<(), VolumeError> {
    let io = |doing| move |source: Errno| VolumeError::Io { doing, path: shown.to_path_buf(), source: source.into() };
    let stat = rustix::fs::fstat(fd).map_err(io("look at"))?;
    let device = Device { major: rustix::fs::major(stat.st_dev), minor: rustix::fs::minor(stat.st_dev) };
    if let Some(other) = pod_mount(table, device, Path::new(root), step.host.root.path()) {
        if stat.st_gid != group.gid {
            tracing::warn!(
                code = "AlreadyMountedVolume",
                "the requested fsGroup is {}, but the volume {} has the group {} and is in use at {}; it may not be shareable",
                group.gid,
                step.spec.spec_name,
                stat.st_gid,
                other.display()
            );
        }
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(fd, ".", flags, Mode::empty()).map_err(io("open"))?;
    crate::apply_fs_group(dir.as_fd(), shown, group, false)
}

/// Where a pod's volume folder below this node root shows this root of this file system, if any does.
pub(super) fn pod_mount(table: &MountTable, device: Device, root: &Path, node_root: &Path) -> Option<PathBuf> {
    let pods = node_root.join(crate::layout::PODS);
    table
        .same_root(device, root)
        .into_iter()
        .map(refloat_mount::Mount::point)
        .find(|p| p.starts_with(&pods))
        .map(Path::to_path_buf)
}
