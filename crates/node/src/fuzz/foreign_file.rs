//! One file that another program wrote about a volume, of each form, on a node that has that volume.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use refloat_mount::MountTable;
use refloat_record::{BootId, Loaded};
use refloat_volume::{ForeignForm, ForeignRecord, Plugins};

use crate::evidence::{Evidence, PodTree, Tree, VolumeFolder};
use crate::{RecordState, reconstruct};

/// Where a file of each form stands, the plugin, and what is mounted.
const PLACES: [(&str, ForeignForm, &str, &str); 5] = [
    (
        "plugins/kubernetes.io/iscsi/iface-default/h:3260-iqn.a-lun-2/iscsi.json",
        ForeignForm::Iscsi,
        "kubernetes.io~iscsi",
        "",
    ),
    ("plugins/kubernetes.io/rbd/mounts/p-image-i/rbd.json", ForeignForm::Rbd, "kubernetes.io~rbd", RBD),
    ("pods/u/volumes/kubernetes.io~nfs/v~pv.json", ForeignForm::PersistentVolume, "kubernetes.io~nfs", ""),
    ("plugins/kubernetes.io/nfs/v~vs.json", ForeignForm::VolumeSource, "kubernetes.io~nfs", NFS),
    ("plugins/kubernetes.io/flexvolume/a/b/v~vs.json", ForeignForm::VolumeSource, "a~b", ""),
];
const RBD: &str = "20 1 8:16 / /r/plugins/kubernetes.io/rbd/mounts/p-image-i rw - ext4 /dev/rbd0 rw\n\
    21 1 8:16 / /r/pods/u/volumes/kubernetes.io~rbd/v rw - ext4 /dev/rbd0 rw\n";
const NFS: &str = "20 1 0:60 / /r/pods/u/volumes/kubernetes.io~nfs/v ro - nfs4 h:/e ro\n";

/// Reads bytes as a file of each form, and reconstructs a node that has the file and the volume that it may be about.
pub fn foreign_file(bytes: &[u8]) {
    for (path, form, plugin, mounts) in PLACES {
        let record = ForeignRecord::parse(PathBuf::from(path), form, bytes);
        if let Err(why) = &record.says {
            // Nothing of the text is told.
            assert!(why.starts_with("it") && why.len() < 100, "{why}");
        }
        let is_good = record.says.is_ok();
        let names_it = record.volume() == Some("v");
        let evidence = node(record, plugin, mounts);
        let plugins = Plugins::builtin();
        let actual = reconstruct(&evidence, &plugins);
        assert_eq!(format!("{actual:?}"), format!("{:?}", reconstruct(&evidence, &plugins)), "the same answer twice");
        assert_eq!(actual.volumes.len(), 1, "{actual:?}");
        let state = actual.volumes[0].record_state;
        if names_it {
            assert_eq!(state, if is_good { RecordState::Foreign } else { RecordState::Damaged }, "{actual:?}");
        }
    }
}

fn node(record: ForeignRecord, plugin: &str, mounts: &str) -> Evidence {
    let mut pod = PodTree::new("u".as_ref());
    pod.volumes.push(VolumeFolder {
        plugin: plugin.to_owned(),
        name: "v".to_owned(),
        is_dir: true,
        link: None,
        link_device: None,
        empty: Some(true),
        foreign: None,
    });
    let mut tree = Tree::default();
    if record.form.in_global_folder().is_some() {
        tree.global_folders.push(record.folder().to_path_buf());
    }
    if record.path.starts_with("pods") {
        pod.records.push(record);
    } else {
        tree.records.push(record);
    }
    tree.pods.push(pod);
    Evidence {
        root: "/r".into(),
        boot_id: BootId::new("this").expect("a boot's id"),
        records: Loaded::default(),
        table: Arc::new(MountTable::from_mountinfo(mounts.as_bytes()).0),
        tree: Some(tree),
        missing_drivers: BTreeMap::new(),
        hanging: std::collections::BTreeMap::new(),
    }
}
