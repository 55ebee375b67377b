//! A `PersistentVolume` or a pod's entry in a file. Both are read by what Kubernetes' types have, and by nothing else.

use k8s_openapi::api::core::v1::{PersistentVolumeSpec, Volume};
use serde_json::{Map, Value};

use super::ForeignSays;

/// The fields of a `PersistentVolume`'s spec that are not its source.
///
/// # Source
/// `PersistentVolumeSpec` of Kubernetes v1.36.
const NO_SOURCE: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

fn object(value: Value) -> Result<Map<String, Value>, String> {
    match value {
        Value::Object(object) => Ok(object),
        _ => Err("it is no JSON object".into()),
    }
}

/// A `PersistentVolume`, or its spec.
pub(super) fn persistent_volume(value: Value) -> Result<ForeignSays, String> {
    let mut whole = object(value)?;
    let (name, spec) = match whole.remove("spec") {
        Some(spec) => (whole.get("metadata").and_then(|m| m["name"].as_str()).map(str::to_owned), spec),
        None => (None, Value::Object(whole)),
    };
    let spec: PersistentVolumeSpec =
        serde_json::from_value(spec).map_err(|_| "its spec is no PersistentVolume's".to_owned())?;
    let spec = object(serde_json::to_value(spec).map_err(|_| "it cannot be understood")?)?;
    let (rest, sources): (Map<_, _>, Map<_, _>) =
        spec.into_iter().partition(|(name, _)| NO_SOURCE.contains(&name.as_str()));
    Ok(ForeignSays { name, of_persistent_volume: rest, ..one_source(sources)? })
}

/// A pod's `volumes[x]` entry, or the source in it.
pub(super) fn volume(value: Value) -> Result<ForeignSays, String> {
    let mut entry = object(value)?;
    let name = entry.get("name").and_then(Value::as_str).map(str::to_owned);
    // The type needs one.
    entry.insert("name".into(), "".into());
    let entry: Volume =
        serde_json::from_value(Value::Object(entry)).map_err(|_| "it is no volume of a pod".to_owned())?;
    let mut entry = object(serde_json::to_value(entry).map_err(|_| "it cannot be understood")?)?;
    entry.remove("name");
    Ok(ForeignSays { name, ..one_source(entry)? })
}

fn one_source(sources: Map<String, Value>) -> Result<ForeignSays, String> {
    let mut sources = sources.into_iter();
    match (sources.next(), sources.next()) {
        (Some((source, Value::Object(fields))), None) => Ok(ForeignSays { source, fields, ..ForeignSays::default() }),
        (Some(_), Some(_)) => Err("it has two sources".into()),
        _ => Err("it has no source".into()),
    }
}
