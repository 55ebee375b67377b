//! The manifest folder: pods, volumes, claims, configMaps, secrets and what is to be known of CSI drivers, as files.
//!
//! [`read_folder`] reads the folder once, [`read_file`] makes objects of one file's text and performs no I/O. A folder
//! or file that cannot be read is a value, [`Folder`] or [`FileState::Broken`]: what it may hold is unknown, not absent.

mod objects;
mod pod;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::{DirEntryExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use refloat_record::{PodRef, SpecName, Verbatim};
use refloat_volume::{NodeFacts, Object, Problem};
use serde_json::Value;

use super::yaml::{self, Document, YamlError};

pub use objects::ManifestObjects;
pub(crate) use pod::{ContainerRef, containers};
pub use pod::{ManifestPod, uid_of};

/// How long a file must have been left alone before it is believed that something in it is gone. Whoever writes a file in
/// place writes it in parts, and what is there in between may be well-formed: cut between two documents, or between two
/// volumes of a pod. Editors and tools write the parts within milliseconds.
pub const SETTLE: Duration = Duration::from_secs(1);

/// All that a manifest folder says.
#[derive(Debug, Clone, Default)]
pub struct Folder {
    /// The folder, absolute.
    pub path: String,
    /// Which folder stands at the path (its file system and its inode); none if it could not be read.
    pub id: Option<String>,
    /// Its files by name.
    pub files: BTreeMap<String, FileState>,
    /// The files that were changed a moment ago, with how long it takes until they count as settled ([`SETTLE`]).
    pub fresh: BTreeMap<String, Duration>,
    /// How long it takes until the list of files counts as settled, if one was added or removed a moment ago.
    pub fresh_list: Option<Duration>,
    /// Why the folder could not be read, if so. Every pod is unknown then.
    pub unreadable: Option<String>,
    /// What this machine has, for limits that a pod does not set.
    pub node: NodeFacts,
}

impl Folder {
    /// Why a pod that no file is known to hold may still be in one, if so. The pod may have been moved into a file that
    /// cannot be read, or into a document that is not understood and does not say surely that it is another.
    pub fn may_hold(&self, pod: &PodRef) -> Option<String> {
        self.files.iter().find_map(|(file, state)| {
            let why = match state {
                FileState::Parsed(parsed) => parsed.errors.iter().find(|bad| bad.may_be(pod))?.error.to_string(),
                FileState::Broken { .. } => state.incomplete()?,
            };
            Some(format!("{}/{file} may hold the pod and cannot be read whole: {why}", self.path))
        })
    }

