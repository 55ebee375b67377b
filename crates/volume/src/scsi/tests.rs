//! A made-up sysfs, and what is seen of it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// A tree that stands for sysfs.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(tree.path("block")).unwrap();
        tree
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A disk behind this folder of its host (`session1`, `rport-2:0-0`); answers its device's folder.
    fn disk(&self, name: &str, address: &str, behind: &str, wwid: &str) -> String {
        let host = address.split(':').next().unwrap();
        let target = address.rsplit_once(':').unwrap().0;
        let device = format!("devices/pci0000:00/host{host}/{behind}/target{target}/{address}");
        let block = format!("{device}/block/{name}");
        self.write(&format!("{block}/dev"), format!("8:{}\n", 16 * (name.as_bytes()[2] - b'a')));
        self.write(&format!("{device}/wwid"), wwid);
        self.write(&format!("{device}/state"), "running\n");
        std::fs::create_dir_all(self.path(&format!("{block}/holders"))).unwrap();
        symlink(format!("../../../{address}"), self.path(&format!("{block}/device"))).unwrap();
        symlink(format!("../{block}"), self.path(&format!("block/{name}"))).unwrap();
        device
    }

    fn map(&self, name: &str, map_name: &str, uuid: &str, over: &[&str]) {
        let folder = format!("devices/virtual/block/{name}");
        self.write(&format!("{folder}/dev"), format!("254:{}\n", name.strip_prefix("dm-").unwrap()));
        self.write(&format!("{folder}/dm/name"), format!("{map_name}\n"));
        self.write(&format!("{folder}/dm/uuid"), format!("{uuid}\n"));
        for part in ["slaves", "holders"] {
            std::fs::create_dir_all(self.path(&format!("{folder}/{part}"))).unwrap();
        }
        symlink(format!("../{folder}"), self.path(&format!("block/{name}"))).unwrap();
        for disk in over {
            self.write(&format!("{folder}/slaves/{disk}"), "");
            self.write(&format!("block/{disk}/holders/{name}"), "");
        }
    }

    fn sys(&self) -> Sys {
        Sys::new(self.0.path(), self.path("dev"))
    }
}

const A: &str = "naa.600508b400105e210000900000490000\n";
const ID_A: &str = "3600508b400105e210000900000490000";

#[test]
fn disks_and_maps_are_seen() {
    let tree = Tree::new();
    tree.disk("sdc", "2:0:0:1", "rport-2:0-0", A);
    let device = tree.disk("sdd", "3:0:1:1", "rport-3:0-4", A);
    tree.write(&format!("{device}/state"), "transport-offline\n");
    tree.disk("sde", "4:0:0:0", "session7", "naa.6005\n");
    tree.write("class/fc_transport/target2:0:0/port_name", "0x500A0981891B8DC5\n");
    tree.write("class/fc_remote_ports/rport-3:0-4/port_name", "0x500a0982891b8dc5\n");
    tree.map("dm-0", "mpatha", &format!("mpath-{ID_A}"), &["sdc", "sdd"]);
    tree.map("dm-1", "vg-lv", "LVM-abc", &["sde"]);
    tree.write("block/sr0/dev", "11:0\n");
    let seen = tree.sys().look().unwrap();
    assert_eq!(seen.unreadable, Vec::<String>::new());
    let disk = seen.disk("sdc").unwrap();
    assert_eq!((disk.number.to_string(), disk.address.to_string()), ("8:32".into(), "2:0:0:1".into()));
    assert_eq!((disk.id(), disk.is_running()), (Some(ID_A), true));
    assert_eq!((disk.target_port.as_deref(), disk.session.as_deref()), (Some("500a0981891b8dc5"), None));
    let disk = seen.disk("sdd").unwrap();
    assert_eq!((disk.target_port.as_deref(), disk.is_running()), (Some("500a0982891b8dc5"), false));
    assert_eq!(seen.disk("sde").unwrap().session.as_deref(), Some("session7"));

    let lun = seen.lun(ID_A);
    assert_eq!(lun.shown(), "sdc, sdd, dm-0 (mpatha)");
    assert_eq!(lun.device().map(|(name, number)| (name, number.to_string())), Some(("dm-0", "254:0".into())));
    assert_eq!(seen.lun_of(std::slice::from_ref(disk)), lun);
    for number in [(8, 32), (8, 48), (254, 0)] {
        let number = DeviceNumber { major: number.0, minor: number.1 };
        assert_eq!(seen.lun_of_number(number).as_ref(), Some(&lun), "{number}");
    }
    // What lies over it is no multipath map.
    let single = seen.lun("36005");
    assert_eq!((single.shown(), single.device().unwrap().0), ("sde".into(), "sde"));
    assert!(seen.lun("3dead").is_gone() && seen.lun("").is_gone());
}

