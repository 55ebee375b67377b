//! What goes right.

use std::os::unix::fs::MetadataExt as _;

use refloat_node::VolumeState;
use refloat_record::Record;
use refloat_test_csi_driver::{Action, Fault};
use refloat_test_support::{Outcome, skip};

use crate::stage::{pod, volume};
use crate::world::{DRIVER, World, assert_mounted, claim, csi_driver, one_volume, pod_with};

refloat_test_support::tests!(
    a_staged_volume_from_set_up_to_gone,
    a_driver_that_does_not_stage_gets_no_folder,
    two_pods_share_one_stage,
    two_volumes_of_one_handle_share_one_stage,
    an_inline_volume,
    a_driver_that_does_nothing,
    a_volume_grows_while_it_is_mounted,
    a_mounted_file_system_has_grown,
    a_volume_that_grew_before_it_was_mounted,
    a_driver_that_wants_to_be_asked_again,
    the_kubelet_could_take_it_over,
);

fn a_staged_volume_from_set_up_to_gone() -> Outcome {
    let world = one_volume()?;
    std::fs::write(world.target("u1", "pv").join("file"), "data").unwrap();
    let outcome = world.stage.settle_well();
    assert_mounted(volume(&outcome, "pv"));
    assert_eq!(world.done(), ["Stage", "Publish"], "nothing is asked twice");
    let device = &outcome.actual.devices[0];
    assert_eq!(device.unique_name.as_ref().unwrap().as_str(), "kubernetes.io/csi/disk.test^h1");
    assert_eq!((device.state, device.users.len()), (VolumeState::Mounted, 1));
    world.end(&["pod.yaml"]);
    assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"]);

    world.stage.manifest("pod.yaml", &pod_with("u2", "pv"));
    world.stage.settle_well();
    assert_eq!(std::fs::read_to_string(world.target("u2", "pv").join("file")).unwrap(), "data");
    world.end(&["pod.yaml"]);
    Ok(())
}

fn a_driver_that_does_not_stage_gets_no_folder() -> Outcome {
    let world = World::with(|options| options.no_stage = true)?;
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ""));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    let outcome = world.stage.settle_well();
    assert_mounted(volume(&outcome, "pv"));
    assert!(outcome.actual.devices.is_empty());
    assert_eq!(world.stage.files("plugins"), Vec::<std::path::PathBuf>::new());
    world.end(&["pod.yaml"]);
    assert_eq!(world.done(), ["Publish", "Unpublish"]);
    Ok(())
}

/// B07.
fn two_pods_share_one_stage() -> Outcome {
    let world = one_volume()?;
    world.stage.manifest("other.yaml", &pod_with("u2", "pv"));
    let outcome = world.stage.settle_well();
    assert_eq!(outcome.actual.volumes.len(), 2);
    outcome.actual.volumes.iter().for_each(assert_mounted);
    assert_eq!((world.count("Stage"), world.count("Publish")), (1, 2));
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle_well();
    assert_eq!((world.count("Unpublish"), world.count("Unstage")), (1, 0));
    assert!(world.target("u2", "pv").join("lost+found").exists(), "the other keeps it");
    world.end(&["other.yaml"]);
    assert_eq!((world.count("Unpublish"), world.count("Unstage")), (2, 1));
    Ok(())
}

fn two_volumes_of_one_handle_share_one_stage() -> Outcome {
    let world = World::new()?;
    let both = claim("pv", DRIVER, "h1", "", "") + &claim("pw", DRIVER, "h1", "", "");
    world.stage.manifest("pv.yaml", &both);
    let entries = ["pv", "pw"]
        .map(|name| format!("  - {{name: {name}, persistentVolumeClaim: {{claimName: {name}}}}}\n"))
        .concat();
    world.stage.manifest("pod.yaml", &pod("u1", &entries));
    let outcome = world.stage.settle_well();
    assert_eq!((outcome.actual.volumes.len(), outcome.actual.devices.len()), (2, 1));
    outcome.actual.volumes.iter().for_each(assert_mounted);
    assert_eq!((world.count("Stage"), world.count("Publish")), (1, 2));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pw"));
    world.stage.settle_well();
    assert_eq!((world.count("Unpublish"), world.count("Unstage")), (1, 0));
    world.end(&["pod.yaml"]);
    assert_eq!((world.count("Unpublish"), world.count("Unstage")), (2, 1));
    Ok(())
}

