//! Volumes of plugins that Kubernetes has moved to CSI drivers, told in the drivers' terms.
//!
//! A pod's `gcePersistentDisk` or `awsElasticBlockStore`, or a `PersistentVolume` with one, is translated to a
//! `PersistentVolume` with a `csi` source, and from there on it is a volume of that driver, in the CSI plugin's hands. The
//! names that come out are the kubelet's: its unique volume name, its folders and the hash in its staging path are made of
//! them, so one rule that differs would stage a disk a second time.
//!
//! Pure: values in, values out. The record keeps the objects as they came; see `docs/plugins/gce-aws.md` for why.
//!
//! # Source
//! `k8s.io/csi-translation-lib` and `pkg/volume/csimigration` of Kubernetes v1.36.

mod aws;
mod gce;
mod names;
mod topology;

use k8s_openapi::api::core::v1::PersistentVolume;
use refloat_record::{PluginName, Verbatim};
use serde_json::{Map, Value, json};

pub use names::{gave_way, in_tree_plugin, inline_name, same_volume};

use crate::{Object, SpecError, SpecSource};

/// The fields of an object.
type Fields = Map<String, Value>;

/// A volume as its CSI driver knows it.
#[derive(Debug, Clone)]
pub struct Migrated {
    /// The plugin that it was of.
    pub from: PluginName,
    /// The volume with a `csi` source. Of an inline volume it is made up, and its name is the spec name.
    pub persistent_volume: Box<PersistentVolume>,
}

impl Migrated {
    /// The inner spec name, which names the folder.
    pub fn spec_name(&self) -> &str {
        self.persistent_volume.metadata.name.as_deref().unwrap_or_default()
    }
}

/// Why a volume cannot be translated: a field of its source (`volumeID`), and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {why}")]
pub struct Untranslatable {
    /// The field's path in the object.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
}

/// The rules of one plugin.
#[derive(Debug)]
struct Rules {
    /// The plugin.
    plugin: &'static str,
    /// The field of its source.
    source: &'static str,
    /// The driver that has taken its place.
    driver: &'static str,
    /// The label of nodes that says where the driver's disks can be attached.
    topology_key: &'static str,
    /// What its source says. The labels are those of the `PersistentVolume`.
    disk: fn(&Fields, &Fields) -> Result<Disk, Untranslatable>,
    /// The access modes of an inline volume, by whether it is read-only.
    inline_access: fn(bool) -> &'static str,
    /// The access modes of a `PersistentVolume`, by those that it has.
    access_modes: fn(&[String]) -> Vec<String>,
    /// The disk, by what the plugin's unique names have of it.
    disk_of_source: fn(&str) -> Option<&str>,
    /// The disk, by the driver's id of the volume.
    disk_of_handle: fn(&str) -> Option<&str>,
}

/// All of them.
static RULES: [&Rules; 2] = [&gce::RULES, &aws::RULES];

/// What a source says.
#[derive(Debug)]
struct Disk {
    /// The volume's id for the driver.
    handle: String,
    /// What makes the made-up name of an inline volume its own.
    id: String,
    /// The attribute `partition`.
    partition: String,
}

/// Translates a volume, if it is of a plugin that was moved.
///
/// # Errors
/// The source has a field that makes no sense.
pub fn translate(source: &SpecSource) -> Result<Option<Migrated>, SpecError> {
    let volume = || source.volume().typed.name.clone();
    let wrong = |wrong: Untranslatable| SpecError::Field { volume: volume(), field: wrong.field, why: wrong.why };
    let (raw, persistent) = match source {
        SpecSource::Inline { volume } => (&volume.raw, false),
        SpecSource::Persistent { persistent_volume, .. } => (&persistent_volume.raw, true),
    };
    of_raw(raw, persistent).map_err(wrong)
}

/// Translates what a record has.
pub(crate) fn recorded(volume: Option<&Verbatim>, persistent_volume: Option<&Verbatim>) -> Option<Migrated> {
    match (persistent_volume, volume) {
        (Some(raw), _) => of_raw(raw, true).ok()?,
        (None, Some(raw)) => of_raw(raw, false).ok()?,
        (None, None) => None,
    }
}

fn of_raw(raw: &Verbatim, persistent: bool) -> Result<Option<Migrated>, Untranslatable> {
    let not_understood =
        |_| Untranslatable { field: "the object".into(), why: "cannot be understood once it is translated".into() };
    // Most volumes are of other plugins.
    if !RULES.iter().any(|rules| raw.get().contains(rules.source)) {
        return Ok(None);
    }
    let Ok(value) = raw.parse::<Value>() else { return Ok(None) };
    let translated = if persistent { persistent_volume(&value)? } else { inline_volume(&value)? };
    let Some((from, value)) = translated else { return Ok(None) };
    let object = Object::<PersistentVolume>::new(Verbatim::from_value(&value)).map_err(not_understood)?;
    let from = PluginName::new(from).expect("a constant name");
    Ok(Some(Migrated { from, persistent_volume: Box::new(object.typed) }))
}