    /// Why it is not believed yet that something is in no file, and for how long, if so: a file or the list of them was
    /// changed a moment ago. Whoever moves a pod to another file may be half through.
    pub fn unsettled(&self) -> Option<(String, Duration)> {
        let settle = SETTLE.as_secs();
        let list = self.fresh_list.map(|left| {
            let why = format!("a file of {} was added or removed less than {settle} s ago, more may follow", self.path);
            (why, left)
        });
        let files = self.fresh.iter().map(|(file, &left)| {
            (format!("{}/{file} was changed less than {settle} s ago, and may be half written", self.path), left)
        });
        files.chain(list).max_by_key(|(_, left)| *left)
    }
}

/// What one file says.
#[derive(Debug, Clone)]
pub enum FileState {
    /// It was read.
    Parsed(ParsedFile),
    /// It could not be read, or is no YAML: what it holds is unknown.
    Broken {
        /// The line, from 1; none if it could not be read at all.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },
}

impl FileState {
    /// Why not everything that the file holds is known, if so.
    pub fn incomplete(&self) -> Option<String> {
        match self {
            Self::Parsed(file) => file.errors.first().map(|bad| bad.error.to_string()),
            Self::Broken { line: Some(line), reason } => Some(format!("line {line}: {reason}")),
            Self::Broken { line: None, reason } => Some(reason.clone()),
        }
    }
}

/// The objects of one file.
#[derive(Debug, Clone, Default)]
pub struct ParsedFile {
    /// The objects that this program uses.
    pub objects: Vec<ManifestObject>,
    /// Documents that should be such objects and are not.
    pub errors: Vec<BadDocument>,
    /// Documents of other kinds, which are ignored.
    pub ignored: Vec<YamlError>,
}

/// A document that should be an object and is none. What it is to be may be unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadDocument {
    /// Where it is and what is wrong.
    pub error: YamlError,
    /// `metadata.name`, if it surely has this one: a text that was cut may have a part of a name only.
    pub name: Option<String>,
    /// `metadata.uid`, if it has one.
    pub uid: Option<String>,
}

impl BadDocument {
    /// Whether it may be the manifest of this pod. Its namespace is not asked: it may be what is wrong.
    fn may_be(&self, pod: &PodRef) -> bool {
        self.name.as_ref().is_none_or(|name| *name == pod.name) || self.uid.as_deref() == Some(pod.uid.as_str())
    }
}

/// One object, with the line that it starts on.
#[derive(Clone)]
pub struct ManifestObject {
    /// The line of its document, from 1.
    pub line: usize,
    /// The object.
    pub kind: ObjectKind,
}

/// An object of a kind that this program uses.
#[derive(Clone)]
pub enum ObjectKind {
    /// A pod.
    Pod(Box<ManifestPod>),
    /// A volume.
    PersistentVolume(Arc<Object<PersistentVolume>>),
    /// A claim.
    PersistentVolumeClaim(Arc<Object<PersistentVolumeClaim>>),
    /// A configMap.
    ConfigMap(Arc<ConfigMap>),
    /// A secret, `stringData` merged over `data`.
    Secret(Arc<Secret>),
    /// How a CSI driver is to be used.
    CSIDriver(Arc<CSIDriver>),
    /// Where a service answers.
    Endpoints(Arc<Endpoints>),
    /// What attaching a volume gave.
    VolumeAttachment(Arc<VolumeAttachment>),
}

impl ManifestObject {
    /// Kind, namespace (empty for objects of the whole cluster) and name.
    pub fn identity(&self) -> (&'static str, &str, &str) {
        let meta = match &self.kind {
            ObjectKind::Pod(pod) => return ("Pod", &pod.pod.namespace, &pod.pod.name),
            ObjectKind::PersistentVolume(o) => &o.typed.metadata,
            ObjectKind::PersistentVolumeClaim(o) => &o.typed.metadata,
            ObjectKind::ConfigMap(o) => &o.metadata,
            ObjectKind::Secret(o) => &o.metadata,
            ObjectKind::CSIDriver(o) => &o.metadata,
            ObjectKind::Endpoints(o) => &o.metadata,
            ObjectKind::VolumeAttachment(o) => &o.metadata,
        };
        let kind = match &self.kind {
            ObjectKind::Pod(_) => "Pod",
            ObjectKind::PersistentVolume(_) => "PersistentVolume",
            ObjectKind::PersistentVolumeClaim(_) => "PersistentVolumeClaim",
            ObjectKind::ConfigMap(_) => "ConfigMap",
            ObjectKind::Secret(_) => "Secret",
            ObjectKind::CSIDriver(_) => "CSIDriver",
            ObjectKind::Endpoints(_) => "Endpoints",
            ObjectKind::VolumeAttachment(_) => "VolumeAttachment",
        };
        (kind, meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""))
    }
}

/// Names only: it may be a secret.
impl fmt::Debug for ManifestObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, namespace, name) = self.identity();
        write!(f, "{kind} {namespace}/{name} (line {})", self.line)
    }
}

/// Reads the folder. Read are regular files, also through symlinks (that is how a mounted configMap shows them), whose
/// names end in `.yaml`, `.yml` or `.json`; hidden files, and thereby editors' temporary ones, are not.
///
/// What has such a name and is no regular file, or cannot be read, is [`FileState::Broken`]: a manifest may be meant by it.
pub fn read_folder(path: &Path) -> Folder {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let mut folder =
        Folder { path: absolute.to_string_lossy().into_owned(), node: NodeFacts::read(None), ..Folder::default() };
    if let Err(e) = read_settled(&absolute, &mut folder) {
        folder.unreadable = Some(format!("cannot read the manifest folder {}: {e}", folder.path));
    }
    folder
}

