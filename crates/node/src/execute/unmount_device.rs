//! UnmountDevice: one more look for users, unmount, a look into the mount table, and the record last.

use refloat_record::{DeviceMount, Record, RecordKey};
use refloat_volume::{Plugin, Problem, UnmountDevice, VolumeError};

use super::{Executor, Journal, Success};
use crate::reconstruct;

/// The folder that all global paths are below; it is never removed.
const PLUGINS: &str = "plugins";

pub(super) fn run(
    executor: &Executor,
    journal: &Journal<'_>,
    record: &DeviceMount,
    trusted: bool,
) -> Result<Success, VolumeError> {
    let host = &executor.host;
    let path = &record.device_mount_path;
    let table = executor.table()?;
    // A bind of the device does not make the kernel refuse to unmount it, so this must.
    let users = reconstruct::references(&table, host.root.path(), &host.absolute(path));
    if let Some(user) = users.first() {
        return Err(VolumeError::Refused(Problem::new(
            "DeviceInUse",
            format!("the device's file system is mounted at {} too", user.display()),
            "It is unmounted when nothing else has it mounted.",
        )));
    }
    let plugin =
        executor.plugins.by_name(&record.plugin).ok_or_else(|| super::set_up::unknown_plugin(&record.plugin))?;
    // As for volumes: what is being undone is mounted again before it is used.
    if trusted && record.confirmed {
        journal.put(Record::DeviceMount(DeviceMount { confirmed: false, ..record.clone() }))?;
    }
    undo(executor, journal, plugin, record, trusted)?;
    Ok(Success::Done)
}

/// Unmounts it, looks whether that is true, and removes what is left, the record last.
pub(super) fn undo(
    executor: &Executor,
    journal: &Journal<'_>,
    plugin: &dyn Plugin,
    record: &DeviceMount,
    trusted: bool,
) -> Result<(), VolumeError> {
    let (host, path) = (&executor.host, &record.device_mount_path);
    plugin.unmount_device(&UnmountDevice { host, record, trusted, peers: executor })?;
    executor.check_unmounted(path)?;
    if let Some(above) = path.as_path().parent() {
        host.root.remove_empty_dirs_up(above, PLUGINS.as_ref()).map_err(VolumeError::Remove)?;
    }
    host.providers.tell_gone(host, &record.clone().into());
    journal.remove(RecordKey::DeviceMount(record.unique_name.clone()))
}
