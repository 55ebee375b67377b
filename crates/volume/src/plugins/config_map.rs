//! `configMap`: the keys of a `ConfigMap` as files.
//!
//! A plain folder on the node's disk at `pods/<uid>/volumes/kubernetes.io~configmap/<volume>`, mode 0777, written by the
//! [atomic writer](crate::write_payload); not a tmpfs as for secrets. See `docs/plugins/configmap.md`.
//!
//! # Source
//! `pkg/volume/configmap` of Kubernetes v1.36.

use k8s_openapi::api::core::v1::{ConfigMap as ConfigMapObject, ConfigMapVolumeSource, Pod, Volume};

use crate::{ContentError, Objects, Payload, SpecError, VolumeSpec};

use super::payload_volume::{Checker, For, Keyed, PayloadKind};

/// The plugin `kubernetes.io/configmap`.
#[derive(Debug, Clone, Copy)]
pub struct ConfigMap;

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

impl PayloadKind for ConfigMap {
    type Source = ConfigMapVolumeSource;

    const NAME: &'static str = "kubernetes.io/configmap";
    const FIELD: &'static str = "configMap";
    const LOST: &'static [&'static str] =
        &["configMap.name", "configMap.items", "configMap.defaultMode", "configMap.optional"];
    const IN_MEMORY: bool = false;

    fn source(volume: &Volume) -> Option<&ConfigMapVolumeSource> {
        volume.config_map.as_ref()
    }

    fn check(checker: Checker<'_>, source: &ConfigMapVolumeSource) -> Result<(), SpecError> {
        if source.name.is_empty() {
            return Err(checker.error("configMap.name", "is missing"));
        }
        checker.mode("configMap.defaultMode", source.default_mode)?;
        checker.items("configMap", source.items.as_deref())
    }

    fn volume_name(spec: &VolumeSpec, source: &ConfigMapVolumeSource) -> String {
        format!("{}/{}", spec.spec_name, source.name)
    }

    fn project(
        whose: For<'_>,
        source: &ConfigMapVolumeSource,
        _: &Pod,
        objects: &dyn Objects,
        payload: &mut Payload,
    ) -> Result<(), ContentError> {
        let keyed = Keyed {
            items: source.items.as_deref(),
            default_mode: source.default_mode,
            ..keyed(&source.name, source.optional)
        };
        // One that is missing and optional is as one without keys: the items are then missing and optional too.
        match keyed.found(whose, objects.config_map(&whose.pod.namespace, &source.name))? {
            Some(object) => keyed.project(whose, &keys(&object), payload),
            None => Ok(()),
        }
    }
}
