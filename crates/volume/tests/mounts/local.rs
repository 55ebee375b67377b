//! Local volumes: folders and devices.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use refloat_record::{FsGroup, FsGroupChangePolicy, Verbatim};
use refloat_test_support::{Outcome, skip};
use refloat_volume::{DeviceOutcome, FoundVolume, RebuiltSpec};
use serde_json::{Value, json};

use crate::life::Loop;
use crate::node::{Crash, Life, Node, bind, code, gid, kernels, mode, mount_tmpfs, owner, there, unmount};

refloat_test_support::tests![
    a_folder_is_bound,
    a_folder_is_bound_read_only,
    a_folder_is_bound_with_its_mount_options,
    mount_options_of_a_device_are_its_binds_too,
    the_second_pod_does_not_change_the_group,
    the_data_survives_everything,
    what_is_no_folder_or_device_is_refused,
    a_stray_file_in_the_pods_folder_is_kept,
    the_path_is_told_from_the_table,
    a_blank_device_is_formatted_once_and_shared,
    what_is_not_blank_is_not_formatted,
    an_interrupted_format_is_begun_anew,
    a_read_only_volume_is_never_formatted,
    another_file_system_is_refused,
    swapped_devices_are_noticed,
    a_mounted_device_is_not_formatted,
];

fn pv(path: &Path) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv1" },
        "spec": { "local": { "path": path }, "accessModes": ["ReadWriteOnce"] } })
}

fn group(gid: u32) -> FsGroup {
    FsGroup { gid, policy: FsGroupChangePolicy::Always }
}

fn a_folder_is_bound() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let disk = node.host_dir("disk");
        fs::write(disk.join("keep"), "data").unwrap();
        let mut life = Life::claim(&node, "u1", &pv(&disk));
        life.fs_group = Some(group(gid()));
        assert_eq!(life.mount_device().unwrap(), DeviceOutcome::NotNeeded, "{name}");
        assert!(life.device.is_none());
        life.set_up().unwrap();
        assert_eq!(fs::read(life.path().join("keep")).unwrap(), b"data", "{name}");
        assert_eq!((owner(&disk).1, mode(&disk) & 0o2070), (gid(), 0o2070), "{name}");
        for part in ["", "volumes", "volumes/kubernetes.io~local-volume"] {
            assert_eq!(mode(&node.pod_path("u1", part)), 0o750, "{name}: {part}");
        }
        life.set_up().unwrap();
        assert_eq!(node.table().stack(&life.path()).len(), 1, "{name}");
        life.tear_down().unwrap();
        assert!(!there(&life.path()));
        assert_eq!(fs::read(disk.join("keep")).unwrap(), b"data", "{name}");
    }
}

fn a_folder_is_bound_read_only() {
    for (name, kernel) in kernels() {
        for by_option in [false, true] {
            let node = Node::new(kernel);
            let disk = node.host_dir("disk");
            let mut volume = pv(&disk);
            if by_option {
                volume["spec"]["mountOptions"] = json!(["ro"]);
            }
            let mut life = Life::claim(&node, "u1", &volume);
            life.spec.read_only = !by_option;
            life.fs_group = Some(group(gid()));
            let before = owner(&disk);
            life.set_up().unwrap();
            let error = fs::write(life.path().join("a"), "x").unwrap_err();
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()), "{name}");
            fs::write(disk.join("a"), "the source itself stays writable").unwrap();
            assert_eq!(owner(&disk), before, "{name}: a read-only volume keeps its group");
            life.tear_down().unwrap();
        }
    }
}

