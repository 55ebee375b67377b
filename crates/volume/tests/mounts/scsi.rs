//! Disks of a simulated array (`refloat_test_support::ScsiSim`): real block devices, found and taken off by their files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use refloat_mount::Kernel;
use refloat_test_support::scsi_sim::{MultipathDoes, Port, UnitSpec};
use refloat_test_support::{Outcome, ScsiSim, Skip, assert_readable};
use refloat_volume::scsi::{Scan, Seen, TakenOff, User};
use rustix::mount::MountFlags;

use crate::node::{Node, code, unmount};

refloat_test_support::tests![
    a_disk_comes_by_a_scan_and_goes,
    a_map_is_flushed_before_its_paths_are_removed,
    a_map_that_is_not_flushed_keeps_its_paths,
    whoever_uses_a_disk_keeps_it,
    a_name_that_is_another_disks_is_not_touched,
    a_disk_that_does_not_go_is_told,
    a_map_without_paths_goes,
];

const WWID: &str = "naa.600508b400105e210000900000490000";
pub const ID: &str = "3600508b400105e210000900000490000";

/// An array with one unit of 16 MiB behind each of these ports.
pub struct Array {
    pub sim: ScsiSim,
    pub ports: Vec<Port>,
}

impl Array {
    /// In the place where the node looks for disks.
    pub fn new(node: &Node, wwns: &[&str], multipath: bool) -> Result<Self, Skip> {
        let sim = ScsiSim::new(&node.scsi())?;
        let ports: Vec<Port> = (2..).zip(wwns).map(|(host, wwn)| sim.fc_port(host, wwn)).collect();
        let image = image(node, "unit.img");
        sim.unit(&UnitSpec { name: "a", wwid: WWID, lun: 0, ports: &ports, multipath, image: &image });
        Ok(Self { sim, ports })
    }

    /// A target with so many portals instead, and the same unit behind it. Answers the target's name and the portals too.
    pub fn target(node: &Node, portals: usize) -> Result<(Self, String, Vec<String>), Skip> {
        let sim = ScsiSim::new(&node.scsi())?;
        let (iqn, portals) = sim.target(portals);
        let image = image(node, "unit.img");
        sim.unit(&UnitSpec { name: "a", wwid: WWID, lun: 0, ports: &[], multipath: true, image: &image });
        sim.put_behind("a", &iqn);
        Ok((Self { sim, ports: vec![] }, iqn, portals))
    }
}

/// A file of zeros.
pub fn image(node: &Node, name: &str) -> PathBuf {
    let image = node.dir.path().join(name);
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    image
}

fn node() -> Node {
    Node::new(Kernel::detect())
}

fn take_off(node: &Node) -> Result<TakenOff, refloat_volume::VolumeError> {
    let _hold = node.host.sys.hold(ID, Duration::from_secs(1)).unwrap();
    node.host.sys.take_off(&node.host, |seen: &Seen| seen.lun(ID))
}

