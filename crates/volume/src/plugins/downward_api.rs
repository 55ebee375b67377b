//! `downwardAPI`: fields of the pod and resources of its containers as files.
//!
//! A tmpfs at `pods/<uid>/volumes/kubernetes.io~downward-api/<volume>`, filled before anybody sees it. See
//! `docs/plugins/downward-api.md`.
//!
//! # Source
//! `pkg/volume/downwardapi`, `pkg/fieldpath` and `pkg/api/v1/resource` of Kubernetes v1.36.

mod field;
mod resource;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, DownwardAPIVolumeSource, Pod, Volume};

use crate::{ContentError, Objects, Payload, PayloadFile, SpecError};

use super::payload_volume::{self, Checker, For, PayloadKind};

/// The plugin `kubernetes.io/downward-api`.
#[derive(Debug, Clone, Copy)]
pub struct DownwardApi;

/// Whether these items can be projected.
pub(super) fn check_items(
    checker: Checker<'_>,
    prefix: &str,
    items: Option<&[DownwardAPIVolumeFile]>,
) -> Result<(), SpecError> {
    let mut paths = std::collections::BTreeSet::new();
    for (n, item) in items.unwrap_or_default().iter().enumerate() {
        let at = |field: &str| format!("{prefix}.items[{n}]{field}");
        checker.mode(at(".mode"), item.mode)?;
        if !paths.insert(checker.path(at(".path"), &item.path)?) {
            return Err(checker.error(at(".path"), "is the path of another item too"));
        }
        match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), None) => {
                field::check(&field.field_path).map_err(|why| checker.error(at(".fieldRef.fieldPath"), why))?;
            }
            (None, Some(resource)) => {
                resource::check(resource)
                    .map_err(|(field, why)| checker.error(at(&format!(".resourceFieldRef.{field}")), why))?;
            }
            (Some(_), Some(_)) => return Err(checker.error(at(""), "has both fieldRef and resourceFieldRef")),
            (None, None) => return Err(checker.error(at(""), "has neither fieldRef nor resourceFieldRef")),
        }
    }
    Ok(())
}

/// Adds the files that these items name.
pub(super) fn project(
    whose: For<'_>,
    items: Option<&[DownwardAPIVolumeFile]>,
    default_mode: Option<i32>,
    pod: &Pod,
    objects: &dyn Objects,
    payload: &mut Payload,
) -> Result<(), ContentError> {
    for item in items.unwrap_or_default() {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field::value(whose, pod, &field.field_path)?,
            (None, Some(resource)) => resource::value(whose, pod, resource, &objects.node_facts())?,
            (None, None) => continue, // refused by `check_items`
        };
        let file = PayloadFile { data: text.into_bytes(), mode: payload_volume::mode(item.mode, default_mode) };
        payload.insert(&item.path, file).map_err(|e| whose.error(e.0.code, &e, e.0.hint.clone()))?;
    }
    Ok(())
}

impl PayloadKind for DownwardApi {
    type Source = DownwardAPIVolumeSource;

    const NAME: &'static str = "kubernetes.io/downward-api";
    const FIELD: &'static str = "downwardAPI";
    const LOST: &'static [&'static str] = &["downwardAPI.items", "downwardAPI.defaultMode"];
    const IN_MEMORY: bool = true;

    fn source(volume: &Volume) -> Option<&DownwardAPIVolumeSource> {
        volume.downward_api.as_ref()
    }

    fn check(checker: Checker<'_>, source: &DownwardAPIVolumeSource) -> Result<(), SpecError> {
        checker.mode("downwardAPI.defaultMode", source.default_mode)?;
        check_items(checker, "downwardAPI", source.items.as_deref())
    }

    fn project(
        whose: For<'_>,
        source: &DownwardAPIVolumeSource,
        pod: &Pod,
        objects: &dyn Objects,
        payload: &mut Payload,
    ) -> Result<(), ContentError> {
        project(whose, source.items.as_deref(), source.default_mode, pod, objects, payload)
    }
}