fn a_folder_is_bound_with_its_mount_options() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let disk = node.host_dir("disk");
        fs::write(disk.join("program"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(disk.join("program"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut volume = pv(&disk);
        // `discard` is a file system's, so a bind has no use for it.
        volume["spec"]["mountOptions"] = json!(["noexec,nosuid", "nodev", "noatime", "discard"]);
        let mut life = Life::claim(&node, "u1", &volume);
        life.set_up().unwrap();
        let options = |life: &Life<'_>| node.table().at(&life.path()).expect("mounted").options().to_owned();
        assert_eq!(options(&life), "rw,nosuid,nodev,noexec,noatime", "{name}");
        let error = std::process::Command::new(life.path().join("program")).status().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{name}");
        assert!(
            std::process::Command::new(disk.join("program")).status().unwrap().success(),
            "the source keeps its own"
        );
        // It is its own mount, whatever its options are: known again, not mounted over, and undone.
        life.set_up().unwrap();
        assert_eq!(node.table().stack(&life.path()).len(), 1, "{name}");
        life.tear_down().unwrap();
        assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{name}");

        volume["spec"]["mountOptions"] = json!(["ro,noatime"]);
        let mut life = Life::claim(&node, "u2", &volume);
        let before = owner(&disk);
        life.fs_group = Some(group(gid()));
        life.set_up().unwrap();
        assert_eq!((options(&life).as_str(), owner(&disk)), ("ro,noatime", before), "{name}");
        life.tear_down().unwrap();
    }
}

fn mount_options_of_a_device_are_its_binds_too() -> Outcome {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let device = Loop::for_file_system(&node, "image", SIZE)?;
        let mut volume = pv(&device.0);
        volume["spec"]["mountOptions"] = json!(["noexec", "errors=continue"]);
        let mut life = Life::claim(&node, "u1", &volume);
        life.mount_device().unwrap();
        life.set_up().unwrap();
        assert_eq!(node.table().at(&life.path()).expect("mounted").options(), "rw,noexec,relatime", "{name}");
        life.tear_down().unwrap();
        life.unmount_device().unwrap();
    }
    Ok(())
}

fn the_second_pod_does_not_change_the_group() -> Outcome {
    if gid() == 0 {
        return skip("only one group is mapped here");
    }
    let node = Node::new(kernels()[0].1);
    let disk = node.host_dir("disk");
    for (pod, gid, expected) in [("u1", 1111, 1111), ("u2", 2222, 1111)] {
        let mut life = Life::claim(&node, pod, &pv(&disk));
        life.fs_group = Some(group(gid));
        life.set_up().unwrap();
        assert_eq!(owner(&disk).1, expected, "{pod}");
    }
    Ok(())
}

fn the_data_survives_everything() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let disk = node.host_dir("disk");
        fs::write(disk.join("keep"), "data").unwrap();
        let keep = || assert_eq!(fs::read(disk.join("keep")).unwrap(), b"data", "{name}");
        let mut life = Life::claim(&node, "u1", &pv(&disk));
        life.set_up().unwrap();
        // Without a record it is a plain unmount, believed when the table agrees.
        let record = life.record.take();
        life.tear_down().unwrap();
        keep();
        life.set_up().unwrap();
        // Somebody's mount on top is refused, and a busy volume is not removed.
        mount_tmpfs("somebody", &life.path());
        assert_eq!(code(life.tear_down()), "OtherMount", "{name}");
        unmount(&life.path());
        let open = fs::File::open(life.path().join("keep")).unwrap();
        assert_eq!(code(life.tear_down()), "UnmountBusy", "{name}");
        keep();
        drop(open);
        // The record of an earlier mount: another id, and the same origin.
        life.record = record;
        life.tear_down().unwrap();
        keep();
        assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{name}");
        // The folder was removed behind the mount (case B25).
        life.record = None;
        life.set_up().unwrap();
        fs::remove_file(disk.join("keep")).unwrap();
        fs::remove_dir(&disk).unwrap();
        life.tear_down().unwrap();
        assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{name}");
    }
}

fn what_is_no_folder_or_device_is_refused() {
    let node = Node::new(kernels()[0].1);
    let disk = node.host_dir("disk");
    fs::write(disk.join("file"), "").unwrap();
    for (path, expected) in [
        (disk.join("file"), "LocalPathType"),
        (disk.join("missing"), "LocalPathMissing"),
        ("/dev/null".into(), "LocalPathType"),
    ] {
        let mut life = Life::claim(&node, "u1", &pv(&path));
        assert_eq!(code(life.mount_device()), expected);
        assert_eq!(code(life.set_up()), expected);
        assert!(life.record.is_none() && !there(&node.pod_path("u1", "")), "nothing was begun");
    }
}

