//! Sources of pods that are asked anew whenever it matters.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use refloat_record::{PodUid, UniqueVolumeName};

use super::verdict::{Authority, Manifests, Verdict};
use crate::{Answers, Desired, PodSource, Wanted, ask_all};

/// All who can be asked which pods are on the node, a manifest folder among them or not. A pod is gone only if they agree.
pub struct Sources {
    others: Vec<Arc<dyn PodSource>>,
    manifests: Option<Manifests>,
    patience: Duration,
    /// What they answered last.
    desired: Desired,
}

impl Sources {
    /// These sources, of which none is waited for longer than `patience`.
    pub fn new(others: Vec<Arc<dyn PodSource>>, manifests: Option<Manifests>, patience: Duration) -> Self {
        let desired = Desired { incomplete: Some("nobody was asked yet".into()), ..Desired::default() };
        Self { others, manifests, patience, desired }
    }

    fn answers(&self) -> Option<&Answers> {
        self.desired.others.as_deref()
    }
}

impl Authority for Sources {
    fn refresh(&mut self) {
        let asked_at = Timestamp::now();
        let answers = ask_all(&self.others, self.patience);
        self.desired = match &mut self.manifests {
            Some(manifests) => {
                manifests.refresh();
                manifests.desired().clone().with_others(answers, asked_at)
            }
            None => Desired::by_others(Arc::new(answers)),
        };
    }

    fn verdict(&self, pod: &PodUid) -> Verdict {
        match self.desired.wanted(pod) {
            Wanted::Yes { by } => Verdict::Wanted { by },
            Wanted::Unknown { why } => Verdict::Unknown { why },
            Wanted::No { by } => {
                let told = match self.answers().map(|answers| answers.verdict(pod)) {
                    Some(crate::Verdict::No { since, .. }) => since,
                    _ => None,
                };
                let changed = self.manifests.as_ref().and_then(Manifests::changed);
                Verdict::Gone { by, since: told.max(changed) }
            }
        }
    }

    fn verdict_of_unused(&self, name: Option<&UniqueVolumeName>, path: &Path) -> Verdict {
        let own = self.manifests.as_ref().map(|manifests| manifests.verdict_of_unused(name, path));
        if let Some(own @ (Verdict::Wanted { .. } | Verdict::Unknown { .. })) = own {
            return own;
        }
        let Some(answers) = self.answers() else { return Verdict::Unknown { why: "nobody was asked yet".into() } };
        match answers.verdict_of_unused() {
            Ok(by) => {
                let since = match own {
                    Some(Verdict::Gone { since, .. }) => since,
                    _ => None,
                };
                Verdict::Gone { by, since }
            }
            Err(why) => Verdict::Unknown { why },
        }
    }

    fn objection_to_unused(&self, name: Option<&UniqueVolumeName>, path: &Path) -> Option<String> {
        let own = self.manifests.as_ref().and_then(|manifests| manifests.objection_to_unused(name, path));
        own.or_else(|| self.answers().map_or_else(|| Some("nobody was asked yet".into()), Answers::might_want_a_device))
    }

    fn asked(&self) -> Option<&Answers> {
        self.answers()
    }
}
