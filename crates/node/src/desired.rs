//! The desired state of the world: what the pods want.

pub(crate) mod claims;
mod expand;
mod resolve;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use refloat_record::{FsGroup, OuterSpecName, PodRef, PodSource, PodUid, RelPath, UniqueVolumeName, Verbatim};
use refloat_volume::{DriverInputs, Payload, PodResources, Problem, SubPathSpec, VolumeSpec, layout, migration};

use crate::VolumeKey;
use crate::sources::asked::{Answer, Answers, Asked, Covers, SourceError, SourceKind};
use crate::sources::verdict::Verdict;

pub use resolve::resolve;

/// Whether a pod, or a volume of it, is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// A source of pods has it.
    Yes {
        /// Which.
        by: String,
    },
    /// Every source was read whole and none has it.
    No {
        /// Which said so.
        by: String,
    },
    /// Not every source could be read. Unknown never unmounts, detaches or deletes.
    Unknown {
        /// Why.
        why: String,
    },
}

/// A volume that a pod wants, resolved and ready to be set up.
#[derive(Debug, Clone)]
pub struct DesiredVolume {
    /// What identifies it.
    pub key: VolumeKey,
    /// The pod.
    pub pod: PodRef,
    /// The pod's names for it.
    pub outer_names: Vec<OuterSpecName>,
    /// What it is.
    pub spec: VolumeSpec,
    /// Its unique name.
    pub unique_name: UniqueVolumeName,
    /// Where it is to be, relative to the node root.
    pub path: Option<RelPath>,
    /// The host's own path, for hostPath.
    pub host_path: Option<String>,
    /// Where its device would be mounted, for device-mountable plugins.
    pub device_mount_path: Option<RelPath>,
    /// The group for its files.
    pub fs_group: Option<FsGroup>,
    /// Its subPath mounts.
    pub sub_paths: Vec<SubPathSpec>,
    /// What the pod may use, for volumes that are a part of it. What is set up stays as it is when it changes.
    pub resources: Arc<PodResources>,
    /// Its content, for plugins with content.
    pub content: Option<Arc<Payload>>,
    /// What a driver is told besides the spec, for plugins whose volumes a driver makes. Never recorded.
    pub inputs: Option<Arc<DriverInputs>>,
    /// Its servers, for plugins that have to look them up.
    pub servers: Option<Arc<refloat_volume::Servers>>,
}

/// A volume that a pod wants and that cannot be set up now. What is mounted of it already stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The pod's name for it.
    pub outer_name: String,
    /// What identifies it, where that much is known.
    pub key: Option<VolumeKey>,
    /// Its unique name, where that much is known.
    pub unique_name: Option<UniqueVolumeName>,
    /// Why it has to wait.
    pub problem: Problem,
}

/// A pod and what it wants.
#[derive(Debug, Clone)]
pub struct DesiredPod {
    /// Its names.
    pub pod: PodRef,
    /// Where it came from.
    pub source: PodSource,
    /// The whole pod, verbatim, for the checkpoint.
    pub object: Verbatim,
    /// The volumes that can be set up.
    pub volumes: Vec<Arc<DesiredVolume>>,
    /// Those that cannot.
    pub waiting: Vec<Waiting>,
    /// Why it is not believed yet that it wants no more than it says, if so: its file was changed a moment ago. A volume
    /// that it does not list is *unknown* then.
    pub unsettled: Option<String>,
    /// Why it is only known from its checkpoint, if so: it is *unknown* then, and keeps what it has.
    pub only_checkpoint: Option<String>,
}

/// Part of the sources cannot be read, and some pod may be in that part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// What cannot be read.
    pub why: String,
    /// Pods that are surely not there: their checkpoint names a source that was read whole and has them no more.
    pub settled: BTreeSet<PodUid>,
}

/// What all pods want.
#[derive(Debug, Clone, Default)]
pub struct Desired {
    /// The pods.
    pub pods: BTreeMap<PodUid, DesiredPod>,
    /// Whether every source was read whole; if not, why: then no pod is surely gone.
    pub incomplete: Option<String>,
    /// Whether a part of the sources could not be read; if so, a pod without a checkpoint may be in it.
    pub doubt: Option<Doubt>,
    /// When the sources are to be read again, since a part of them was changed a moment ago and is not believed yet.
    pub settles_in: Option<Duration>,
    /// The name of the sources, for reasons ("manifests in /etc/pods").
    pub source: String,
    /// What is wrong with the sources (file, line, reason).
    pub problems: Vec<Problem>,
    /// What the sources of a node that something else runs answered, if any was asked: a pod is not wanted only if
    /// they agree.
    pub others: Option<Arc<Answers>>,
}

