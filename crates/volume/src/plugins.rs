//! The plugins, one module each.

pub mod config_map;
pub mod csi;
pub mod downward_api;
pub mod empty_dir;
pub mod host_path;
pub(crate) mod known;
pub mod local;
mod marker;
mod payload_volume;
pub mod projected;
pub mod secret;
mod tmpfs;

pub use marker::Marker;
pub use tmpfs::new_tmpfs;

use crate::Plugin;

/// All plugins that are built in.
pub(crate) fn all() -> Vec<Box<dyn Plugin>> {
    let built: Vec<Box<dyn Plugin>> = vec![
        Box::new(config_map::ConfigMap),
        Box::new(csi::Csi),
        Box::new(downward_api::DownwardApi),
        Box::new(empty_dir::EmptyDir),
        Box::new(host_path::HostPath),
        Box::new(local::Local),
        Box::new(projected::Projected),
        Box::new(secret::Secret),
    ];
    built.into_iter().chain(known::all().map(|plugin| Box::new(plugin) as Box<dyn Plugin>)).collect()
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

/// Refuses a folder that is to be mounted over and has something in it: it was written while nothing was mounted
/// there, and mounting would hide it.
pub(crate) fn refuse_hidden_data(host: &crate::Host, path: &refloat_record::RelPath) -> Result<(), crate::VolumeError> {
    match host.root.list(path.as_path()).map_err(crate::VolumeError::Path)? {
        Some(entries) if !entries.is_empty() => Err(crate::VolumeError::Refused(crate::Problem::new(
            "DataBelowMount",
            format!("{} holds files that mounting the volume would hide", host.absolute(path).display()),
            "they were written while nothing was mounted there; move them away, then the volume is mounted",
        ))),
        _ => Ok(()),
    }
}
