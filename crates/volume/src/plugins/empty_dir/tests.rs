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
        migrated: None,
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
    assert!(has_page_size(2 << 20, &folder.path().join("missing")).is_err());
    size(2048, "0\n");
    size(1_048_576, "0\n");
    has_page_size(2 << 20, folder.path()).unwrap();
    has_page_size(1 << 30, folder.path()).unwrap();
    assert_eq!(has_page_size(3 << 20, folder.path()).unwrap_err().problem().code, "HugePagesUnsupported");
}

#[test]
fn a_page_size_is_requested() {
    let of = |sizes: &[u64]| PodResources { huge_page_sizes: sizes.iter().copied().collect(), ..Default::default() };
    let (small, large) = (2 << 20, 1 << 30);
    for (named, requested, size) in [
        (None, &[small][..], Some(small)),
        (None, &[large], Some(large)),
        (None, &[small, large], None),
        (None, &[], None),
        (Some(small), &[small], Some(small)),
        (Some(small), &[small, large], Some(small)),
        (Some(small), &[large], None),
        (Some(small), &[], None),
    ] {
        let answer = requested_page_size(named, &of(requested));
        assert_eq!(answer.as_ref().ok().copied(), size, "{named:?} of {requested:?}");
        if let Err(error) = answer {
            assert_eq!(error.problem().code, "HugePagesNotRequested");
        }
    }
}

#[test]
fn memory_is_the_smallest_of_three() {
    let of = |pod, node| PodResources { memory_limit: pod, node_memory: node, ..Default::default() };
    assert_eq!(memory_size(Some(1), &of(Some(2), Some(3))), Some(1));
    assert_eq!(memory_size(Some(9), &of(Some(2), Some(3))), Some(2));
    assert_eq!(memory_size(None, &of(Some(2), Some(3))), Some(2));
    assert_eq!(memory_size(None, &of(Some(9), Some(3))), Some(3));
    assert_eq!(memory_size(None, &of(None, Some(3))), Some(3));
    // What the node has for pods is not known: not more than there is.
    let machine = NodeFacts::read(None).allocatable["memory"].to_u64();
    assert!(machine.is_some());
    assert_eq!(memory_size(None, &of(None, None)), machine);
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
                mode: refloat_record::VolumeMode::Filesystem,
                path: Path::new(&path),
                table: &table,
                memo: &crate::LayoutMemo::default(),
                foreign: None,
            })
            .unwrap();
        assert_eq!(rebuilt.spec, RebuiltSpec::Volume(json!({ "name": name, "emptyDir": expected })));
        assert_eq!(rebuilt.lost, lost);
    }
}
