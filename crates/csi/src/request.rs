//! What a driver is asked, and what it answers, in our own words.

use std::collections::BTreeMap;
use std::fmt;

use crate::hide::TOKENS;

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
#[derive(Clone, PartialEq, Eq)]
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

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => f.write_str("Block"),
            Self::Mount { fs_type, mount_flags, volume_mount_group } => f
                .debug_struct("Mount")
                .field("fs_type", fs_type)
                .field("mount_flags", &format_args!("({} of them)", mount_flags.len()))
                .field("volume_mount_group", volume_mount_group)
                .finish(),
        }
    }
}

/// A context for `Debug`: without a pod's tokens.
struct Shown<'a>(&'a StringMap);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(key, value)| if key == TOKENS { (key, "***") } else { (key, value) };
        f.debug_map().entries(self.0.iter().map(|(k, v)| (k.as_str(), v.as_str())).map(shown)).finish()
    }
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
#[derive(Clone, PartialEq, Eq)]
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

impl fmt::Debug for StageVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageVolume")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &Shown(&self.publish_context))
            .field("staging_target_path", &self.staging_target_path)
            .field("capability", &self.capability)
            .field("secrets", &self.secrets)
            .field("volume_context", &Shown(&self.volume_context))
            .finish()
    }
}

/// `NodePublishVolumeRequest`.
#[derive(Clone, PartialEq, Eq)]
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

impl fmt::Debug for PublishVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishVolume")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &Shown(&self.publish_context))
            .field("staging_target_path", &self.staging_target_path)
            .field("target_path", &self.target_path)
            .field("capability", &self.capability)
            .field("readonly", &self.readonly)
            .field("secrets", &self.secrets)
            .field("volume_context", &Shown(&self.volume_context))
            .finish()
    }
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
    /// Condition, from drivers with `VOLUME_CONDITION` (of a CSI before 1.13).
    pub condition: Option<ConditionSeen>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_secret() {
        let one = |key: &str| StringMap::from([(key.to_owned(), "hunter2".to_owned())]);
        let access = Access::Mount {
            fs_type: "ext4".into(),
            mount_flags: vec!["password=hunter2".into()],
            volume_mount_group: String::new(),
        };
        let capability = VolumeCapability { access, mode: AccessMode::SingleNodeWriter };
        let stage = StageVolume {
            volume_id: "v1".into(),
            publish_context: StringMap::new(),
            staging_target_path: "/s".into(),
            capability: capability.clone(),
            secrets: Secrets::new(one("password")),
            volume_context: one(TOKENS),
        };
        let publish = PublishVolume {
            volume_id: "v1".into(),
            publish_context: StringMap::new(),
            staging_target_path: "/s".into(),
            target_path: "/t".into(),
            capability: capability.clone(),
            readonly: true,
            secrets: Secrets::new(one("password")),
            volume_context: one(TOKENS),
        };
        let expand = ExpandVolume {
            volume_id: "v1".into(),
            volume_path: "/t".into(),
            staging_target_path: "/s".into(),
            required_bytes: 1,
            capability,
            secrets: Secrets::new(one("password")),
        };
        for text in [format!("{stage:?}"), format!("{publish:#?}"), format!("{expand:?}")] {
            assert!(!text.contains("hunter2"), "{text}");
            assert!(text.contains("v1") && text.contains("***"), "{text}");
        }
    }
}
