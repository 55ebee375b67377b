//! Providers outside this program: which there are, and what came of asking them.

use std::time::Instant;

use refloat_record::ProviderAnswer;

use super::Manager;
use crate::{Exclusion, ProviderInput, VolumeKey};

type Id = (String, Exclusion);

impl ProviderInput {
    /// A provider answered, with what is not in its record yet.
    pub(super) fn answered(&mut self, id: Id, answer: Option<ProviderAnswer>) {
        self.asked.insert(id.clone());
        if let Some(answer) = answer {
            self.answers.insert(id, answer);
        }
    }

    /// An answer is in the record, or of what is not there any more.
    pub(super) fn noted(&mut self, id: &Id) {
        self.answers.remove(id);
    }
}

impl Manager {
    /// Brings what the plan knows of providers up to date.
    pub(super) fn prepare_providers(&mut self) {
        let providers = &self.executor.host.providers;
        let input = &mut self.input.providers;
        input.list = providers.list();
        let since = |until: Instant| until.saturating_duration_since(self.started);
        input.resting = providers.resting().into_iter().map(|(name, until)| (name, since(until))).collect();
        if input.asked.is_empty() && input.answers.is_empty() {
            return;
        }
        let actual = &self.actual;
        let volume = |key: &VolumeKey| actual.volumes.binary_search_by(|v| v.key.cmp(key)).is_ok();
        let devices: std::collections::BTreeSet<_> =
            actual.devices.iter().filter_map(|d| d.unique_name.as_ref()).collect();
        let is_known = |of: &Exclusion| match of {
            Exclusion::Volume(key) => volume(key),
            Exclusion::Device(name) => devices.contains(name),
            Exclusion::Pod(_) | Exclusion::Provider(..) | Exclusion::Asked(_) => false,
        };
        input.asked.retain(|(_, of)| is_known(of));
        input.answers.retain(|(_, of), _| is_known(of));
    }

    /// The folder of providers may have changed. Who came, or is another than before, is asked about all that is its.
    pub(super) fn take_provider_news(&mut self) {
        let Some(watch) = &mut self.provider_watch else { return };
        if !watch.changed() {
            return;
        }
        // Before reading: what changes while it is read is seen afterwards.
        watch.rearm();
        self.news.providers = true;
        let changed = self.executor.host.providers.load();
        if changed.is_empty() {
            return;
        }
        tracing::info!(?changed, "providers came, went or changed");
        self.input.providers.asked.retain(|(name, _)| !changed.contains(name));
        self.retries.forget(|about| matches!(about, Exclusion::Provider(name, _) if changed.contains(name)));
    }
}
