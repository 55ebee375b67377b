//! `iscsi`: a disk that a target in the network has, as the pod's own volume or a `PersistentVolume`.
//!
//! | volume mode | MountDevice | SetUp |
//! | --- | --- | --- |
//! | `Filesystem` | logs in, finds the disk, makes a file system if it is truly blank, mounts it at `plugins/kubernetes.io/iscsi/iface-<interface>/<name>` | binds that mount's root to the pod's folder |
//! | `Block` | logs in, finds the disk; its record says that it is there | presents it to the pod as [`crate::block`] tells, with the global map path `plugins/kubernetes.io/iscsi/volumeDevices/iface-<interface>/<name>` |
//!
//! The name is `<portal>-<iqn>-lun-<lun>`, the portal with its port.
//!
//! A session with a target is shared: by the volumes of this node that are on the same target, and by whoever else made it. Which
//! session is of this program's making the record says before it can come (`iscsi::login`), and it is ended only when no record names it
//! any more and nobody uses a disk behind it (`iscsi::logout`). The disk itself is found, known and removed as those of Fibre Channel
//! are (`plugins::san`).
//!
//! # Source
//! `pkg/volume/iscsi` of Kubernetes v1.36; iscsiadm(8).

mod chap;
mod file;
mod info;
mod iscsiadm;
mod login;
mod logout;
mod source;
mod target;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::Pod;
use refloat_record::{PluginName, PodRef, RelPath, VolumeMode};

use super::known::{self, names};
use super::san::{self, Found, Seek};
use crate::{
    Capabilities, ContentError, DeviceOutcome, DriverInputs, FoundVolume, GlobalMount, MountDevice, Objects, Plugin,
    Presence, Problem, Rebuilt, Reconstruction, SetUp, SpecError, SpecSource, TearDown, UnmountDevice, VolumeError,
    VolumeSpec,
};
use info::{Access, Info};
use login::Way;
use source::Source;
use target::{Portal, Target};

pub use target::with_port;

/// The plugin `kubernetes.io/iscsi`.
#[derive(Debug, Clone, Copy)]
pub struct Iscsi;

/// Its name, and its folder below `plugins/`.
const NAME: &str = "kubernetes.io/iscsi";

/// What a device's path says, if it is one of this plugin's.
fn target_by_path(path: &RelPath) -> Option<Target> {
    let path = crate::layout::global_path(path.as_str()).filter(|path| path.plugin.as_str() == NAME)?;
    let volume = names::iscsi(path.rest)?;
    let (interface, _) = path.rest.strip_prefix("iface-")?.split_once('/')?;
    Some(Target {
        portals: vec![Portal::parse(&volume.portal)?],
        iqn: volume.iqn,
        lun: volume.lun,
        interface: interface.to_owned(),
    })
}

/// The target with what its portals' names stand for.
fn looked_up(step: &MountDevice<'_>, source: &Source<'_>) -> Result<Target, VolumeError> {
    let mut target = source.target.clone();
    for portal in target.portals.iter_mut().filter(|portal| portal.is_name()) {
        portal.addresses = Some(iscsiadm::addresses_of(step.host, &portal.host)?);
    }
    Ok(target)
}

/// MountDevice of what is not mounted yet.
fn mount_device(step: &MountDevice<'_>, source: &Source<'_>) -> Result<(), VolumeError> {
    let host = step.host;
    let before = step.record.and_then(|record| Info::recorded(record, &host.boot_id));
    let target = looked_up(step, source)?;
    let found = before.as_ref().map(|info| info.found.clone()).unwrap_or_default();
    let info = |access: &Access, found: &Found| Info {
        target: target.clone(),
        initiator_name: source.initiator.map(str::to_owned),
        access: access.clone(),
        found: found.clone(),
    };
    let none = refloat_csi::Secrets::default();
    let chap = step.inputs.map_or(&none, DriverInputs::secrets);
    let way = Way {
        target: &target,
        initiator: source.initiator.map(|initiator| (initiator, source.interface)),
        chap,
        chap_session: source.chap_session,
        chap_discovery: source.chap_discovery,
    };
    let announce = |access: &Access| step.announce(None, None, Some(info(access, &found).verbatim())).map(drop);
    let access = login::log_in(step, &way, before.as_ref().map(|info| &info.access), &announce)?;
    let info = |found: &Found| info(&access, found).verbatim();
    let seek = Seek { wanted: &target, before: found.clone(), info: &info };
    match step.spec.mode {
        VolumeMode::Filesystem => san::mount(step, &seek, source.fs_type, source.read_only),
        // Its record says that it is there; nothing is mounted.
        VolumeMode::Block => {
            let (_, lun, _hold) = san::find(step, &seek)?;
            san::open(host, &lun).map(drop)
        }
    }
}

/// The `providerInfo` of a device that was found mounted without a record.
fn adopted(
    step: &MountDevice<'_>,
    source: &Source<'_>,
    found: &Found,
) -> Result<refloat_record::Verbatim, VolumeError> {
    let host = step.host;
    let peers = Info::of_peers(&step.peers.devices()?, step.path.as_str(), &host.boot_id);
    let target = source.target.clone();
    let access = login::known(&target, host, None, &peers, &host.sys.look()?);
    let initiator_name = source.initiator.map(str::to_owned);
    Ok(Info { target, initiator_name, access, found: found.clone() }.verbatim())
}