/// Case B33: a file in the pod's folder, written while nothing was mounted there.
fn a_stray_file_in_the_pods_folder_is_kept() {
    let node = Node::new(kernels()[0].1);
    let mut life = Life::claim(&node, "u1", &pv(&node.host_dir("disk")));
    life.set_up().unwrap();
    life.reboot();
    fs::write(life.path().join("stray"), "data").unwrap();
    assert_eq!(code(life.set_up()), "DataBelowMount");
    assert_eq!(code(life.tear_down()), "DataKept");
    assert_eq!(fs::read(life.path().join("stray")).unwrap(), b"data");
    fs::remove_file(life.path().join("stray")).unwrap();
    life.tear_down().unwrap();
}

/// Case B16, on a real table.
fn the_path_is_told_from_the_table() {
    let node = Node::new(kernels()[0].1);
    // A file system of its own, so that what else shows the tests' one does not matter.
    let disk = node.host_dir("disk");
    mount_tmpfs("disk", &disk);
    let folder = disk.join("db");
    fs::create_dir(&folder).unwrap();
    let mut life = Life::claim(&node, "u1", &pv(&folder));
    life.set_up().unwrap();
    let told = || {
        let table = node.table();
        let found = FoundVolume {
            folder: "pv1",
            mode: refloat_record::VolumeMode::Filesystem,
            path: &life.path(),
            table: &table,
            memo: &refloat_volume::LayoutMemo::default(),
            foreign: None,
        };
        let rebuilt = life.plugin().from_layout(found).unwrap();
        let RebuiltSpec::PersistentVolume(spec) = rebuilt.spec else { panic!("{rebuilt:?}") };
        let path = spec["spec"]["local"]["path"].as_str().map(PathBuf::from);
        assert_eq!(path.is_none(), rebuilt.lost.contains(&"spec.local.path"));
        path
    };
    assert_eq!(told().as_ref(), Some(&folder));
    // Mounted at two places: which one was meant cannot be told.
    let second = node.host_dir("second");
    bind(&disk, &second);
    assert_eq!(told(), None);
    unmount(&second);
    // Something else is mounted over the folder.
    mount_tmpfs("over", &folder);
    assert_eq!(told(), None);
    unmount(&folder);
    fs::remove_dir(&folder).unwrap();
    node.host.table.lock().unwrap().read_anew().unwrap();
    assert_eq!(told(), None);
}

const SIZE: u64 = 16 << 20;

fn read_all(device: &Loop) -> Vec<u8> {
    let file = fs::File::open(&device.0).unwrap();
    let mut all = vec![0; usize::try_from(SIZE).unwrap()];
    file.read_exact_at(&mut all, 0).unwrap();
    all
}

fn a_blank_device_is_formatted_once_and_shared() -> Outcome {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let device = Loop::for_file_system(&node, "image", SIZE)?;
        // By a name that leads to it, as /dev/disk/by-id does.
        let link = node.dir.path().join("by-id");
        std::os::unix::fs::symlink(&device.0, &link).unwrap();
        let mut one = Life::claim(&node, "u1", &pv(&link));
        one.fs_group = Some(group(gid()));
        assert_eq!(code(one.set_up()), "DeviceNotMounted");
        assert_eq!(one.mount_device().unwrap(), DeviceOutcome::Mounted, "{name}");
        let record = one.device.clone().unwrap();
        let info: Value = record.provider_info.as_ref().unwrap().parse().unwrap();
        assert_eq!(record.device.as_deref(), device.0.to_str(), "{name}");
        assert_eq!((&info["fsType"], info["fsUUID"].as_str().map(str::len)), (&json!("ext4"), Some(36)), "{name}");
        let global = node.host.root.path().join("plugins/kubernetes.io/local-volume/mounts/pv1");
        assert_eq!(&*node.table().at(&global).unwrap().fs_type(), "ext4", "{name}");
        assert_eq!(mode(global.parent().unwrap()), 0o750);
        one.set_up().unwrap();
        assert_eq!((owner(&one.path()).1, mode(&one.path()) & 0o2070), (gid(), 0o2070), "{name}");
        fs::write(one.path().join("keep"), "data").unwrap();

        let mut two = Life::claim(&node, "u2", &pv(&link));
        two.device.clone_from(&one.device);
        two.spec.read_only = true;
        two.mount_device().unwrap();
        two.set_up().unwrap();
        assert_eq!(fs::read(two.path().join("keep")).unwrap(), b"data", "{name}");
        assert!(fs::write(two.path().join("no"), "").is_err());
        assert_eq!(node.table().stack(&global).len(), 1, "{name}");

        one.tear_down().unwrap();
        assert_eq!(code(one.unmount_device()), "DeviceInUse", "{name}");
        two.tear_down().unwrap();
        one.unmount_device().unwrap();
        assert!(!there(&global));
        assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{name}");

        let mut three = Life::claim(&node, "u3", &pv(&link));
        three.mount_device().unwrap();
        let again: Value = three.device.as_ref().unwrap().provider_info.as_ref().unwrap().parse().unwrap();
        assert_eq!(again["fsUUID"], info["fsUUID"], "{name}: not formatted again");
        three.set_up().unwrap();
        assert_eq!(fs::read(three.path().join("keep")).unwrap(), b"data", "{name}");
        three.tear_down().unwrap();
        three.unmount_device().unwrap();
    }
    Ok(())
}

