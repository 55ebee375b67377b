//! Every plugin through the same life: set up, cut off at each announcement, set up again, torn down. A new plugin joins
//! by one line in `sample`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Once;

use refloat_mount::loopdev;
use refloat_record::{FsGroup, FsGroupChangePolicy, PluginName};
use refloat_test_support::Skip;
use refloat_volume::{DeviceOutcome, Payload, PayloadFile, Plugins, SpecError};
use serde_json::json;

use crate::node::{Crash, Life, Node, gid, kernels, mount_tmpfs};
use crate::scsi::Array;

refloat_test_support::tests![every_plugin_survives_a_crash_at_each_step, every_plugin_can_be_torn_down_after_a_crash];

/// A loop device, detached when the test ends however it ends.
pub struct Loop(pub PathBuf);

impl Loop {
    /// As [`Loop::new`], to be given a file system, or why that cannot be done here.
    pub fn for_file_system(node: &Node, name: &str, size: u64) -> Result<Self, Skip> {
        let runs = |tool: &&str| std::process::Command::new(tool).arg("-V").output().is_ok();
        if let Some(tool) = ["blkid", "mkfs.ext4"].iter().find(|tool| !runs(tool)) {
            return Err(Skip(format!("there is no {tool}")));
        }
        Self::new(node, name, size).ok_or_else(|| Skip("no loop devices".into()))
    }

    /// A new one with this many bytes, all zero. `None` without loop devices.
    pub fn new(node: &Node, name: &str, size: u64) -> Option<Self> {
        let file = node.dir.path().join(name);
        std::fs::File::create(&file).unwrap().set_len(size).unwrap();
        match loopdev::attach(&file, false) {
            Ok(device) => Some(Self(device)),
            Err(error) => {
                eprintln!("skipped: what needs a loop device: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = loopdev::detach(&self.0) {
            eprintln!("{} is left: {error}", self.0.display());
        }
    }
}

/// What lives need as long as they last.
type Needs = Vec<Box<dyn std::any::Any>>;

/// Lives of a plugin's volumes, each with a name, and what they need.
fn samples<'n>(node: &'n Node, plugin: &str) -> (Vec<(&'static str, Life<'n>)>, Needs) {
    let content = |mut life: Life<'n>| {
        let file = PayloadFile { data: b"value".to_vec(), mode: 0o644 };
        life.content = Some(Payload { files: BTreeMap::from([("key".to_owned(), file)]), ..Payload::default() });
        life
    };
    let inline = |volume| Life::inline(node, "u1", &volume);
    let mut needs: Needs = vec![];
    let lives = match plugin {
        "kubernetes.io/empty-dir" => vec![
            ("disk", inline(json!({ "name": "v", "emptyDir": {} }))),
            ("memory", inline(json!({ "name": "v", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }))),
        ],
        "kubernetes.io/host-path" => {
            let path = node.host_dir("made").join("here");
            vec![("made", inline(json!({ "name": "v", "hostPath": { "path": path, "type": "DirectoryOrCreate" } })))]
        }
        "kubernetes.io/local-volume" => {
            let pv = |path: PathBuf| {
                json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv" },
                    "spec": { "local": { "path": path } } })
            };
            let mut lives = vec![("folder", Life::claim(node, "u1", &pv(node.host_dir("disk"))))];
            match Loop::for_file_system(node, "image", 16 << 20) {
                Ok(device) => {
                    lives.push(("device", Life::claim(node, "u1", &pv(device.0.clone()))));
                    needs.push(Box::new(device));
                }
                Err(Skip(why)) => {
                    static SAID: Once = Once::new();
                    SAID.call_once(|| eprintln!("skipped: the lives of local volumes on devices: {why}"));
                }
            }
            lives
        }
        "kubernetes.io/configmap" => vec![("", content(inline(json!({ "name": "v", "configMap": { "name": "c" } }))))],
        "kubernetes.io/secret" => vec![("", content(inline(json!({ "name": "v", "secret": { "secretName": "s" } }))))],
        "kubernetes.io/downward-api" => vec![("", content(inline(json!({ "name": "v", "downwardAPI": {} }))))],
        "kubernetes.io/projected" => {
            vec![("", content(inline(json!({ "name": "v", "projected": { "sources": [] } }))))]
        }
        "kubernetes.io/nfs" => {
            // The helper is `refloat_test_support::MOUNT_NFS`.
            let export = node.host_dir("export");
            mount_tmpfs(&format!("files.example:{}", export.display()), &export);
            vec![("", inline(json!({ "name": "v", "nfs": { "server": "files.example", "path": export } })))]
        }
        "kubernetes.io/fc" => match Array::new(node, &["500a01", "500a02"], true) {
            Ok(array) => {
                needs.push(Box::new(array));
                let fc = |mode: &str| {
                    json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv" },
                        "spec": { "fc": { "targetWWNs": ["500a01", "500a02"], "lun": 0 }, "volumeMode": mode } })
                };
                vec![
                    ("disk", Life::claim(node, "u1", &fc("Filesystem"))),
                    ("block", Life::claim(node, "u1", &fc("Block"))),
                ]
            }
            Err(Skip(why)) => {
                static SAID: Once = Once::new();
                SAID.call_once(|| eprintln!("skipped: the lives of Fibre Channel volumes: {why}"));
                vec![]
            }
        },
        "kubernetes.io/iscsi" => match Array::target(node, 2) {
            Ok((array, iqn, portals)) => {
                needs.push(Box::new(array));
                let iscsi = |mode: &str| {
                    let source = json!({ "targetPortal": portals[0], "portals": portals[1..], "iqn": iqn, "lun": 0 });
                    json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv" },
                        "spec": { "iscsi": source, "volumeMode": mode } })
                };
                vec![
                    ("disk", Life::claim(node, "u1", &iscsi("Filesystem"))),
                    ("block", Life::claim(node, "u1", &iscsi("Block"))),
                ]
            }
            Err(Skip(why)) => {
                static SAID: Once = Once::new();
                SAID.call_once(|| eprintln!("skipped: the lives of iSCSI volumes: {why}"));
                vec![]
            }
        },
        // A driver makes it, or a cluster: `crates/node/tests/csi` and `live/glusterfs.rs` have their lives, with real ones.
        "kubernetes.io/csi" | "kubernetes.io/glusterfs" => vec![],
        // Those that refuse any volume: `crates/refloat/tests/cli/foreign.rs` has what is undone of them.
        other => {
            let any = inline(json!({ "name": "v", "emptyDir": {} }));
            let plugins = Plugins::builtin();
            let name = PluginName::new(plugin).expect("a plugin's own name");
            let refused = plugins.by_name(&name).expect("a plugin").check(&any.spec);
            assert!(matches!(refused, Err(SpecError::NotSetUp { .. })), "{other} has no sample here");
            vec![]
        }
    };
    (lives, needs)
}

