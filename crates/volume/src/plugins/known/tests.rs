use std::path::Path;

use refloat_mount::MountTable;
use refloat_record::{PluginName, VolumeMode};
use serde_json::{Value, json};

use crate::{FoundVolume, GlobalMount, LayoutMemo, Plugins, Rebuilt, RebuiltSpec};

const ROOT: &str = "/r";

/// What is told of a volume in this folder, with these mounts: `(device, root, point below the node root, type, source)`.
fn told(
    plugin: &str,
    folder: &str,
    mounts: &[(&str, &str, &str, &str, &str)],
    globals: &[&str],
) -> (Value, Vec<&'static str>, Option<GlobalMount>) {
    let mut lines = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n".to_owned();
    for (id, (device, root, point, fs_type, source)) in (2..).zip(mounts) {
        let point = if point.starts_with('/') { (*point).to_owned() } else { format!("{ROOT}/{point}") };
        let (fs_type, options) = fs_type.split_once(' ').unwrap_or((fs_type, "rw"));
        let line = format!("{id} 1 {device} {root} {point} {options} - {fs_type} {source} {options}\n");
        lines.push_str(&line);
    }
    let (table, bad) = MountTable::from_mountinfo(lines.as_bytes());
    assert_eq!(bad, []);
    let name = PluginName::new(plugin).unwrap();
    let path = format!("{ROOT}/pods/u/volumes/{}/{folder}", name.escaped());
    let memo = LayoutMemo::new(globals.iter().map(Into::into));
    let found = FoundVolume {
        folder,
        mode: VolumeMode::Filesystem,
        path: Path::new(&path),
        table: &table,
        memo: &memo,
        foreign: None,
    };
    let plugins = Plugins::builtin();
    let plugin = plugins.by_name(&name).unwrap();
    let Rebuilt { spec, lost, .. } = plugin.from_layout(found).unwrap();
    let spec = match spec {
        RebuiltSpec::Volume(spec) | RebuiltSpec::PersistentVolume(spec) => spec,
    };
    (spec, lost, plugin.device_of(found))
}

fn pod_path(plugin: &str, folder: &str) -> String {
    format!("pods/u/volumes/kubernetes.io~{plugin}/{folder}")
}

/// A volume bound from a global mount: its spec, what is lost, and its own name.
fn bound(plugin: &str, folder: &str, global: &str, extra: &str) -> (Value, Vec<&'static str>, Option<String>) {
    let pod = pod_path(plugin, folder);
    let kind = if extra.is_empty() { "ext4" } else { extra };
    let mounts = [("8:16", "/", global, kind, "/dev/sdb"), ("8:16", "/", &pod, kind, "/dev/sdb")];
    let (spec, lost, device) = told(&format!("kubernetes.io/{plugin}"), folder, &mounts, &[]);
    let device = device.unwrap();
    assert_eq!(device.path, Path::new(ROOT).join(global.replace("\\040", " ")));
    (spec, lost, device.volume_name)
}

#[test]
fn nfs_volumes_have_server_and_path_from_the_table() {
    let pod = pod_path("nfs", "shared");
    let of = |source: &'static str, kind: &'static str| {
        told("kubernetes.io/nfs", "shared", &[("0:60", "/", &pod, kind, source)], &[])
    };
    let (spec, lost, device) = of("nfs.example:/exports/a", "nfs4");
    assert_eq!(spec, json!({ "name": "shared", "nfs": { "server": "nfs.example", "path": "/exports/a" } }));
    assert_eq!((lost, device), (vec!["persistentVolume"], None));
    let (spec, lost, _) = of("[fd00::1]:/e", "nfs4 ro");
    assert_eq!(spec["nfs"], json!({ "server": "fd00::1", "path": "/e" }));
    assert_eq!(lost, ["persistentVolume", "nfs.readOnly"]);
    // The kubelet would call the folder's name the path.
    let (spec, lost, _) = told("kubernetes.io/nfs", "shared", &[], &[]);
    assert_eq!(spec["nfs"], json!({}));
    assert_eq!(lost, ["persistentVolume", "nfs.server", "nfs.path", "nfs.readOnly"]);
}