fn an_inline_volume() -> Outcome {
    let world = World::new()?;
    let volumes = format!("  - {{name: scratch, csi: {{driver: {DRIVER}}}}}\n");
    world.stage.manifest("pod.yaml", &pod("u1", &volumes));
    let outcome = world.stage.settle();
    let waiting = &outcome.desired.pods.values().next().unwrap().waiting;
    assert_eq!(waiting[0].problem.code, "LifecycleUnsupported", "{waiting:?}");
    assert_eq!(world.begun("NodePublishVolume"), 0);

    let spec = "volumeLifecycleModes: [Ephemeral], podInfoOnMount: true";
    world.stage.manifest("driver.yaml", &csi_driver(DRIVER, spec));
    let outcome = world.stage.settle_well();
    let seen = volume(&outcome, "scratch");
    assert_mounted(seen);
    // That the driver made a tmpfs says that it was told that the volume is ephemeral.
    assert_eq!(seen.mount.as_ref().unwrap().fs_type, "tmpfs");
    assert_eq!(seen.unique_name.as_ref().unwrap().as_str(), "kubernetes.io/csi/u1-scratch");
    world.end(&["pod.yaml"]);
    assert_eq!(world.done(), ["Publish", "Unpublish"]);
    Ok(())
}

fn a_driver_that_does_nothing() -> Outcome {
    let world = World::with(|options| options.noop = true)?;
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ""));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    for _ in 0..2 {
        let outcome = world.stage.settle_well();
        let seen = volume(&outcome, "pv");
        assert_eq!((seen.state, seen.mount.is_some()), (VolumeState::Mounted, false));
        assert_eq!(seen.problems.iter().map(|p| p.code).collect::<Vec<_>>(), ["NothingMounted"]);
    }
    assert_eq!(world.done(), ["Stage", "Publish"]);
    world.end(&["pod.yaml"]);
    assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"]);
    Ok(())
}

fn recorded_size(world: &World) -> String {
    let volume = world.stage.records().into_iter().find_map(|record| match record {
        Record::PodVolume(volume) => volume.persistent_volume,
        _ => None,
    });
    let volume: serde_json::Value = volume.unwrap().parse().unwrap();
    volume["spec"]["capacity"]["storage"].as_str().unwrap().to_owned()
}

fn size_of(world: &World) -> u64 {
    let fs = rustix::fs::statvfs(world.target("u1", "pv")).unwrap();
    fs.f_blocks * fs.f_frsize
}

/// Whether an ext4 that is mounted can be grown here.
///
/// # Source
/// `ext4_ioctl` of Linux: `EXT4_IOC_RESIZE_FS` needs `CAP_SYS_RESOURCE`, which is bit 24.
fn can_grow() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    u64::from_str_radix(bits, 16).unwrap() & (1 << 24) != 0
}

/// The driver says that it has grown the volume; without the right to, it does not do it.
fn pretend_to_grow(world: &World) {
    if !can_grow() {
        world.driver.faults().order("NodeExpandVolume", &Fault::always(Action::Lie)).unwrap();
    }
}

