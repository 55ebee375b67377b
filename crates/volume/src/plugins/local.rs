//! `local`: a persistent volume that is a folder or a block device of this node.
//!
//! | `spec.local.path` is | MountDevice | SetUp |
//! | --- | --- | --- |
//! | a folder | nothing | binds the folder to the pod's folder |
//! | a block device | checks it, makes a file system if it is truly blank, mounts it at `plugins/kubernetes.io/local-volume/mounts/<pv>` | binds that mount's root to the pod's folder |
//!
//! In block mode there is no MountDevice: the device is presented to each pod as [`crate::block`] tells, with the global map
//! path `plugins/kubernetes.io~local-volume/volumeDevices/<pv>` (the one place below `plugins/` where the kubelet escapes
//! the name).
//!
//! The path is the host's own, so symlinks in it are followed (`/dev/disk/by-id/…`). A device's mount is shared by all
//! pods that use the volume. TearDown is a plain unmount and an rmdir; the volume's data is never deleted.
//!
//! The kubelet cannot rebuild a folder-backed local volume after a restart (its spec has no path then). Without a
//! record the path is told here from the mount table: the root of the pod's mount, below the place where
//! the same file system is mounted, if there is exactly one such place.
//!
//! # Source
//! `pkg/volume/local`, `mount-utils` `SafeFormatAndMount` of Kubernetes v1.36.

mod block;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::LocalVolumeSource;
use refloat_mount::MountTable;
use refloat_record::{PluginName, PodUid, RelPath, SpecName, VolumeMode};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Map, Value};

use super::device_bind;
use super::{LOST_OF_PERSISTENT_VOLUME, node_root, rebuilt_persistent_volume};
use crate::disk::{self, Disk, Identity, Words};
use crate::tear_down::{living_root, other_mount};
use crate::{
    Capabilities, DeviceOutcome, FoundVolume, GlobalMount, MountDevice, Plugin, Presence, Problem, Rebuilt,
    RebuiltSpec, Reconstruction, SetUp, SpecError, SpecSource, TearDown, UnmountDevice, VolumeError, VolumeSpec,
};

/// The plugin `kubernetes.io/local-volume`.
#[derive(Debug, Clone, Copy)]
pub struct Local;

/// Where devices are mounted, relative to the node root.
const GLOBAL_MOUNTS: &str = "plugins/kubernetes.io/local-volume/mounts";

fn source(spec: &SpecSource) -> Option<&LocalVolumeSource> {
    spec.persistent_volume()?.typed.spec.as_ref()?.local.as_ref()
}

fn checked(spec: &VolumeSpec) -> Result<&LocalVolumeSource, SpecError> {
    let field = |field: &str, why: String| SpecError::Field {
        volume: spec.spec_name.to_string(),
        field: format!("spec.{field}"),
        why,
    };
    let local = source(&spec.source).ok_or_else(|| field("local", "is missing".into()))?;
    if let Some(why) = super::wrong_host_path(&local.path) {
        return Err(field("local.path", why));
    }
    super::check_fs_type(spec, "local.fsType", local.fs_type.as_deref())?;
    Ok(local)
}

fn spec_refused(error: &SpecError) -> VolumeError {
    VolumeError::Refused(Problem::new("BadSpec", error.to_string(), "correct the PersistentVolume"))
}

