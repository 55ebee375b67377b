//! Fibre Channel volumes on a simulated array (`refloat_test_support::ScsiSim`): the disks are real block devices with real
//! file systems; how they come and go is played.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use refloat_node::manager::Outcome as Settled;
use refloat_node::{RecordState, VolumeState};
use refloat_record::{Record, Store};
use refloat_test_support::scsi_sim::{MultipathDoes, Port, UnitSpec};
use refloat_test_support::{Outcome, ScsiSim, Skip};
use refloat_volume::scsi::Sys;

use crate::san::{self, CLAIM, block_pod, lose, only_failure, read, wwid};
use crate::stage::{Stage, assert_all_mounted, pod, volume};

refloat_test_support::tests![
    a_disk_lives_and_goes,
    a_restart_asks_neither_array_nor_tools,
    two_pods_share_a_disk,
    two_volumes_of_one_disk_by_other_words,
    two_disks_of_one_target,
    a_multipath_map_is_used_and_flushed,
    a_map_that_is_not_flushed_keeps_the_record,
    a_disk_under_another_name_with_a_map_goes,
    a_disk_that_is_really_gone_is_done,
    a_name_that_is_another_disks_now_is_not_touched,
    a_record_is_lost,
    a_lost_record_of_another_disk_is_not_made_up,
    a_table_that_changes_all_the_time,
    after_a_reboot,
    what_cannot_be_found_is_told,
    another_disk_in_its_place_is_refused,
    a_disk_is_left_to_who_uses_it,
    a_block_volume_lives_and_goes,
    a_block_volume_after_a_restart_and_a_reboot,
    a_block_volume_without_records,
];

const WWN: [&str; 2] = ["500a0981891b8dc5", "500a0982891b8dc5"];
const GLOBAL: &str = "plugins/kubernetes.io/fc/500a0981891b8dc5-lun-0";
const OF_U1: &str = "pods/u1/volumes/kubernetes.io~fc/pv";

/// A node with an array.
struct San {
    stage: Stage,
    sim: ScsiSim,
    ports: Vec<Port>,
}

impl San {
    /// With so many ports, each at a SCSI host of its own, and a unit `0` with a file system.
    fn new(ports: usize, multipath: bool) -> Result<Self, Skip> {
        let mut stage = Stage::new();
        let sim = ScsiSim::new(&stage.path("scsi"))?;
        stage.options.sys = Sys::new(sim.sysfs(), sim.dev());
        let ports = (2..).zip(&WWN[..ports]).map(|(host, wwn)| sim.fc_port(host, wwn)).collect();
        let san = Self { stage, sim, ports };
        san.unit(0, multipath)?;
        Ok(san)
    }

    /// A unit with this number, called so, with an ext4 in which is `disk.txt`.
    fn unit(&self, number: u64, multipath: bool) -> Result<(), Skip> {
        let image = self.stage.disk_image(&format!("unit{number}.img"))?;
        let (name, wwid) = (number.to_string(), format!("naa.{}", wwid(number)));
        let (ports, image) = (&self.ports, image.as_path());
        self.sim.unit(&UnitSpec { name: &name, wwid: &wwid, lun: number, ports, multipath, image });
        Ok(())
    }

    /// A manifest with a `PersistentVolume` of this name and source, and its claim.
    fn persistent(&self, name: &str, fc: &str, more: &str) {
        san::persistent(&self.stage, name, &format!("fc: {{{fc}}}"), more);
    }

    /// As [`San::new`], and a pod that has the unit `0` by its ports.
    fn with_pod(ports: usize, multipath: bool) -> Result<(Self, Settled), Skip> {
        let san = Self::new(ports, multipath)?;
        san.persistent("pv", &by_ports(ports, 0), "");
        san.stage.manifest("u1.yaml", &pod("u1", CLAIM));
        let settled = san.stage.settle_well();
        assert_all_mounted(&settled, 1);
        Ok((san, settled))
    }
}

fn by_ports(ports: usize, lun: u64) -> String {
    format!(
        "targetWWNs: [{}], lun: {lun}",
        WWN[..ports].iter().map(|wwn| format!("\"{wwn}\"")).collect::<Vec<_>>().join(", ")
    )
}

fn by_id(number: u64) -> String {
    format!("wwids: [\"3{}\"]", wwid(number))
}

fn of_pod(uid: &str, volume: &str) -> String {
    format!("pods/{uid}/volumes/kubernetes.io~fc/{volume}")
}

