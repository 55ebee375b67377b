//! Restarts: of the manager, of the driver, of the machine.

use refloat_node::VolumeState;
use refloat_record::Record;
use refloat_test_support::Outcome;

use crate::stage::{volume, wait_for};
use crate::world::{DRIVER, World, assert_mounted, codes, one_volume, pod_with};

refloat_test_support::tests!(
    a_driver_that_is_away_when_its_pod_goes,
    a_driver_that_comes_back_at_another_socket,
    a_driver_that_was_renamed,
    a_driver_that_answers_without_having_registered,
    a_driver_that_left_for_good_is_forgotten,
    a_socket_of_something_else,
    a_reboot_with_the_pod,
    a_reboot_without_the_pod,
    files_from_before_a_reboot_are_kept,
);

fn missing_since(world: &World) -> Option<String> {
    world.stage.records().into_iter().find_map(|record| match record {
        Record::Driver(driver) => Some(driver.missing_since),
        _ => None,
    })?
}

fn a_driver_that_is_away_when_its_pod_goes() -> Outcome {
    let mut world = one_volume()?;
    assert_eq!(missing_since(&world), None);
    let registered = world.driver.options().registration.clone().unwrap();
    world.driver.terminate().unwrap();
    assert!(!registered.exists());
    let outcome = world.stage.settle_well();
    let seen = volume(&outcome, "pv");
    assert_eq!(seen.state, VolumeState::Mounted);
    let since = missing_since(&world).expect("it was noticed");
    let told = seen.problems.iter().find(|p| p.code == "DriverMissing").unwrap();
    assert!(told.message.contains(DRIVER) && told.message.contains(&since), "{told:?}");

    world.stage.remove_manifest("pod.yaml");
    let outcome = world.stage.settle();
    assert_eq!(codes(&outcome), ["DriverMissing"]);
    assert!(world.stage.is_mounted(&crate::world::target("u1", "pv")), "nothing is undone without it");
    assert_eq!(outcome.actual.devices[0].problems[0].code, "DriverMissing");

    world.driver.restart(|_| {}).unwrap();
    world.stage.settle_well();
    world.assert_clean();
    assert_eq!(missing_since(&world), None);
    assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"]);
    Ok(())
}

fn a_driver_that_comes_back_at_another_socket() -> Outcome {
    let mut world = one_volume()?;
    let running = world.stage.run();
    world.stage.manifest("other.yaml", &pod_with("u2", "pv"));
    wait_for("the other pod's volume", || world.stage.is_mounted(&crate::world::target("u2", "pv")));
    world.driver.terminate().unwrap();
    world.stage.remove_manifest("pod.yaml");
    wait_for("the driver is missed", || missing_since(&world).is_some());
    let elsewhere = world.stage.path("elsewhere.sock");
    world.driver.restart(|options| options.endpoint.clone_from(&elsewhere)).unwrap();
    wait_for("the first pod's volume is gone", || !world.stage.is_mounted(&crate::world::target("u1", "pv")));
    world.stage.remove_manifest("other.yaml");
    wait_for("all is gone", || world.stage.files("plugins").is_empty());
    running.stop();
    world.assert_clean();
    let Some(Record::Driver(driver)) = world.stage.records().pop() else { panic!("the driver's record") };
    assert_eq!(driver.endpoint, elsewhere.to_string_lossy());
    Ok(())
}

fn a_driver_that_was_renamed() -> Outcome {
    let mut world = one_volume()?;
    // Another driver at the socket that is remembered, and the old name registers no more.
    world.driver.restart(|options| options.name = "other.test".into()).unwrap();
    world.stage.remove_manifest("pod.yaml");
    let outcome = world.stage.settle();
    assert_eq!(codes(&outcome), ["OtherDriver"], "{:?}", outcome.failures);
    let problem = &outcome.failures[0];
    assert!(problem.message.contains(DRIVER) && problem.message.contains("other.test"), "{problem:?}");
    assert!(world.stage.is_mounted(&crate::world::target("u1", "pv")));
    world.driver.restart(|options| options.name = DRIVER.into()).unwrap();
    world.stage.settle_well();
    world.assert_clean();
    Ok(())
}

fn a_driver_that_answers_without_having_registered() -> Outcome {
    let mut world = one_volume()?;
    world.driver.restart(|options| options.registration = None).unwrap();
    let _ = std::fs::remove_file(world.stage.root("plugins_registry").join(format!("{DRIVER}-reg.sock")));
    world.end(&["pod.yaml"]);
    Ok(())
}

/// Writes into the driver's record that it is missing since then.
fn set_missing_since(world: &World, since: &str) {
    let store = refloat_record::Store::open(&world.stage.options.state_dir).unwrap();
    for record in store.load().unwrap().records {
        if let Record::Driver(driver) = record {
            store.put(&Record::Driver(refloat_record::Driver { missing_since: Some(since.into()), ..driver })).unwrap();
        }
    }
}

fn is_remembered(world: &World) -> bool {
    world.stage.records().iter().any(|record| matches!(record, Record::Driver(_)))
}

