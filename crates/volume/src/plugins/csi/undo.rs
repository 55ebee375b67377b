//! TearDown and UnmountDevice: `NodeUnpublishVolume` and `NodeUnstageVolume`, and the folders.
//!
//! A driver's OK is believed when the mount table shows nothing at or below the path. Nothing is removed but empty folders
//! and `vol_data.json`; nothing is removed recursively.

use std::path::Path;

use refloat_csi::{CallError, CallErrorKind, Outcome};
use refloat_mount::RemoveError;
use refloat_record::{RelPath, VolumeMode};

use super::info::Info;
use super::request::path_for_driver;
use super::{block, no_folder, vol_data};
use crate::{Host, Problem, Recorded, TearDown, UnmountDevice, VolumeError};

const UNPUBLISH: &str = "NodeUnpublishVolume";
const UNSTAGE: &str = "NodeUnstageVolume";

/// So many times in a row a driver may refuse to unpublish what is not there, before that counts as done.
const REFUSALS: u32 = 4;

pub(super) fn tear_down(step: &TearDown<'_>) -> Result<(), VolumeError> {
    let (host, record) = (step.host, step.record);
    let block = record.mode == VolumeMode::Block;
    let target = match record.mode {
        VolumeMode::Filesystem => record.path.clone().ok_or_else(no_folder)?,
        VolumeMode::Block => block::target(&record.pod, &record.spec_name)?,
    };
    let target = &target;
    if block {
        block::take_away(step)?;
    } else {
        crate::unmount_nested(host, target)?;
    }
    if let Some(info) = Info::recorded(Recorded::from(record)) {
        let asked = host
            .drivers
            .get(&info.driver, UNPUBLISH)
            .and_then(|driver| driver.unpublish(&info.volume_handle, &path_or_refused(host, target, &info)?));
        if let Err(error) = asked {
            believe_refusal(step, target, error)?;
        }
        check_gone(host, target, &info, UNPUBLISH)?;
    } else if block {
        // As below. Whatever else may be mounted where devices are published is nobody's to take.
        if block::is_published(host, target)? {
            crate::unmount_own_layers(host, target, None)?;
        }
    } else {
        // Whose it is cannot be told any more, so nobody can be asked. What is mounted is known from the table alone.
        let expected = host.announced_mount(record.mount.as_ref(), &record.boot_id);
        crate::unmount_own_layers(host, target, expected.as_ref())?;
    }
    if block { block::remove_left(host, record, target) } else { remove_folders(host, target) }
}

pub(super) fn unmount_device(step: &UnmountDevice<'_>) -> Result<(), VolumeError> {
    let (host, record) = (step.host, step.record);
    let path = &record.device_mount_path;
    let Some(info) = Info::recorded(Recorded::from(record)) else {
        return Err(VolumeError::Refused(Problem::new(
            "DriverUnknown",
            format!("the record of {} names no CSI driver", record.unique_name),
            "The record was changed by hand or by another program; `refloat record show` prints it.",
        )));
    };
    let driver = host.drivers.get(&info.driver, UNSTAGE)?;
    // A driver that stages nothing any more has nothing to hear.
    if driver.capabilities()?.stage_unstage {
        driver.unstage(&info.volume_handle, &path_or_refused(host, path, &info)?)?;
    }
    check_gone(host, path, &info, UNSTAGE)?;
    match record.mode {
        VolumeMode::Filesystem => remove_folders(host, path),
        VolumeMode::Block => {
            remove_folder(host, path)?;
            block::remove_data_of(host, path)
        }
    }
}

/// As [`path_for_driver`]; its error as one of a call, which was not made.
fn path_or_refused(host: &Host, path: &RelPath, info: &Info) -> Result<String, CallError> {
    path_for_driver(host, path).map_err(|error| CallError {
        driver: info.driver.clone(),
        call: UNPUBLISH,
        outcome: Outcome::NotStarted,
        kind: CallErrorKind::Broken(error.problem().message),
    })
}

/// Some drivers answer with an error, for ever, for a target that is not there or not mounted, where the specification wants
/// OK. After a few tries the mount table and an empty folder count for more.
fn believe_refusal(step: &TearDown<'_>, target: &RelPath, error: CallError) -> Result<(), VolumeError> {
    let host = step.host;
    let code = match &error.kind {
        CallErrorKind::Status { code, .. } if error.outcome == Outcome::Final => *code,
        _ => return Err(error.into()),
    };
    // Others, such as UNAUTHENTICATED, say nothing about the target.
    let about_target =
        matches!(code, "NOT_FOUND" | "INVALID_ARGUMENT" | "INTERNAL" | "UNKNOWN" | "FAILED_PRECONDITION");
    let absolute = host.absolute(target);
    let table = host.mount_table_at(&absolute).map_err(VolumeError::Table)?;
    if step.failures < REFUSALS || !about_target || table.at(&absolute).is_some() {
        return Err(error.into());
    }
    let empty = match step.record.mode {
        VolumeMode::Filesystem => {
            host.root.list(target.as_path()).map_err(VolumeError::Path)?.is_none_or(|entries| entries.is_empty())
        }
        VolumeMode::Block => block::is_nothing(host, target)?,
    };
    if !empty {
        return Err(error.into());
    }
    tracing::warn!(
        driver = %error.driver,
        code,
        path = %absolute.display(),
        "the driver refuses to unpublish a volume again and again; nothing is mounted there and nothing lies there, so it \
         counts as unpublished"
    );
    Ok(())
}

/// Whether the table agrees with the driver.
fn check_gone(host: &Host, path: &RelPath, info: &Info, call: &str) -> Result<(), VolumeError> {
    let absolute = host.absolute(path);
    let table = host.mount_table_at(&absolute).map_err(VolumeError::Table)?;
    let Some(left) = table.at(&absolute).or_else(|| table.under(&absolute).next()) else { return Ok(()) };
    Err(VolumeError::Refused(Problem::new(
        "StillMounted",
        format!(
            "the CSI driver {} answered {call} of volume {:?} with OK, but {} is still mounted",
            info.driver,
            info.volume_handle,
            left.point().display()
        ),
        "This is a fault of the driver; look into its log. Nothing is removed, and it is asked again with growing pauses.",
    )))
}

/// Removes the mount's empty folder, the file beside it, and the folder of both.
///
/// # Source
/// `removeMountDir` of `pkg/volume/csi/csi_mounter.go`: in this order.
fn remove_folders(host: &Host, path: &RelPath) -> Result<(), VolumeError> {
    remove_folder(host, path)?;
    let folder = vol_data::folder_of(path);
    if !is_there(host, folder)? {
        return Ok(());
    }
    vol_data::remove(host, folder)?;
    if !host.root.remove_dir(folder).map_err(VolumeError::Remove)? {
        return Err(VolumeError::Remove(RemoveError::NotEmpty { path: host.root.absolute(folder) }));
    }
    Ok(())
}

fn remove_folder(host: &Host, path: &RelPath) -> Result<(), VolumeError> {
    if host.root.remove_dir(path.as_path()).map_err(VolumeError::Remove)? {
        return Ok(());
    }
    Err(VolumeError::Remove(RemoveError::NotEmpty { path: host.absolute(path) }))
}

fn is_there(host: &Host, folder: &Path) -> Result<bool, VolumeError> {
    host.root.open_dir(folder).map(|dir| dir.is_some()).map_err(VolumeError::Path)
}
