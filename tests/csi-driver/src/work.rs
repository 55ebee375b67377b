//! What the node service does. Everything here blocks, and may be called again after any crash.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use refloat_csi::proto::csi::volume_capability::access_mode::Mode;
use refloat_csi::proto::csi::volume_capability::{AccessMode, AccessType};
use refloat_csi::proto::csi::volume_usage::Unit;
use refloat_csi::proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability, VolumeUsage,
};
use tonic::Status;

use crate::answer::{Driver, internal};
use crate::disk::{FileSystem, Volume};
use crate::mounts;

/// The key by which an inline ephemeral volume is known.
///
/// # Source
/// `podInfoOnMount` in the CSI documentation of Kubernetes.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// How a volume is asked for.
enum Wanted<'a> {
    Block,
    Mount { file_system: Option<FileSystem>, options: &'a [String], group: &'a str },
}

impl<'a> Wanted<'a> {
    fn of(capability: Option<&'a VolumeCapability>) -> Result<(Self, Mode), Status> {
        let capability = capability.ok_or_else(|| missing("volume_capability"))?;
        let mode = capability.access_mode.as_ref().map(AccessMode::mode).ok_or_else(|| missing("access_mode"))?;
        match &capability.access_type {
            Some(AccessType::Block(_)) => Ok((Self::Block, mode)),
            Some(AccessType::Mount(mount)) => {
                let all = [FileSystem::Ext4, FileSystem::Xfs];
                let file_system = all.into_iter().find(|one| one.name() == mount.fs_type);
                if file_system.is_none() && !mount.fs_type.is_empty() {
                    return Err(Status::invalid_argument(format!("there is no file system {}", mount.fs_type)));
                }
                Ok((Self::Mount { file_system, options: &mount.mount_flags, group: &mount.volume_mount_group }, mode))
            }
            None => Err(missing("access_type")),
        }
    }
}

impl Driver {
    pub(crate) fn stage(&self, request: &NodeStageVolumeRequest) -> Result<(), Status> {
        required(&[("volume_id", &request.volume_id), ("staging_target_path", &request.staging_target_path)])?;
        let (wanted, _) = Wanted::of(request.volume_capability.as_ref())?;
        let mut volume = self.find_or_make(&request.volume_id)?;
        volume.staged.insert(request.staging_target_path.clone());
        self.disks.save(&volume).map_err(internal("save the volume"))?;
        match wanted {
            Wanted::Block => self.disks.attach(&volume.id).map(drop).map_err(internal("attach")),
            Wanted::Mount { file_system, options, group } => {
                let path = real(&request.staging_target_path)?;
                self.mount(&volume, &path, file_system, options, false)?;
                give_to_group(&path, group)
            }
        }
    }

    pub(crate) fn unstage(&self, request: &NodeUnstageVolumeRequest) -> Result<(), Status> {
        required(&[("volume_id", &request.volume_id), ("staging_target_path", &request.staging_target_path)])?;
        if let Ok(path) = real(&request.staging_target_path) {
            mounts::unmount_all(&path).map_err(internal("unmount"))?;
        }
        let Some(mut volume) = self.disks.load(&request.volume_id).map_err(internal("read the volume"))? else {
            return Ok(());
        };
        volume.staged.remove(&request.staging_target_path);
        // First detached, then forgotten.
        self.detach_if_unused(&volume)?;
        self.disks.save(&volume).map_err(internal("save the volume"))
    }

