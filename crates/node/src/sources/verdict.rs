//! What the answers of all sources say of one pod. Pure.
//!
//! A pod is gone only if everyone who was asked could tell, nobody has it, one of them knows which pods should be here,
//! and one of them knows what runs here. Anything less is *unknown*.

#[cfg(test)]
mod tests;

use jiff::Timestamp;
use refloat_record::PodUid;

use super::asked::{Answer, Answers, Asked, Claim, Covers, KnownPod, SourceKind};
use crate::{Actual, Wanted};

/// What the sources say of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// At least one wants it.
    Yes {
        /// Which, and in what way.
        by: String,
    },
    /// All agree that it is not wanted.
    No {
        /// Who was asked.
        by: String,
        /// The oldest of their answers: what came after it they cannot have told.
        as_of: Timestamp,
        /// Since when it has been finished or was to be gone, where one of them tells.
        since: Option<Timestamp>,
    },
    /// It cannot be told.
    Unknown {
        /// Why.
        why: String,
    },
}

impl From<Verdict> for Wanted {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Yes { by } => Self::Yes { by },
            Verdict::No { by, .. } => Self::No { by },
            Verdict::Unknown { why } => Self::Unknown { why },
        }
    }
}

impl Answers {
    /// Whether nobody was asked.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Those that gave no answer, with the reason; none if all did.
    pub fn unread(&self) -> Option<String> {
        let failed = |asked: &Asked| Some(format!("{}: {}", asked.name, asked.outcome.as_ref().err()?.text()));
        join(self.asked.iter().filter_map(failed), "; ")
    }

    /// What they say of a pod.
    pub fn verdict(&self, pod: &PodUid) -> Verdict {
        let claims: Vec<_> = self.claims(pod).collect();
        if let Some(by) =
            join(claims.iter().filter(|(_, k)| k.claim == Claim::Wanted).map(|(a, _)| a.name.clone()), ", ")
        {
            return Verdict::Yes { by };
        }
        let holds = |(asked, known): &&(&Asked, &KnownPod)| {
            known.claim == Claim::Terminating && !(asked.kind == SourceKind::ApiServer && self.node_has_it_no_more(pod))
        };
        let terminating = claims.iter().filter(holds).map(|(a, _)| format!("{} (it is being deleted)", a.name));
        if let Some(by) = join(terminating, ", ") {
            return Verdict::Yes { by };
        }
        if let Some(why) = self.unread() {
            return Verdict::Unknown { why };
        }
        self.gone(pod, claims.iter().filter_map(|(_, known)| known.since).max())
    }

    /// Whether a device that no pod on the node uses may be for one that is about to: a pod that is to be here and does
    /// not run yet has perhaps not got all its volumes. One that runs has them all.
    pub fn might_want_a_device(&self) -> Option<String> {
        let authorities = self.answered().filter(|(asked, _)| asked.kind.is_authority());
        let to_be_here = authorities.flat_map(|(asked, answer)| answer.pods().map(move |known| (asked, known)));
        let mut waiting = to_be_here.filter(|(_, known)| known.claim != Claim::Finished && !self.runs(&known.uid));
        let (asked, known) = waiting.next()?;
        let pod = known
            .name
            .as_ref()
            .map_or_else(|| known.uid.to_string(), |(namespace, name)| format!("{namespace}/{name}"));
        Some(format!("pod {pod}, which {} lists, does not run yet and may be about to use it", asked.name))
    }

    /// By whose word nobody is about to use a device that no pod on the node uses; an error says why that cannot be told.
    pub fn verdict_of_unused(&self) -> Result<String, String> {
        if let Some(why) = self.unread() {
            return Err(why);
        }
        // A static pod may refer to nothing that the API server has, so a volume that is mounted for pods to come is not
        // one's, or its kubelet is asked.
        let knows_all = |covers| matches!(covers, Covers::Every | Covers::FromApi);
        let telling = || self.answered().filter(|(_, answer)| knows_all(answer.covers));
        if !telling().any(|(asked, _)| asked.kind.is_authority()) {
            return Err("nobody was asked who knows which pods are to run here".into());
        }
        if !telling().any(|(asked, _)| asked.kind.sees_the_node() || asked.kind == SourceKind::Manifests) {
            return Err("nobody was asked who knows what runs here".into());
        }
        match self.might_want_a_device() {
            Some(why) => Err(why),
            None => Ok(join(telling().map(|(asked, _)| asked.name.clone()), ", ").unwrap_or_default()),
        }
    }

    /// Gives the volumes whose pods have no name yet the name that a source tells.
    pub fn tell_names(&self, actual: &mut Actual) {
        for volume in actual.volumes.iter_mut().filter(|volume| volume.pod_name.is_none()) {
            volume.pod_name = self.name(&volume.key.pod).cloned();
        }
    }