#[test]
fn a_name_that_no_pod_can_give_is_a_persistent_volumes() {
    let name = "pvc-2af60e9b-dc31-421d-89d0-6bd0d07def17";
    let pod = pod_path("nfs", name);
    let (spec, lost, _) = told("kubernetes.io/nfs", name, &[("0:60", "/", &pod, "nfs4", "h:/e")], &[]);
    assert_eq!(spec["metadata"]["name"], name);
    assert_eq!(spec["spec"], json!({ "nfs": { "server": "h", "path": "/e" }, "volumeMode": "Filesystem" }));
    assert!(lost.contains(&"spec.mountOptions") && !lost.contains(&"persistentVolume"), "{lost:?}");
}

#[test]
fn iscsi_volumes_are_told_from_their_global_path() {
    let global = "plugins/kubernetes.io/iscsi/iface-default/san-1.x:3260-iqn.2001-04.e:d-lun-3";
    let (spec, lost, name) = bound("iscsi", "v", global, "");
    let iscsi =
        json!({ "targetPortal": "san-1.x:3260", "iqn": "iqn.2001-04.e:d", "lun": 3, "iscsiInterface": "default" });
    assert_eq!(spec["iscsi"], iscsi);
    assert_eq!(name.as_deref(), Some("san-1.x:3260:iqn.2001-04.e:d:3"));
    let of_source = ["portals", "fsType", "chapAuthDiscovery", "chapAuthSession", "secretRef"];
    assert_eq!(lost[1..], of_source.map(|f| format!("iscsi.{f}")));
    // With an initiator name the interface is the volume's own.
    let global = "plugins/kubernetes.io/iscsi/iface-h:3260:v/h:3260-iqn.a-lun-0";
    let (spec, lost, _) = bound("iscsi", "v", global, "");
    assert_eq!(spec["iscsi"].get("iscsiInterface"), None);
    assert!(lost.contains(&"iscsi.iscsiInterface") && lost.contains(&"iscsi.initiatorName"));
}

/// The kubelet gives WWIDs `["."]` to whatever it does not find.
#[test]
fn what_has_no_global_mount_is_not_guessed() {
    for plugin in ["iscsi", "fc", "gce-pd", "aws-ebs", "cinder", "vsphere-volume", "rbd", "azure-disk", "photon-pd"] {
        let pod = pod_path(plugin, "v");
        let alone = [("8:16", "/", pod.as_str(), "ext4", "/dev/sdb")];
        let other = [alone[0], ("8:16", "/sub", "plugins/kubernetes.io/gce-pd/mounts/x", "ext4", "/dev/sdb")];
        for mounts in [&alone[..], &other[..], &[]] {
            let (spec, lost, device) = told(&format!("kubernetes.io/{plugin}"), "v", mounts, &[]);
            let source = spec.as_object().unwrap().iter().find(|(name, _)| *name != "name").unwrap().1;
            assert_eq!((source, device), (&json!({}), None), "{plugin}");
            assert!(lost.len() > 2, "{lost:?}");
        }
    }
}

#[test]
fn disks_are_told_from_their_global_paths() {
    for (plugin, global, source, name) in [
        (
            "fc",
            "fc/50060e801049cfd1-lun-0",
            json!({ "targetWWNs": ["50060e801049cfd1"], "lun": 0 }),
            "[50060e801049cfd1]:0",
        ),
        ("gce-pd", "gce-pd/mounts/pd-1", json!({ "pdName": "pd-1" }), "pd-1"),
        ("aws-ebs", "aws-ebs/mounts/aws/eu-1a/vol-1", json!({ "volumeID": "aws://eu-1a/vol-1" }), "aws://eu-1a/vol-1"),
        ("cinder", "cinder/mounts/8f3c", json!({ "volumeID": "8f3c" }), "8f3c"),
        (
            "vsphere-volume",
            "vsphere-volume/mounts/[ds\\0401]\\040vm/d.vmdk",
            json!({ "volumePath": "[ds 1] vm/d.vmdk" }),
            "[ds 1] vm/d.vmdk",
        ),
        ("rbd", "rbd/rbd/p-image-i", json!({ "pool": "p", "image": "i" }), "p:i"),
        ("photon-pd", "photon-pd/mounts/d1", json!({ "pdID": "d1" }), "d1"),
    ] {
        let (spec, lost, own) = bound(plugin, "v", &format!("plugins/kubernetes.io/{global}"), "");
        let field = spec.as_object().unwrap().keys().find(|name| *name != "name").unwrap();
        assert_eq!(spec[field], source, "{plugin}");
        assert_eq!(own.as_deref(), Some(name));
        assert!(!lost.iter().any(|l| l.ends_with(".readOnly")), "{lost:?}");
    }
    let (spec, lost, name) = bound("azure-disk", "v", "plugins/kubernetes.io/azure-disk/mounts/m123", "");
    assert_eq!((&spec["azureDisk"], name), (&json!({ "kind": "Managed" }), None));
    assert!(lost.contains(&"azureDisk.diskURI"));
    let (_, lost, _) = bound("gce-pd", "v", "plugins/kubernetes.io/gce-pd/mounts/pd", "ext4 ro");
    assert!(lost.contains(&"gcePersistentDisk.readOnly"));
}

