//! `downwardAPI`: fields of the pod and resources of its containers as files.
//!
//! A tmpfs at `pods/<uid>/volumes/kubernetes.io~downward-api/<volume>`, filled before anybody sees it. See
//! `docs/plugins/downward-api.md`.
//!
//! # Source
//! `pkg/volume/downwardapi`, `pkg/fieldpath` and `pkg/api/v1/resource` of Kubernetes v1.36.

mod field;
mod resource;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, DownwardAPIVolumeSource, Pod};
use refloat_record::{PluginName, PodRef};

use crate::{
    Capabilities, ContentError, FoundVolume, Objects, Payload, PayloadFile, Plugin, Rebuilt, SetUp, SpecError,
    SpecSource, TearDown, VolumeError, VolumeSpec,
};

use super::payload_volume::{self, Checker, For};

/// The plugin `kubernetes.io/downward-api`.
#[derive(Debug, Clone, Copy)]
pub struct DownwardApi;

fn source(spec: &VolumeSpec) -> Result<&DownwardAPIVolumeSource, SpecError> {
    let missing = || Checker { spec }.error("downwardAPI", "is missing");
    spec.source.volume().typed.downward_api.as_ref().ok_or_else(missing)
}

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

impl Plugin for DownwardApi {
    fn name(&self) -> PluginName {
        PluginName::new("kubernetes.io/downward-api").expect("a constant name")
    }

    fn capabilities(&self) -> Capabilities {
        payload_volume::CAPABILITIES
    }

    fn supports(&self, source: &SpecSource) -> bool {
        matches!(source, SpecSource::Inline { volume } if volume.typed.downward_api.is_some())
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        let (checker, source) = (Checker { spec }, source(spec)?);
        checker.name_fits()?;
        checker.mode("downwardAPI.defaultMode", source.default_mode)?;
        check_items(checker, "downwardAPI", source.items.as_deref())
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        Ok(spec.spec_name.to_string())
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
        let mut payload = Payload::default();
        project(whose, source.items.as_deref(), source.default_mode, pod, objects, &mut payload)?;
        payload_volume::checked(whose, pod, payload)
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        payload_volume::set_up_tmpfs(&step)
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        payload_volume::tear_down(step)
    }

    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        let lost = ["downwardAPI.items", "downwardAPI.defaultMode"];
        Some(payload_volume::from_layout(found, "downwardAPI", &lost))
    }
}
