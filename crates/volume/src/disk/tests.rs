use super::Words;
use super::identity::{Action, DiskNumber, Found, Identity, Question, decide, parse_blkid};

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
        let question =
            Question { device: "/dev/x", found: &found, wanted, read_only, before, disk: now, words: Words::LOCAL };
        assert_eq!(decide(question).map_err(|problem| problem.code), expected, "{question:?}");
    }
}
