//! SetUp: record, volume, subPaths, and a look into the mount table whether it is true.

use refloat_csi::{CallErrorKind, Outcome};
use refloat_record::{PodVolume, Record, RecordedMount, RelPath, VolumeMode};
use refloat_volume::{Plugin, Presence, Problem, SetUp, TearDown, VolumeError, block, sub_path};

use super::announced::Announced;
use super::{Adopt, Executor, Job, Journal, Success};
use crate::DesiredVolume;
use crate::plan::digest;

pub(super) fn run(
    executor: &Executor,
    journal: &Journal<'_>,
    job: &Job,
    volume: &DesiredVolume,
) -> Result<Success, VolumeError> {
    let host = &executor.host;
    let plugin = plugin(executor, volume)?;
    let mut before = job.record.clone();
    let mut record = record_for(executor, job, volume)?;
    // What the store has of it.
    let mut stored = before.clone();
    match (&before, &job.adopt) {
        (None, Some(Adopt::Mount(mount))) => {
            record.mount = Some(mount.clone());
            journal.put(Record::PodVolume(record.clone()))?;
            before = Some(record.clone());
            stored.clone_from(&before);
        }
        // Its record is written when SetUp has compared the bound device with the wanted one.
        (None, Some(Adopt::Block(found))) => {
            block::adopt_loop(host, &found.map_path, volume.spec.read_only)?;
            before = Some(PodVolume { block: Some(found.clone()), ..record.clone() });
        }
        _ => {}
    }
    let same_boot = before.as_ref().is_some_and(|r| r.boot_id == host.boot_id);
    let mounted = match before.as_ref().and_then(|record| mount_of(record)) {
        Some((path, mount)) => executor.is_mounted(path, mount, same_boot)?,
        None => false,
    };
    let by_driver = plugin.capabilities().presence == Presence::Driver;
    record.confirmed = by_driver && executor.is_confirmed(volume.path.as_ref(), before.as_ref(), mounted)?;
    let confirmed = record.confirmed;
    // Without record and folder, all that appears below the folder is this operation's own.
    let untouched = match (&volume.path, &before) {
        // A block volume's undoing deletes no content.
        (_, None) if volume.key.mode == VolumeMode::Block => true,
        (Some(path), None) => host.root.list(path.as_path()).map_err(VolumeError::Path)?.is_none(),
        (None, None) => true,
        (_, Some(_)) => false,
    };
    let announced = Announced::new(journal, stored.as_ref(), record);
    let result = plugin.set_up(SetUp {
        host,
        pod: &volume.pod,
        spec: &volume.spec,
        path: volume.path.as_ref(),
        fs_group: volume.fs_group,
        content: volume.content.as_deref(),
        resources: &volume.resources,
        inputs: volume.inputs.as_deref(),
        servers: volume.servers.as_deref(),
        device: job.device.as_ref(),
        record: before.as_ref(),
        mounted,
        confirmed,
        announcer: &announced,
    });
    if let Some(path) = &volume.path {
        // Somebody's reading may have met the mount before a driver or helper was done with it.
        host.doubt(&host.absolute(path));
    }
    if let Err(error) = result {
        // What lay there before may be in use, and a driver told to undo it would take it away.
        let own = before.is_none() && (untouched || !by_driver);
        if own && announced.is_written() && is_over(&error, by_driver) {
            undo(executor, journal, plugin, &announced.record(), untouched);
        }
        doubt_device(journal, job, &error);
        return Err(error);
    }
    let mut record = announced.record();
    if by_driver && record.block.is_none() {
        // What the driver made is what the table shows now; it may be nothing.
        let mount = volume.path.as_ref().map(|path| executor.mount_at(path)).transpose()?.flatten();
        if !record.confirmed || record.mount != mount {
            record.mount = mount;
            record.confirmed = true;
            journal.put(Record::PodVolume(record.clone()))?;
        }
        update_device(journal, job, volume)?;
    } else if let Some((path, Some(mount))) = mount_of(&record) {
        let found = executor.check_mounted(path, mount)?;
        if found != *mount {
            match &mut record.block {
                Some(block) => block.mount = Some(found),
                None => record.mount = Some(found),
            }
            journal.put(Record::PodVolume(record.clone()))?;
        }
    }
    if by_driver && record.block.is_some() {
        if !record.confirmed {
            record.confirmed = true;
            journal.put(Record::PodVolume(record.clone()))?;
        }
        update_device(journal, job, volume)?;
    }
    sub_paths(executor, journal, volume, record)?;
    Ok(Success::SetUp(volume.key.clone(), digest(volume)))
}

