//! What other programs' files say of a volume without a record, merged field by field into what paths and mounts told.
//!
//! A path or mount is believed before a file, which may be an old one: its word stands, and the contradiction is told. What
//! only a file knows is taken. Of two volumes that one file may be about, it is neither's.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use refloat_record::{PodUid, VolumeMode};
use refloat_volume::{ForeignForm, ForeignRecord, Problem, Rebuilt, RebuiltSpec, layout};
use serde_json::{Map, Value};

use super::notes::Notes;
use super::volumes::AllFound;
use crate::Evidence;

/// The files by what they are about.
#[derive(Default)]
pub(super) struct ForeignIndex<'e> {
    by_folder: HashMap<&'e Path, Vec<&'e ForeignRecord>>,
    /// By the plugin's folder name and the volume's spec name.
    by_name: HashMap<(String, &'e str), Vec<&'e ForeignRecord>>,
    of_pods: HashMap<(&'e str, String, &'e str), Vec<&'e ForeignRecord>>,
    /// The pods that have a volume of that name, where more than one does.
    shared_names: BTreeSet<(String, String)>,
}

/// The plugin whose files are in this folder, by its folder name in a pod.
fn plugin_of(folder: &Path) -> Option<String> {
    let text = folder.to_str()?;
    if let Some(path) = layout::global_path(text) {
        return Some(path.plugin.escaped());
    }
    if let Some(driver) = text.strip_prefix(layout::FLEX_VOLUME).and_then(|rest| rest.strip_prefix('/')) {
        return Some(driver.replace('/', "~"));
    }
    let name = text.strip_prefix("plugins/")?;
    name.starts_with("kubernetes.io/").then(|| name.replace('/', "~"))
}

impl<'e> ForeignIndex<'e> {
    pub(super) fn new(evidence: &'e Evidence) -> Self {
        let mut index = Self::default();
        let Some(tree) = &evidence.tree else { return index };
        for record in &tree.records {
            if record.form.in_global_folder().is_some() {
                index.by_folder.entry(record.folder()).or_default().push(record);
            }
            if let Some(plugin) = plugin_of(record.folder())
                && let Some(name) = record.volume()
            {
                index.by_name.entry((plugin, name)).or_default().push(record);
            }
        }
        for pod in tree.pods.iter().filter(|pod| !pod.records.is_empty()) {
            let Some(uid) = &pod.uid else { continue };
            for record in &pod.records {
                let plugin = record.folder().file_name().and_then(|name| name.to_str());
                if let (Some(plugin), Some(name)) = (plugin, record.volume()) {
                    index.of_pods.entry((uid.as_str(), plugin.to_owned(), name)).or_default().push(record);
                }
            }
        }
        index
    }

    /// Whether there is any file.
    pub(super) fn is_empty(&self) -> bool {
        self.by_folder.is_empty() && self.by_name.is_empty() && self.of_pods.is_empty()
    }

    /// Takes note of the names that volumes of several pods have.
    pub(super) fn note_shared(&mut self, found: &AllFound<'_>) {
        if self.by_name.is_empty() {
            return;
        }
        let mut first: HashMap<(&str, &str), &PodUid> = HashMap::new();
        for volume in &found.volumes {
            let place = (volume.plugin_folder(), volume.folder_name());
            let before = *first.entry(place).or_insert(volume.pod_uid());
            if before != volume.pod_uid() {
                self.shared_names.insert((place.0.to_owned(), place.1.to_owned()));
            }
        }
    }

    /// The files of a device's global folder.
    pub(super) fn of_folder(&self, folder: &Path) -> &[&'e ForeignRecord] {
        self.by_folder.get(folder).map_or(&[], Vec::as_slice)
    }

    /// The files about a volume. `folder`, relative to the root, is the one that it comes from. What is not used, and why,
    /// is told in `notes`.
    pub(super) fn of_volume(
        &self,
        pod: &PodUid,
        plugin: &str,
        name: &str,
        mode: VolumeMode,
        folder: Option<&Path>,
        notes: &mut Notes,
    ) -> Vec<&'e ForeignRecord> {
        if self.is_empty() {
            return vec![];
        }
        let mut found: Vec<&ForeignRecord> = vec![];
        found.extend(self.of_pods.get(&(pod.as_str(), plugin.to_owned(), name)).into_iter().flatten());
        found.extend(folder.map_or(&[][..], |folder| self.of_folder(folder)));
        let shared = self.shared_names.contains(&(plugin.to_owned(), name.to_owned()));
        for record in self.by_name.get(&(plugin.to_owned(), name)).into_iter().flatten() {
            let named = || format!("{}: not used", record.path.display());
            let by_name = ForeignForm::of_name(record.file_name()).is_some();
            if found.iter().any(|known| known.path == record.path) {
                continue;
            }
            if !by_name && folder.is_some_and(|folder| folder != record.folder()) {
                notes.add(|| format!("{}, since it is of another device", named()));
            } else if shared && record.form != ForeignForm::PersistentVolume {
                // A PersistentVolume's name is one in the cluster.
                notes.add(|| format!("{}, since volumes of several pods are called so", named()));
            } else if mode == VolumeMode::Block && record.form == ForeignForm::VolumeSource {
                notes.add(|| format!("{}, since a block volume is a PersistentVolume's", named()));
            } else {
                found.push(record);
            }
        }
        // One name, as a pod's own volume and as a PersistentVolume, or of two devices.
        let clash = |form: ForeignForm| {
            let of_form = found.iter().filter(|r| r.form == form && r.says.is_ok()).count();
            of_form > 1
                || form == ForeignForm::VolumeSource
                    && of_form == 1
                    && found.iter().any(|r| r.form == ForeignForm::PersistentVolume && r.says.is_ok())
        };
        if clash(ForeignForm::VolumeSource) || clash(ForeignForm::PersistentVolume) || clash(ForeignForm::Iscsi) {
            for record in &found {
                notes.add(|| {
                    format!(
                        "{}: not used, since another file is about a volume of that name too",
                        record.path.display()
                    )
                });
            }
            return vec![];
        }
        found
    }
}