fn a_driver_that_left_for_good_is_forgotten() -> Outcome {
    const LONG_AGO: &str = "2020-01-01T00:00:00Z";
    let mut world = one_volume()?;
    world.driver.terminate().unwrap();
    world.stage.settle_well();
    set_missing_since(&world, LONG_AGO);
    world.stage.settle_well();
    assert!(is_remembered(&world), "a volume is its own");
    assert_eq!(missing_since(&world).as_deref(), Some(LONG_AGO));
    crate::foreign::lose_records(&world);
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle();
    assert!(is_remembered(&world), "a volume without a record is its own as well");

    world.driver.restart(|_| {}).unwrap();
    world.stage.settle_well();
    world.assert_clean();
    world.driver.terminate().unwrap();
    world.stage.settle_well();
    assert!(missing_since(&world).is_some() && is_remembered(&world), "it may come back");
    set_missing_since(&world, "2999-01-01T00:00:00Z");
    world.stage.settle_well();
    assert!(is_remembered(&world), "a clock that goes wrong forgets nobody");
    set_missing_since(&world, LONG_AGO);
    world.stage.settle_well();
    assert!(!is_remembered(&world));

    world.driver.restart(|_| {}).unwrap();
    world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
    assert_mounted(volume(&world.stage.settle_well(), "pv"));
    assert_eq!(missing_since(&world), None);
    world.end(&["pod.yaml"]);
    Ok(())
}

/// What is remembered as the driver's socket is a file, a folder, nothing, somebody who does not talk gRPC, or who says
/// nothing.
fn a_socket_of_something_else() -> Outcome {
    for what in ["nothing", "a file", "a folder", "a deaf socket", "a socket that talks"] {
        let mut world = one_volume()?;
        world.stage.options.operation_deadline = std::time::Duration::from_secs(2);
        let socket = world.driver.options().endpoint.clone();
        world.driver.terminate().unwrap();
        let mut listener = None;
        match what {
            "a file" => std::fs::write(&socket, "no socket").unwrap(),
            "a folder" => std::fs::create_dir(&socket).unwrap(),
            "a deaf socket" => listener = Some(std::os::unix::net::UnixListener::bind(&socket).unwrap()),
            "a socket that talks" => {
                let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
                std::thread::spawn(move || {
                    use std::io::Write as _;
                    // Until the program ends.
                    for connection in listener.incoming() {
                        let _ = connection.and_then(|mut c| c.write_all(b"220 mail.example.org ESMTP\r\n"));
                    }
                });
            }
            _ => {}
        }
        world.stage.remove_manifest("pod.yaml");
        let outcome = world.stage.settle();
        let problem = outcome.failures.first().unwrap_or_else(|| panic!("{what}: nothing is said"));
        assert!(problem.message.contains(DRIVER), "{what}: {problem:?}");
        assert!(["DriverMissing", "DriverTimeout", "DriverFailed"].contains(&problem.code), "{what}: {problem:?}");
        assert!(world.stage.is_mounted(&crate::world::target("u1", "pv")), "{what}: nothing is undone without it");
        assert_eq!(world.begun("NodeUnpublishVolume"), 0, "{what}");
        assert_eq!(outcome.actual.devices.len(), 1, "{what}");
        drop(listener);
        // It comes back elsewhere.
        let elsewhere = world.stage.path("elsewhere.sock");
        world.stage.options.operation_deadline = crate::stage::PATIENCE;
        world.driver.restart(|options| options.endpoint.clone_from(&elsewhere)).unwrap();
        world.stage.settle_well();
        world.assert_clean();
    }
    Ok(())
}

/// B33.
fn a_reboot_with_the_pod() -> Outcome {
    let world = one_volume()?;
    std::fs::write(world.target("u1", "pv").join("file"), "data").unwrap();
    world.stage.reboot();
    let outcome = world.stage.settle_well();
    assert_mounted(volume(&outcome, "pv"));
    assert_eq!(std::fs::read_to_string(world.target("u1", "pv").join("file")).unwrap(), "data");
    assert_eq!(world.done(), ["Stage", "Publish", "Stage", "Publish"], "in this order");
    world.end(&["pod.yaml"]);
    Ok(())
}

fn a_reboot_without_the_pod() -> Outcome {
    let world = one_volume()?;
    world.stage.reboot();
    world.end(&["pod.yaml"]);
    assert_eq!(world.done(), ["Stage", "Publish", "Unpublish", "Unstage"], "the driver wants to hear it");
    Ok(())
}

/// B33.
fn files_from_before_a_reboot_are_kept() -> Outcome {
    let world = one_volume()?;
    world.stage.reboot();
    let stray = world.target("u1", "pv").join("stray");
    std::fs::write(&stray, "written to the node's own disk").unwrap();
    let outcome = world.stage.settle();
    let seen = volume(&outcome, "pv");
    assert!(seen.stray_files && seen.conflict.is_some(), "{seen:#?}");
    assert_eq!(world.count("Publish"), 1, "it would be hidden");
    assert!(stray.exists());
    world.stage.remove_manifest("pod.yaml");
    world.stage.settle();
    assert!(stray.exists());
    std::fs::remove_file(&stray).unwrap();
    world.stage.settle_well();
    world.assert_clean();
    Ok(())
}
