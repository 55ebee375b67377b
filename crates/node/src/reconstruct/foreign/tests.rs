use std::path::PathBuf;
use std::sync::Arc;

use refloat_mount::MountTable;
use refloat_record::Loaded;
use refloat_volume::{ForeignForm, ForeignRecord, Plugins};
use serde_json::{Value, json};

use crate::evidence::{PodTree, Tree, VolumeFolder};
use crate::testing::{self, BOOT};
use crate::{Actual, ActualVolume, Evidence, ReconstructionResult, RecordState, reconstruct_explained};

/// A node with these mounts, volumes (`pod/plugin/name`) and files.
fn node(mounts: &[&str], volumes: &[&str], files: &[(&str, ForeignForm, &str)]) -> Actual {
    let lines: Vec<_> = ["1 0 8:1 / / rw - ext4 /dev/sda1 rw"].iter().chain(mounts).copied().collect();
    let (table, bad) = MountTable::from_mountinfo(lines.join("\n").as_bytes());
    assert_eq!(bad, []);
    let mut tree = Tree::default();
    for volume in volumes {
        let (uid, rest) = volume.split_once('/').unwrap();
        let (plugin, name) = rest.rsplit_once('/').unwrap();
        let folder = VolumeFolder {
            plugin: plugin.replace('/', "~"),
            name: name.into(),
            is_dir: true,
            link: None,
            link_device: None,
            empty: Some(true),
            foreign: None,
        };
        match tree.pods.iter_mut().find(|pod| pod.uid.as_ref().is_some_and(|known| known.as_str() == uid)) {
            Some(pod) => pod.volumes.push(folder),
            None => tree.pods.push(PodTree { volumes: vec![folder], ..PodTree::new(uid.as_ref()) }),
        }
    }
    for (path, form, text) in files {
        let record = ForeignRecord::parse(PathBuf::from(path), *form, text.as_bytes());
        let of_pod = path.strip_prefix("pods/").and_then(|rest| rest.split('/').next());
        match of_pod {
            Some(uid) => {
                let pod = tree.pods.iter_mut().find(|p| p.uid.as_ref().is_some_and(|known| known.as_str() == uid));
                pod.unwrap().records.push(record);
            }
            None => tree.records.push(record),
        }
        if form.in_global_folder().is_some() {
            tree.global_folders.push(PathBuf::from(path).parent().unwrap().to_path_buf());
        }
    }
    let evidence = Evidence {
        root: testing::ROOT.into(),
        boot_id: testing::boot(BOOT),
        records: Loaded::default(),
        table: Arc::new(table),
        tree: Some(tree),
        missing_drivers: std::collections::BTreeMap::new(),
        hanging: std::collections::BTreeMap::new(),
    };
    reconstruct_explained(&evidence, &Plugins::builtin())
}

fn lost(volume: &ActualVolume) -> Vec<&str> {
    match &volume.reconstruction {
        ReconstructionResult::Partial { lost } => lost.iter().map(AsRef::as_ref).collect(),
        other => panic!("{other:?}"),
    }
}

fn spec(volume: &ActualVolume) -> Value {
    let spec = volume.spec_persistent_volume.as_ref().or(volume.spec_volume.as_ref());
    spec.unwrap().parse().unwrap()
}

fn codes(volume: &ActualVolume) -> Vec<&str> {
    volume.problems.iter().map(|problem| problem.code).collect()
}

const ISCSI_FILE: &str = "plugins/kubernetes.io/iscsi/iface-default/h:3260-iqn.a-lun-2/iscsi.json";
const ISCSI: &str = r#"{"VolName":"disk","Portals":["h:3260","i:3260"],"Iqn":"iqn.a","Lun":"2","InitIface":"default","InitiatorName":""}"#;