/// How often a folder is read again that changes while it is read.
const ATTEMPTS: usize = 5;

/// Reads the files of a list that was the same before and after.
///
/// # Source
/// readdir(3p): whether an entry that is added or removed meanwhile is returned is unspecified. A file that is renamed
/// meanwhile may be returned under no name.
fn read_settled(absolute: &Path, folder: &mut Folder) -> std::io::Result<()> {
    let opened = std::fs::File::open(absolute)?;
    let mut list = list(absolute)?;
    for _ in 0..ATTEMPTS {
        folder.files.clear();
        folder.fresh.clear();
        for (name, _) in &list {
            let (state, left) = read_state(absolute, name);
            let name = name.to_str().map_or_else(|| name.as_encoded_bytes().escape_ascii().to_string(), str::to_owned);
            folder.fresh.extend(left.map(|left| (name.clone(), left)));
            folder.files.insert(name, state);
        }
        let again = self::list(absolute)?;
        if again == list {
            folder.fresh_list = settles_in(&rustix::fs::fstat(&opened)?);
            folder.id = Some(identity(&opened)?);
            return Ok(());
        }
        list = again;
    }
    Err(std::io::Error::other(format!("its files changed each of the {ATTEMPTS} times that it was read")))
}

/// The names that manifests have, with the inode that each had.
fn list(folder: &Path) -> std::io::Result<BTreeSet<(OsString, u64)>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let bytes = name.as_encoded_bytes();
        if [".yaml", ".yml", ".json"].iter().any(|end| bytes.ends_with(end.as_bytes())) && !bytes.starts_with(b".") {
            names.insert((name, entry.ino()));
        }
    }
    Ok(names)
}

/// Which folder this is: its file system and its inode. Another one at the same path (an empty file system over it, or
/// none where one was) has another identity, but for what is made anew at the very same place.
///
/// # Source
/// statfs(2): `f_fsid` is the file system's own where it has a UUID, and otherwise of its device. It is compared only
/// where a wrong "another" does no harm.
fn identity(folder: &std::fs::File) -> std::io::Result<String> {
    let file_system = rustix::fs::fstatvfs(folder)?.f_fsid;
    Ok(format!("{file_system:x}:{}", rustix::fs::fstat(folder)?.st_ino))
}

/// What the file holds, and how long it takes until it is settled, if it is not.
fn read_state(folder: &Path, name: &OsStr) -> (FileState, Option<Duration>) {
    let broken = |reason: String| FileState::Broken { line: None, reason };
    let Some(text_name) = name.to_str() else { return (broken("its name is no UTF-8 text".into()), None) };
    match read_whole(&folder.join(name)) {
        // Whoever writes a file in place truncates it first. The pods in it must not be gone between the two.
        Ok((text, left)) if text.trim_ascii().is_empty() => {
            (broken("it is empty, as a file is that is being written".into()), left)
        }
        Ok((text, left)) => match read_file(text_name, &text) {
            Ok(file) => (FileState::Parsed(file), left),
            Err(YamlError { line, reason }) => (FileState::Broken { line: Some(line), reason }, left),
        },
        Err(e) => (broken(format!("cannot read it: {e}")), None),
    }
}

/// The file's content, and when it is settled if it is not yet.
fn read_whole(path: &Path) -> std::io::Result<(Vec<u8>, Option<Duration>)> {
    // Not blocking: opening a FIFO would wait for a writer.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a small constant");
    let file = std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(std::io::Error::other(if meta.is_dir() { "it is a folder" } else { "it is no regular file" }));
    }
    let mut text = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0).min(yaml::MAX_BYTES) + 1);
    (&file).take(yaml::MAX_BYTES as u64 + 1).read_to_end(&mut text)?;
    // Asked after reading: what was written meanwhile is seen in it.
    Ok((text, settles_in(&rustix::fs::fstat(&file)?)))
}

