//! MountDevice: record, global mount, and a look into the mount table whether it is true. A device that is to be presented as
//! it is has no global mount: that it is there is confirmed in its record.

use refloat_record::{DeviceMount, Record, Verbatim, VolumeMode};
use refloat_volume::{DeviceOutcome, MountDevice, Presence, Problem, VolumeError};

use super::announced::Announced;
use super::{Executor, Job, Journal, Success};
use crate::DesiredVolume;

pub(super) fn run(
    executor: &Executor,
    journal: &Journal<'_>,
    job: &Job,
    volume: &DesiredVolume,
) -> Result<Success, VolumeError> {
    let host = &executor.host;
    let plugin = executor
        .plugins
        .by_name(&volume.key.plugin)
        .ok_or_else(|| super::set_up::unknown_plugin(&volume.key.plugin))?;
    let Some(path) = &volume.device_mount_path else {
        return Err(VolumeError::Refused(Problem::new(
            "NoDevicePath",
            "this kind of volume has no global mount path",
            "This is a fault in Refloat; please report it.",
        )));
    };
    let before = job.device.as_ref();
    let same_boot = before.is_some_and(|r| r.boot_id == host.boot_id);
    let mounted = match before {
        Some(record) => executor.is_mounted(path, record.mount.as_ref(), same_boot)?,
        None => false,
    };
    let by_driver = plugin.capabilities().presence == Presence::Driver;
    let by_word = by_driver || volume.key.mode == VolumeMode::Block;
    let confirmed = match before.filter(|r| by_word && r.confirmed && same_boot) {
        Some(record) if record.mount.is_some() => mounted,
        Some(_) => executor.mount_at(path)?.is_none(),
        None => false,
    };
    // What lay there before may be in use, and a driver told to undo it would take it away.
    let own = before.is_none()
        && (!by_driver
            || (executor.mount_at(path)?.is_none()
                && host.root.list(path.as_path()).map_err(VolumeError::Path)?.is_none()));
    let attached = volume.inputs.as_ref().map(|inputs| inputs.publish_context()).filter(|context| !context.is_empty());
    let source = &volume.spec.source;
    let persistent_volume = source.persistent_volume().map(|p| p.raw.clone());
    let record = DeviceMount {
        unique_name: volume.unique_name.clone(),
        plugin: volume.key.plugin.clone(),
        mode: volume.key.mode,
        volume: if persistent_volume.is_none() { Some(source.volume().raw.clone()) } else { None },
        persistent_volume,
        device: None,
        device_mount_path: path.clone(),
        mount: before.filter(|_| by_driver && same_boot).and_then(|r| r.mount.clone()),
        publish_context: match attached {
            Some(context) => serde_json::to_value(context).ok().map(|value| Verbatim::from_value(&value)),
            None => before.and_then(|r| r.publish_context.clone()),
        },
        confirmed,
        boot_id: host.boot_id.clone(),
        provider_info: before.and_then(|r| r.provider_info.clone()),
        providers: before.map(|r| r.providers.clone()).unwrap_or_default(),
    };
    let announced = Announced::new(journal, before, record);
    let outcome = plugin.mount_device(MountDevice {
        host,
        spec: &volume.spec,
        path,
        fs_group: volume.fs_group,
        inputs: volume.inputs.as_deref(),
        record: before,
        mounted,
        confirmed,
        peers: executor,
        announcer: &announced,
    });
    // As after SetUp.
    host.doubt(&host.absolute(path));
    match outcome {
        Ok(DeviceOutcome::NotNeeded) => {
            // A driver may say so only when it is asked to make it, which was announced.
            if announced.is_written() {
                super::unmount_device::undo(executor, journal, plugin, &announced.record(), true)?;
            }
            Ok(Success::NoDevice(volume.unique_name.clone()))
        }
        Ok(DeviceOutcome::Mounted) => {
            let mut record = announced.record();
            if by_word {
                let mount = executor.mount_at(path)?;
                if !record.confirmed || record.mount != mount {
                    record.mount = mount;
                    record.confirmed = true;
                    journal.put(Record::DeviceMount(record))?;
                }
            } else if let Some(mount) = &record.mount {
                let found = executor.check_mounted(path, mount)?;
                if found != *mount {
                    record.mount = Some(found);
                    journal.put(Record::DeviceMount(record))?;
                }
            }
            Ok(Success::Done)
        }
        Err(error) => {
            if own && announced.is_written() && super::set_up::is_over(&error, by_driver) {
                let record = &announced.record();
                if let Err(error) = super::unmount_device::undo(executor, journal, plugin, record, true) {
                    tracing::warn!(
                        device = %record.unique_name,
                        error = %error.problem().message,
                        "a MountDevice that failed could not be undone; its record is kept"
                    );
                }
            }
            Err(error)
        }
    }
}
