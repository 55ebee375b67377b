//! Drivers that fail: what is believed, what is recorded, what is said.

use refloat_node::VolumeState;
use refloat_test_csi_driver::{Action, Fault};
use refloat_test_support::Outcome;
use refloat_volume::plugins::csi::Csi;
use refloat_volume::{Plugin as _, TearDown};

use crate::stage::{volume, wait_for};
use crate::world::{DRIVER, Kind, World, assert_mounted, claim, codes, one_volume, one_volume_of, pod_with};

refloat_test_support::tests!(
    a_lie_about_unpublish,
    a_lie_about_unstage,
    a_lie_about_publish,
    a_lie_about_stage,
    undoing_worked_and_was_answered_with_an_error,
    an_error_for_a_target_that_is_not_mounted,
    a_refusal_is_believed_of_nothing_alone,
);

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

/// B35. Some drivers mount nothing when they stage, so the lie comes out when the driver refuses to publish.
fn a_lie_about_stage() -> Outcome {
    for kind in Kind::BOTH {
        let world = World::new()?;
        world.driver.faults().order("NodeStageVolume", &Fault::always(Action::Lie)).unwrap();
        world.stage.manifest("pv.yaml", &kind.claim());
        world.stage.manifest("pod.yaml", &kind.pod("u1"));
        let outcome = world.stage.settle();
        assert_eq!(codes(&outcome), ["DriverRefused"], "{kind:?}: {:?}", outcome.failures);
        let message = &outcome.failures[0].message;
        assert!(message.contains("NodePublishVolume") && message.contains(DRIVER), "{kind:?}: {message}");
        assert!(world.begun("NodeStageVolume") >= 2, "{kind:?}: it is not believed any more");
        world.driver.faults().withdraw_all().unwrap();
        assert_mounted(volume(&world.stage.settle_well(), "pv"));
        world.end(&["pod.yaml"]);
    }
    Ok(())
}

/// B34.
fn undoing_worked_and_was_answered_with_an_error() -> Outcome {
    for kind in Kind::BOTH {
        for call in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
            for code in [4, 10, 13] {
                for wanted in [true, false] {
                    let shown = format!("{kind:?} {call} {code}, wanted by another: {wanted}");
                    let world = one_volume_of(kind)?;
                    let action = Action::CodeAfter { code, message: "it worked".into() };
                    world.driver.faults().order(call, &Fault::always(action)).unwrap();
                    world.stage.remove_manifest("pod.yaml");
                    let outcome = world.stage.settle();
                    assert!(!outcome.failures.is_empty(), "{shown}");
                    world.driver.faults().withdraw_all().unwrap();
                    if wanted {
                        world.stage.manifest("pod.yaml", &kind.pod("u2"));
                        assert_mounted(volume(&world.stage.settle_well(), "pv"));
                        let done = world.done();
                        assert!(!world.stage.root("pods/u1").exists(), "{shown}");
                        if call == "NodeUnstageVolume" {
                            let last = &done[done.len() - 2..];
                            assert_eq!(last, ["Stage", "Publish"], "{shown}: staged again before it is published");
                        } else {
                            assert_eq!((world.count("Stage"), world.count("Unstage")), (1, 0), "{shown}: {done:?}");
                        }
                        world.stage.remove_manifest("pod.yaml");
                    }
                    world.stage.settle_well();
                    world.assert_clean();
                }
            }
        }
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

/// B36: what is mounted, or holds files, never counts as unpublished, however often the driver refuses; nor does a driver
/// that refuses everybody say anything of the target.
fn a_refusal_is_believed_of_nothing_alone() -> Outcome {
    for kind in Kind::BOTH {
        let world = one_volume_of(kind)?;
        let host = world.host();
        host.drivers.remember(DRIVER, &world.driver.options().endpoint);
        let record = world.volume_record();
        let published = world.stage.root(&kind.published("u1"));
        let try_it = |code: i32, failures: u32| {
            let action = Action::Code { code, message: "not mounted".into() };
            world.driver.faults().order("NodeUnpublishVolume", &Fault::always(action)).unwrap();
            let step = TearDown { host: &host, record: &record, trusted: true, failures, without_driver: false };
            Csi.tear_down(&step).map_err(|error| error.problem().code)
        };
        let about_the_target = [2, 3, 5, 9, 13];
        let often = 1000;
        for code in about_the_target {
            assert_eq!(try_it(code, often), Err("DriverRefused"), "{kind:?} {code}: it is mounted");
            assert!(world.stage.is_mounted(&kind.published("u1")), "{kind:?} {code}");
        }
        world.stage.unmount(&published);
        if kind == Kind::Filesystem {
            std::fs::write(published.join("file"), "written to the node's own disk").unwrap();
        } else {
            std::fs::write(&published, "written to the node's own disk").unwrap();
        }
        for code in about_the_target {
            assert_eq!(try_it(code, often), Err("DriverRefused"), "{kind:?} {code}: a file is there");
            let file = if kind == Kind::Filesystem { published.join("file") } else { published.clone() };
            assert!(std::fs::read_to_string(file).unwrap().starts_with("written"), "{kind:?} {code}");
        }
        std::fs::remove_file(if kind == Kind::Filesystem { published.join("file") } else { published.clone() })
            .unwrap();
        for code in [1, 4, 6, 7, 8, 10, 11, 12, 14, 15, 16] {
            assert!(try_it(code, often).is_err(), "{kind:?} {code}: it says nothing of the target");
        }
        for code in about_the_target {
            for failures in 0..4 {
                assert_eq!(try_it(code, failures), Err("DriverRefused"), "{kind:?} {code}: not at the first refusal");
            }
        }
        assert_eq!(try_it(5, 4), Ok(()), "{kind:?}");
        world.driver.faults().withdraw_all().unwrap();
        world.stage.remove_manifest("pod.yaml");
        world.stage.settle_well();
        world.assert_clean();
    }
    Ok(())
}
