//! Any record, and what identifies it.

use crate::{DeviceMount, PluginName, PodCheckpoint, PodUid, PodVolume, SpecName, UniqueVolumeName, VolumeMode};

/// One record of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A device mounted on this node.
    DeviceMount(DeviceMount),
    /// A pod's use of a volume.
    PodVolume(PodVolume),
    /// A pod as admitted.
    PodCheckpoint(PodCheckpoint),
}

/// What identifies a record: there is at most one with a given key in a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKey {
    /// A device, by its unique volume name.
    DeviceMount(UniqueVolumeName),
    /// A pod's volume.
    PodVolume {
        /// The pod.
        pod: PodUid,
        /// The plugin.
        plugin: PluginName,
        /// The inner spec name.
        spec_name: SpecName,
        /// File system or block.
        mode: VolumeMode,
    },
    /// A pod.
    PodCheckpoint(PodUid),
}

impl Record {
    /// What identifies it.
    pub fn key(&self) -> RecordKey {
        match self {
            Self::DeviceMount(r) => RecordKey::DeviceMount(r.unique_name.clone()),
            Self::PodVolume(r) => r.key(),
            Self::PodCheckpoint(r) => RecordKey::PodCheckpoint(r.pod.uid.clone()),
        }
    }
}

impl PodVolume {
    /// What identifies it.
    pub fn key(&self) -> RecordKey {
        RecordKey::PodVolume {
            pod: self.pod.uid.clone(),
            plugin: self.plugin.clone(),
            spec_name: self.spec_name.clone(),
            mode: self.mode,
        }
    }
}
