//! The kind `PodVolume`: one pod's use of one volume.

use serde::{Deserialize, Serialize};

use crate::{
    BootId, OuterSpecName, PluginName, PodUid, ProviderAnswers, RecordedBlock, RecordedMount, RelPath, SpecName,
    UniqueVolumeName, Verbatim,
};

/// The pod that a record belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// The pod's UID.
    pub uid: PodUid,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
}

/// How a volume is presented to the pod.
///
/// # Source
/// `PersistentVolumeMode` of the Kubernetes core API; absent means `Filesystem`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum VolumeMode {
    /// A mounted file system or a folder.
    #[default]
    Filesystem,
    /// A raw block device.
    Block,
}

/// When files of a volume are given to the pod's fsGroup.
///
/// # Source
/// `PodFSGroupChangePolicy` of the Kubernetes core API; absent means `Always`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FsGroupChangePolicy {
    /// At every `SetUp`.
    #[default]
    Always,
    /// Only if the volume's root does not have the group, its bits and setgid already.
    OnRootMismatch,
}

/// The group that a volume's files are given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsGroup {
    /// The group id, `pod.spec.securityContext.fsGroup`.
    pub gid: u32,
    /// When the files are changed.
    #[serde(default)]
    pub policy: FsGroupChangePolicy,
}

/// The claim that a pod's volume was bound through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRef {
    /// The claim's namespace, which is the pod's.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// The claim's UID where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// One subPath mount of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedSubPath {
    /// The container's name.
    pub container: String,
    /// The index of the entry in that container's `volumeMounts`.
    pub index: u32,
    /// The path inside the volume, `subPathExpr` expanded.
    pub sub_path: String,
    /// Where it is mounted, relative to the node root: `pods/<uid>/volume-subpaths/<spec>/<container>/<index>`.
    pub path: RelPath,
    /// The mount that is or will be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<RecordedMount>,
}

/// One pod's use of one volume. Written before `SetUp`, removed after `TearDown` when its folder is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodVolume {
    /// The pod.
    pub pod: PodRef,
    /// Every name that the pod's `volumes` has for it (two entries may name one claim). At least one.
    pub volume_names: Vec<OuterSpecName>,
    /// The inner spec name, which names the folder.
    pub spec_name: SpecName,
    /// The plugin.
    pub plugin: PluginName,
    /// The unique volume name.
    pub unique_name: UniqueVolumeName,
    /// File system or block.
    #[serde(default)]
    pub mode: VolumeMode,
    /// Whether the pod gets it read-only.
    #[serde(default)]
    pub read_only: bool,
    /// Mount options, as the `PersistentVolume` gives them.
    #[serde(default)]
    pub mount_options: Vec<String>,
    /// The pod's fsGroup, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_group: Option<FsGroup>,
    /// The `SELinux` label that it is mounted with.
    #[serde(default, rename = "seLinuxLabel", skip_serializing_if = "Option::is_none")]
    pub selinux_label: Option<String>,
    /// The pod's `volumes[x]` entry, verbatim (the first of `volume_names`).
    pub volume: Verbatim,
    /// The `PersistentVolume`, verbatim, for a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume: Option<Verbatim>,
    /// The claim, for a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimRef>,
    /// The volume's folder (of a block volume: its symlink) relative to the node root. Absent for volumes without one
    /// (hostPath).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<RelPath>,
    /// The host's own path, for volumes that are one (hostPath). Absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// The global mount that it comes from, relative to the node root, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_mount_path: Option<RelPath>,
    /// The mount that is or will be at `path`. Absent if nothing is mounted there (a plain folder).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<RecordedMount>,
    /// How the device is presented, for block volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<RecordedBlock>,
    /// Its subPath mounts.
    #[serde(default)]
    pub sub_paths: Vec<RecordedSubPath>,
    /// Whether a driver said that it is published, in the boot of `bootID`. What it made then may be no mount at all, so the
    /// mount table alone cannot tell; what was begun and is not confirmed is begun again, or undone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// The boot in which this was last set up.
    #[serde(rename = "bootID")]
    pub boot_id: BootId,
    /// What the plugin wrote to find its way back. The core never reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_info: Option<Verbatim>,
    /// What providers outside this program said of it. Each gets its own `providerInfo` back, and no other's.
    #[serde(default, skip_serializing_if = "ProviderAnswers::is_empty")]
    pub providers: ProviderAnswers,
    /// What nobody could tell when the record was written of a volume that somebody else set up: field paths of its spec
    /// (`emptyDir.sizeLimit`), or `volume` if nothing of the spec is known. Empty where the record has all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}
