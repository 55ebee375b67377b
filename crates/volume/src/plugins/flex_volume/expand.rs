//! `expandvolume` and `expandfs`: a volume that is set up grows, online.
//!
//! With a kubelet the first is the controller's call and the second the node's. Here nobody else would make the first, so both
//! are made, in this order, whenever the `PersistentVolume` is larger than what was recorded. They may be asked again: the new
//! size is in the record only when all of it was done.
//!
//! # Source
//! `expander.go` and `expander-defaults.go` of `pkg/volume/flexvolume`.

use std::ffi::OsStr;

use refloat_csi::Secrets;
use refloat_record::{RelPath, Verbatim};

use super::source::Source;
use super::{Answer, Call, ask, spelled};
use crate::grow::grow_file_system;
use crate::plugins::csi::recorded_capacity;
use crate::{SetUp, SpecSource, VolumeError};

const EXPAND_VOLUME: &str = "expandvolume";
const EXPAND_FS: &str = "expandfs";

/// Grows the volume, if it has another size than what was recorded of its device, or of itself where there is none.
///
/// # Errors
/// The volume stays as it is, mounted and with its old record, and it is tried again.
pub(super) fn if_grown(
    step: &SetUp<'_>,
    source: Source<'_>,
    path: &RelPath,
    info: Option<&Verbatim>,
) -> Result<(), VolumeError> {
    let SpecSource::Persistent { persistent_volume, .. } = &step.spec.source else { return Ok(()) };
    let recorded = match step.device {
        Some(device) => device.persistent_volume.as_ref(),
        None => step.record.and_then(|record| record.persistent_volume.as_ref()),
    };
    let (before, now) = (recorded_capacity(recorded), recorded_capacity(Some(&persistent_volume.raw)));
    let (Some(before), Some(now)) = (before, now) else { return Ok(()) };
    if before >= now || source.read_only(step.spec) {
        return Ok(());
    }
    let (host, plugin) = (step.host, &step.spec.plugin);
    let capabilities = host.flex_drivers.initialised(host, plugin)?;
    let place = step.device.map_or(path, |device| &device.device_mount_path);
    let (options, none) = (source.of_device(step.spec, info), Secrets::default());
    let (shown, new, old) = (spelled(host, place), now.to_string(), before.to_string());
    let (options, shown, new, old) = (OsStr::new(&options), shown.as_os_str(), OsStr::new(&new), OsStr::new(&old));
    ask(host, plugin, &Call { command: EXPAND_VOLUME, args: &[options, shown, new, old], secrets: &none, info })?;
    let mut by = "driver";
    if capabilities.fs_resize {
        let device = OsStr::new(step.device.and_then(|device| device.device.as_deref()).unwrap_or_default());
        let args = [options, device, shown, new, old];
        if ask(host, plugin, &Call { command: EXPAND_FS, args: &args, secrets: &none, info })? == Answer::NotSupported {
            by = if grow_file_system(host, &host.absolute(place))? { "its file system's own tool" } else { "nobody" };
        }
    }
    tracing::info!(volume = %step.spec.spec_name, pod = %step.pod.uid, before, now, by, "the volume has grown");
    Ok(())
}