fn a_disk_lives_and_goes() -> Outcome {
    let (san, settled) = San::with_pod(1, false)?;
    let stage = &san.stage;
    let seen = volume(&settled, "pv");
    assert_eq!(seen.unique_name.as_ref().unwrap().as_str(), "kubernetes.io/fc/[500a0981891b8dc5]:0");
    assert!(stage.is_mounted(GLOBAL) && stage.is_mounted(OF_U1));
    assert_eq!(read(&stage.root(OF_U1)), "the disk's");
    assert_eq!(&*stage.table().at(&stage.root(GLOBAL)).unwrap().source(), san.sim.dev().join("sda").to_str().unwrap());
    // It was asked for by its place.
    assert_eq!(san::events(&san.sim, "scan"), ["scan host2 0 0 0"]);
    let info = san::info(&san.stage);
    assert_eq!(
        (&info["id"], &info["lun"], &info["targetWWNs"]),
        (&format!("3{}", wwid(0)).into(), &0.into(), &serde_json::json!([WWN[0]]))
    );
    assert_eq!((&info["paths"][0]["name"], &info["disk"]["fsType"]), (&"sda".into(), &"ext4".into()));
    std::fs::write(stage.root(OF_U1).join("written"), "by the pod").unwrap();
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    assert_eq!(san::events(&san.sim, "delete"), ["delete sda"]);
    san::assert_clean(&san.stage, &san.sim);
    // Its data is there when it comes back.
    stage.manifest("u2.yaml", &pod("u2", CLAIM));
    stage.settle_well();
    assert_eq!(std::fs::read_to_string(stage.root(&of_pod("u2", "pv")).join("written")).unwrap(), "by the pod");
    Ok(())
}

fn a_restart_asks_neither_array_nor_tools() -> Outcome {
    let (san, first) = San::with_pod(2, true)?;
    let events = san.sim.events();
    // Whoever looked for it now would not find it.
    let sysfs = san.sim.sysfs();
    std::fs::rename(sysfs.join("block"), sysfs.join("hidden")).unwrap();
    let begun = Instant::now();
    let second = san.stage.settle_well();
    std::fs::rename(sysfs.join("hidden"), sysfs.join("block")).unwrap();
    assert_eq!(volume(&first, "pv").mount, volume(&second, "pv").mount);
    assert_eq!((san.sim.events(), volume(&second, "pv").record_state), (events, RecordState::Ok));
    assert!(begun.elapsed() < Duration::from_secs(5));
    san.stage.remove_manifest("u1.yaml");
    san.stage.settle_well();
    san::assert_clean(&san.stage, &san.sim);
    Ok(())
}

/// B07.
fn two_pods_share_a_disk() -> Outcome {
    let (san, _) = San::with_pod(2, true)?;
    let stage = &san.stage;
    stage.manifest("u2.yaml", &pod("u2", CLAIM));
    let settled = stage.settle_well();
    assert_all_mounted(&settled, 2);
    assert_eq!(settled.actual.devices[0].users.len(), 2);
    stage.remove_manifest("u1.yaml");
    assert_all_mounted(&stage.settle_well(), 1);
    assert_eq!((san::events(&san.sim, "delete"), san::events(&san.sim, "flush")), (vec![], vec![]));
    assert_eq!(read(&stage.root(&of_pod("u2", "pv"))), "the disk's");
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    san::assert_clean(&san.stage, &san.sim);
    Ok(())
}

/// One is named by its ports, one by its id: they have two names and two global mounts, and one disk. Each global mount shows
/// the file system that a pod has, so both stay as long as one pod does.
fn two_volumes_of_one_disk_by_other_words() -> Outcome {
    for first in ["u1", "u2"] {
        let (san, _) = San::with_pod(1, false)?;
        let stage = &san.stage;
        san.persistent("other", &by_id(0), "");
        stage.manifest("u2.yaml", &pod("u2", "  - {name: d, persistentVolumeClaim: {claimName: other}}\n"));
        let settled = stage.settle_well();
        assert_all_mounted(&settled, 2);
        assert_eq!(settled.actual.devices.len(), 2);
        let (second, name) = if first == "u1" { ("u2", "other") } else { ("u1", "pv") };
        stage.remove_manifest(&format!("{first}.yaml"));
        stage.settle_well();
        assert_eq!((san::devices(&san.stage).len(), san::events(&san.sim, "delete")), (2, vec![]), "{first}");
        assert_eq!(read(&stage.root(&of_pod(second, name))), "the disk's");
        stage.remove_manifest(&format!("{second}.yaml"));
        stage.settle_well();
        assert_eq!(san::events(&san.sim, "delete"), ["delete sda"]);
        san::assert_clean(&san.stage, &san.sim);
    }
    Ok(())
}

