//! What other programs wrote about volumes in files of their own, besides `vol_data.json`: evidence, and never written.
//!
//! | file | where | what it tells |
//! | --- | --- | --- |
//! | `iscsi.json` | in the global folder of an iSCSI volume, hidden while something is mounted there; beside the pods' files of a block volume | portals, IQN, LUN, interface, initiator name, and the spec name |
//! | `rbd.json` of older kubelets | in the global folder of an RBD volume | monitors, pool, image, user, keyring |
//! | `<volume>~pv.json`, `<volume>~vs.json` | in the plugin's own folder below `plugins/`, or beside the volume's folder | the whole source |
//!
//! The FC plugin and flexVolume have no file. Only the fields named here are taken, so that nothing else that stands in a
//! file, a password before all, can reach a record, a log or an output; for the same reason no error quotes the text.
//!
//! # Source
//! `persistISCSIFile` of `pkg/volume/iscsi` (v1.36) and its older forms, in which the LUN is missing; `persistRBD` of
//! `pkg/volume/rbd`; the design proposal `volume-spec-reconstruction` of 2017 (kubernetes/community), option 2.

mod read;
mod spec;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

pub use read::{look_for, read_at};

/// What form a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ForeignForm {
    /// `iscsi.json`.
    Iscsi,
    /// `rbd.json`.
    Rbd,
    /// `<volume>~pv.json`: a `PersistentVolume`, or its `spec`.
    PersistentVolume,
    /// `<volume>~vs.json`: a pod's `volumes[x]` entry, or its source alone.
    VolumeSource,
}

/// The end of the name of a file about a `PersistentVolume`.
pub const PV_FILE: &str = "~pv.json";
/// The end of the name of a file about a pod's own volume.
pub const VS_FILE: &str = "~vs.json";

impl ForeignForm {
    /// The form of a file that is called so, and the volume that its name names; none of the forms whose files are
    /// called alike for all volumes.
    pub fn of_name(name: &str) -> Option<(Self, &str)> {
        let of = |end: &str| name.strip_suffix(end).filter(|volume| !volume.is_empty());
        let persistent = of(PV_FILE).map(|volume| (Self::PersistentVolume, volume));
        persistent.or_else(|| of(VS_FILE).map(|volume| (Self::VolumeSource, volume)))
    }

    /// The file in a plugin's global folder, where all such files are called alike.
    pub fn in_global_folder(self) -> Option<&'static str> {
        match self {
            Self::Iscsi => Some("iscsi.json"),
            Self::Rbd => Some("rbd.json"),
            Self::PersistentVolume | Self::VolumeSource => None,
        }
    }

    /// Whether such a file tells all fields of the volume's source: what it does not have is not there.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::PersistentVolume | Self::VolumeSource)
    }
}

/// One such file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignRecord {
    /// Where it is, relative to the node root.
    pub path: PathBuf,
    /// Its form.
    pub form: ForeignForm,
    /// What it says, or why that cannot be used: the end of a sentence that begins with the file.
    pub says: Result<ForeignSays, String>,
}

/// What a file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForeignSays {
    /// The volume's spec name.
    pub name: Option<String>,
    /// The name of the source's field in a spec, such as `iscsi`.
    pub source: String,
    /// The fields of the source. One that is known to be absent is null.
    pub fields: Map<String, Value>,
    /// Of a `PersistentVolume`, the other fields of its spec.
    pub of_persistent_volume: Map<String, Value>,
}

impl ForeignRecord {
    /// Reads a file's text.
    pub fn parse(path: PathBuf, form: ForeignForm, text: &[u8]) -> Self {
        Self { path, form, says: parse(form, text) }
    }

    /// The file's name.
    pub fn file_name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// The folder that it is in, relative to the node root.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// The spec name of the volume that it is about, by its text or its own name.
    pub fn volume(&self) -> Option<&str> {
        match ForeignForm::of_name(self.file_name()) {
            Some((_, volume)) => Some(volume),
            None => self.says.as_ref().ok()?.name.as_deref(),
        }
    }
}

impl fmt::Display for ForeignSays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told: Vec<&str> =
            self.fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str()).collect();
        match (&self.name, told.as_slice()) {
            (Some(name), []) => write!(f, "volume {name:?}, {}", self.source),
            (Some(name), told) => write!(f, "volume {name:?}, {} ({})", self.source, told.join(", ")),
            (None, []) => write!(f, "{}", self.source),
            (None, told) => write!(f, "{} ({})", self.source, told.join(", ")),
        }
    }
}