    pub(crate) fn publish(&self, request: &NodePublishVolumeRequest) -> Result<(), Status> {
        required(&[("volume_id", &request.volume_id), ("target_path", &request.target_path)])?;
        let (wanted, mode) = Wanted::of(request.volume_capability.as_ref())?;
        let target = real(&request.target_path)?;
        let read_only = request.readonly || matches!(mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly);
        if request.volume_context.get(EPHEMERAL).is_some_and(|value| value == "true") {
            make_folder(&target)?;
            if mounts::is_mounted(&target).map_err(internal("read the mount table"))? {
                return Ok(());
            }
            return mounts::mount_memory(&target, read_only).map_err(internal("mount a tmpfs"));
        }
        let staging = &request.staging_target_path;
        if !self.options.no_stage && staging.is_empty() {
            return Err(Status::failed_precondition("staging_target_path is missing"));
        }
        let mut volume =
            if self.options.no_stage { self.find_or_make(&request.volume_id)? } else { self.find(&request.volume_id)? };
        check_writers(&volume, mode, &request.target_path)?;
        volume.published.insert(request.target_path.clone());
        self.disks.save(&volume).map_err(internal("save the volume"))?;
        match wanted {
            Wanted::Block => {
                let device = if self.options.no_stage {
                    self.disks.attach(&volume.id).map_err(internal("attach"))?
                } else {
                    let device = self.disks.device(&volume.id).map_err(internal("find the device"))?;
                    device.ok_or_else(|| Status::failed_precondition("the volume is not staged"))?
                };
                make_file(&target)?;
                if mounts::is_mounted(&target).map_err(internal("read the mount table"))? {
                    return Ok(());
                }
                // A device node that is read-only itself is another matter; nobody writes by this path's own right.
                mounts::bind(&device, &target, false).map_err(internal("bind the device"))
            }
            Wanted::Mount { file_system, options, group } if self.options.no_stage => {
                make_folder(&target)?;
                self.mount(&volume, &target, file_system, options, read_only)?;
                if read_only { Ok(()) } else { give_to_group(&target, group) }
            }
            Wanted::Mount { .. } => {
                let staging = real(staging)?;
                let device = self.disks.device(&volume.id).map_err(internal("find the device"))?;
                let staged = device.as_ref().is_some_and(|d| mounts::is_device_at(d, &staging).unwrap_or(false));
                if !staged {
                    return Err(Status::failed_precondition("the volume is not staged"));
                }
                make_folder(&target)?;
                if mounts::is_mounted(&target).map_err(internal("read the mount table"))? {
                    return Ok(());
                }
                mounts::bind(&staging, &target, read_only).map_err(internal("bind"))
            }
        }
    }

    pub(crate) fn unpublish(&self, request: &NodeUnpublishVolumeRequest) -> Result<(), Status> {
        required(&[("volume_id", &request.volume_id), ("target_path", &request.target_path)])?;
        if let Ok(target) = real(&request.target_path) {
            mounts::unmount_all(&target).map_err(internal("unmount"))?;
            remove(&target).map_err(internal("remove the target"))?;
        }
        let Some(mut volume) = self.disks.load(&request.volume_id).map_err(internal("read the volume"))? else {
            return Ok(());
        };
        volume.published.remove(&request.target_path);
        if self.options.no_stage {
            self.detach_if_unused(&volume)?;
        }
        self.disks.save(&volume).map_err(internal("save the volume"))
    }

    pub(crate) fn expand(&self, request: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Status> {
        required(&[("volume_id", &request.volume_id), ("volume_path", &request.volume_path)])?;
        let mut volume = self.find(&request.volume_id)?;
        let path = mounted(&request.volume_path)?;
        let range = request.capacity_range.unwrap_or_default();
        let wanted = u64::try_from(range.required_bytes).unwrap_or(0).max(volume.capacity);
        if range.limit_bytes > 0 && wanted > u64::try_from(range.limit_bytes).unwrap_or(0) {
            return Err(Status::out_of_range("the volume is larger than the limit"));
        }
        let folder = path.is_dir().then_some(path.as_path());
        self.disks.grow(&mut volume, wanted, folder).map_err(internal("grow the volume"))?;
        Ok(NodeExpandVolumeResponse { capacity_bytes: volume.capacity.cast_signed() })
    }

    pub(crate) fn stats(&self, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Status> {
        required(&[("volume_id", &request.volume_id), ("volume_path", &request.volume_path)])?;
        let path = mounted(&request.volume_path)?;
        if !path.is_dir() {
            let total = self.find(&request.volume_id)?.capacity.cast_signed();
            let usage = vec![VolumeUsage { total, unit: Unit::Bytes.into(), ..VolumeUsage::default() }];
            return Ok(NodeGetVolumeStatsResponse { usage });
        }
        let seen = rustix::fs::statvfs(&path).map_err(|e| internal("ask the file system")(e.into()))?;
        let usage = |unit: Unit, size: u64, total: u64, free: u64, available: u64| VolumeUsage {
            unit: unit.into(),
            total: (total * size).cast_signed(),
            used: ((total - free) * size).cast_signed(),
            available: (available * size).cast_signed(),
        };
        let usage = vec![
            usage(Unit::Bytes, seen.f_frsize, seen.f_blocks, seen.f_bfree, seen.f_bavail),
            usage(Unit::Inodes, 1, seen.f_files, seen.f_ffree, seen.f_favail),
        ];
        Ok(NodeGetVolumeStatsResponse { usage })
    }

    pub(crate) fn find(&self, id: &str) -> Result<Volume, Status> {
        let found = self.disks.load(id).map_err(internal("read the volume"))?;
        found.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))
    }