impl Plugin for Iscsi {
    fn name(&self) -> PluginName {
        known::ISCSI.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            attachable: true,
            device_mountable: true,
            block: true,
            content: false,
            verify: false,
            binds: true,
            reconstruction: Reconstruction::FromLayout,
            presence: Presence::Mount,
        }
    }

    fn supports(&self, spec: &SpecSource) -> bool {
        Source::is_in(spec)
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        Source::of(spec).map(drop)
    }

    /// The portal has its port, whether the spec has or not: paths have it.
    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        let source = Source::of(spec)?;
        Ok(format!("{}:{}:{}", source.portal, source.target.iqn, source.target.lun))
    }

    /// The kubelet's global mount path, or its global map path: both are called after the disk.
    fn device_mount_path(&self, spec: &VolumeSpec) -> Option<RelPath> {
        let Source { portal, target: Target { iqn, lun, interface, .. }, .. } = Source::of(spec).ok()?;
        san::global_path(NAME, spec.mode, &format!("iface-{interface}/{portal}-{iqn}-lun-{lun}"))
    }

    /// The keys of its Secret, where it wants CHAP.
    fn inputs(
        &self,
        spec: &VolumeSpec,
        _: &Pod,
        pod: &PodRef,
        objects: &dyn Objects,
    ) -> Result<Option<DriverInputs>, ContentError> {
        let problem = |error: SpecError| {
            ContentError(Problem::new("BadSpec", error.to_string(), "Correct the pod or the PersistentVolume."))
        };
        let source = Source::of(spec).map_err(problem)?;
        let Some((namespace, name)) = source.secret() else { return Ok(None) };
        let namespace = namespace.unwrap_or(&pod.namespace);
        let secret = super::csi::secret(objects, namespace, name, "open-iscsi")?;
        let secrets = chap::of_secret(&secret, &format!("Secret {namespace}/{name}"))?;
        Ok(Some(DriverInputs::told(refloat_csi::StringMap::new(), secrets)))
    }

    fn mount_device(&self, step: MountDevice<'_>) -> Result<DeviceOutcome, VolumeError> {
        let source = Source::of(step.spec).map_err(|error| super::bad_spec(&error))?;
        let file_system = step.spec.mode == VolumeMode::Filesystem;
        if file_system && san::adopted(&step, &source.target, &|found| adopted(&step, &source, found))? {
            return Ok(DeviceOutcome::Mounted);
        }
        if file_system {
            let known = file::look(step.host, step.path, &source.target)?.map(|_| file::NAME);
            super::refuse_hidden_data_but(step.host, step.path, known)?;
        }
        mount_device(&step, &source)?;
        Ok(DeviceOutcome::Mounted)
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        let source = Source::of(step.spec).map_err(|error| super::bad_spec(&error))?;
        match step.spec.mode {
            VolumeMode::Filesystem => {
                let shown = san::Wanted::shown(&source.target);
                let nothing = || Err(super::device_bind::not_mounted(&shown));
                super::device_bind::set_up(&step, step.spec.read_only || source.read_only, nothing)
            }
            VolumeMode::Block => {
                let info = step.device.and_then(|device| Info::recorded(device, &step.host.boot_id));
                let target = info.as_ref().map_or(&source.target, |info| &info.target);
                let of = |found: &Found| Info {
                    target: target.clone(),
                    initiator_name: source.initiator.map(str::to_owned),
                    // Who made the session, the device's record alone says.
                    access: Access::default(),
                    found: found.clone(),
                };
                san::block::set_up(&step, target, &|found| of(found).verbatim())
            }
        }
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        match step.record.mode {
            VolumeMode::Filesystem => known::plain_tear_down(step),
            VolumeMode::Block => san::block::tear_down(step, target_by_path),
        }
    }

    fn adopts_devices(&self) -> bool {
        true
    }

    fn unmount_device(&self, step: &UnmountDevice<'_>) -> Result<(), VolumeError> {
        let (host, path) = (step.host, &step.record.device_mount_path);
        let info = Info::recorded(step.record, &host.boot_id);
        let by_path = target_by_path(path);
        let target = info.as_ref().map(|info| info.target.clone()).or_else(|| by_path.clone());
        san::unmount(step, target, &|name| name == file::NAME, || {
            let file = by_path.as_ref().map(|target| file::look(host, path, target)).transpose()?.flatten();
            logout::log_out(step, info.as_ref(), file.as_ref(), by_path.as_ref())?;
            if file.is_some() { file::remove(host, path) } else { Ok(()) }
        })
    }

    fn spec_name<'f>(&self, folder: &'f str) -> Option<&'f str> {
        known::ISCSI.spec_name(folder)
    }

    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        known::ISCSI.from_layout(found)
    }

    fn device_of(&self, found: FoundVolume<'_>) -> Option<GlobalMount> {
        known::ISCSI.device_of(found)
    }

    fn device_name(&self, rest: &str) -> Option<String> {
        known::ISCSI.device_name(rest)
    }

    fn device_fields(&self, rest: &str, mode: VolumeMode) -> serde_json::Map<String, serde_json::Value> {
        known::ISCSI.device_fields(rest, mode)
    }
}
