//! B07, B10, B12: users, stages and their ends.

use std::time::Duration;

use refloat_node::VolumeState;
use refloat_node::sources::manifests::SETTLE;
use refloat_test_csi_driver::{Action, Event, Fault};
use refloat_test_support::Outcome;

use crate::stage::{volume, wait_for};
use crate::world::{DRIVER, Kind, World, assert_mounted, claim, one_volume_of, pod_with};

refloat_test_support::tests!(
    a_second_user_keeps_the_stage_whatever_it_has,
    a_stage_that_is_gone_counts_as_done,
    no_two_calls_for_a_volume_overlap,
);

/// B07.
fn a_second_user_keeps_the_stage_whatever_it_has() -> Outcome {
    for read_only in [false, true] {
        for lost in [&[][..], &["u2"], &["u1", "u2"]] {
            let shown = format!("read-only: {read_only}, records lost: {lost:?}");
            let world = World::new()?;
            let both = claim("pv", DRIVER, "h1", "", "").replace("ReadWriteOnce", "ReadWriteMany");
            world.stage.manifest("pv.yaml", &both);
            world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
            let other = pod_with("u2", "pv");
            let reads = other.replace("claimName: pv}", "claimName: pv, readOnly: true}");
            world.stage.manifest("other.yaml", if read_only { &reads } else { &other });
            world.stage.settle_well();
            std::fs::write(world.target("u1", "pv").join("file"), "data").unwrap();
            let table = world.stage.table();
            let top = table.at(&world.target("u2", "pv")).unwrap().options();
            assert_eq!(top.starts_with("ro"), read_only, "{shown}: {top}");
            for uid in lost {
                std::fs::remove_file(world.stage.record_file("volumes", uid)).unwrap();
            }
            world.stage.remove_manifest("pod.yaml");
            let outcome = world.stage.settle_well();
            assert_mounted(volume(&outcome, "pv"));
            assert_eq!((world.count("Unpublish"), world.count("Unstage")), (1, 0), "{shown}");
            assert_eq!(std::fs::read_to_string(world.target("u2", "pv").join("file")).unwrap(), "data", "{shown}");
            world.end(&["other.yaml"]);
            assert_eq!((world.count("Unpublish"), world.count("Unstage")), (2, 1), "{shown}");
        }
    }
    Ok(())
}

/// B10: the global mount is gone, and the pod's is all that is left.
fn a_stage_that_is_gone_counts_as_done() -> Outcome {
    for wanted in [true, false] {
        for lost in [false, true] {
            let shown = format!("wanted: {wanted}, records lost: {lost}");
            let world = one_volume_of(Kind::Filesystem)?;
            let staged = world.stage.mounts().into_iter().find(|p| p.ends_with("globalmount")).unwrap();
            world.stage.unmount(&staged);
            if lost {
                crate::foreign::lose_records(&world);
            }
            if wanted {
                // The pod has its data by its own mount, which stays.
                let mount = world.stage.table().at(&world.target("u1", "pv")).unwrap().id();
                assert_mounted(volume(&world.stage.settle_well(), "pv"));
                assert_eq!(world.stage.table().at(&world.target("u1", "pv")).unwrap().id(), mount, "{shown}");
                assert_eq!(world.begun("NodeUnpublishVolume"), 0, "{shown}");
            }
            world.end(&["pod.yaml"]);
            assert_eq!((world.count("Unpublish"), world.count("Unstage")), (1, 1), "{shown}");
        }
    }
    Ok(())
}

/// B12, B34: the wish changes again and again while the driver takes its time.
fn no_two_calls_for_a_volume_overlap() -> Outcome {
    for kind in Kind::BOTH {
        let world = one_volume_of(kind)?;
        for call in ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"] {
            world.driver.faults().order(call, &Fault::always(Action::Slow(120))).unwrap();
        }
        let running = world.stage.run();
        // The wish changes at all moments of the calls. A pod counts as gone once its folder has been left alone.
        for round in 0..8 {
            world.stage.remove_manifest("pod.yaml");
            std::thread::sleep(SETTLE + Duration::from_millis(20 + 45 * round));
            world.stage.manifest("pod.yaml", &kind.pod("u1"));
            std::thread::sleep(Duration::from_millis(20 + 45 * round));
        }
        world.stage.remove_manifest("pod.yaml");
        wait_for("the end of it", || world.stage.files("pods").is_empty() && world.stage.files("plugins").is_empty());
        running.stop();
        world.assert_clean();
        let mut under_way = None;
        for entry in world.driver.journal().unwrap().into_iter().filter(|entry| entry.volume == "h1") {
            if entry.event == Event::Begin {
                assert_eq!(under_way, None, "{kind:?}: {} came meanwhile", entry.call);
                under_way = Some(entry.call);
            } else {
                assert_eq!(under_way.take(), Some(entry.call), "{kind:?}");
            }
        }
        assert!(world.count("Unpublish") >= 2, "{kind:?}: {:?}", world.done());
        world.driver.faults().withdraw_all().unwrap();
        // A volume that is wanted once more is as it was.
        world.stage.manifest("pod.yaml", &kind.pod("u1"));
        assert_eq!(volume(&world.stage.settle_well(), "pv").state, VolumeState::Mounted, "{kind:?}");
        world.end(&["pod.yaml"]);
    }
    Ok(())
}
