use std::path::Path;

use refloat_mount::MountTable;
use refloat_record::{SpecName, Verbatim, VolumeMode};
use serde_json::{Value, json};

use super::*;
use crate::Object;

fn spec(empty_dir: &Value) -> VolumeSpec {
    let volume = json!({ "name": "v", "emptyDir": empty_dir });
    VolumeSpec {
        plugin: EmptyDir.name(),
        spec_name: SpecName::new("v").unwrap(),
        mode: VolumeMode::Filesystem,
        read_only: false,
        mount_options: vec![],
        source: SpecSource::Inline { volume: Object::new(Verbatim::from_value(&volume)).unwrap() },
    }
}

#[test]
fn media_are_told_apart() {
    for (source, expected) in [
        (json!({}), Medium::Disk),
        (json!({ "sizeLimit": "1Gi" }), Medium::Disk),
        (json!({ "medium": "Memory" }), Medium::Memory(None)),
        (json!({ "medium": "Memory", "sizeLimit": "0" }), Medium::Memory(None)),
        (json!({ "medium": "Memory", "sizeLimit": "64Mi" }), Medium::Memory(Some(64 << 20))),
        (json!({ "medium": "HugePages" }), Medium::HugePages(None)),
        (json!({ "medium": "HugePages-2Mi" }), Medium::HugePages(Some(2 << 20))),
    ] {
        assert_eq!(medium(&spec(&source)).unwrap(), expected, "{source}");
    }
    for wrong in [
        json!({ "medium": "memory" }),
        json!({ "medium": "HugePages-" }),
        json!({ "medium": "HugePages-0" }),
        json!({ "medium": "HugePages-2MB?" }),
        json!({ "sizeLimit": "much" }),
        json!({ "sizeLimit": "-1" }),
    ] {
        assert!(EmptyDir.check(&spec(&wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn page_sizes_are_those_of_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let size = |kib: u64, pages: &str| {
        let dir = folder.path().join(format!("hugepages-{kib}kB"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("nr_hugepages"), pages).unwrap();
    };
    assert!(huge_page_size(None, &folder.path().join("missing")).is_err());
    size(2048, "0\n");
    size(1_048_576, "0\n");
    assert_eq!(huge_page_size(Some(2 << 20), folder.path()).unwrap(), 2 << 20);
    assert!(huge_page_size(Some(3 << 20), folder.path()).is_err());
    assert!(huge_page_size(None, folder.path()).is_err(), "none has pages");
    size(1_048_576, "4\n");
    assert_eq!(huge_page_size(None, folder.path()).unwrap(), 1 << 30);
    size(2048, "8\n");
    assert!(huge_page_size(None, folder.path()).is_err(), "which of the two?");
}

#[test]
fn without_a_record_nothing_is_invented() {
    let text = b"30 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        31 30 0:50 / /r/pods/u/volumes/kubernetes.io~empty-dir/m rw - tmpfs tmpfs rw\n";
    let (table, _) = MountTable::from_mountinfo(text);
    for (name, expected, lost) in [
        ("m", json!({ "medium": "Memory" }), &["emptyDir.sizeLimit"][..]),
        ("d", json!({}), &["emptyDir.sizeLimit", "emptyDir.medium"]),
    ] {
        let path = format!("/r/pods/u/volumes/kubernetes.io~empty-dir/{name}");
        let rebuilt = EmptyDir
            .from_layout(FoundVolume {
                folder: name,
                path: Path::new(&path),
                table: &table,
                memo: &crate::LayoutMemo::default(),
            })
            .unwrap();
        assert_eq!(rebuilt.spec, RebuiltSpec::Volume(json!({ "name": name, "emptyDir": expected })));
        assert_eq!(rebuilt.lost, lost);
    }
}
