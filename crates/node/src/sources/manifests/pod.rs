//! A pod of a manifest, with every name in it valid.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodSpec, VolumeDevice, VolumeMount};
use refloat_record::{OuterSpecName, PodRef, PodUid, Verbatim};
use refloat_volume::Object;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// A pod as a manifest gives it.
#[derive(Debug, Clone)]
pub struct ManifestPod {
    /// Its names.
    pub pod: PodRef,
    /// The pod as it came; the typed one has uid and namespace filled in.
    pub object: Object<Pod>,
}

impl ManifestPod {
    /// Reads a pod out of JSON, or says which field is wrong. `file` is where it came from, for its uid.
    pub fn new(file: &str, value: &Value) -> Result<Self, String> {
        let object = Object::<Pod>::new(Verbatim::from_value(value)).map_err(|e| e.to_string())?;
        let meta = &object.typed.metadata;
        let name = meta.name.clone().unwrap_or_default();
        let namespace = meta.namespace.clone().unwrap_or_else(|| "default".into());
        let uid = match meta.uid.as_deref() {
            None | Some("") => uid_of(&namespace, &name, file),
            Some(uid) => PodUid::new(uid).map_err(|e| format!("metadata.uid: {e}"))?,
        };
        Self::with_ref(PodRef { uid, namespace, name }, object)
    }

    /// The pod with these names, if every name in its spec is valid.
    pub fn with_ref(pod: PodRef, mut object: Object<Pod>) -> Result<Self, String> {
        object.typed.metadata.uid = Some(pod.uid.to_string());
        object.typed.metadata.namespace = Some(pod.namespace.clone());
        object.typed.metadata.name = Some(pod.name.clone());
        let spec = object.typed.spec.as_ref().ok_or("spec is missing")?;
        check_names(spec)?;
        Ok(Self { pod, object })
    }
}

/// The uid of a pod that has none: stable as long as it is the same pod of the same file.
///
/// # Source
/// The kubelet makes one from the file's whole content and the host name (`applyDefaults` in
/// `pkg/kubelet/config/common.go`), so that each edit makes another pod; here an edit updates the pod.
pub fn uid_of(namespace: &str, name: &str, file: &str) -> PodUid {
    let mut hash = Sha256::new();
    for part in ["refloat pod", namespace, name, file] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let mut id: [u8; 16] = hash.finalize()[..16].try_into().expect("a hash has 32 bytes");
    // Version 8 (made in a way of our own), variant 1: RFC 9562.
    id[6] = id[6] & 0x0f | 0x80;
    id[8] = id[8] & 0x3f | 0x80;
    let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |hex, b| hex + &format!("{b:02x}"));
    let text =
        format!("{}-{}-{}-{}-{}", hex(&id[..4]), hex(&id[4..6]), hex(&id[6..8]), hex(&id[8..10]), hex(&id[10..]));
    PodUid::new(text).expect("hexadecimal digits")
}

/// A container's part that matters here.
pub(crate) struct ContainerRef<'a> {
    pub(crate) list: &'static str,
    pub(crate) name: &'a str,
    pub(crate) mounts: &'a [VolumeMount],
    pub(crate) devices: &'a [VolumeDevice],
    pub(crate) env: &'a [k8s_openapi::api::core::v1::EnvVar],
    pub(crate) env_from: &'a [k8s_openapi::api::core::v1::EnvFromSource],
}

/// The containers of all three lists.
pub(crate) fn containers(spec: &PodSpec) -> Vec<ContainerRef<'_>> {
    let mut all = Vec::new();
    for c in spec.init_containers.as_deref().unwrap_or_default() {
        all.push(container_ref("initContainers", c));
    }
    for c in &spec.containers {
        all.push(container_ref("containers", c));
    }
    for c in spec.ephemeral_containers.as_deref().unwrap_or_default() {
        all.push(ContainerRef {
            list: "ephemeralContainers",
            name: &c.name,
            mounts: c.volume_mounts.as_deref().unwrap_or_default(),
            devices: c.volume_devices.as_deref().unwrap_or_default(),
            env: c.env.as_deref().unwrap_or_default(),
            env_from: c.env_from.as_deref().unwrap_or_default(),
        });
    }
    all
}

fn container_ref<'a>(list: &'static str, c: &'a k8s_openapi::api::core::v1::Container) -> ContainerRef<'a> {
    ContainerRef {
        list,
        name: &c.name,
        mounts: c.volume_mounts.as_deref().unwrap_or_default(),
        devices: c.volume_devices.as_deref().unwrap_or_default(),
        env: c.env.as_deref().unwrap_or_default(),
        env_from: c.env_from.as_deref().unwrap_or_default(),
    }
}

/// Names that become folders must be single folder entries, and each volume and container must have one of its own.
///
/// # Source
/// `ValidatePodSpec` of `pkg/apis/core/validation`: unique names, and mounts only of the pod's own volumes.
fn check_names(spec: &PodSpec) -> Result<(), String> {
    let mut volumes = BTreeSet::new();
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        OuterSpecName::new(&volume.name).map_err(|e| format!("spec.volumes[{i}].name: {e}"))?;
        if !volumes.insert(volume.name.as_str()) {
            return Err(format!("spec.volumes[{i}].name: {:?} stands twice", volume.name));
        }
    }
    let mut names = BTreeSet::new();
    for container in containers(spec) {
        let ContainerRef { list, name, mounts, devices, .. } = container;
        OuterSpecName::new(name).map_err(|e| format!("spec.{list}[].name: {e}"))?;
        if !names.insert(name) {
            return Err(format!("spec.{list}[].name: {name:?} stands twice"));
        }
        let mounts = mounts.iter().map(|m| (m.name.as_str(), "volumeMounts"));
        let devices = devices.iter().map(|d| (d.name.as_str(), "volumeDevices"));
        for (i, (volume, field)) in mounts.chain(devices).enumerate() {
            if !volumes.contains(volume) {
                return Err(format!("spec.{list}[{name}].{field}: entry {i} names no volume of the pod: {volume:?}"));
            }
        }
    }
    Ok(())
}
