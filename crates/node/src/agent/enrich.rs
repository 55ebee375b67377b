//! What only pods, claims and persistent volumes tell, put into records while these can still be asked for.

use std::collections::BTreeMap;
use std::error::Error;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, Volume};
use refloat_record::{
    ClaimRef, FsGroup, FsGroupChangePolicy, OuterSpecName, PodUid, PodVolume, Record, RecordedMount, RecordedSubPath,
    SpecName, UniqueVolumeName, Verbatim,
};
use refloat_volume::{Object, Plugins, SpecSource, layout};

use crate::desired::claims::{claim_of, mount_options};
use crate::sources::manifests::containers;

/// Why nobody could be asked for an object.
#[derive(Debug, thiserror::Error)]
#[error("cannot ask for {what}")]
pub struct ObjectsError {
    /// What was asked for.
    pub what: String,
    /// What failed.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

/// Who knows pods, claims and persistent volumes whole.
pub trait WholeObjects: Send {
    /// The pods of this node that it knows.
    fn pods(&mut self) -> Result<Vec<Verbatim>, ObjectsError>;

    /// A claim; none if there surely is none, or if this one knows no claims.
    fn claim(&mut self, namespace: &str, name: &str) -> Result<Option<Verbatim>, ObjectsError>;

    /// A persistent volume; none if there surely is none, or if this one knows no volumes.
    fn persistent_volume(&mut self, name: &str) -> Result<Option<Verbatim>, ObjectsError>;
}

/// Fills in what the records lack, as far as it is known. Pods are asked for only if a record lacks something, and once.
pub(super) fn enrich(
    records: &mut [Record],
    plugins: &Plugins,
    objects: &mut dyn WholeObjects,
) -> Result<(), ObjectsError> {
    let lacks = |record: &Record| match record {
        Record::PodVolume(r) => r.pod.name.is_empty() || !r.lost.is_empty(),
        Record::DeviceMount(_) | Record::PodCheckpoint(_) | Record::Driver(_) => false,
    };
    if !records.iter().any(lacks) {
        return Ok(());
    }
    let mut pods: BTreeMap<PodUid, (Object<Pod>, Vec<Verbatim>)> = BTreeMap::new();
    for raw in objects.pods()? {
        // One that is no pod says nothing of the others.
        let Ok(pod) = Object::<Pod>::new(raw) else { continue };
        let Some(uid) = pod.typed.metadata.uid.as_deref().and_then(|uid| PodUid::new(folder_uid(&pod.typed, uid)).ok())
        else {
            continue;
        };
        let entries = raw_volumes(&pod.raw);
        pods.insert(uid, (pod, entries));
    }
    for record in records.iter_mut().filter(|record| lacks(record)) {
        let Record::PodVolume(record) = record else { continue };
        let Some((pod, entries)) = pods.get(&record.pod.uid) else { continue };
        of_pod(record, &pod.typed, entries, plugins, objects)?;
    }
    // A device is known whole by its volumes.
    let mut volumes: BTreeMap<UniqueVolumeName, Verbatim> = BTreeMap::new();
    for record in records.iter() {
        if let Record::PodVolume(PodVolume { unique_name, persistent_volume: Some(volume), lost, .. }) = record
            && lost.is_empty()
        {
            volumes.insert(unique_name.clone(), volume.clone());
        }
    }
    for record in records.iter_mut() {
        if let Record::DeviceMount(device) = record
            && device.persistent_volume.is_none()
        {
            device.persistent_volume = volumes.get(&device.unique_name).cloned();
        }
    }
    Ok(())
}

/// The UID that a pod's folder is named by. A static pod's is the hash that its mirror in the API tells of.
///
/// # Source
/// `ConfigHashAnnotationKey` of `pkg/kubelet/types`; the mirror's own UID names no folder.
fn folder_uid<'p>(pod: &'p Pod, uid: &'p str) -> &'p str {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get("kubernetes.io/config.mirror")).map_or(uid, String::as_str)
}

/// The entries of `spec.volumes` as they came.
fn raw_volumes(pod: &Verbatim) -> Vec<Verbatim> {
    #[derive(serde::Deserialize)]
    struct Spec {
        volumes: Option<Vec<Verbatim>>,
    }
    #[derive(serde::Deserialize)]
    struct Whole {
        spec: Spec,
    }
    pod.parse::<Whole>().ok().and_then(|whole| whole.spec.volumes).unwrap_or_default()
}

