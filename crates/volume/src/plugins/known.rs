//! Plugins that are known, and undone, without being set up: what a kubelet mounted with them on a node is found,
//! explained as far as paths and mounts tell, and unmounted.
//!
//! Most of them are gone from Kubernetes, and a CSI driver has taken their place; some are to come. SetUp of each is refused
//! with a word of what to use instead. TearDown is a plain unmount of what the mount table shows, and an rmdir.
//!
//! Of a volume in a pod's folder nobody can tell whether it is the pod's own or a `PersistentVolume`'s, unless its
//! name is one that a pod cannot give. Then `persistentVolume` is among what is lost, and the rest stands in the form of
//! the pod's own entry.
//!
//! # Source
//! `pkg/volume/<plugin>` of Kubernetes, at v1.36 or the last version that had it; `csi-translation-lib` for the drivers.

mod flex;
mod kinds;
pub(crate) mod names;
mod told;

use std::path::{Path, PathBuf};

use refloat_record::{PluginName, VolumeMode};

use super::node_root;
use crate::layout::{PLUGINS, global_path, map_file};
use crate::{
    Capabilities, FoundVolume, GlobalMount, Plugin, Presence, Problem, Rebuilt, Reconstruction, SetUp, SpecError,
    SpecSource, TearDown, UnmountDevice, VolumeError, VolumeSpec,
};

pub(crate) use flex::Flex;
pub use flex::is_flex;
use kinds::{KINDS, Kind};

/// What one sets up instead of such a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instead {
    /// A CSI driver.
    Csi(&'static str),
    /// Itself, in a later version of this program.
    Later,
    /// Something else; a whole sentence.
    Other(&'static str),
}

impl Instead {
    fn why(self) -> String {
        match self {
            Self::Csi(driver) => {
                format!("is of a type that Kubernetes no longer has: the CSI driver {driver} takes its place")
            }
            Self::Later => "is of a type that this version does not set up yet".into(),
            Self::Other(text) => text.into(),
        }
    }
}

/// One such plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known(&'static Kind);

/// NFS, without its SetUp.
pub(crate) const NFS: Known = Known(&kinds::NFS);

/// `GlusterFS`, without its SetUp.
pub(crate) const GLUSTERFS: Known = Known(&kinds::GLUSTERFS);

/// Fibre Channel, without what finds and undoes its disks.
pub(crate) const FC: Known = Known(&kinds::FC);

/// iSCSI, without what finds and undoes its disks and sessions.
pub(crate) const ISCSI: Known = Known(&kinds::ISCSI);

/// All of them but flexVolume, whose names are the drivers' own.
pub(crate) fn all() -> impl Iterator<Item = Known> {
    KINDS.iter().map(Known)
}

impl Plugin for Known {
    fn name(&self) -> PluginName {
        PluginName::new(self.0.name).expect("a constant name")
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.0.attachable, self.0.device_mountable, self.0.presence)
    }

    fn supports(&self, source: &SpecSource) -> bool {
        (self.0.supports)(source)
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        Err(never_set_up(spec, self.0.instead))
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        self.check(spec).map(|()| String::new())
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        Err(not_set_up(step.spec, self.0.instead))
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        plain_tear_down(step)
    }

    fn unmount_device(&self, step: &UnmountDevice<'_>) -> Result<(), VolumeError> {
        plain_unmount_device(step)
    }

    fn device_needs(&self) -> Option<&'static str> {
        self.0.device_needs
    }

    fn spec_name<'f>(&self, folder: &'f str) -> Option<&'f str> {
        (self.0.spec_name)(folder)
    }

    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        Some(told::rebuild(self.0, found))
    }

    fn device_of(&self, found: FoundVolume<'_>) -> Option<GlobalMount> {
        if !self.0.has_devices {
            return None;
        }
        let (path, rest) = global_of(self.0.name, found)?;
        Some(GlobalMount { path, volume_name: self.device_name(&rest) })
    }

    fn device_name(&self, rest: &str) -> Option<String> {
        (self.0.device_name)(rest)
    }

    fn device_fields(&self, rest: &str, mode: VolumeMode) -> serde_json::Map<String, serde_json::Value> {
        told::by_global_path(self.0, rest, mode)
    }
}

