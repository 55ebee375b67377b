//! The actual state of the world: what [`crate::reconstruct()`] concluded from the evidence.

use std::borrow::Cow;
use std::path::PathBuf;

use refloat_mount::UniqueMountId;
use refloat_record::{
    DeviceMount, OuterSpecName, PluginName, PodCheckpoint, PodUid, PodVolume, SpecName, UniqueVolumeName, Unreadable,
    Verbatim, VolumeMode,
};
use refloat_volume::Problem;

/// What identifies one pod's use of one volume on this node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeKey {
    /// The pod.
    pub pod: PodUid,
    /// The inner spec name.
    pub spec_name: SpecName,
    /// The plugin.
    pub plugin: PluginName,
    /// File system or block.
    pub mode: VolumeMode,
}

/// Whether a volume is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeState {
    /// Set up: what the record announces is there (for volumes that are mounts, in the mount table).
    Mounted,
    /// Begun or half undone: it will be finished or undone.
    Uncertain,
    /// Nothing of it is there but the record or an empty folder.
    NotMounted,
    /// It cannot be told.
    Unknown,
}

/// What the record store had for a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordState {
    /// A good record.
    Ok,
    /// None.
    Missing,
    /// One that cannot be read; it was left or set aside intact.
    Damaged,
    /// One of a newer version.
    Newer,
    /// None of ours, but another program's file.
    Foreign,
}

/// How much of the volume's spec is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReconstructionResult {
    /// All.
    Full,
    /// Some; these fields nobody could tell.
    Partial {
        /// Field paths.
        lost: Vec<Cow<'static, str>>,
    },
    /// Not its spec, but how to unmount it.
    UnmountOnly,
    /// It cannot be understood. It is kept, shown and never acted on.
    Failed,
}

/// A mount as it was seen in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSeen {
    /// The unique id, where the kernel tells it.
    pub id: Option<UniqueMountId>,
    /// File system type.
    pub fs_type: String,
    /// Source.
    pub source: String,
    /// Root inside the file system.
    pub root: PathBuf,
    /// Mount options, then the file system's.
    pub options: String,
    /// How many mounts lie over one another there.
    pub stack: usize,
    /// Whether the topmost is the one that the record announces.
    pub ours: bool,
}

/// A subPath mount of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPathSeen {
    /// Absolute path.
    pub path: PathBuf,
    /// The container.
    pub container: String,
    /// The index in its `volumeMounts`.
    pub index: Option<u32>,
    /// The path in the volume, where a record tells it.
    pub sub_path: Option<String>,
    /// Whether something is mounted there.
    pub mounted: bool,
    /// Whether that is what the record announces.
    pub ours: bool,
}

/// One pod's use of one volume, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActualVolume {
    /// What identifies it.
    pub key: VolumeKey,
    /// The pod's namespace and name, where known.
    pub pod_name: Option<(String, String)>,
    /// The pod's own names for it, where known.
    pub outer_names: Vec<OuterSpecName>,
    /// The unique volume name, where it can be known.
    pub unique_name: Option<UniqueVolumeName>,
    /// Where the pod sees it (absolute).
    pub path: Option<PathBuf>,
    /// The global mount or device that it comes from (absolute).
    pub device_path: Option<PathBuf>,
    /// Its subPath mounts.
    pub sub_paths: Vec<SubPathSeen>,
    /// What is mounted at `path`.
    pub mount: Option<MountSeen>,
    /// Whether it is set up.
    pub state: VolumeState,
    /// Why it is thought so, one short sentence.
    pub state_reason: Cow<'static, str>,
    /// What the store had.
    pub record_state: RecordState,
    /// The record. For a volume found without one: what could be told of it, good enough to undo it; none if
    /// not even that.
    pub record: Option<PodVolume>,
    /// How much of the spec is known.
    pub reconstruction: ReconstructionResult,
    /// The pod's `volumes[x]` entry, as far as known.
    pub spec_volume: Option<Verbatim>,
    /// The `PersistentVolume`, as far as known.
    pub spec_persistent_volume: Option<Verbatim>,
    /// Files lie in the volume's folder that no record knows and no mount holds. They are kept.
    pub stray_files: bool,
    /// Everything that the conclusion stands on, one sentence each; empty unless it was asked for
    /// ([`crate::reconstruct_explained`]).
    pub evidence: Vec<String>,
    /// Hands off: evidence contradicts itself and nothing may be done to it until that changes (the text says
    /// what contradicts what).
    pub conflict: Option<String>,
    /// What needs attention.
    pub problems: Vec<Problem>,
}

/// One device mounted for pods, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActualDevice {
    /// The unique volume name, where it can be known.
    pub unique_name: Option<UniqueVolumeName>,
    /// The plugin.
    pub plugin: PluginName,
    /// The global mount path (absolute).
    pub path: PathBuf,
    /// The device node, where known.
    pub device: Option<String>,
    /// What is mounted at `path`.
    pub mount: Option<MountSeen>,
    /// Whether it is set up.
    pub state: VolumeState,
    /// What the store had.
    pub record_state: RecordState,
    /// The record, or what could be told without one.
    pub record: Option<DeviceMount>,
    /// The pods that use it: by records, and by the mount table (same device and root). Sorted.
    pub users: Vec<PodUid>,
    /// Every other mount point that shows the same file system and root, or a part of it, and is no known pod's.
    pub other_references: Vec<PathBuf>,
    /// What was concluded from, a sentence each; empty unless it was asked for ([`crate::reconstruct_explained`]).
    pub evidence: Vec<String>,
    /// Hands off, as for volumes.
    pub conflict: Option<String>,
    /// What needs attention.
    pub problems: Vec<Problem>,
}

/// What a leftover is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeftoverKind {
    /// A pod's folder with nothing but empty folders and the manager's own markers.
    EmptyPodDir,
    /// A pod's folder with files that are nobody's known volume.
    PodDirWithData,
    /// A subPath mount or folder without a volume.
    SubPath,
    /// A mount below the root that belongs to no volume.
    StaleMount,
    /// A loop device of ours without a record.
    LoopDevice,
    /// A socket that nobody listens on.
    Socket,
    /// Something else.
    Unknown,
}

/// What belongs to no volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Absolute path.
    pub path: PathBuf,
    /// What it is.
    pub kind: LeftoverKind,
    /// The pod whose folder it is in.
    pub pod: Option<PodUid>,
    /// Whether something is mounted at `path`.
    pub mounted: bool,
    /// What needs attention.
    pub problems: Vec<Problem>,
}

/// All that is on the node. Lists are sorted by pod uid, volume name, path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Actual {
    /// Volumes.
    pub volumes: Vec<ActualVolume>,
    /// Devices.
    pub devices: Vec<ActualDevice>,
    /// What belongs to no volume.
    pub leftovers: Vec<Leftover>,
    /// Checkpoints of pods.
    pub checkpoints: Vec<PodCheckpoint>,
    /// Record files that could not be read.
    pub unreadable: Vec<Unreadable>,
    /// What needs attention on the node as a whole.
    pub problems: Vec<Problem>,
}