    fn find_or_make(&self, id: &str) -> Result<Volume, Status> {
        match (self.find(id), self.options.create_missing) {
            (Err(_), Some(capacity)) => self.disks.create(id, "", capacity).map_err(internal("make the volume")),
            (found, _) => found,
        }
    }

    /// Mounts a volume's file system at an existing folder, unless it is there.
    fn mount(
        &self,
        volume: &Volume,
        path: &Path,
        file_system: Option<FileSystem>,
        options: &[String],
        read_only: bool,
    ) -> Result<(), Status> {
        let wanted = file_system.unwrap_or(self.options.default_fs);
        let found = self.disks.format(volume, wanted).map_err(internal("make a file system"))?;
        if file_system.is_some_and(|wanted| wanted != found) {
            return Err(Status::invalid_argument(format!("the volume has a file system {}", found.name())));
        }
        let device = self.disks.attach(&volume.id).map_err(internal("attach"))?;
        if mounts::is_mounted(path).map_err(internal("read the mount table"))? {
            let ours = mounts::is_device_at(&device, path).map_err(internal("read the mount table"))?;
            return if ours { Ok(()) } else { Err(Status::internal("something else is mounted there")) };
        }
        mounts::mount_device(&device, path, found, options, read_only).map_err(internal("mount"))
    }

    /// Detaches a volume that is staged nowhere, and mounted nowhere that this process sees.
    fn detach_if_unused(&self, volume: &Volume) -> Result<(), Status> {
        let Some(device) = self.disks.device(&volume.id).map_err(internal("find the device"))? else { return Ok(()) };
        if !volume.staged.is_empty() || mounts::is_in_use(&device).map_err(internal("read the mount table"))? {
            return Ok(());
        }
        self.disks.detach(&volume.id).map_err(internal("detach"))
    }
}

/// A volume for a single writer is published once.
fn check_writers(volume: &Volume, mode: Mode, target: &str) -> Result<(), Status> {
    let elsewhere = || volume.published.iter().any(|other| other != target && mounted(other).is_ok());
    if mode == Mode::SingleNodeSingleWriter && elsewhere() {
        return Err(Status::failed_precondition("the volume has a single writer and is published elsewhere"));
    }
    Ok(())
}

fn missing(field: &str) -> Status {
    Status::invalid_argument(format!("{field} is missing"))
}

pub(crate) fn required(fields: &[(&str, &str)]) -> Result<(), Status> {
    match fields.iter().find(|(_, value)| value.is_empty()) {
        Some((field, _)) => Err(missing(field)),
        None => Ok(()),
    }
}

/// A path as the mount table spells it: symlinks above its last part are followed.
fn real(path: &str) -> Result<PathBuf, Status> {
    let path = Path::new(path);
    let (Some(parent), Some(name)) = (path.parent().filter(|_| path.is_absolute()), path.file_name()) else {
        return Err(Status::invalid_argument(format!("{} is no absolute path", path.display())));
    };
    Ok(std::fs::canonicalize(parent).map_err(internal("find the path"))?.join(name))
}

/// The path of something that is mounted.
fn mounted(path: &str) -> Result<PathBuf, Status> {
    let found = real(path).ok().filter(|path| mounts::is_mounted(path).unwrap_or(false));
    found.ok_or_else(|| Status::not_found(format!("no volume is at {path}")))
}

fn make_folder(path: &Path) -> Result<(), Status> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(internal("make the target")(error)),
        _ => Ok(()),
    }
}

fn make_file(path: &Path) -> Result<(), Status> {
    match std::fs::File::options().write(true).create_new(true).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(internal("make the target")(error)),
        _ => Ok(()),
    }
}

/// Removes an empty folder or a file; gone is done.
fn remove(path: &Path) -> io::Result<()> {
    crate::disk::gone(match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    })
}

/// Gives a volume to a group, if there is one to give it to.
fn give_to_group(path: &Path, group: &str) -> Result<(), Status> {
    if group.is_empty() {
        return Ok(());
    }
    let group = group.parse().map_err(|_| Status::invalid_argument("volume_mount_group is no number"))?;
    std::os::unix::fs::chown(path, None, Some(group))
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o2775)))
        .map_err(internal("give the volume to the group"))
}
