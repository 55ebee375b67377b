//! What a spec says, and the options that a driver is told of it.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Pod;
use refloat_csi::{Secrets, StringMap};
use refloat_record::{FsGroup, PluginName, PodRef, Verbatim};

use super::{is_flex_volume, program_of};
use crate::plugins::csi::secret;
use crate::{ContentError, DriverInputs, Objects, Problem, SpecError, SpecSource, VolumeSpec};

/// The option that a driver's own `providerInfo` object comes back in.
pub(super) const PROVIDER_INFO: &str = "refloat.dev/provider-info";

/// How the option of a secret's key begins.
const SECRET: &str = "kubernetes.io/secret/";

/// The source, whichever form it has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::plugins) struct Source<'a> {
    pub(super) driver: &'a str,
    fs_type: &'a str,
    read_only: bool,
    options: Option<&'a BTreeMap<String, String>>,
    /// Namespace, if it is named, and name.
    secret: Option<(Option<&'a str>, &'a str)>,
}

impl<'a> Source<'a> {
    pub(in crate::plugins) fn of(spec: &'a SpecSource) -> Option<Self> {
        match spec {
            SpecSource::Inline { volume } => volume.typed.flex_volume.as_ref().map(|source| Self {
                driver: &source.driver,
                fs_type: source.fs_type.as_deref().unwrap_or_default(),
                read_only: source.read_only == Some(true),
                options: source.options.as_ref(),
                secret: source.secret_ref.as_ref().map(|secret| (None, secret.name.as_str())),
            }),
            SpecSource::Persistent { persistent_volume, .. } => {
                let source = persistent_volume.typed.spec.as_ref()?.flex_volume.as_ref()?;
                Some(Self {
                    driver: &source.driver,
                    fs_type: source.fs_type.as_deref().unwrap_or_default(),
                    read_only: source.read_only == Some(true),
                    options: source.options.as_ref(),
                    secret: source.secret_ref.as_ref().map(|secret| {
                        let namespace = secret.namespace.as_deref().filter(|namespace| !namespace.is_empty());
                        (namespace, secret.name.as_deref().unwrap_or_default())
                    }),
                })
            }
        }
    }

    /// The plugin's name, which is the driver's; none if it can be no driver's.
    pub(in crate::plugins) fn plugin(self) -> Option<PluginName> {
        let plugin = PluginName::new(self.driver).ok()?;
        (is_flex_volume(&plugin) && program_of("/".as_ref(), &plugin).is_some()).then_some(plugin)
    }

    pub(super) fn read_only(self, spec: &VolumeSpec) -> bool {
        spec.read_only || self.read_only
    }

    /// The options of every call that has some.
    ///
    /// # Source
    /// `NewOptionsForDriver` of `driver-call.go`: the spec's own options come last, and win.
    fn base(self, spec: &VolumeSpec) -> StringMap {
        let read_write = if self.read_only(spec) { "ro" } else { "rw" };
        [
            ("kubernetes.io/fsType", self.fs_type),
            ("kubernetes.io/readwrite", read_write),
            ("kubernetes.io/pvOrVolumeName", spec.spec_name.as_str()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
    }

    /// The options of calls that are about the volume's device.
    pub(super) fn of_device(self, spec: &VolumeSpec, provider_info: Option<&Verbatim>) -> String {
        self.text(self.base(spec), provider_info)
    }

    /// Those of `mount`. With secrets in them: for the call alone.
    ///
    /// # Source
    /// `SetUpAt` of `mounter.go`.
    pub(super) fn of_mount(
        self,
        spec: &VolumeSpec,
        inputs: &DriverInputs,
        fs_group: Option<FsGroup>,
        provider_info: Option<&Verbatim>,
    ) -> String {
        let mut options = self.base(spec);
        options.extend(inputs.pod_info().clone());
        options.extend(inputs.secrets().expose().iter().map(|(key, value)| (format!("{SECRET}{key}"), value.clone())));
        if let Some(group) = fs_group {
            options.insert("kubernetes.io/mounterArgs.FsGroup".into(), group.gid.to_string());
        }
        self.text(options, provider_info)
    }

    fn text(self, mut options: StringMap, provider_info: Option<&Verbatim>) -> String {
        if let Some(info) = provider_info {
            options.insert(PROVIDER_INFO.into(), info.get().to_owned());
        }
        options.extend(self.options.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
        serde_json::to_string(&options).expect("a map of texts")
    }
}

/// The source, if it can be used.
pub(in crate::plugins) fn checked(spec: &VolumeSpec) -> Result<Source<'_>, SpecError> {
    let source = Source::of(&spec.source).ok_or_else(|| spec.wrong("flexVolume", "is missing"))?;
    if source.plugin().is_none() {
        return Err(spec.wrong("flexVolume.driver", format!("is {:?}, which is no driver's name", source.driver)));
    }
    if source.secret.is_some_and(|(_, name)| name.is_empty()) {
        return Err(spec.wrong("flexVolume.secretRef.name", "is missing"));
    }
    Ok(source)
}

/// What `mount` is told of pod and secret.
///
/// # Source
/// `addSecretsToOptions` of `pkg/volume/flexvolume/util.go`: the secret's type is the driver's name.
pub(in crate::plugins) fn inputs(
    spec: &VolumeSpec,
    pod: &Pod,
    pod_ref: &PodRef,
    objects: &dyn Objects,
) -> Result<DriverInputs, ContentError> {
    let problem = |code, message: String, hint| ContentError(Problem::new(code, message, hint));
    let source = checked(spec).map_err(|error| problem("BadSpec", error.to_string(), "Correct the volume's spec."))?;
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
    let pod_info = [
        ("pod.name", pod_ref.name.as_str()),
        ("pod.namespace", pod_ref.namespace.as_str()),
        ("pod.uid", pod_ref.uid.as_str()),
        ("serviceAccount.name", account),
    ]
    .into_iter()
    .map(|(key, value)| (format!("kubernetes.io/{key}"), value.to_owned()))
    .collect();
    let Some((namespace, name)) = source.secret else {
        return Ok(DriverInputs::told(pod_info, Secrets::default()));
    };
    let (namespace, driver) = (namespace.unwrap_or(&pod_ref.namespace), source.driver);
    let secret = secret(objects, namespace, name, driver)?;
    if secret.type_.as_deref() != Some(driver) {
        let message = format!(
            "Secret {namespace}/{name} has the type {:?}, and a flexVolume driver is given only those of its own name",
            secret.type_.as_deref().unwrap_or("Opaque")
        );
        return Err(problem("SecretTypeWrong", message, "Create it anew with the driver's name as its type."));
    }
    let values = secret.data.iter().flatten().map(|(key, value)| (key.clone(), base64(value))).collect();
    Ok(DriverInputs::told(pod_info, Secrets::new(values)))
}

/// A secret's value as the API has it.
fn base64(value: &ByteString) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}
