//! The files of every version that was ever written stay readable. Golden files are never changed: a new version
//! gets a folder of its own beside `v1`.

use refloat_record::codec::{decode_stored, encode};
use refloat_record::{
    BootId, ClaimRef, DeviceMount, DeviceNumber, Driver, DriverName, FsGroup, FsGroupChangePolicy, OuterSpecName,
    PluginName, PodCheckpoint, PodRef, PodSource, PodUid, PodVolume, ProviderAnswer, ProviderAnswers, Record,
    RecordedBlock, RecordedMount, RecordedSubPath, RelPath, SpecName, UniqueVolumeName, Verbatim, VolumeMode,
};

fn pod() -> PodRef {
    PodRef {
        uid: PodUid::new("7f9c0e52-6b0f-4d8a-9a55-3f1c2d4e5f60").unwrap(),
        namespace: "shop".into(),
        name: "db-0".into(),
    }
}

fn verbatim(text: &str) -> Verbatim {
    Verbatim::from_text(text.into()).unwrap()
}

fn mount(id: u64) -> RecordedMount {
    RecordedMount {
        id: std::num::NonZeroU64::new(id),
        fs_type: "ext4".into(),
        source: "/dev/loop3".into(),
        root: "/".into(),
    }
}

const VOLUME: &str = r#"{"name":"data","persistentVolumeClaim":{"claimName":"db"},"fieldOfTomorrow":{"a":1.0}}"#;
const PV: &str = r#"{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"disk-1"},"spec":{"capacity":{"storage":"1Gi"},"local":{"path":"/dev/loop3","fsType":"ext4"}}}"#;