fn a_volume_grows_while_it_is_mounted() -> Outcome {
    let world = one_volume()?;
    let grown = claim("pv", DRIVER, "h1", "", "").replace("storage: 16Mi", "storage: 32Mi");
    let refused = Action::Code { code: 11, message: "too large".into() };
    world.driver.faults().order("NodeExpandVolume", &Fault::always(refused)).unwrap();
    world.stage.manifest("pv.yaml", &grown);
    let outcome = world.stage.settle();
    assert_eq!(crate::world::codes(&outcome), ["DriverRefused"]);
    assert_eq!(volume(&outcome, "pv").state, VolumeState::Mounted, "it stays as it is");
    assert_eq!(recorded_size(&world), "16Mi");

    world.driver.faults().withdraw_all().unwrap();
    pretend_to_grow(&world);
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    assert_eq!(recorded_size(&world), "32Mi");
    assert_eq!((world.count("Expand"), world.count("Publish")), (1, 1));
    let device = world.stage.records().into_iter().find_map(|record| match record {
        Record::DeviceMount(device) => device.persistent_volume,
        _ => None,
    });
    assert!(device.unwrap().get().contains("32Mi"), "the device's record follows");
    world.end(&["pod.yaml"]);
    Ok(())
}

fn a_mounted_file_system_has_grown() -> Outcome {
    if !can_grow() {
        return skip("a mounted ext4 cannot be grown without CAP_SYS_RESOURCE");
    }
    let world = one_volume()?;
    let before = size_of(&world);
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", "").replace("storage: 16Mi", "storage: 32Mi"));
    world.stage.settle_well();
    assert!(size_of(&world) > before + (8 << 20));
    world.end(&["pod.yaml"]);
    Ok(())
}

fn a_volume_that_grew_before_it_was_mounted() -> Outcome {
    let world = one_volume()?;
    world.end(&["pod.yaml"]);
    // The claim says what the file system has.
    let grown = claim("pv", DRIVER, "h1", "", "").replacen("storage: 16Mi", "storage: 32Mi", 1);
    let (volume, claim) = grown.split_once("\n---\n").unwrap();
    let claim = claim.replace("\n---\n", "\nstatus: {capacity: {storage: 16Mi}}\n");
    world.stage.manifest("pv.yaml", &format!("{volume}\n---\n{claim}"));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    pretend_to_grow(&world);
    world.stage.settle_well();
    assert_eq!(world.count("Expand"), 1);
    world.end(&["pod.yaml"]);
    Ok(())
}

fn a_driver_that_wants_to_be_asked_again() -> Outcome {
    let world = one_volume()?;
    world.stage.manifest("driver.yaml", &csi_driver(DRIVER, "requiresRepublish: true, attachRequired: false"));
    let mount = world.stage.table().at(&world.target("u1", "pv")).unwrap().id();
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    assert_eq!(world.count("Publish"), 2, "once more after the start, then from time to time");
    assert_eq!(world.stage.table().at(&world.target("u1", "pv")).unwrap().id(), mount);
    world.end(&["pod.yaml"]);
    Ok(())
}

fn the_kubelet_could_take_it_over() -> Outcome {
    let world = one_volume()?;
    let read = |path: std::path::PathBuf| {
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        std::fs::read_to_string(path).unwrap()
    };
    let text = read(world.target("u1", "pv").with_file_name("vol_data.json"));
    let data: serde_json::Value = serde_json::from_str(&text).unwrap();
    let keys: Vec<_> = data.as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        keys,
        ["attachmentID", "driverName", "nodeName", "specVolID", "volumeHandle", "volumeLifecycleMode"],
        "sorted, as the kubelet writes them"
    );
    assert_eq!(
        (&data["driverName"], &data["volumeHandle"], &data["specVolID"], &data["volumeLifecycleMode"]),
        (&DRIVER.into(), &"h1".into(), &"pv".into(), &"Persistent".into())
    );
    assert!(data["attachmentID"].as_str().unwrap().starts_with("csi-") && text.ends_with("}\n"));
    let global = world.stage.files("plugins").into_iter().find(|p| p.ends_with("vol_data.json")).unwrap();
    assert_eq!(read(global.clone()), "{\"driverName\":\"disk.test\",\"volumeHandle\":\"h1\"}\n");
    let hash = global.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(hash.len(), 64);
    let expected = std::process::Command::new("sh").args(["-c", "printf h1 | sha256sum"]).output().unwrap();
    assert!(String::from_utf8_lossy(&expected.stdout).starts_with(&hash));
    world.end(&["pod.yaml"]);
    Ok(())
}
