//! `nfs`: an export of a server, as the pod's own volume or a `PersistentVolume`.
//!
//! Each pod has a mount of its own at `pods/<uid>/volumes/kubernetes.io~nfs/<name>`, made by the mount helper `mount.nfs` of
//! this machine; there is no MountDevice. Before the helper runs the source alone is known: which version of the protocol it
//! will be is between helper and server.
//!
//! Nothing here looks into a mount: a server that does not answer holds up who asks it. TearDown is a plain unmount and an
//! rmdir, for which the mount table tells everything; what becomes of an unmount that hangs, or of a mount that is kept busy by
//! who waits for a dead server, is the node's affair.
//!
//! fsGroup is left to the server, as in Kubernetes.
//!
//! # Source
//! `pkg/volume/nfs` of Kubernetes v1.36; `mount.nfs(8)`, `nfs(5)`.

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::NFSVolumeSource;
use refloat_record::{PluginName, RecordedMount, Verbatim};
use serde::{Deserialize, Serialize};

use super::by_helper::ByHelper;
use super::known::{self, names};
use crate::{
    Capabilities, FoundVolume, Plugin, Presence, Rebuilt, RebuiltSpec, Recorded, SetUp, SpecError, SpecSource,
    TearDown, VolumeError, VolumeSpec,
};

/// The plugin `kubernetes.io/nfs`.
#[derive(Debug, Clone, Copy)]
pub struct Nfs;

/// What mounts an export.
const HELPER: &str = "mount.nfs";

/// The record's `providerInfo`: what was asked of the helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Info {
    /// Name or address.
    server: String,
    /// The exported path.
    path: String,
    /// What the helper was given with `-o`; empty also where nobody can tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    options: Vec<String>,
}

impl Info {
    fn of(spec: &VolumeSpec, nfs: &NFSVolumeSource) -> Self {
        let mut options = spec.mount_options.clone();
        // The last one of those that contradict each other counts.
        if spec.read_only || nfs.read_only == Some(true) {
            options.push("ro".into());
        }
        Self { server: nfs.server.clone(), path: nfs.path.clone(), options }
    }

    fn verbatim(&self) -> Verbatim {
        Verbatim::of(self).expect("texts")
    }

    /// The server as it stands before the colon.
    fn host(&self) -> String {
        match self.server.parse::<std::net::Ipv6Addr>() {
            Ok(_) => format!("[{}]", self.server),
            Err(_) => self.server.clone(),
        }
    }

    /// What the helper is told to mount.
    fn source(&self) -> String {
        format!("{}:{}", self.host(), self.path)
    }

    /// The mount as far as it is known beforehand.
    ///
    /// # Source
    /// `nfs_path` of the kernel's `fs/nfs/namespace.c`: slashes at the end are left away.
    fn announced(&self) -> RecordedMount {
        let path = match self.path.trim_end_matches('/') {
            "" => "/",
            path => path,
        };
        let source = format!("{}:{path}", self.host());
        RecordedMount { id: None, fs_type: String::new(), source, root: String::new() }
    }
}

fn source(spec: &SpecSource) -> Option<&NFSVolumeSource> {
    match spec {
        SpecSource::Inline { volume } => volume.typed.nfs.as_ref(),
        SpecSource::Persistent { persistent_volume, .. } => persistent_volume.typed.spec.as_ref()?.nfs.as_ref(),
    }
}

/// # Source
/// `validateNFSVolumeSource` of Kubernetes: both fields are there, and the path is absolute.
fn checked(spec: &VolumeSpec) -> Result<&NFSVolumeSource, SpecError> {
    let nfs = source(&spec.source).ok_or_else(|| spec.wrong("nfs", "is missing"))?;
    if nfs.server.is_empty() {
        return Err(spec.wrong("nfs.server", "is missing"));
    }
    // The helper would take it for a flag, or for the beginning of the path.
    let strange = |c: char| c.is_whitespace() || c.is_control() || c == '/';
    if nfs.server.starts_with('-') || nfs.server.contains(strange) {
        return Err(spec.wrong("nfs.server", format!("is {:?}, which is no name or address of a server", nfs.server)));
    }
    if !nfs.path.starts_with('/') {
        return Err(spec.wrong("nfs.path", format!("is {:?}, which is not absolute", nfs.path)));
    }
    if nfs.path.contains('\0') {
        return Err(spec.wrong("nfs.path", "holds a NUL byte"));
    }
    for option in &spec.mount_options {
        if option.contains('\0') {
            return Err(spec.wrong("mountOptions", "holds a NUL byte"));
        }
        if option.split(',').any(|option| option == "bg") {
            let why = "has \"bg\", with which the helper would mount some time after it said that it is done";
            return Err(spec.wrong("mountOptions", why));
        }
    }
    Ok(nfs)
}

impl Plugin for Nfs {
    fn name(&self) -> PluginName {
        known::NFS.name()
    }

    fn capabilities(&self) -> Capabilities {
        known::capabilities(false, false, Presence::Mount)
    }

    fn supports(&self, spec: &SpecSource) -> bool {
        source(spec).is_some()
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        checked(spec).map(drop)
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        // Not a part of any path or name.
        checked(spec).map(|nfs| format!("{}{}", nfs.server, nfs.path))
    }

    fn lane(&self, spec: &VolumeSpec) -> Option<String> {
        source(&spec.source).map(|nfs| lane(&nfs.server))
    }

    fn recorded_lane(&self, recorded: Recorded<'_>) -> Option<String> {
        let info: Option<Info> = recorded.provider_info.and_then(|info| info.parse().ok());
        info.map(|info| lane(&info.server))
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        let nfs = checked(step.spec).map_err(|error| super::bad_spec(&error))?;
        let info = Info::of(step.spec, nfs);
        let mount = ByHelper {
            helper: HELPER,
            source: info.source(),
            options: &info.options,
            announced: info.announced(),
            provider_info: info.verbatim(),
        };
        mount.set_up(&step, || Ok(()))
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        known::plain_tear_down(step)
    }

    /// A mount that is no server's is not claimed: nothing would tell it from what a pod wants there.
    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        let rebuilt = known::NFS.from_layout(found)?;
        let Some(mount) = found.table.at(found.path) else { return Some(rebuilt) };
        let provider_info = told(&rebuilt.spec, mount)?;
        Some(Rebuilt { provider_info: Some(provider_info), ..rebuilt })
    }
}

fn lane(server: &str) -> String {
    format!("nfs {server}")
}

/// What the record would have, as far as the mount table tells.
fn told(spec: &RebuiltSpec, mount: refloat_mount::Mount<'_>) -> Option<Verbatim> {
    let (RebuiltSpec::Volume(whole) | RebuiltSpec::PersistentVolume(whole)) = spec;
    let source = mount.source();
    let (server, path) = whole.pointer("/nfs/server").or(whole.pointer("/spec/nfs/server")).and(names::nfs(&source))?;
    Some(Info { server: server.into(), path: path.into(), options: vec![] }.verbatim())
}
