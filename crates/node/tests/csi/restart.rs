//! Restarts: of the manager, of the driver, of the machine.

use refloat_node::VolumeState;
use refloat_record::Record;
use refloat_test_csi_driver::{Action, Fault};
use refloat_test_support::Outcome;

use crate::stage::{pod, volume, wait_for};
use crate::world::{DRIVER, World, assert_mounted, claim, codes, one_volume, pod_with, start};

refloat_test_support::tests!(
    a_driver_that_is_away_when_its_pod_goes,
    a_driver_that_comes_back_at_another_socket,
    a_driver_that_was_renamed,
    a_driver_that_answers_without_having_registered,
    volumes_wait_for_their_driver_and_no_other,
    a_crash_between_work_and_answer,
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

fn volumes_wait_for_their_driver_and_no_other() -> Outcome {
    let world = World::new()?;
    let other = start(&world.stage, "other.test", |_| {});
    // More than there are workers.
    let hung: Vec<_> = (0..8).map(|n| format!("hung-{n}")).collect();
    let text: String = hung.iter().map(|name| claim(name, DRIVER, name, "", "")).collect();
    world.stage.manifest("hung.yaml", &text);
    let entry = |name: &String| format!("  - {{name: {name}, persistentVolumeClaim: {{claimName: {name}}}}}\n");
    world.driver.freeze().unwrap();
    let running = world.stage.run();
    world.stage.manifest("a.yaml", &pod("u1", &hung.iter().map(entry).collect::<String>()));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let begun = std::time::Instant::now();
    world.stage.manifest("b.yaml", &(claim("pv", "other.test", "h1", "", "") + &pod_with("u2", "pv")));
    world.stage.manifest("c.yaml", &pod("u3", "  - {name: e, emptyDir: {medium: Memory}}\n"));
    wait_for("the other driver's volume", || world.stage.is_mounted(&crate::world::target("u2", "pv")));
    wait_for("an emptyDir", || world.stage.is_mounted("pods/u3/volumes/kubernetes.io~empty-dir/e"));
    // A format and two mounts; the calls of the driver that hangs take 16 s.
    assert!(begun.elapsed().as_secs() < 8, "{:?}", begun.elapsed());
    world.driver.thaw().unwrap();
    for name in &hung {
        wait_for(name, || world.stage.is_mounted(&crate::world::target("u1", name)));
    }
    running.stop();
    drop(other);
    Ok(())
}

fn a_crash_between_work_and_answer() -> Outcome {
    for call in ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"] {
        for action in [Action::Crash, Action::CrashAfter] {
            let mut world = World::new()?;
            world.stage.manifest("pv.yaml", &claim("pv", DRIVER, "h1", "", ""));
            world.driver.faults().order(call, &Fault::once(action.clone())).unwrap();
            let shown = format!("{call} {action:?}");
            let mounts = call.ends_with("StageVolume") || call.ends_with("PublishVolume");
            world.stage.manifest("pod.yaml", &pod_with("u1", "pv"));
            if mounts {
                world.stage.settle();
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
            if !mounts {
                let outcome = world.stage.settle();
                assert!(!outcome.failures.is_empty(), "{shown}");
                world.driver.restart(|_| {}).unwrap();
            }
            world.stage.settle_well();
            world.assert_clean();
            assert_eq!(world.count("Unstage"), 1, "{shown}: until it succeeded, and not again");
        }
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
