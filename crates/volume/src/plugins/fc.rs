//! `fc`: a disk of a storage array that Fibre Channel brings, as the pod's own volume or a `PersistentVolume`.
//!
//! | volume mode | MountDevice | SetUp |
//! | --- | --- | --- |
//! | `Filesystem` | finds the disk, makes a file system if it is truly blank, mounts it at `plugins/kubernetes.io/fc/<name>` | binds that mount's root to the pod's folder |
//! | `Block` | finds the disk; its record says that it is there | presents it to the pod as [`crate::block`] tells, with the global map path `plugins/kubernetes.io/fc/volumeDevices/<name>` |
//!
//! The name is `<wwn>-<wwn>-lun-<lun>` or `<wwid>-<wwid>`, so volumes that mean the same disk in the same words share it.
//!
//! A spec says where a disk is (target ports and a number behind them) or what it is (an id). What is found is known from
//! then on by its id, which the record has: UnmountDevice looks for that and not for a name like `sdc`, which may be
//! another disk's by then. When nobody of this node uses the disk any more, its multipath map is flushed, and each path is
//! flushed and removed; until then the device stays recorded. Everything is read from sysfs ([`crate::scsi`]).
//!
//! # Source
//! `pkg/volume/fc` of Kubernetes v1.36.

mod info;
#[cfg(test)]
mod tests;
mod wanted;

use k8s_openapi::api::core::v1::FCVolumeSource;
use refloat_record::{PluginName, RelPath, VolumeMode};

use super::known::{self, names};
use super::san::{self, Found, Seek};
use crate::{
    Capabilities, DeviceOutcome, FoundVolume, GlobalMount, MountDevice, Plugin, Presence, Rebuilt, Reconstruction,
    SetUp, SpecError, SpecSource, TearDown, UnmountDevice, VolumeError, VolumeSpec,
};
use info::Info;
use names::Fc as Wanted;

/// The plugin `kubernetes.io/fc`.
#[derive(Debug, Clone, Copy)]
pub struct Fc;

/// Its folder below `plugins/`.
const FOLDER: &str = "kubernetes.io/fc";

/// The largest number of a logical unit that a spec may have.
///
/// # Source
/// `validateFCVolumeSource` of Kubernetes.
const MAX_LUN: i32 = 255;

fn source(spec: &SpecSource) -> Option<&FCVolumeSource> {
    match spec {
        SpecSource::Inline { volume } => volume.typed.fc.as_ref(),
        SpecSource::Persistent { persistent_volume, .. } => persistent_volume.typed.spec.as_ref()?.fc.as_ref(),
    }
}

/// What the spec asks for.
///
/// # Source
/// `validateFCVolumeSource` of Kubernetes: target names with a number, or ids, and not both.
fn checked(spec: &VolumeSpec) -> Result<(&FCVolumeSource, Wanted), SpecError> {
    let fc = source(&spec.source).ok_or_else(|| spec.wrong("fc", "is missing"))?;
    let wwns = fc.target_wwns.as_deref().unwrap_or_default();
    let wwids = fc.wwids.as_deref().unwrap_or_default();
    let wanted = match (wwns, wwids, fc.lun) {
        ([], [], _) => return Err(spec.wrong("fc.targetWWNs", "is missing, and so is fc.wwids")),
        ([_, ..], [_, ..], _) => return Err(spec.wrong("fc.wwids", "is given besides fc.targetWWNs; only one may be")),
        (_, [], None) => return Err(spec.wrong("fc.lun", "is missing")),
        (wwns, [], Some(lun)) if (0..=MAX_LUN).contains(&lun) => Wanted::Targets { wwns: wwns.to_vec(), lun },
        (_, [], Some(lun)) => return Err(spec.wrong("fc.lun", format!("is {lun}, which is not from 0 to {MAX_LUN}"))),
        (_, wwids, _) => Wanted::Wwids(wwids.iter().map(|wwid| wwid.replace(' ', "_")).collect()),
    };
    let is_strange = |text: &String| {
        text.is_empty() || [".", ".."].contains(&text.as_str()) || text.contains(|c: char| c == '/' || c.is_control())
    };
    let (field, texts) = match &wanted {
        Wanted::Targets { wwns, .. } => ("fc.targetWWNs", wwns),
        Wanted::Wwids(wwids) => ("fc.wwids", wwids),
    };
    if let Some(text) = texts.iter().find(|text| is_strange(text)) {
        return Err(spec.wrong(field, format!("has {text:?}, which cannot be a part of a path")));
    }
    super::check_fs_type(spec, "fc.fsType", fc.fs_type.as_deref())?;
    Ok((fc, wanted))
}

