//! SetUp: `NodePublishVolume`, the pod's group, and what has grown.

use std::os::fd::AsFd as _;

use refloat_csi::{Driver, NodeCapabilities, PublishVolume};
use refloat_record::{RelPath, VolumeMode};

use super::info::Info;
use super::inputs::{DriverInputs, needed};
use super::request::{capability, own_fs_group, path_for_driver, selinux_label, spec_refused};
use super::source::{self, Source};
use super::vol_data::{self, VolData};
use super::{block, expand, no_folder};
use crate::{Problem, SetUp, VolumeError};

/// The call's name.
const PUBLISH: &str = "NodePublishVolume";

pub(super) fn set_up(step: &SetUp<'_>) -> Result<(), VolumeError> {
    let source = Source::of(step.spec).map_err(|error| spec_refused(&error))?;
    let inputs = needed(step.inputs)?;
    let block = step.spec.mode == VolumeMode::Block;
    let target = match step.spec.mode {
        VolumeMode::Filesystem => step.path.ok_or_else(no_folder)?.clone(),
        VolumeMode::Block => block::target(step.pod, &step.spec.spec_name)?,
    };
    let target = &target;
    let handle = source.handle(step.pod, step.spec);
    let info = Info {
        driver: source.driver().to_owned(),
        attachment_id: Some(source::attachment_name(&handle, source.driver(), &inputs.node_name)),
        volume_handle: handle,
        ephemeral: source.is_ephemeral(),
    };
    let request = Publish { step, source, inputs, target, info: &info };
    if step.confirmed && !inputs.requires_republish && (!block || block::is_published(step.host, target)?) {
        // Before the record says the new size: what has not grown is tried again.
        expand::if_grown(step, source, inputs, target)?;
        // Of what presents the device to the pod, anything may be missing.
        return if block {
            block::present(step, &info, &request.data())
        } else {
            step.announce(None, Some(info.verbatim())).map(drop)
        };
    }
    let driver = step.host.drivers.get(source.driver(), PUBLISH)?;
    let capabilities = driver.capabilities()?;
    request.run(&driver, capabilities)?;
    if block {
        block::present(step, &info, &request.data())?;
    } else if let Some(group) = own_fs_group(step.spec, source, capabilities, inputs, step.fs_group) {
        give_to_group(step, target, group)?;
    }
    if step.confirmed {
        expand::if_grown(step, source, inputs, target)
    } else {
        expand::after_publish(step, source, inputs, target)
    }
}

struct Publish<'a> {
    step: &'a SetUp<'a>,
    source: Source<'a>,
    inputs: &'a DriverInputs,
    target: &'a RelPath,
    info: &'a Info,
}

impl Publish<'_> {
    /// What the kubelet's file says of the volume.
    fn data(&self) -> VolData {
        let Self { step, inputs, info, .. } = *self;
        VolData {
            attachment_id: info.attachment_id.clone(),
            driver_name: info.driver.clone(),
            node_name: Some(inputs.node_name.clone()),
            selinux_mount_context: selinux_label(inputs).map(str::to_owned),
            spec_vol_id: Some(step.spec.spec_name.to_string()),
            volume_handle: info.volume_handle.clone(),
            lifecycle_mode: (step.spec.mode == VolumeMode::Filesystem)
                .then(|| if info.ephemeral { "Ephemeral" } else { "Persistent" }.to_owned()),
        }
    }

    /// Asks the driver.
    fn run(&self, driver: &Driver, capabilities: NodeCapabilities) -> Result<(), VolumeError> {
        let Self { step, source, inputs, target, info } = *self;
        let staged = self.staged(capabilities)?;
        self.refuse_hidden_data()?;
        let label = selinux_label(inputs);
        let mut volume_context = source.attributes();
        volume_context.extend(inputs.pod_info.clone());
        let request = PublishVolume {
            volume_id: info.volume_handle.clone(),
            publish_context: inputs.publish_context.clone(),
            staging_target_path: match staged {
                Some(path) => path_for_driver(step.host, path)?,
                None => String::new(),
            },
            target_path: path_for_driver(step.host, target)?,
            capability: capability(step.spec, source, capabilities, step.fs_group, label),
            readonly: step.spec.read_only,
            secrets: inputs.publish_secrets.clone(),
            volume_context,
        };
        step.announce_call(info.verbatim())?;
        let folder = step.host.root.make_dirs(vol_data::folder_of(target), 0o750).map_err(VolumeError::Path)?;
        if step.spec.mode == VolumeMode::Filesystem {
            vol_data::write(&folder, &self.data())?;
        }
        Ok(driver.publish(&request)?)
    }

    /// Where the volume is staged, for drivers that stage.
    fn staged(&self, capabilities: NodeCapabilities) -> Result<Option<&RelPath>, VolumeError> {
        if !capabilities.stage_unstage || self.source.is_ephemeral() {
            return Ok(None);
        }
        let device = self.step.device.filter(|device| device.confirmed && device.boot_id == self.step.host.boot_id);
        device.map(|device| Some(&device.device_mount_path)).ok_or_else(|| {
            VolumeError::Refused(Problem::new(
                "DeviceNotMounted",
                format!("volume {:?} is not staged yet, and its driver wants that", self.info.volume_handle),
                "MountDevice comes first; see what it says of this volume.",
            ))
        })
    }

    /// Files that were written while nothing was mounted there would be hidden. Those of a driver that mounts nothing are
    /// its own.
    fn refuse_hidden_data(&self) -> Result<(), VolumeError> {
        let host = self.step.host;
        // The driver's own place.
        if self.step.spec.mode == VolumeMode::Block {
            return Ok(());
        }
        let by_driver = self.step.record.is_some_and(|record| record.confirmed && record.mount.is_none());
        let table = host.mount_table().map_err(VolumeError::Table)?;
        if by_driver || table.at(&host.absolute(self.target)).is_some() {
            return Ok(());
        }
        crate::plugins::refuse_hidden_data(host, self.target)
    }
}

fn give_to_group(step: &SetUp<'_>, target: &RelPath, group: refloat_record::FsGroup) -> Result<(), VolumeError> {
    let dir = step.host.root.open_dir_in_mount(target.as_path()).map_err(VolumeError::Path)?;
    match dir {
        Some(dir) => crate::apply_fs_group(dir.as_fd(), dir.path(), group, false),
        // A driver that made nothing has nothing to give.
        None => Ok(()),
    }
}
