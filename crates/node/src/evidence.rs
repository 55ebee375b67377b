//! Evidence: what records, mount table and folders say, read in one pass each, with no conclusion drawn.
//!
//! Reading never touches a mounted file system: folders are listed, mount points are known from the mount table,
//! and nothing at or below a mount point is opened or stat'ed.

mod block;
pub(crate) mod drivers;
mod global;
mod hanging;
mod inside;
mod sockets;
mod walk;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use refloat_mount::{MountTable, TableError};
use refloat_record::{BootId, Loaded, OpenError, PodUid};
use refloat_volume::{ForeignFile, ForeignRecord, Host, Problem, layout};

pub use block::{Blocks, Loops, MapPlace};
pub(crate) use walk::{is_volume, open as open_beneath};

/// What the folders below the node root say: names only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// The folders in `pods/`, sorted by name.
    pub pods: Vec<PodTree>,
    /// Global mount folders found below `plugins/`, relative to the root.
    pub global_folders: Vec<PathBuf>,
    /// Other programs' files beside global mounts that no record is of, by the folder that they are in.
    pub foreign: HashMap<PathBuf, ForeignFile>,
    /// Other programs' files about volumes outside the pods' folders, sorted by path.
    pub records: Vec<ForeignRecord>,
    /// Sockets of drivers that nobody listens on, relative to the root.
    pub sockets: Vec<PathBuf>,
    /// What block volumes leave outside the pods' folders.
    pub blocks: Blocks,
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
    /// Other programs' files beside its volumes' folders.
    pub records: Vec<ForeignRecord>,
    /// Anything else in the pod's folder, relative to it.
    pub other: Vec<PathBuf>,
    /// Whether a file that is no marker lies anywhere in it outside the volumes' own folders; none if that was not
    /// looked at (a pod with volumes). Nothing below a mount point was looked at.
    pub files: Option<bool>,
}

impl PodTree {
    /// The folder of this name in `pods/`, with nothing seen in it.
    pub(crate) fn new(name: &Path) -> Self {
        Self {
            uid: name.to_str().and_then(|name| PodUid::new(name).ok()),
            path: Path::new(layout::PODS).join(name),
            volumes: vec![],
            volume_devices: vec![],
            sub_paths: vec![],
            ready: vec![],
            records: vec![],
            other: vec![],
            files: None,
        }
    }
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
    /// What it says, if it is a symlink in `volumeDevices`.
    pub link: Option<PathBuf>,
    /// The path in `/dev` that this leads to, if it leads there and this is the machine that it is about.
    pub link_device: Option<PathBuf>,
    /// Whether it has anything in it; none if that was not looked at (a mount point). In a CSI volume's folder count the
    /// files in `mount` and those that are nobody's.
    pub empty: Option<bool>,
    /// Another program's file about the volume, where there is one and no record.
    pub foreign: Option<ForeignFile>,
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
    /// The CSI drivers that records know and that cannot be reached, by name, with since when (where that is known).
    pub missing_drivers: BTreeMap<String, Option<String>>,
    /// Why file systems below the root do not answer, by device, as far as that can be told without asking them.
    pub hanging: BTreeMap<refloat_mount::Device, String>,
}

/// Why evidence could not be gathered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatherError {
    /// The record store could not be read.
    #[error("cannot read the records")]
    Records(#[source] OpenError),
    /// The mount table could not be read.
    #[error("cannot read the mount table")]
    Table(#[source] TableError),
}

/// Reads evidence: the records on one thread, the table and the folders on others, at the same time.
#[derive(Debug, Clone, Copy)]
pub struct Gather<'a> {
    host: &'a Host,
    saved: Option<&'a Arc<MountTable>>,
}

impl<'a> Gather<'a> {
    /// Reads the evidence of this node.
    pub fn new(host: &'a Host) -> Self {
        Self { host, saved: None }
    }

    /// Takes this mount table instead of the kernel's: for a root that was brought here from another node. The host's
    /// root is to be at the path that it has in the table ([`refloat_mount::NodeRoot::said_to_be_at`]).
    #[must_use]
    pub fn with_table(self, table: &'a Arc<MountTable>) -> Self {
        Self { saved: Some(table), ..self }
    }