fn two_disks_of_one_target() -> Outcome {
    let (san, _) = San::with_pod(2, true)?;
    let stage = &san.stage;
    san.unit(1, true)?;
    san.persistent("second", &by_ports(2, 1), "");
    stage.manifest("u2.yaml", &pod("u2", "  - {name: d, persistentVolumeClaim: {claimName: second}}\n"));
    assert_all_mounted(&stage.settle_well(), 2);
    let mount = stage.table().at(&stage.root(&of_pod("u2", "second"))).unwrap().id();
    stage.remove_manifest("u1.yaml");
    assert_all_mounted(&stage.settle_well(), 1);
    assert_eq!((san.sim.disks("0").len(), san.sim.disks("1").len()), (0, 2));
    assert_eq!((san.sim.map("0"), san.sim.map("1").is_some()), (None, true));
    assert_eq!(stage.table().at(&stage.root(&of_pod("u2", "second"))).unwrap().id(), mount);
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    san::assert_clean(&san.stage, &san.sim);
    Ok(())
}

fn a_multipath_map_is_used_and_flushed() -> Outcome {
    let (san, _) = San::with_pod(2, true)?;
    let stage = &san.stage;
    let (name, alias) = san.sim.map("0").unwrap();
    let global = format!("plugins/kubernetes.io/fc/{}-{}-lun-0", WWN[0], WWN[1]);
    assert_eq!(&*stage.table().at(&stage.root(&global)).unwrap().source(), san.sim.dev().join(&name).to_str().unwrap());
    let info = san::info(&san.stage);
    assert_eq!(
        (&info["map"]["name"], &info["map"]["uuid"]),
        (&alias.clone().into(), &format!("mpath-3{}", wwid(0)).into())
    );
    // Those that had come by then: they are hints.
    assert!(!info["paths"].as_array().unwrap().is_empty());
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    let undone: Vec<String> = san.sim.events().into_iter().filter(|event| !event.starts_with("scan")).collect();
    assert_eq!(undone, [format!("flush {alias}"), "delete sda".into(), "delete sdb".into()]);
    san::assert_clean(&san.stage, &san.sim);
    Ok(())
}

/// It is said, the volume stays known as in use, and it goes on when the map can be flushed.
fn a_map_that_is_not_flushed_keeps_the_record() -> Outcome {
    let (san, _) = San::with_pod(2, true)?;
    let stage = &san.stage;
    san.sim.multipath(MultipathDoes::Refuse);
    stage.remove_manifest("u1.yaml");
    let settled = stage.settle();
    let (code, message) = only_failure(&settled);
    assert_eq!(code, "MapNotFlushed");
    let (_, alias) = san.sim.map("0").unwrap();
    assert!(message.contains(&alias) && message.contains("map in use"), "{message}");
    assert_eq!((san.sim.disks("0").len(), san::devices(&san.stage).len(), stage.mounts()), (2, 1, vec![]));
    san.sim.multipath(MultipathDoes::Well);
    stage.settle_well();
    san::assert_clean(&san.stage, &san.sim);
    Ok(())
}

/// What a crash leaves between the pod's TearDown and UnmountDevice.
fn without_manager(san: &San) {
    let stage = &san.stage;
    stage.remove_manifest("u1.yaml");
    stage.unmount(&stage.root(OF_U1));
    let store = Store::open(&stage.options.state_dir).unwrap();
    for record in store.load().unwrap().records {
        if !matches!(record, Record::DeviceMount(_)) {
            store.remove(&record.key()).unwrap();
        }
    }
    std::fs::remove_dir_all(stage.root("pods/u1")).unwrap();
}

/// B31 (a).
fn a_disk_under_another_name_with_a_map_goes() -> Outcome {
    let (san, _) = San::with_pod(1, false)?;
    without_manager(&san);
    san.stage.unmount(&san.stage.root(GLOBAL));
    // It comes back under other names, by two paths, with a map over them.
    san.sim.rename("sda", "sdf");
    let more = san.sim.fc_port(3, WWN[1]);
    let image = san.stage.path("unit0.img");
    let ports = [san.ports[0], more];
    let wwid = format!("naa.{}", wwid(0));
    san.sim.unit(&UnitSpec { name: "0", wwid: &wwid, lun: 0, ports: &ports, multipath: true, image: &image });
    san.sim.appear();
    let (_, alias) = san.sim.map("0").unwrap();
    assert_eq!(san.sim.disks("0"), ["sda", "sdf"]);
    san.stage.settle_well();
    let undone: Vec<String> = san.sim.events().into_iter().filter(|event| !event.starts_with("scan")).collect();
    assert_eq!(undone, [format!("flush {alias}"), "delete sda".into(), "delete sdf".into()]);
    san::assert_clean(&san.stage, &san.sim);
    Ok(())
}

