//! What a driver is told besides the spec.
//!
//! It is looked up when the pod is admitted and again when objects change, kept in memory, and never recorded: records
//! name secrets, they do not hold them.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret, SecretReference};
use k8s_openapi::api::storage::v1::CSIDriverSpec;
use refloat_csi::{Secrets, StringMap};
use refloat_record::{PodRef, Verbatim};

use super::source::Source;
use crate::{ContentError, Lookup, Object, Objects, Problem, Quantity, SpecSource, VolumeError, VolumeSpec};

/// How often a volume is published again whose driver asks for that.
///
/// # Source
/// The kubelet does so each time it syncs the pod, which it does about once a minute (`syncFrequency`).
pub const REPUBLISH_EVERY: Duration = Duration::from_secs(60);

/// When the files of a volume are given to the pod's fsGroup.
///
/// # Source
/// `FSGroupPolicy` of the storage API v1; absent means `ReadWriteOnceWithFSType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FsGroupPolicy {
    /// If a file system type is given and the volume is for one node's writing.
    ReadWriteOnceWithFsType,
    /// Always.
    File,
    /// Never.
    None,
}

/// What a driver is told besides the spec. Its `Debug` shows no secret's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverInputs {
    pub(super) fs_group_policy: FsGroupPolicy,
    /// `csi.storage.k8s.io/pod.name` and the like, if the driver wants them.
    pub(super) pod_info: StringMap,
    pub(super) publish_context: StringMap,
    pub(super) stage_secrets: Secrets,
    pub(super) publish_secrets: Secrets,
    pub(super) expand_secrets: Secrets,
    pub(super) requires_republish: bool,
    /// The label to mount with, if the driver can and the pod has one.
    pub(super) selinux_label: Option<String>,
    /// The node's name, for `vol_data.json`.
    pub(super) node_name: String,
    /// The size in bytes that the file system is to have, if the claim says that it does not have it yet.
    pub(super) grow_to: Option<i64>,
}

impl DriverInputs {
    /// Only what a program that is no CSI driver is told: of the pod, and secrets.
    pub(crate) fn told(pod_info: StringMap, secrets: Secrets) -> Self {
        Self {
            fs_group_policy: FsGroupPolicy::None,
            pod_info,
            publish_context: StringMap::new(),
            stage_secrets: Secrets::default(),
            publish_secrets: secrets,
            expand_secrets: Secrets::default(),
            requires_republish: false,
            selinux_label: None,
            node_name: String::new(),
            grow_to: None,
        }
    }

    /// What is told of the pod.
    pub(crate) fn pod_info(&self) -> &StringMap {
        &self.pod_info
    }

    /// The secrets that SetUp tells.
    pub(crate) fn secrets(&self) -> &Secrets {
        &self.publish_secrets
    }

    /// All secrets that a driver is told in any call.
    pub(crate) fn all_secrets(&self) -> [&Secrets; 3] {
        [&self.stage_secrets, &self.publish_secrets, &self.expand_secrets]
    }

    /// Whether the driver is to be asked to publish again from time to time, [`REPUBLISH_EVERY`].
    pub fn requires_republish(&self) -> bool {
        self.requires_republish
    }

    /// What attaching gave.
    pub fn publish_context(&self) -> &StringMap {
        &self.publish_context
    }
}

/// The inputs, which the core looks up for each volume of such a plugin before it is set up.
pub(crate) fn needed(inputs: Option<&DriverInputs>) -> Result<&DriverInputs, VolumeError> {
    inputs.ok_or_else(|| {
        VolumeError::Refused(Problem::new(
            "NoInputs",
            "what the driver is to be told was not looked up",
            "This is a fault in Refloat; please report it.",
        ))
    })
}

fn problem(code: &'static str, message: String, hint: &'static str) -> ContentError {
    ContentError(Problem::new(code, message, hint))
}

