//! MountDevice: `NodeStageVolume`.

use refloat_csi::StageVolume;
use refloat_record::VolumeMode;

use super::info::Info;
use super::inputs::needed;
use super::request::{capability, path_for_driver, selinux_label, spec_refused};
use super::source::Source;
use super::vol_data::{self, VolData};
use crate::{DeviceOutcome, MountDevice, VolumeError};

/// The call's name.
const STAGE: &str = "NodeStageVolume";

pub(super) fn mount_device(step: &MountDevice<'_>) -> Result<DeviceOutcome, VolumeError> {
    let source = Source::of(step.spec).map_err(|error| spec_refused(&error))?;
    let inputs = needed(step.inputs)?;
    let Some(handle) = source.persistent_handle() else { return Ok(DeviceOutcome::NotNeeded) };
    let host = step.host;
    let driver = host.drivers.get(source.driver(), STAGE)?;
    let capabilities = driver.capabilities()?;
    // The kubelet makes the folder all the same, and leaves it behind. What is not used is not made.
    if !capabilities.stage_unstage {
        return Ok(DeviceOutcome::NotNeeded);
    }
    let info = Info {
        driver: source.driver().to_owned(),
        volume_handle: handle.to_owned(),
        ephemeral: false,
        attachment_id: None,
    };
    if step.confirmed {
        step.announce(None, None, Some(info.verbatim()))?;
        return Ok(DeviceOutcome::Mounted);
    }
    let label = selinux_label(inputs);
    let request = StageVolume {
        volume_id: handle.to_owned(),
        publish_context: inputs.publish_context.clone(),
        staging_target_path: path_for_driver(host, step.path)?,
        capability: capability(step.spec, source, capabilities, step.fs_group, label),
        secrets: inputs.stage_secrets.clone(),
        volume_context: source.attributes(),
    };
    step.announce_call(info.verbatim())?;
    // What lies in it is the driver's own: some keep files of theirs there. A mount is not looked into.
    let table = host.mount_table().map_err(VolumeError::Table)?;
    if table.at(&host.absolute(step.path)).is_none() {
        host.root.make_dirs(step.path.as_path(), 0o750).map_err(VolumeError::Path)?;
    }
    if step.spec.mode == VolumeMode::Filesystem {
        let folder = host.root.make_dirs(vol_data::folder_of(step.path), 0o750).map_err(VolumeError::Path)?;
        let data = VolData {
            driver_name: info.driver,
            volume_handle: info.volume_handle,
            selinux_mount_context: label.map(str::to_owned),
            ..VolData::default()
        };
        vol_data::write(&folder, &data)?;
    }
    driver.stage(&request)?;
    Ok(DeviceOutcome::Mounted)
}
