//! Evidence: what records, mount table and folders say, read in one pass each, with no conclusion drawn.
//!
//! Reading never touches a mounted file system: folders are listed, mount points are known from the mount table,
//! and nothing at or below a mount point is opened or stat'ed.

use std::path::PathBuf;
use std::sync::Arc;

use refloat_mount::MountTable;
use refloat_record::{BootId, Loaded, PodUid};
use refloat_volume::Problem;

/// What the folders below the node root say: names only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// The folders in `pods/`, sorted by name.
    pub pods: Vec<PodTree>,
    /// Global mount folders found below `plugins/`, relative to the root.
    pub global_folders: Vec<PathBuf>,
    /// What could not be listed (a file where a folder should be, no permission).
    pub problems: Vec<Problem>,
}

/// One folder in `pods/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodTree {
    /// Its name, if it can be a UID.
    pub uid: Option<PodUid>,
    /// Its path relative to the root.
    pub path: PathBuf,
    /// `volumes/<plugin>/<name>`.
    pub volumes: Vec<VolumeFolder>,
    /// `volumeDevices/<plugin>/<name>`.
    pub volume_devices: Vec<VolumeFolder>,
    /// `volume-subpaths/<spec>/<container>/<index>`, as far as each goes, relative to the pod's folder.
    pub sub_paths: Vec<PathBuf>,
    /// Names below `plugins/kubernetes.io~empty-dir/` that have a `ready` marker.
    pub ready: Vec<String>,
    /// Anything else in the pod's folder, relative to it.
    pub other: Vec<PathBuf>,
}

/// One folder of a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeFolder {
    /// The plugin's folder name (escaped).
    pub plugin: String,
    /// The volume's folder name.
    pub name: String,
    /// Whether it is a folder (else a file, symlink or the like).
    pub is_dir: bool,
    /// Whether it has anything in it; none if that was not looked at (a mount point).
    pub empty: Option<bool>,
}

/// Everything that [`crate::reconstruct()`] concludes from.
#[derive(Debug)]
pub struct Evidence {
    /// The node root as the mount table spells it.
    pub root: PathBuf,
    /// This boot.
    pub boot_id: BootId,
    /// What the store has.
    pub records: Loaded,
    /// What is mounted.
    pub table: Arc<MountTable>,
    /// What the folders are called. None if they were not listed.
    pub tree: Option<Tree>,
}

/// Reads evidence.
#[derive(Debug)]
pub struct Gather {}
