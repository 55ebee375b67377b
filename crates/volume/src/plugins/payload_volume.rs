//! What configMap, secret, downwardAPI and projected volumes share: their content is computed from objects, and written
//! by the atomic writer into a folder (configMap) or a tmpfs (the others).
//!
//! The kubelet makes each of them out of an emptyDir named `wrapped_<volume>`, whose `ready` marker it leaves; so does
//! this. SetUp may be called any number of times: it writes what is not as it should be, and nothing else. It never
//! empties a volume for want of content: without content there is no SetUp.

mod kind;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::os::fd::AsFd;

use k8s_openapi::api::core::v1::{KeyToPath, Pod, VolumeMount};
use refloat_record::{PodRef, RelPath, SpecName};

use crate::tear_down::{is_own, other_mount};
use crate::{
    Capabilities, ContentError, FoundVolume, Lookup, Payload, PayloadFile, Presence, Problem, Rebuilt, RebuiltSpec,
    Reconstruction, SetUp, SpecError, TearDown, VolumeError, VolumeSpec, payload, write_payload,
};

use super::Marker;
pub(super) use kind::PayloadKind;

/// The mode of files for which a pod names none.
///
/// # Source
/// `ConfigMapVolumeSourceDefaultMode` and its like in `pkg/apis/core/v1/defaults.go` of Kubernetes v1.36.
const DEFAULT_MODE: u32 = 0o644;

/// The folder's mode: the kubelet's for an emptyDir.
const FOLDER_MODE: u32 = 0o777;

/// The mode of a tmpfs's root: the kernel's default, which the kubelet leaves.
const TMPFS_MODE: u32 = 0o1777;

const CAPABILITIES: Capabilities = Capabilities {
    attachable: false,
    device_mountable: false,
    block: false,
    content: true,
    verify: true,
    binds: false,
    reconstruction: Reconstruction::FromLayout,
    presence: Presence::Marker,
};

// ── the spec ───────────────────────────────────────────────────────────────────────────────────────────────────────

/// Makes errors about one volume's spec.
#[derive(Clone, Copy)]
pub(super) struct Checker<'a> {
    pub(super) spec: &'a VolumeSpec,
}