#[test]
fn a_map_without_paths_is_found() {
    let tree = Tree::new();
    tree.map("dm-3", "mpathb", "mpath-36005", &[]);
    let lun = tree.sys().look().unwrap().lun("36005");
    assert_eq!((lun.shown(), lun.id()), ("dm-3 (mpathb)".into(), Some("36005")));
}

#[test]
fn a_logical_unit_without_an_id_is_what_it_is_found_by() {
    let tree = Tree::new();
    tree.disk("sda", "0:0:0:0", "x", "");
    tree.disk("sdb", "0:0:1:0", "x", "\n");
    let seen = tree.sys().look().unwrap();
    let disk = seen.disk("sda").unwrap();
    assert_eq!(disk.id(), None);
    assert_eq!(seen.lun_of(std::slice::from_ref(disk)).shown(), "sda");
    assert!(!disk.has_id("") && seen.lun("").is_gone());
}

#[test]
fn what_cannot_be_understood_is_told_and_no_error() {
    let tree = Tree::new();
    tree.disk("sda", "0:0:0:0", "x", A);
    // Garbage, loops, other things in the place of files, folders that went away.
    tree.disk("sdb", "0:0:0:1", "x", A);
    tree.write("block/sdb/dev", [0xff, 0xfe]);
    symlink("sdc", tree.path("block/sdc")).unwrap();
    tree.disk("sdd", "0:0:0:3", "x", A);
    std::fs::remove_file(tree.path("block/sdd/dev")).unwrap();
    std::fs::create_dir(tree.path("block/sdd/dev")).unwrap();
    tree.disk("sde", "0:0:0:4", "x", A);
    std::fs::remove_file(tree.path("block/sde/device")).unwrap();
    symlink("../../../nonsense", tree.path("block/sde/device")).unwrap();
    symlink("../devices/gone/sdf", tree.path("block/sdf")).unwrap();
    tree.map("dm-0", "", "", &[]);
    let seen = tree.sys().look().unwrap();
    assert_eq!(seen.unreadable, ["dm-0", "sdb", "sdc", "sdd", "sde"]);
    assert_eq!(seen.disks.iter().map(|disk| disk.name.as_str()).collect::<Vec<_>>(), ["sda"]);
}

#[test]
fn no_sysfs_is_not_no_disks() {
    let tree = Tree::new();
    std::fs::remove_dir(tree.path("block")).unwrap();
    let error = tree.sys().look().unwrap_err().problem();
    assert!(error.message.contains("cannot list the disks in"), "{error:?}");
}

#[test]
fn a_pipe_in_the_place_of_a_file_holds_nobody_up() {
    let tree = Tree::new();
    let device = tree.disk("sda", "0:0:0:0", "x", A);
    let wwid = tree.path(&format!("{device}/wwid"));
    std::fs::remove_file(&wwid).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &wwid, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let seen = tree.sys().look().unwrap();
    assert_eq!(seen.disk("sda").unwrap().ids, Vec::<String>::new());
}

#[test]
fn addresses_and_logical_units() {
    for (text, good) in [
        ("2:0:1:16384", true),
        ("", false),
        ("2:0:1", false),
        ("2:0:1:1:1", false),
        ("2:0:1:-1", false),
        ("2:0:1:", false),
        ("a:0:1:1", false),
        ("4294967296:0:0:0", false),
    ] {
        let address = Address::parse(text);
        assert_eq!(address.is_some(), good, "{text}");
        if let Some(address) = address {
            assert_eq!(address.to_string(), text);
        }
    }
    let lun = |text| Address::parse(text).unwrap();
    assert!(lun("0:0:0:5").has_lun(5) && !lun("0:0:0:5").has_lun(6) && !lun("0:0:0:0").has_lun(-1));
    // 300 in the flat addressing method.
    assert!(lun("0:0:0:16684").has_lun(300) && !lun("0:0:0:16684").has_lun(301));
}

