//! What a driver is asked, and what it answers, in our own words.

use std::collections::BTreeMap;
use std::fmt;

/// An ordered string map, as volume and publish contexts are.
pub type StringMap = BTreeMap<String, String>;

/// Secrets for a driver. Their values are shown nowhere.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(StringMap);

impl Secrets {
    /// Secrets by name.
    pub fn new(values: StringMap) -> Self {
        Self(values)
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Only for the call itself, and to add to them.
    pub fn expose(&self) -> &StringMap {
        &self.0
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|key| (key, "***"))).finish()
    }
}

/// How a volume may be used.
///
/// # Source
/// `VolumeCapability.AccessMode.Mode` of `csi.proto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessMode {
    /// `UNKNOWN`.
    Unknown,
    /// `SINGLE_NODE_WRITER`.
    SingleNodeWriter,
    /// `SINGLE_NODE_READER_ONLY`.
    SingleNodeReaderOnly,
    /// `MULTI_NODE_READER_ONLY`.
    MultiNodeReaderOnly,
    /// `MULTI_NODE_SINGLE_WRITER`.
    MultiNodeSingleWriter,
    /// `MULTI_NODE_MULTI_WRITER`.
    MultiNodeMultiWriter,
    /// `SINGLE_NODE_SINGLE_WRITER`.
    SingleNodeSingleWriter,
    /// `SINGLE_NODE_MULTI_WRITER`.
    SingleNodeMultiWriter,
}

/// Block or file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// A raw block device.
    Block,
    /// A mounted file system.
    Mount {
        /// File system type; empty leaves it to the driver.
        fs_type: String,
        /// Mount options. They may be sensitive: never logged.
        mount_flags: Vec<String>,
        /// The group that the driver gives the files to, if it can (`VOLUME_MOUNT_GROUP`).
        volume_mount_group: String,
    },
}

/// `VolumeCapability`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeCapability {
    /// Block or file system.
    pub access: Access,
    /// How it may be used.
    pub mode: AccessMode,
}

/// `NodeStageVolumeRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageVolume {
    /// `volume_id`.
    pub volume_id: String,
    /// `publish_context`.
    pub publish_context: StringMap,
    /// `staging_target_path`, absolute.
    pub staging_target_path: String,
    /// `volume_capability`.
    pub capability: VolumeCapability,
    /// `secrets`.
    pub secrets: Secrets,
    /// `volume_context`.
    pub volume_context: StringMap,
}

/// `NodePublishVolumeRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishVolume {
    /// `volume_id`.
    pub volume_id: String,
    /// `publish_context`.
    pub publish_context: StringMap,
    /// `staging_target_path`, absolute; empty if the driver stages nothing.
    pub staging_target_path: String,
    /// `target_path`, absolute.
    pub target_path: String,
    /// `volume_capability`.
    pub capability: VolumeCapability,
    /// `readonly`.
    pub readonly: bool,
    /// `secrets`.
    pub secrets: Secrets,
    /// `volume_context`.
    pub volume_context: StringMap,
}

/// `NodeExpandVolumeRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpandVolume {
    /// `volume_id`.
    pub volume_id: String,
    /// `volume_path`: where it is published or staged, absolute.
    pub volume_path: String,
    /// `staging_target_path`, absolute, or empty.
    pub staging_target_path: String,
    /// `capacity_range.required_bytes`.
    pub required_bytes: i64,
    /// `volume_capability`.
    pub capability: VolumeCapability,
    /// `secrets`.
    pub secrets: Secrets,
}

/// What a usage counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageUnit {
    /// `UNKNOWN`.
    Unknown,
    /// Bytes.
    Bytes,
    /// Inodes.
    Inodes,
}

/// `VolumeUsage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageSeen {
    /// What is counted.
    pub unit: UsageUnit,
    /// All.
    pub total: i64,
    /// In use.
    pub used: i64,
    /// Free.
    pub available: i64,
}

/// `VolumeCondition`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionSeen {
    /// Whether something is wrong.
    pub abnormal: bool,
    /// What the driver says of it.
    pub message: String,
}

/// `NodeGetVolumeStatsResponse`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Usages.
    pub usage: Vec<UsageSeen>,
    /// Condition, from drivers with `VOLUME_CONDITION`.
    pub condition: Option<ConditionSeen>,
}