/// How long it takes until what has this status has been left alone for [`SETTLE`]; none if it has been.
fn settles_in(stat: &rustix::fs::Stat) -> Option<Duration> {
    // The change time: no tool can set it back.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let age = (now.tv_sec - stat.st_ctime) * 1000 + (now.tv_nsec - stat.st_ctime_nsec.cast_signed()) / 1_000_000;
    // A time that is yet to come is of a clock that was set back, and says nothing.
    let age = u64::try_from(age).map(Duration::from_millis).ok()?;
    SETTLE.checked_sub(age).filter(|left| !left.is_zero())
}

/// The objects in the text of the file with this name.
pub fn read_file(name: &str, text: &[u8]) -> Result<ParsedFile, YamlError> {
    let mut file = ParsedFile::default();
    for Document { line, value } in yaml::documents(text)? {
        read_object(name, line, value, 0, &mut file);
    }
    if !text.ends_with(b"\n") {
        // The text may be cut, and the last name in it with it.
        file.errors.iter_mut().for_each(|bad| bad.name = None);
    }
    Ok(file)
}

fn read_object(file_name: &str, line: usize, value: Value, depth: usize, file: &mut ParsedFile) {
    let said = |key: &str| Some(value.get("metadata")?.get(key)?.as_str()?.to_owned());
    let (name, uid) = (said("name"), said("uid"));
    let mut wrong = |reason: String| {
        file.errors.push(BadDocument { error: YamlError { line, reason }, name: name.clone(), uid: uid.clone() });
    };
    let Value::Object(mut map) = value else { return wrong("it is no object: kind and apiVersion are missing".into()) };
    let text = |map: &serde_json::Map<String, Value>, key| map.get(key).and_then(Value::as_str).map(str::to_owned);
    let Some(kind) = text(&map, "kind") else { return wrong("kind is missing".into()) };
    let Some(api_version) = text(&map, "apiVersion") else { return wrong("apiVersion is missing".into()) };
    if api_version == "v1"
        && let Some(item_kind) = kind.strip_suffix("List")
    {
        let Some(Value::Array(items)) = map.shift_remove("items") else {
            return wrong(format!("{kind}: items is missing or no list"));
        };
        // Lists are not nested deeper by anything that writes them.
        if depth > 3 {
            return wrong(format!("{kind}: lists are nested too deep"));
        }
        for mut item in items {
            // The items of a `PodList` need not repeat what they are.
            if let (Value::Object(item), false) = (&mut item, item_kind.is_empty()) {
                item.entry("kind").or_insert_with(|| item_kind.into());
                item.entry("apiVersion").or_insert_with(|| api_version.clone().into());
            }
            read_object(file_name, line, item, depth + 1, file);
        }
        return;
    }
    let known: &[&str] = match api_version.as_str() {
        "v1" => &["Pod", "PersistentVolume", "PersistentVolumeClaim", "ConfigMap", "Secret", "Endpoints"],
        "storage.k8s.io/v1" => &["CSIDriver", "VolumeAttachment"],
        _ => &[],
    };
    if !known.contains(&kind.as_str()) {
        if !map.contains_key("metadata") {
            // Every object has it. What it would be if it were not cut here is not known either.
            return wrong(format!("{kind}: metadata is missing"));
        }
        let reason = format!("{kind} of {api_version} is not used by this program");
        file.ignored.push(YamlError { line, reason });
        return;
    }
    match typed(file_name, &kind, map) {
        Ok(kind) => file.objects.push(ManifestObject { line, kind }),
        Err(reason) => wrong(reason),
    }
}

