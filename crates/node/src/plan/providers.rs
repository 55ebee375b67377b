//! What providers outside this program are asked. Nothing of a volume waits for it: it is planned for what is there already,
//! and excludes nothing of the volume but its undoing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use refloat_record::{BootId, ProviderAnswer, ProviderAnswers, Record, RecordedMount};
use refloat_volume::provider::{Provider, ProviderCall};

use super::planner::Planner;
use super::{Exclusion, Operation};
use crate::{Actual, DesiredVolume, RecordState, VolumeState, Wanted};

/// So many calls of one provider are under way at most.
const AT_ONCE: usize = 8;

/// What the plan knows of providers.
#[derive(Debug, Default)]
pub struct ProviderInput {
    /// Those that there are.
    pub list: Arc<Vec<Arc<Provider>>>,
    /// When those that failed last may be asked again.
    pub resting: BTreeMap<String, Duration>,
    /// What was asked since the manager started and the provider came.
    pub asked: std::collections::BTreeSet<(String, Exclusion)>,
    /// What was answered and is not yet in a record.
    pub answers: BTreeMap<(String, Exclusion), ProviderAnswer>,
}

/// A volume or device that is there.
struct There<'a> {
    of: Exclusion,
    subject: String,
    record: &'a dyn Fn() -> Record,
    plugin: &'a refloat_record::PluginName,
    boot_id: &'a BootId,
    mount: Option<&'a RecordedMount>,
    answers: &'a ProviderAnswers,
    make: ProviderCall,
    desired: Option<Arc<DesiredVolume>>,
}

impl Planner<'_> {
    /// Plans what is asked about all that is there and stays.
    pub(super) fn providers(&mut self, actual: &Actual) {
        if self.input.providers.list.is_empty() {
            return;
        }
        let desired: BTreeMap<_, _> =
            self.desired.pods.values().flat_map(|pod| &pod.volumes).map(|volume| (&volume.key, volume)).collect();
        let by_name: BTreeMap<_, _> = desired.values().map(|volume| (&volume.unique_name, *volume)).collect();
        for volume in &actual.volumes {
            let Some(record) = volume.record.as_ref().filter(|_| volume.record_state == RecordState::Ok) else {
                continue;
            };
            let stays = !matches!(self.desired.wanted_volume(&volume.key), Wanted::No { .. });
            if !stays || volume.state != VolumeState::Mounted || volume.conflict.is_some() {
                continue;
            }
            self.ask_about(&There {
                of: Exclusion::Volume(volume.key.clone()),
                subject: super::planner::volume_subject(volume),
                record: &|| record.clone().into(),
                plugin: &record.plugin,
                boot_id: &record.boot_id,
                mount: record.mount.as_ref().or(record.block.as_ref().and_then(|block| block.mount.as_ref())),
                answers: &record.providers,
                make: ProviderCall::SetUp,
                desired: desired.get(&volume.key).map(|volume| Arc::clone(volume)),
            });
        }
        for device in &actual.devices {
            let Some(record) = device.record.as_ref().filter(|_| device.record_state == RecordState::Ok) else {
                continue;
            };
            if device.state != VolumeState::Mounted || device.conflict.is_some() || self.may.device(device).is_ok() {
                continue;
            }
            self.ask_about(&There {
                of: Exclusion::Device(record.unique_name.clone()),
                subject: format!("device {}", record.unique_name),
                record: &|| record.clone().into(),
                plugin: &record.plugin,
                boot_id: &record.boot_id,
                mount: record.mount.as_ref(),
                answers: &record.providers,
                make: ProviderCall::MountDevice,
                desired: by_name.get(&record.unique_name).map(|volume| Arc::clone(volume)),
            });
        }
    }

    fn ask_about(&mut self, there: &There<'_>) {
        let input = &self.input.providers;
        for provider in input.list.iter().filter(|provider| provider.is_for(there.plugin)) {
            let id = (provider.name().to_owned(), there.of.clone());
            let mount_id = there.mount.and_then(|mount| mount.id);
            let is_of_now = |answer: &ProviderAnswer| answer.boot_id == *there.boot_id && answer.mount_id == mount_id;
            if let Some(answer) = input.answers.get(&id).filter(|answer| is_of_now(answer)) {
                let operation = Operation::NoteAnswer {
                    provider: id.0,
                    of: there.of.clone(),
                    answer: answer.clone(),
                    reason: "a provider told something of it".into(),
                };
                self.start(there.subject.clone(), there.of.volume().cloned(), operation, None);
                continue;
            }
            let known = there.answers.get(&id.0);
            let call = match known.filter(|answer| is_of_now(answer)) {
                None if provider.has(there.make) && there.desired.is_some() => there.make,
                _ if input.asked.contains(&id) => continue,
                Some(known) if known.provider_info.is_some() && provider.has(ProviderCall::Reconnect) => {
                    ProviderCall::Reconnect
                }
                Some(known) if known.provider_info.is_none() => continue,
                _ if provider.has(ProviderCall::Check) => ProviderCall::Check,
                _ => continue,
            };
            if !self.may_ask(provider) {
                continue;
            }
            let reason = match call {
                ProviderCall::Reconnect | ProviderCall::Check => "it was not asked since the manager started",
                _ => "it was not asked about this mount",
            };
            let operation = Operation::AskProvider {
                provider: Arc::clone(provider),
                call,
                of: there.of.clone(),
                record: Box::new((there.record)()),
                volume: there.desired.clone(),
                reason: format!("provider {}, {call}: {reason}", provider.name()),
            };
            self.start(there.subject.clone(), there.of.volume().cloned(), operation, None);
        }
    }

    /// Whether one more call of this provider fits: one that failed is tried with one call, after a rest.
    fn may_ask(&mut self, provider: &Provider) -> bool {
        let resting = self.input.providers.resting.get(provider.name()).copied();
        if let Some(until) = resting.filter(|until| *until > self.input.now) {
            self.plan.wake_at = Some(self.plan.wake_at.map_or(until, |at| at.min(until)));
            return false;
        }
        let most = if resting.is_some() { 1 } else { AT_ONCE };
        let is_its = |taken: &&Exclusion| matches!(taken, Exclusion::Provider(name, _) if name == provider.name());
        self.taken.iter().filter(is_its).count() < most
    }
}

#[cfg(test)]
mod tests;
