use std::fmt::Write as _;

use super::identity::{Action, DiskNumber, Found, Identity, Question, decide, parse_blkid};
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
fn what_blkid_says_is_understood() {
    let signature =
        |kind: &str, uuid: Option<&str>| Some(Found::Signature { kind: kind.into(), uuid: uuid.map(str::to_owned) });
    for (code, text, expected) in [
        (0, "DEVNAME=/dev/loop0\nUUID=1-2\nTYPE=ext4\n", signature("ext4", Some("1-2"))),
        (0, "TYPE=ext4\nPTTYPE=dos\n", signature("ext4", None)),
        (0, "DEVNAME=/dev/sda\nPTTYPE=gpt\n", Some(Found::Partitions("gpt".into()))),
        (0, "DEVNAME=/dev/sda\n", Some(Found::Ambivalent)),
        (2, "", Some(Found::Nothing)),
        (2, "something\n", None),
        (8, "", Some(Found::Ambivalent)),
        (4, "", None),
        (1, "", None),
    ] {
        assert_eq!(parse_blkid(code, text), expected, "{code} {text:?}");
    }
}

/// Whatever is not surely right is refused, and only what has nothing on it is formatted.
#[test]
fn decisions_about_a_device() {
    let disk = DiskNumber { number: "7:0".into(), sequence: "12".into() };
    let other_disk = DiskNumber { sequence: "13".into(), ..disk.clone() };
    let known = Identity { fs_uuid: Some("1-2".into()), fs_type: "ext4".into(), ..Identity::default() };
    let begun = Identity { fs_type: "ext4".into(), formatting: Some(disk.clone()), ..Identity::default() };
    let has = |kind: &str, uuid: &str| Found::Signature { kind: kind.into(), uuid: Some(uuid.into()) };
    let format = |fs_type: &str, again| Ok(Action::Format { fs_type: fs_type.into(), again });
    let mount = |fs_type: &str| Ok(Action::Use { fs_type: fs_type.into() });
    for (found, wanted, read_only, before, now, expected) in [
        (Found::Nothing, None, false, None, None, format("ext4", false)),
        (Found::Nothing, Some("xfs"), false, None, None, format("xfs", false)),
        (Found::Nothing, None, true, None, None, Err("UnformattedReadOnly")),
        (Found::Nothing, None, false, Some(&known), None, Err("OtherDevice")),
        (Found::Nothing, None, false, Some(&begun), Some(&disk), format("ext4", true)),
        (Found::Nothing, Some("xfs"), false, Some(&begun), Some(&disk), format("xfs", false)),
        (Found::Nothing, None, false, Some(&begun), Some(&other_disk), format("ext4", false)),
        (Found::Nothing, None, false, Some(&begun), None, format("ext4", false)),
        (has("ext4", "1-2"), None, false, None, None, mount("ext4")),
        (has("ext4", "1-2"), Some("ext4"), true, Some(&known), None, mount("ext4")),
        (has("ext4", "1-2"), Some("xfs"), false, None, None, Err("OtherFileSystem")),
        (has("ext4", "9-9"), None, false, Some(&known), None, Err("OtherDevice")),
        (Found::Signature { kind: "ext4".into(), uuid: None }, None, false, Some(&known), None, Err("OtherDevice")),
        (has("ext4", "9-9"), None, false, Some(&begun), Some(&disk), mount("ext4")),
        (has("LVM2_member", "1"), None, false, None, None, Err("NoFileSystem")),
        (has("linux_raid_member", "1"), None, false, None, None, Err("NoFileSystem")),
        (has("zfs_member", "1"), None, false, None, None, Err("NoFileSystem")),
        (has("crypto_LUKS", "1"), None, false, None, None, Err("NoFileSystem")),
        (has("swap", "1"), None, false, None, None, Err("NoFileSystem")),
        (Found::Partitions("gpt".into()), None, false, None, None, Err("NoFileSystem")),
        (Found::Ambivalent, None, false, None, None, Err("NoFileSystem")),
    ] {
        let question = Question { device: "/dev/x", found: &found, wanted, read_only, before, disk: now };
        assert_eq!(decide(question).map_err(|problem| problem.code), expected, "{question:?}");
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