/// What was told of a volume, with the fields that nobody could tell.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    pub(super) spec: RebuiltSpec,
    pub(super) lost: Vec<Cow<'static, str>>,
    /// What contradicts what, one sentence each.
    pub(super) contradictions: Vec<String>,
}

impl From<Rebuilt> for Told {
    fn from(rebuilt: Rebuilt) -> Self {
        let lost = rebuilt.lost.into_iter().map(Cow::Borrowed).collect();
        Self { spec: rebuilt.spec, lost, contradictions: rebuilt.doubts.contradictions }
    }
}

impl Told {
    /// Takes what a file says; none of that if the file is of another volume.
    pub(super) fn merge(mut self, record: &ForeignRecord, name: &str, mode: VolumeMode) -> Self {
        let Ok(says) = &record.says else { return self };
        let file = record.file_name();
        if let Some(other) = says.name.as_deref().filter(|other| *other != name) {
            self.contradictions.push(format!("{file} is about a volume {other:?}, so it is not used"));
            return self;
        }
        if let Some(source) = self.source().filter(|source| *source != says.source) {
            self.contradictions.push(format!("{file} is about a volume of type {}, not {source}", says.source));
            return self;
        }
        self.take_kind(record, name, mode);
        let prefix = match &self.spec {
            RebuiltSpec::Volume(_) => format!("{}.", says.source),
            RebuiltSpec::PersistentVolume(_) => format!("spec.{}.", says.source),
        };
        let Some(fields) = self.fields(&says.source) else { return self };
        let mut fields = std::mem::take(fields);
        let absent = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::Bool(true) | Value::Number(_) => false,
        };
        for (field, value) in &says.fields {
            let path = format!("{prefix}{field}");
            let lost = self.lost.iter().position(|lost| *lost == path);
            match (fields.get(field), lost) {
                (Some(known), _) if is_same(field, known, value) => {
                    // The spec's own spelling.
                    if record.form.is_whole() {
                        fields.insert(field.clone(), value.clone());
                    }
                }
                (Some(known), _) => self.contradictions.push(format!(
                    "{file} says {}, but path and mount say {}; these are believed",
                    word(field, value),
                    word(field, known)
                )),
                (None, Some(lost)) => {
                    self.lost.remove(lost);
                    if !absent(value) {
                        fields.insert(field.clone(), value.clone());
                    }
                }
                (None, None) if absent(value) => {}
                (None, None) => self.contradictions.push(format!(
                    "{file} says {}, but path and mount show that there is none; these are believed",
                    word(field, value)
                )),
            }
        }
        if record.form.is_whole() {
            self.lost.retain(|lost| !lost.starts_with(&prefix) || lost[prefix.len()..].contains('.'));
        }
        if let Some(place) = self.fields(&says.source) {
            *place = fields;
        }
        self
    }

    /// Whether it is a pod's own volume or a `PersistentVolume`, if that was in doubt and this kind of file tells it.
    fn take_kind(&mut self, record: &ForeignRecord, name: &str, mode: VolumeMode) {
        let Ok(says) = &record.says else { return };
        let doubt = self.lost.iter().position(|lost| lost == "persistentVolume");
        match (record.form, &self.spec) {
            (ForeignForm::VolumeSource, RebuiltSpec::Volume(_)) => {
                doubt.map(|doubt| self.lost.remove(doubt));
                self.lost.retain(|lost| lost != "name");
            }
            (ForeignForm::PersistentVolume, RebuiltSpec::Volume(volume)) if doubt.is_some() => {
                let mut spec: Map<String, Value> = volume
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter(|(key, _)| *key != "name")
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                spec.insert("volumeMode".into(), serde_json::to_value(mode).unwrap_or_default());
                spec.extend(says.of_persistent_volume.clone());
                self.lost.retain(|lost| lost != "persistentVolume" && lost != "name");
                self.lost.iter_mut().for_each(|lost| lost.to_mut().insert_str(0, "spec."));
                self.spec = RebuiltSpec::PersistentVolume(persistent_volume(name, &spec));
            }
            (ForeignForm::PersistentVolume, RebuiltSpec::PersistentVolume(_)) => {
                if let RebuiltSpec::PersistentVolume(volume) = &mut self.spec
                    && let Some(spec) = volume["spec"].as_object_mut()
                {
                    for (field, value) in &says.of_persistent_volume {
                        spec.entry(field).or_insert_with(|| value.clone());
                    }
                }
                let of_source = format!("spec.{}.", says.source);
                self.lost.retain(|lost| lost.starts_with(&of_source));
            }
            (ForeignForm::VolumeSource, RebuiltSpec::PersistentVolume(_))
            | (ForeignForm::PersistentVolume, RebuiltSpec::Volume(_)) => self.contradictions.push(format!(
                "{} is there, but the volume's name is one that only the other kind of volume has",
                record.file_name()
            )),
            _ => {}
        }
    }

    /// The field that has the volume's source.
    fn source(&self) -> Option<&str> {
        let (fields, others): (_, &[&str]) = match &self.spec {
            RebuiltSpec::Volume(volume) => (volume.as_object()?, &["name"]),
            RebuiltSpec::PersistentVolume(volume) => (volume["spec"].as_object()?, &["volumeMode"]),
        };
        let source = fields.iter().find(|(key, value)| !others.contains(&key.as_str()) && value.is_object())?;
        Some(source.0)
    }

    fn fields(&mut self, source: &str) -> Option<&mut Map<String, Value>> {
        match &mut self.spec {
            RebuiltSpec::Volume(volume) => volume.get_mut(source)?.as_object_mut(),
            RebuiltSpec::PersistentVolume(volume) => volume["spec"].get_mut(source)?.as_object_mut(),
        }
    }
}