impl Checker<'_> {
    pub(super) fn error(self, field: impl Display, why: impl Into<String>) -> SpecError {
        SpecError::Field {
            volume: self.spec.source.volume().typed.name.clone(),
            field: field.to_string(),
            why: why.into(),
        }
    }

    /// Whether the volume's name leaves room for the marker's, which is longer.
    fn name_fits(self) -> Result<(), SpecError> {
        SpecName::new(wrapped(self.spec.spec_name.as_str()))
            .map(drop)
            .map_err(|source| SpecError::Name { volume: self.spec.source.volume().typed.name.clone(), source })
    }

    pub(super) fn mode(self, field: impl Display, mode: Option<i32>) -> Result<(), SpecError> {
        match mode {
            Some(mode) if !(0..=0o777).contains(&mode) => {
                Err(self.error(field, format!("is {mode}, which is no mode from 0000 to 0777 (octal)")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn path(self, field: impl Display, path: &str) -> Result<String, SpecError> {
        payload::clean_path(path).map_err(|error| self.error(field, format!("cannot be used: {error}")))
    }

    pub(super) fn items(self, field: &str, items: Option<&[KeyToPath]>) -> Result<(), SpecError> {
        let mut paths = BTreeSet::new();
        for (n, item) in items.unwrap_or_default().iter().enumerate() {
            if item.key.is_empty() {
                return Err(self.error(format_args!("{field}.items[{n}].key"), "is missing"));
            }
            self.mode(format_args!("{field}.items[{n}].mode"), item.mode)?;
            let path = self.path(format_args!("{field}.items[{n}].path"), &item.path)?;
            if !paths.insert(path) {
                return Err(self.error(format_args!("{field}.items[{n}].path"), "is the path of another item too"));
            }
        }
        Ok(())
    }
}

// ── the content ────────────────────────────────────────────────────────────────────────────────────────────────────

/// Whose content is computed, for messages.
#[derive(Clone, Copy)]
pub(super) struct For<'a> {
    pub(super) pod: &'a PodRef,
    pub(super) spec: &'a VolumeSpec,
}

impl For<'_> {
    pub(super) fn error(self, code: &'static str, what: impl Display, hint: impl Into<String>) -> ContentError {
        let PodRef { namespace, name, .. } = self.pod;
        let volume = &self.spec.source.volume().typed.name;
        ContentError(Problem::new(code, format!("volume {volume:?} of pod {namespace}/{name}: {what}"), hint))
    }

    /// A spec that was not checked, or was changed since.
    fn bad_spec(self, error: &SpecError) -> ContentError {
        self.error("BadSpec", error, "Correct the pod's volume.")
    }
}

/// The mode of a file: its own, else the volume's, else 0644.
pub(super) fn mode(own: Option<i32>, default: Option<i32>) -> u32 {
    own.or(default).and_then(|mode| u32::try_from(mode).ok()).map_or(DEFAULT_MODE, |mode| mode & 0o777)
}

/// A `ConfigMap` or `Secret` as a source of files.
pub(super) struct Keyed<'a> {
    /// `ConfigMap` or `Secret`.
    pub(super) kind: &'static str,
    pub(super) missing_code: &'static str,
    pub(super) key_missing_code: &'static str,
    pub(super) name: &'a str,
    pub(super) items: Option<&'a [KeyToPath]>,
    pub(super) default_mode: Option<i32>,
    pub(super) optional: bool,
}

impl Keyed<'_> {
    /// The object, or none if it is missing and need not be there. What could not be asked is not missing.
    pub(super) fn found<T>(&self, whose: For<'_>, lookup: Lookup<T>) -> Result<Option<T>, ContentError> {
        let Self { kind, name, .. } = self;
        let namespace = &whose.pod.namespace;
        match lookup {
            Lookup::Found(object) => Ok(Some(object)),
            Lookup::Absent if self.optional => Ok(None),
            Lookup::Absent => Err(whose.error(
                self.missing_code,
                format_args!("there is no {kind} {namespace}/{name}"),
                format!("Create the {kind}, or mark the source optional. The volume keeps what it has until then."),
            )),
            Lookup::Unknown(why) => Err(whose.error(
                "ContentUnknown",
                format_args!("the {kind} {namespace}/{name} could not be looked up: {why}"),
                "Make its source readable. The volume keeps what it has until then.",
            )),
        }
    }

    /// Adds the object's files: all of its keys, or those that the items name.
    ///
    /// # Source
    /// `MakePayload` in `pkg/volume/configmap` and `pkg/volume/secret` of Kubernetes v1.36.
    pub(super) fn project(
        &self,
        whose: For<'_>,
        keys: &[(&str, &[u8])],
        payload: &mut Payload,
    ) -> Result<(), ContentError> {
        let mut insert = |path: &str, data: &[u8], own_mode| {
            let file = PayloadFile { data: data.to_vec(), mode: mode(own_mode, self.default_mode) };
            payload.insert(path, file).map_err(|e| whose.error(e.0.code, &e, e.0.hint.clone()))
        };
        match self.items {
            None | Some([]) => keys.iter().try_for_each(|(key, data)| insert(key, data, None)),
            Some(items) => items.iter().try_for_each(|item| match keys.iter().find(|(key, _)| *key == item.key) {
                Some((_, data)) => insert(&item.path, data, item.mode),
                None if self.optional => Ok(()),
                None => Err(whose.error(
                    self.key_missing_code,
                    format_args!("the {} {}/{} has no key {:?}", self.kind, whose.pod.namespace, self.name, item.key),
                    "Add the key, or mark the source optional. The volume keeps what it has until then.",
                )),
            }),
        }
    }
}

