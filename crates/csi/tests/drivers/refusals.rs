//! What cannot be registered, and what is none of our business.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use refloat_csi::DriverChange;
use refloat_test_csi_driver::{Action, Event, Fault, Options, Process};

use crate::stage::{Stage, code, count, order, start, until};

refloat_test_support::tests!(
    what_a_driver_says_of_itself_is_checked,
    another_type_is_not_answered,
    a_registration_that_fails_is_tried_again,
    a_driver_that_is_not_there_yet,
    other_files_are_ignored,
    sockets_that_are_no_drivers,
    a_registrar_that_hangs,
    another_driver_at_the_endpoint,
);

const NAME: &str = "refused.test";

fn told(process: &Process) -> Vec<String> {
    let journal = process.journal().expect("it can be read");
    let notified = journal.into_iter().filter(|e| e.call == "NotifyRegistrationStatus" && e.event == Event::Begin);
    notified.map(|e| e.path).collect()
}

fn what_a_driver_says_of_itself_is_checked() {
    let stage = Stage::new();
    let drivers = stage.watch();
    let good = || stage.registering(NAME);
    let bad: [(Options, &str); 5] = [
        (Options { register_as: Some("../up".into()), ..good() }, "no name"),
        (Options { register_as: Some("a".repeat(64)), ..good() }, "no name"),
        (Options { register_versions: vec!["0.3.0".into(), "2.0.0".into()], ..good() }, "none is 1.x"),
        (Options { register_versions: vec![], register_as: Some(String::new()), ..good() }, "no name"),
        (Options { register_endpoint: Some("csi.sock".into()), ..good() }, "no absolute path"),
    ];
    for (options, why) in bad {
        let mut process = start(options);
        let text = stage.log.refused(&stage.socket(NAME));
        assert!(text.contains(why), "{text}");
        until("it is told", || !told(&process).is_empty());
        assert!(told(&process).last().is_some_and(|told| told.contains(why)), "{:?}", told(&process));
        assert!(drivers.list().is_empty());
        process.terminate().expect("it ends");
        until("its socket is gone", || std::fs::symlink_metadata(stage.socket(NAME)).is_err());
    }
    let _process = start(good());
    stage.log.registered(NAME);
}

fn another_type_is_not_answered() {
    let stage = Stage::new();
    let process = start(Options { register_type: "DevicePlugin".into(), ..stage.registering(NAME) });
    let drivers = stage.watch();
    let why = stage.log.refused(&stage.socket(NAME));
    assert!(why.contains("DevicePlugin"), "{why}");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((told(&process).len(), count(&process, "GetInfo")), (0, 1));
    assert!(drivers.list().is_empty());
}

fn a_registration_that_fails_is_tried_again() {
    let stage = Stage::new();
    let process = start(stage.registering(NAME));
    order(&process, "NodeGetInfo", &Fault { times: Some(2), ..Fault::always(code(13)) });
    let drivers = stage.watch();
    let why = stage.log.refused(&stage.socket(NAME));
    assert!(why.contains("NodeGetInfo") && why.contains("INTERNAL: as ordered"), "{why}");
    stage.log.registered(NAME);
    let told = told(&process);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].contains("as ordered") && told[2] == "registered", "{told:?}");
    assert!(drivers.list()[0].registered);
    // Told once, although it was refused twice.
    assert!(!stage.log.all().iter().any(|change| matches!(change, DriverChange::Refused { .. })));
}

fn a_driver_that_is_not_there_yet() {
    let stage = Stage::new();
    let endpoint = stage.folder.path().join("late.sock");
    let registered = Some(endpoint.to_string_lossy().into_owned());
    let _registrar = start(Options { register_endpoint: registered, ..stage.registering(NAME) });
    let drivers = stage.watch();
    let why = stage.log.refused(&stage.socket(NAME));
    assert!(why.contains("late.sock"), "{why}");
    assert!(drivers.get(NAME, "NodeStageVolume").is_err());
    let folder = stage.folder.path().join("late");
    std::fs::create_dir(&folder).expect("a folder");
    let _driver = start(Options { endpoint: endpoint.clone(), noop: true, ..Options::new(NAME, folder) });
    assert_eq!(stage.log.registered(NAME), endpoint);
}