pub(super) fn capabilities(attachable: bool, device_mountable: bool, presence: Presence) -> Capabilities {
    Capabilities {
        attachable,
        device_mountable,
        block: false,
        content: false,
        verify: false,
        binds: false,
        reconstruction: Reconstruction::FromLayout,
        presence,
    }
}

fn never_set_up(spec: &VolumeSpec, instead: Instead) -> SpecError {
    SpecError::NotSetUp { volume: spec.source.volume().typed.name.clone(), why: instead.why() }
}

fn not_set_up(spec: &VolumeSpec, instead: Instead) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "TypeNotSetUp",
        never_set_up(spec, instead).to_string(),
        "what is mounted of it is found and undone; use another type for new volumes",
    ))
}

pub(crate) fn no_folder() -> VolumeError {
    VolumeError::Refused(Problem::new(
        "NoFolder",
        "the record of a volume that is a mount has no path",
        "the record was changed by hand or by another program; `refloat record show` prints it",
    ))
}

/// TearDown of what is one mount: a plain unmount and an rmdir.
pub(crate) fn plain_tear_down(step: &TearDown<'_>) -> Result<(), VolumeError> {
    let path = step.record.path.as_ref().ok_or_else(no_folder)?;
    crate::unmount_nested(step.host, path)?;
    let expected = step.host.announced_mount(step.record.mount.as_ref(), &step.record.boot_id);
    crate::unmount_own_layers(step.host, path, expected.as_ref())?;
    crate::remove_volume_dir(step.host, path, false)
}

fn plain_unmount_device(step: &UnmountDevice<'_>) -> Result<(), VolumeError> {
    let path = &step.record.device_mount_path;
    let expected = step.host.announced_mount(step.record.mount.as_ref(), &step.record.boot_id);
    crate::unmount_own_layers(step.host, path, expected.as_ref())?;
    crate::remove_volume_dir(step.host, path, false)
}

/// The global path that a pod's mount was bound from: the one of this plugin that shows the same file system and
/// root. With it, what the plugin put into it. Two such paths tell nothing. Of a block volume, the folder that its map
/// file is in.
fn global_of(plugin: &str, found: FoundVolume<'_>) -> Option<(PathBuf, String)> {
    if found.mode == VolumeMode::Block {
        return global_map_path(plugin, found.path);
    }
    let mount = found.table.at(found.path)?;
    let plugins = node_root(found.path)?.join(PLUGINS);
    let mut paths = found.table.same_root(mount.device(), mount.root()).into_iter().filter_map(|other| {
        // As text first: nearly all are elsewhere.
        let below =
            other.point().as_os_str().as_encoded_bytes().strip_prefix(plugins.as_os_str().as_encoded_bytes())?;
        let rel = format!("{PLUGINS}{}", std::str::from_utf8(below).ok()?);
        let path = global_path(&rel).filter(|p| p.plugin.as_str() == plugin && p.mode == VolumeMode::Filesystem)?;
        Some((other.point().to_path_buf(), path.rest.to_owned()))
    });
    let first = paths.next()?;
    paths.all(|other| other.0 == first.0).then_some(first)
}

/// The global map path that this file is in. The root is whatever is above; a second `plugins` below it is part of no
/// volume's name.
fn global_map_path(plugin: &str, file: &Path) -> Option<(PathBuf, String)> {
    let text = file.to_str()?;
    let at = text.rfind(&format!("/{PLUGINS}/{plugin}/"))? + 1;
    let (path, _) = map_file(&text[at..]).filter(|(path, _)| path.plugin.as_str() == plugin)?;
    Some((file.parent()?.to_path_buf(), path.rest.to_owned()))
}

#[cfg(test)]
mod tests;