/// SetUp with MountDevice before it. The crash counts the announcements of both.
fn set_up(life: &mut Life<'_>, crash: Option<Crash>) -> Result<usize, refloat_volume::VolumeError> {
    let mut before = 0;
    if life.plugin().capabilities().device_mountable {
        let outcome = life.mount_device_with(crash)?;
        before = life.announced;
        assert_eq!(outcome == DeviceOutcome::Mounted, before > 0, "no device, no record");
    }
    let crash = match crash {
        Some(Crash::Before(n)) => n.checked_sub(before).map(Crash::Before),
        Some(Crash::After(n)) => n.checked_sub(before).map(Crash::After),
        None => None,
    };
    life.set_up_with(crash)?;
    Ok(before + life.announced)
}

fn tear_down(life: &mut Life<'_>) {
    life.tear_down().unwrap();
    life.record = None;
    if life.device.is_some() {
        life.unmount_device().unwrap();
        life.device = None;
    }
}

/// Runs a body for every life of every plugin, on both kinds of kernel, for every point where it can be cut off.
fn for_each_crash(body: fn(&str, &Node, &mut Life<'_>, Crash)) {
    for (kernel_name, kernel) in kernels() {
        for plugin in Plugins::builtin().iter().map(refloat_volume::Plugin::name) {
            let names: Vec<&str> =
                samples(&Node::new(kernel), plugin.as_str()).0.iter().map(|(name, _)| *name).collect();
            for (index, name) in names.into_iter().enumerate() {
                let mut points = 1;
                for point in 0.. {
                    if point >= points {
                        break;
                    }
                    for crash in [Crash::Before(point), Crash::After(point)] {
                        let node = Node::new(kernel);
                        let (mut lives, needs) = samples(&node, plugin.as_str());
                        let mut life = lives.swap_remove(index).1;
                        life.fs_group = Some(FsGroup { gid: gid(), policy: FsGroupChangePolicy::OnRootMismatch });
                        let shown = format!("{plugin} {name} on {kernel_name} calls, {crash:?}");
                        set_up(&mut life, Some(crash)).expect_err(&shown);
                        body(&shown, &node, &mut life, crash);
                        if crash == Crash::Before(0) {
                            // How many there are, told by a life without a crash.
                            tear_down(&mut life);
                            points =
                                set_up(&mut life, None).unwrap_or_else(|e| panic!("{shown}: {}", e.problem().message));
                            assert!(points > 0, "{shown}: announced nothing");
                            tear_down(&mut life);
                            assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{shown}");
                        }
                        drop(lives);
                        drop(life);
                        drop(needs);
                    }
                }
            }
        }
    }
}

fn every_plugin_survives_a_crash_at_each_step() {
    for_each_crash(|shown, node, life, crash| {
        if crash == Crash::Before(0) {
            assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{shown}: seen before the record was durable");
        }
        set_up(life, None).unwrap_or_else(|e| panic!("{shown}: {}", e.problem().message));
        let mounts = node.table().under(node.host.root.path()).count();
        set_up(life, None).unwrap_or_else(|e| panic!("{shown}, again: {}", e.problem().message));
        assert_eq!(node.table().under(node.host.root.path()).count(), mounts, "{shown}: each mount once");
        tear_down(life);
        assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{shown}");
    });
}

fn every_plugin_can_be_torn_down_after_a_crash() {
    for_each_crash(|shown, node, life, _| {
        if life.record.is_some() {
            life.tear_down().unwrap_or_else(|e| panic!("{shown}: {}", e.problem().message));
            life.tear_down().unwrap_or_else(|e| panic!("{shown}, again: {}", e.problem().message));
            life.record = None;
        }
        if life.device.is_some() {
            life.unmount_device().unwrap_or_else(|e| panic!("{shown}: {}", e.problem().message));
            life.device = None;
        }
        assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{shown}");
    });
}
