//! The spec of a volume as a pod uses it.

use k8s_openapi::api::core::v1::{PersistentVolume, Volume};
use refloat_record::{ClaimRef, PluginName, SpecName, VolumeMode};

use crate::migration::Migrated;
use crate::{Object, SpecError};

/// A volume as one pod uses it: what the plugin needs to know, resolved through the claim if there is one.
#[derive(Debug, Clone)]
pub struct VolumeSpec {
    /// The plugin that supports it.
    pub plugin: PluginName,
    /// The inner spec name.
    pub spec_name: SpecName,
    /// File system or block.
    pub mode: VolumeMode,
    /// Whether the pod gets it read-only (the claim source's or the volume source's own `readOnly`).
    pub read_only: bool,
    /// Mount options of the `PersistentVolume`.
    pub mount_options: Vec<String>,
    /// What it is.
    pub source: SpecSource,
    /// What it is to the CSI driver that has taken the place of its own plugin, if one has.
    pub migrated: Option<Migrated>,
}

impl VolumeSpec {
    /// The `PersistentVolume` as the plugin is to understand it: translated, where it was of another plugin.
    pub fn persistent_volume(&self) -> Option<&PersistentVolume> {
        match &self.migrated {
            Some(migrated) => Some(&migrated.persistent_volume),
            None => self.source.persistent_volume().map(|volume| &volume.typed),
        }
    }

    /// The error of a field of the volume's source, which is named from the pod's entry, or from the `PersistentVolume`.
    pub(crate) fn wrong(&self, field: &str, why: impl Into<String>) -> SpecError {
        let field = match self.source {
            SpecSource::Inline { .. } => field.to_owned(),
            SpecSource::Persistent { .. } => format!("spec.{field}"),
        };
        SpecError::Field { volume: self.spec_name.to_string(), field, why: why.into() }
    }
}

/// Where the spec came from.
#[derive(Debug, Clone)]
pub enum SpecSource {
    /// The pod's own `volumes[x]` entry.
    Inline {
        /// That entry.
        volume: Object<Volume>,
    },
    /// A claim bound to a volume.
    Persistent {
        /// The pod's `volumes[x]` entry.
        volume: Object<Volume>,
        /// The volume.
        persistent_volume: Box<Object<PersistentVolume>>,
        /// The claim.
        claim: ClaimRef,
    },
}

impl SpecSource {
    /// The pod's `volumes[x]` entry.
    pub fn volume(&self) -> &Object<Volume> {
        match self {
            Self::Inline { volume } | Self::Persistent { volume, .. } => volume,
        }
    }
    /// The `PersistentVolume`, for a claim.
    pub fn persistent_volume(&self) -> Option<&Object<PersistentVolume>> {
        match self {
            Self::Inline { .. } => None,
            Self::Persistent { persistent_volume, .. } => Some(persistent_volume),
        }
    }
}

/// One `volumeMounts` entry with a subPath.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPathSpec {
    /// The container's name (init and ephemeral containers too). One path element.
    pub container: String,
    /// The index of the entry in that container's `volumeMounts`.
    pub index: u32,
    /// The path inside the volume, `subPathExpr` expanded. Relative, without `..`.
    pub sub_path: String,
    /// Whether this container gets it read-only.
    pub read_only: bool,
}
