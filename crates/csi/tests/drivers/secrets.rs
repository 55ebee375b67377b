//! What a driver echoes is shown without secrets, short and on one line.

use refloat_csi::{CallErrorKind, Drivers, Outcome, Secrets, StringMap};
use refloat_test_csi_driver::{Action, Fault};

use crate::stage::{Stage, expand_request, order, publish_request, stage_request, start};

refloat_test_support::tests!(an_echoed_secret_is_hidden, a_long_answer_is_shortened);

const NAME: &str = "echo.test";

fn an_echoed_secret_is_hidden() {
    let stage = Stage::new();
    let process = start(stage.options(NAME));
    let drivers = Drivers::none();
    drivers.remember(NAME, &process.options().endpoint);
    let driver = drivers.get(NAME, "NodeStageVolume").expect("it is remembered");
    let echo = Action::CodeAfter { code: 13, message: "login with {secrets} failed\nat line 1".into() };
    for call in ["NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"] {
        order(&process, call, &Fault::always(echo.clone()));
    }
    let values =
        StringMap::from([("a".to_owned(), "s3cr3t\nkey \"x\"".to_owned()), ("b".to_owned(), "s3cr3t".to_owned())]);
    let mut request = stage_request("v");
    request.secrets = Secrets::new(values);
    let errors = [
        driver.stage(&request).expect_err("it was ordered to fail"),
        driver.publish(&publish_request("v")).expect_err("it was ordered to fail"),
        driver.expand(&expand_request("v")).expect_err("it was ordered to fail"),
    ];
    for error in errors {
        let CallErrorKind::Status { message, .. } = &error.kind else { panic!("{error:?}") };
        assert!(message.starts_with("login with ***") && message.ends_with("failed at line 1"), "{message}");
        for text in [format!("{error:?}"), format!("{error}: {}", error.kind)] {
            assert!(!text.contains("hunter2") && !text.contains("s3cr3t") && !text.contains("key"), "{text}");
        }
    }
}

fn a_long_answer_is_shortened() {
    let stage = Stage::new();
    let process = start(stage.options(NAME));
    let drivers = Drivers::none();
    drivers.remember(NAME, &process.options().endpoint);
    let driver = drivers.get(NAME, "NodeStageVolume").expect("it is remembered");
    // Longer than a usual limit of headers, and longer than ours.
    for (length, outcome) in [(100_000, Outcome::Final), (4_000_000, Outcome::Uncertain)] {
        order(&process, "NodeStageVolume", &Fault::once(Action::Code { code: 13, message: "x".repeat(length) }));
        let error = driver.stage(&stage_request("v")).expect_err("it was ordered to fail");
        assert_eq!(error.outcome, outcome, "{length}");
        assert!(format!("{error:?}").len() < 2000, "{length}");
        driver.stage(&stage_request("v")).expect("the next call works");
    }
}
