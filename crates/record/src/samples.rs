//! Records for tests.

use proptest::prelude::*;

use crate::{
    BootId, ClaimRef, DeviceMount, DeviceNumber, Driver, DriverName, FsGroup, FsGroupChangePolicy, OuterSpecName,
    PluginName, PodCheckpoint, PodRef, PodSource, PodUid, PodVolume, ProviderAnswer, ProviderAnswers, Record,
    RecordedBlock, RecordedMount, RecordedSubPath, RelPath, SpecName, UniqueVolumeName, Verbatim, VolumeMode,
};

pub(crate) fn pod(uid: &str) -> PodRef {
    PodRef { uid: PodUid::new(uid).unwrap(), namespace: "default".into(), name: "web".into() }
}

/// A small record of a pod's volume. `text` stands in its content and not in its key.
pub(crate) fn volume(uid: &str, name: &str, text: &str) -> Record {
    Record::PodVolume(PodVolume {
        pod: pod(uid),
        volume_names: vec![OuterSpecName::new(name).unwrap()],
        spec_name: SpecName::new(name).unwrap(),
        plugin: PluginName::new("kubernetes.io/empty-dir").unwrap(),
        unique_name: UniqueVolumeName::new(format!("kubernetes.io/empty-dir/{uid}-{name}")).unwrap(),
        mode: VolumeMode::Filesystem,
        read_only: false,
        mount_options: vec![],
        fs_group: None,
        selinux_label: None,
        volume: Verbatim::from_value(&serde_json::json!({"name": name, "emptyDir": {"text": text}})),
        persistent_volume: None,
        claim: None,
        path: None,
        host_path: None,
        device_mount_path: None,
        mount: None,
        block: None,
        sub_paths: vec![],
        confirmed: false,
        boot_id: BootId::new("b0").unwrap(),
        provider_info: None,
        providers: ProviderAnswers::new(),
        lost: vec![],
    })
}

pub(crate) fn checkpoint(uid: &str, text: &str) -> Record {
    Record::PodCheckpoint(PodCheckpoint {
        pod: pod(uid),
        source: PodSource::Manifest { folder: "/etc/pods".into(), folder_id: None, file: "web.yaml".into() },
        object: Verbatim::from_value(&serde_json::json!({"kind": "Pod", "text": text})),
    })
}

pub(crate) fn device(name: &str, text: &str) -> Record {
    Record::DeviceMount(DeviceMount {
        unique_name: UniqueVolumeName::new(format!("kubernetes.io/local-volume/{name}")).unwrap(),
        plugin: PluginName::new("kubernetes.io/local-volume").unwrap(),
        mode: VolumeMode::Filesystem,
        persistent_volume: Some(Verbatim::from_value(&serde_json::json!({"kind": "PersistentVolume", "text": text}))),
        volume: None,
        device: Some("/dev/loop0".into()),
        device_mount_path: RelPath::new("plugins/kubernetes.io/local-volume/mounts/pv").unwrap(),
        mount: None,
        publish_context: None,
        confirmed: false,
        boot_id: BootId::new("b0").unwrap(),
        provider_info: None,
        providers: ProviderAnswers::new(),
    })
}

pub(crate) fn driver(name: &str, text: &str) -> Record {
    Record::Driver(Driver {
        name: DriverName::new(name).unwrap(),
        endpoint: format!("/var/lib/kubelet/plugins/{name}/{text}.sock"),
        node_id: "node-1".into(),
        topology: std::collections::BTreeMap::new(),
        registered_at: "2026-01-02T03:04:05Z".into(),
        missing_since: None,
    })
}

fn element() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9.-]{1,12}", "\\PC{1,60}", "[a-z]{250,255}"]
        .prop_map(|s| s.replace(['/', '\0'], "_"))
        .prop_filter("a name", |s| PodUid::new(s).is_ok())
}

fn json() -> impl Strategy<Value = Verbatim> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::vec((any::<String>(), inner), 0..4).prop_map(|m| m.into_iter().collect()),
        ]
    })
    .prop_map(|v| Verbatim::from_value(&v))
}

