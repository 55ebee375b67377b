//! Every error that a driver can answer to every call: the state, the record and what is said.

use refloat_node::VolumeState;
use refloat_node::manager::Outcome as Settled;
use refloat_record::Record;
use refloat_test_csi_driver::{Action, Fault};
use refloat_test_support::{Outcome, Skip};

use crate::stage::volume;
use crate::world::{DRIVER, Kind, World, assert_mounted, one_volume_of};

refloat_test_support::tests!(
    every_code_of_stage,
    every_code_of_publish,
    every_code_of_unpublish,
    every_code_of_unstage,
    every_code_of_expand,
    every_code_of_the_capabilities,
    an_error_after_the_work_of_mounting,
    errors_of_the_registration,
);

/// Number, name, and whether the driver may be at it still.
///
/// # Source
/// `isFinalError` of the kubelet's CSI client.
const CODES: [(i32, &str, bool); 16] = [
    (1, "CANCELLED", true),
    (2, "UNKNOWN", false),
    (3, "INVALID_ARGUMENT", false),
    (4, "DEADLINE_EXCEEDED", true),
    (5, "NOT_FOUND", false),
    (6, "ALREADY_EXISTS", false),
    (7, "PERMISSION_DENIED", false),
    (8, "RESOURCE_EXHAUSTED", true),
    (9, "FAILED_PRECONDITION", false),
    (10, "ABORTED", true),
    (11, "OUT_OF_RANGE", false),
    (12, "UNIMPLEMENTED", false),
    (13, "INTERNAL", false),
    (14, "UNAVAILABLE", true),
    (15, "DATA_LOSS", false),
    (16, "UNAUTHENTICATED", false),
];

fn order(world: &World, call: &str, code: i32) {
    let action = Action::Code { code, message: format!("as ordered, code {code}") };
    world.driver.faults().order(call, &Fault::always(action)).unwrap();
}

/// What was said of a call that failed with this code.
#[track_caller]
fn assert_told(outcome: &Settled, call: &str, code: &str, uncertain: bool) {
    let problem = outcome.failures.first().unwrap_or_else(|| panic!("{call} {code}: nothing is said"));
    assert_eq!(problem.code, if uncertain { "DriverFailed" } else { "DriverRefused" }, "{problem:?}");
    for part in [call, code, DRIVER, "as ordered"] {
        assert!(problem.message.contains(part), "{part} is missing: {problem:?}");
    }
}

fn every_code_of_mounting(call: &str) -> Result<(), Skip> {
    for kind in Kind::BOTH {
        let world = World::new()?;
        world.stage.manifest("pv.yaml", &kind.claim());
        for (number, code, uncertain) in CODES {
            order(&world, call, number);
            world.stage.manifest("pod.yaml", &kind.pod("u1"));
            let outcome = world.stage.settle();
            assert_told(&outcome, call, code, uncertain);
            let records = world.stage.records();
            let of_call = |record: &Record| match record {
                Record::DeviceMount(device) => call == "NodeStageVolume" && !device.confirmed,
                Record::PodVolume(volume) => call == "NodePublishVolume" && !volume.confirmed,
                _ => false,
            };
            // What the driver may be at is kept in mind, what it refused is undone.
            assert_eq!(records.iter().any(of_call), uncertain, "{kind:?} {code}: {records:#?}");
            if uncertain && call == "NodePublishVolume" {
                assert_eq!(volume(&outcome, "pv").state, VolumeState::Uncertain, "{kind:?} {code}");
            }
            world.driver.faults().withdraw_all().unwrap();
            assert_mounted(volume(&world.stage.settle_well(), "pv"));
            world.end(&["pod.yaml"]);
        }
    }
    Ok(())
}

fn every_code_of_stage() -> Outcome {
    every_code_of_mounting("NodeStageVolume")
}

fn every_code_of_publish() -> Outcome {
    every_code_of_mounting("NodePublishVolume")
}