fn what_is_not_blank_is_not_formatted() -> Outcome {
    let last = SIZE - 512;
    for (what, at, bytes, expected) in [
        ("data at the start", 0_u64, &b"raw database"[..], "NotBlank"),
        ("data in the first mebibyte", 700_000, b"x", "NotBlank"),
        ("data at the end", last, b"RAID?", "NotBlank"),
        ("LVM", 512, LVM, "NoFileSystem|NotBlank"),
        ("LUKS", 0, b"LUKS\xba\xbe\0\x01aes\0", "NoFileSystem|NotBlank"),
        ("partition table", 440, MBR, "NoFileSystem"),
    ] {
        let node = Node::new(kernels()[0].1);
        let device = Loop::for_file_system(&node, "image", SIZE)?;
        fs::OpenOptions::new().write(true).open(&device.0).unwrap().write_all_at(bytes, at).unwrap();
        let before = read_all(&device);
        let mut life = Life::claim(&node, "u1", &pv(&device.0));
        let found = code(life.mount_device());
        assert!(expected.split('|').any(|e| e == found), "{what}: {found}");
        assert!(read_all(&device) == before, "{what}: it was written to");
        assert!(life.device.is_none(), "{what}");
        // The record of an earlier device changes nothing.
        life.device = None;
        assert!(life.mount_device().is_err());
    }
    Ok(())
}

/// An LVM label in the second sector, with its checksum left out: enough for a person, and maybe for blkid.
const LVM: &[u8] = b"LABELONE\x01\0\0\0\0\0\0\0\xda\x71\x2d\x10\x20\0\0\0LVM2 001abcdefghijklmnopqrstuvwxyz012345";

/// Disk id, one Linux partition, and the mark at the end of the sector.
const MBR: &[u8] = &{
    let mut bytes = [0_u8; 72];
    bytes[0] = 0x12;
    bytes[6] = 0x80;
    bytes[7] = 0x20;
    bytes[8] = 0x21;
    bytes[10] = 0x83;
    bytes[14 + 1] = 0x08;
    bytes[14 + 5] = 0x10;
    bytes[70] = 0x55;
    bytes[71] = 0xaa;
    bytes
};

fn an_interrupted_format_is_begun_anew() -> Outcome {
    let node = Node::new(kernels()[0].1);
    let device = Loop::for_file_system(&node, "image", SIZE)?;
    let mut life = Life::claim(&node, "u1", &pv(&device.0));
    life.mount_device_with(Some(Crash::After(0))).unwrap_err();
    let record = life.device.clone().unwrap();
    let info: Value = record.provider_info.as_ref().unwrap().parse().unwrap();
    if info["formatting"].is_null() {
        return skip("the kernel has no diskseq");
    }
    let half =
        |bytes: &[u8]| fs::OpenOptions::new().write(true).open(&device.0).unwrap().write_all_at(bytes, 8192).unwrap();
    half(b"half an inode table");
    // Without the record, or with one of another disk or boot, it is data.
    life.device = None;
    assert_eq!(code(life.mount_device()), "NotBlank");
    let mut other = info.clone();
    other["formatting"]["sequence"] = json!("0");
    life.device =
        Some(refloat_record::DeviceMount { provider_info: Some(Verbatim::from_value(&other)), ..record.clone() });
    assert_eq!(code(life.mount_device()), "NotBlank");
    life.device = Some(record.clone());
    life.reboot();
    assert_eq!(code(life.mount_device()), "NotBlank");
    life.device = Some(record);
    assert_eq!(life.mount_device().unwrap(), DeviceOutcome::Mounted);
    life.unmount_device().unwrap();
    Ok(())
}

