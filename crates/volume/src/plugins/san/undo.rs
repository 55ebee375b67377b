//! UnmountDevice: the mount goes, then the disk, if nobody uses it any more.

use refloat_mount::Mount;
use refloat_record::{DeviceNumber, RelPath, VolumeMode};

use super::{Found, Wanted, find};
use crate::scsi::{self, Hold, Lun, Seen, TakenOff};
use crate::{Host, Problem, UnmountDevice, VolumeError};

/// What a disk is known by when it is to leave the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What<W> {
    /// The id that it was found to have.
    Id(String),
    /// It has none: where it is to be, at one of these addresses where it was.
    Place(W, Vec<String>),
    /// Nobody knows it yet: whatever is there as it was asked for.
    Sought(W),
}

impl<W: Wanted> What<W> {
    fn lun(&self, seen: &Seen) -> Lun {
        match self {
            Self::Id(id) => seen.lun(id),
            Self::Place(wanted, addresses) => {
                let fits = |disk: &&scsi::Disk| {
                    disk.id().is_none() && wanted.fits(seen, disk) && addresses.contains(&disk.address.to_string())
                };
                Lun { disks: seen.disks.iter().filter(fits).cloned().collect(), maps: vec![] }
            }
            Self::Sought(wanted) => match <[Lun; 1]>::try_from(wanted.luns(seen)) {
                Ok([lun]) => lun,
                // Which of several was meant nobody can tell.
                Err(_) => Lun::default(),
            },
        }
    }

    /// Lets nobody else work on it.
    fn hold(&self, host: &Host) -> Result<Hold, VolumeError> {
        let key = match self {
            Self::Id(id) => id.clone(),
            Self::Place(..) | Self::Sought(_) => {
                let lun = self.lun(&host.sys.look()?);
                if lun.is_gone() { self.shown() } else { find::key(&lun) }
            }
        };
        host.sys.hold(&key, host.tool_deadline)
    }

    fn shown(&self) -> String {
        match self {
            Self::Id(id) => id.clone(),
            Self::Place(wanted, _) | Self::Sought(wanted) => wanted.shown(),
        }
    }
}

/// Whether a file of this name in a global folder is no pod's: of those that are known, one.
pub(in crate::plugins) type NoPods<'a> = &'a dyn Fn(&std::ffi::OsStr) -> bool;

/// The folder goes last: without a record, nothing else tells that there is something to be undone. `last` does what is left to
/// do when the disk has left, and takes what is no pod's out of the folder.
pub(in crate::plugins) fn unmount<W: Wanted>(
    step: &UnmountDevice<'_>,
    wanted: Option<W>,
    no_pods: NoPods<'_>,
    last: impl FnOnce() -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let (host, record) = (step.host, step.record);
    let path = &record.device_mount_path;
    let found = Found::recorded(record.provider_info.as_ref());
    let what = match (&found.id, &wanted) {
        (Some(id), _) => Some(What::Id(id.clone())),
        (None, Some(wanted)) if !found.paths.is_empty() => {
            let addresses = found.paths.iter().map(|path| path.address.clone()).collect();
            Some(What::Place(wanted.clone(), addresses))
        }
        // It was looked for, and it is not known whether it came.
        (None, Some(wanted)) if record.provider_info.is_some() && step.trusted => Some(What::Sought(wanted.clone())),
        (None, _) => mounted_at(host, path, wanted.as_ref())?.map(What::Id),
    };
    let _hold = what.as_ref().map(|what| what.hold(host)).transpose()?;
    match record.mode {
        VolumeMode::Filesystem => {
            let expected = host.announced_mount(record.mount.as_ref(), &record.boot_id);
            crate::unmount_own_layers(host, path, expected.as_ref())?;
        }
        VolumeMode::Block => {
            let entries = host.root.list(path.as_path()).map_err(VolumeError::Path)?.unwrap_or_default();
            if let Some(entry) = entries.iter().find(|entry| !no_pods(&entry.name)) {
                let entry = host.absolute(path).join(&entry.name);
                return Err(VolumeError::Refused(Problem::new(
                    "DeviceInUse",
                    format!("the device is still presented to a pod at {}", entry.display()),
                    "It is undone when the last pod that uses it is gone.",
                )));
            }
        }
    }
    match (what, wanted) {
        (Some(what), _) => remove(host, &what, &found)?,
        (None, Some(wanted)) => leave(host, &wanted)?,
        (None, None) => {}
    }
    last()?;
    crate::remove_volume_dir(host, path, false)
}

