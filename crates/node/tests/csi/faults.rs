//! Drivers that fail: what is believed, what is recorded, what is said.

use refloat_node::VolumeState;
use refloat_record::Record;
use refloat_test_csi_driver::{Action, Fault};
use refloat_test_support::{Outcome, Skip};

use crate::stage::{volume, wait_for};
use crate::world::{DRIVER, World, assert_mounted, claim, codes, one_volume, pod_with, target};

refloat_test_support::tests!(
    every_code_of_stage,
    every_code_of_publish,
    every_code_of_unpublish,
    every_code_of_unstage,
    a_lie_about_unpublish,
    a_lie_about_unstage,
    a_lie_about_publish,
    unstage_worked_and_was_answered_with_an_error,
    an_error_for_a_target_that_is_not_mounted,
    a_hang_is_an_uncertain_volume,
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
fn assert_told(outcome: &refloat_node::manager::Outcome, call: &str, code: &str, uncertain: bool) {
    let problem = outcome.failures.first().unwrap_or_else(|| panic!("{call} {code}: nothing is said"));
    assert_eq!(problem.code, if uncertain { "DriverFailed" } else { "DriverRefused" }, "{problem:?}");
    for part in [call, code, DRIVER, "as ordered"] {
        assert!(problem.message.contains(part), "{part} is missing: {problem:?}");
    }
}

fn every_code_of_mounting(call: &str) -> Result<(), Skip> {
    let world = World::new()?;
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ""));
    for (number, code, uncertain) in CODES {
        order(&world, call, number);
        world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
        let outcome = world.stage.settle();
        assert_told(&outcome, call, code, uncertain);
        let records = world.stage.records();
        let of_call = |record: &Record| match record {
            Record::DeviceMount(device) => call == "NodeStageVolume" && !device.confirmed,
            Record::PodVolume(volume) => call == "NodePublishVolume" && !volume.confirmed,
            _ => false,
        };
        // What the driver may be at is kept in mind, what it refused is undone.
        assert_eq!(records.iter().any(of_call), uncertain, "{code}: {records:#?}");
        if uncertain && call == "NodePublishVolume" {
            assert_eq!(volume(&outcome, "pv").state, VolumeState::Uncertain, "{code}");
        }
        world.driver.faults().withdraw_all().unwrap();
        assert_mounted(volume(&world.stage.settle_well(), "pv"));
        world.end(&["pod.yaml"]);
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
    let world = World::new()?;
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ""));
    for (number, code, uncertain) in CODES {
        world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
        assert_mounted(volume(&world.stage.settle_well(), "pv"));
        order(&world, call, number);
        world.stage.remove_manifest("pod.yaml");
        let outcome = world.stage.settle();
        assert_told(&outcome, call, code, uncertain);
        let unpublish = call == "NodeUnpublishVolume";
        assert_eq!(
            world.stage.is_mounted(&target("u1", "pv")),
            unpublish,
            "{code}: nothing is done without the driver"
        );
        assert_eq!(outcome.actual.devices.len(), 1, "{code}");
        assert_eq!(outcome.actual.devices[0].state == VolumeState::Uncertain, !unpublish, "{code}");
        world.driver.faults().withdraw_all().unwrap();
        world.stage.settle_well();
        world.assert_clean();
    }
    assert_eq!(world.count("Unstage"), CODES.len(), "once each");
    Ok(())
}

fn every_code_of_unpublish() -> Outcome {
    every_code_of_undoing("NodeUnpublishVolume")
}

fn every_code_of_unstage() -> Outcome {
    every_code_of_undoing("NodeUnstageVolume")
}

