//! Drivers that end in the middle of a call.

use refloat_record::Record;
use refloat_test_csi_driver::{Action, Fault};
use refloat_test_support::Outcome;

use crate::stage::volume;
use crate::world::{DRIVER, Kind, World, assert_mounted};

refloat_test_support::tests!(a_crash_before_or_after_the_work, a_crash_while_a_volume_grows);

fn a_crash_before_or_after_the_work() -> Outcome {
    for kind in Kind::BOTH {
        for call in ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"] {
            for action in [Action::Crash, Action::CrashAfter] {
                let mut world = World::new()?;
                world.stage.manifest("pv.yaml", &kind.claim());
                world.driver.faults().order(call, &Fault::once(action.clone())).unwrap();
                let shown = format!("{kind:?} {call} {action:?}");
                let undoing = call.starts_with("NodeUn");
                world.stage.manifest("pod.yaml", &kind.pod("u1"));
                if !undoing {
                    let outcome = world.stage.settle();
                    assert!(outcome.failures.iter().any(|p| p.message.contains(DRIVER)), "{shown}");
                    assert_eq!(world.driver.is_running().ok(), Some(false), "{shown}");
                    // What it made is not believed.
                    let all = world.stage.records();
                    let confirmed = all.iter().any(|record| match record {
                        Record::DeviceMount(device) => device.confirmed && call == "NodeStageVolume",
                        Record::PodVolume(volume) => volume.confirmed,
                        _ => false,
                    });
                    assert!(!confirmed, "{shown}: {all:#?}");
                    world.driver.restart(|_| {}).unwrap();
                }
                assert_mounted(volume(&world.stage.settle_well(), "pv"));
                world.stage.remove_manifest("pod.yaml");
                if undoing {
                    let outcome = world.stage.settle();
                    assert!(outcome.failures.iter().any(|p| p.message.contains(DRIVER)), "{shown}");
                    world.driver.restart(|_| {}).unwrap();
                }
                world.stage.settle_well();
                world.assert_clean();
                assert_eq!(world.count("Unstage"), 1, "{shown}: until it succeeded, and not again");
            }
        }
    }
    Ok(())
}

fn a_crash_while_a_volume_grows() -> Outcome {
    for kind in Kind::BOTH {
        let mut world = crate::world::one_volume_of(kind)?;
        world.driver.faults().order("NodeExpandVolume", &Fault::once(Action::Crash)).unwrap();
        world.stage.manifest("pv.yaml", &kind.claim().replace("storage: 16Mi", "storage: 32Mi"));
        let outcome = world.stage.settle();
        assert!(outcome.failures.iter().any(|p| p.message.contains(DRIVER)), "{:?}", outcome.failures);
        assert_eq!((world.begun("NodeExpandVolume"), world.count("Expand")), (1, 0), "{kind:?}");
        let is_grown = |world: &World| {
            let volumes = world.stage.records().into_iter().find_map(|record| match record {
                Record::PodVolume(volume) => volume.persistent_volume,
                _ => None,
            });
            volumes.unwrap().get().contains("32Mi")
        };
        assert!(!is_grown(&world), "{kind:?}: it is asked again");
        // Whether a mounted file system can really be grown here is not what this is about.
        world.driver.faults().order("NodeExpandVolume", &Fault::always(Action::Lie)).unwrap();
        world.driver.restart(|_| {}).unwrap();
        assert_mounted(volume(&world.stage.settle_well(), "pv"));
        assert!(is_grown(&world), "{kind:?}");
        world.end(&["pod.yaml"]);
    }
    Ok(())
}