fn every_code_of_undoing(call: &str) -> Result<(), Skip> {
    let unpublish = call == "NodeUnpublishVolume";
    for kind in Kind::BOTH {
        let world = World::new()?;
        world.stage.manifest("pv.yaml", &kind.claim());
        for (number, code, uncertain) in CODES {
            world.stage.manifest("pod.yaml", &kind.pod("u1"));
            assert_mounted(volume(&world.stage.settle_well(), "pv"));
            order(&world, call, number);
            world.stage.remove_manifest("pod.yaml");
            let outcome = world.stage.settle();
            assert_told(&outcome, call, code, uncertain);
            let shown = format!("{kind:?} {code}");
            let published = world.stage.is_mounted(&kind.published("u1"));
            assert_eq!(published, unpublish, "{shown}: nothing is done without the driver");
            assert_eq!(outcome.actual.devices.len(), 1, "{shown}");
            assert_eq!(outcome.actual.devices[0].state == VolumeState::Uncertain, !unpublish, "{shown}");
            let records = world.stage.records();
            let recorded = |record: &Record| match record {
                Record::DeviceMount(device) => device.confirmed == unpublish,
                Record::PodVolume(volume) => unpublish && !volume.confirmed,
                _ => false,
            };
            let found = records.iter().filter(|record| recorded(record)).count();
            assert_eq!(found, if unpublish { 2 } else { 1 }, "{shown}: {records:#?}");
            world.driver.faults().withdraw_all().unwrap();
            world.stage.settle_well();
            world.assert_clean();
        }
        assert_eq!(world.count("Unstage"), CODES.len(), "{kind:?}: once each");
        assert_eq!(world.count("Unpublish"), CODES.len(), "{kind:?}: once each");
    }
    Ok(())
}

fn every_code_of_unpublish() -> Outcome {
    every_code_of_undoing("NodeUnpublishVolume")
}

fn every_code_of_unstage() -> Outcome {
    every_code_of_undoing("NodeUnstageVolume")
}

/// The sizes in the records of the volume and of its device.
fn recorded_sizes(world: &World) -> Vec<String> {
    let volumes = world.stage.records().into_iter().filter_map(|record| match record {
        Record::PodVolume(volume) => volume.persistent_volume,
        Record::DeviceMount(device) => device.persistent_volume,
        _ => None,
    });
    volumes
        .map(|volume| {
            let volume: serde_json::Value = volume.get().parse().unwrap();
            volume["spec"]["capacity"]["storage"].as_str().unwrap().to_owned()
        })
        .collect()
}

fn every_code_of_expand() -> Outcome {
    for kind in Kind::BOTH {
        let world = one_volume_of(kind)?;
        let mut has = 16;
        for (number, code, uncertain) in CODES {
            let wants = has + 1;
            order(&world, "NodeExpandVolume", number);
            let grown = kind.claim().replace("storage: 16Mi", &format!("storage: {wants}Mi"));
            world.stage.manifest("pv.yaml", &grown);
            let outcome = world.stage.settle();
            assert_told(&outcome, "NodeExpandVolume", code, uncertain);
            assert_eq!(volume(&outcome, "pv").state, VolumeState::Mounted, "{kind:?} {code}: it stays as it is");
            let before = format!("{has}Mi");
            assert_eq!(recorded_sizes(&world), [before.clone(), before], "{kind:?} {code}");
            // Whether a mounted file system can really be grown here is not what this is about.
            world.driver.faults().order("NodeExpandVolume", &Fault::always(Action::Lie)).unwrap();
            assert_mounted(volume(&world.stage.settle_well(), "pv"));
            let after = format!("{wants}Mi");
            assert_eq!(recorded_sizes(&world), [after.clone(), after], "{kind:?} {code}");
            has = wants;
        }
        assert_eq!((world.count("Expand"), world.count("Publish")), (CODES.len(), 1), "{kind:?}");
        world.end(&["pod.yaml"]);
    }
    Ok(())
}