/// The object as its type, with valid names.
fn typed(file: &str, kind: &str, mut map: serde_json::Map<String, Value>) -> Result<ObjectKind, String> {
    let Some(Value::Object(meta)) = map.get_mut("metadata") else { return Err(format!("{kind}: metadata is missing")) };
    let name = match meta.get("name") {
        Some(Value::String(name)) => name.clone(),
        Some(_) => return Err(format!("{kind}: metadata.name is no text")),
        None => return Err(format!("{kind}: metadata.name is missing")),
    };
    let shown = format!("{kind} {name:?}");
    SpecName::new(&name).map_err(|e| format!("{kind}: metadata.name: {e}"))?;
    if !matches!(kind, "PersistentVolume" | "CSIDriver" | "VolumeAttachment") {
        let namespace = match meta.get("namespace") {
            None | Some(Value::Null) => {
                meta.insert("namespace".into(), "default".into());
                "default"
            }
            Some(Value::String(namespace)) => namespace,
            Some(_) => return Err(format!("{shown}: metadata.namespace is no text")),
        };
        SpecName::new(namespace).map_err(|e| format!("{shown}: metadata.namespace: {e}"))?;
    }
    let value = Value::Object(map);
    let wrong = |e: serde_json::Error| format!("{shown}: {e}");
    let object = |value: &Value| Verbatim::from_value(value);
    Ok(match kind {
        "Pod" => ObjectKind::Pod(Box::new(ManifestPod::new(file, &value).map_err(|e| format!("{shown}: {e}"))?)),
        "PersistentVolume" => ObjectKind::PersistentVolume(Object::new(object(&value)).map_err(wrong)?.into()),
        "PersistentVolumeClaim" => {
            ObjectKind::PersistentVolumeClaim(Object::new(object(&value)).map_err(wrong)?.into())
        }
        "ConfigMap" => ObjectKind::ConfigMap(Arc::new(serde_json::from_value(value).map_err(wrong)?)),
        "Endpoints" => ObjectKind::Endpoints(Arc::new(serde_json::from_value(value).map_err(wrong)?)),
        "CSIDriver" => ObjectKind::CSIDriver(Arc::new(serde_json::from_value(value).map_err(wrong)?)),
        "VolumeAttachment" => ObjectKind::VolumeAttachment(Arc::new(serde_json::from_value(value).map_err(wrong)?)),
        // What serde would say of a wrong value is the value.
        _ => ObjectKind::Secret(Arc::new(
            secret(value)
                .ok_or_else(|| format!("{shown}: a field has a type that it must not have, or data is not base64"))?,
        )),
    })
}

/// The secret with `stringData` merged over `data`, as the API server stores it.
fn secret(value: Value) -> Option<Secret> {
    let mut secret: Secret = serde_json::from_value(value).ok()?;
    for (key, text) in secret.string_data.take().unwrap_or_default() {
        secret.data.get_or_insert_default().insert(key, k8s_openapi::ByteString(text.into_bytes()));
    }
    Some(secret)
}

/// What is wrong in the folder, for people.
pub fn problems(folder: &Folder) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(why) = &folder.unreadable {
        let hint = "make the folder readable; until then every pod keeps what it has";
        problems.push(Problem::new("ManifestFolderUnreadable", why.clone(), hint));
    }
    let place = |name: &str, e: &YamlError| format!("{}/{name}, line {}: {}", folder.path, e.line, e.reason);
    for (name, state) in &folder.files {
        match state {
            FileState::Broken { line, reason } => {
                let hint = "correct the file or remove it; until then no pod counts as gone, since it may be in it";
                let line = line.map(|l| format!(", line {l}")).unwrap_or_default();
                let message = format!("{}/{name}{line}: {reason}", folder.path);
                problems.push(Problem::new("ManifestBroken", message, hint));
            }
            FileState::Parsed(file) => {
                let hint = "correct the file; until then the pods that it may hold keep what they have";
                let broken = |bad: &BadDocument| Problem::new("ManifestBroken", place(name, &bad.error), hint);
                problems.extend(file.errors.iter().map(broken));
                let hint = "remove it, or give it to the program that uses it";
                problems.extend(file.ignored.iter().map(|e| Problem::new("ManifestKindUnused", place(name, e), hint)));
            }
        }
    }
    problems
}