/// Whether nothing of a failed operation goes on any more, so that it can be undone at once. What a driver may still be
/// at, or has done before something else failed, is finished or undone later.
pub(super) fn is_over(error: &VolumeError, by_driver: bool) -> bool {
    match error {
        VolumeError::Driver(error) => error.outcome != Outcome::Uncertain,
        VolumeError::FlexDriver(error) => error.is_over(),
        _ => !by_driver,
    }
}

/// A device that its driver mounted nowhere is known to be there by the driver's word alone. If the driver then refuses
/// to publish, that word may have been wrong, so it is asked for it again before the next try.
fn doubt_device(journal: &Journal<'_>, job: &Job, error: &VolumeError) {
    let VolumeError::Driver(refused) = error else { return };
    let of_device = match &refused.kind {
        // Of what is published, a driver may refuse other things: to grow it.
        CallErrorKind::Status { code, .. } if refused.call == "NodePublishVolume" => {
            matches!(*code, "FAILED_PRECONDITION" | "NOT_FOUND" | "INTERNAL" | "UNKNOWN" | "INVALID_ARGUMENT")
        }
        _ => false,
    };
    let Some(device) = job.device.as_ref().filter(|d| of_device && d.confirmed && d.mount.is_none()) else { return };
    let doubted = refloat_record::DeviceMount { confirmed: false, ..device.clone() };
    if let Err(error) = journal.put(Record::DeviceMount(doubted)) {
        // It is doubted at the next refusal.
        tracing::warn!(device = %device.unique_name, error = %error.problem().message, "a record could not be written");
    }
}

/// The device's record follows the volume: its size may have grown.
fn update_device(journal: &Journal<'_>, job: &Job, volume: &DesiredVolume) -> Result<(), VolumeError> {
    let wanted = volume.spec.source.persistent_volume().map(|p| &p.raw);
    match &job.device {
        // Two volumes with one handle share a device; its record names the one that it was mounted for.
        Some(device) if device.persistent_volume.as_ref() != wanted && names_same(device, volume) => {
            let device = refloat_record::DeviceMount { persistent_volume: wanted.cloned(), ..device.clone() };
            journal.put(Record::DeviceMount(device))
        }
        _ => Ok(()),
    }
}

fn names_same(device: &refloat_record::DeviceMount, volume: &DesiredVolume) -> bool {
    #[derive(serde::Deserialize)]
    struct Whole {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    struct Metadata {
        name: String,
    }
    let recorded = device.persistent_volume.as_ref().and_then(|raw| raw.parse::<Whole>().ok());
    recorded.is_some_and(|whole| whole.metadata.name == volume.key.spec_name.as_str())
}

/// Where a record's mount is, and which: of a block volume, at its map path.
fn mount_of(record: &PodVolume) -> Option<(&RelPath, Option<&RecordedMount>)> {
    match (&record.block, record.mode) {
        (Some(block), _) => Some((&block.map_path, block.mount.as_ref())),
        (None, VolumeMode::Filesystem) => Some((record.path.as_ref()?, record.mount.as_ref())),
        (None, VolumeMode::Block) => None,
    }
}

fn plugin<'e>(executor: &'e Executor, volume: &DesiredVolume) -> Result<&'e dyn Plugin, VolumeError> {
    executor.plugins.by_name(&volume.key.plugin).ok_or_else(|| unknown_plugin(&volume.key.plugin))
}

pub(super) fn unknown_plugin(plugin: &refloat_record::PluginName) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "UnknownPlugin",
        format!("this program has no plugin {plugin}"),
        "Use a version that has it.",
    ))
}

