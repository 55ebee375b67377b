//! The plugins, one module each.

mod by_helper;
pub mod config_map;
pub mod csi;
mod device_bind;
pub mod downward_api;
pub mod empty_dir;
pub mod fc;
pub mod flex_volume;
pub mod glusterfs;
pub mod host_path;
pub mod iscsi;
pub(crate) mod known;
pub mod local;
mod marker;
pub mod nfs;
mod payload_volume;
pub mod projected;
mod san;
pub mod secret;
mod tmpfs;

pub use marker::Marker;
pub use tmpfs::new_tmpfs;

use std::path::Path;

use refloat_record::VolumeMode;
use serde_json::{Value, json};

use crate::Plugin;

/// All plugins that are built in.
pub(crate) fn all() -> Vec<Box<dyn Plugin>> {
    let built: Vec<Box<dyn Plugin>> = vec![
        Box::new(config_map::ConfigMap),
        Box::new(csi::Csi),
        Box::new(downward_api::DownwardApi),
        Box::new(empty_dir::EmptyDir),
        Box::new(fc::Fc),
        Box::new(glusterfs::GlusterFs),
        Box::new(host_path::HostPath),
        Box::new(iscsi::Iscsi),
        Box::new(local::Local),
        Box::new(nfs::Nfs),
        Box::new(projected::Projected),
        Box::new(secret::Secret),
    ];
    built.into_iter().chain(known::all().map(|plugin| Box::new(plugin) as Box<dyn Plugin>)).collect()
}

/// The fields of a `PersistentVolume` that are not its source's, and that nothing but a record tells.
pub(crate) const LOST_OF_PERSISTENT_VOLUME: [&str; 7] = [
    "spec.accessModes",
    "spec.capacity",
    "spec.claimRef",
    "spec.mountOptions",
    "spec.nodeAffinity",
    "spec.persistentVolumeReclaimPolicy",
    "spec.storageClassName",
];

/// As much of a `PersistentVolume` as can be told without a record: its name, and the `source` in the field of that name.
pub(crate) fn rebuilt_persistent_volume(name: &str, field: &str, source: &Value, mode: VolumeMode) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": name },
        "spec": { field: source, "volumeMode": mode },
    })
}

/// The node root of a volume's folder `<root>/pods/<uid>/volumes/<plugin>/<name>`.
pub(crate) fn node_root(folder: &Path) -> Option<&Path> {
    folder.ancestors().nth(5)
}

/// What is wrong with a path of the host that a volume names, if anything.
///
/// # Source
/// `validatePathNoBacksteps` of Kubernetes: no element may be `..`.
pub(crate) fn wrong_host_path(path: &str) -> Option<String> {
    if path.is_empty() {
        Some("is missing".into())
    } else if !path.starts_with('/') {
        Some(format!("is {path:?}, which is not absolute"))
    } else if path.split('/').any(|part| part == "..") {
        Some(format!("is {path:?}; \"..\" is not allowed in it"))
    } else if path.contains('\0') {
        Some("holds a NUL byte".into())
    } else {
        None
    }
}

/// Whether a spec's `fsType` can be the name of a file system: it becomes a part of a program's.
pub(crate) fn check_fs_type(
    spec: &crate::VolumeSpec,
    field: &str,
    fs_type: Option<&str>,
) -> Result<(), crate::SpecError> {
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    match fs_type {
        Some(text) if !is_name(text) => {
            Err(spec.wrong(field, format!("is {text:?}, which is no name of a file system")))
        }
        _ => Ok(()),
    }
}

/// Why SetUp or MountDevice refuses a spec that it was given all the same.
fn bad_spec(error: &crate::SpecError) -> crate::VolumeError {
    crate::VolumeError::Refused(crate::Problem::new(
        "BadSpec",
        error.to_string(),
        "Correct the pod or the PersistentVolume.",
    ))
}

/// Refuses a folder that is to be mounted over and has something in it: it was written while nothing was mounted
/// there, and mounting would hide it.
pub(crate) fn refuse_hidden_data(host: &crate::Host, path: &refloat_record::RelPath) -> Result<(), crate::VolumeError> {
    refuse_hidden_data_but(host, path, None)
}

/// The same where one file is known, and may be hidden.
pub(crate) fn refuse_hidden_data_but(
    host: &crate::Host,
    path: &refloat_record::RelPath,
    known: Option<&str>,
) -> Result<(), crate::VolumeError> {
    let is_known = |entry: &refloat_mount::DirEntry| known.is_some_and(|known| entry.name == known);
    match host.root.list(path.as_path()).map_err(crate::VolumeError::Path)? {
        Some(entries) if !entries.iter().all(is_known) => Err(crate::VolumeError::Refused(crate::Problem::new(
            "DataBelowMount",
            format!("{} holds files that mounting the volume would hide", host.absolute(path).display()),
            "they were written while nothing was mounted there; move them away, then the volume is mounted",
        ))),
        _ => Ok(()),
    }
}
