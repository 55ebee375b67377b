//! The life of a registration: come, go, restart, another socket, another folder.

use std::time::Duration;

use refloat_csi::{CallErrorKind, DriverChange, DriverStatus, Outcome};
use refloat_test_csi_driver::{Options, Process};

use crate::stage::{Stage, count, stage_request, start, until};

refloat_test_support::tests!(
    what_is_there_at_start_registers,
    what_comes_later_registers_also_deeper,
    a_driver_that_goes_stays_remembered,
    a_restart_registers_anew,
    another_socket_replaces_the_first,
    the_folder_may_come_late_go_and_come_back,
    the_newer_of_one_name_wins,
    the_registration_socket_may_be_the_endpoint,
    a_registration_replaces_what_was_remembered,
    capabilities_are_asked_anew,
    the_watch_ends_with_the_last_clone,
);

const NAME: &str = "life.test";

/// What the driver was told, in order.
fn told(process: &Process) -> Vec<String> {
    let journal = process.journal().expect("it can be read");
    let notified = journal.into_iter().filter(|e| e.call == "NotifyRegistrationStatus");
    notified.filter(|e| e.event == refloat_test_csi_driver::Event::Begin).map(|e| e.path).collect()
}

fn what_is_there_at_start_registers() {
    let stage = Stage::new();
    let topology = vec![("zone".into(), "a".into())];
    let process = start(Options { topology, max_volumes: 3, ..stage.registering(NAME) });
    let drivers = stage.watch();
    let change = stage.log.wait("a registration", |_| true);
    let DriverChange::Registered { name, endpoint, node } = change else { panic!("{change:?}") };
    assert_eq!((name.as_str(), &endpoint), (NAME, &process.options().endpoint));
    assert_eq!((node.node_id.as_str(), node.max_volumes), ("node-1", 3));
    assert_eq!(node.topology.get("zone").map(String::as_str), Some("a"));
    assert_eq!(told(&process), ["registered"]);
    let driver = drivers.get(NAME, "NodeStageVolume").expect("it is registered");
    assert!(driver.is_registered());
    assert_eq!(driver.node_info().expect("it is known"), node);
    driver.stage(&stage_request("v")).expect("it works");
    assert_eq!(count(&process, "NodeGetInfo"), 1);
    assert_eq!(count(&process, "GetPluginInfo"), 1);
    let status = DriverStatus { name: NAME.into(), endpoint, registered: true };
    assert_eq!(drivers.list(), [status]);
}

fn what_comes_later_registers_also_deeper() {
    let stage = Stage::new();
    let _drivers = stage.watch();
    let _first = start(stage.registering("first.test"));
    stage.log.registered("first.test");
    let deep = stage.registry().join("a/b");
    std::fs::create_dir_all(&deep).expect("folders");
    let _second = start(Options { registration: Some(deep.join("r.sock")), ..stage.options("second.test") });
    stage.log.registered("second.test");
    // A folder that is moved in with a socket in it.
    let outside = stage.folder.path().join("outside");
    std::fs::create_dir(&outside).expect("a folder");
    let _third = start(Options { registration: Some(outside.join("r.sock")), ..stage.options("third.test") });
    std::fs::rename(&outside, stage.registry().join("c")).expect("it is moved");
    stage.log.registered("third.test");
    std::fs::rename(stage.registry().join("c"), &outside).expect("it is moved back");
    stage.log.gone("third.test");
}

fn a_driver_that_goes_stays_remembered() {
    let stage = Stage::new();
    let mut process = start(stage.registering(NAME));
    let drivers = stage.watch();
    stage.log.registered(NAME);
    let driver = drivers.get(NAME, "NodeStageVolume").expect("it is registered");
    process.terminate().expect("it ends");
    stage.log.gone(NAME);
    assert!(!driver.is_registered());
    assert_eq!(drivers.list().iter().map(|d| d.registered).collect::<Vec<_>>(), [false]);
    let again = drivers.get(NAME, "NodeUnstageVolume").expect("it is remembered");
    let error = again.unstage("v", "/s").expect_err("it is gone");
    assert_eq!(error.outcome, Outcome::NotStarted);
    assert!(matches!(error.kind, CallErrorKind::NotConnected { .. }), "{error:?}");
    // It answers at its socket again, before it registers.
    process.restart(|options| options.registration = None).expect("it starts");
    again.unstage("v", "/s").expect("its socket answers");
    assert!(!again.is_registered());
}

fn a_restart_registers_anew() {
    let stage = Stage::new();
    let mut process = start(stage.registering(NAME));
    let _drivers = stage.watch();
    stage.log.registered(NAME);
    // Killed hard: its socket stays, and it counts as registered, as with the kubelet.
    process.restart(|_| {}).expect("it starts");
    stage.log.gone(NAME);
    stage.log.registered(NAME);
    process.terminate().expect("it ends");
    stage.log.gone(NAME);
    process.restart(|_| {}).expect("it starts");
    stage.log.registered(NAME);
    until("it is told", || told(&process).len() == 3);
}

fn another_socket_replaces_the_first() {
    let stage = Stage::new();
    let mut process = start(stage.registering(NAME));
    let drivers = stage.watch();
    let first = stage.log.registered(NAME);
    let old = drivers.get(NAME, "NodeStageVolume").expect("it is registered");
    let other = stage.folder.path().join("other.sock");
    process.restart(|options| options.endpoint.clone_from(&other)).expect("it starts");
    let second = stage.log.registered(NAME);
    assert_eq!((first != second, &second), (true, &other));
    let new = drivers.get(NAME, "NodeStageVolume").expect("it is registered");
    assert_eq!(new.endpoint(), other);
    assert!(new.is_registered() && !old.is_registered());
    new.stage(&stage_request("v")).expect("it works");
}