/// The folders in this volume that other volumes of the pod are mounted at, in any of its containers.
///
/// # Source
/// `MakeNestedMountpoints` in `pkg/volume/util/nested_volumes.go` of Kubernetes v1.36. Where a container gets only a
/// subPath of the volume, nothing can be mounted at the volume's own folders, so none is made for it.
fn mount_points(volume: &str, pod: &Pod) -> BTreeSet<String> {
    fn elements(path: &str) -> Vec<&str> {
        let mut clean = Vec::new();
        for element in path.split('/') {
            match element {
                "" | "." => {}
                ".." => drop(clean.pop()),
                element => clean.push(element),
            }
        }
        clean
    }
    let Some(spec) = &pod.spec else { return BTreeSet::new() };
    let ephemeral = spec.ephemeral_containers.iter().flatten().filter_map(|c| c.volume_mounts.as_ref());
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut found = BTreeSet::new();
    for mounts in containers.filter_map(|c| c.volume_mounts.as_ref()).chain(ephemeral) {
        let whole = |m: &&VolumeMount| {
            m.name == volume && m.sub_path.as_deref().unwrap_or_default().is_empty() && m.sub_path_expr.is_none()
        };
        for own in mounts.iter().filter(whole).map(|m| elements(&m.mount_path)) {
            let all = mounts.iter().map(|m| elements(&m.mount_path));
            let mut below: Vec<Vec<&str>> =
                all.filter_map(|m| Some(m.strip_prefix(own.as_slice())?.to_vec())).filter(|b| !b.is_empty()).collect();
            below.sort();
            // One in another is in that other volume, or made with it.
            below.dedup_by(|later, earlier| later.starts_with(earlier));
            found.extend(below.into_iter().map(|b| b.join("/")));
        }
    }
    found
}

/// The payload with the mount points in it, if its paths go together.
fn checked(whose: For<'_>, pod: &Pod, mut payload: Payload) -> Result<Payload, ContentError> {
    payload.mount_points = mount_points(&whose.spec.source.volume().typed.name, pod);
    payload.check().map_err(|e| whose.error(e.0.code, &e, e.0.hint.clone()))?;
    Ok(payload)
}

// ── SetUp and TearDown ─────────────────────────────────────────────────────────────────────────────────────────────

fn wrapped(volume: &str) -> String {
    format!("wrapped_{volume}")
}

fn refused(code: &'static str, message: impl Into<String>, hint: &'static str) -> VolumeError {
    VolumeError::Refused(Problem::new(code, message, hint))
}

fn folder(path: Option<&RelPath>) -> Result<&RelPath, VolumeError> {
    path.ok_or_else(|| {
        refused(
            "NoFolder",
            "the record of a volume that is a folder has no path",
            "The record was changed by hand or by another program; `refloat record show` prints it.",
        )
    })
}

fn content<'a>(step: &SetUp<'a>) -> Result<&'a Payload, VolumeError> {
    step.content.ok_or_else(|| {
        refused(
            "ContentMissing",
            format!("volume {:?} was to be set up without its content", step.spec.source.volume().typed.name),
            "This is a fault of the program; please report it. The volume keeps what it has.",
        )
    })
}

/// A mount at the folder that the record does not announce is somebody else's: nothing is written into it or over it.
fn refuse_other_mount(step: &SetUp<'_>, path: &RelPath) -> Result<(), VolumeError> {
    if step.mounted {
        return Ok(());
    }
    let table = step.host.mount_table().map_err(VolumeError::Table)?;
    let absolute = step.host.absolute(path);
    match table.at(&absolute) {
        Some(found) => Err(VolumeError::Refused(other_mount(&absolute, found))),
        None => Ok(()),
    }
}

/// SetUp of a volume that is a plain folder.
fn set_up_folder(step: &SetUp<'_>) -> Result<(), VolumeError> {
    let (content, path) = (content(step)?, folder(step.path)?);
    let marker = Marker::new(&step.pod.uid, &wrapped(step.spec.spec_name.as_str()))?;
    refuse_other_mount(step, path)?;
    let announced = step.announce(None, None)?;
    let dir = announced.make_volume_dir(FOLDER_MODE)?;
    if !marker.is_set(step.host)? {
        // An interrupted SetUp may have made it without the mode.
        rustix::fs::fchmod(&dir, rustix::fs::Mode::from_raw_mode(FOLDER_MODE)).map_err(|source| VolumeError::Io {
            doing: "set the mode of",
            path: dir.path().to_owned(),
            source: source.into(),
        })?;
    }
    write_payload(dir.as_fd(), dir.path(), content, step.fs_group)?;
    marker.set(&announced)
}

