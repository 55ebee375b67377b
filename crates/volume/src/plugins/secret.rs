//! `secret`: the keys of a `Secret` as files.
//!
//! A tmpfs at `pods/<uid>/volumes/kubernetes.io~secret/<volume>`, so that the content reaches no disk (and, where the
//! kernel can promise that, no swap), filled before anybody sees it. Neither records nor logs ever hold the content.
//! See `docs/plugins/secret.md`.
//!
//! # Source
//! `pkg/volume/secret` of Kubernetes v1.36.

use k8s_openapi::api::core::v1::{Pod, Secret as SecretObject, SecretVolumeSource, Volume};

use crate::{ContentError, Objects, Payload, SpecError, VolumeSpec};

use super::payload_volume::{Checker, For, Keyed, PayloadKind};

/// The plugin `kubernetes.io/secret`.
#[derive(Debug, Clone, Copy)]
pub struct Secret;

fn name(source: &SecretVolumeSource) -> &str {
    source.secret_name.as_deref().unwrap_or_default()
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

impl PayloadKind for Secret {
    type Source = SecretVolumeSource;

    const NAME: &'static str = "kubernetes.io/secret";
    const FIELD: &'static str = "secret";
    // The kubelet takes the folder's name for the secret's, which it is not: here it is not claimed.
    const LOST: &'static [&'static str] =
        &["secret.secretName", "secret.items", "secret.defaultMode", "secret.optional"];
    const IN_MEMORY: bool = true;

    fn source(volume: &Volume) -> Option<&SecretVolumeSource> {
        volume.secret.as_ref()
    }

    fn check(checker: Checker<'_>, source: &SecretVolumeSource) -> Result<(), SpecError> {
        if name(source).is_empty() {
            return Err(checker.error("secret.secretName", "is missing"));
        }
        checker.mode("secret.defaultMode", source.default_mode)?;
        checker.items("secret", source.items.as_deref())
    }

    fn volume_name(_: &VolumeSpec, source: &SecretVolumeSource) -> String {
        name(source).to_owned()
    }

    fn project(
        whose: For<'_>,
        source: &SecretVolumeSource,
        _: &Pod,
        objects: &dyn Objects,
        payload: &mut Payload,
    ) -> Result<(), ContentError> {
        let name = name(source);
        let keyed =
            Keyed { items: source.items.as_deref(), default_mode: source.default_mode, ..keyed(name, source.optional) };
        match keyed.found(whose, objects.secret(&whose.pod.namespace, name))? {
            Some(object) => keyed.project(whose, &keys(&object), payload),
            None => Ok(()),
        }
    }
}
