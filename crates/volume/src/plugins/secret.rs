//! `secret`: the keys of a `Secret` as files.
//!
//! A tmpfs at `pods/<uid>/volumes/kubernetes.io~secret/<volume>`, so that the content reaches no disk (and, where the
//! kernel can promise that, no swap), filled before anybody sees it. Neither records nor logs ever hold the content.
//! See `docs/plugins/secret.md`.
//!
//! # Source
//! `pkg/volume/secret` of Kubernetes v1.36.

use k8s_openapi::api::core::v1::{Pod, Secret as SecretObject, SecretVolumeSource};
use refloat_record::{PluginName, PodRef};

use crate::{
    Capabilities, ContentError, FoundVolume, Objects, Payload, Plugin, Rebuilt, SetUp, SpecError, SpecSource, TearDown,
    VolumeError, VolumeSpec,
};

use super::payload_volume::{self, Checker, For, Keyed};

/// The plugin `kubernetes.io/secret`.
#[derive(Debug, Clone, Copy)]
pub struct Secret;

fn source(spec: &VolumeSpec) -> Result<&SecretVolumeSource, SpecError> {
    let missing = || Checker { spec }.error("secret", "is missing");
    spec.source.volume().typed.secret.as_ref().ok_or_else(missing)
}

fn secret_name<'a>(spec: &'a VolumeSpec, source: &'a SecretVolumeSource) -> Result<&'a str, SpecError> {
    let name = source.secret_name.as_deref().filter(|name| !name.is_empty());
    name.ok_or_else(|| Checker { spec }.error("secret.secretName", "is missing"))
}

pub(super) fn keys(object: &SecretObject) -> Vec<(&str, &[u8])> {
    object.data.iter().flatten().map(|(key, data)| (key.as_str(), &*data.0)).collect()
}

pub(super) fn keyed(name: &str, optional: Option<bool>) -> Keyed<'_> {
    Keyed {
        kind: "Secret",
        missing_code: "SecretMissing",
        key_missing_code: "SecretKeyMissing",
        name,
        items: None,
        default_mode: None,
        optional: optional.unwrap_or(false),
    }
}

impl Plugin for Secret {
    fn name(&self) -> PluginName {
        PluginName::new("kubernetes.io/secret").expect("a constant name")
    }

    fn capabilities(&self) -> Capabilities {
        payload_volume::CAPABILITIES
    }

    fn supports(&self, source: &SpecSource) -> bool {
        matches!(source, SpecSource::Inline { volume } if volume.typed.secret.is_some())
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        let (checker, source) = (Checker { spec }, source(spec)?);
        checker.name_fits()?;
        secret_name(spec, source)?;
        checker.mode("secret.defaultMode", source.default_mode)?;
        checker.items("secret", source.items.as_deref())
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        secret_name(spec, source(spec)?).map(str::to_owned)
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
        let name = secret_name(spec, source).map_err(|e| whose.bad_spec(&e))?;
        let keyed =
            Keyed { items: source.items.as_deref(), default_mode: source.default_mode, ..keyed(name, source.optional) };
        let mut payload = Payload::default();
        if let Some(object) = keyed.found(whose, objects.secret(&pod_ref.namespace, name))? {
            keyed.project(whose, &keys(&object), &mut payload)?;
        }
        payload_volume::checked(whose, pod, payload)
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        payload_volume::set_up_tmpfs(&step)
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        payload_volume::tear_down(step)
    }

    /// The kubelet takes the folder's name for the secret's, which it is not: here it is not claimed.
    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        let lost = ["secret.secretName", "secret.items", "secret.defaultMode", "secret.optional"];
        Some(payload_volume::from_layout(found, "secret", &lost))
    }
}