/// What the driver can do is asked first: without the answer nothing is begun, and nothing is undone.
fn every_code_of_the_capabilities() -> Outcome {
    let call = "NodeGetCapabilities";
    let world = World::new()?;
    let kind = Kind::Filesystem;
    world.stage.manifest("pv.yaml", &kind.claim());
    for (number, code, _) in CODES {
        let told = |outcome: &Settled| {
            let problem = outcome.failures.first().unwrap_or_else(|| panic!("{code}: nothing is said"));
            for part in [call, code, DRIVER, "as ordered"] {
                assert!(problem.message.contains(part), "{part} is missing: {problem:?}");
            }
        };
        let begun = world.begun("NodeStageVolume");
        order(&world, call, number);
        world.stage.manifest("pod.yaml", &kind.pod("u1"));
        told(&world.stage.settle());
        assert_eq!(world.begun("NodeStageVolume"), begun, "{code}");
        world.driver.faults().withdraw_all().unwrap();
        assert_mounted(volume(&world.stage.settle_well(), "pv"));

        order(&world, call, number);
        world.stage.remove_manifest("pod.yaml");
        let outcome = world.stage.settle();
        told(&outcome);
        assert_eq!(outcome.actual.devices.len(), 1, "{code}: it stays known");
        world.driver.faults().withdraw_all().unwrap();
        world.stage.settle_well();
        world.assert_clean();
    }
    Ok(())
}

/// The driver did its work, and answers that it did not: what it refused is undone by it, what it may be at is asked for
/// again.
fn an_error_after_the_work_of_mounting() -> Outcome {
    for kind in Kind::BOTH {
        for call in ["NodeStageVolume", "NodePublishVolume"] {
            let world = World::new()?;
            world.stage.manifest("pv.yaml", &kind.claim());
            for (number, code, uncertain) in CODES {
                let shown = format!("{kind:?} {call} {code}");
                let stages = world.count("Unstage");
                let action = Action::CodeAfter { code: number, message: "as ordered".into() };
                world.driver.faults().order(call, &Fault::always(action)).unwrap();
                world.stage.manifest("pod.yaml", &kind.pod("u1"));
                let outcome = world.stage.settle();
                assert_told(&outcome, call, code, uncertain);
                let published = call == "NodePublishVolume" && uncertain;
                assert_eq!(world.stage.is_mounted(&kind.published("u1")), published, "{shown}");
                world.driver.faults().withdraw_all().unwrap();
                world.stage.remove_manifest("pod.yaml");
                world.stage.settle_well();
                world.assert_clean();
                assert!(world.count("Unstage") > stages, "{shown}: it was staged, and heard that it is not");
            }
        }
    }
    Ok(())
}

/// A driver that cannot be registered: its volumes wait, and it is said why; as soon as it can, they are set up.
fn errors_of_the_registration() -> Outcome {
    for call in ["GetInfo", "GetPluginInfo", "NodeGetInfo"] {
        for code in ["INTERNAL", "UNAVAILABLE"] {
            let number = CODES.iter().find(|(_, name, _)| *name == code).unwrap().0;
            let world = World::new()?;
            world.stage.manifest("pv.yaml", &Kind::Filesystem.claim());
            world.stage.manifest("pod.yaml", &Kind::Filesystem.pod("u1"));
            order(&world, call, number);
            let outcome = world.stage.settle();
            let shown = format!("{call} {code}");
            assert_eq!(crate::world::codes(&outcome), ["DriverMissing"], "{shown}: {:?}", outcome.failures);
            assert_eq!(world.begun("NodeStageVolume"), 0, "{shown}");
            let running = world.stage.run();
            world.driver.faults().withdraw_all().unwrap();
            crate::stage::wait_for("the volume", || world.stage.is_mounted(&Kind::Filesystem.published("u1")));
            running.stop();
            world.end(&["pod.yaml"]);
        }
    }
    Ok(())
}
