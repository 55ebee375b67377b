//! B13: no room for records, or for the kubelet's file.

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use refloat_record::Record;
use refloat_test_csi_driver::Process;
use refloat_test_support::{Outcome, Skip};

use crate::stage::{Stage, volume, wait_for};
use crate::world::{DRIVER, Kind, World, assert_mounted, can_mount, start};

refloat_test_support::tests!(
    without_room_for_records_no_driver_is_asked,
    without_room_for_a_new_record_the_old_one_stays,
    without_room_for_the_kubelets_file_no_driver_is_asked,
);

/// What is full.
#[derive(Debug, Clone, Copy)]
enum Full {
    Blocks,
    Inodes,
}

const FULL: [Full; 2] = [Full::Blocks, Full::Inodes];

/// Fills the file system at a folder up. Answers what takes the room.
fn fill(full: Full, folder: &Path) -> PathBuf {
    let filler = folder.join("filler");
    match full {
        Full::Inodes => {
            std::fs::create_dir(&filler).unwrap();
            let more = |number: u32| std::fs::File::create(filler.join(number.to_string()));
            assert!((0..100_000).any(|number| more(number).is_err()), "it never gets full");
        }
        Full::Blocks => {
            let file = std::fs::File::create(&filler).unwrap();
            let (mut size, mut offset) = (1 << 20, 0);
            while size > 0 {
                match std::os::unix::fs::FileExt::write_at(&file, &vec![1; size], offset) {
                    Ok(written) if written > 0 => offset += written as u64,
                    _ => size /= 2,
                }
            }
        }
    }
    filler
}

fn make_room(filler: &Path) {
    if filler.is_dir() { std::fs::remove_dir_all(filler) } else { std::fs::remove_file(filler) }.unwrap();
}

/// A file system of little room at a folder that is empty.
const SMALL: &CStr = c"size=256k,nr_inodes=64";

/// A node with a small file system for its records or for its root.
fn small(records: bool) -> Result<(Stage, Process), Skip> {
    can_mount()?;
    let stage = Stage::new();
    let folder = if records { stage.options.state_dir.clone() } else { stage.root("") };
    stage.tmpfs(&folder, SMALL);
    std::fs::create_dir(stage.root("plugins_registry")).unwrap();
    let driver = start(&stage, DRIVER, |_| {});
    Ok((stage, driver))
}

/// Half-made files of ours.
fn half_made(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(half_made(&path));
        } else if entry.file_name().to_string_lossy().starts_with('.') {
            found.push(path);
        }
    }
    found
}

fn without_room_for_records_no_driver_is_asked() -> Outcome {
    for kind in Kind::BOTH {
        for full in FULL {
            let shown = format!("{kind:?} {full:?}");
            let (stage, driver) = small(true)?;
            stage.settle_well();
            let world = World { stage, driver };
            let filler = fill(full, &world.stage.options.state_dir);
            world.stage.manifest("pv.yaml", &kind.claim());
            world.stage.manifest("pod.yaml", &kind.pod("u1"));
            let outcome = world.stage.settle();
            assert!(!outcome.failures.is_empty(), "{shown}");
            let records = world.stage.options.state_dir.display().to_string();
            for problem in &outcome.failures {
                assert!(problem.code == "DiskFull" && problem.message.contains(&records), "{shown}: {problem:?}");
            }
            assert_eq!(world.begun("NodeStageVolume") + world.begun("NodePublishVolume"), 0, "{shown}");
            assert_eq!(world.stage.mounts(), Vec::<PathBuf>::new(), "{shown}");
            assert_eq!(world.stage.files("pods"), Vec::<PathBuf>::new(), "{shown}");
            assert_eq!(world.stage.files("plugins"), Vec::<PathBuf>::new(), "{shown}");
            let half = half_made(&world.stage.options.state_dir);
            assert!(half.iter().all(|path| path.ends_with(".lock")), "{shown}: {half:?}");
            // By itself, when there is room.
            let running = world.stage.run();
            make_room(&filler);
            wait_for(&shown, || world.stage.is_mounted(&kind.published("u1")));
            running.stop();
            assert_mounted(volume(&world.stage.settle_well(), "pv"));
            world.end(&["pod.yaml"]);
        }
    }
    Ok(())
}

fn without_room_for_a_new_record_the_old_one_stays() -> Outcome {
    for kind in Kind::BOTH {
        for full in FULL {
            let shown = format!("{kind:?} {full:?}");
            let (stage, driver) = small(true)?;
            let world = World { stage, driver };
            world.stage.manifest("pv.yaml", &kind.claim());
            world.stage.manifest("pod.yaml", &kind.pod("u1"));
            assert_mounted(volume(&world.stage.settle_well(), "pv"));
            let records = |world: &World| -> Vec<_> {
                world.stage.records().into_iter().filter(|r| !matches!(r, Record::Driver(_))).collect()
            };
            let before = records(&world);
            let filler = fill(full, &world.stage.options.state_dir);
            // What cannot be written down is not begun: it would have to be known as being undone.
            world.stage.remove_manifest("pod.yaml");
            let outcome = world.stage.settle();
            assert!(outcome.failures.iter().all(|p| p.code == "DiskFull"), "{shown}: {:?}", outcome.failures);
            if !outcome.failures.is_empty() {
                assert_eq!(world.begun("NodeUnpublishVolume"), 0, "{shown}");
                assert_eq!(records(&world), before, "{shown}");
                assert!(world.stage.is_mounted(&kind.published("u1")), "{shown}");
            }
            make_room(&filler);
            world.stage.settle_well();
            world.assert_clean();
        }
    }
    Ok(())
}

fn without_room_for_the_kubelets_file_no_driver_is_asked() -> Outcome {
    for full in FULL {
        let shown = format!("{full:?}");
        let kind = Kind::Filesystem;
        let (stage, driver) = small(false)?;
        stage.settle_well();
        let world = World { stage, driver };
        let filler = fill(full, &world.stage.root(""));
        world.stage.manifest("pv.yaml", &kind.claim());
        world.stage.manifest("pod.yaml", &kind.pod("u1"));
        let outcome = world.stage.settle();
        assert!(!outcome.failures.is_empty(), "{shown}");
        for problem in &outcome.failures {
            let names = problem.message.contains(&world.stage.root("").display().to_string());
            assert!(names && problem.message.contains("No space left"), "{shown}: {problem:?}");
        }
        assert_eq!(world.begun("NodeStageVolume") + world.begun("NodePublishVolume"), 0, "{shown}");
        assert_eq!(half_made(&world.stage.root("plugins")), Vec::<PathBuf>::new(), "{shown}");
        let running = world.stage.run();
        make_room(&filler);
        wait_for(&shown, || world.stage.is_mounted(&kind.published("u1")));
        running.stop();
        assert_mounted(volume(&world.stage.settle_well(), "pv"));
        // The pod goes while there is no room: undoing needs none below the root.
        let filler = fill(full, &world.stage.root(""));
        world.stage.remove_manifest("pod.yaml");
        world.stage.settle_well();
        make_room(&filler);
        assert_eq!(world.stage.files("pods"), Vec::<PathBuf>::new(), "{shown}");
        assert_eq!(world.stage.files("plugins"), Vec::<PathBuf>::new(), "{shown}");
        assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"], "{shown}");
    }
    Ok(())
}