/// After a reboot nothing is mounted: neither the global path nor what it says leads to the volume.
#[test]
fn an_iscsi_file_tells_what_no_mount_does() {
    let actual = node(&[], &["u1/kubernetes.io/iscsi/disk"], &[(ISCSI_FILE, ForeignForm::Iscsi, ISCSI)]);
    let volume = &actual.volumes[0];
    let told = json!({ "targetPortal": "h:3260", "portals": ["i:3260"], "iqn": "iqn.a", "lun": 2, "iscsiInterface": "default" });
    assert_eq!(spec(volume), json!({ "name": "disk", "iscsi": told }));
    let gone =
        ["fsType", "readOnly", "chapAuthDiscovery", "chapAuthSession", "secretRef"].map(|f| format!("iscsi.{f}"));
    assert_eq!(lost(volume), [&["persistentVolume".to_owned()][..], &gone].concat());
    assert_eq!((volume.record_state, codes(volume)), (RecordState::Foreign, vec![]));
    let device = &actual.devices[0];
    assert_eq!(device.record_state, RecordState::Foreign);
    assert!(device.evidence.iter().any(|e| e.contains("iscsi.json")), "{:?}", device.evidence);
    // Two pods' own volumes may be called so, and nobody can tell whose it is.
    let both = ["u1/kubernetes.io/iscsi/disk", "u2/kubernetes.io/iscsi/disk"];
    for volume in &node(&[], &both, &[(ISCSI_FILE, ForeignForm::Iscsi, ISCSI)]).volumes {
        assert_eq!(spec(volume)["iscsi"], json!({}));
        assert!(volume.evidence.iter().any(|e| e.contains("several pods")), "{:?}", volume.evidence);
    }
}

#[test]
fn a_file_that_contradicts_the_path_is_not_believed() {
    let text = ISCSI.replace("\"2\"", "\"7\"").replace("iqn.a", "iqn.b");
    let mounts = [
        "20 1 8:16 / /r/plugins/kubernetes.io/iscsi/iface-default/h:3260-iqn.a-lun-2 rw - ext4 /dev/sdb rw",
        "21 1 8:16 / /r/pods/u1/volumes/kubernetes.io~iscsi/disk rw - ext4 /dev/sdb rw",
    ];
    let actual = node(&mounts, &["u1/kubernetes.io/iscsi/disk"], &[(ISCSI_FILE, ForeignForm::Iscsi, &text)]);
    let volume = &actual.volumes[0];
    let told = spec(volume);
    assert_eq!((&told["iscsi"]["lun"], &told["iscsi"]["iqn"]), (&json!(2), &json!("iqn.a")));
    assert_eq!(codes(volume), ["ForeignRecordContradicts"; 2]);
    assert!(volume.problems[0].message.contains("iqn.b") && volume.problems[0].message.contains("iqn.a"));
    let of_device: Vec<_> = actual.devices[0].problems.iter().map(|p| p.code).collect();
    assert_eq!(of_device, ["ForeignRecordContradicts"; 2]);
}

#[test]
fn a_torn_file_is_told_and_the_rest_is_as_without_it() {
    let of = |text: &str| node(&[], &["u1/kubernetes.io/iscsi/disk"], &[(ISCSI_FILE, ForeignForm::Iscsi, text)]);
    for end in [0, 1, ISCSI.len() / 2] {
        let actual = of(&ISCSI[..end]);
        assert_eq!(actual.devices[0].record_state, RecordState::Damaged);
        assert_eq!(actual.devices[0].problems[0].code, "ForeignRecordDamaged");
        assert_eq!(spec(&actual.volumes[0])["iscsi"], json!({}));
    }
    // Beside the volume it is known whose it is.
    let file = ("pods/u1/volumes/kubernetes.io~nfs/v~pv.json", ForeignForm::PersistentVolume, "{");
    let actual = node(&[], &["u1/kubernetes.io/nfs/v"], &[file]);
    assert_eq!(
        (actual.volumes[0].record_state, codes(&actual.volumes[0])),
        (RecordState::Damaged, vec!["ForeignRecordDamaged"])
    );
}

#[test]
fn a_persistent_volumes_file_ends_the_doubt_and_loses_nothing() {
    let text = r#"{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"gcePersistentDisk":{"pdName":"pd","fsType":"xfs"}}"#;
    for folder in ["plugins/kubernetes.io/gce-pd", "pods/u1/volumes/kubernetes.io~gce-pd"] {
        let file = format!("{folder}/data~pv.json");
        let files = [(file.as_str(), ForeignForm::PersistentVolume, text)];
        let actual = node(&[], &["u1/kubernetes.io/gce-pd/data"], &files);
        let volume = &actual.volumes[0];
        assert_eq!(actual.volumes.len(), 1);
        let pv = spec(volume);
        assert_eq!((&pv["kind"], &pv["metadata"]["name"]), (&json!("PersistentVolume"), &json!("data")));
        assert_eq!(pv["spec"]["gcePersistentDisk"], json!({ "pdName": "pd", "fsType": "xfs" }));
        assert_eq!(pv["spec"]["capacity"], json!({ "storage": "1Gi" }));
        assert_eq!((lost(volume), volume.record_state), (vec![], RecordState::Foreign));
    }
}