fn mount() -> impl Strategy<Value = RecordedMount> {
    (any::<Option<std::num::NonZeroU64>>(), any::<String>(), any::<String>(), any::<String>())
        .prop_map(|(id, fs_type, source, root)| RecordedMount { id, fs_type, source, root })
}

/// What a provider said, if there is something to say.
fn answers(info: Option<Verbatim>, mount: Option<RecordedMount>) -> ProviderAnswers {
    let Some(mount) = mount else { return ProviderAnswers::new() };
    let boot_id = BootId::new("b0").unwrap();
    [("one".to_owned(), ProviderAnswer { boot_id, mount_id: mount.id, provider_info: info })].into()
}

/// Any record.
pub(crate) fn any_record() -> impl Strategy<Value = Record> {
    let names = (element(), element(), element(), "[ -~]{1,60}", any::<bool>());
    // An optional `null` is an absent one.
    let optional = json().prop_map(|v| (v.get() != "null").then_some(v));
    let parts = (json(), optional, prop::option::of(mount()), any::<String>(), any::<Option<u32>>());
    (names, parts, 0..4).prop_map(|((uid, spec, plugin, text, flag), (value, other, mount, free, gid), which)| {
        let pod = PodRef { uid: PodUid::new(&uid).unwrap(), namespace: free.clone(), name: text.clone() };
        let plugin = PluginName::new(plugin).unwrap();
        let unique_name = UniqueVolumeName::new(format!("{plugin}/{text}")).unwrap();
        let mode = if flag { VolumeMode::Block } else { VolumeMode::Filesystem };
        let boot_id = BootId::new(&text).unwrap();
        let path = RelPath::new(format!("pods/{spec}")).unwrap();
        match which {
            0 => Record::PodCheckpoint(PodCheckpoint {
                pod,
                source: PodSource::Manifest { folder: free, folder_id: flag.then(|| text.clone()), file: text },
                object: value,
            }),
            1 => Record::DeviceMount(DeviceMount {
                unique_name,
                plugin,
                mode,
                persistent_volume: other.clone(),
                volume: (value.get() != "null").then_some(value),
                device: Some(free),
                device_mount_path: path,
                mount: mount.clone(),
                publish_context: other.clone(),
                confirmed: flag,
                boot_id,
                provider_info: other.clone(),
                providers: answers(other, mount),
            }),
            2 => Record::Driver(Driver {
                name: DriverName::new(uid).unwrap(),
                endpoint: free.clone(),
                node_id: text.clone(),
                topology: if flag { [(spec, free)].into() } else { std::collections::BTreeMap::new() },
                registered_at: text.clone(),
                missing_since: flag.then_some(text),
            }),
            _ => Record::PodVolume(PodVolume {
                pod,
                volume_names: vec![OuterSpecName::new(&spec).unwrap()],
                spec_name: SpecName::new(&spec).unwrap(),
                plugin,
                unique_name,
                mode,
                read_only: flag,
                mount_options: vec![free.clone(), text.clone()],
                fs_group: gid.map(|gid| FsGroup { gid, policy: FsGroupChangePolicy::OnRootMismatch }),
                selinux_label: flag.then(|| free.clone()),
                volume: value,
                persistent_volume: other.clone(),
                claim: Some(ClaimRef { namespace: free.clone(), name: text, uid: flag.then(|| free.clone()) }),
                path: Some(path.clone()),
                host_path: flag.then(|| free.clone()),
                device_mount_path: Some(path.clone()),
                mount: mount.clone(),
                block: flag.then(|| RecordedBlock {
                    map_path: path.clone(),
                    link_target: free.clone(),
                    mount: mount.clone(),
                    device: gid.map(|major| DeviceNumber { major, minor: major }),
                }),
                sub_paths: vec![RecordedSubPath {
                    container: free,
                    index: gid.unwrap_or(0),
                    sub_path: "a/b".into(),
                    path,
                    mount: mount.clone(),
                }],
                confirmed: flag,
                boot_id,
                provider_info: other.clone(),
                providers: answers(other, mount),
                lost: vec![],
            }),
        }
    })
}