/// B31 (b).
fn a_disk_that_is_really_gone_is_done() -> Outcome {
    for mounted in [false, true] {
        let (san, _) = San::with_pod(1, false)?;
        without_manager(&san);
        if !mounted {
            san.stage.unmount(&san.stage.root(GLOBAL));
        }
        san.sim.export("0", false);
        san.sim.vanish("0", true);
        san.stage.settle_well();
        assert_eq!(san::events(&san.sim, "delete"), Vec::<String>::new());
        san::assert_clean(&san.stage, &san.sim);
    }
    Ok(())
}

/// B31 (c).
fn a_name_that_is_another_disks_now_is_not_touched() -> Outcome {
    let (san, _) = San::with_pod(1, false)?;
    without_manager(&san);
    san.stage.unmount(&san.stage.root(GLOBAL));
    san.unit(1, false)?;
    san.sim.export("0", false);
    san.sim.vanish("0", true);
    san.sim.appear();
    assert_eq!(san.sim.disks("1"), ["sda"]);
    san.stage.settle_well();
    assert_eq!((san::events(&san.sim, "delete"), san.sim.disks("1")), (vec![], vec!["sda".to_owned()]));
    san.stage.assert_clean();
    Ok(())
}

/// The rows of docs/plugins.md.
fn a_record_is_lost() -> Outcome {
    for damaged in [false, true] {
        for (of_volume, of_device) in [(true, false), (false, true), (true, true)] {
            for wanted in [true, false] {
                let shown =
                    format!("damaged: {damaged}, volume's: {of_volume}, device's: {of_device}, wanted: {wanted}");
                let (san, first) = San::with_pod(2, true)?;
                let stage = &san.stage;
                let before = stage.records();
                if of_volume {
                    lose(stage, "volumes", "u1", damaged);
                }
                if of_device {
                    lose(stage, "devices", "fc", damaged);
                }
                if wanted {
                    stage.settle();
                    let settled = stage.settle();
                    let seen = volume(&settled, "pv");
                    assert_eq!(seen.state, VolumeState::Mounted, "{shown}");
                    let ids = [seen, volume(&first, "pv")].map(|v| v.mount.as_ref().and_then(|m| m.id));
                    assert_eq!(ids[0], ids[1], "{shown}");
                    let now = stage.records();
                    if of_volume {
                        assert_eq!(now.len(), before.len(), "{shown}: {:#?}", settled.plan.report);
                        assert_eq!(san::info(&san.stage)["id"], format!("3{}", wwid(0)), "{shown}");
                    }
                }
                stage.remove_manifest("u1.yaml");
                stage.settle();
                assert_eq!((stage.mounts(), stage.root("pods/u1").exists()), (vec![], false), "{shown}");
                assert_eq!((san.sim.disks("0"), san.sim.map("0")), (vec![], None), "{shown}: {:?}", san.sim.events());
            }
        }
    }
    Ok(())
}

/// The path names one disk, and another one is mounted there: it is unmounted, and no disk is removed.
fn a_lost_record_of_another_disk_is_not_made_up() -> Outcome {
    let (san, _) = San::with_pod(1, false)?;
    let stage = &san.stage;
    without_manager(&san);
    lose(stage, "devices", "fc", false);
    // The array has swapped them.
    san.sim.set_wwid("0", "naa.6dead");
    san.unit(1, false)?;
    let image = stage.path("unit1.img");
    san.sim.vanish("0", true);
    let (ports, wwid) = (&san.ports, format!("naa.{}", wwid(1)));
    san.sim.unit(&UnitSpec { name: "0", wwid: &wwid, lun: 0, ports, multipath: false, image: &image });
    san.sim.export("1", false);
    san.sim.appear();
    assert_eq!(san.sim.disks("0"), ["sda"]);
    stage.settle();
    assert_eq!(
        (stage.mounts(), san.sim.disks("0"), san::events(&san.sim, "delete")),
        (vec![], vec!["sda".to_owned()], vec![])
    );
    Ok(())
}