fn a_read_only_volume_is_never_formatted() -> Outcome {
    for by_option in [false, true] {
        let node = Node::new(kernels()[0].1);
        let device = Loop::for_file_system(&node, "image", SIZE)?;
        let mut volume = pv(&device.0);
        if by_option {
            volume["spec"]["mountOptions"] = json!(["noatime,ro"]);
        }
        let mut life = Life::claim(&node, "u1", &volume);
        life.spec.read_only = !by_option;
        assert_eq!(code(life.mount_device()), "UnformattedReadOnly");
        assert!(read_all(&device).iter().all(|byte| *byte == 0));
    }
    Ok(())
}

fn another_file_system_is_refused() -> Outcome {
    let node = Node::new(kernels()[0].1);
    let device = Loop::for_file_system(&node, "image", SIZE)?;
    let mut life = Life::claim(&node, "u1", &pv(&device.0));
    life.mount_device().unwrap();
    life.unmount_device().unwrap();
    let before = read_all(&device);
    let mut volume = pv(&device.0);
    volume["spec"]["local"]["fsType"] = json!("xfs");
    assert_eq!(code(Life::claim(&node, "u1", &volume).mount_device()), "OtherFileSystem");
    assert!(read_all(&device) == before);
    // A blank device, and no program to make what is asked for.
    let blank = Loop::for_file_system(&node, "blank", SIZE)?;
    let mut volume = pv(&blank.0);
    volume["spec"]["local"]["fsType"] = json!("nosuchfs");
    assert_eq!(code(Life::claim(&node, "u1", &volume).mount_device()), "ToolMissing");
    assert!(read_all(&blank).iter().all(|byte| *byte == 0));
    Ok(())
}

/// Case B32.
fn swapped_devices_are_noticed() -> Outcome {
    let node = Node::new(kernels()[0].1);
    let device = |name| Loop::for_file_system(&node, name, SIZE);
    let (a, b, blank) = (device("a")?, device("b")?, device("c")?);
    let link = node.dir.path().join("vdc");
    let point_to = |device: &Loop| {
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&device.0, &link).unwrap();
    };
    // B has a file system of its own.
    let mut other = pv(&b.0);
    other["metadata"]["name"] = json!("pv2");
    let mut life_b = Life::claim(&node, "u2", &other);
    life_b.mount_device().unwrap();
    life_b.unmount_device().unwrap();

    point_to(&a);
    let mut life = Life::claim(&node, "u1", &pv(&link));
    life.mount_device().unwrap();
    life.set_up().unwrap();
    life.reboot();
    for wrong in [&b, &blank] {
        point_to(wrong);
        let before = read_all(wrong);
        assert_eq!(code(life.mount_device()), "OtherDevice");
        assert!(read_all(wrong) == before, "it was written to");
    }
    let folder = node.host_dir("no-device");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    assert_eq!(code(life.mount_device()), "OtherDevice", "a folder stands where the device was");
    // Under another name, but the same one: it is known again.
    point_to(&a);
    life.mount_device().unwrap();
    life.set_up().unwrap();
    life.tear_down().unwrap();
    life.unmount_device().unwrap();
    Ok(())
}

fn a_mounted_device_is_not_formatted() -> Outcome {
    // What blkid does not see must not be formatted while somebody holds the device: here, exclusively.
    let node = Node::new(kernels()[0].1);
    let device = Loop::for_file_system(&node, "image", SIZE)?;
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
    let held = rustix::fs::open(&device.0, flags, rustix::fs::Mode::empty()).unwrap();
    let mut life = Life::claim(&node, "u1", &pv(&device.0));
    assert_eq!(code(life.mount_device()), "NotBlank");
    drop(held);
    life.mount_device().unwrap();
    life.unmount_device().unwrap();
    Ok(())
}