fn the_folder_may_come_late_go_and_come_back() {
    let stage = Stage::new();
    let registry = stage.registry();
    std::fs::remove_dir(&registry).expect("it is empty");
    // Even the folder above is missing.
    let root = stage.folder.path().join("deep/root");
    let log = std::sync::Arc::clone(&stage.log);
    let options =
        refloat_csi::DriversOptions { registry: root.join("plugins_registry"), deadline: Duration::from_secs(30) };
    let _drivers = refloat_csi::Drivers::start(options.clone(), Box::new(move |c| log.add(c))).expect("it starts");
    let registration = Some(options.registry.join("r.sock"));
    let mut process: Option<Process> = None;
    for round in 0..3 {
        std::fs::create_dir_all(&options.registry).expect("the folder");
        match &mut process {
            None => process = Some(start(Options { registration: registration.clone(), ..stage.options(NAME) })),
            Some(process) => process.restart(|_| {}).expect("it starts"),
        }
        stage.log.registered(NAME);
        if round == 0 {
            // Moved away with the socket in it.
            std::fs::rename(&options.registry, root.join("away")).expect("it is moved");
        } else {
            std::fs::remove_dir_all(stage.folder.path().join("deep")).expect("it is removed");
        }
        stage.log.gone(NAME);
    }
    assert!(stage.log.all().is_empty(), "nothing else happened: {:?}", stage.log.all());
}

fn the_newer_of_one_name_wins() {
    let stage = Stage::new();
    let old = start(stage.registering(NAME));
    let drivers = stage.watch();
    let first = stage.log.registered(NAME);
    let folder = stage.folder.path().join("newer");
    std::fs::create_dir(&folder).expect("a folder");
    let registration = Some(stage.registry().join("newer-reg.sock"));
    let mut newer = start(Options { registration, noop: true, ..Options::new(NAME, &folder) });
    let second = stage.log.registered(NAME);
    assert_ne!(first, second);
    let driver = drivers.get(NAME, "NodeStageVolume").expect("it is registered");
    assert_eq!((driver.endpoint(), driver.is_registered()), (second.as_path(), true));
    // The newer goes; the older is there, and takes its place.
    newer.terminate().expect("it ends");
    stage.log.gone(NAME);
    assert_eq!(stage.log.registered(NAME), first);
    assert_eq!(told(&old), ["registered", "registered"]);
    // At a start, the newer socket wins whoever answers first.
    newer.restart(|_| {}).expect("it starts");
    assert_eq!(stage.log.registered(NAME), second);
    let again = Stage { folder: tempfile::tempdir().expect("a folder"), log: std::sync::Arc::default() };
    let log = std::sync::Arc::clone(&again.log);
    let options = refloat_csi::DriversOptions { registry: stage.registry(), deadline: Duration::from_secs(30) };
    let other = refloat_csi::Drivers::start(options, Box::new(move |c| log.add(c))).expect("it starts");
    until("the newer is the one", || {
        other.get(NAME, "NodeStageVolume").is_ok_and(|driver| driver.endpoint() == second && driver.is_registered())
    });
    std::thread::sleep(Duration::from_millis(300));
    let driver = other.get(NAME, "NodeStageVolume").expect("it is registered");
    assert_eq!(driver.endpoint(), second, "and stays");
}

fn the_registration_socket_may_be_the_endpoint() {
    let stage = Stage::new();
    let _process = start(Options { register_endpoint: Some(String::new()), ..stage.registering(NAME) });
    let drivers = stage.watch();
    assert_eq!(stage.log.registered(NAME), stage.socket(NAME));
    let driver = drivers.get(NAME, "NodeStageVolume").expect("it is registered");
    driver.stage(&stage_request("v")).expect("it works");
}

fn a_registration_replaces_what_was_remembered() {
    let stage = Stage::new();
    let drivers = stage.watch();
    let former = stage.folder.path().join("former.sock");
    drivers.remember(NAME, &former);
    let driver = drivers.get(NAME, "NodeStageVolume").expect("it is remembered");
    assert_eq!((driver.endpoint(), driver.is_registered()), (former.as_path(), false));
    let process = start(stage.registering(NAME));
    stage.log.registered(NAME);
    drivers.remember(NAME, &former);
    let driver = drivers.get(NAME, "NodeStageVolume").expect("it is registered");
    assert_eq!((driver.endpoint(), driver.is_registered()), (process.options().endpoint.as_path(), true));
}

fn capabilities_are_asked_anew() {
    let stage = Stage::new();
    let mut process = start(stage.registering(NAME));
    let drivers = stage.watch();
    for (no_stage, times) in [(false, 1), (true, 2)] {
        stage.log.registered(NAME);
        for _ in 0..3 {
            let driver = drivers.get(NAME, "NodeGetCapabilities").expect("it is registered");
            assert_eq!(driver.capabilities().expect("it answers").stage_unstage, !no_stage);
        }
        assert_eq!(count(&process, "NodeGetCapabilities"), times);
        if !no_stage {
            process.restart(|options| options.no_stage = true).expect("it starts");
        }
    }
}

fn the_watch_ends_with_the_last_clone() {
    let stage = Stage::new();
    let _process = start(stage.registering(NAME));
    let drivers = stage.watch();
    stage.log.registered(NAME);
    let driver = drivers.get(NAME, "NodeStageVolume").expect("it is registered");
    drop(drivers.clone());
    drop(drivers);
    // A driver keeps what it needs.
    driver.stage(&stage_request("v")).expect("it works");
    let log = std::sync::Arc::downgrade(&stage.log);
    drop(driver);
    // The callback is dropped with the watch.
    until("the watch ends", || log.strong_count() == 1);
}
