//! Connections: one is kept, none is kept too long, and none holds up another.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use refloat_csi::{CallErrorKind, Drivers, Outcome};
use refloat_test_csi_driver::{Options, Process};

use crate::stage::{Stage, count, publish_request, stage_request, start, until};

refloat_test_support::tests!(
    a_thousand_calls_go_over_one_connection,
    a_new_socket_is_noticed_while_the_old_driver_lives,
    a_restart_between_calls_is_not_noticed,
    a_hung_driver_holds_up_nobody_else,
    what_is_no_driver,
    a_call_from_the_watch_fails_at_once,
);

fn remembered(process: &Process) -> Drivers {
    let drivers = Drivers::none();
    drivers.remember(&process.options().name, &process.options().endpoint);
    drivers
}

fn a_thousand_calls_go_over_one_connection() {
    let stage = Stage::new();
    let process = start(stage.options("many.test"));
    // Its start tried the socket once, and the journal says so a little later.
    until("the start's own connection is told", || count(&process, "Connection") > 0);
    let before = count(&process, "Connection");
    let drivers = remembered(&process);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let drivers = &drivers;
            scope.spawn(move || {
                for call in 0..125 {
                    let driver = drivers.get("many.test", "NodePublishVolume").expect("it is remembered");
                    assert!(driver.capabilities().expect("it answers").stage_unstage);
                    driver.publish(&publish_request(&format!("v-{thread}-{call}"))).expect("it works");
                }
            });
        }
    });
    assert_eq!(count(&process, "NodePublishVolume"), 1000);
    assert_eq!(count(&process, "Connection") - before, 1);
    assert_eq!(count(&process, "NodeGetCapabilities"), 1);
    assert_eq!(count(&process, "GetPluginInfo"), 1);
}

fn a_new_socket_is_noticed_while_the_old_driver_lives() {
    let stage = Stage::new();
    let old = start(stage.options("twice.test"));
    let drivers = remembered(&old);
    let driver = drivers.get("twice.test", "NodeGetCapabilities").expect("it is remembered");
    assert!(driver.capabilities().expect("it answers").stage_unstage);
    // Takes the path; the old one goes on with its connections.
    let journal = stage.folder.path().join("new-journal");
    let new = start(Options { journal: Some(journal), no_stage: true, ..old.options().clone() });
    assert!(!driver.capabilities().expect("it answers").stage_unstage, "asked anew");
    driver.publish(&publish_request("v")).expect("it works");
    assert_eq!((count(&old, "NodePublishVolume"), count(&new, "NodePublishVolume")), (0, 1));
}

fn a_restart_between_calls_is_not_noticed() {
    let stage = Stage::new();
    let mut process = start(stage.options("again.test"));
    let drivers = remembered(&process);
    let driver = drivers.get("again.test", "NodeStageVolume").expect("it is remembered");
    for _ in 0..5 {
        driver.stage(&stage_request("v")).expect("it works");
        process.restart(|_| {}).expect("it starts");
    }
    assert_eq!(count(&process, "NodeStageVolume"), 5);
}

fn a_hung_driver_holds_up_nobody_else() {
    let stage = Stage::new();
    let hung = start(stage.options("hung.test"));
    let well = start(stage.options("well.test"));
    let drivers = remembered(&hung);
    drivers.remember("well.test", &well.options().endpoint);
    let get = |name| drivers.get(name, "NodePublishVolume").expect("it is remembered");
    get("hung.test").capabilities().expect("it answers");
    let slowest = |calls: u32| {
        let one = |_| {
            let start = Instant::now();
            get("well.test").publish(&publish_request("v")).expect("it works");
            start.elapsed()
        };
        (0..calls).map(one).max().unwrap_or_default()
    };
    slowest(10);
    hung.freeze().expect("it is stopped");
    let deadline = Duration::from_secs(6);
    let asked = Instant::now();
    let waiting: Vec<_> = (0..300)
        .map(|_| {
            let driver = get("hung.test").with_deadline(deadline);
            std::thread::spawn(move || driver.publish(&publish_request("v")))
        })
        .collect();
    // Each within a fraction of what a call that waits for the hung one would take.
    let worst = slowest(100);
    assert!(worst < Duration::from_secs(2) && asked.elapsed() < deadline, "{worst:?} of {:?}", asked.elapsed());
    for thread in waiting {
        let error = thread.join().expect("it does not panic").expect_err("it hangs");
        assert!(matches!(error.kind, CallErrorKind::Deadline(_)), "{error:?}");
        assert_eq!(error.outcome, Outcome::Uncertain);
    }
    hung.thaw().expect("it goes on");
    // A server may take so many calls given up at once for an attack and close the connection: the next call has another.
    until("it works again", || get("hung.test").publish(&publish_request("v")).is_ok());
}

/// Listeners that are no drivers: one that closes, one that speaks something else, one that says nothing.
fn what_is_no_driver() {
    let stage = Stage::new();
    let answers: [(&str, Option<&[u8]>); 3] =
        [("closes", Some(b"")), ("garbage", Some(b"HTTP/1.1 400 Bad Request\r\n\r\n")), ("silent", None)];
    for (name, answer) in answers {
        let endpoint = stage.folder.path().join(name);
        let listener = UnixListener::bind(&endpoint).expect("it is bound");
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                match answer {
                    Some(text) => {
                        let _ = stream.read(&mut [0; 64]);
                        let _ = stream.write_all(text);
                    }
                    None => held.push(stream),
                }
            }
        });
        let drivers = Drivers::none();
        drivers.remember("no.test", &endpoint);
        let driver = drivers.get("no.test", "NodeUnstageVolume").expect("it is remembered");
        let error = driver.with_deadline(Duration::from_millis(500)).unstage("v", "/s").expect_err("it is no driver");
        assert_eq!(error.outcome, Outcome::NotStarted, "{name}: {error:?}");
        assert_eq!(matches!(error.kind, CallErrorKind::Deadline(_)), answer.is_none(), "{name}: {error:?}");
    }
}

fn a_call_from_the_watch_fails_at_once() {
    let stage = Stage::new();
    let process = start(stage.registering("inside.test"));
    let remembered = remembered(&process);
    let (send, receive) = std::sync::mpsc::channel();
    let slot = std::sync::Arc::new(std::sync::Mutex::new(None::<Drivers>));
    let inside = std::sync::Arc::clone(&slot);
    let options = refloat_csi::DriversOptions { registry: stage.registry(), deadline: Duration::from_secs(30) };
    let mut held = slot.lock().expect("nobody panicked");
    let drivers = Drivers::start(
        options,
        Box::new(move |_| {
            let slot = inside.lock().expect("nobody panicked");
            if let Some(driver) = slot.as_ref().and_then(|d| d.get("inside.test", "NodeUnstageVolume").ok()) {
                let _ = send.send(driver.unstage("v", "/s"));
            }
        }),
    );
    *held = Some(drivers.expect("it starts"));
    drop(held);
    let answer = receive.recv_timeout(Duration::from_secs(30)).expect("it does not wait for itself");
    assert_eq!(answer.expect_err("it would wait for itself").outcome, Outcome::NotStarted);
    // A cycle that a caller must not make, undone.
    slot.lock().expect("nobody panicked").take();
    drop(remembered);
}
