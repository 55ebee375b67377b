//! Cleaning a node beside its kubelet: what no pod wants is unmounted and removed, and nothing else.
//!
//! [`plan`] is pure: from what was concluded of the node, from what the sources of pods say, and from what lies in the
//! folders it makes a [`CleanPlan`]: units of work with their steps, and what is kept and why. [`Cleaner`] looks, has
//! that planned, and carries it out with the manager's own executor and lanes; right before each unit it asks the sources
//! of pods and the mount table once more, and stops at the first thing that is not as it was planned.
//!
//! Only mounts, *empty* folders and files that a volume manager is known to write are ever removed. Any other file is data:
//! it stays, and is named with its size. The content of a gone pod's emptyDir goes only when that is asked for.

mod asking;
mod cleaner;
pub(crate) mod contents;
pub(crate) mod known_files;
mod planner;
mod proof;
mod signs;
mod target;
mod verdict;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use refloat_mount::{Mount, UniqueMountId};
use refloat_record::{PodUid, UniqueVolumeName};

pub use asking::Sources;
pub use cleaner::{CleanError, CleanReport, Cleaner, CleanerOptions, Seen};
pub use contents::{Contents, What};
pub use planner::{CleanInput, PodFolder, plan};
pub use proof::{Left, what_is_left};
pub use target::Target;
pub use verdict::{Authority, Manifests, NoAuthority, Unused, Verdict};

use crate::Operation;

/// What may be cleaned, and how.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // each is one independent permission
pub struct CleanOptions {
    /// What to clean; all of the node if empty.
    pub targets: Vec<Target>,
    /// How long a pod must have been gone.
    pub grace: Duration,
    /// Pods that the operator says are gone. A source that has such a pod is believed more.
    pub assume_gone: BTreeSet<PodUid>,
    /// Devices that the operator says no pod is about to use, by path or unique name. A source that answers and has a pod
    /// that may be is believed more.
    pub assume_unused: Vec<Target>,
    /// Whether the content of gone pods' emptyDirs is deleted.
    pub delete_ephemeral: bool,
    /// Whether what a driver that cannot be reached mounted is unmounted without it.
    pub without_driver: bool,
    /// Whether dead file systems are unmounted by force, then lazily.
    pub force: bool,
    /// Whether the node is emptied: pods that were not gone for long count too, and what is in memory goes with its mount.
    pub release: bool,
    /// With `release`: whether pods that are wanted lose their volumes too.
    pub including_running: bool,
}

impl Default for CleanOptions {
    fn default() -> Self {
        Self {
            targets: vec![],
            grace: Duration::from_secs(600),
            assume_gone: BTreeSet::new(),
            assume_unused: vec![],
            delete_ephemeral: false,
            without_driver: false,
            force: false,
            release: false,
            including_running: false,
        }
    }
}

/// A mount's identity: its unique id where the kernel tells it, and its short one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MountKey {
    /// Never used twice in one boot.
    pub id: Option<UniqueMountId>,
    /// Used again when the mount is gone.
    pub short: u32,
}

impl MountKey {
    /// Of a mount in the table.
    pub fn of(mount: Mount<'_>) -> Self {
        Self { id: mount.id(), short: mount.short_id() }
    }
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Takes a subPath mount off.
    UnmountSubPath,
    /// Takes a mount off.
    Unmount,
    /// Undoes a block volume: loop device, bind mount, symlink.
    UnmapBlock,
    /// Asks the volume's driver to undo it.
    TearDown,
    /// Unmounts a device that no pod uses any more, through its plugin.
    UnmountDevice,
    /// Detaches a loop device.
    DetachLoop,
    /// Removes files that a volume manager wrote.
    RemoveFiles,
    /// Deletes the content of an emptyDir.
    DeleteContent,
    /// Removes a folder that is empty then.
    RemoveFolder,
    /// Removes Refloat's record.
    ForgetRecord,
}

impl Action {
    /// Its name, as scripts see it.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnmountSubPath => "UnmountSubPath",
            Self::Unmount => "Unmount",
            Self::UnmapBlock => "UnmapBlock",
            Self::TearDown => "TearDown",
            Self::UnmountDevice => "UnmountDevice",
            Self::DetachLoop => "DetachLoop",
            Self::RemoveFiles => "RemoveFiles",
            Self::DeleteContent => "DeleteContent",
            Self::RemoveFolder => "RemoveFolder",
            Self::ForgetRecord => "ForgetRecord",
        }
    }
}

/// What became of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepResult {
    /// It was not tried.
    Planned,
    /// It is done, and that was looked at.
    Done,
    /// An ordinary unmount did not do; it was forced.
    Forced {
        /// Whether the mount is only out of sight.
        lazily: bool,
    },
    /// It failed; the text says why.
    Failed(String),
    /// It was not reached: something before it failed or was a surprise.
    NotDone,
}

/// One thing to do.
#[derive(Debug, Clone)]
pub struct Step {
    /// What.
    pub action: Action,
    /// To which path (absolute).
    pub path: PathBuf,
    /// The volume: its unique name, else its pod and name.
    pub volume: Option<String>,
    /// Why, with who said so.
    pub reason: String,
    /// What became of it.
    pub result: StepResult,
    /// The mount that it takes off, if it takes one off.
    pub(crate) mount: Option<MountKey>,
}

/// The order of units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    SubPaths,
    Volumes,
    Blocks,
    Devices,
    Folders,
}

/// Steps that one operation does together.
#[derive(Debug, Clone)]
pub struct Unit {
    /// What it is about.
    pub subject: String,
    /// The pod, for all but devices.
    pub pod: Option<PodUid>,
    /// In order.
    pub steps: Vec<Step>,
    pub(crate) stage: Stage,
    pub(crate) operation: Operation,
    pub(crate) clear_payload: bool,
    pub(crate) driver: Option<String>,
    /// Where no other mount may be than those of its steps.
    pub(crate) scope: Vec<PathBuf>,
    /// The device that it is about, if it undoes one.
    pub(crate) device: Option<AskedDevice>,
}

/// A device that no pod uses, as the sources of pods are asked about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AskedDevice {
    /// Its unique name, if it is known.
    pub(crate) name: Option<UniqueVolumeName>,
    /// Its global mount path relative to the node root.
    pub(crate) path: PathBuf,
    /// Whether it goes by the operator's word where nobody else can tell.
    pub(crate) by_word: bool,
}

/// What is left in place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept {
    /// Where it is (absolute).
    pub path: PathBuf,
    /// A stable word for the reason.
    pub code: &'static str,
    /// Why it stays.
    pub reason: String,
    /// The pod, where it is one's.
    pub pod: Option<PodUid>,
    /// The volume, where it is one's.
    pub volume: Option<String>,
    /// How large the files are, in bytes.
    pub bytes: Option<u64>,
    /// How many files and folders.
    pub entries: Option<u64>,
    /// What removes it, for a person who has looked at it.
    pub command: Option<String>,
}

/// What to do, and what stays.
#[derive(Debug, Default)]
pub struct CleanPlan {
    /// In order.
    pub units: Vec<Unit>,
    /// What stays on purpose. What wanted pods have is not among it.
    pub kept: Vec<Kept>,
    /// Pods that a source wants, which keep all they have.
    pub wanted: BTreeSet<PodUid>,
    /// What was to be assumed gone and is not on this node, as it was named.
    pub not_here: Vec<String>,
}

impl CleanPlan {
    /// All steps, in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.units.iter().flat_map(|unit| &unit.steps)
    }
}

#[cfg(test)]
mod tests;
