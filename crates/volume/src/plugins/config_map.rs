//! `configMap`: the keys of a `ConfigMap` as files.
//!
//! A plain folder on the node's disk at `pods/<uid>/volumes/kubernetes.io~configmap/<volume>`, mode 0777, written by the
//! [atomic writer](crate::write_payload); not a tmpfs as for secrets. See `docs/plugins/configmap.md`.
//!
//! # Source
//! `pkg/volume/configmap` of Kubernetes v1.36.

use k8s_openapi::api::core::v1::{ConfigMap as ConfigMapObject, ConfigMapVolumeSource, Pod};
use refloat_record::{PluginName, PodRef};

use crate::{
    Capabilities, ContentError, FoundVolume, Objects, Payload, Plugin, Rebuilt, SetUp, SpecError, SpecSource, TearDown,
    VolumeError, VolumeSpec,
};

use super::payload_volume::{self, Checker, For, Keyed};

/// The plugin `kubernetes.io/configmap`.
#[derive(Debug, Clone, Copy)]
pub struct ConfigMap;

fn source(spec: &VolumeSpec) -> Result<&ConfigMapVolumeSource, SpecError> {
    let missing = || Checker { spec }.error("configMap", "is missing");
    spec.source.volume().typed.config_map.as_ref().ok_or_else(missing)
}

/// Data and binary data: a key stands in one of them only.
pub(super) fn keys(object: &ConfigMapObject) -> Vec<(&str, &[u8])> {
    let text = object.data.iter().flatten().map(|(key, text)| (key.as_str(), text.as_bytes()));
    let binary = object.binary_data.iter().flatten().map(|(key, data)| (key.as_str(), &*data.0));
    text.chain(binary).collect()
}

pub(super) fn keyed(name: &str, optional: Option<bool>) -> Keyed<'_> {
    Keyed {
        kind: "ConfigMap",
        missing_code: "ConfigMapMissing",
        key_missing_code: "ConfigMapKeyMissing",
        name,
        items: None,
        default_mode: None,
        optional: optional.unwrap_or(false),
    }
}

impl Plugin for ConfigMap {
    fn name(&self) -> PluginName {
        PluginName::new("kubernetes.io/configmap").expect("a constant name")
    }

    fn capabilities(&self) -> Capabilities {
        payload_volume::CAPABILITIES
    }

    fn supports(&self, source: &SpecSource) -> bool {
        matches!(source, SpecSource::Inline { volume } if volume.typed.config_map.is_some())
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        let (checker, source) = (Checker { spec }, source(spec)?);
        checker.name_fits()?;
        if source.name.is_empty() {
            return Err(checker.error("configMap.name", "is missing"));
        }
        checker.mode("configMap.defaultMode", source.default_mode)?;
        checker.items("configMap", source.items.as_deref())
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        Ok(format!("{}/{}", spec.spec_name, source(spec)?.name))
    }

    fn content(
        &self,
        spec: &VolumeSpec,
        pod: &Pod,
        pod_ref: &PodRef,
        objects: &dyn Objects,
    ) -> Result<Option<Payload>, ContentError> {
        let whose = For { pod: pod_ref, spec };
        self.check(spec).map_err(|e| whose.bad_spec(&e))?;
        let source = source(spec).map_err(|e| whose.bad_spec(&e))?;
        let keyed = Keyed {
            items: source.items.as_deref(),
            default_mode: source.default_mode,
            ..keyed(&source.name, source.optional)
        };
        let mut payload = Payload::default();
        // One that is missing and optional is as one without keys: the items are then missing and optional too.
        if let Some(object) = keyed.found(whose, objects.config_map(&pod_ref.namespace, &source.name))? {
            keyed.project(whose, &keys(&object), &mut payload)?;
        }
        payload_volume::checked(whose, pod, payload)
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        payload_volume::set_up_folder(&step)
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        payload_volume::tear_down(step)
    }

    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        let lost = ["configMap.name", "configMap.items", "configMap.defaultMode", "configMap.optional"];
        Some(payload_volume::from_layout(found, "configMap", &lost))
    }
}
