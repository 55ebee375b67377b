//! A CSI volume as a raw block device.
//!
//! The driver publishes the device at a place of the node, not of the pod; from there it is presented to the pod as every
//! block volume is ([`crate::block`]).
//!
//! # Source
//! `pkg/volume/csi/csi_block.go` of Kubernetes v1.36.

use std::path::Path;

use refloat_mount::Standing;
use refloat_record::{PodRef, PodUid, PodVolume, RelPath, SpecName};

use super::vol_data::{self, VolData};
use crate::block::{BlockDevice, map};
use crate::layout::CSI_BLOCK;
use crate::{Host, Problem, SetUp, TearDown, VolumeError, layout};

/// Where a volume is staged, for all pods.
pub(super) fn stage_path(spec_name: &SpecName) -> Option<RelPath> {
    RelPath::new(format!("{CSI_BLOCK}/staging/{spec_name}")).ok()
}

/// Where the driver publishes the device for a pod.
pub(super) fn publish_path(pod: &PodUid, spec_name: &SpecName) -> Option<RelPath> {
    RelPath::new(format!("{CSI_BLOCK}/publish/{spec_name}/{pod}")).ok()
}

/// Where the device is bound for a pod.
pub(super) fn map_path(pod: &PodUid, spec_name: &SpecName) -> Option<RelPath> {
    RelPath::new(format!("{CSI_BLOCK}/{spec_name}/dev/{pod}")).ok()
}

/// The folder of the kubelet's file, for all pods.
fn data_folder(spec_name: &SpecName) -> Option<RelPath> {
    RelPath::new(format!("{CSI_BLOCK}/{spec_name}/data")).ok()
}

/// Where the driver publishes this volume.
pub(super) fn target(pod: &PodRef, spec_name: &SpecName) -> Result<RelPath, VolumeError> {
    publish_path(&pod.uid, spec_name).ok_or_else(super::no_folder)
}

/// Presents what was published.
pub(super) fn present(step: &SetUp<'_>, info: &super::Info, data: &VolData) -> Result<(), VolumeError> {
    let (host, spec_name) = (step.host, &step.spec.spec_name);
    let target = target(step.pod, spec_name)?;
    let map_path = map_path(&step.pod.uid, spec_name).ok_or_else(super::no_folder)?;
    let absolute = host.absolute(&target);
    let nothing = || {
        VolumeError::Refused(Problem::new(
            "NoDevice",
            format!(
                "the CSI driver {} answered NodePublishVolume of volume {:?} with OK, and {} is no block device",
                info.driver,
                info.volume_handle,
                absolute.display()
            ),
            "This is a fault of the driver; look into its log. It is asked again with growing pauses.",
        ))
    };
    let found = host.root.open_mounted(target.as_path()).map_err(VolumeError::Path)?.ok_or_else(nothing)?;
    let device = BlockDevice::of(found, &absolute)?.ok_or_else(nothing)?;
    if let Some(folder) = data_folder(spec_name) {
        let folder = host.root.make_dirs(folder.as_path(), 0o750).map_err(VolumeError::Path)?;
        vol_data::write(&folder, data)?;
    }
    map(step, &map_path, &device, Some(info.verbatim()))
}

/// Undoes [`present`].
pub(super) fn take_away(step: &TearDown<'_>) -> Result<(), VolumeError> {
    crate::block::unmap(step, map_path(&step.record.pod.uid, &step.record.spec_name).as_ref())
}

/// Whether a device is published at this path.
pub(super) fn is_published(host: &Host, target: &RelPath) -> Result<bool, VolumeError> {
    match host.root.open_mounted(target.as_path()).map_err(VolumeError::Path)? {
        Some(found) => Ok(BlockDevice::of(found, &host.absolute(target))?.is_some()),
        None => Ok(false),
    }
}

/// Whether nothing of what a driver published is left at this path but, perhaps, an empty file.
pub(super) fn is_nothing(host: &Host, target: &RelPath) -> Result<bool, VolumeError> {
    let standing = host.root.look(target.as_path()).map_err(VolumeError::Path)?;
    Ok(matches!(standing, Standing::Nothing | Standing::EmptyFile))
}

/// Removes what is left when the driver has unpublished the device: its file, and the kubelet's if no other pod has the
/// volume and it is not staged. What is staged is known by that file, should its record be lost.
pub(super) fn remove_left(host: &Host, record: &PodVolume, target: &RelPath) -> Result<(), VolumeError> {
    host.root.remove_empty_file(target.as_path()).map_err(VolumeError::Remove)?;
    up(host, vol_data::folder_of(target))?;
    let is_there = |path: &Path| host.root.open_dir(path).map(|dir| dir.is_some()).map_err(VolumeError::Path);
    let staged = stage_path(&record.spec_name).map_or(Ok(false), |path| is_there(path.as_path()))?;
    let Some(data) = data_folder(&record.spec_name).filter(|_| !staged) else { return Ok(()) };
    let maps = host.root.list(&vol_data::folder_of(&data).join("dev")).map_err(VolumeError::Path)?;
    if maps.is_some_and(|maps| !maps.is_empty()) || !is_there(data.as_path())? {
        return Ok(());
    }
    remove_data(host, data.as_path())
}

/// Removes the kubelet's file of a volume that is no longer staged at this path.
pub(super) fn remove_data_of(host: &Host, staged: &RelPath) -> Result<(), VolumeError> {
    let Some(data) = layout::csi_data_folder(staged.as_path()) else { return Ok(()) };
    match host.root.open_dir(&data).map_err(VolumeError::Path)? {
        Some(_) => remove_data(host, &data),
        None => Ok(()),
    }
}

fn remove_data(host: &Host, data: &Path) -> Result<(), VolumeError> {
    vol_data::remove(host, data)?;
    up(host, data)
}

fn up(host: &Host, folder: &Path) -> Result<(), VolumeError> {
    host.root.remove_empty_dirs_up(folder, Path::new(layout::PLUGINS)).map_err(VolumeError::Remove)
}