/// B09: other mounts come and go all the time.
fn a_table_that_changes_all_the_time() -> Outcome {
    let (san, _) = San::with_pod(2, true)?;
    let stage = &san.stage;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ended = &ended;
        for n in 0..2 {
            let folder = stage.host(&format!("noise{n}"));
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    rustix::mount::mount("noise", &folder, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
                    let _ = rustix::mount::unmount(&folder, rustix::mount::UnmountFlags::DETACH);
                }
            });
        }
        let restarted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            assert_all_mounted(&stage.settle_well(), 1);
            stage.remove_manifest("u1.yaml");
            stage.settle_well();
            san::assert_clean(&san.stage, &san.sim);
        }));
        ended.store(true, Ordering::Relaxed);
        if let Err(panic) = restarted {
            std::panic::resume_unwind(panic);
        }
    });
    Ok(())
}

fn after_a_reboot() -> Outcome {
    for wanted in [true, false] {
        let (san, _) = San::with_pod(2, true)?;
        let stage = &san.stage;
        stage.reboot();
        san.sim.vanish("0", true);
        // As the kernel finds them now.
        san.sim.appear();
        san.sim.rename("sda", "sdx");
        if wanted {
            assert_all_mounted(&stage.settle_well(), 1);
            assert_eq!(read(&stage.root(OF_U1)), "the disk's");
        }
        stage.remove_manifest("u1.yaml");
        stage.settle_well();
        san::assert_clean(&san.stage, &san.sim);
    }
    Ok(())
}

fn what_cannot_be_found_is_told() -> Outcome {
    let mut san = San::new(1, false)?;
    san.stage.options.operation_deadline = Duration::from_secs(4);
    san.sim.export("0", false);
    san.persistent("pv", &by_ports(1, 0), "");
    san.stage.manifest("u1.yaml", &pod("u1", CLAIM));
    let settled = san.stage.settle();
    let (code, message) = only_failure(&settled);
    assert_eq!(code, "DiskNotFound");
    assert!(message.contains(WWN[0]) && message.contains("host2 (0 0 0)"), "{message}");
    assert_eq!(san::devices(&san.stage), []);
    // Its words mean two disks.
    san.unit(1, false)?;
    san.sim.export("0", true);
    san.persistent("pv", &format!("wwids: [\"3{}\", \"3{}\"]", wwid(0), wwid(1)), "");
    let settled = san.stage.settle();
    assert_eq!(only_failure(&settled).0, "AmbiguousDisk");
    san.persistent("pv", &by_id(0), "");
    assert_all_mounted(&san.stage.settle_well(), 1);
    // By an id, every port is asked for everything.
    assert!(san::events(&san.sim, "scan").contains(&"scan host2 - - -".to_owned()));
    Ok(())
}

/// After a reboot another disk is at the same place of the array: it is not taken for what it is not, and not formatted.
fn another_disk_in_its_place_is_refused() -> Outcome {
    let (san, _) = San::with_pod(1, false)?;
    let stage = &san.stage;
    stage.reboot();
    san.sim.vanish("0", true);
    let image = stage.disk_image("blank.img")?;
    std::fs::write(&image, vec![0; 8 << 20]).unwrap();
    san.sim.unit(&UnitSpec {
        name: "0",
        wwid: "naa.6dead",
        lun: 0,
        ports: &san.ports,
        multipath: false,
        image: &image,
    });
    let settled = stage.settle();
    let (code, message) = only_failure(&settled);
    assert_eq!(code, "OtherDevice");
    assert!(message.contains("36dead") && message.contains(&wwid(0)), "{message}");
    assert!(std::fs::read(&image).unwrap().iter().all(|byte| *byte == 0));
    // The record of what it was stays.
    assert_eq!(san::info(&san.stage)["id"], format!("3{}", wwid(0)));
    Ok(())
}

/// Somebody of this node has it mounted too.
fn a_disk_is_left_to_who_uses_it() -> Outcome {
    let (san, _) = San::with_pod(1, false)?;
    let stage = &san.stage;
    let folder = stage.host("by-hand");
    let device = san.sim.dev().join("sda");
    rustix::mount::mount(&device, &folder, "ext4", rustix::mount::MountFlags::empty(), None).unwrap();
    stage.remove_manifest("u1.yaml");
    stage.settle();
    // Their mount holds the device's too; it goes when that is gone.
    assert_eq!((read(&folder).as_str(), san.sim.disks("0")), ("the disk's", vec!["sda".to_owned()]));
    assert_eq!((stage.is_mounted(OF_U1), san::devices(&san.stage).len()), (false, 1));
    stage.unmount(&folder);
    stage.settle_well();
    san::assert_clean(&san.stage, &san.sim);
    Ok(())
}

