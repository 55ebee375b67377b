//! Who may say that a pod is gone.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use refloat_record::{PodUid, Store, UniqueVolumeName};
use refloat_volume::Plugins;

use crate::{Answers, Desired, Waiting, Wanted};

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

/// What is said of a device that no pod on the node uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// Whether it is wanted: gone if nobody is about to use it.
    pub verdict: Verdict,
    /// Why an operator's word does not make an unknown one gone, if it does not.
    pub objection: Option<String>,
}

impl Unused {
    /// Asks for it. `path` is its global mount path relative to the node root.
    pub(super) fn ask(authority: &dyn Authority, name: Option<&UniqueVolumeName>, path: &Path) -> Self {
        let verdict = authority.verdict_of_unused(name, path);
        Self { verdict, objection: authority.objection_to_unused(name, path) }
    }

    /// The verdict, where an operator's word stands that no pod is about to use it (`said`) or not. The word counts where
    /// nobody can tell; whoever answered and has a pod that wants the device, or may, is believed more.
    pub(super) fn by_word(self, said: bool) -> Verdict {
        match (self.verdict, self.objection) {
            (Verdict::Unknown { .. }, None) if said => Verdict::Gone { by: "the operator".into(), since: None },
            (Verdict::Unknown { .. }, Some(why)) if said => Verdict::Unknown { why },
            (verdict, _) => verdict,
        }
    }
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

    /// Why such a device is in use or may be, by one who *did* answer; an operator's word that it is not does not count
    /// against that. `None` if nobody who answered knows a pod that may be about to use it, whoever gave no answer.
    fn objection_to_unused(&self, name: Option<&UniqueVolumeName>, path: &Path) -> Option<String>;

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

    fn objection_to_unused(&self, _: Option<&UniqueVolumeName>, _: &Path) -> Option<String> {
        None
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
        // The manager's own rule: one that has no unique name yet may be on any device of its plugin, and one whose claim is not
        // there on any.
        let might_be = |waiting: &&Waiting| match (name, &waiting.unique_name, &waiting.key) {
            (Some(name), Some(of_it), _) => name == of_it,
            (Some(name), None, Some(key)) => {
                name.as_str().strip_prefix(key.plugin.as_str()).is_some_and(|rest| rest.starts_with('/'))
            }
            _ => true,
        };
        if let Some(waiting) = desired.pods.values().flat_map(|pod| &pod.waiting).find(might_be) {
            let why = format!("volume {:?} of a pod waits and might be on it", waiting.outer_name);
            return Verdict::Unknown { why };
        }
        Verdict::Gone { by: desired.source.clone(), since: self.changed }
    }

    fn objection_to_unused(&self, name: Option<&UniqueVolumeName>, path: &Path) -> Option<String> {
        // Also where the folder cannot be read whole: any pod may be in what was not read, and whoever knows better need
        // not name the folder.
        match self.verdict_of_unused(name, path) {
            Verdict::Wanted { by } => Some(format!("{by} has a pod that wants it")),
            Verdict::Unknown { why } => Some(why),
            Verdict::Gone { .. } => None,
        }
    }
}