impl Plugin for Local {
    fn name(&self) -> PluginName {
        PluginName::new("kubernetes.io/local-volume").expect("a constant name")
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            attachable: false,
            device_mountable: true,
            block: true,
            content: false,
            verify: false,
            binds: true,
            reconstruction: Reconstruction::FromLayout,
            presence: Presence::Mount,
        }
    }

    fn supports(&self, spec: &SpecSource) -> bool {
        source(spec).is_some()
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        checked(spec).map(drop)
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        Ok(spec.spec_name.to_string())
    }

    fn device_mount_path(&self, spec: &VolumeSpec) -> Option<RelPath> {
        if spec.mode == VolumeMode::Block {
            return None;
        }
        RelPath::new(format!("{GLOBAL_MOUNTS}/{}", spec.spec_name)).ok()
    }

    fn map_path(&self, pod: &PodUid, spec_name: &SpecName) -> Option<RelPath> {
        block::map_path(pod, spec_name)
    }

    fn mount_device(&self, step: MountDevice<'_>) -> Result<DeviceOutcome, VolumeError> {
        let local = checked(step.spec).map_err(|e| spec_refused(&e))?;
        if step.mounted {
            step.announce(None, None, None)?;
            return Ok(DeviceOutcome::Mounted);
        }
        let table = step.host.mount_table().map_err(VolumeError::Table)?;
        let absolute = step.host.absolute(step.path);
        if let Some(found) = table.at(&absolute) {
            return Err(VolumeError::Refused(other_mount(&absolute, found)));
        }
        super::refuse_hidden_data(step.host, step.path)?;
        let (fd, kind) = open(&local.path)?;
        match kind {
            FileType::Directory if step.record.is_none() => Ok(DeviceOutcome::NotNeeded),
            FileType::Directory => Err(refused(
                "OtherDevice",
                &local.path,
                "it was a device when it was last mounted, and now it is a folder",
                "the device may be missing: see whether the path should be a symlink to it",
            )),
            FileType::BlockDevice => {
                let before = step.record.and_then(|record| record.provider_info.as_ref());
                let disk = Disk {
                    device: &fd,
                    given: Path::new(&local.path),
                    fs_type: local.fs_type.as_deref(),
                    read_only: false,
                    before: Identity::recorded(before, &local.path)?,
                    words: Words::LOCAL,
                    info: &Identity::to_verbatim,
                };
                disk::mount(&step, &disk).map(|()| DeviceOutcome::Mounted)
            }
            _ => Err(neither(&local.path)),
        }
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        let local = checked(step.spec).map_err(|e| spec_refused(&e))?;
        if step.spec.mode == VolumeMode::Block {
            return block::set_up(&step, local);
        }
        device_bind::set_up(&step, step.spec.read_only, || folder(local))
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        if step.record.mode == VolumeMode::Block {
            let map_path = block::map_path(&step.record.pod.uid, &step.record.spec_name);
            return crate::block::unmap(step, map_path.as_ref());
        }
        let path = step.record.path.as_ref().ok_or_else(no_folder)?;
        crate::unmount_nested(step.host, path)?;
        let expected = step.host.announced_mount(step.record.mount.as_ref(), &step.record.boot_id);
        crate::unmount_own_layers(step.host, path, expected.as_ref())?;
        crate::remove_volume_dir(step.host, path, false)
    }

    fn unmount_device(&self, step: &UnmountDevice<'_>) -> Result<(), VolumeError> {
        let path = &step.record.device_mount_path;
        let table = step.host.mount_table().map_err(VolumeError::Table)?;
        let absolute = step.host.absolute(path);
        if let Some(user) = table
            .at(&absolute)
            .and_then(|m| device_bind::pod_mount(&table, m.device(), m.root(), step.host.root.path()))
        {
            return Err(VolumeError::Refused(Problem::new(
                "DeviceInUse",
                format!("{} is still mounted for a pod at {}", absolute.display(), user.display()),
                "it is unmounted when the last pod that uses it is gone",
            )));
        }
        let expected = step.host.announced_mount(step.record.mount.as_ref(), &step.record.boot_id);
        crate::unmount_own_layers(step.host, path, expected.as_ref())?;
        crate::remove_volume_dir(step.host, path, false)
    }

    fn device_of(&self, found: FoundVolume<'_>) -> Option<GlobalMount> {
        if found.mode == VolumeMode::Block || !is_of_device(found) {
            return None;
        }
        let path = node_root(found.path)?.join(GLOBAL_MOUNTS).join(found.folder);
        Some(GlobalMount { path, volume_name: Some(found.folder.to_owned()) })
    }

    fn device_name(&self, rest: &str) -> Option<String> {
        Some(rest.to_owned())
    }

    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        let mut lost = LOST_OF_PERSISTENT_VOLUME.to_vec();
        let mut local = Map::new();
        if found.mode == VolumeMode::Block {
            // The symlink and the mount name the device as it was resolved, not as the spec has it.
            lost.push("spec.local.path");
            return Some(rebuilt(found.folder, local, VolumeMode::Block, lost));
        }
        match local_path(found).and_then(|path| path.into_os_string().into_string().ok()) {
            Some(path) => {
                local.insert("path".into(), path.into());
            }
            None => lost.push("spec.local.path"),
        }
        if is_of_device(found) {
            lost.push("spec.local.fsType");
        }
        Some(rebuilt(found.folder, local, VolumeMode::Filesystem, lost))
    }
}