#[test]
fn remote_ports_are_found_by_their_name() {
    let tree = Tree::new();
    for (port, name, id) in [
        ("rport-2:0-3", "0x500A0981\n", "1"),
        ("rport-5:0-1", "0x500a0981", "-1"),
        ("rport-2:0-4", "0x1", "2"),
        ("odd", "0x500a0981", "3"),
    ] {
        tree.write(&format!("class/fc_remote_ports/{port}/port_name"), name);
        tree.write(&format!("class/fc_remote_ports/{port}/scsi_target_id"), id);
        tree.write(&format!("class/fc_remote_ports/{port}/port_state"), "Online\n");
    }
    for host in ["host10", "host2", "odd"] {
        std::fs::create_dir_all(tree.path(&format!("class/fc_host/{host}"))).unwrap();
    }
    let sys = tree.sys();
    assert_eq!((sys.fc_hosts(), sys.scsi_hosts()), (vec![2, 10], vec![]));
    let ports = sys.remote_ports("50:0a:09:81");
    let numbers: Vec<_> = ports.iter().map(|port| (port.host, port.channel, port.target)).collect();
    assert_eq!(numbers, [(2, 0, Some(1)), (5, 0, None)]);
}

#[test]
fn one_at_a_time() {
    let sys = Sys::default();
    let hold = sys.hold(ID_A, Duration::ZERO).unwrap();
    let other = sys.clone();
    assert_eq!(
        other.hold("naa.600508B400105e210000900000490000", Duration::from_millis(5)).unwrap_err().problem().code,
        "DeviceBusy"
    );
    let _elsewhere = other.hold("3aa", Duration::ZERO).unwrap();
    let waiting = std::thread::spawn(move || other.hold(ID_A, Duration::from_secs(20)).map(drop));
    drop(hold);
    waiting.join().unwrap().unwrap();
}

/// Anything at all in the places that are looked at.
fn clutter() -> impl Strategy<Value = Vec<(String, Vec<u8>, u8)>> {
    let names = prop_oneof![Just("sda"), Just("sdb"), Just("dm-0"), Just("dm-1")];
    let parts = prop_oneof![
        Just("dev"),
        Just("device"),
        Just("device/wwid"),
        Just("device/vpd_pg83"),
        Just("device/state"),
        Just("holders/dm-0"),
        Just("holders/sda"),
        Just("slaves/dm-1"),
        Just("dm/name"),
        Just("dm/uuid"),
        Just("sda1/dev"),
        Just("sda1/partition"),
        Just(""),
    ];
    let bytes = prop_oneof![
        Just(b"8:0\n".to_vec()),
        Just(b"mpath-36005".to_vec()),
        Just(b"naa.6005".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(
        (names, parts, bytes, 0u8..4)
            .prop_map(|(name, part, bytes, kind)| (format!("block/{name}/{part}"), bytes, kind)),
        0..40,
    )
}

fn put(tree: &Tree, path: &str, bytes: &[u8], kind: u8) {
    let path = tree.path(path.trim_end_matches('/'));
    let _ = std::fs::create_dir_all(path.parent().unwrap());
    let target: &Path = std::str::from_utf8(bytes).map_or(Path::new("."), Path::new);
    let _ = match kind {
        0 => std::fs::create_dir_all(&path),
        1 => symlink(target, &path),
        2 => symlink("0:0:0:1", &path),
        _ => std::fs::write(&path, bytes),
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_the_tree_is_it_is_seen_without_a_panic(entries in clutter()) {
        let tree = Tree::new();
        std::fs::create_dir_all(tree.path("block/0:0:0:1")).unwrap();
        for (path, bytes, kind) in &entries {
            put(&tree, path, bytes, *kind);
        }
        let seen = tree.sys().look().unwrap();
        for disk in &seen.disks {
            let lun = seen.lun_of(std::slice::from_ref(disk));
            prop_assert!(lun.disks.contains(disk));
            if let Some(id) = disk.id() {
                prop_assert_eq!(&seen.lun(id).disks, &lun.disks);
            }
        }
        for map in &seen.maps {
            seen.lun_of_number(map.number);
        }
    }
}
