//! A local volume as a raw block device.

use k8s_openapi::api::core::v1::LocalVolumeSource;
use refloat_record::{PodUid, RelPath, SpecName};

use crate::block::{BlockDevice, map};
use crate::{SetUp, VolumeError};

/// Where the devices are bound, relative to the node root.
const GLOBAL_MAPS: &str = "plugins/kubernetes.io~local-volume/volumeDevices";

/// Where a volume's device is bound for a pod.
///
/// # Source
/// `GetGlobalMapPath` of `pkg/volume/local`.
pub(super) fn map_path(pod: &PodUid, spec_name: &SpecName) -> Option<RelPath> {
    RelPath::new(format!("{GLOBAL_MAPS}/{spec_name}/{pod}")).ok()
}

pub(super) fn set_up(step: &SetUp<'_>, local: &LocalVolumeSource) -> Result<(), VolumeError> {
    let Some(map_path) = map_path(&step.pod.uid, &step.spec.spec_name) else { return Err(super::no_folder()) };
    let (fd, _) = super::open(&local.path)?;
    let device = BlockDevice::of(fd, local.path.as_ref())?.ok_or_else(|| {
        super::refused(
            "LocalPathType",
            &local.path,
            "its volumeMode is Block, and it is no block device",
            "correct spec.local.path of the PersistentVolume, or use volumeMode Filesystem",
        )
    })?;
    map(step, &map_path, &device, None)
}
