//! The kind `DeviceMount`: one device mounted on this node for all pods that use it.

use serde::{Deserialize, Serialize};

use crate::{BootId, PluginName, ProviderAnswers, RecordedMount, RelPath, UniqueVolumeName, Verbatim, VolumeMode};

/// One device mounted on this node. Written before `MountDevice`, removed after `UnmountDevice` succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceMount {
    /// The unique volume name.
    pub unique_name: UniqueVolumeName,
    /// The plugin.
    pub plugin: PluginName,
    /// File system or block.
    #[serde(default)]
    pub mode: VolumeMode,
    /// The `PersistentVolume`, verbatim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume: Option<Verbatim>,
    /// The pod's `volumes[x]` entry, verbatim, for a device used inline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Verbatim>,
    /// The device as it was found when it was mounted (`/dev/loop0`). A hint: device names change between boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The global mount path, relative to the node root.
    pub device_mount_path: RelPath,
    /// The mount that is or will be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<RecordedMount>,
    /// What attaching gave (CSI's publish context), verbatim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_context: Option<Verbatim>,
    /// Whether a driver said that it is staged, in the boot of `bootID`. What it made then may be no mount at all, so the
    /// mount table alone cannot tell; what was begun and is not confirmed is begun again, or undone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// The boot in which this was last mounted.
    #[serde(rename = "bootID")]
    pub boot_id: BootId,
    /// What the plugin wrote to find its way back (for a device: what identifies it across boots).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_info: Option<Verbatim>,
    /// What providers outside this program said of it. Each gets its own `providerInfo` back, and no other's.
    #[serde(default, skip_serializing_if = "ProviderAnswers::is_empty")]
    pub providers: ProviderAnswers,
}