fn device_mount() -> Record {
    Record::DeviceMount(DeviceMount {
        unique_name: UniqueVolumeName::new("kubernetes.io/local-volume/disk-1").unwrap(),
        plugin: PluginName::new("kubernetes.io/local-volume").unwrap(),
        mode: VolumeMode::Filesystem,
        persistent_volume: Some(verbatim(PV)),
        volume: None,
        device: Some("/dev/loop3".into()),
        device_mount_path: RelPath::new("plugins/kubernetes.io/local-volume/mounts/disk-1").unwrap(),
        mount: Some(mount(4_294_967_301)),
        publish_context: Some(verbatim(r#"{"devicePath":"/dev/x"}"#)),
        confirmed: false,
        boot_id: BootId::new("2c1f6c9e-0d5f-4f0e-8a8e-2f6f0a3f9b11").unwrap(),
        provider_info: Some(verbatim(r#"{"fsUUID":"0b6c"}"#)),
        providers: ProviderAnswers::new(),
    })
}

fn pod_volume() -> Record {
    let path = "pods/7f9c0e52-6b0f-4d8a-9a55-3f1c2d4e5f60/volumes/kubernetes.io~local-volume/disk-1";
    let sub = "pods/7f9c0e52-6b0f-4d8a-9a55-3f1c2d4e5f60/volume-subpaths/disk-1/main/0";
    Record::PodVolume(PodVolume {
        pod: pod(),
        volume_names: vec![OuterSpecName::new("data").unwrap(), OuterSpecName::new("again").unwrap()],
        spec_name: SpecName::new("disk-1").unwrap(),
        plugin: PluginName::new("kubernetes.io/local-volume").unwrap(),
        unique_name: UniqueVolumeName::new("kubernetes.io/local-volume/disk-1").unwrap(),
        mode: VolumeMode::Filesystem,
        read_only: true,
        mount_options: vec!["noatime".into()],
        fs_group: Some(FsGroup { gid: 2000, policy: FsGroupChangePolicy::OnRootMismatch }),
        selinux_label: Some("system_u:object_r:container_file_t:s0".into()),
        volume: verbatim(VOLUME),
        persistent_volume: Some(verbatim(PV)),
        claim: Some(ClaimRef { namespace: "shop".into(), name: "db".into(), uid: Some("c-1".into()) }),
        path: Some(RelPath::new(path).unwrap()),
        host_path: Some("/srv/x".into()),
        device_mount_path: Some(RelPath::new("plugins/kubernetes.io/local-volume/mounts/disk-1").unwrap()),
        mount: Some(mount(4_294_967_302)),
        block: None,
        sub_paths: vec![RecordedSubPath {
            container: "main".into(),
            index: 0,
            sub_path: "a/b".into(),
            path: RelPath::new(sub).unwrap(),
            mount: Some(RecordedMount { root: "/a/b".into(), ..mount(4_294_967_303) }),
        }],
        confirmed: false,
        boot_id: BootId::new("2c1f6c9e-0d5f-4f0e-8a8e-2f6f0a3f9b11").unwrap(),
        provider_info: Some(verbatim(r#"{"z":[1,null]}"#)),
        providers: ProviderAnswers::new(),
        lost: vec![],
    })
}

fn block_volume() -> Record {
    let Record::PodVolume(volume) = pod_volume() else { unreachable!("it is one") };
    let uid = &volume.pod.uid;
    let path = RelPath::new(format!("pods/{uid}/volumeDevices/kubernetes.io~local-volume/disk-1")).unwrap();
    let map_path = format!("plugins/kubernetes.io~local-volume/volumeDevices/disk-1/{uid}");
    let block = RecordedBlock {
        map_path: RelPath::new(map_path).unwrap(),
        link_target: "/dev/sdb".into(),
        mount: Some(RecordedMount {
            fs_type: "devtmpfs".into(),
            source: "devtmpfs".into(),
            root: "/sdb".into(),
            ..mount(4_294_967_302)
        }),
        device: Some(DeviceNumber { major: 8, minor: 16 }),
    };
    Record::PodVolume(PodVolume {
        mode: VolumeMode::Block,
        mount_options: vec![],
        fs_group: None,
        path: Some(path),
        host_path: None,
        device_mount_path: None,
        mount: None,
        block: Some(block),
        sub_paths: vec![],
        ..volume
    })
}

fn pod_checkpoint() -> Record {
    Record::PodCheckpoint(PodCheckpoint {
        pod: pod(),
        source: PodSource::Manifest { folder: "/etc/refloat/pods".into(), folder_id: None, file: "db.yaml".into() },
        object: verbatim(r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"db-0","namespace":"shop"},"spec":{}}"#),
    })
}

/// As newer programs write it: with the identity of the folder.
fn pod_checkpoint_with_folder_id() -> Record {
    let Record::PodCheckpoint(checkpoint) = pod_checkpoint() else { panic!("a checkpoint") };
    let source = PodSource::Manifest {
        folder: "/etc/refloat/pods".into(),
        folder_id: Some("6ec14b5a1dbcf5a3:131074".into()),
        file: "db.yaml".into(),
    };
    Record::PodCheckpoint(PodCheckpoint { source, ..checkpoint })
}

/// A volume and its device that a driver has confirmed.
fn confirmed() -> [Record; 2] {
    let (Record::DeviceMount(device), Record::PodVolume(volume)) = (device_mount(), pod_volume()) else {
        panic!("a device and a volume")
    };
    let info = Some(verbatim(r#"{"driver":"disk.example.com","volumeHandle":"h-1"}"#));
    [
        Record::DeviceMount(DeviceMount { confirmed: true, provider_info: info.clone(), ..device }),
        Record::PodVolume(PodVolume { confirmed: true, provider_info: info, ..volume }),
    ]
}

/// A volume and its device that providers were asked about: one had something to say, one had not.
fn provided() -> [Record; 2] {
    let (Record::DeviceMount(device), Record::PodVolume(volume)) = (device_mount(), pod_volume()) else {
        panic!("a device and a volume")
    };
    let answer = |id: u64, info: Option<&str>| ProviderAnswer {
        boot_id: BootId::new("2c1f6c9e-0d5f-4f0e-8a8e-2f6f0a3f9b11").unwrap(),
        mount_id: std::num::NonZeroU64::new(id),
        provider_info: info.map(verbatim),
    };
    let of_device =
        [("portal".to_owned(), answer(4_294_967_301, Some(r#"{"iqn":"iqn.2026-01.com.example:d","lun":1.0}"#)))];
    let of_volume = [
        ("portal".to_owned(), answer(4_294_967_302, Some(r#"{"b":[],"a":{}}"#))),
        ("quiet".to_owned(), answer(0, None)),
    ];
    [
        Record::DeviceMount(DeviceMount { providers: of_device.into(), ..device }),
        Record::PodVolume(PodVolume { providers: of_volume.into(), ..volume }),
    ]
}

fn driver(missing_since: Option<&str>) -> Record {
    Record::Driver(Driver {
        name: DriverName::new("disk.example.com").unwrap(),
        endpoint: "/var/lib/kubelet/plugins/disk.example.com/csi.sock".into(),
        node_id: "node-7".into(),
        topology: [("topology.example.com/zone".to_owned(), "a".to_owned())].into(),
        registered_at: "2026-01-02T03:04:05Z".into(),
        missing_since: missing_since.map(Into::into),
    })
}

/// Every kind of v1 is read as it was meant, and written as it always was.
#[test]
fn v1() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    let [confirmed_device, confirmed_volume] = confirmed();
    let [provided_device, provided_volume] = provided();
    let kinds = [
        ("device-mount", device_mount()),
        ("pod-volume", pod_volume()),
        ("pod-volume-block", block_volume()),
        ("pod-checkpoint", pod_checkpoint()),
        ("pod-checkpoint-folder-id", pod_checkpoint_with_folder_id()),
        ("device-mount-confirmed", confirmed_device),
        ("pod-volume-confirmed", confirmed_volume),
        ("device-mount-providers", provided_device),
        ("pod-volume-providers", provided_volume),
        ("driver", driver(None)),
        ("driver-missing", driver(Some("2026-01-03T00:00:00Z"))),
    ];
    for (name, expected) in kinds {
        let path = folder.join(name).with_extension("json");
        let golden = std::fs::read(&path).unwrap_or_else(|e| {
            let bytes = encode(&expected);
            panic!("{}: {e}; it would be:\n{}", path.display(), String::from_utf8_lossy(&bytes))
        });
        let stored = decode_stored(&golden).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(stored.record, expected, "{name}");
        assert!(stored.extra.is_empty(), "{name}");
        assert_eq!(String::from_utf8(encode(&expected)).unwrap(), String::from_utf8(golden).unwrap(), "{name}");
    }
}
