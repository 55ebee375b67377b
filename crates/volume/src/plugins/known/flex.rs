//! flexVolume: drivers of other people, each a plugin with a name of its own.
//!
//! A driver that wants its device mounted first gets `plugins/kubernetes.io/flexvolume/<driver>/mounts/<volume>`, which the
//! kubelet makes whether or not the driver mounts there; one that does not want it never gets the folder. That tells
//! the unique name of a volume without a record. Driver and nothing else of its spec can be told.
//!
//! Whether a driver wants that only it can say. So each volume is taken for one with a device, and MountDevice asks.
//!
//! # Source
//! `pkg/volume/flexvolume` of Kubernetes v1.36: `getDeviceMountPath`, `prepareForMount`, `UnescapeQualifiedName`.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use refloat_record::{PluginName, PodRef, RelPath};

use super::kinds::{Field, Kind};
use super::told::{Seen, Told, put_together};
use super::{Instead, capabilities, global_of};
use crate::plugins::flex_volume::{self, Source};
use crate::plugins::node_root;
use crate::{
    Capabilities, ContentError, DeviceOutcome, DriverInputs, FoundVolume, GlobalMount, MountDevice, Objects, Plugin,
    Presence, Rebuilt, Recorded, SetUp, SpecError, SpecSource, TearDown, UnmountDevice, VolumeError, VolumeSpec,
};

/// Any flexVolume driver. What it is called stands in the folder's name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flex;

/// Whether a plugin of this name that nobody knows is a flexVolume driver: the kubelet's own are all `kubernetes.io/…`.
pub fn is_flex(name: &PluginName) -> bool {
    let name = name.as_str();
    !name.starts_with("kubernetes.io") && !name.contains('~') && name.split('/').all(|part| !part.is_empty())
}

const KIND: Kind = Kind {
    name: "flexVolume",
    source: "flexVolume",
    fields: &[
        Field { inline: "flexVolume.driver", persistent: "spec.flexVolume.driver" },
        Field { inline: "flexVolume.options", persistent: "spec.flexVolume.options" },
        Field { inline: "flexVolume.secretRef", persistent: "spec.flexVolume.secretRef" },
        Field { inline: "flexVolume.fsType", persistent: "spec.flexVolume.fsType" },
        Field { inline: "flexVolume.readOnly", persistent: "spec.flexVolume.readOnly" },
    ],
    supports: |_| false,
    // Not of use: it is set up.
    instead: Instead::Later,
    attachable: true,
    device_mountable: true,
    has_devices: true,
    device_needs: Some("its driver has to be asked, which `refloat clean` does"),
    presence: Presence::Driver,
    inline_only: false,
    spec_name: |folder| Some(folder),
    tell: |_| Told::new(),
    device_name: |rest| Some(rest.to_owned()),
};

/// The driver whose folder a volume's is in.
fn driver(found: FoundVolume<'_>) -> Option<String> {
    Some(found.path.parent()?.file_name()?.to_str()?.replace('~', "/"))
}

impl Plugin for Flex {
    fn name(&self) -> PluginName {
        PluginName::new(KIND.name).expect("a constant name")
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(KIND.attachable, KIND.device_mountable, KIND.presence)
    }

    fn supports(&self, source: &SpecSource) -> bool {
        Source::of(source).is_some()
    }

    fn name_for(&self, source: &SpecSource) -> PluginName {
        // What is no driver's name is refused by `check`.
        Source::of(source).and_then(Source::plugin).unwrap_or_else(|| self.name())
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        flex_volume::checked(spec).map(drop)
    }

    /// # Source
    /// `GetVolumeName` of `plugin.go`: the spec's name, whatever the driver's `getvolumename` answers.
    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        flex_volume::checked(spec).map(|_| spec.spec_name.to_string())
    }

    fn path(&self, pod: &PodRef, spec: &VolumeSpec) -> Option<RelPath> {
        Some(crate::layout::volume_path(&pod.uid, &spec.plugin, &spec.spec_name))
    }

    fn device_mount_path(&self, spec: &VolumeSpec) -> Option<RelPath> {
        RelPath::new(format!("{}/{}/mounts/{}", crate::layout::FLEX_VOLUME, spec.plugin, spec.spec_name)).ok()
    }

    fn inputs(
        &self,
        spec: &VolumeSpec,
        pod: &Pod,
        pod_ref: &PodRef,
        objects: &dyn Objects,
    ) -> Result<Option<DriverInputs>, ContentError> {
        flex_volume::inputs(spec, pod, pod_ref, objects).map(Some)
    }

    fn driver(&self, spec: &VolumeSpec) -> Option<String> {
        Some(spec.plugin.to_string())
    }

    fn mount_device(&self, step: MountDevice<'_>) -> Result<DeviceOutcome, VolumeError> {
        flex_volume::mount_device(&step)
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        flex_volume::set_up(&step)
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        flex_volume::tear_down(step)
    }

    fn unmount_device(&self, step: &UnmountDevice<'_>) -> Result<(), VolumeError> {
        flex_volume::unmount_device(step)
    }

    fn recorded_driver(&self, recorded: Recorded<'_>) -> Option<String> {
        recorded.plugin.map(ToString::to_string)
    }

    fn device_needs(&self) -> Option<&'static str> {
        KIND.device_needs
    }

    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        let told = [("driver".to_owned(), driver(found)?.into())].into_iter().collect();
        let seen = Seen { found, mount: found.table.at(found.path), global: None };
        Some(put_together(&KIND, found.folder, told, &seen))
    }

    fn device_of(&self, found: FoundVolume<'_>) -> Option<GlobalMount> {
        let driver = driver(found)?;
        let own = PathBuf::from(format!("{}/{driver}/mounts/{}", crate::layout::FLEX_VOLUME, found.folder));
        let volume_name = Some(found.folder.to_owned());
        if found.memo.has_global_folder(&own) {
            return Some(GlobalMount { path: node_root(found.path)?.join(own), volume_name });
        }
        global_of(&driver, found).map(|(path, rest)| GlobalMount { path, volume_name: Some(rest) })
    }

    fn device_name(&self, rest: &str) -> Option<String> {
        (KIND.device_name)(rest)
    }
}
