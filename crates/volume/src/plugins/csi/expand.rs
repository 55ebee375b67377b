//! `NodeExpandVolume` and `NodeGetVolumeStats`.

use refloat_csi::{ExpandVolume, VolumeStats};
use refloat_record::{PodVolume, RelPath, VolumeMode};

use super::info::Info;
use super::inputs::{DriverInputs, capacity, recorded_capacity};
use super::request::{capability, path_for_driver};
use super::source::Source;
use super::{block, no_folder};
use crate::{Host, Recorded, SetUp, SpecSource, VolumeError};

/// The call's name.
const EXPAND: &str = "NodeExpandVolume";

/// Grows what is set up, if the volume has another size than its record says.
///
/// # Errors
/// The volume stays as it is, mounted and with its old record, and it is tried again.
pub(super) fn if_grown(
    step: &SetUp<'_>,
    source: Source<'_>,
    inputs: &DriverInputs,
    target: &RelPath,
) -> Result<(), VolumeError> {
    let SpecSource::Persistent { persistent_volume, .. } = &step.spec.source else { return Ok(()) };
    let before = recorded_capacity(step.record.and_then(|record| record.persistent_volume.as_ref()));
    match (before, capacity(&persistent_volume.typed)) {
        (Some(before), Some(now)) if before < now => expand(step, source, inputs, target, now),
        _ => Ok(()),
    }
}

/// Grows what was just published, if its claim says that the file system is still smaller than the volume.
pub(super) fn after_publish(
    step: &SetUp<'_>,
    source: Source<'_>,
    inputs: &DriverInputs,
    target: &RelPath,
) -> Result<(), VolumeError> {
    match inputs.grow_to {
        Some(size) => expand(step, source, inputs, target, size),
        None => Ok(()),
    }
}

/// # Source
/// `NodeExpand` in `pkg/volume/csi/expander.go`: drivers without `EXPAND_VOLUME` need nothing done on the node; a read-only use
/// is left alone.
fn expand(
    step: &SetUp<'_>,
    source: Source<'_>,
    inputs: &DriverInputs,
    target: &RelPath,
    size: i64,
) -> Result<(), VolumeError> {
    if step.spec.read_only {
        return Ok(());
    }
    let host = step.host;
    let driver = host.drivers.get(source.driver(), EXPAND)?;
    let capabilities = driver.capabilities()?;
    if !capabilities.expand {
        return Ok(());
    }
    let staged = step.device.filter(|_| capabilities.stage_unstage).map(|device| &device.device_mount_path);
    let request = ExpandVolume {
        volume_id: source.handle(step.pod, step.spec),
        volume_path: path_for_driver(host, target)?,
        staging_target_path: match staged {
            Some(path) => path_for_driver(host, path)?,
            None => String::new(),
        },
        required_bytes: size,
        capability: capability(step.spec, source, capabilities, None, None),
        secrets: inputs.expand_secrets.clone(),
    };
    let has = driver.expand(&request)?;
    tracing::info!(volume = %step.spec.spec_name, pod = %step.pod.uid, wanted = size, has, "the volume has grown");
    Ok(())
}

/// What the driver says of a volume that is set up: usage and condition. `None` from drivers that cannot tell.
///
/// # Errors
/// The driver is not there, or refuses; nothing is changed by that.
pub fn stats(host: &Host, record: &PodVolume) -> Result<Option<VolumeStats>, VolumeError> {
    let Some(info) = Info::recorded(Recorded::from(record)) else { return Ok(None) };
    let target = match record.mode {
        VolumeMode::Filesystem => record.path.clone().ok_or_else(no_folder)?,
        VolumeMode::Block => block::target(&record.pod, &record.spec_name)?,
    };
    let driver = host.drivers.get(&info.driver, "NodeGetVolumeStats")?;
    if !driver.capabilities()?.volume_stats {
        return Ok(None);
    }
    let staged = match &record.device_mount_path {
        Some(path) => path_for_driver(host, path)?,
        None => String::new(),
    };
    Ok(Some(driver.stats(&info.volume_handle, &path_for_driver(host, &target)?, &staged)?))
}
