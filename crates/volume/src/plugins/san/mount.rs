//! MountDevice of a disk.

use refloat_record::Verbatim;

use super::find::open;
use super::{Found, Wanted, undo};
use crate::disk::{self, Disk};
use crate::scsi::{Hold, Lun};
use crate::tear_down::{origin_of, other_mount};
use crate::{MountDevice, VolumeError};

/// What is looked for.
pub(in crate::plugins) struct Seek<'a, W> {
    pub(in crate::plugins) wanted: &'a W,
    /// What the record knows of it.
    pub(in crate::plugins) before: Found,
    /// The `providerInfo` for what was found.
    pub(in crate::plugins) info: &'a dyn Fn(&Found) -> Verbatim,
}

/// Finds the disk for a MountDevice. Its record says what is looked for before that can bring anything, and then what was
/// found.
pub(in crate::plugins) fn find<W: Wanted>(
    step: &MountDevice<'_>,
    seek: &Seek<'_, W>,
) -> Result<(Found, Lun, Hold), VolumeError> {
    let before = &seek.before;
    let searching = || {
        let found = if before.id.is_some() { before.clone() } else { Found::default() };
        step.announce(None, None, Some((seek.info)(&found))).map(drop)
    };
    let (lun, hold) = super::find::find(step.host, seek.wanted, before.id.as_deref(), searching)?;
    let mut found = Found::of(&lun);
    found.disk.clone_from(&before.disk);
    let node = lun.device().map(|(name, _)| step.host.sys.node(name).to_string_lossy().into_owned());
    step.announce(node, None, Some((seek.info)(&found)))?;
    Ok((found, lun, hold))
}

/// Whether nothing is to be mounted: the device is, by its record, or something is mounted at its path and is the disk that is
/// meant, whose record was lost. All else that is mounted there is refused.
pub(in crate::plugins) fn adopted<W: Wanted>(
    step: &MountDevice<'_>,
    wanted: &W,
    info: &dyn Fn(&Found) -> Result<Verbatim, VolumeError>,
) -> Result<bool, VolumeError> {
    if step.mounted {
        step.announce(None, None, None)?;
        return Ok(true);
    }
    let host = step.host;
    let table = host.mount_table().map_err(VolumeError::Table)?;
    let absolute = host.absolute(step.path);
    let Some(found) = table.at(&absolute) else { return Ok(false) };
    let lun = if table.stack(&absolute).len() == 1 { undo::lun_of(host, found, wanted)? } else { None };
    let Some(lun) = lun.filter(|_| step.record.is_none()) else {
        return Err(VolumeError::Refused(other_mount(&absolute, found)));
    };
    // What is on it was looked at when it was mounted.
    let device = found.source().into_owned();
    step.announce_found(Some(device), origin_of(found), info(&Found::of(&lun))?)?;
    Ok(true)
}

/// Finds the disk and mounts its file system.
pub(in crate::plugins) fn mount<W: Wanted>(
    step: &MountDevice<'_>,
    seek: &Seek<'_, W>,
    fs_type: Option<&str>,
    read_only: bool,
) -> Result<(), VolumeError> {
    let (found, lun, _hold) = find(step, seek)?;
    let (fd, node) = open(step.host, &lun)?;
    disk::mount(
        step,
        &Disk {
            device: &fd,
            given: &node,
            fs_type,
            read_only,
            before: seek.before.disk.clone(),
            words: W::WORDS,
            info: &|identity| (seek.info)(&found.with_disk(identity)),
        },
    )
}
