//! Raw block volumes that a driver publishes.

use std::path::{Path, PathBuf};

use refloat_test_csi_driver::{Action, Fault};
use refloat_test_support::{Outcome, Skip};

use crate::stage::volume;
use crate::world::{DRIVER, Kind, World, assert_mounted, csi_driver};

refloat_test_support::tests!(
    a_block_volume_from_set_up_to_gone,
    two_pods_share_a_block_volume,
    a_driver_that_does_not_stage_block_volumes,
    a_reboot_with_a_block_volume,
    a_block_volume_is_asked_for_again,
    a_lie_about_a_block_volume,
    records_of_a_block_volume_are_lost,
);

fn one_block_volume() -> Result<World, Skip> {
    let world = World::new()?;
    world.stage.manifest("pv.yaml", &Kind::Block.claim());
    world.stage.manifest("pod.yaml", &Kind::Block.pod("u1"));
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    Ok(world)
}

fn link(world: &World, uid: &str) -> PathBuf {
    world.stage.root(&format!("pods/{uid}/volumeDevices/kubernetes.io~csi/pv"))
}

/// Writes through the pod's symlink, or reads what was written.
fn write(path: &Path) {
    use std::os::unix::fs::FileExt as _;
    let device = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    device.write_all_at(b"data", 4096).unwrap();
    device.sync_all().unwrap();
}

fn read(path: &Path) -> [u8; 4] {
    use std::os::unix::fs::FileExt as _;
    let mut found = [0; 4];
    std::fs::File::open(path).unwrap().read_exact_at(&mut found, 4096).unwrap();
    found
}

fn a_block_volume_from_set_up_to_gone() -> Outcome {
    let world = one_block_volume()?;
    write(&link(&world, "u1"));
    let published = world.stage.root("plugins/kubernetes.io/csi/volumeDevices/publish/pv/u1");
    assert_eq!(std::fs::read_link(link(&world, "u1")).unwrap(), published);
    assert!(world.stage.is_mounted("plugins/kubernetes.io/csi/volumeDevices/pv/dev/u1"));
    let outcome = world.stage.settle_well();
    assert_mounted(volume(&outcome, "pv"));
    assert_eq!(outcome.actual.leftovers, []);
    assert_eq!(world.done(), ["Stage", "Publish"], "nothing is asked twice");
    world.end(&["pod.yaml"]);
    assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"]);
    world.stage.manifest("pod.yaml", &Kind::Block.pod("u2"));
    world.stage.settle_well();
    assert_eq!(&read(&link(&world, "u2")), b"data");
    world.end(&["pod.yaml"]);
    Ok(())
}

fn two_pods_share_a_block_volume() -> Outcome {
    let world = one_block_volume()?;
    world.stage.manifest("other.yaml", &Kind::Block.pod("u2"));
    world.stage.settle_well();
    write(&link(&world, "u1"));
    assert_eq!(&read(&link(&world, "u2")), b"data");
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle_well();
    assert_eq!(&read(&link(&world, "u2")), b"data", "the other keeps it");
    assert_eq!((world.count("Unpublish"), world.count("Unstage")), (1, 0));
    world.end(&["other.yaml"]);
    assert_eq!((world.count("Stage"), world.count("Unstage")), (1, 1));
    Ok(())
}

fn a_driver_that_does_not_stage_block_volumes() -> Outcome {
    let world = World::with(|options| options.no_stage = true)?;
    world.stage.manifest("pv.yaml", &Kind::Block.claim());
    world.stage.manifest("pod.yaml", &Kind::Block.pod("u1"));
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    world.end(&["pod.yaml"]);
    assert_eq!(world.done(), ["Publish", "Unpublish"]);
    Ok(())
}

fn a_reboot_with_a_block_volume() -> Outcome {
    let world = one_block_volume()?;
    write(&link(&world, "u1"));
    for device in refloat_mount::loopdev::all().unwrap() {
        if device.backing.starts_with(world.stage.root("plugins")) {
            refloat_mount::loopdev::detach(&device.path).unwrap();
        }
    }
    world.stage.reboot();
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    assert_eq!(&read(&link(&world, "u1")), b"data");
    assert_eq!((world.count("Stage"), world.count("Publish")), (2, 2));
    world.end(&["pod.yaml"]);
    Ok(())
}

/// B28.
fn records_of_a_block_volume_are_lost() -> Outcome {
    for no_stage in [false, true] {
        for wanted in [false, true] {
            let world = World::with(|options| options.no_stage = no_stage)?;
            world.stage.manifest("pv.yaml", &Kind::Block.claim());
            world.stage.manifest("pod.yaml", &Kind::Block.pod("u1"));
            world.stage.settle_well();
            crate::foreign::lose_records(&world);
            if wanted {
                assert_mounted(volume(&world.stage.settle_well(), "pv"));
                assert_eq!(world.begun("NodeUnpublishVolume") + world.begun("NodeUnstageVolume"), 0);
            }
            world.end(&["pod.yaml"]);
            let stages = usize::from(!no_stage);
            assert_eq!((world.count("Unpublish"), world.count("Unstage")), (1, stages), "{no_stage} {wanted}");
        }
    }
    Ok(())
}

/// B35.
fn a_lie_about_a_block_volume() -> Outcome {
    for call in ["NodePublishVolume", "NodeUnpublishVolume"] {
        let world = World::new()?;
        world.stage.manifest("pv.yaml", &Kind::Block.claim());
        world.stage.manifest("pod.yaml", &Kind::Block.pod("u1"));
        let undoing = call == "NodeUnpublishVolume";
        if undoing {
            world.stage.settle_well();
            world.stage.remove_manifest("pod.yaml");
        }
        world.driver.faults().order(call, &Fault::always(Action::Lie)).unwrap();
        let outcome = world.stage.settle();
        let code = if undoing { "StillMounted" } else { "NoDevice" };
        assert_eq!(crate::world::codes(&outcome), [code], "{:?}", outcome.failures);
        assert!(outcome.failures[0].message.contains(DRIVER));
        world.driver.faults().withdraw_all().unwrap();
        world.stage.settle_well();
        if !undoing {
            world.stage.remove_manifest("pod.yaml");
            world.stage.settle_well();
        }
        world.assert_clean();
    }
    Ok(())
}

fn a_block_volume_is_asked_for_again() -> Outcome {
    let world = one_block_volume()?;
    world.stage.manifest("driver.yaml", &csi_driver(DRIVER, "requiresRepublish: true, attachRequired: false"));
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    assert_eq!(world.count("Publish"), 2);
    write(&link(&world, "u1"));
    world.end(&["pod.yaml"]);
    Ok(())
}