/// SetUp of a volume that is a tmpfs: filled before anybody sees it, or, if it is mounted already, in place.
fn set_up_tmpfs(step: &SetUp<'_>) -> Result<(), VolumeError> {
    let (content, path) = (content(step)?, folder(step.path)?);
    let marker = Marker::new(&step.pod.uid, &wrapped(step.spec.spec_name.as_str()))?;
    refuse_other_mount(step, path)?;
    if step.mounted {
        let announced = step.announce(None, None)?;
        write_in_mount(step, path, content)?;
        return marker.set(&announced);
    }
    super::refuse_hidden_data(step.host, path)?;
    let mount = super::new_tmpfs(step.host, None, TMPFS_MODE)?;
    let filled = match mount.root() {
        Some(root) => write_payload(root, &step.host.absolute(path), content, step.fs_group).map(|_| true)?,
        None => false,
    };
    let announced = step.announce(Some(&mount), None)?;
    if marker.is_set(step.host)? {
        // It speaks of a mount that is gone.
        marker.remove(step.host)?;
    }
    let dir = announced.make_volume_dir(FOLDER_MODE)?;
    announced.attach(mount, &dir)?;
    if !filled {
        write_in_mount(step, path, content)?;
    }
    marker.set(&announced)
}

fn write_in_mount(step: &SetUp<'_>, path: &RelPath, content: &Payload) -> Result<(), VolumeError> {
    let dir = step.host.root.open_dir_in_mount(path.as_path()).map_err(VolumeError::Path)?.ok_or_else(|| {
        VolumeError::Io {
            doing: "open the mounted volume at",
            path: step.host.absolute(path),
            source: rustix::io::Errno::NOENT.into(),
        }
    })?;
    write_payload(dir.as_fd(), dir.path(), content, step.fs_group).map(drop)
}

/// TearDown, object by object in the kubelet's order: the marker, the mount, the folder. The content is a copy of what
/// objects say, so it is removed with the folder, unless there is no record that says so.
fn tear_down(step: &TearDown<'_>) -> Result<(), VolumeError> {
    let path = folder(step.record.path.as_ref())?;
    let expected = step.host.announced_mount(step.record.mount.as_ref(), &step.record.boot_id);
    let absolute = step.host.absolute(path);
    let table = step.host.mount_table_at(&absolute).map_err(VolumeError::Table)?;
    if let Some(top) = table.at(&absolute) {
        let own = match &expected {
            Some(expected) => is_own(top, expected),
            // Without a record, what such a volume can be is taken for one.
            None => !step.trusted && top.fs_type() == "tmpfs",
        };
        if !own {
            return Err(VolumeError::Refused(other_mount(&absolute, top)));
        }
    }
    Marker::new(&step.record.pod.uid, &wrapped(step.record.spec_name.as_str()))?.remove(step.host)?;
    crate::unmount_nested(step.host, path)?;
    crate::unmount_own_layers(step.host, path, expected.as_ref())?;
    crate::remove_volume_dir(step.host, path, step.trusted)
}

/// What a folder's name tells: the pod's own name for the volume and its type, nothing of where the content is from.
fn from_layout(found: FoundVolume<'_>, field: &'static str, lost: &[&'static str]) -> Rebuilt {
    let spec = serde_json::json!({ "name": found.folder, field: {} });
    Rebuilt {
        spec: RebuiltSpec::Volume(spec),
        lost: lost.to_vec(),
        volume_name: None,
        provider_info: None,
        doubts: crate::Doubts::default(),
    }
}

#[cfg(test)]
mod tests;