#[test]
fn two_global_mounts_of_one_device_tell_nothing() {
    let at = |point| ("8:16", "/", point, "ext4", "/dev/sdb");
    let mounts = [
        at("plugins/kubernetes.io/gce-pd/mounts/a"),
        at("plugins/kubernetes.io/gce-pd/mounts/b"),
        at("pods/u/volumes/kubernetes.io~gce-pd/v"),
    ];
    let (spec, lost, device) = told("kubernetes.io/gce-pd", "v", &mounts, &[]);
    assert_eq!((&spec["gcePersistentDisk"], device), (&json!({}), None));
    assert!(lost.contains(&"gcePersistentDisk.pdName"));
}

#[test]
fn cluster_file_systems_are_told_from_the_table() {
    let one = |plugin: &str, kind: &str, source: &str| {
        let pod = pod_path(plugin, "v");
        told(&format!("kubernetes.io/{plugin}"), "v", &[("0:60", "/", &pod, kind, source)], &[])
    };
    let (spec, lost, _) = one("glusterfs", "fuse.glusterfs", "10.0.0.1:vol");
    assert_eq!((&spec["glusterfs"], lost[1]), (&json!({ "path": "vol" }), "glusterfs.endpoints"));
    let (spec, _, _) = one("cephfs", "ceph rw,name=admin,secret=<hidden>", "10.0.0.1:6789,10.0.0.2:6789:/a");
    let ceph = json!({ "monitors": ["10.0.0.1:6789", "10.0.0.2:6789"], "path": "/a", "user": "admin" });
    assert_eq!(spec["cephfs"], ceph);
    let (spec, _, _) = one("azure-file", "cifs", "//acc.file.core.windows.net/share");
    assert_eq!(spec["azureFile"], json!({ "shareName": "share" }));
    let pod = pod_path("flocker", "v");
    let mounts = [("8:16", "/", "/flocker/0a-1b", "ext4", "/dev/sdb"), ("8:16", "/", &*pod, "ext4", "/dev/sdb")];
    let (spec, lost, _) = told("kubernetes.io/flocker", "v", &mounts, &[]);
    assert_eq!((&spec["flocker"], lost[1]), (&json!({ "datasetUUID": "0a-1b" }), "flocker.datasetName"));
    let pod = pod_path("storageos", "pv.ns.vol");
    let global = "plugins/kubernetes.io~storageos/mounts/pv.ns.vol";
    let mounts = [("8:16", "/", global, "ext4", "/dev/sdb"), ("8:16", "/", &*pod, "ext4", "/dev/sdb")];
    let (spec, lost, _) = told("kubernetes.io/storageos", "pv.ns.vol", &mounts, &[]);
    let storageos = json!({ "name": "pv", "storageos": { "volumeNamespace": "ns", "volumeName": "vol" } });
    assert_eq!((spec, lost[0]), (storageos, "persistentVolume"));
}

/// B15: with vendor, without one, with a dot in it.
#[test]
fn any_other_plugin_is_a_flex_volume_driver() {
    for driver in ["acme/nfs", "lone", "example.com/flex"] {
        let pod = format!("pods/u/volumes/{}/v", driver.replace('/', "~"));
        let mounts = [("0:60", "/", pod.as_str(), "nfs", "srv:/e")];
        let (spec, lost, device) = told(driver, "v", &mounts, &[]);
        assert_eq!(spec, json!({ "name": "v", "flexVolume": { "driver": driver } }));
        assert_eq!(lost, ["persistentVolume", "flexVolume.options", "flexVolume.secretRef", "flexVolume.fsType"]);
        assert_eq!(device, None);
        let own = format!("plugins/kubernetes.io/flexvolume/{driver}/mounts/v");
        let (_, _, device) = told(driver, "v", &mounts, &[&own]);
        let device = device.unwrap();
        assert_eq!((device.path, device.volume_name.as_deref()), (Path::new(ROOT).join(own), Some("v")));
    }
    for name in ["kubernetes.io/unheard-of", "a~b"] {
        assert!(Plugins::builtin().by_name(&PluginName::new(name).unwrap()).is_none(), "{name}");
    }
}