/// Looks everything up.
pub(super) fn look_up(
    spec: &VolumeSpec,
    pod: &Pod,
    pod_ref: &PodRef,
    objects: &dyn Objects,
) -> Result<DriverInputs, ContentError> {
    let source =
        Source::of(spec).map_err(|error| problem("BadSpec", error.to_string(), "Correct the volume's spec."))?;
    let name = source.driver();
    let driver = match objects.csi_driver(name) {
        Lookup::Found(object) => Some(object.spec.clone()),
        Lookup::Absent => None,
        Lookup::Unknown(why) => {
            let message = format!("the CSIDriver {name} cannot be looked up: {why}");
            return Err(problem("CSIDriverUnknown", message, "What is mounted stays; correct what cannot be read."));
        }
    };
    let driver = driver.unwrap_or_default();
    check_lifecycle(source, &driver)?;
    if driver.token_requests.as_ref().is_some_and(|requests| !requests.is_empty()) {
        return Err(problem(
            "TokensUnavailable",
            format!("the CSIDriver {name} asks for service account tokens, and nothing here can issue any"),
            "Only an API server issues tokens; run the pod where there is one, or use another driver.",
        ));
    }
    let pod_spec = pod.spec.as_ref();
    let secrets = SecretsOf { source, namespace: &pod_ref.namespace, objects };
    Ok(DriverInputs {
        fs_group_policy: match driver.fs_group_policy.as_deref() {
            Some("File") => FsGroupPolicy::File,
            Some("None") => FsGroupPolicy::None,
            _ => FsGroupPolicy::ReadWriteOnceWithFsType,
        },
        pod_info: if driver.pod_info_on_mount == Some(true) {
            let account = pod_spec.and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
            pod_info(pod_ref, account, source.is_ephemeral())
        } else {
            StringMap::new()
        },
        publish_context: publish_context(spec, source, driver.attach_required, objects)?,
        stage_secrets: secrets.of_persistent(|csi| csi.node_stage_secret_ref.as_ref())?,
        publish_secrets: secrets.publish()?,
        expand_secrets: secrets.of_persistent(|csi| csi.node_expand_secret_ref.as_ref())?,
        requires_republish: driver.requires_republish == Some(true),
        selinux_label: selinux_label(spec, pod).filter(|_| driver.se_linux_mount == Some(true)),
        node_name: node_name(pod),
        grow_to: grow_to(spec, objects),
    })
}

/// # Source
/// `supportsVolumeLifecycleMode` of the kubelet's `csiPlugin`: without a `CSIDriver`, or modes in it, persistent only.
fn check_lifecycle(source: Source<'_>, driver: &CSIDriverSpec) -> Result<(), ContentError> {
    let modes = driver.volume_lifecycle_modes.as_deref().unwrap_or_default();
    let wanted = if source.is_ephemeral() { "Ephemeral" } else { "Persistent" };
    let allowed = if modes.is_empty() { wanted == "Persistent" } else { modes.iter().any(|mode| mode == wanted) };
    if allowed {
        return Ok(());
    }
    Err(problem(
        "LifecycleUnsupported",
        format!("the driver {} does not say that it makes {} volumes", source.driver(), wanted.to_lowercase()),
        "Its CSIDriver object must list the mode in spec.volumeLifecycleModes; without one only persistent volumes are \
         made.",
    ))
}

/// # Source
/// `getPodInfoAttrs` in `pkg/volume/csi/csi_util.go`.
fn pod_info(pod: &PodRef, account: &str, ephemeral: bool) -> StringMap {
    [
        ("pod.name", pod.name.as_str()),
        ("pod.namespace", pod.namespace.as_str()),
        ("pod.uid", pod.uid.as_str()),
        ("serviceAccount.name", account),
        ("ephemeral", if ephemeral { "true" } else { "false" }),
    ]
    .into_iter()
    .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()))
    .collect()
}

/// What attaching gave. Where nobody attaches anything (no `VolumeAttachment` is known and the driver's object does not
/// insist), it is empty, as for drivers that need no attaching.
fn publish_context(
    spec: &VolumeSpec,
    source: Source<'_>,
    attach_required: Option<bool>,
    objects: &dyn Objects,
) -> Result<StringMap, ContentError> {
    if source.is_ephemeral() || attach_required == Some(false) {
        return Ok(StringMap::new());
    }
    let (driver, volume) = (source.driver(), spec.spec_name.as_str());
    match objects.volume_attachment(driver, volume) {
        Lookup::Found(attachment) => match &attachment.status {
            Some(status) if status.attached => Ok(status.attachment_metadata.clone().unwrap_or_default()),
            _ => Err(problem(
                "NotAttached",
                format!("PersistentVolume {volume} is not attached to this node yet by the driver {driver}"),
                "It is set up when its VolumeAttachment says that it is attached.",
            )),
        },
        Lookup::Absent if attach_required == Some(true) => Err(problem(
            "NotAttached",
            format!("the driver {driver} needs PersistentVolume {volume} attached, and there is no VolumeAttachment"),
            "Attach it, and give its VolumeAttachment with status.attached; or set attachRequired to false in its CSIDriver.",
        )),
        Lookup::Absent => Ok(StringMap::new()),
        Lookup::Unknown(why) => Err(problem(
            "AttachmentUnknown",
            format!("the VolumeAttachment of PersistentVolume {volume} cannot be looked up: {why}"),
            "What is mounted stays; correct what cannot be read.",
        )),
    }
}

/// Looks up a secret that a driver is to be given.
pub(crate) fn secret(
    objects: &dyn Objects,
    namespace: &str,
    name: &str,
    driver: &str,
) -> Result<Arc<Secret>, ContentError> {
    match objects.secret(namespace, name) {
        Lookup::Found(secret) => Ok(secret),
        Lookup::Absent => {
            let message = format!("there is no Secret {namespace}/{name}, which the driver {driver} is to be given");
            Err(problem("SecretMissing", message, "Create the Secret; what is mounted stays as it is."))
        }
        Lookup::Unknown(why) => {
            let message = format!("Secret {namespace}/{name} cannot be looked up: {why}");
            Err(problem("SecretUnknown", message, "What is mounted stays; correct what cannot be read."))
        }
    }
}