fn persistent_volume(name: &str, spec: &Map<String, Value>) -> Value {
    serde_json::json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name }, "spec": spec })
}

/// What a file tells alone, of a volume that nothing else tells anything of.
pub(super) fn alone(record: &ForeignRecord, name: &str, mode: VolumeMode) -> Option<Told> {
    let says = record.says.as_ref().ok().filter(|says| says.name.as_deref().is_none_or(|own| own == name))?;
    let mut spec = match record.form {
        ForeignForm::PersistentVolume => says.of_persistent_volume.clone(),
        ForeignForm::VolumeSource => [("name".to_owned(), name.into())].into_iter().collect(),
        ForeignForm::Iscsi | ForeignForm::Rbd => return None,
    };
    spec.insert(says.source.clone(), Value::Object(says.fields.clone()));
    let spec = if record.form == ForeignForm::PersistentVolume {
        spec.entry("volumeMode").or_insert_with(|| serde_json::to_value(mode).unwrap_or_default());
        RebuiltSpec::PersistentVolume(persistent_volume(name, &spec))
    } else {
        RebuiltSpec::Volume(Value::Object(spec))
    };
    Some(Told { spec, lost: vec![], contradictions: vec![] })
}

/// Whether two values of a field are one. A portal without a port has the default one.
///
/// # Source
/// `portalMounter` of `pkg/volume/iscsi`.
fn is_same(field: &str, one: &Value, other: &Value) -> bool {
    let portal = |value: &Value| {
        let text = value.as_str()?;
        Some(if text.contains(':') { text.to_owned() } else { format!("{text}:3260") })
    };
    one == other || field == "targetPortal" && portal(one).is_some() && portal(one) == portal(other)
}

/// A field in a sentence: with its value, if that is short.
fn word(field: &str, value: &Value) -> String {
    match value {
        Value::String(text) if text.len() <= 128 => format!("{field} {text:?}"),
        Value::Number(_) | Value::Bool(_) => format!("{field} {value}"),
        _ => format!("another {field}"),
    }
}

/// The problem of a file that says nothing.
pub(super) fn damaged(who: &str, file: &ForeignRecord, why: &str) -> Problem {
    Problem::new(
        "ForeignRecordDamaged",
        format!("{who}: {} says nothing: {why}", file.path.display()),
        "The file is left as it is. What paths and the mount table tell is used.",
    )
}

/// The problem of a `vol_data.json` that says nothing.
pub(super) fn vol_data_damaged(who: &str, why: &str) -> Problem {
    Problem::new(
        "VolDataDamaged",
        format!("{who}: {why}"),
        "The file is left as it is. The volume is undone with what the mount table tells.",
    )
}

/// The problem of a file that contradicts what is seen.
pub(super) fn contradicts(who: &str, why: &str) -> Problem {
    Problem::new(
        "ForeignRecordContradicts",
        format!("{who}: {why}"),
        "Find out which is right before you undo it by hand: the file may be of an older volume of that name.",
    )
}

/// What a device's file contradicts of its path: that the folder is of this target, or image.
pub(super) fn of_path(record: &ForeignRecord, told: &Map<String, Value>) -> Vec<String> {
    let Ok(says) = &record.says else { return vec![] };
    let file = record.file_name();
    let wrong = told.iter().filter_map(|(field, known)| {
        let value = says.fields.get(field).filter(|value| !value.is_null())?;
        (!is_same(field, known, value))
            .then(|| format!("{file} says {}, but the path says {}", word(field, value), word(field, known)))
    });
    wrong.collect()
}

#[cfg(test)]
mod tests;