fn other_files_are_ignored() {
    let stage = Stage::new();
    let outside = stage.folder.path().join("outside");
    std::fs::create_dir(&outside).expect("a folder");
    let process = start(Options { registration: Some(outside.join("r.sock")), ..stage.options("hidden.test") });
    let registry = stage.registry();
    std::fs::write(registry.join("file.sock"), "no socket").expect("a file");
    symlink(outside.join("r.sock"), registry.join("link.sock")).expect("a link");
    symlink(&outside, registry.join("folder")).expect("a link");
    symlink(&registry, registry.join("loop")).expect("a link");
    let _dot = UnixListener::bind(registry.join(".dot.sock")).expect("a socket");
    std::fs::create_dir(registry.join(".dot")).expect("a folder");
    let _deep = UnixListener::bind(registry.join(".dot/r.sock")).expect("a socket");
    let _drivers = stage.watch();
    symlink(outside.join("r.sock"), registry.join("later.sock")).expect("a link");
    let _real = start(stage.registering(NAME));
    stage.log.registered(NAME);
    std::thread::sleep(Duration::from_millis(200));
    assert!(stage.log.all().is_empty(), "{:?}", stage.log.all());
    assert_eq!(count(&process, "GetInfo"), 0);
}

fn sockets_that_are_no_drivers() {
    let stage = Stage::new();
    let registry = stage.registry();
    // Nobody listens any more.
    drop(UnixListener::bind(registry.join("stale.sock")).expect("a socket"));
    let closing = UnixListener::bind(registry.join("closing.sock")).expect("a socket");
    std::thread::spawn(move || closing.incoming().for_each(drop));
    let _drivers = stage.watch();
    let _real = start(stage.registering(NAME));
    stage.log.registered(NAME);
    let sockets = [registry.join("stale.sock"), registry.join("closing.sock")];
    until("both are told", || {
        let changes = stage.log.all();
        let refused =
            |socket| changes.iter().any(|c| matches!(c, DriverChange::Refused { socket: s, .. } if s == socket));
        sockets.iter().all(refused)
    });
    std::thread::sleep(Duration::from_secs(1));
    for socket in &sockets {
        let changes = stage.log.all();
        let told: Vec<&str> = changes
            .iter()
            .filter_map(|c| match c {
                DriverChange::Refused { socket: s, why } if s == socket => Some(why.as_str()),
                _ => None,
            })
            .collect();
        // A socket that is closed at once may say so in several words, each told when it comes.
        assert!(told.windows(2).all(|two| two[0] != two[1]), "told again without news: {changes:?}");
    }
}

fn a_registrar_that_hangs() {
    let stage = Stage::new();
    let hung = start(stage.registering("hung.test"));
    order(&hung, "GetInfo", &Fault::once(Action::Hang));
    let _drivers = stage.watch();
    // It holds up nobody else.
    let _well = start(stage.registering(NAME));
    stage.log.registered(NAME);
    let why = stage.log.refused(&stage.socket("hung.test"));
    assert!(why.contains("GetInfo") && why.contains("within 5 s"), "{why}");
    stage.log.registered("hung.test");
}

fn another_driver_at_the_endpoint() {
    let stage = Stage::new();
    let process = start(Options { register_as: Some("claims.test".into()), ..stage.registering(NAME) });
    let drivers = stage.watch();
    let why = stage.log.refused(&stage.socket(NAME));
    assert!(why.contains("refused.test"), "{why}");
    until("it is told", || !told(&process).is_empty());
    assert!(drivers.get("claims.test", "NodeStageVolume").is_err());
}