    /// What each source says of a pod, a sentence each.
    pub fn sentences(&self, pod: &PodUid) -> Vec<String> {
        let sentence = |asked: &Asked| match &asked.outcome {
            Err(error) => format!("{} could not be asked: {}.", asked.name, error.text()),
            Ok(answer) => match answer.get(pod).map(|known| known.claim) {
                Some(Claim::Wanted) if matches!(asked.kind, SourceKind::Runtime | SourceKind::Cgroup) => {
                    format!("{}: something of the pod runs.", asked.name)
                }
                Some(Claim::Wanted) => format!("{} has the pod.", asked.name),
                Some(Claim::Terminating) => format!("{} has the pod, and it is being deleted.", asked.name),
                Some(Claim::Finished) => format!("{} has the pod, and it ran to its end.", asked.name),
                None if answer.covers.covers(pod) && asked.kind.is_authority() => {
                    format!("{} does not have the pod.", asked.name)
                }
                None if answer.covers.covers(pod) => format!("{}: nothing of the pod runs.", asked.name),
                None => format!("{} cannot tell of such a pod.", asked.name),
            },
        };
        // A folder of manifests tells for itself.
        self.asked.iter().filter(|asked| asked.kind != SourceKind::Manifests).map(sentence).collect()
    }

    /// Whether processes of the pod were seen.
    fn runs(&self, pod: &PodUid) -> bool {
        let seen = self.answered().filter(|(asked, _)| matches!(asked.kind, SourceKind::Runtime | SourceKind::Cgroup));
        seen.filter_map(|(_, answer)| answer.get(pod)).any(|known| known.claim == Claim::Wanted)
    }

    /// Namespace and name of a pod, if a source tells them.
    pub fn name(&self, pod: &PodUid) -> Option<&(String, String)> {
        self.claims(pod).find_map(|(_, known)| known.name.as_ref())
    }

    /// The verdict on a pod that no source wants, where all of them answered.
    fn gone(&self, pod: &PodUid, since: Option<Timestamp>) -> Verdict {
        let mut telling = Vec::new();
        let mut manifests = false;
        let (mut authority, mut node) = (false, false);
        for (asked, answer) in self.answered().filter(|(_, answer)| answer.tells_of(pod)) {
            telling.push((asked.name.clone(), answer.asked_at));
            manifests |= asked.kind == SourceKind::Manifests;
            authority |= asked.kind.is_authority();
            node |= asked.kind.sees_the_node();
        }
        let as_of = telling.iter().map(|(_, at)| *at).min();
        let by = join(telling.into_iter().map(|(name, _)| name), ", ");
        match (by, as_of) {
            // Where manifests are the only authority, Refloat itself runs the pods, and its records tell what runs.
            (Some(by), Some(as_of)) if authority && (node || manifests) => Verdict::No { by, as_of, since },
            (Some(by), _) if authority => Verdict::Unknown {
                why: format!("{by} has it no more, and nobody was asked whether its containers still run on the node"),
            },
            (Some(by), _) => Verdict::Unknown {
                why: format!("nothing of it runs, says {by}, and nobody was asked whether it is to run here"),
            },
            (None, _) => Verdict::Unknown {
                why: join(self.asked.iter().map(|a| a.name.clone()), ", ").map_or_else(
                    || "no source of pods was asked".to_owned(),
                    |names| format!("{names} cannot tell of such a pod that it is gone"),
                ),
            },
        }
    }

    /// Whether the kubelet or the runtime says that the pod is there no more.
    fn node_has_it_no_more(&self, pod: &PodUid) -> bool {
        let on_node = |kind| matches!(kind, SourceKind::Kubelet | SourceKind::Runtime);
        let mut answered = self.answered().filter(|(asked, _)| on_node(asked.kind));
        answered.any(|(_, answer)| answer.covers.covers(pod) && answer.get(pod).is_none())
    }

    fn answered(&self) -> impl Iterator<Item = (&Asked, &Answer)> {
        self.asked.iter().filter_map(|asked| Some((asked, asked.outcome.as_ref().ok()?)))
    }

    fn claims<'a, 'p>(&'a self, pod: &'p PodUid) -> impl Iterator<Item = (&'a Asked, &'a KnownPod)> + use<'a, 'p> {
        self.answered().filter_map(move |(asked, answer)| Some((asked, answer.get(pod)?)))
    }
}

impl Answer {
    /// Whether it can tell of the pod: it knows it, or would if it were there.
    fn tells_of(&self, pod: &PodUid) -> bool {
        self.covers.covers(pod) || self.get(pod).is_some()
    }
}

fn join(parts: impl Iterator<Item = String>, by: &str) -> Option<String> {
    let parts: Vec<_> = parts.collect();
    (!parts.is_empty()).then(|| parts.join(by))
}