/// The rules for the source that one of these fields is, and the source.
fn source_in(fields: &Value) -> Option<(&'static Rules, &Fields)> {
    RULES.iter().find_map(|&rules| Some((rules, fields.get(rules.source)?.as_object()?)))
}

/// Translates a `PersistentVolume`: the source and what follows from it; everything else, fields that are not known included,
/// stays as it is. With it, the plugin that it was of. `None` if no rule is for it.
///
/// # Errors
/// The source has a field that makes no sense.
///
/// # Source
/// `TranslateInTreePVToCSI` of the two plugins.
pub fn persistent_volume(object: &Value) -> Result<Option<(&'static str, Value)>, Untranslatable> {
    let Some((rules, source)) = object.get("spec").and_then(source_in) else { return Ok(None) };
    let nothing = Fields::new();
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object).unwrap_or(&nothing);
    let disk = (rules.disk)(source, labels).map_err(|wrong| wrong.below("spec", rules.source))?;
    let csi = csi_source(rules, source, &disk);
    let mut translated = object.clone();
    topology::translate(&mut translated, rules.topology_key);
    let Some(spec) = translated.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(None) };
    spec.shift_remove(rules.source);
    spec.insert("csi".into(), csi);
    if let Some(modes) = spec.get("accessModes").and_then(Value::as_array) {
        let modes: Vec<String> = modes.iter().filter_map(|mode| mode.as_str().map(str::to_owned)).collect();
        spec.insert("accessModes".into(), (rules.access_modes)(&modes).into());
    }
    Ok(Some((rules.plugin, translated)))
}

/// Translates a pod's `volumes[x]` entry to a made-up `PersistentVolume`. With it, the plugin that it was of. `None` if no
/// rule is for it.
///
/// # Errors
/// The source has a field that makes no sense.
///
/// # Source
/// `TranslateInTreeInlineVolumeToCSI` of the two plugins.
pub fn inline_volume(entry: &Value) -> Result<Option<(&'static str, Value)>, Untranslatable> {
    let Some((rules, source)) = source_in(entry) else { return Ok(None) };
    let disk = (rules.disk)(source, &Fields::new()).map_err(|wrong| wrong.below("", rules.source))?;
    let translated = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": names::made_up(rules, &disk.id) },
        "spec": {
            "accessModes": [(rules.inline_access)(is_read_only(source))],
            "csi": csi_source(rules, source, &disk),
            "volumeMode": "Filesystem",
        },
    });
    Ok(Some((rules.plugin, translated)))
}

fn is_read_only(source: &Fields) -> bool {
    source.get("readOnly").and_then(Value::as_bool).unwrap_or(false)
}

fn csi_source(rules: &Rules, source: &Fields, disk: &Disk) -> Value {
    let mut csi = Fields::new();
    csi.insert("driver".into(), rules.driver.into());
    csi.insert("volumeHandle".into(), disk.handle.as_str().into());
    if is_read_only(source) {
        csi.insert("readOnly".into(), true.into());
    }
    if let Some(fs_type) = source.get("fsType").and_then(Value::as_str).filter(|fs_type| !fs_type.is_empty()) {
        csi.insert("fsType".into(), fs_type.into());
    }
    csi.insert("volumeAttributes".into(), json!({ "partition": disk.partition }));
    csi.into()
}

impl Untranslatable {
    fn new(field: &str, why: impl Into<String>) -> Self {
        Self { field: field.into(), why: why.into() }
    }

    /// The same, with the path of the whole object's field.
    fn below(self, spec: &str, source: &str) -> Self {
        let dot = if spec.is_empty() { "" } else { "." };
        Self { field: format!("{spec}{dot}{source}.{}", self.field), ..self }
    }
}

/// A text that has to be there.
fn text<'s>(source: &'s Fields, field: &str) -> Result<&'s str, Untranslatable> {
    match source.get(field) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        None | Some(Value::Null | Value::String(_)) => Err(Untranslatable::new(field, "is missing")),
        Some(_) => Err(Untranslatable::new(field, "is no text")),
    }
}

/// The number of a partition; 0 is the whole disk.
///
/// # Source
/// `validateGCEPersistentDiskVolumeSource` and `validateAWSElasticBlockStoreVolumeSource` of Kubernetes: 0 to 255.
fn partition(source: &Fields) -> Result<u8, Untranslatable> {
    let value = match source.get("partition") {
        None | Some(Value::Null) => return Ok(0),
        Some(value) => value,
    };
    let number = value.as_u64().and_then(|number| u8::try_from(number).ok());
    number.ok_or_else(|| Untranslatable::new("partition", format!("is {value}, and partitions are 0 to 255")))
}

#[cfg(test)]
mod tests;
