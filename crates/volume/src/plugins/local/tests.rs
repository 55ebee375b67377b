use std::fmt::Write as _;

use super::*;

/// Case B16 and its variants. The pod's mount is the first line after `/`.
#[test]
fn the_path_of_a_folder_is_told_where_it_is_unambiguous() {
    let pod = "/r/pods/u/volumes/kubernetes.io~local-volume/pv1";
    let other_pod = "/r/pods/u2/volumes/kubernetes.io~local-volume/pv1";
    let global = "/r/plugins/kubernetes.io/local-volume/mounts/pv1";
    for (what, lines, expected) in [
        ("on the root disk", vec![("8:1", "/", "/"), ("8:1", "/data/db", pod)], Some("/data/db")),
        (
            "other pods' mounts do not matter",
            vec![("8:1", "/", "/"), ("8:1", "/data/db", pod), ("8:1", "/data/db", other_pod)],
            Some("/data/db"),
        ),
        (
            "a disk of its own",
            vec![("8:1", "/", "/"), ("8:16", "/", "/mnt/disks/a"), ("8:16", "/", pod)],
            Some("/mnt/disks/a"),
        ),
        (
            "mounted at two places",
            vec![("8:1", "/", "/"), ("8:16", "/", "/a"), ("8:16", "/", "/b"), ("8:16", "/db", pod)],
            None,
        ),
        (
            "of two places only one shows it",
            vec![("8:1", "/", "/"), ("8:16", "/x", "/a"), ("8:16", "/y", "/b"), ("8:16", "/y/db", pod)],
            Some("/b/db"),
        ),
        (
            "a btrfs subvolume",
            vec![("0:30", "/@", "/"), ("0:30", "/@home", "/home"), ("0:30", "/@home/db", pod)],
            Some("/home/db"),
        ),
        ("a name that only begins the same", vec![("0:30", "/@", "/"), ("0:30", "/@home/db", pod)], None),
        ("covered by another mount", vec![("8:1", "/", "/"), ("8:1", "/data/db", pod), ("0:40", "/", "/data")], None),
        ("removed", vec![("8:1", "/", "/"), ("8:1", "/data/db//deleted", pod)], None),
        ("a device", vec![("8:1", "/", "/"), ("7:0", "/", global), ("7:0", "/", pod)], None),
        ("not mounted", vec![("8:1", "/", "/")], None),
    ] {
        let mut text = String::new();
        for (n, (device, root, point)) in lines.iter().enumerate() {
            let parent = if n == 0 { 1 } else { 30 };
            writeln!(text, "{} {parent} {device} {root} {point} rw - ext4 /dev/x rw", 30 + n).unwrap();
        }
        let (table, bad) = MountTable::from_mountinfo(text.as_bytes());
        assert!(bad.is_empty());
        let rebuilt = Local
            .from_layout(FoundVolume {
                folder: "pv1",
                mode: refloat_record::VolumeMode::Filesystem,
                path: Path::new(pod),
                table: &table,
                memo: &crate::LayoutMemo::default(),
                foreign: None,
            })
            .unwrap();
        let RebuiltSpec::PersistentVolume(pv) = rebuilt.spec else { panic!() };
        assert_eq!(pv["spec"]["local"]["path"].as_str(), expected, "{what}");
        assert_eq!(rebuilt.lost.contains(&"spec.local.path"), expected.is_none(), "{what}");
        assert_eq!(rebuilt.lost.contains(&"spec.local.fsType"), what == "a device", "{what}");
        assert_eq!(pv["metadata"]["name"], "pv1");
    }
}

#[test]
fn a_host_path_is_absolute_and_goes_straight() {
    use crate::plugins::wrong_host_path;
    for good in ["/", "/data", "/data/..x/y..", "//data/./x"] {
        assert_eq!(wrong_host_path(good), None, "{good:?}");
    }
    for bad in ["", "data", "../data", "/data/..", "/../etc", "/a\0b"] {
        assert!(wrong_host_path(bad).is_some(), "{bad:?}");
    }
}
