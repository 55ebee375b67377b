//! `AskProvider` and `NoteAnswer`: what a provider outside this program says of what is there, and the record of it.
//!
//! These are two, so that nothing but the undoing of the volume waits while the provider thinks.

use refloat_record::{ProviderAnswer, ProviderAnswers, Record};
use refloat_volume::provider::{Provider, ProviderCall, ProviderRequest};
use refloat_volume::{Problem, VolumeError, secrets_of};

use super::{Executor, Job, Journal, Success};
use crate::{DesiredVolume, Exclusion};

/// Asks, and writes nothing.
pub(super) fn ask(
    executor: &Executor,
    provider: &Provider,
    call: ProviderCall,
    of: &Exclusion,
    record: &Record,
    volume: Option<&DesiredVolume>,
) -> Result<Success, VolumeError> {
    let host = &executor.host;
    let (plugin, now, known) = match record {
        Record::PodVolume(record) => {
            let mount = record.mount.as_ref().or(record.block.as_ref().and_then(|block| block.mount.as_ref()));
            (&record.plugin, (&record.boot_id, mount), &record.providers)
        }
        Record::DeviceMount(record) => (&record.plugin, (&record.boot_id, record.mount.as_ref()), &record.providers),
        Record::PodCheckpoint(_) | Record::Driver(_) => return Ok(Success::Done),
    };
    let plugin = executor.plugins.by_name(plugin).ok_or_else(|| super::set_up::unknown_plugin(plugin))?;
    let capabilities = plugin.capabilities();
    let secrets = volume.and_then(|v| secrets_of(capabilities, v.inputs.as_deref(), v.content.as_deref()));
    if secrets.is_none() && matches!(call, ProviderCall::SetUp | ProviderCall::MountDevice) {
        return Err(VolumeError::Refused(Problem::new(
            "SecretUnknown",
            format!(
                "provider {} is not asked before the volume's secrets are known, which none of its words may hold",
                provider.name()
            ),
            "Correct what cannot be read; what is mounted stays.",
        )));
    }
    let request =
        ProviderRequest { call, root: host.root.path(), boot_id: &host.boot_id, record, secrets: secrets.as_ref() };
    let told = host.providers.ask(provider, &request)?;
    let before = known.get(provider.name());
    let (boot_id, mount) = now;
    let answer = ProviderAnswer {
        boot_id: boot_id.clone(),
        mount_id: mount.and_then(|mount| mount.id),
        provider_info: told.or_else(|| before.and_then(|answer| answer.provider_info.clone())),
    };
    // A check of what is not remembered leaves no trace.
    let nothing_new = before == Some(&answer) || (call == ProviderCall::Check && before.is_none());
    Ok(Success::Answered((provider.name().to_owned(), of.clone()), (!nothing_new).then_some(answer)))
}

/// Writes an answer into the record, if that is still of the mount that was asked about.
pub(super) fn note(
    journal: &Journal<'_>,
    job: &Job,
    provider: &str,
    of: &Exclusion,
    answer: &ProviderAnswer,
) -> Result<Success, VolumeError> {
    let noted = |answers: &ProviderAnswers| {
        let mut answers = answers.clone();
        answers.insert(provider.to_owned(), answer.clone());
        answers
    };
    let is_of_now = |boot_id: &refloat_record::BootId, id| answer.boot_id == *boot_id && answer.mount_id == id;
    match (&job.record, &job.device) {
        (Some(record), _) => {
            let mount = record.mount.as_ref().or(record.block.as_ref().and_then(|block| block.mount.as_ref()));
            if is_of_now(&record.boot_id, mount.and_then(|mount| mount.id)) {
                let mut record = record.clone();
                record.providers = noted(&record.providers);
                journal.put(Record::PodVolume(record))?;
            }
        }
        (None, Some(record)) => {
            if is_of_now(&record.boot_id, record.mount.as_ref().and_then(|mount| mount.id)) {
                let mut record = record.clone();
                record.providers = noted(&record.providers);
                journal.put(Record::DeviceMount(record))?;
            }
        }
        (None, None) => {}
    }
    Ok(Success::Noted((provider.to_owned(), of.clone())))
}
