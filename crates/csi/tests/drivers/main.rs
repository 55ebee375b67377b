//! Real drivers, in processes of their own, over real sockets. They do nothing (`noop`) but what they are ordered to
//! fail with, so no test here needs to mount.

// Everything here is for these tests alone.
#![allow(unreachable_pub, missing_docs)]
// Tests look at their own files, which do not hang.
#![allow(clippy::disallowed_methods)]

mod calls;
mod connections;
mod idle;
mod refusals;
mod registration;
mod secrets;
mod stage;

use std::process::ExitCode;

use refloat_test_support::{Arguments, run, trial};

fn main() -> ExitCode {
    refloat_test_csi_driver::run_if_driver();
    if let Some(code) = idle::run_if_child() {
        return code;
    }
    let tests =
        [calls::TESTS, connections::TESTS, idle::TESTS, refusals::TESTS, registration::TESTS, secrets::TESTS].concat();
    let trials = tests.into_iter().map(|(name, test)| trial(name, move || Ok::<_, String>(test())));
    run(&Arguments::from_args(), trials.collect())
}