#[test]
fn a_volume_sources_file_is_the_pods_own() {
    let text = r#"{"rbd":{"monitors":["m:6789"],"pool":"p","image":"i","user":"u"}}"#;
    let path = "plugins/kubernetes.io/rbd/data~vs.json";
    let files = [(path, ForeignForm::VolumeSource, text)];
    let actual = node(&[], &["u1/kubernetes.io/rbd/data"], &files);
    let rbd = json!({ "monitors": ["m:6789"], "pool": "p", "image": "i", "user": "u" });
    assert_eq!(spec(&actual.volumes[0]), json!({ "name": "data", "rbd": rbd }));
    assert_eq!(lost(&actual.volumes[0]), Vec::<&str>::new());
    // Both kinds of files, and nobody can tell whose volume it is.
    let pv = r#"{"rbd":{"monitors":["n:6789"],"image":"j"}}"#;
    let both = [files[0], ("plugins/kubernetes.io/rbd/data~pv.json", ForeignForm::PersistentVolume, pv)];
    let actual = node(&[], &["u1/kubernetes.io/rbd/data"], &both);
    assert_eq!(spec(&actual.volumes[0])["rbd"], json!({}));
    assert!(actual.volumes[0].evidence.iter().any(|e| e.contains("another file")), "{:?}", actual.volumes[0].evidence);
}

/// The spec's portal need not have a port; the path's always has.
#[test]
fn a_default_port_is_no_contradiction() {
    let mounts = [
        "20 1 8:16 / /r/plugins/kubernetes.io/iscsi/iface-default/h:3260-iqn.a-lun-2 rw - ext4 /dev/sdb rw",
        "21 1 8:16 / /r/pods/u1/volumes/kubernetes.io~iscsi/pv rw - ext4 /dev/sdb rw",
    ];
    let text = r#"{"iscsi":{"targetPortal":"h","iqn":"iqn.a","lun":2}}"#;
    let file = ("plugins/kubernetes.io/iscsi/pv~pv.json", ForeignForm::PersistentVolume, text);
    let actual = node(&mounts, &["u1/kubernetes.io/iscsi/pv"], &[file]);
    let volume = &actual.volumes[0];
    assert_eq!(spec(volume)["spec"]["iscsi"]["targetPortal"], "h");
    assert_eq!((lost(volume), codes(volume)), (vec![], vec![]));
}

#[test]
fn flex_volumes_have_their_files_in_their_drivers_folder() {
    let text = r#"{"flexVolume":{"driver":"acme/nfs","options":{"share":"a"}}}"#;
    let file = ("plugins/kubernetes.io/flexvolume/acme/nfs/v~vs.json", ForeignForm::VolumeSource, text);
    let actual = node(&[], &["u1/acme/nfs/v"], &[file]);
    let flex = json!({ "driver": "acme/nfs", "options": { "share": "a" } });
    assert_eq!(spec(&actual.volumes[0]), json!({ "name": "v", "flexVolume": flex }));
    assert_eq!(lost(&actual.volumes[0]), Vec::<&str>::new());
}

/// No password gets from a file into what is concluded.
#[test]
fn no_secret_comes_out() {
    let text = ISCSI.replace("{\"VolName\"", r#"{"Secret":{"node.session.auth.password":"hunter2"},"VolName""#);
    let rbd = r#"{"Pool":"p","Image":"i","Mon":["m"],"Secret":"hunter2"}"#;
    let files = [
        (ISCSI_FILE, ForeignForm::Iscsi, text.as_str()),
        ("plugins/kubernetes.io/rbd/mounts/p-image-i/rbd.json", ForeignForm::Rbd, rbd),
    ];
    let actual = node(&[], &["u1/kubernetes.io/iscsi/disk"], &files);
    assert_eq!(actual.devices.len(), 2);
    assert!(!format!("{actual:?}").contains("hunter2"));
}
