//! `projected`: several sources in one volume.
//!
//! A tmpfs at `pods/<uid>/volumes/kubernetes.io~projected/<volume>`, filled before anybody sees it. Sources are
//! `configMap`, `secret` and `downwardAPI`; those that only an API server can issue are a problem that says so. See
//! `docs/plugins/projected.md`.
//!
//! # Source
//! `pkg/volume/projected` of Kubernetes v1.36.

use k8s_openapi::api::core::v1::{Pod, ProjectedVolumeSource, Volume, VolumeProjection};

use crate::{ContentError, Objects, Payload, SpecError};

use super::payload_volume::{Checker, For, Keyed, PayloadKind};
use super::{config_map, downward_api, secret};

/// The plugin `kubernetes.io/projected`.
#[derive(Debug, Clone, Copy)]
pub struct Projected;

/// The names of the types that a source has; one that is well-formed has one.
fn types(source: &VolumeProjection) -> Vec<&'static str> {
    let all = [
        ("configMap", source.config_map.is_some()),
        ("secret", source.secret.is_some()),
        ("downwardAPI", source.downward_api.is_some()),
        ("serviceAccountToken", source.service_account_token.is_some()),
        ("clusterTrustBundle", source.cluster_trust_bundle.is_some()),
        ("podCertificate", source.pod_certificate.is_some()),
    ];
    all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

/// The paths that a source names itself; those of a source without items are only known with its object.
fn named_paths(source: &VolumeProjection) -> Vec<&str> {
    let items = source.config_map.as_ref().and_then(|s| s.items.as_ref());
    let items = items.into_iter().chain(source.secret.as_ref().and_then(|s| s.items.as_ref()));
    let fields = source.downward_api.as_ref().and_then(|s| s.items.as_ref());
    let keyed = items.flatten().map(|item| item.path.as_str());
    keyed.chain(fields.into_iter().flatten().map(|item| item.path.as_str())).collect()
}

impl PayloadKind for Projected {
    type Source = ProjectedVolumeSource;

    const NAME: &'static str = "kubernetes.io/projected";
    const FIELD: &'static str = "projected";
    const LOST: &'static [&'static str] = &["projected.sources", "projected.defaultMode"];
    const IN_MEMORY: bool = true;

    fn source(volume: &Volume) -> Option<&ProjectedVolumeSource> {
        volume.projected.as_ref()
    }

    /// Two sources that name the same path are refused, as the API server does (`validateProjectionSources`).
    fn check(checker: Checker<'_>, source: &ProjectedVolumeSource) -> Result<(), SpecError> {
        checker.mode("projected.defaultMode", source.default_mode)?;
        let mut paths = std::collections::BTreeSet::new();
        for (n, source) in source.sources.iter().flatten().enumerate() {
            let prefix = format!("projected.sources[{n}]");
            match types(source)[..] {
                [_] => {}
                [] => return Err(checker.error(prefix, "has no type that is known here")),
                ref many => return Err(checker.error(prefix, format!("has more than one type: {}", many.join(", ")))),
            }
            if let Some(config_map) = &source.config_map {
                if config_map.name.is_empty() {
                    return Err(checker.error(format!("{prefix}.configMap.name"), "is missing"));
                }
                checker.items(&format!("{prefix}.configMap"), config_map.items.as_deref())?;
            }
            if let Some(secret) = &source.secret {
                if secret.name.is_empty() {
                    return Err(checker.error(format!("{prefix}.secret.name"), "is missing"));
                }
                checker.items(&format!("{prefix}.secret"), secret.items.as_deref())?;
            }
            if let Some(fields) = &source.downward_api {
                downward_api::check_items(checker, &format!("{prefix}.downwardAPI"), fields.items.as_deref())?;
            }
            for path in named_paths(source) {
                let path = checker.path(&prefix, path)?;
                if paths.contains(&path) {
                    return Err(checker.error(prefix, format!("has the path {path:?} of another source too")));
                }
                paths.insert(path);
            }
        }
        Ok(())
    }

    /// Where keys of two objects meet in one path, the later source wins, as in the kubelet's `collectData`.
    fn project(
        whose: For<'_>,
        source: &ProjectedVolumeSource,
        pod: &Pod,
        objects: &dyn Objects,
        payload: &mut Payload,
    ) -> Result<(), ContentError> {
        let ProjectedVolumeSource { default_mode, sources } = source;
        for source in sources.iter().flatten() {
            if let Some(s) = &source.config_map {
                let keyed = Keyed {
                    items: s.items.as_deref(),
                    default_mode: *default_mode,
                    ..config_map::keyed(&s.name, s.optional)
                };
                if let Some(object) = keyed.found(whose, objects.config_map(&whose.pod.namespace, &s.name))? {
                    keyed.project(whose, &config_map::keys(&object), payload)?;
                }
            } else if let Some(s) = &source.secret {
                let keyed = Keyed {
                    items: s.items.as_deref(),
                    default_mode: *default_mode,
                    ..secret::keyed(&s.name, s.optional)
                };
                if let Some(object) = keyed.found(whose, objects.secret(&whose.pod.namespace, &s.name))? {
                    keyed.project(whose, &secret::keys(&object), payload)?;
                }
            } else if let Some(s) = &source.downward_api {
                downward_api::project(whose, s.items.as_deref(), *default_mode, pod, objects, payload)?;
            } else {
                let name = types(source).first().copied().unwrap_or("unknown");
                return Err(whose.error(
                    "NeedsApiServer",
                    format_args!("the source {name} is issued by the API server, and there is none"),
                    "Remove the source from the volume (for serviceAccountToken: set automountServiceAccountToken to \
                     false), or run with an API server.",
                ));
            }
        }
        Ok(())
    }
}