impl Desired {
    /// What only the sources of a node that something else runs tell: there are no manifests.
    pub fn by_others(answers: Arc<Answers>) -> Self {
        Self { others: Some(answers), ..Self::default() }
    }

    /// Has other sources say, too, which pods are wanted. What was read already is one more of them.
    #[must_use]
    pub fn with_others(mut self, mut answers: Answers, asked_at: jiff::Timestamp) -> Self {
        let outcome = match &self.incomplete {
            // Which pods these are is asked of `self`; here it matters that all others are not there.
            None => Ok(Answer::new(Covers::Every, asked_at)),
            Some(why) => Err(SourceError::incomplete(why.clone())),
        };
        answers.asked.push(Asked { name: self.source.clone(), kind: SourceKind::Manifests, outcome });
        self.others = Some(Arc::new(answers));
        self
    }

    /// Whether this pod is wanted.
    pub fn wanted(&self, pod: &PodUid) -> Wanted {
        let Some(others) = &self.others else { return self.wanted_by_these(pod) };
        match (self.wanted_by_these(pod), others.verdict(pod)) {
            (Wanted::Yes { by }, Verdict::Yes { by: too }) => Wanted::Yes { by: format!("{by}, {too}") },
            (own @ Wanted::Yes { .. }, _) => own,
            (Wanted::Unknown { why }, Verdict::No { .. } | Verdict::Unknown { .. }) => Wanted::Unknown { why },
            (_, verdict) => verdict.into(),
        }
    }

    /// What keeps the sources from telling of all pods, if anything does.
    pub fn unread(&self) -> Option<String> {
        let own = self.incomplete.as_ref().or(self.doubt.as_ref().map(|doubt| &doubt.why)).cloned();
        own.or_else(|| self.others.as_ref()?.unread())
    }

    /// Whether this pod is wanted, as far as these sources alone tell.
    fn wanted_by_these(&self, pod: &PodUid) -> Wanted {
        let doubt = self.doubt.as_ref().filter(|doubt| !doubt.settled.contains(pod)).map(|doubt| &doubt.why);
        match (self.pods.get(pod), self.incomplete.as_ref().or(doubt)) {
            (Some(DesiredPod { only_checkpoint: Some(why), .. }), _) | (None, Some(why)) => {
                Wanted::Unknown { why: why.clone() }
            }
            (Some(_), _) => Wanted::Yes { by: self.source.clone() },
            (None, None) => Wanted::No { by: self.source.clone() },
        }
    }

    /// Whether this volume is wanted. A volume that its pod no longer lists is not wanted, unless one of the pod's
    /// volumes could not be resolved: then it might be that one.
    pub fn wanted_volume(&self, key: &VolumeKey) -> Wanted {
        let wanted = self.wanted(&key.pod);
        let (Some(pod), Wanted::Yes { by }) = (self.pods.get(&key.pod), &wanted) else { return wanted };
        if self.others.as_ref().is_some_and(|others| matches!(others.verdict(&key.pod), Verdict::Yes { .. })) {
            // They tell of the pod as a whole; what it lists there may be more.
            return wanted;
        }
        let listed = pod.volumes.iter().any(|v| v.key == *key || was_before(v, key));
        if listed || pod.waiting.iter().any(|w| w.key.as_ref() == Some(key) || waited_before(w, key)) {
            return wanted;
        }
        if let Some(why) = &pod.unsettled {
            return Wanted::Unknown { why: why.clone() };
        }
        match pod.waiting.iter().find(|w| w.key.is_none()) {
            Some(w) => Wanted::Unknown {
                why: format!("volume {:?} of the pod could not be resolved: {}", w.outer_name, w.problem.message),
            },
            None => Wanted::No { by: format!("{by}: the pod does not list it") },
        }
    }
}

/// Whether a kubelet had the volume by this key while it still had the plugin whose place a CSI driver has taken. The pod's
/// containers may have that mount.
fn was_before(volume: &DesiredVolume, key: &VolumeKey) -> bool {
    let of_plugin = volume.spec.migrated.as_ref().is_some_and(|migrated| migrated.from == key.plugin);
    let mut names = volume.outer_names.iter().map(OuterSpecName::as_str).chain([volume.key.spec_name.as_str()]);
    of_plugin && volume.key.mode == key.mode && names.any(|name| name == key.spec_name.as_str())
}

/// The same of a volume that waits. Its plugin is not told any more; the names do.
fn waited_before(waiting: &Waiting, key: &VolumeKey) -> bool {
    let name = key.spec_name.as_str();
    let named = |now: &VolumeKey| waiting.outer_name == name || now.spec_name.as_str() == name;
    let by_driver = |now: &&VolumeKey| now.plugin.as_str() == layout::CSI;
    migration::gave_way(&key.plugin) && waiting.key.as_ref().filter(by_driver).is_some_and(named)
}
