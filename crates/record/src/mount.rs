//! What a record says of a mount.

use std::num::NonZeroU64;

/// A mount as a record announces it: enough to know ours from one that somebody else made.
///
/// It is written before the mount can be seen at its path. With the new mount calls the id is known by then,
/// since the mount exists detached; without them the id is filled in afterwards, and until then a mount at the
/// path is adopted only if `fs_type`, `source` and `root` agree.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedMount {
    /// The kernel's unique id of the mount, never used again within one boot, where it is known.
    ///
    /// # Source
    /// `STATX_MNT_ID_UNIQUE` (Linux 6.8), `statmount(2)`.
    #[serde(default, rename = "mountID", skip_serializing_if = "Option::is_none")]
    pub id: Option<NonZeroU64>,
    /// The file system type as the mount table shows it (`tmpfs`, `ext4`). Empty if not known beforehand.
    #[serde(default)]
    pub fs_type: String,
    /// The source as the mount table shows it. Empty if not known beforehand.
    #[serde(default)]
    pub source: String,
    /// The root of the mount inside its file system, as the mount table shows it. Empty if not known beforehand.
    #[serde(default)]
    pub root: String,
}
