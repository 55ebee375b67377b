//! Who may say that a pod is gone.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use refloat_record::{PodUid, Store, UniqueVolumeName};
use refloat_volume::Plugins;

use crate::{Answers, Desired, Wanted};

/// What is said of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Somebody has it.
    Wanted {
        /// Who.
        by: String,
    },
    /// Everybody who could be asked says that it is gone.
    Gone {
        /// Who said so.
        by: String,
        /// Since when, where somebody knows.
        since: Option<Timestamp>,
    },
    /// It cannot be told. Nothing is done to it.
    Unknown {
        /// Why.
        why: String,
    },
}

/// The sources of pods, as one.
pub trait Authority: Send {
    /// Asks the sources anew. What it cannot learn makes pods [`Verdict::Unknown`].
    fn refresh(&mut self);

    /// What they say of this pod.
    fn verdict(&self, pod: &PodUid) -> Verdict;

    /// What they say of a device that no pod uses: gone if no pod that they know might be about to use it. `path` is its
    /// global mount path relative to the node root.
    fn verdict_of_unused(&self, name: Option<&UniqueVolumeName>, path: &Path) -> Verdict;

    /// What each source answered last, where they are more than a folder of manifests.
    fn asked(&self) -> Option<&Answers> {
        None
    }
}

/// Nobody to ask.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoAuthority;

impl NoAuthority {
    fn unknown() -> Verdict {
        Verdict::Unknown { why: "no source of pods could be asked".into() }
    }
}

impl Authority for NoAuthority {
    fn refresh(&mut self) {}

    fn verdict(&self, _: &PodUid) -> Verdict {
        Self::unknown()
    }

    fn verdict_of_unused(&self, _: Option<&UniqueVolumeName>, _: &Path) -> Verdict {
        Self::unknown()
    }
}

/// A folder of manifests, which the operator says is where this node's pods come from.
#[derive(Debug)]
pub struct Manifests {
    folder: PathBuf,
    state_dir: PathBuf,
    plugins: Plugins,
    desired: Desired,
    /// When a manifest was added or removed last.
    changed: Option<Timestamp>,
}

impl Manifests {
    /// Reads the folder. The records tell which pods were admitted from it.
    pub fn new(folder: PathBuf, state_dir: PathBuf) -> Self {
        let desired = Desired { incomplete: Some("not read yet".into()), ..Desired::default() };
        let mut new = Self { folder, state_dir, plugins: Plugins::builtin(), desired, changed: None };
        new.refresh();
        new
    }

    /// What the pods in it want.
    pub(super) fn desired(&self) -> &Desired {
        &self.desired
    }

    /// When a manifest was added or removed last.
    pub(super) fn changed(&self) -> Option<Timestamp> {
        self.changed
    }
}

impl Authority for Manifests {
    fn refresh(&mut self) {
        let modified = std::fs::metadata(&self.folder).and_then(|meta| meta.modified());
        self.changed = modified.ok().and_then(|time| Timestamp::try_from(time).ok());
        let records = match Store::read(&self.state_dir) {
            Ok(loaded) => loaded.records,
            Err(error) => {
                let why = format!("the records cannot be read: {}", refloat_volume::error_chain(&error));
                self.desired = Desired { incomplete: Some(why), ..Desired::default() };
                return;
            }
        };
        let checkpoints: Vec<_> = records
            .iter()
            .filter_map(|record| match record {
                refloat_record::Record::PodCheckpoint(checkpoint) => Some(checkpoint.clone()),
                _ => None,
            })
            .collect();
        self.desired = crate::sources::desired(&self.folder, &checkpoints, &records, &self.plugins);
    }

    fn verdict(&self, pod: &PodUid) -> Verdict {
        match self.desired.wanted(pod) {
            Wanted::Yes { by } => Verdict::Wanted { by },
            Wanted::No { by } => Verdict::Gone { by, since: self.changed },
            Wanted::Unknown { why } => Verdict::Unknown { why },
        }
    }

    fn verdict_of_unused(&self, name: Option<&UniqueVolumeName>, path: &Path) -> Verdict {
        let desired = &self.desired;
        if let Some(why) = desired.incomplete.as_ref().or(desired.doubt.as_ref().map(|doubt| &doubt.why)) {
            return Verdict::Unknown { why: why.clone() };
        }
        let mut volumes = desired.pods.values().flat_map(|pod| &pod.volumes);
        let wants = volumes.any(|v| {
            Some(&v.unique_name) == name || v.device_mount_path.as_ref().is_some_and(|own| own.as_path() == path)
        });
        if wants {
            return Verdict::Wanted { by: desired.source.clone() };
        }
        if let Some(waiting) = desired.pods.values().flat_map(|pod| &pod.waiting).next() {
            let why = format!("volume {:?} of a pod waits and might be on it", waiting.outer_name);
            return Verdict::Unknown { why };
        }
        Verdict::Gone { by: desired.source.clone(), since: self.changed }
    }
}
