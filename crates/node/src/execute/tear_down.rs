//! TearDown: subPaths, volume, a look into the mount table, and the record last.

use std::os::fd::AsFd;

use refloat_mount::Standing;
use refloat_record::{PodVolume, Record, VolumeMode};
use refloat_volume::{
    Problem, TearDown, VolumeError, block, layout, remove_volume_dir, sub_path, unmount_nested, unmount_own_layers,
};

use super::{Executor, Job, Journal, Success};

pub(super) fn run(
    executor: &Executor,
    journal: &Journal<'_>,
    record: &PodVolume,
    trusted: bool,
    job: &Job,
) -> Result<Success, VolumeError> {
    let host = &executor.host;
    let (failures, without_driver) = (job.failures, job.without_driver);
    // A driver that is asked to undo it may have begun when something fails: it is not what was confirmed any more.
    if trusted && record.confirmed {
        journal.put(Record::PodVolume(PodVolume { confirmed: false, ..record.clone() }))?;
    }
    sub_path::tear_down(host, record)?;
    if let Some(path) = record.path.as_ref().filter(|_| job.clear_payload) {
        clear_payload(executor, path)?;
    }
    match executor.plugins.by_name(&record.plugin) {
        Some(plugin) => plugin.tear_down(&TearDown { host, record, trusted, failures, without_driver })?,
        None if record.mode == VolumeMode::Block => {
            block::unmap(&TearDown { host, record, trusted, failures, without_driver }, None)?;
        }
        None => {
            // Known from the table alone: a plain unmount, and no file is deleted.
            if let Some(path) = &record.path {
                unmount_nested(host, path)?;
                unmount_own_layers(host, path, record.mount.as_ref())?;
                if host.root.list(path.as_path()).map_err(VolumeError::Path)?.is_some() {
                    remove_volume_dir(host, path, false)?;
                }
            }
        }
    }
    if let Some(path) = &record.path {
        executor.check_unmounted(path)?;
        if host.root.look(path.as_path()).map_err(VolumeError::Path)? != Standing::Nothing {
            return Err(VolumeError::Refused(Problem::new(
                "FolderLeft",
                format!("{} is still there after TearDown", host.absolute(path).display()),
                "Its record is kept and it is tried again.",
            )));
        }
    }
    if let Some(block) = &record.block {
        executor.check_unmounted(&block.map_path)?;
    }
    if let Ok(sub_paths) = layout::pod_path(&record.pod.uid)
        .join(layout::VOLUME_SUBPATHS)
        .and_then(|path| path.join(record.spec_name.as_str()))
    {
        executor.check_unmounted(&sub_paths)?;
    }
    // Before the record goes, so that who remembers something of it hears of it whenever this program dies.
    host.providers.tell_gone(host, &record.clone().into());
    journal.remove(record.key())?;
    Ok(Success::Done)
}

/// Removes what an atomic writer wrote into a volume's folder, and nothing else; a folder with something mounted over it is
/// left to the plugin.
fn clear_payload(executor: &Executor, path: &refloat_record::RelPath) -> Result<(), VolumeError> {
    let host = &executor.host;
    unmount_nested(host, path)?;
    let absolute = host.absolute(path);
    let table = host.mount_table_at(&absolute).map_err(VolumeError::Table)?;
    if table.at(&absolute).is_some() {
        return Ok(());
    }
    match host.root.open_dir(path.as_path()).map_err(VolumeError::Path)? {
        Some(dir) => refloat_volume::clear_payload(dir.as_fd(), &absolute),
        None => Ok(()),
    }
}