    /// Reads everything once. `records` is how the store is read: [`refloat_record::Store::load`] for the manager,
    /// [`refloat_record::Store::read`] for those who may not write.
    pub fn read(self, records: impl FnOnce() -> Result<Loaded, OpenError> + Send) -> Result<Evidence, GatherError> {
        let (records, table, mut tree) = std::thread::scope(|scope| {
            let records = scope.spawn(records);
            let table =
                scope.spawn(|| self.saved.map_or_else(|| self.host.mount_table(), |table| Ok(Arc::clone(table))));
            let tree = walk::tree(&self.host.root, self.saved.is_some());
            (joined(records), joined(table), tree)
        });
        let records = records.map_err(GatherError::Records)?;
        let table = table.map_err(GatherError::Table)?;
        let hanging;
        (tree.foreign, hanging) = std::thread::scope(|scope| {
            let folders = &tree.global_folders;
            let fuse = self.saved.is_none().then(|| scope.spawn(|| hanging::look(&table, self.host.root.path())));
            let beside = scope.spawn(|| inside::beside_stages(&self.host.root, folders, &records.records));
            inside::look(&self.host.root, &mut tree.pods, &records.records, &table);
            if self.saved.is_none() {
                tree.pods.iter_mut().for_each(block::resolve_links);
            }
            if self.saved.is_none() {
                tree.sockets = sockets::look(&self.host.root);
            }
            (joined(beside), fuse.map(joined).unwrap_or_default())
        });
        let missing_drivers = match self.saved {
            None => drivers::missing(&records.records, &self.host.drivers),
            // Sockets of this machine say nothing about another.
            Some(_) => drivers::recorded_missing(&records.records),
        };
        Ok(Evidence {
            root: self.host.root.path().to_path_buf(),
            boot_id: self.host.boot_id.clone(),
            records,
            table,
            tree: Some(tree),
            missing_drivers,
            hanging,
        })
    }

    /// Lists one pod's folder anew and puts it into the evidence, after something was done to the pod.
    pub fn pod_again(self, evidence: &mut Evidence, pod: &PodUid) {
        let Some(tree) = &mut evidence.tree else { return };
        let mut fresh = walk::pod(&self.host.root, pod, &mut tree.problems);
        if let Some(fresh) = &mut fresh {
            let of_pod = inside::volumes_of(&evidence.records.records, pod);
            inside::look(&self.host.root, std::slice::from_mut(fresh), of_pod, &evidence.table);
            if self.saved.is_none() {
                block::resolve_links(fresh);
            }
        }
        let place = tree.pods.binary_search_by(|p| p.path.cmp(&PathBuf::from(format!("pods/{pod}"))));
        match (place, fresh) {
            (Ok(index), Some(fresh)) => tree.pods[index] = fresh,
            (Ok(index), None) => {
                tree.pods.remove(index);
            }
            (Err(index), Some(fresh)) => tree.pods.insert(index, fresh),
            (Err(_), None) => {}
        }
    }

    /// Lists the global folders and the loop devices anew, after something was done to a device or block volume.
    pub fn devices_again(self, evidence: &mut Evidence) {
        if let Some(tree) = &mut evidence.tree {
            let global = walk::global_folders(&self.host.root, &mut tree.problems);
            (tree.global_folders, tree.records) = (global.folders, global.records);
            tree.foreign = inside::beside_stages(&self.host.root, &tree.global_folders, &evidence.records.records);
            tree.problems.retain(|p| p.code != "LoopDevicesUnknown");
            tree.blocks = block::look(&self.host.root, global.maps, self.saved.is_some(), &mut tree.problems);
        }
    }

    /// Looks again which drivers can be reached, after one came or went.
    pub fn drivers_again(self, evidence: &mut Evidence) {
        evidence.missing_drivers = drivers::missing(&evidence.records.records, &self.host.drivers);
    }
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// This boot's id.
///
/// # Source
/// `random(4)`: `/proc/sys/kernel/random/boot_id`.
pub fn boot_id() -> std::io::Result<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    BootId::new(text.trim()).map_err(std::io::Error::other)
}