/// The record that this SetUp announces, with what is known before it began.
fn record_for(executor: &Executor, job: &Job, volume: &DesiredVolume) -> Result<PodVolume, VolumeError> {
    let source = &volume.spec.source;
    let before = job.record.as_ref();
    let same_boot = before.filter(|r| r.boot_id == executor.host.boot_id);
    let mut sub_paths = sub_path::plan(&volume.pod.uid, &volume.key.spec_name, &volume.sub_paths).map_err(|error| {
        VolumeError::Refused(Problem::new("SpecInvalid", error.to_string(), "Correct the pod's manifest."))
    })?;
    for planned in &mut sub_paths {
        planned.mount = same_boot
            .and_then(|r| r.sub_paths.iter().find(|old| old.path == planned.path))
            .and_then(|old| old.mount.clone());
    }
    let claim = match source {
        refloat_volume::SpecSource::Persistent { claim, .. } => Some(claim.clone()),
        refloat_volume::SpecSource::Inline { .. } => None,
    };
    Ok(PodVolume {
        pod: volume.pod.clone(),
        volume_names: volume.outer_names.clone(),
        spec_name: volume.key.spec_name.clone(),
        plugin: volume.key.plugin.clone(),
        unique_name: volume.unique_name.clone(),
        mode: volume.key.mode,
        read_only: volume.spec.read_only,
        mount_options: volume.spec.mount_options.clone(),
        fs_group: volume.fs_group,
        selinux_label: before.and_then(|r| r.selinux_label.clone()),
        volume: source.volume().raw.clone(),
        persistent_volume: source.persistent_volume().map(|p| p.raw.clone()),
        claim,
        path: volume.path.clone(),
        host_path: volume.host_path.clone(),
        device_mount_path: job.device.as_ref().map(|d| d.device_mount_path.clone()),
        mount: same_boot.and_then(|r| r.mount.clone()),
        block: same_boot.and_then(|r| r.block.clone()),
        sub_paths,
        confirmed: false,
        boot_id: executor.host.boot_id.clone(),
        provider_info: before.and_then(|r| r.provider_info.clone()),
        providers: before.map(|r| r.providers.clone()).unwrap_or_default(),
        lost: vec![],
    })
}

/// Undoes a first SetUp that failed, so that a volume that cannot be set up leaves nothing behind. What cannot be undone
/// keeps its record and is torn down or finished later.
fn undo(executor: &Executor, journal: &Journal<'_>, plugin: &dyn Plugin, record: &PodVolume, untouched: bool) {
    let undone = plugin
        .tear_down(&TearDown { host: &executor.host, record, trusted: untouched, failures: 0, without_driver: false })
        .and_then(|()| {
            let at = mount_of(record).map(|(path, _)| path).or(record.path.as_ref());
            at.map_or(Ok(()), |path| executor.check_unmounted(path))?;
            journal.remove(record.key())
        });
    if let Err(error) = undone {
        tracing::warn!(
            volume = %record.spec_name,
            pod = %record.pod.uid,
            error = %error.problem().message,
            "a SetUp that failed could not be undone; its record is kept"
        );
    }
}

fn sub_paths(
    executor: &Executor,
    journal: &Journal<'_>,
    volume: &DesiredVolume,
    mut record: PodVolume,
) -> Result<(), VolumeError> {
    if volume.sub_paths.is_empty() {
        return Ok(());
    }
    let before = record.clone();
    sub_path::set_up(&executor.host, &before, &volume.sub_paths, &mut |mounts| {
        for (sub_path, mount) in record.sub_paths.iter_mut().zip(mounts) {
            sub_path.mount = mount;
        }
        if record == before { Ok(()) } else { journal.put(Record::PodVolume(record.clone())) }
    })?;
    // Older kernels tell the ids only now.
    let announced = record.clone();
    for sub_path in &mut record.sub_paths {
        if let Some(mount) = &sub_path.mount {
            sub_path.mount = Some(executor.check_mounted(&sub_path.path, mount)?);
        }
    }
    if record == announced { Ok(()) } else { journal.put(Record::PodVolume(record)) }
}
