//! How calls end: each code, no answer, a crash, no driver, another driver.

use std::time::{Duration, Instant};

use refloat_csi::{CallError, CallErrorKind, Driver, Drivers, Outcome};
use refloat_test_csi_driver::{Action, Event, Fault};

use crate::stage::{Stage, code, count, expand_request, order, publish_request, stage_request, start, until};

refloat_test_support::tests!(
    each_code_of_each_call,
    without_fault_each_call_succeeds,
    an_answer_that_never_comes,
    a_hang_before_the_call_is_no_start,
    a_crash_before_and_after_the_work,
    no_driver,
    another_driver,
    a_deadline_is_told_to_the_driver,
);

const NAME: &str = "calls.test";

type CallOf = (&'static str, fn(&Driver) -> Result<(), CallError>);

/// Each call of the node service that changes or asks something of a volume.
const CALLS: &[CallOf] = &[
    ("NodeStageVolume", |driver| driver.stage(&stage_request("v"))),
    ("NodePublishVolume", |driver| driver.publish(&publish_request("v"))),
    ("NodeUnpublishVolume", |driver| driver.unpublish("v", "/target")),
    ("NodeUnstageVolume", |driver| driver.unstage("v", "/staging")),
    ("NodeExpandVolume", |driver| driver.expand(&expand_request("v")).map(drop)),
    ("NodeGetVolumeStats", |driver| driver.stats("v", "/target", "/staging").map(drop)),
    ("NodeGetCapabilities", |driver| driver.capabilities().map(drop)),
    ("NodeGetInfo", |driver| driver.node_info().map(drop)),
];

fn remembered(options: &refloat_test_csi_driver::Options) -> Driver {
    let drivers = Drivers::none();
    drivers.remember(&options.name, &options.endpoint);
    drivers.get(&options.name, "NodeStageVolume").expect("it is remembered")
}

fn without_fault_each_call_succeeds() {
    let stage = Stage::new();
    let mut options = stage.options(NAME);
    options.topology = vec![("zone".into(), "a".into())];
    (options.mount_group, options.multi_writer, options.max_volumes) = (true, true, 9);
    let process = start(options);
    let driver = remembered(process.options());
    for (name, call) in CALLS {
        call(&driver).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(count(&process, name), 1, "{name}");
    }
    let capabilities = driver.capabilities().expect("it answers");
    assert!(capabilities.stage_unstage && capabilities.volume_stats && capabilities.expand);
    assert!(capabilities.mount_group && capabilities.single_node_multi_writer && !capabilities.condition);
    let node = driver.node_info().expect("it answers");
    assert_eq!((node.node_id.as_str(), node.max_volumes), ("node-1", 9));
    assert_eq!(node.topology.get("zone").map(String::as_str), Some("a"));
    assert!(!driver.is_registered());
    let journal = process.journal().expect("it can be read");
    let staged = journal.iter().find(|entry| entry.call == "NodeStageVolume").expect("it was staged");
    assert_eq!((staged.volume.as_str(), staged.path.as_str()), ("v", "/staging"));
    assert_eq!(staged.secrets, ["password"]);
}

fn each_code_of_each_call() {
    let codes = [
        (1, "CANCELLED", Outcome::Uncertain),
        (2, "UNKNOWN", Outcome::Final),
        (3, "INVALID_ARGUMENT", Outcome::Final),
        (4, "DEADLINE_EXCEEDED", Outcome::Uncertain),
        (5, "NOT_FOUND", Outcome::Final),
        (6, "ALREADY_EXISTS", Outcome::Final),
        (7, "PERMISSION_DENIED", Outcome::Final),
        (8, "RESOURCE_EXHAUSTED", Outcome::Uncertain),
        (9, "FAILED_PRECONDITION", Outcome::Final),
        (10, "ABORTED", Outcome::Uncertain),
        (11, "OUT_OF_RANGE", Outcome::Final),
        (12, "UNIMPLEMENTED", Outcome::Final),
        (13, "INTERNAL", Outcome::Final),
        (14, "UNAVAILABLE", Outcome::Uncertain),
        (15, "DATA_LOSS", Outcome::Final),
        (16, "UNAUTHENTICATED", Outcome::Final),
    ];
    let stage = Stage::new();
    let process = start(stage.options(NAME));
    let driver = remembered(process.options());
    for (call, make) in CALLS {
        for (number, name, outcome) in codes {
            order(&process, call, &Fault::once(code(number)));
            let error = make(&driver).expect_err("it was ordered to fail");
            let kind = CallErrorKind::Status { code: name, message: "as ordered".into() };
            assert_eq!(error, CallError { driver: NAME.into(), call, outcome, kind });
        }
        make(&driver).unwrap_or_else(|error| panic!("{call}: {error:?}"));
    }
    // A refusal of what comes before the call is final for that alone: the call was not made.
    let other = remembered(process.options());
    order(&process, "GetPluginInfo", &Fault::once(code(13)));
    let error = other.unstage("v", "/staging").expect_err("it was ordered to fail");
    assert_eq!((error.call, error.outcome), ("NodeUnstageVolume", Outcome::NotStarted));
}

fn an_answer_that_never_comes() {
    let stage = Stage::new();
    let process = start(stage.options(NAME));
    let driver = remembered(process.options()).with_deadline(Duration::from_millis(300));
    driver.capabilities().expect("it answers");
    for (action, work) in [(Action::Hang, "before"), (Action::HangAfter, "after")] {
        order(&process, "NodePublishVolume", &Fault::once(action));
        let start = Instant::now();
        let error = driver.publish(&publish_request("v")).expect_err("it hangs");
        assert!(start.elapsed() >= Duration::from_millis(300) && start.elapsed() < Duration::from_secs(10), "{work}");
        assert_eq!(error.outcome, Outcome::Uncertain, "{work}");
        assert_eq!(error.kind, CallErrorKind::Deadline(Duration::from_millis(300)), "{work}");
    }
    // The stream was reset, so the driver holds nothing for us; and the connection goes on.
    until("the driver hears that nobody waits", || {
        let journal = process.journal().expect("it can be read");
        let ended = |event: &Event| matches!(event, Event::Dropped | Event::End(_));
        journal.iter().filter(|e| e.call == "NodePublishVolume" && ended(&e.event)).count() == 2
    });
    driver.publish(&publish_request("v")).expect("it works again");
    assert_eq!(count(&process, "GetPluginInfo"), 1);
}

fn a_hang_before_the_call_is_no_start() {
    let stage = Stage::new();
    let process = start(stage.options(NAME));
    let driver = remembered(process.options()).with_deadline(Duration::from_millis(200));
    order(&process, "GetPluginInfo", &Fault::once(Action::Hang));
    let error = driver.stage(&stage_request("v")).expect_err("it hangs");
    assert_eq!((error.call, error.outcome), ("NodeStageVolume", Outcome::NotStarted));
    assert!(matches!(error.kind, CallErrorKind::Deadline(_)), "{error:?}");
    assert_eq!(count(&process, "NodeStageVolume"), 0);
}

fn a_crash_before_and_after_the_work() {
    let stage = Stage::new();
    let mut process = start(stage.options(NAME));
    let driver = remembered(process.options());
    driver.capabilities().expect("it answers");
    for action in [Action::Crash, Action::CrashAfter] {
        order(&process, "NodeUnstageVolume", &Fault::once(action));
        let error = driver.unstage("v", "/staging").expect_err("it crashes");
        assert_eq!(error.outcome, Outcome::Uncertain);
        assert!(matches!(error.kind, CallErrorKind::Broken(_)), "{error:?}");
        process.wait().expect("it ended");
        // Its socket is still there, and nobody listens.
        let error = driver.unstage("v", "/staging").expect_err("nobody listens");
        assert_eq!(error.outcome, Outcome::NotStarted);
        assert!(matches!(error.kind, CallErrorKind::NotConnected { .. }), "{error:?}");
        process.restart(|_| {}).expect("it starts");
        driver.unstage("v", "/staging").expect("it works again");
    }
}

fn no_driver() {
    let stage = Stage::new();
    let drivers = Drivers::none();
    let error = drivers.get("nobody", "NodeStageVolume").expect_err("there is none");
    assert_eq!(error.outcome, Outcome::NotStarted);
    assert_eq!(error.kind, CallErrorKind::NotRegistered);
    assert_eq!(error.call, "NodeStageVolume");

    let missing = stage.folder.path().join("missing.sock");
    let file = stage.folder.path().join("file.sock");
    std::fs::write(&file, "no socket").expect("a file");
    for endpoint in [missing, file] {
        drivers.remember("x.test", &endpoint);
        let driver = drivers.get("x.test", "NodeStageVolume").expect("it is remembered");
        let error = driver.stage(&stage_request("v")).expect_err("nobody is there");
        assert_eq!(error.outcome, Outcome::NotStarted);
        assert!(matches!(&error.kind, CallErrorKind::NotConnected { endpoint: e, .. } if *e == endpoint), "{error:?}");
    }
}

fn another_driver() {
    let stage = Stage::new();
    let mut process = start(stage.options("first.test"));
    let driver = remembered(process.options());
    driver.unstage("v", "/staging").expect("it is the right one");
    process.restart(|options| options.name = "second.test".into()).expect("it starts");
    let before = count(&process, "NodeUnstageVolume");
    for _ in 0..2 {
        let error = driver.unstage("v", "/staging").expect_err("it is another one");
        assert_eq!(error.outcome, Outcome::NotStarted);
        let CallErrorKind::OtherDriver { found, .. } = &error.kind else { panic!("{error:?}") };
        assert_eq!(found, "second.test");
    }
    assert_eq!(count(&process, "NodeUnstageVolume"), before, "it was never asked");
    process.restart(|options| options.name = "first.test".into()).expect("it starts");
    driver.unstage("v", "/staging").expect("it is the right one again");
}

fn a_deadline_is_told_to_the_driver() {
    let stage = Stage::new();
    let process = start(stage.options(NAME));
    let driver = remembered(process.options()).with_deadline(Duration::from_millis(250));
    order(&process, "NodeStageVolume", &Fault::once(Action::Slow(60_000)));
    driver.stage(&stage_request("v")).expect_err("it is too slow");
    // By our reset or by the deadline that it was told: it ends the work that nobody waits for.
    until("the driver gives up", || {
        let journal = process.journal().expect("it can be read");
        journal.iter().any(|e| e.call == "NodeStageVolume" && e.event == Event::Dropped)
    });
}
