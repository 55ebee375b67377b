//! MountDevice and SetUp: what a driver is asked to make.
//!
//! A driver's `mount` need not be idempotent. So a mount that a call left which did not come to its end is undone by the driver
//! first, and one that is known to be whole is never asked for again.
//!
//! # Source
//! `attacher.go`, `attacher-defaults.go`, `mounter.go` and `mounter-defaults.go` of `pkg/volume/flexvolume`.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;

use refloat_csi::Secrets;
use refloat_mount::{BindOptions, NewMount};
use refloat_record::{BootId, RelPath};
use serde_json::Value;

use super::source::{Source, checked};
use super::{Answer, Call, CallError, Info, UNMOUNT, UNMOUNT_DEVICE, ask, expand, field, layers, spelled, undo};
use crate::plugins::csi::needed;
use crate::plugins::known::no_folder;
use crate::plugins::{bad_spec, refuse_hidden_data};
use crate::secret_text::with_decoded;
use crate::tear_down::{is_own, other_mount};
use crate::{DeviceOutcome, Host, MountDevice, Object, Problem, Recorded, SetUp, SpecSource, VolumeError};

const WAIT_FOR_ATTACH: &str = "waitforattach";
const MOUNT_DEVICE: &str = "mountdevice";
const MOUNT: &str = "mount";

/// Removes the folder of a call that was refused, if nothing came of it. What cannot be removed is found later.
fn remove_unused(host: &Host, path: &RelPath, error: &CallError) {
    if error.is_refusal() && layers(host, path).is_ok_and(|layers| layers == 0) {
        let _ = host.root.remove_dir(path.as_path());
    }
}

/// Takes away what a call left that did not come to its end. What is not of this boot's own call is another's.
fn begin_anew(
    host: &Host,
    of: Recorded<'_>,
    command: &'static str,
    path: &RelPath,
    asked_in: Option<&BootId>,
) -> Result<(), VolumeError> {
    let table = host.mount_table().map_err(VolumeError::Table)?;
    let absolute = host.absolute(path);
    match table.at(&absolute) {
        Some(top) if asked_in != Some(&host.boot_id) => Err(VolumeError::Refused(other_mount(&absolute, top))),
        Some(_) => undo(host, of, command, path, None),
        None => Ok(()),
    }
}

pub(in crate::plugins) fn mount_device(step: &MountDevice<'_>) -> Result<DeviceOutcome, VolumeError> {
    let source = checked(step.spec).map_err(|error| bad_spec(&error))?;
    let (host, plugin) = (step.host, &step.spec.plugin);
    if step.confirmed || step.mounted {
        // What the table shows was recorded when it was whole.
        step.announce(None, None, None)?;
        return Ok(DeviceOutcome::Mounted);
    }
    if !host.flex_drivers.initialised(host, plugin)?.attach {
        return Ok(DeviceOutcome::NotNeeded);
    }
    let before = step.record.map_or(Recorded { plugin: Some(plugin), ..Recorded::default() }, Recorded::from);
    begin_anew(host, before, UNMOUNT_DEVICE, step.path, step.record.map(|record| &record.boot_id))?;
    refuse_hidden_data(host, step.path)?;
    let mut info = Info::recorded(step.record.and_then(|record| record.provider_info.as_ref()));
    let options = source.of_device(step.spec, info.answered.as_ref());
    // What attaching told is the controller's, in the node's status; the driver finds the device by its options.
    let none = Secrets::default();
    let told = info.answered.clone();
    let call = Call { command: WAIT_FOR_ATTACH, args: &[], secrets: &none, info: told.as_ref() };
    let waited = ask(host, plugin, &Call { args: &[OsStr::new(""), OsStr::new(&options)], ..call })?;
    info.device = match &waited {
        Answer::Done(answer) => field(answer, "device").and_then(Value::as_str),
        Answer::NotSupported => None,
    }
    .filter(|device| !device.is_empty())
    .map(str::to_owned);
    let device = info.device.clone();
    step.announce(device.clone(), None, Some(info.verbatim()))?;
    host.root.make_dirs(step.path.as_path(), 0o750).map_err(VolumeError::Path)?;
    let path = spelled(host, step.path);
    let args = [path.as_os_str(), OsStr::new(device.as_deref().unwrap_or_default()), OsStr::new(&options)];
    let answer = match ask(host, plugin, &Call { command: MOUNT_DEVICE, args: &args, ..call }) {
        Ok(Answer::Done(answer)) => answer,
        Ok(Answer::NotSupported) => return not_supported(step, device.as_deref()),
        Err(error) => {
            remove_unused(host, step.path, &error);
            return Err(error.into());
        }
    };
    info.take(plugin.as_str(), &answer, &none);
    step.announce(device, None, Some(info.verbatim()))?;
    Ok(DeviceOutcome::Mounted)
}

/// A driver that has no `mountdevice`: with no device either, its `mount` does it all.
fn not_supported(step: &MountDevice<'_>, device: Option<&str>) -> Result<DeviceOutcome, VolumeError> {
    crate::remove_volume_dir(step.host, step.path, false)?;
    match device {
        None => Ok(DeviceOutcome::NotNeeded),
        Some(device) => Err(VolumeError::Refused(Problem::new(
            "MountDeviceNotSupported",
            format!(
                "the flexVolume driver {} answered waitforattach with the device {device:?} and does not mount it",
                step.spec.plugin
            ),
            "A kubelet would make a file system on it and mount it; this program does not. Use a driver that has mountdevice.",
        ))),
    }
}