fn of_pod(
    record: &mut PodVolume,
    pod: &Pod,
    entries: &[Verbatim],
    plugins: &Plugins,
    objects: &mut dyn WholeObjects,
) -> Result<(), ObjectsError> {
    let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else { return Ok(()) };
    record.pod.namespace.clone_from(namespace);
    record.pod.name.clone_from(name);
    let Some(spec) = &pod.spec else { return Ok(()) };
    let mut outer = vec![];
    let mut entry = None;
    let mut bound = None;
    let mut read_only = true;
    for (volume, raw) in spec.volumes.iter().flatten().zip(entries) {
        let found = match claim_of(name, volume) {
            None if is_inline(plugins, record, volume, raw) => None,
            None => continue,
            Some((claim, of_claim)) => match bound_volume(namespace, &claim, &record.spec_name, objects)? {
                Some(found) if is_bound_of_plugin(plugins, record, volume, raw, &found) => Some((found, of_claim)),
                Some(_) | None => continue,
            },
        };
        let Ok(outer_name) = OuterSpecName::new(&volume.name) else { continue };
        outer.push(outer_name);
        entry.get_or_insert_with(|| raw.clone());
        if let Some((found, of_claim)) = found {
            read_only &= of_claim;
            bound = Some(found);
        } else {
            read_only = inline_read_only(raw);
        }
    }
    let Some(entry) = entry else { return Ok(()) };
    record.volume_names = outer;
    record.volume = entry;
    record.read_only = read_only;
    record.fs_group = fs_group(spec);
    if let Some((volume, claim)) = bound {
        record.mount_options = mount_options(&volume.typed);
        record.persistent_volume = Some(volume.raw);
        record.claim = Some(claim);
    } else {
        record.persistent_volume = None;
    }
    record.lost.clear();
    sub_paths(record, spec);
    Ok(())
}

/// The claim's volume, if it is the one of this name.
fn bound_volume(
    namespace: &str,
    claim: &str,
    volume: &SpecName,
    objects: &mut dyn WholeObjects,
) -> Result<Option<(Object<PersistentVolume>, ClaimRef)>, ObjectsError> {
    let Some(raw) = objects.claim(namespace, claim)? else { return Ok(None) };
    let Ok(found) = Object::<PersistentVolumeClaim>::new(raw) else { return Ok(None) };
    let bound = found.typed.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    if bound != Some(volume.as_str()) {
        return Ok(None);
    }
    let Some(raw) = objects.persistent_volume(volume.as_str())? else { return Ok(None) };
    let Ok(object) = Object::<PersistentVolume>::new(raw) else { return Ok(None) };
    let claim = ClaimRef { namespace: namespace.into(), name: claim.into(), uid: found.typed.metadata.uid };
    Ok(Some((object, claim)))
}

/// The `readOnly` of the entry's own source, whatever its type.
fn inline_read_only(entry: &Verbatim) -> bool {
    let fields: serde_json::Map<String, serde_json::Value> = entry.parse().unwrap_or_default();
    fields.values().any(|source| source.get("readOnly") == Some(&serde_json::Value::Bool(true)))
}

fn fs_group(spec: &PodSpec) -> Option<FsGroup> {
    let context = spec.security_context.as_ref()?;
    let policy = match context.fs_group_change_policy.as_deref() {
        Some("OnRootMismatch") => FsGroupChangePolicy::OnRootMismatch,
        _ => FsGroupChangePolicy::Always,
    };
    Some(FsGroup { gid: u32::try_from(context.fs_group?).ok()?, policy })
}

/// The subPath mounts of the volume, as its pod's containers ask for them. An expression is recorded as it stands, for its
/// expansion is the kubelet's.
fn sub_paths(record: &mut PodVolume, spec: &PodSpec) {
    let mut all = vec![];
    for container in containers(spec) {
        let of_this = |name: &str| record.volume_names.iter().any(|outer| outer.as_str() == name);
        for (index, mount) in container.mounts.iter().enumerate().filter(|(_, mount)| of_this(&mount.name)) {
            let Some(sub_path) = mount.sub_path.as_ref().filter(|path| !path.is_empty()) else { continue };
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let path = layout::sub_path(&record.pod.uid, &record.spec_name, container.name, index);
            if let Ok(path) = path {
                let container = container.name.to_owned();
                // Whatever the kubelet mounts there.
                let mount =
                    RecordedMount { id: None, fs_type: String::new(), source: String::new(), root: String::new() };
                all.push(RecordedSubPath { container, index, sub_path: sub_path.clone(), path, mount: Some(mount) });
            }
        }
    }
    record.sub_paths = all;
}

/// Whether a pod's own entry is the record's: by its name and plugin, since a persistent volume may have the same name, or by those
/// that its CSI driver gives it. Of types that no plugin sets up nobody can say.
fn is_inline(plugins: &Plugins, record: &PodVolume, volume: &Volume, raw: &Verbatim) -> bool {
    let source = SpecSource::Inline { volume: Object { raw: raw.clone(), typed: volume.clone() } };
    let name = record.spec_name.as_str();
    let by_driver = || {
        let (plugin, migrated) = plugins.resolve(&source).ok()?;
        Some(plugin.name() == record.plugin && migrated?.spec_name() == name)
    };
    volume.name == name && is_of(plugins, record, &source) || by_driver().unwrap_or(false)
}

/// The same of an entry that is bound to a persistent volume.
fn is_bound_of_plugin(
    plugins: &Plugins,
    record: &PodVolume,
    volume: &Volume,
    raw: &Verbatim,
    (persistent_volume, claim): &(Object<PersistentVolume>, ClaimRef),
) -> bool {
    let volume = Object { raw: raw.clone(), typed: volume.clone() };
    let persistent_volume = Box::new(persistent_volume.clone());
    let source = SpecSource::Persistent { volume, persistent_volume, claim: claim.clone() };
    is_of(plugins, record, &source) || plugins.resolve(&source).is_ok_and(|(plugin, _)| plugin.name() == record.plugin)
}

fn is_of(plugins: &Plugins, record: &PodVolume, source: &SpecSource) -> bool {
    plugins.by_source(source).map_or(true, |plugin| plugin.name_for(source) == record.plugin)
}