const BLOCK: &str = "\n  volumeMode: Block";
const GLOBAL_MAP: &str = "plugins/kubernetes.io/fc/volumeDevices/500a0981891b8dc5-lun-0";

/// A pod with the unit `0` as a raw device.
fn with_block_pod() -> Result<San, Skip> {
    let san = San::new(1, false)?;
    san.persistent("pv", &by_ports(1, 0), BLOCK);
    san.stage.manifest("u1.yaml", &block_pod("u1"));
    assert_all_mounted(&san.stage.settle_well(), 1);
    Ok(san)
}

fn link(san: &San, uid: &str) -> PathBuf {
    std::fs::read_link(san.stage.root(&format!("pods/{uid}/volumeDevices/kubernetes.io~fc/pv"))).unwrap()
}

fn a_block_volume_lives_and_goes() -> Outcome {
    let san = with_block_pod()?;
    let stage = &san.stage;
    assert_eq!(link(&san, "u1"), san.sim.dev().join("sda"));
    assert!(stage.is_mounted(&format!("{GLOBAL_MAP}/u1")));
    let [device] = san::devices(&san.stage).try_into().unwrap();
    assert_eq!((device.device_mount_path.as_str(), device.confirmed, device.mount), (GLOBAL_MAP, true, None));
    // A second pod, on the same disk.
    stage.manifest("u2.yaml", &block_pod("u2"));
    let settled = stage.settle_well();
    assert_all_mounted(&settled, 2);
    assert_eq!(settled.actual.devices[0].users.len(), 2);
    stage.remove_manifest("u1.yaml");
    assert_all_mounted(&stage.settle_well(), 1);
    assert_eq!((san::events(&san.sim, "delete"), stage.is_mounted(&format!("{GLOBAL_MAP}/u2"))), (vec![], true));
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    assert_eq!(san::events(&san.sim, "delete"), ["delete sda"]);
    san::assert_clean(&san.stage, &san.sim);
    Ok(())
}

fn a_block_volume_after_a_restart_and_a_reboot() -> Outcome {
    for wanted in [true, false] {
        let san = with_block_pod()?;
        let stage = &san.stage;
        let events = san.sim.events();
        assert_all_mounted(&stage.settle_well(), 1);
        assert_eq!(san.sim.events(), events);
        // No loop device outlives a boot.
        let root = refloat_mount::NodeRoot::open(&stage.options.root_dir).unwrap();
        for held in refloat_volume::block::survey(&root).unwrap().1 {
            refloat_mount::loopdev::detach(&held.path).unwrap();
        }
        stage.reboot();
        san.sim.vanish("0", true);
        san.sim.appear();
        if wanted {
            assert_all_mounted(&stage.settle_well(), 1);
        }
        stage.remove_manifest("u1.yaml");
        stage.settle_well();
        san::assert_clean(&san.stage, &san.sim);
    }
    Ok(())
}

fn a_block_volume_without_records() -> Outcome {
    for (of_volume, of_device) in [(true, false), (false, true), (true, true)] {
        for wanted in [true, false] {
            let shown = format!("volume's: {of_volume}, device's: {of_device}, wanted: {wanted}");
            let san = with_block_pod()?;
            let stage = &san.stage;
            let before = stage.records();
            if of_volume {
                lose(stage, "volumes", "u1", false);
            }
            if of_device {
                lose(stage, "devices", "fc", false);
            }
            if wanted {
                let id = stage.table().at(&stage.root(&format!("{GLOBAL_MAP}/u1"))).unwrap().id();
                stage.settle();
                let settled = stage.settle();
                assert_eq!(volume(&settled, "pv").state, VolumeState::Mounted, "{shown}");
                assert_eq!(stage.table().at(&stage.root(&format!("{GLOBAL_MAP}/u1"))).unwrap().id(), id, "{shown}");
                if of_volume {
                    assert_eq!(stage.records().len(), before.len(), "{shown}: {:#?}", settled.plan.report);
                }
            }
            stage.remove_manifest("u1.yaml");
            stage.settle();
            assert_eq!((stage.mounts(), san.sim.disks("0")), (vec![], vec![]), "{shown}: {:?}", san.sim.events());
        }
    }
    Ok(())
}