/// What is wrong with a text that is no object of this form, without any of the text.
fn parse(form: ForeignForm, text: &[u8]) -> Result<ForeignSays, String> {
    if text.is_empty() {
        return Err("it is empty".into());
    }
    if text.contains(&0) {
        return Err("it holds NUL bytes".into());
    }
    let value: Value = serde_json::from_slice(text)
        .map_err(|error| if error.is_eof() { "it is torn" } else { "it is no JSON" }.to_owned())?;
    if !value.is_object() {
        return Err("it is no JSON object".into());
    }
    match form {
        ForeignForm::Iscsi => serde_json::from_value::<IscsiFile>(value).map_err(|_| "it is no iSCSI volume's")?.says(),
        ForeignForm::Rbd => serde_json::from_value::<RbdFile>(value).map_err(|_| "it is no RBD volume's")?.says(),
        ForeignForm::PersistentVolume => spec::persistent_volume(value),
        ForeignForm::VolumeSource => spec::volume(value),
    }
}

/// A Go slice, which is null when there is none.
fn list<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct IscsiFile {
    vol_name: String,
    #[serde(deserialize_with = "list")]
    portals: Vec<String>,
    iqn: String,
    lun: String,
    /// The interface of the spec; newer files alone have it.
    init_iface: String,
    /// The one in use, which is the volume's own if there is an initiator name.
    iface: String,
    /// Newer files alone have it: there it is empty if the spec has none.
    initiator_name: Option<String>,
}

/// Strings that are not empty.
fn some(text: String) -> Option<Value> {
    (!text.is_empty()).then(|| text.into())
}

impl IscsiFile {
    fn says(self) -> Result<ForeignSays, String> {
        if self.iqn.is_empty() && self.portals.is_empty() {
            return Err("it names no target".into());
        }
        let mut fields = Map::new();
        let mut portals = self.portals.into_iter().filter(|portal| !portal.is_empty());
        if let Some(first) = portals.next() {
            // The spec's list may repeat the first.
            let more: Vec<Value> = portals.filter(|portal| *portal != first).map(Value::from).collect();
            fields.insert("targetPortal".into(), first.into());
            fields.insert("portals".into(), if more.is_empty() { Value::Null } else { more.into() });
        }
        fields.extend(some(self.iqn).map(|iqn| ("iqn".to_owned(), iqn)));
        if !self.lun.is_empty() {
            let lun: i32 = self.lun.parse().map_err(|_| "its LUN is no number".to_owned())?;
            fields.insert("lun".into(), lun.into());
        }
        let own = self.initiator_name.as_deref().is_some_and(|name| !name.is_empty());
        let interface = some(self.init_iface).or_else(|| some(self.iface).filter(|_| !own));
        fields.extend(interface.map(|interface| ("iscsiInterface".to_owned(), interface)));
        fields.extend(self.initiator_name.map(|name| ("initiatorName".to_owned(), some(name).unwrap_or(Value::Null))));
        let name = Some(self.vol_name).filter(|name| !name.is_empty());
        Ok(ForeignSays { name, source: "iscsi".into(), fields, ..ForeignSays::default() })
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RbdFile {
    pool: String,
    image: String,
    #[serde(deserialize_with = "list")]
    mon: Vec<String>,
    #[serde(alias = "ID")]
    id: String,
    keyring: String,
    read_only: bool,
}

impl RbdFile {
    fn says(self) -> Result<ForeignSays, String> {
        if self.image.is_empty() {
            return Err("it names no image".into());
        }
        let mut fields = Map::new();
        fields.insert("image".into(), self.image.into());
        fields.extend(some(self.pool).map(|pool| ("pool".to_owned(), pool)));
        if !self.mon.is_empty() {
            fields.insert("monitors".into(), self.mon.into());
        }
        fields.extend(some(self.id).map(|user| ("user".to_owned(), user)));
        fields.extend(some(self.keyring).map(|keyring| ("keyring".to_owned(), keyring)));
        fields.insert("readOnly".into(), if self.read_only { true.into() } else { Value::Null });
        Ok(ForeignSays { source: "rbd".into(), fields, ..ForeignSays::default() })
    }
}

#[cfg(test)]
mod tests;
