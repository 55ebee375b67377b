//! Puts a spec together from what was told.

use std::path::Path;

use refloat_mount::{Mount, MountTable};
use refloat_record::VolumeMode;
use serde_json::{Map, Value};

use super::global_of;
use super::kinds::{Field, Kind};
use super::names::is_of_persistent_volume;
use crate::plugins::{LOST_OF_PERSISTENT_VOLUME, rebuilt_persistent_volume};
use crate::{FoundVolume, LayoutMemo, Rebuilt, RebuiltSpec};

/// What a plugin looks at to tell its fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen<'a> {
    /// The volume.
    pub(super) found: FoundVolume<'a>,
    /// Its topmost mount.
    pub(super) mount: Option<Mount<'a>>,
    /// What the plugin put into the global path that the mount was bound from.
    pub(super) global: Option<&'a str>,
}

impl<'a> Seen<'a> {
    /// The source of a mount that shows its file system whole.
    pub(super) fn whole_source(&self) -> Option<std::borrow::Cow<'a, str>> {
        self.mount.filter(|mount| mount.root().as_os_str() == "/").map(Mount::source)
    }

    /// All mounts that show the same as this one.
    pub(super) fn same_root(&self) -> impl Iterator<Item = Mount<'a>> {
        let table = self.found.table;
        self.mount.into_iter().flat_map(move |mount| table.same_root(mount.device(), mount.root()))
    }
}

/// The fields of the source that are known. Each of them is one that the plugin's list of lost fields has.
pub(super) type Told = Map<String, Value>;

/// The spec of a volume without a record.
pub(super) fn rebuild(kind: &'static Kind, found: FoundVolume<'_>) -> Rebuilt {
    let global = if kind.has_devices { global_of(kind.name, found) } else { None };
    let global = global.as_ref().map(|(_, rest)| rest.as_str());
    let seen = Seen { found, mount: found.table.at(found.path), global };
    put_together(kind, found.folder, (kind.tell)(&seen), &seen)
}

/// What a global path alone tells, without what it tells to be absent.
pub(super) fn by_global_path(kind: &'static Kind, rest: &str, mode: VolumeMode) -> Told {
    let (table, memo) = (MountTable::default(), LayoutMemo::default());
    let found = FoundVolume { folder: "", mode, path: Path::new(""), table: &table, memo: &memo, foreign: None };
    let mut told = (kind.tell)(&Seen { found, mount: None, global: Some(rest) });
    told.retain(|_, value| !value.is_null());
    told
}

/// Names what was told and what was not.
pub(super) fn put_together(kind: &Kind, folder: &str, mut told: Told, seen: &Seen<'_>) -> Rebuilt {
    let name = (kind.spec_name)(folder);
    let mode = seen.found.mode;
    let persistent =
        name.filter(|name| mode == VolumeMode::Block || !kind.inline_only && is_of_persistent_volume(name));
    let writable = seen.mount.is_some_and(|mount| !mount.read_only());
    let lost = |field: &Field| !(told.contains_key(field.name()) || field.name() == "readOnly" && writable);
    let fields: Vec<&Field> = kind.fields.iter().filter(|field| lost(field)).collect();
    told.retain(|_, value| !value.is_null());
    if let Some(name) = persistent {
        let of_source = fields.iter().map(|field| field.persistent);
        let lost = LOST_OF_PERSISTENT_VOLUME.into_iter().chain(of_source).collect();
        let spec = rebuilt_persistent_volume(name, kind.source, &Value::Object(told), mode);
        return rebuilt(RebuiltSpec::PersistentVolume(spec), lost);
    }
    let doubt = (!kind.inline_only).then_some("persistentVolume");
    let lost = doubt.into_iter().chain(name.is_none().then_some("name"));
    let lost = lost.chain(fields.iter().map(|field| field.inline)).collect();
    let mut volume = Map::new();
    if let Some(name) = name {
        volume.insert("name".into(), name.into());
    }
    volume.insert(kind.source.into(), Value::Object(told));
    rebuilt(RebuiltSpec::Volume(Value::Object(volume)), lost)
}

fn rebuilt(spec: RebuiltSpec, lost: Vec<&'static str>) -> Rebuilt {
    Rebuilt { spec, lost, volume_name: None, provider_info: None, doubts: crate::Doubts::default() }
}