#[test]
fn every_kind_lists_what_it_tells() {
    let names: Vec<_> = super::all().map(|known| known.0.name).collect();
    assert_eq!(names.len(), 16);
    for known in super::all().chain([super::FC, super::ISCSI, super::NFS, super::GLUSTERFS]) {
        let kind = known.0;
        assert!(!kind.fields.is_empty() && kind.name.starts_with("kubernetes.io/"));
        for field in kind.fields {
            assert_eq!(field.inline, format!("{}.{}", kind.source, field.name()));
            assert_eq!(field.persistent, format!("spec.{}", field.inline));
        }
    }
}

/// A block volume's map path tells the disk, its symlink's name the `PersistentVolume`.
#[test]
fn block_volumes_are_told_from_their_map_paths() {
    let of = |plugin: &str, map: Option<&str>| {
        let name = PluginName::new(format!("kubernetes.io/{plugin}")).unwrap();
        let path = match map {
            Some(map) => format!("{ROOT}/plugins/kubernetes.io/{plugin}/volumeDevices/{map}/u"),
            None => format!("{ROOT}/pods/u/volumeDevices/{}/pv", name.escaped()),
        };
        let (table, memo) = (MountTable::from_mountinfo(b"").0, LayoutMemo::default());
        let mode = VolumeMode::Block;
        let found =
            FoundVolume { folder: "pv", mode, path: Path::new(&path), table: &table, memo: &memo, foreign: None };
        let plugins = Plugins::builtin();
        let plugin = plugins.by_name(&name).unwrap();
        let RebuiltSpec::PersistentVolume(spec) = plugin.from_layout(found).unwrap().spec else {
            panic!("{plugin:?}: only a PersistentVolume can be a block volume");
        };
        assert_eq!((&spec["metadata"]["name"], &spec["spec"]["volumeMode"]), (&json!("pv"), &json!("Block")));
        (spec["spec"].clone(), plugin.device_of(found))
    };
    for (plugin, map, field, source, own) in [
        (
            "iscsi",
            "iface-default/h-1:3260-iqn.a-lun-2",
            "iscsi",
            json!({ "targetPortal": "h-1:3260", "iqn": "iqn.a", "lun": 2, "iscsiInterface": "default" }),
            Some("h-1:3260:iqn.a:2"),
        ),
        (
            "fc",
            "50060e801049cfd1-lun-0",
            "fc",
            json!({ "targetWWNs": ["50060e801049cfd1"], "lun": 0 }),
            Some("[50060e801049cfd1]:0"),
        ),
        ("rbd", "p-image-i", "rbd", json!({ "pool": "p", "image": "i" }), Some("p:i")),
        ("gce-pd", "pd-1", "gcePersistentDisk", json!({ "pdName": "pd-1" }), Some("pd-1")),
        (
            "aws-ebs",
            "aws:/eu-1a/vol-1",
            "awsElasticBlockStore",
            json!({ "volumeID": "aws://eu-1a/vol-1" }),
            Some("aws://eu-1a/vol-1"),
        ),
        ("azure-disk", "disk-1", "azureDisk", json!({ "diskName": "disk-1" }), None),
        ("cinder", "8f3c", "cinder", json!({ "volumeID": "8f3c" }), Some("8f3c")),
        (
            "vsphere-volume",
            "[ds 1] vm/d.vmdk",
            "vsphereVolume",
            json!({ "volumePath": "[ds 1] vm/d.vmdk" }),
            Some("[ds 1] vm/d.vmdk"),
        ),
    ] {
        let (spec, device) = of(plugin, Some(map));
        assert_eq!(spec[field], source, "{plugin}");
        let device = device.unwrap();
        let path = Path::new(ROOT).join(format!("plugins/kubernetes.io/{plugin}/volumeDevices/{map}"));
        assert_eq!((device.path, device.volume_name.as_deref()), (path, own), "{plugin}");
        // Where nothing tells the map path, nothing is made up: the kubelet would call an FC volume `["."]`.
        let (spec, device) = of(plugin, None);
        assert_eq!((&spec[field], device), (&json!({}), None), "{plugin}");
    }
}