/// Says that a disk stays that nothing tells to have been this device.
fn leave(host: &Host, wanted: &impl Wanted) -> Result<(), VolumeError> {
    for lun in wanted.luns(&host.sys.look()?) {
        tracing::warn!(
            code = "DiskLeft",
            "{} stays on this node as {}: nothing tells that it is what was mounted. Remove it by hand if nobody needs it",
            wanted.shown(),
            lun.shown()
        );
    }
    Ok(())
}

/// As [`remove`], for a disk that nobody holds yet.
pub(super) fn take_off<W: Wanted>(host: &Host, what: &What<W>) -> Result<(), VolumeError> {
    let _hold = what.hold(host)?;
    remove(host, what, &Found::default())
}

fn remove<W: Wanted>(host: &Host, what: &What<W>, found: &Found) -> Result<(), VolumeError> {
    match host.sys.take_off(host, |seen| what.lun(seen))? {
        TakenOff::InUse(users) => {
            tracing::warn!(code = "DiskLeft", "{}", scsi::left_in_use(&what.shown(), &users));
            Ok(())
        }
        TakenOff::Gone => {
            // What cannot be understood now may be a path of it.
            let seen = host.sys.look()?;
            let was_there = |name: &String| found.paths.iter().any(|path| path.name == *name);
            match seen.unreadable.iter().find(|name| was_there(name)) {
                None => Ok(()),
                Some(name) => Err(VolumeError::Refused(Problem::new(
                    "DiskUnknown",
                    format!("whether the disk {} is gone cannot be told: {name} cannot be read in sysfs", what.shown()),
                    "Look at it below /sys/block. It is tried again.",
                ))),
            }
        }
    }
}

/// The id of the disk that is mounted at a global path, if it is the one that the path names.
fn mounted_at<W: Wanted>(host: &Host, path: &RelPath, wanted: Option<&W>) -> Result<Option<String>, VolumeError> {
    let table = host.mount_table().map_err(VolumeError::Table)?;
    match table.at(&host.absolute(path)) {
        Some(top) => agreed(host, number_of(host, top), wanted),
        None => Ok(None),
    }
}

/// The logical unit that a mount is of, if it is the one that is meant.
pub(super) fn lun_of<W: Wanted>(host: &Host, mount: Mount<'_>, wanted: &W) -> Result<Option<Lun>, VolumeError> {
    meant(host, number_of(host, mount), Some(wanted))
}

/// The same of the device that is bound for a pod.
pub(super) fn bound_at<W: Wanted>(
    host: &Host,
    map_path: &RelPath,
    wanted: Option<&W>,
) -> Result<Option<String>, VolumeError> {
    agreed(host, crate::block::bound(host, map_path)?, wanted)
}

fn agreed<W: Wanted>(
    host: &Host,
    number: Option<DeviceNumber>,
    wanted: Option<&W>,
) -> Result<Option<String>, VolumeError> {
    Ok(meant(host, number, wanted)?.and_then(|lun| lun.id().map(str::to_owned)))
}

fn meant<W: Wanted>(host: &Host, number: Option<DeviceNumber>, wanted: Option<&W>) -> Result<Option<Lun>, VolumeError> {
    let (Some(number), Some(wanted)) = (number, wanted) else { return Ok(None) };
    let seen = host.sys.look()?;
    let Some(lun) = seen.lun_of_number(number) else { return Ok(None) };
    let key = find::key(&lun);
    Ok(wanted.luns(&seen).iter().any(|its| find::key(its) == key).then_some(lun))
}

/// The number of the device that a mount is of.
fn number_of(host: &Host, mount: Mount<'_>) -> Option<DeviceNumber> {
    let device = mount.device();
    if device.major != 0 {
        return Some(DeviceNumber { major: device.major, minor: device.minor });
    }
    // btrfs has numbers of its own.
    let source = mount.source();
    let name = std::path::Path::new(&*source).strip_prefix(host.sys.node("")).ok()?.to_str()?.to_owned();
    host.sys.number_of_node(&name)
}
