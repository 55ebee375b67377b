//! What a spec says of a CSI volume, and the names that are made of it.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, CSIVolumeSource};
use refloat_csi::StringMap;
use refloat_record::{DriverName, PodRef, RelPath};
use sha2::{Digest as _, Sha256};

use crate::{SpecError, SpecSource, VolumeSpec, layout};

/// The CSI part of a spec, checked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a> {
    /// A persistent volume, or one of another plugin that was translated.
    Persistent(&'a CSIPersistentVolumeSource),
    /// An inline ephemeral volume: the pod's own entry.
    Ephemeral(&'a CSIVolumeSource),
}

pub(super) fn supports(spec: &SpecSource) -> bool {
    match spec {
        SpecSource::Inline { volume } => volume.typed.csi.is_some(),
        SpecSource::Persistent { persistent_volume, .. } => {
            persistent_volume.typed.spec.as_ref().is_some_and(|spec| spec.csi.is_some())
        }
    }
}

impl<'a> Source<'a> {
    /// Reads it, or says which field is wrong.
    ///
    /// # Source
    /// `ValidateCSIDriverName` and `validateCSIPersistentVolumeSource` of `pkg/apis/core/validation`.
    pub(super) fn of(spec: &'a VolumeSpec) -> Result<Self, SpecError> {
        let (source, prefix) = match (spec.persistent_volume(), &spec.source) {
            (None, SpecSource::Inline { volume }) => (volume.typed.csi.as_ref().map(Self::Ephemeral), "csi"),
            (volume, _) => {
                let spec = volume.and_then(|volume| volume.spec.as_ref());
                (spec.and_then(|spec| spec.csi.as_ref()).map(Self::Persistent), "spec.csi")
            }
        };
        let wrong = |field: &str, why: String| SpecError::Field {
            volume: spec.spec_name.to_string(),
            field: format!("{prefix}{field}"),
            why,
        };
        let source = source.ok_or_else(|| wrong("", "is missing".into()))?;
        if let Some(why) = wrong_driver_name(source.driver()) {
            return Err(wrong(".driver", why));
        }
        if let Self::Persistent(source) = source {
            if source.volume_handle.is_empty() {
                return Err(wrong(".volumeHandle", "is missing".into()));
            }
            if wrong_handle(&source.volume_handle) {
                return Err(wrong(".volumeHandle", "is no volume id: it is too long, or holds a NUL byte".into()));
            }
        }
        Ok(source)
    }

    pub(super) fn driver(self) -> &'a str {
        match self {
            Self::Persistent(source) => &source.driver,
            Self::Ephemeral(source) => &source.driver,
        }
    }

    pub(super) fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral(_))
    }

    /// The volume's id, for a persistent volume.
    pub(super) fn persistent_handle(self) -> Option<&'a str> {
        match self {
            Self::Persistent(source) => Some(&source.volume_handle),
            Self::Ephemeral(_) => None,
        }
    }

    /// The volume's id as the driver is told it.
    pub(super) fn handle(self, pod: &PodRef, spec: &VolumeSpec) -> String {
        match self {
            Self::Persistent(source) => source.volume_handle.clone(),
            Self::Ephemeral(_) => ephemeral_handle(pod.uid.as_str(), spec.spec_name.as_str()),
        }
    }

    pub(super) fn fs_type(self) -> &'a str {
        let fs_type = match self {
            Self::Persistent(source) => &source.fs_type,
            Self::Ephemeral(source) => &source.fs_type,
        };
        fs_type.as_deref().unwrap_or_default()
    }

    pub(super) fn attributes(self) -> StringMap {
        let attributes = match self {
            Self::Persistent(source) => &source.volume_attributes,
            Self::Ephemeral(source) => &source.volume_attributes,
        };
        attributes.clone().unwrap_or_default()
    }
}

/// Why this cannot be a driver's name, if so. It names a folder, so that it must be one path element is checked too.
///
/// # Source
/// `GetPluginInfo` of the CSI specification: at most 63 characters, alphanumeric at both ends, with dashes and dots
/// between.
pub(super) fn wrong_driver_name(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("is missing".into());
    }
    let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inside = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
    // Names of in-tree plugins' folders in the same place.
    let taken = matches!(name, "pv" | "volumeDevices");
    let good = name.len() <= 63 && inside && end(name.chars().next()) && end(name.chars().next_back()) && !taken;
    (!good || DriverName::new(name).is_err()).then(|| format!("is {name:?}, which is no driver's name"))
}

/// Whether this can be no volume's id: more than a unique name and a record can hold.
pub(super) fn wrong_handle(handle: &str) -> bool {
    handle.len() > 2048 || handle.contains('\0')
}

/// The second part of the unique volume name.
///
/// # Source
/// `GetVolumeName` of the kubelet's `csiPlugin`.
pub(super) fn volume_name(driver: &str, handle: &str) -> String {
    format!("{driver}^{handle}")
}

/// The id of an inline volume.
///
/// # Source
/// `makeVolumeHandle` in `pkg/volume/csi/csi_mounter.go`.
pub(super) fn ephemeral_handle(pod_uid: &str, spec_name: &str) -> String {
    format!("csi-{}", sha256_hex(&[pod_uid, spec_name]))
}

/// The name of the `VolumeAttachment`, whether or not there is one.
///
/// # Source
/// `getAttachmentName` in `pkg/volume/csi/csi_attacher.go`.
pub(super) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256_hex(&[handle, driver, node]))
}

/// The folder that a staged volume's `globalmount` is in, by its handle.
pub(super) fn stage_folder(handle: &str) -> String {
    sha256_hex(&[handle])
}

/// `plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/globalmount`
///
/// # Source
/// `makeDeviceMountPath` in `pkg/volume/csi/csi_attacher.go`.
pub(super) fn stage_path(driver: &str, handle: &str) -> Option<RelPath> {
    RelPath::new(format!(
        "{}/{}/{driver}/{}/{}",
        layout::PLUGINS,
        layout::CSI,
        stage_folder(handle),
        layout::CSI_GLOBAL_MOUNT
    ))
    .ok()
}

fn sha256_hex(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing into a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
