//! A disk as a raw block device.

use refloat_record::{RelPath, Verbatim};

use super::{Found, Wanted, find, undo};
use crate::block::{BlockDevice, map, unmap};
use crate::{Problem, SetUp, TearDown, VolumeError};

pub(in crate::plugins) fn set_up<W: Wanted>(
    step: &SetUp<'_>,
    wanted: &W,
    info: &dyn Fn(&Found) -> Verbatim,
) -> Result<(), VolumeError> {
    let Some(device) = step.device else {
        return Err(VolumeError::Refused(Problem::new(
            "DeviceNotMounted",
            format!("{} was not looked for yet", wanted.shown()),
            "MountDevice comes first; see what it says of this volume",
        )));
    };
    let map_path =
        device.device_mount_path.join(step.pod.uid.as_str()).map_err(|_| super::super::known::no_folder())?;
    let before = Found::recorded(device.provider_info.as_ref());
    // Its device has a record.
    let (lun, _hold) = find::find(step.host, wanted, before.id.as_deref(), || Ok(()))?;
    let (fd, node) = find::open(step.host, &lun)?;
    let device = BlockDevice::of(fd, &node)?.ok_or_else(|| {
        VolumeError::Refused(Problem::new(
            "DeviceNodeMissing",
            format!("{} is no block device", node.display()),
            "Look whether /dev of this program is the node's. It is tried again.",
        ))
    })?;
    map(step, &map_path, &device, Some(info(&Found::of(&lun))))
}

/// The record of the device may be lost, and nothing would know of the disk when the last of its folders is gone: so it leaves
/// the node with the last pod. UnmountDevice then finds it gone.
pub(in crate::plugins) fn tear_down<W: Wanted>(
    step: &TearDown<'_>,
    by_path: impl Fn(&RelPath) -> Option<W>,
) -> Result<(), VolumeError> {
    let folder = step.record.block.as_ref().and_then(|block| folder_of(&block.map_path));
    let id = match (&folder, &step.record.block) {
        _ if step.trusted => Found::recorded(step.record.provider_info.as_ref()).id,
        (Some(folder), Some(block)) => undo::bound_at(step.host, &block.map_path, by_path(folder).as_ref())?,
        _ => None,
    };
    unmap(step, None)?;
    let (Some(folder), Some(id)) = (folder, id) else { return Ok(()) };
    match step.host.root.list(folder.as_path()).map_err(VolumeError::Path)? {
        Some(_) => Ok(()),
        None => undo::take_off(step.host, &undo::What::<W>::Id(id)),
    }
}

fn folder_of(map_path: &RelPath) -> Option<RelPath> {
    RelPath::new(map_path.as_path().parent()?.to_str()?).ok()
}