fn a_disk_comes_by_a_scan_and_goes() -> Outcome {
    let node = node();
    let array = Array::new(&node, &["500a01"], false)?;
    let sys = &node.host.sys;
    assert_eq!(sys.look().unwrap(), Seen::default());
    assert_eq!(take_off(&node).unwrap(), TakenOff::Gone);
    assert_eq!(sys.remote_ports("0x500A01").len(), 1);
    let target = array.ports[0].target;
    sys.rescan(2, Scan::Target { channel: 0, target, lun: Some(7) }, Duration::from_secs(5)).unwrap();
    sys.rescan(2, Scan::Target { channel: 0, target, lun: Some(0) }, Duration::from_secs(5)).unwrap();
    let come = |seen: &Seen| Some(seen.lun(ID)).filter(|lun| !lun.is_gone());
    let lun = sys.wait_for(Duration::from_secs(5), come).unwrap().unwrap();
    assert_eq!((lun.shown().as_str(), lun.id()), ("sda", Some(ID)));
    // The node is that of a real device.
    assert!(std::fs::read(sys.node("sda")).unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(take_off(&node).unwrap(), TakenOff::Gone);
    assert_eq!(sys.look().unwrap(), Seen::default());
    assert!(array.sim.events().iter().any(|event| event == "delete sda"), "{:?}", array.sim.events());
    let error = sys.rescan(9, Scan::All, Duration::from_secs(1)).unwrap_err().problem();
    assert!(error.message.contains("host9/scan"), "{error:?}");
    Ok(())
}

fn a_map_is_flushed_before_its_paths_are_removed() -> Outcome {
    let node = node();
    let array = Array::new(&node, &["500a01", "500a02"], true)?;
    array.sim.appear();
    let (_, alias) = array.sim.map("a").unwrap();
    assert_eq!(node.host.sys.look().unwrap().lun(ID).shown(), format!("sda, sdb, dm-0 ({alias})"));
    assert_eq!(take_off(&node).unwrap(), TakenOff::Gone);
    assert_eq!(array.sim.events(), [format!("flush {alias}"), "delete sda".into(), "delete sdb".into()]);
    Ok(())
}

fn a_map_that_is_not_flushed_keeps_its_paths() -> Outcome {
    for (does, expected) in [
        (MultipathDoes::Refuse, "MapNotFlushed"),
        (MultipathDoes::Lie, "MapNotFlushed"),
        (MultipathDoes::Garbage, "MapNotFlushed"),
        (MultipathDoes::Hang, "ToolTimeout"),
    ] {
        let mut node = node();
        node.host.tool_deadline = Duration::from_secs(1);
        let array = Array::new(&node, &["500a01", "500a02"], true)?;
        array.sim.appear();
        array.sim.multipath(does);
        let problem = take_off(&node).unwrap_err().problem();
        assert_eq!(problem.code, expected, "{does:?}");
        assert!(problem.message.contains("multipath"), "{does:?}: {problem:?}");
        assert_readable(&problem.message);
        assert_eq!((array.sim.disks("a").len(), array.sim.map("a").is_some()), (2, true), "{does:?}");
        array.sim.multipath(MultipathDoes::Well);
        node.host.tool_deadline = Duration::from_secs(20);
        assert_eq!(take_off(&node).unwrap(), TakenOff::Gone, "{does:?}");
    }
    Ok(())
}

fn mkfs(device: &Path) -> Result<(), Skip> {
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(device).status();
    if made.is_ok_and(|status| status.success()) { Ok(()) } else { Err(Skip("mkfs.ext4 cannot be run".into())) }
}

fn whoever_uses_a_disk_keeps_it() -> Outcome {
    let node = node();
    let array = Array::new(&node, &["500a01", "500a02"], true)?;
    array.sim.appear();
    let device = node.host.sys.node("dm-0");
    mkfs(&device)?;
    let users = |expected: &[User]| {
        assert_eq!(take_off(&node).unwrap(), TakenOff::InUse(expected.to_vec()));
        assert_eq!(array.sim.disks("a").len(), 2);
    };
    // Mounted outside the node root.
    let elsewhere = node.host_dir("elsewhere");
    rustix::mount::mount(&device, &elsewhere, "ext4", MountFlags::empty(), None).unwrap();
    users(&[User::Mounted(elsewhere.clone())]);
    unmount(&elsewhere);
    // Bound for a pod: the map, or a path of it.
    let bound = node.host.root.path().join("plugins/kubernetes.io/fc/volumeDevices/x/u1");
    std::fs::create_dir_all(bound.parent().unwrap()).unwrap();
    std::fs::write(&bound, "").unwrap();
    for name in ["dm-0", "sdb"] {
        crate::node::bind(&node.host.sys.node(name), &bound);
        users(&[User::Bound(bound.clone())]);
        unmount(&bound);
    }
    // Something else lies over it.
    let folder = node.scsi().join("sys/block/dm-0/holders/md7");
    std::fs::create_dir(&folder).unwrap();
    users(&[User::Held("md7".into())]);
    std::fs::remove_dir(&folder).unwrap();
    assert_eq!(take_off(&node).unwrap(), TakenOff::Gone);
    Ok(())
}

/// The name is the same, and it is another disk by the time that it is to be removed.
fn a_name_that_is_another_disks_is_not_touched() -> Outcome {
    let mut node = node();
    node.host.tool_deadline = Duration::from_secs(1);
    let array = Array::new(&node, &["500a01"], false)?;
    array.sim.appear();
    let found = node.host.sys.look().unwrap().lun(ID);
    array.sim.set_wwid("a", "naa.6dead");
    // Whoever goes by what was seen before removes nothing of it.
    assert_eq!(code(node.host.sys.take_off(&node.host, |_| found.clone())), "DiskTimeout");
    assert_eq!((array.sim.disks("a"), array.sim.events()), (vec!["sda".to_owned()], vec![]));
    Ok(())
}

fn a_disk_that_does_not_go_is_told() -> Outcome {
    let mut node = node();
    node.host.tool_deadline = Duration::from_secs(1);
    let array = Array::new(&node, &["500a01"], false)?;
    array.sim.appear();
    array.sim.ignore_deletes(true);
    assert_eq!(code(take_off(&node)), "DiskTimeout");
    array.sim.ignore_deletes(false);
    assert_eq!(take_off(&node).unwrap(), TakenOff::Gone);
    Ok(())
}

fn a_map_without_paths_goes() -> Outcome {
    let node = node();
    let array = Array::new(&node, &["500a01", "500a02"], true)?;
    array.sim.appear();
    array.sim.vanish("a", false);
    assert_eq!(node.host.sys.look().unwrap().lun(ID).disks, []);
    assert_eq!(take_off(&node).unwrap(), TakenOff::Gone);
    assert_eq!(array.sim.map("a"), None);
    Ok(())
}
