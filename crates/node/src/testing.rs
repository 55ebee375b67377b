//! Values for tests.

use refloat_record::{
    BootId, DeviceMount, PluginName, PodRef, PodUid, PodVolume, ProviderAnswers, RelPath, SpecName, UniqueVolumeName,
    Verbatim, VolumeMode,
};

pub(crate) const ROOT: &str = "/r";
pub(crate) const BOOT: &str = "this";

pub(crate) fn boot(text: &str) -> BootId {
    BootId::new(text).unwrap()
}

pub(crate) fn pod_ref(uid: &str) -> PodRef {
    PodRef { uid: PodUid::new(uid).unwrap(), namespace: "default".into(), name: format!("pod-{uid}") }
}

/// A record of a pod's volume, in its own folder, without a mount.
pub(crate) fn volume_record(uid: &str, plugin: &str, name: &str, boot_id: &str) -> PodVolume {
    let plugin = PluginName::new(plugin).unwrap();
    let unique_name = if plugin.as_str() == "kubernetes.io/local-volume" {
        format!("{plugin}/{name}")
    } else {
        format!("{plugin}/{uid}-{name}")
    };
    PodVolume {
        pod: pod_ref(uid),
        volume_names: vec![refloat_record::OuterSpecName::new(name).unwrap()],
        spec_name: SpecName::new(name).unwrap(),
        unique_name: UniqueVolumeName::new(unique_name).unwrap(),
        mode: VolumeMode::Filesystem,
        read_only: false,
        mount_options: vec![],
        fs_group: None,
        selinux_label: None,
        volume: Verbatim::from_text(format!(r#"{{"name":"{name}"}}"#)).unwrap(),
        persistent_volume: None,
        claim: None,
        path: RelPath::new(format!("pods/{uid}/volumes/{}/{name}", plugin.escaped())).ok(),
        plugin,
        host_path: None,
        device_mount_path: None,
        mount: None,
        block: None,
        sub_paths: vec![],
        confirmed: false,
        boot_id: boot(boot_id),
        provider_info: None,
        providers: ProviderAnswers::new(),
        lost: vec![],
    }
}

/// A record of a local volume's device.
pub(crate) fn device_record(name: &str, boot_id: &str) -> DeviceMount {
    DeviceMount {
        unique_name: UniqueVolumeName::new(format!("kubernetes.io/local-volume/{name}")).unwrap(),
        plugin: PluginName::new("kubernetes.io/local-volume").unwrap(),
        mode: VolumeMode::Filesystem,
        persistent_volume: None,
        volume: None,
        device: None,
        device_mount_path: RelPath::new(format!("plugins/kubernetes.io/local-volume/mounts/{name}")).unwrap(),
        mount: None,
        publish_context: None,
        confirmed: false,
        boot_id: boot(boot_id),
        provider_info: None,
        providers: ProviderAnswers::new(),
    }
}

/// A wanted pod for each uid, with an emptyDir `v` and a local volume `pv`.
pub(crate) fn desired_of(uids: &[&str]) -> crate::Desired {
    let pods = uids.iter().map(|uid| {
        let pod = crate::DesiredPod {
            pod: pod_ref(uid),
            source: refloat_record::PodSource::Manifest { folder: "/m".into(), folder_id: None, file: "f.yaml".into() },
            object: Verbatim::from_text("{}".into()).unwrap(),
            volumes: [("kubernetes.io/empty-dir", "v"), ("kubernetes.io/local-volume", "pv")]
                .map(|(plugin, name)| std::sync::Arc::new(arbitrary::desired_volume(uid, plugin, name, None, false)))
                .to_vec(),
            waiting: vec![],
            unsettled: None,
            only_checkpoint: None,
        };
        (PodUid::new(uid).unwrap(), pod)
    });
    crate::Desired { pods: pods.collect(), source: "manifests in /m".into(), ..crate::Desired::default() }
}

/// A node with a bit of everything: u1 is admitted and has an emptyDir and a device, u2 has a mount over its volume, u3
/// a volume that nobody wants, u4 files.
pub(crate) fn world() -> crate::Actual {
    let lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 8:16 / /r/plugins/kubernetes.io/local-volume/mounts/pv rw - ext4 /dev/sdb rw",
        "3 1 0:50 / /r/pods/u2/volumes/kubernetes.io~local-volume/other rw - tmpfs tmpfs rw",
        "4 1 8:1 /data /r/pods/u3/volumes/kubernetes.io~local-volume/old rw - ext4 /dev/sda1 rw",
        "5 1 8:1 /x /r/pods/u5/volume-subpaths/h/c/0 rw - ext4 /dev/sda1 rw",
    ];
    let recorded = |source: &str, root: &str| {
        Some(refloat_record::RecordedMount {
            id: None,
            fs_type: "ext4".into(),
            source: source.into(),
            root: root.into(),
        })
    };
    let mut device = device_record("pv", BOOT);
    device.mount = recorded("/dev/sdb", "/");
    let mut other = volume_record("u2", "kubernetes.io/local-volume", "other", BOOT);
    other.mount = recorded("/dev/sda1", "/data");
    let mut old = volume_record("u3", "kubernetes.io/local-volume", "old", BOOT);
    old.mount = recorded("/dev/sda1", "/data");
    let records = vec![
        refloat_record::Record::DeviceMount(device),
        refloat_record::Record::PodVolume(volume_record("u1", "kubernetes.io/empty-dir", "v", BOOT)),
        refloat_record::Record::PodVolume(other),
        refloat_record::Record::PodVolume(old),
        refloat_record::Record::PodCheckpoint(arbitrary::checkpoint("u1")),
    ];
    let pod = |uid: &str, files: bool| crate::PodTree { files: Some(files), ..crate::PodTree::new(uid.as_ref()) };
    let evidence = crate::Evidence {
        root: ROOT.into(),
        boot_id: boot(BOOT),
        records: refloat_record::Loaded { records, unreadable: vec![] },
        table: std::sync::Arc::new(refloat_mount::MountTable::from_mountinfo(lines.join("\n").as_bytes()).0),
        tree: Some(crate::Tree { pods: vec![pod("u4", true), pod("u5", false)], ..crate::Tree::default() }),
        missing_drivers: std::collections::BTreeMap::new(),
        hanging: std::collections::BTreeMap::new(),
    };
    crate::reconstruct(&evidence, &refloat_volume::Plugins::builtin())
}

/// Arbitrary evidence and wishes, out of few names, so that they meet.
pub(crate) mod arbitrary {
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use proptest::sample::select;
    use refloat_mount::MountTable;
    use refloat_record::{
        ClaimRef, Loaded, OuterSpecName, PodCheckpoint, PodSource, Record, RecordedBlock, RecordedMount,
        RecordedSubPath, Unreadable, UnreadableReason,
    };
    use refloat_volume::block::{HeldLoop, LoopMarks};
    use refloat_volume::{Object, Payload, Plugins, Problem, SpecSource, SubPathSpec, VolumeSpec};

    use super::*;
    use crate::evidence::{Blocks, Loops, PodTree, Tree, VolumeFolder};
    use crate::{Desired, DesiredPod, DesiredVolume, Evidence, VolumeKey, Waiting};

    const UIDS: [&str; 4] = ["u1", "u2", "u3", "u4"];
    const PLUGINS: [&str; 7] = [
        "kubernetes.io/empty-dir",
        "kubernetes.io/local-volume",
        "kubernetes.io/configmap",
        "kubernetes.io/host-path",
        "kubernetes.io/csi",
        "acme/x",
        "a~b",
    ];
    const NAMES: [&str; 4] = ["v", "pv", "w", "..x"];

    fn paths() -> impl Strategy<Value = String> {
        let pod = (select(&UIDS[..]), select(&PLUGINS[..]), select(&NAMES[..]))
            .prop_map(|(uid, plugin, name)| format!("pods/{uid}/volumes/{}/{name}", plugin.replace('/', "~")));
        let nested = pod.clone().prop_map(|path| format!("{path}/mount/deep"));
        let sub_path = (select(&UIDS[..]), select(&NAMES[..]), 0..3u32)
            .prop_map(|(uid, name, index)| format!("pods/{uid}/volume-subpaths/{name}/c/{index}"));
        let global = select(&NAMES[..]).prop_map(|name| format!("plugins/kubernetes.io/local-volume/mounts/{name}"));
        let odd = select(
            &[
                "pods",
                "pods/u1",
                "pods/u1/volumes",
                "pods/u1/etc-hosts",
                "plugins/kubernetes.io/csi/d/h/globalmount",
                "plugins/x",
                "other/place",
                "pods/u2/volumeDevices/kubernetes.io~csi/v",
                "plugins/kubernetes.io/csi/volumeDevices/v/dev/u1",
                "plugins/kubernetes.io~local-volume/volumeDevices/pv",
            ][..],
        )
        .prop_map(str::to_owned);
        prop_oneof![4 => pod, 1 => nested, 2 => sub_path, 2 => global, 2 => map_paths(), 1 => odd]
    }

    /// Where the local plugin binds the devices of block volumes.
    fn map_paths() -> impl Strategy<Value = String> {
        (select(&UIDS[..]), select(&NAMES[..]))
            .prop_map(|(uid, name)| format!("plugins/kubernetes.io~local-volume/volumeDevices/{name}/{uid}"))
    }

    /// Loop devices: with the mark of a map path, with another's, and with none.
    fn loops() -> impl Strategy<Value = Option<Loops>> {
        let one = (map_paths(), 0..3u8, any::<bool>(), any::<bool>());
        option::weighted(0.8, vec(one, 0..4)).prop_map(|found| {
            let marks = LoopMarks::of_numbers(1, 2);
            let all = found?.into_iter().enumerate().map(|(number, (path, whose, deleted, same_file))| HeldLoop {
                path: format!("/dev/loop{number}").into(),
                backing: if deleted { "/".into() } else { format!("/r/{path}").into() },
                deleted,
                mark: match whose {
                    0 => marks.mark(&RelPath::new(path).unwrap()),
                    1 => LoopMarks::of_numbers(3, 4).mark(&RelPath::new(path).unwrap()),
                    _ => b"/r/plugins".to_vec(),
                },
                same_file: same_file && whose == 2 && !deleted,
            });
            Some(Loops { all: all.collect(), marks })
        })
    }

    fn blocks() -> impl Strategy<Value = Blocks> {
        (vec(map_paths(), 0..4), loops()).prop_map(|(maps, loops)| {
            let mut maps: Vec<_> = maps.into_iter().map(Into::into).collect();
            maps.sort();
            maps.dedup();
            Blocks { maps, loops, published: vec![] }
        })
    }

    fn mount_lines() -> impl Strategy<Value = Vec<u8>> {
        let root = select(&["/", "/a", "/a/b", "/data//deleted", "/r", "/r/pods"][..]);
        let source = select(&["tmpfs", "/dev/sda1", "/dev/sdb", "server:/e"][..]);
        let line = (paths(), 0..20u32, 8..11u32, root, select(&["tmpfs", "ext4", "nfs4"][..]), source, any::<bool>());
        vec(line, 0..14).prop_map(|lines| {
            let mut text = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n".to_owned();
            for (id, (path, parent, minor, root, fs_type, source, outside)) in (2..).zip(lines) {
                let above = if outside { "/elsewhere/" } else { "/r/" };
                let parent = if parent < 14 { 1 } else { parent - 13 };
                let line = format!("{id} {parent} 8:{minor} {root} {above}{path} rw - {fs_type} {source} rw\n");
                text.push_str(&line);
            }
            text.into_bytes()
        })
    }

    fn recorded_mount() -> impl Strategy<Value = Option<RecordedMount>> {
        let text = |choice: &'static [&'static str]| select(choice).prop_map(str::to_owned);
        option::of((text(&["tmpfs", "ext4", ""]), text(&["tmpfs", "/dev/sdb", ""]), text(&["/", "/a", ""])))
            .prop_map(|mount| mount.map(|(fs_type, source, root)| RecordedMount { id: None, fs_type, source, root }))
    }

    fn a_boot() -> impl Strategy<Value = &'static str> {
        prop_oneof![3 => Just(BOOT), 1 => Just("another")]
    }

    fn pod_volumes() -> impl Strategy<Value = Record> {
        let names = (select(&UIDS[..]), select(&PLUGINS[..]), select(&NAMES[..]), a_boot());
        let sub_paths = vec((0..3u32, paths(), recorded_mount()), 0..2);
        let odd = (option::weighted(0.2, paths()), option::weighted(0.3, paths()), any::<bool>());
        (names, recorded_mount(), sub_paths, odd).prop_map(
            |((uid, plugin, name, boot), mount, sub_paths, (path, global, block))| {
                let mut record = volume_record(uid, plugin, name, boot);
                record.mount = mount;
                if let Some(path) = path {
                    record.path = RelPath::new(path).ok();
                }
                record.device_mount_path = global.and_then(|p| RelPath::new(p).ok());
                if block && (name == "w" || name == "pv") {
                    record.mode = VolumeMode::Block;
                    record.path = record
                        .path
                        .map(|p| p.as_str().replace("/volumes/", "/volumeDevices/"))
                        .and_then(|p| RelPath::new(p).ok());
                    let odd = uid == "u4" && name == "w";
                    let map = format!("plugins/kubernetes.io~local-volume/volumeDevices/{name}/{uid}");
                    record.block = (!odd || boot == BOOT).then(|| RecordedBlock {
                        map_path: RelPath::new(if odd { format!("{map}x") } else { map }).unwrap(),
                        link_target: "/dev/sdb".into(),
                        mount: record.mount.take(),
                        device: None,
                    });
                }
                let own = format!("pods/{uid}/volume-subpaths/{name}/c");
                record.sub_paths = sub_paths
                    .into_iter()
                    .map(|(index, path, mount)| RecordedSubPath {
                        container: "c".into(),
                        index,
                        sub_path: "a".into(),
                        path: RelPath::new(if index < 2 { format!("{own}/{index}") } else { path }).unwrap(),
                        mount,
                    })
                    .collect();
                Record::PodVolume(record)
            },
        )
    }

    fn devices() -> impl Strategy<Value = Record> {
        (select(&NAMES[..]), a_boot(), recorded_mount(), option::weighted(0.2, paths())).prop_map(
            |(name, boot, mount, path)| {
                let mut record = device_record(name, boot);
                record.mount = mount;
                if let Some(path) = path {
                    record.device_mount_path = RelPath::new(path).unwrap();
                }
                Record::DeviceMount(record)
            },
        )
    }

    fn checkpoints() -> impl Strategy<Value = Record> {
        select(&UIDS[..]).prop_map(|uid| Record::PodCheckpoint(checkpoint(uid)))
    }

    pub(crate) fn checkpoint(uid: &str) -> PodCheckpoint {
        PodCheckpoint {
            pod: pod_ref(uid),
            source: PodSource::Manifest { folder: "/m".into(), folder_id: None, file: "f.yaml".into() },
            object: Verbatim::from_text("{}".into()).unwrap(),
        }
    }

    fn trees() -> impl Strategy<Value = Option<Tree>> {
        let folder = (select(&PLUGINS[..]), select(&NAMES[..]), any::<bool>(), option::of(any::<bool>())).prop_map(
            |(plugin, name, is_dir, empty)| VolumeFolder {
                plugin: plugin.replace('/', "~"),
                name: name.into(),
                is_dir: is_dir || name != "w",
                link: (!is_dir).then(|| if name == "v" { "/etc" } else { "/dev/sdb" }.into()),
                link_device: None,
                empty,
                foreign: None,
            },
        );
        let ready = vec(select(&["v", "wrapped_v", "pv", "wrapped_w", "zzz"][..]).prop_map(str::to_owned), 0..3);
        let pod = (
            select(&UIDS[..]),
            vec(folder.clone(), 0..3),
            vec(folder, 0..2),
            ready,
            option::of(any::<bool>()),
            vec(select(&["volume-subpaths/v/c/0", "volume-subpaths/zz/c", "volume-subpaths"][..]), 0..2),
        )
            .prop_map(|(uid, volumes, volume_devices, ready, files, sub_paths)| PodTree {
                volumes,
                volume_devices,
                sub_paths: sub_paths.into_iter().map(Into::into).collect(),
                ready,
                files,
                ..PodTree::new(uid.as_ref())
            });
        let global = vec(select(&NAMES[..]), 0..3).prop_map(|names| {
            names.iter().map(|n| format!("plugins/kubernetes.io/local-volume/mounts/{n}").into()).collect()
        });
        option::weighted(
            0.9,
            (vec(pod, 0..4), global, blocks()).prop_map(|(mut pods, global_folders, blocks)| {
                pods.sort_by(|a, b| a.path.cmp(&b.path));
                pods.dedup_by(|a, b| a.path == b.path);
                Tree { pods, global_folders, blocks, ..Tree::default() }
            }),
        )
    }

    /// Evidence.
    pub(crate) fn evidence() -> impl Strategy<Value = Evidence> {
        let records = vec(prop_oneof![5 => pod_volumes(), 2 => devices(), 2 => checkpoints()], 0..10);
        let unreadable = vec(prop_oneof![pod_volumes(), devices()], 0..2);
        (records, unreadable, mount_lines(), trees()).prop_map(|(mut records, unreadable, lines, tree)| {
            records.sort_by_key(Record::key);
            records.dedup_by_key(|r| r.key());
            let unreadable = unreadable
                .into_iter()
                .map(|record| Unreadable {
                    path: "/state/x".into(),
                    name: "x".into(),
                    key: Some(record.key()),
                    reason: UnreadableReason::Torn { detail: "empty".into() },
                    set_aside: true,
                })
                .collect();
            Evidence {
                root: ROOT.into(),
                boot_id: boot(BOOT),
                records: Loaded { records, unreadable },
                table: Arc::new(MountTable::from_mountinfo(&lines).0),
                tree,
                missing_drivers: std::collections::BTreeMap::new(),
                hanging: std::collections::BTreeMap::new(),
            }
        })
    }

    pub(crate) fn desired_volume(
        uid: &str,
        plugin: &str,
        name: &str,
        content: Option<u8>,
        sub_path: bool,
    ) -> DesiredVolume {
        let key = VolumeKey {
            pod: PodUid::new(uid).unwrap(),
            spec_name: SpecName::new(name).unwrap(),
            plugin: PluginName::new(plugin).unwrap(),
            mode: VolumeMode::Filesystem,
        };
        let record = volume_record(uid, plugin, name, BOOT);
        let volume = Object::new(record.volume.clone()).unwrap();
        let local = plugin == "kubernetes.io/local-volume";
        let source = if local {
            let object = serde_json::json!({
                "metadata": { "name": name }, "spec": { "local": { "path": "/data" } },
            });
            SpecSource::Persistent {
                volume,
                persistent_volume: Box::new(Object::new(Verbatim::from_value(&object)).unwrap()),
                claim: ClaimRef { namespace: "default".into(), name: "c".into(), uid: None },
            }
        } else {
            SpecSource::Inline { volume }
        };
        let spec = VolumeSpec {
            plugin: key.plugin.clone(),
            spec_name: key.spec_name.clone(),
            mode: key.mode,
            read_only: false,
            mount_options: vec![],
            source,
            migrated: None,
        };
        DesiredVolume {
            key,
            pod: pod_ref(uid),
            outer_names: vec![OuterSpecName::new(name).unwrap()],
            spec,
            unique_name: record.unique_name,
            path: record.path,
            host_path: None,
            device_mount_path: local.then(|| device_record(name, BOOT).device_mount_path),
            fs_group: None,
            sub_paths: if sub_path {
                vec![SubPathSpec { container: "c".into(), index: 0, sub_path: "a".into(), read_only: false }]
            } else {
                vec![]
            },
            resources: Arc::default(),
            content: content.map(|byte| {
                let file = refloat_volume::PayloadFile { data: vec![byte], mode: 0o644 };
                Arc::new(Payload { files: [("f".to_owned(), file)].into(), ..Payload::default() })
            }),
            inputs: None,
            servers: None,
        }
    }

    /// The same local volume as a raw device.
    fn as_block(mut volume: DesiredVolume) -> DesiredVolume {
        volume.key.mode = VolumeMode::Block;
        volume.spec.mode = VolumeMode::Block;
        volume.path = volume.path.and_then(|p| RelPath::new(p.as_str().replace("/volumes/", "/volumeDevices/")).ok());
        volume.device_mount_path = None;
        volume.sub_paths = vec![];
        volume
    }

    /// Wishes of pods.
    pub(crate) fn desired() -> impl Strategy<Value = Desired> {
        let known: Vec<&'static str> = PLUGINS[..4].to_vec();
        let volume = (select(known), select(&NAMES[..]), option::of(0..2u8), any::<bool>());
        let waiting = option::weighted(0.2, option::of((select(&PLUGINS[..4]), select(&NAMES[..]))));
        let pod = (vec(volume, 0..4), waiting, option::weighted(0.2, Just("its file is broken")));
        let pods = proptest::collection::btree_map(select(&UIDS[..]), pod, 0..4);
        (pods, option::weighted(0.2, Just("the folder is not there"))).prop_map(|(pods, incomplete)| {
            let pods = pods.into_iter().map(|(uid, (volumes, waiting, only_checkpoint))| {
                let mut volumes: Vec<_> = volumes
                    .into_iter()
                    .map(|(plugin, name, content, sub_path)| {
                        let volume = desired_volume(uid, plugin, name, content, sub_path);
                        if plugin == "kubernetes.io/local-volume" && name == "w" { as_block(volume) } else { volume }
                    })
                    .collect();
                volumes.sort_by(|a, b| a.key.cmp(&b.key));
                volumes.dedup_by(|a, b| a.key == b.key);
                let checkpoint = checkpoint(uid);
                let waiting = waiting.into_iter().map(|key| Waiting {
                    outer_name: "late".into(),
                    key: key.map(|(plugin, name)| desired_volume(uid, plugin, name, None, false).key),
                    unique_name: None,
                    problem: Problem::new("ConfigMapMissing", "there is no such configMap", "make it"),
                });
                let pod = DesiredPod {
                    pod: checkpoint.pod,
                    source: checkpoint.source,
                    object: checkpoint.object,
                    volumes: volumes.into_iter().map(Arc::new).collect(),
                    waiting: waiting.collect(),
                    unsettled: None,
                    only_checkpoint: only_checkpoint.map(str::to_owned),
                };
                (PodUid::new(uid).unwrap(), pod)
            });
            Desired {
                pods: pods.collect(),
                incomplete: incomplete.map(str::to_owned),
                source: "manifests".into(),
                problems: vec![],
                ..Desired::default()
            }
        })
    }

    /// The plugins, for input.
    pub(crate) fn plugins() -> Plugins {
        Plugins::builtin()
    }
}