/// Looks up the secrets that a volume refers to.
struct SecretsOf<'a> {
    source: Source<'a>,
    namespace: &'a str,
    objects: &'a dyn Objects,
}

impl SecretsOf<'_> {
    fn of_persistent(
        &self,
        reference: impl Fn(&k8s_openapi::api::core::v1::CSIPersistentVolumeSource) -> Option<&SecretReference>,
    ) -> Result<Secrets, ContentError> {
        match self.source {
            Source::Persistent(csi) => match reference(csi) {
                Some(reference) => self.get(
                    reference.namespace.as_deref().unwrap_or_default(),
                    reference.name.as_deref().unwrap_or_default(),
                ),
                None => Ok(Secrets::default()),
            },
            Source::Ephemeral(_) => Ok(Secrets::default()),
        }
    }

    fn publish(&self) -> Result<Secrets, ContentError> {
        match self.source {
            Source::Persistent(_) => self.of_persistent(|csi| csi.node_publish_secret_ref.as_ref()),
            Source::Ephemeral(csi) => match &csi.node_publish_secret_ref {
                Some(reference) => self.get(self.namespace, &reference.name),
                None => Ok(Secrets::default()),
            },
        }
    }

    fn get(&self, namespace: &str, name: &str) -> Result<Secrets, ContentError> {
        let driver = self.source.driver();
        let secret = secret(self.objects, namespace, name, driver)?;
        let mut values = StringMap::new();
        for (key, value) in secret.data.iter().flatten() {
            // The protocol has texts. A value is never part of a message.
            let Ok(text) = String::from_utf8(value.0.clone()) else {
                let message =
                    format!("the key {key:?} of Secret {namespace}/{name} is no text, and a driver is told texts");
                return Err(problem("SecretNotText", message, "Give it a value that is UTF-8."));
            };
            values.insert(key.clone(), text);
        }
        Ok(Secrets::new(values))
    }
}

/// The label that the pod's processes run with, where that can be told from the pod: for a volume that only one pod may use.
///
/// # Source
/// `SELinuxMountReadWriteOncePod` of Kubernetes; `SELinuxOptionsToFileLabel` fills what is missing from the runtime's
/// default, of which a file's type and role are these.
fn selinux_label(spec: &VolumeSpec, pod: &Pod) -> Option<String> {
    let modes = spec.persistent_volume()?.spec.as_ref()?.access_modes.as_deref()?;
    if modes != ["ReadWriteOncePod"] {
        return None;
    }
    let options = pod.spec.as_ref()?.security_context.as_ref()?.se_linux_options.as_ref()?;
    let level = options.level.as_deref().filter(|level| !level.is_empty())?;
    let or = |value: &Option<String>, default: &str| {
        value.as_deref().filter(|text| !text.is_empty()).unwrap_or(default).to_owned()
    };
    let user = or(&options.user, "system_u");
    Some(format!("{user}:object_r:{}:{level}", or(&options.type_, "container_file_t")))
}

/// This node's name: as the pod says it, else the machine's own in small letters, as the kubelet does.
fn node_name(pod: &Pod) -> String {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|name| !name.is_empty());
    of_pod.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase())
}

/// The volume's size, if the claim says that its file system is smaller still.
///
/// # Source
/// `pvc.status.capacity` is what the file system has, and `pv.spec.capacity` what the volume has: the kubelet grows the
/// file system when it mounts a volume of which they differ.
fn grow_to(spec: &VolumeSpec, objects: &dyn Objects) -> Option<i64> {
    let SpecSource::Persistent { persistent_volume, claim, .. } = &spec.source else { return None };
    let wanted = capacity(&persistent_volume.typed)?;
    let Lookup::Found(claim) = objects.claim(&claim.namespace, &claim.name) else { return None };
    let has = claim.typed.status.as_ref()?.capacity.as_ref()?.get("storage")?;
    let has = bytes(&has.0)?;
    (has < wanted).then_some(wanted)
}

/// A volume's size in bytes.
pub(super) fn capacity(volume: &k8s_openapi::api::core::v1::PersistentVolume) -> Option<i64> {
    bytes(&volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0)
}

/// The size in bytes of a recorded `PersistentVolume`, if it says one.
pub(crate) fn recorded_capacity(persistent_volume: Option<&Verbatim>) -> Option<i64> {
    capacity(&Object::new(persistent_volume?.clone()).ok()?.typed)
}

fn bytes(text: &str) -> Option<i64> {
    let whole = Quantity::parse(text).ok()?.ceil_div(Quantity::new(1))?;
    i64::try_from(whole).ok().filter(|bytes| *bytes > 0)
}