pub(in crate::plugins) fn set_up(step: &SetUp<'_>) -> Result<(), VolumeError> {
    let source = checked(step.spec).map_err(|error| bad_spec(&error))?;
    let inputs = needed(step.inputs)?;
    let path = step.path.ok_or_else(no_folder)?;
    let (host, plugin) = (step.host, &step.spec.plugin);
    let mut info = Info::recorded(step.record.and_then(|record| record.provider_info.as_ref()));
    let of_device = Info::recorded(step.device.and_then(|device| device.provider_info.as_ref())).answered;
    let told = info.answered.clone().or(of_device);
    if step.confirmed || step.mounted {
        // Before the record says the new size: what has not grown is tried again.
        expand::if_grown(step, source, path, told.as_ref())?;
        return step.announce(None, Some(info.verbatim())).map(drop);
    }
    same_device(step, source)?;
    let capabilities = host.flex_drivers.initialised(host, plugin)?;
    let before = step.record.map_or(Recorded { plugin: Some(plugin), ..Recorded::default() }, Recorded::from);
    begin_anew(host, before, UNMOUNT, path, step.record.map(|record| &record.boot_id))?;
    // Of a driver that mounts nothing, what lies there is its own.
    if !step.record.is_some_and(|record| record.confirmed && record.mount.is_none()) {
        refuse_hidden_data(host, path)?;
    }
    let options = source.of_mount(step.spec, inputs, step.fs_group, told.as_ref());
    let folder = step.announce_call(info.verbatim())?.make_volume_dir(0o750)?;
    let (spelled, secrets) = (spelled(host, path), with_decoded(inputs.secrets()));
    let args = [spelled.as_os_str(), OsStr::new(&options)];
    match ask(host, plugin, &Call { command: MOUNT, args: &args, secrets: &secrets, info: told.as_ref() }) {
        Ok(Answer::Done(answer)) => {
            info.take(plugin.as_str(), &answer, &secrets);
            step.announce_call(info.verbatim())?;
        }
        Ok(Answer::NotSupported) => {
            let (shown, dir) = match device(step) {
                Ok(device) => device,
                Err(error) => {
                    let _ = host.root.remove_dir(path.as_path());
                    return Err(error);
                }
            };
            let options = BindOptions { read_only: source.read_only(step.spec), ..BindOptions::default() };
            let mount = NewMount::bind(host.kernel, dir.as_fd(), &shown, &options).map_err(VolumeError::Mount)?;
            step.announce(Some(&mount), Some(info.verbatim()))?.attach(mount, &folder)?;
        }
        Err(error) => {
            remove_unused(host, path, &error);
            return Err(error.into());
        }
    }
    let group = step.fs_group.filter(|_| capabilities.fs_group && !source.read_only(step.spec));
    let dir = host.root.open_dir_in_mount(path.as_path()).map_err(VolumeError::Path)?;
    match (group, dir) {
        (Some(group), Some(dir)) => crate::apply_fs_group(dir.as_fd(), dir.path(), group, false),
        _ => Ok(()),
    }
}

/// Two pods may call different volumes of their own the same, and a device has the name alone, as it has at the kubelet.
fn same_device(step: &SetUp<'_>, source: Source<'_>) -> Result<(), VolumeError> {
    let Some(raw) = step.device.and_then(|device| device.volume.clone()) else { return Ok(()) };
    let Ok(volume) = Object::new(raw) else { return Ok(()) };
    if Source::of(&SpecSource::Inline { volume }) == Some(source) {
        return Ok(());
    }
    Err(VolumeError::Refused(Problem::new(
        "OtherDevice",
        format!(
            "another pod has a volume {:?} of the driver {} with other fields, and its device is at the same global path",
            step.spec.spec_name.as_str(),
            step.spec.plugin
        ),
        "Give the volume another name in one of the pods, or use a PersistentVolume.",
    )))
}

/// The root of the device's mount, which is bound where the driver leaves that to the kubelet.
fn device(step: &SetUp<'_>) -> Result<(std::path::PathBuf, refloat_mount::Dir), VolumeError> {
    let (host, plugin) = (step.host, &step.spec.plugin);
    let nothing = || {
        VolumeError::Refused(Problem::new(
            "MountNotSupported",
            format!("the flexVolume driver {plugin} does not support mount, and has no device mounted to show instead"),
            "A driver without mount needs the capability attach, and mountdevice.",
        ))
    };
    let device = step.device.filter(|device| device.confirmed && device.boot_id == host.boot_id);
    let device = device.ok_or_else(nothing)?;
    let absolute = host.absolute(&device.device_mount_path);
    let table = host.mount_table().map_err(VolumeError::Table)?;
    match (table.at(&absolute), &device.mount) {
        (Some(top), Some(expected)) if is_own(top, expected) => {}
        (Some(top), _) => return Err(VolumeError::Refused(other_mount(&absolute, top))),
        (None, _) => return Err(nothing()),
    }
    let dir = host.root.open_dir_in_mount(device.device_mount_path.as_path()).map_err(VolumeError::Path)?;
    Ok((absolute, dir.ok_or_else(nothing)?))
}