fn read_only(spec: &VolumeSpec, fc: &FCVolumeSource) -> bool {
    spec.read_only || fc.read_only == Some(true)
}

/// What a device's path says, if it is one of this plugin's.
fn wanted_by_path(path: &RelPath) -> Option<Wanted> {
    names::fc(crate::layout::global_path(path.as_str()).filter(|path| path.plugin == Fc.name())?.rest)
}

impl Plugin for Fc {
    fn name(&self) -> PluginName {
        known::FC.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            attachable: true,
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
        checked(spec).map(|(_, wanted)| wanted.volume_name())
    }

    /// The kubelet's global mount path, or its global map path: both are called after the disk.
    fn device_mount_path(&self, spec: &VolumeSpec) -> Option<RelPath> {
        let (_, wanted) = checked(spec).ok()?;
        san::global_path(FOLDER, spec.mode, &wanted.path_name())
    }

    fn mount_device(&self, step: MountDevice<'_>) -> Result<DeviceOutcome, VolumeError> {
        let (fc, wanted) = checked(step.spec).map_err(|error| super::bad_spec(&error))?;
        let before = Found::recorded(step.record.and_then(|record| record.provider_info.as_ref()));
        let info = |found: &Found| Info::of(&wanted, found).verbatim();
        let seek = Seek { wanted: &wanted, before, info: &info };
        match step.spec.mode {
            VolumeMode::Filesystem if san::adopted(&step, &wanted, &|found| Ok(info(found)))? => {}
            VolumeMode::Filesystem => {
                super::refuse_hidden_data(step.host, step.path)?;
                san::mount(&step, &seek, fc.fs_type.as_deref(), fc.read_only == Some(true))?;
            }
            // Its record says that it is there; nothing is mounted.
            VolumeMode::Block => {
                let (_, lun, _hold) = san::find(&step, &seek)?;
                san::open(step.host, &lun)?;
            }
        }
        Ok(DeviceOutcome::Mounted)
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        let (fc, wanted) = checked(step.spec).map_err(|error| super::bad_spec(&error))?;
        match step.spec.mode {
            VolumeMode::Filesystem => {
                let nothing = || Err(super::device_bind::not_mounted(&san::Wanted::shown(&wanted)));
                super::device_bind::set_up(&step, read_only(step.spec, fc), nothing)
            }
            VolumeMode::Block => san::block::set_up(&step, &wanted, &|found| Info::of(&wanted, found).verbatim()),
        }
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        match step.record.mode {
            VolumeMode::Filesystem => known::plain_tear_down(step),
            VolumeMode::Block => san::block::tear_down(step, wanted_by_path),
        }
    }

    fn adopts_devices(&self) -> bool {
        true
    }

    fn unmount_device(&self, step: &UnmountDevice<'_>) -> Result<(), VolumeError> {
        san::unmount(step, wanted_by_path(&step.record.device_mount_path), &|_| false, || Ok(()))
    }

    fn spec_name<'f>(&self, folder: &'f str) -> Option<&'f str> {
        known::FC.spec_name(folder)
    }

    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        known::FC.from_layout(found)
    }

    fn device_of(&self, found: FoundVolume<'_>) -> Option<GlobalMount> {
        known::FC.device_of(found)
    }

    fn device_name(&self, rest: &str) -> Option<String> {
        known::FC.device_name(rest)
    }

    fn device_fields(&self, rest: &str, mode: VolumeMode) -> serde_json::Map<String, serde_json::Value> {
        known::FC.device_fields(rest, mode)
    }
}
