//! Any record, and what identifies it.

use crate::{
    DeviceMount, Driver, DriverName, PluginName, PodCheckpoint, PodUid, PodVolume, SpecName, UniqueVolumeName,
    VolumeMode,
};

/// The kinds of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKind {
    /// [`DeviceMount`].
    DeviceMount,
    /// [`PodVolume`].
    PodVolume,
    /// [`PodCheckpoint`].
    PodCheckpoint,
    /// [`Driver`].
    Driver,
}

impl RecordKind {
    /// How many kinds there are.
    pub const COUNT: usize = 4;

    /// All kinds.
    pub const ALL: [Self; Self::COUNT] = [Self::DeviceMount, Self::PodVolume, Self::PodCheckpoint, Self::Driver];

    /// The word in the record's `kind` field.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeviceMount => "DeviceMount",
            Self::PodVolume => "PodVolume",
            Self::PodCheckpoint => "PodCheckpoint",
            Self::Driver => "Driver",
        }
    }

    /// The kind with this `kind` field.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }

    /// The folder of these records below the state folder.
    pub fn folder(self) -> &'static str {
        match self {
            Self::DeviceMount => "devices",
            Self::PodVolume => "volumes",
            Self::PodCheckpoint => "pods",
            Self::Driver => "drivers",
        }
    }
}

/// One record of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // nearly all records are pod volumes, the largest
pub enum Record {
    /// A device mounted on this node.
    DeviceMount(DeviceMount),
    /// A pod's use of a volume.
    PodVolume(PodVolume),
    /// A pod as admitted.
    PodCheckpoint(PodCheckpoint),
    /// A CSI driver of this node.
    Driver(Driver),
}

impl From<DeviceMount> for Record {
    fn from(record: DeviceMount) -> Self {
        Self::DeviceMount(record)
    }
}

impl From<PodVolume> for Record {
    fn from(record: PodVolume) -> Self {
        Self::PodVolume(record)
    }
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
    /// A CSI driver.
    Driver(DriverName),
}

impl RecordKey {
    /// The kind of the record.
    pub fn kind(&self) -> RecordKind {
        match self {
            Self::DeviceMount(_) => RecordKind::DeviceMount,
            Self::PodVolume { .. } => RecordKind::PodVolume,
            Self::PodCheckpoint(_) => RecordKind::PodCheckpoint,
            Self::Driver(_) => RecordKind::Driver,
        }
    }
}

impl Record {
    /// The kind.
    pub fn kind(&self) -> RecordKind {
        match self {
            Self::DeviceMount(_) => RecordKind::DeviceMount,
            Self::PodVolume(_) => RecordKind::PodVolume,
            Self::PodCheckpoint(_) => RecordKind::PodCheckpoint,
            Self::Driver(_) => RecordKind::Driver,
        }
    }

    /// Orders records as their keys are ordered, without making the keys.
    pub(crate) fn cmp_by_key(&self, other: &Self) -> std::cmp::Ordering {
        match (self, other) {
            (Self::DeviceMount(a), Self::DeviceMount(b)) => a.unique_name.cmp(&b.unique_name),
            (Self::PodVolume(a), Self::PodVolume(b)) => {
                let order = (&a.pod.uid, &a.plugin, &a.spec_name, a.mode);
                order.cmp(&(&b.pod.uid, &b.plugin, &b.spec_name, b.mode))
            }
            (Self::PodCheckpoint(a), Self::PodCheckpoint(b)) => a.pod.uid.cmp(&b.pod.uid),
            (Self::Driver(a), Self::Driver(b)) => a.name.cmp(&b.name),
            _ => self.kind().cmp(&other.kind()),
        }
    }

    /// What identifies it.
    pub fn key(&self) -> RecordKey {
        match self {
            Self::DeviceMount(r) => RecordKey::DeviceMount(r.unique_name.clone()),
            Self::PodVolume(r) => r.key(),
            Self::PodCheckpoint(r) => RecordKey::PodCheckpoint(r.pod.uid.clone()),
            Self::Driver(r) => RecordKey::Driver(r.name.clone()),
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
