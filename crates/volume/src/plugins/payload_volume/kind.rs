//! The one implementation of [`Plugin`] for the volumes whose content is computed.

use k8s_openapi::api::core::v1::{Pod, Volume};
use refloat_record::{PluginName, PodRef};

use super::{CAPABILITIES, Checker, For, checked, from_layout, set_up_folder, set_up_tmpfs, tear_down};
use crate::{
    Capabilities, ContentError, FoundVolume, Objects, Payload, Plugin, Rebuilt, SetUp, SpecError, SpecSource, TearDown,
    VolumeError, VolumeSpec,
};

/// What tells configMap, secret, downwardAPI and projected volumes apart.
pub(in crate::plugins) trait PayloadKind: Send + Sync + std::fmt::Debug {
    /// The volume's source in the pod.
    type Source;

    /// The plugin's name.
    const NAME: &'static str;
    /// The source's field in a `volumes[x]` entry.
    const FIELD: &'static str;
    /// The fields that a folder's name does not tell.
    const LOST: &'static [&'static str];
    /// Whether it is a tmpfs, so that the content reaches no disk.
    const IN_MEMORY: bool;

    /// The source, if the volume is of this kind.
    fn source(volume: &Volume) -> Option<&Self::Source>;

    /// Whether the source is well-formed.
    fn check(checker: Checker<'_>, source: &Self::Source) -> Result<(), SpecError>;

    /// The kubelet's own name for the volume, which nothing uses.
    fn volume_name(spec: &VolumeSpec, source: &Self::Source) -> String {
        let _ = source;
        spec.spec_name.to_string()
    }

    /// Adds the files of the source, which is well-formed.
    fn project(
        whose: For<'_>,
        source: &Self::Source,
        pod: &Pod,
        objects: &dyn Objects,
        payload: &mut Payload,
    ) -> Result<(), ContentError>;
}

/// The source, well-formed.
fn source<K: PayloadKind>(spec: &VolumeSpec) -> Result<&K::Source, SpecError> {
    let checker = Checker { spec };
    let source = K::source(&spec.source.volume().typed).ok_or_else(|| checker.error(K::FIELD, "is missing"))?;
    checker.name_fits()?;
    K::check(checker, source)?;
    Ok(source)
}

impl<K: PayloadKind> Plugin for K {
    fn name(&self) -> PluginName {
        PluginName::new(K::NAME).expect("a constant name")
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn in_memory(&self) -> bool {
        K::IN_MEMORY
    }

    fn supports(&self, source: &SpecSource) -> bool {
        matches!(source, SpecSource::Inline { volume } if K::source(&volume.typed).is_some())
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        source::<K>(spec).map(drop)
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        source::<K>(spec).map(|source| K::volume_name(spec, source))
    }

    fn content(
        &self,
        spec: &VolumeSpec,
        pod: &Pod,
        pod_ref: &PodRef,
        objects: &dyn Objects,
    ) -> Result<Option<Payload>, ContentError> {
        let whose = For { pod: pod_ref, spec };
        let source = source::<K>(spec).map_err(|e| whose.bad_spec(&e))?;
        let mut payload = Payload::default();
        K::project(whose, source, pod, objects, &mut payload)?;
        checked(whose, pod, payload).map(Some)
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        if K::IN_MEMORY { set_up_tmpfs(&step) } else { set_up_folder(&step) }
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        tear_down(step)
    }

    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        Some(from_layout(found, K::FIELD, K::LOST))
    }
}
