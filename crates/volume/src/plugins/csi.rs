//! `csi`: a volume that a driver of the Container Storage Interface makes.
//!
//! | | path below the node root |
//! | --- | --- |
//! | the pod's mount, made by the driver | `pods/<uid>/volumes/kubernetes.io~csi/<spec>/mount` |
//! | the driver's staging place, shared by pods | `plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/globalmount` |
//! | the kubelet's file about either | `vol_data.json` beside it |
//!
//! Block volumes are elsewhere: `block.rs`.
//!
//! MountDevice is `NodeStageVolume`, for drivers with `STAGE_UNSTAGE` alone; SetUp is `NodePublishVolume`; TearDown and
//! UnmountDevice are `NodeUnpublishVolume` and `NodeUnstageVolume`, and are believed when the mount table agrees. What
//! a driver made need be no mount, so it counts as made when the driver confirmed it in this boot and what it mounted
//! then is still there; everything else is asked for again, or undone, since all four calls are idempotent.
//!
//! Undoing needs the driver's name, the volume's id and the path, which are in the record's `providerInfo`.
//! `vol_data.json` is written in the kubelet's form, so that a kubelet could take the node over, and is only read for volumes
//! without a record.
//!
//! # Source
//! `pkg/volume/csi` of Kubernetes v1.36, the Container Storage Interface v1.13.

mod block;
mod expand;
mod found;
mod info;
mod inputs;
mod publish;
mod request;
mod source;
mod stage;
#[cfg(test)]
mod tests;
mod undo;
mod vol_data;

use k8s_openapi::api::core::v1::Pod;
use refloat_record::{PluginName, PodRef, PodUid, RelPath, SpecName, VolumeMode};

pub use expand::stats;
pub use inputs::{DriverInputs, REPUBLISH_EVERY};
pub(crate) use inputs::{needed, recorded_capacity, secret};
pub use vol_data::{ForeignFile, TEMPORARY as TEMPORARY_VOL_DATA, VolData, look as look_for_vol_data};

use crate::{
    Capabilities, ContentError, DeviceOutcome, FoundVolume, GlobalMount, MountDevice, Objects, Plugin, Presence,
    Problem, Rebuilt, RebuiltDevice, Reconstruction, Recorded, SetUp, SpecError, SpecSource, TearDown, UnmountDevice,
    VolumeError, VolumeSpec, layout,
};
use info::Info;
use source::Source;

/// The plugin `kubernetes.io/csi`.
#[derive(Debug, Clone, Copy)]
pub struct Csi;

/// What a volume without a folder is refused with: its record was changed by hand.
fn no_folder() -> VolumeError {
    VolumeError::Refused(Problem::new(
        "NoFolder",
        "the record of a CSI volume has no path",
        "The record was changed by hand or by another program; `refloat record show` prints it.",
    ))
}

impl Plugin for Csi {
    fn name(&self) -> PluginName {
        PluginName::new(layout::CSI).expect("a constant name")
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            attachable: true,
            device_mountable: true,
            block: true,
            content: false,
            verify: false,
            binds: false,
            reconstruction: Reconstruction::FromLayout,
            presence: Presence::Driver,
        }
    }

    fn supports(&self, spec: &SpecSource) -> bool {
        source::supports(spec)
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        let source = Source::of(spec)?;
        if spec.mode == VolumeMode::Block && source.is_ephemeral() {
            return Err(SpecError::Field {
                volume: spec.spec_name.to_string(),
                field: "volumeMode".into(),
                why: "is Block, which an inline volume cannot have".into(),
            });
        }
        Ok(())
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        let source = Source::of(spec)?;
        Ok(source::volume_name(source.driver(), source.persistent_handle().unwrap_or_default()))
    }

    fn path(&self, pod: &PodRef, spec: &VolumeSpec) -> Option<RelPath> {
        match spec.mode {
            VolumeMode::Filesystem => {
                layout::volume_path(&pod.uid, &self.name(), &spec.spec_name).join(layout::CSI_MOUNT).ok()
            }
            VolumeMode::Block => Some(layout::volume_device_path(&pod.uid, &self.name(), &spec.spec_name)),
        }
    }

    fn device_mount_path(&self, spec: &VolumeSpec) -> Option<RelPath> {
        let source = Source::of(spec).ok()?;
        let handle = source.persistent_handle()?;
        match spec.mode {
            VolumeMode::Filesystem => source::stage_path(source.driver(), handle),
            VolumeMode::Block => block::stage_path(&spec.spec_name),
        }
    }

    fn map_path(&self, pod: &PodUid, spec_name: &SpecName) -> Option<RelPath> {
        block::map_path(pod, spec_name)
    }

    fn inputs(
        &self,
        spec: &VolumeSpec,
        pod: &Pod,
        pod_ref: &PodRef,
        objects: &dyn Objects,
    ) -> Result<Option<DriverInputs>, ContentError> {
        inputs::look_up(spec, pod, pod_ref, objects).map(Some)
    }

    fn driver(&self, spec: &VolumeSpec) -> Option<String> {
        Source::of(spec).ok().map(|source| source.driver().to_owned())
    }

    fn recorded_driver(&self, recorded: Recorded<'_>) -> Option<String> {
        Info::recorded(recorded).map(|info| info.driver)
    }

    fn device_from_foreign(&self, rel: &RelPath, foreign: &ForeignFile) -> Option<Result<RebuiltDevice, String>> {
        Some(found::device(rel, foreign))
    }

    fn mount_device(&self, step: MountDevice<'_>) -> Result<DeviceOutcome, VolumeError> {
        stage::mount_device(&step)
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        publish::set_up(&step)
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        undo::tear_down(step)
    }

    fn unmount_device(&self, step: &UnmountDevice<'_>) -> Result<(), VolumeError> {
        undo::unmount_device(step)
    }

    fn device_of(&self, found: FoundVolume<'_>) -> Option<GlobalMount> {
        found::device_of(&found)
    }

    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        found::volume(&found)
    }
}