fn rebuilt(name: &str, local: Map<String, Value>, mode: VolumeMode, lost: Vec<&'static str>) -> Rebuilt {
    let spec = rebuilt_persistent_volume(name, "local", &Value::Object(local), mode);
    Rebuilt {
        spec: RebuiltSpec::PersistentVolume(spec),
        lost,
        volume_name: None,
        provider_info: None,
        doubts: crate::Doubts::default(),
    }
}

/// The folder that is to be bound.
fn folder(local: &LocalVolumeSource) -> Result<(OwnedFd, PathBuf), VolumeError> {
    let (fd, kind) = open(&local.path)?;
    match kind {
        FileType::Directory => Ok((fd, PathBuf::from(&local.path))),
        FileType::BlockDevice => Err(device_bind::not_mounted(&format!("the local volume at {}", local.path))),
        _ => Err(neither(&local.path)),
    }
}

/// Opens a path of the host by name only, symlinks followed, and tells what it is.
fn open(path: &str) -> Result<(OwnedFd, FileType), VolumeError> {
    let io = |doing| move |source: Errno| VolumeError::Io { doing, path: PathBuf::from(path), source: source.into() };
    let fd = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => {
            return Err(refused(
                "LocalPathMissing",
                path,
                "nothing is there",
                "make the folder or attach the device on this node; it is tried again",
            ));
        }
        Err(error) => return Err(io("open")(error)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(io("look at"))?;
    Ok((fd, FileType::from_raw_mode(stat.st_mode)))
}

fn refused(code: &'static str, path: &str, why: &str, hint: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(code, format!("the local volume at {path} cannot be used: {why}"), hint))
}

fn neither(path: &str) -> VolumeError {
    refused(
        "LocalPathType",
        path,
        "it is neither a folder nor a block device",
        "correct spec.local.path of the PersistentVolume",
    )
}

fn no_folder() -> VolumeError {
    VolumeError::Refused(Problem::new(
        "NoFolder",
        "the record of a local volume has no path",
        "the record was changed by hand or by another program; `refloat record show` prints it",
    ))
}

/// Whether the volume comes from a device that is mounted at the plugin's global path.
fn is_of_device(found: FoundVolume<'_>) -> bool {
    let Some((mount, root)) = found.table.at(found.path).zip(node_root(found.path)) else { return false };
    let global = root.join(GLOBAL_MOUNTS).join(found.folder);
    found.table.at(&global).is_some_and(|m| m.device() == mount.device() && m.root() == mount.root())
}

/// The folder on the host that the mount at the pod's folder shows: below the one place outside the node root's pods and
/// global mounts where the same file system is mounted and seen. Two places, or none, tell nothing: a path is not
/// guessed. The path of a device is not told by the table.
fn local_path(found: FoundVolume<'_>) -> Option<PathBuf> {
    let mount = found.table.at(found.path)?;
    let node_root = node_root(found.path)?;
    if mount.root() != living_root(mount.root()) {
        return None;
    }
    let key = (mount.device(), mount.root().to_path_buf());
    let mut known = found.memo.host_paths.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    known.entry(key).or_insert_with(|| host_path(found.table, mount, node_root)).clone()
}

fn host_path(table: &MountTable, mount: refloat_mount::Mount<'_>, node_root: &Path) -> Option<PathBuf> {
    let ours = [node_root.join(crate::layout::PODS), node_root.join(crate::layout::PLUGINS)];
    // A mount that shows the folder has its root at the folder's or above; looked up one by one, so that a table of
    // many mounts of one disk is not gone through for each volume.
    let mut paths: Vec<PathBuf> = mount
        .root()
        .ancestors()
        .flat_map(|root| table.same_root(mount.device(), root))
        .filter(|m| !ours.iter().any(|folder| m.point().starts_with(folder)))
        .filter_map(|m| {
            let below = mount.root().strip_prefix(m.root()).ok()?;
            let path =
                if below.as_os_str() == OsStr::new("") { m.point().to_path_buf() } else { m.point().join(below) };
            // Something else may be mounted over it, or over a folder above it.
            table.covering(&path).filter(|c| c.short_id() == m.short_id()).map(|_| path)
        })
        .collect();
    paths.sort();
    paths.dedup();
    match (paths.pop(), paths.pop()) {
        (Some(path), None) => Some(path),
        _ => None,
    }
}
