//! B28: a block volume of which any of the objects is missing.

use std::os::fd::AsFd as _;
use std::path::PathBuf;

use refloat_mount::{NodeRoot, loopdev};
use refloat_record::RelPath;
use refloat_test_support::Outcome;
use refloat_volume::block::LoopMarks;
use rustix::mount::UnmountFlags;

use crate::stage::volume;
use crate::world::{Kind, World, assert_mounted, one_volume_of};

refloat_test_support::tests!(
    any_part_of_a_block_volume_is_mended,
    any_part_of_a_block_volume_is_undone,
    after_a_reboot_any_part_of_a_block_volume_is_undone,
    a_reboot_without_the_pod_of_a_block_volume,
);

const MAP: &str = "plugins/kubernetes.io/csi/volumeDevices/pv/dev/u1";
const LINK: &str = "pods/u1/volumeDevices/kubernetes.io~csi/pv";

/// Our loop devices over the pod's device, by their mark.
fn loops(world: &World) -> Vec<PathBuf> {
    let root = NodeRoot::open(&world.stage.options.root_dir).unwrap();
    let mark = LoopMarks::of(&root).unwrap().mark(&RelPath::new(MAP).unwrap());
    let all = loopdev::all().unwrap().into_iter().map(|one| one.path);
    all.filter(|one| loopdev::status(one).ok().flatten().is_some_and(|status| status.mark == mark)).collect()
}

fn detach(devices: &[PathBuf]) {
    for device in devices {
        loopdev::detach(device).unwrap();
    }
}

/// Which of the three objects stay.
#[derive(Debug, Clone, Copy)]
struct Parts {
    bind: bool,
    link: bool,
    held: bool,
}

impl Parts {
    fn all() -> impl Iterator<Item = Self> {
        (0..8).map(|bits| Self { bind: bits & 1 != 0, link: bits & 2 != 0, held: bits & 4 != 0 })
    }

    /// Takes the others away. Of the bind mount the empty file under it stays or goes.
    fn leave(self, world: &World) {
        let map = world.stage.root(MAP);
        if !self.bind {
            if world.stage.is_mounted(MAP) {
                // The loop device keeps it busy.
                rustix::mount::unmount(&map, UnmountFlags::DETACH).unwrap();
            }
            std::fs::remove_file(&map).unwrap();
        }
        if !self.link {
            std::fs::remove_file(world.stage.root(LINK)).unwrap();
        }
        if !self.held {
            detach(&loops(world));
        }
    }
}

fn up(world: &World) {
    world.stage.manifest("pod.yaml", &Kind::Block.pod("u1"));
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    assert!(world.stage.is_mounted(MAP) && world.stage.root(LINK).exists() && loops(world).len() == 1);
}

/// The pod goes; nothing may be left, and the driver hears it once.
#[track_caller]
fn down(world: &World, shown: &str) {
    let heard = |call| world.count(call);
    let before = (heard("Unpublish"), heard("Unstage"));
    world.stage.remove_manifest("pod.yaml");
    let outcome = world.stage.settle();
    assert_eq!(outcome.failures, [], "{shown}");
    assert_eq!(world.stage.files("plugins"), Vec::<PathBuf>::new(), "{shown}");
    world.assert_clean();
    assert_eq!(loops(world), Vec::<PathBuf>::new(), "{shown}");
    assert_eq!(outcome.actual.leftovers, [], "{shown}");
    assert_eq!((heard("Unpublish"), heard("Unstage")), (before.0 + 1, before.1 + 1), "{shown}");
}

fn any_part_of_a_block_volume_is_mended() -> Outcome {
    let world = one_volume_of(Kind::Block)?;
    for lost in [false, true] {
        for parts in Parts::all() {
            let shown = format!("{parts:?}, records lost: {lost}");
            up(&world);
            parts.leave(&world);
            if lost {
                crate::foreign::lose_records(&world);
            }
            let before = world.count("Unpublish");
            let outcome = world.stage.settle();
            assert_eq!(outcome.failures, [], "{shown}");
            assert_mounted(volume(&outcome, "pv"));
            assert!(world.stage.is_mounted(MAP) && world.stage.root(LINK).exists(), "{shown}");
            assert_eq!(loops(&world).len(), 1, "{shown}");
            assert_eq!(world.count("Unpublish"), before, "{shown}: the pod may be using it");
            down(&world, &shown);
        }
    }
    Ok(())
}

fn any_part_of_a_block_volume_is_undone() -> Outcome {
    let world = one_volume_of(Kind::Block)?;
    for lost in [false, true] {
        for parts in Parts::all() {
            up(&world);
            parts.leave(&world);
            if lost {
                crate::foreign::lose_records(&world);
            }
            down(&world, &format!("{parts:?}, records lost: {lost}"));
        }
    }
    Ok(())
}

/// A loop device of ours over the empty file that the bind mount has left.
fn attach_anew(world: &World) {
    let root = NodeRoot::open(&world.stage.options.root_dir).unwrap();
    let mark = LoopMarks::of(&root).unwrap().mark(&RelPath::new(MAP).unwrap());
    let file = std::fs::File::options().read(true).write(true).open(world.stage.root(MAP)).unwrap();
    loopdev::attach_open(file.as_fd(), false, &mark).unwrap();
}

/// A loop device cannot outlive a reboot; one over the same file can have been made since.
fn after_a_reboot_any_part_of_a_block_volume_is_undone() -> Outcome {
    let world = one_volume_of(Kind::Block)?;
    for lost in [false, true] {
        for parts in Parts::all() {
            up(&world);
            let held = loops(&world);
            detach(&held);
            world.stage.reboot();
            if parts.held {
                attach_anew(&world);
            }
            parts.leave(&world);
            if lost {
                crate::foreign::lose_records(&world);
            }
            down(&world, &format!("{parts:?} after a reboot, records lost: {lost}"));
        }
    }
    Ok(())
}

fn a_reboot_without_the_pod_of_a_block_volume() -> Outcome {
    let world = one_volume_of(Kind::Block)?;
    detach(&loops(&world));
    world.stage.reboot();
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle_well();
    world.assert_clean();
    assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"], "the driver wants to hear it");
    Ok(())
}