/// B35.
fn a_lie_about_unpublish() -> Outcome {
    let world = one_volume()?;
    std::fs::write(world.target("u1", "pv").join("file"), "data").unwrap();
    world.driver.faults().order("NodeUnpublishVolume", &Fault::always(Action::Lie)).unwrap();
    world.stage.remove_manifest("pod.yaml");
    let outcome = world.stage.settle();
    assert_eq!(codes(&outcome), ["StillMounted"]);
    assert!(outcome.failures[0].message.contains(DRIVER), "{:?}", outcome.failures);
    assert_eq!(volume(&outcome, "pv").state, VolumeState::Uncertain);
    assert!(world.target("u1", "pv").join("file").exists(), "no file is lost");
    assert_eq!(world.begun("NodeUnstageVolume"), 0);
    world.driver.faults().withdraw_all().unwrap();
    world.stage.settle_well();
    world.assert_clean();
    Ok(())
}

fn a_lie_about_unstage() -> Outcome {
    let world = one_volume()?;
    world.driver.faults().order("NodeUnstageVolume", &Fault::always(Action::Lie)).unwrap();
    world.stage.remove_manifest("pod.yaml");
    let outcome = world.stage.settle();
    assert_eq!(codes(&outcome), ["StillMounted"]);
    assert_eq!(outcome.actual.devices[0].state, VolumeState::Uncertain);
    world.driver.faults().withdraw_all().unwrap();
    world.stage.settle_well();
    world.assert_clean();
    Ok(())
}

fn a_lie_about_publish() -> Outcome {
    let world = World::new()?;
    world.driver.faults().order("NodePublishVolume", &Fault::always(Action::Lie)).unwrap();
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ""));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    let outcome = world.stage.settle_well();
    let seen = volume(&outcome, "pv");
    assert_eq!(seen.problems.iter().map(|p| p.code).collect::<Vec<_>>(), ["NothingMounted"]);
    world.driver.faults().withdraw_all().unwrap();
    world.end(&["pod.yaml"]);
    Ok(())
}

/// B34.
fn unstage_worked_and_was_answered_with_an_error() -> Outcome {
    for code in [4, 10, 13] {
        let world = one_volume()?;
        let action = Action::CodeAfter { code, message: "it worked".into() };
        world.driver.faults().order("NodeUnstageVolume", &Fault::always(action)).unwrap();
        world.stage.remove_manifest("pod.yaml");
        let outcome = world.stage.settle();
        assert!(!outcome.failures.is_empty());
        world.driver.faults().withdraw_all().unwrap();
        world.stage.manifest("pod.yaml", &pod_with("u2", "pv"));
        assert_mounted(volume(&world.stage.settle_well(), "pv"));
        let done = world.done();
        assert_eq!(done[done.len() - 2..], ["Stage", "Publish"], "staged again before it is published: {done:?}");
        world.end(&["pod.yaml"]);
    }
    Ok(())
}

/// B36.
fn an_error_for_a_target_that_is_not_mounted() -> Outcome {
    for code in [5, 3, 13] {
        let world = one_volume()?;
        let running = world.stage.run();
        let action = Action::CodeAfter { code, message: "not mounted".into() };
        world.driver.faults().order("NodeUnpublishVolume", &Fault::always(action)).unwrap();
        world.stage.remove_manifest("pod.yaml");
        wait_for("it counts as done", || world.stage.files("pods").is_empty());
        assert!(world.begun("NodeUnpublishVolume") >= 4, "not at the first refusal");
        wait_for("it is unstaged", || world.stage.files("plugins").is_empty());
        running.stop();
        world.assert_clean();
    }
    Ok(())
}

fn a_hang_is_an_uncertain_volume() -> Outcome {
    let mut world = World::new()?;
    world.stage.options.operation_deadline = std::time::Duration::from_secs(3);
    world.driver.faults().order("NodePublishVolume", &Fault::always(Action::HangAfter)).unwrap();
    world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ""));
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    let outcome = world.stage.settle();
    assert_eq!(codes(&outcome), ["DriverTimeout"], "{:?}", outcome.failures);
    assert_eq!(volume(&outcome, "pv").state, VolumeState::Uncertain);
    assert!(world.stage.is_mounted(&target("u1", "pv")), "it was mounted all the same");
    world.driver.faults().withdraw_all().unwrap();
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    world.end(&["pod.yaml"]);
    Ok(())
}
