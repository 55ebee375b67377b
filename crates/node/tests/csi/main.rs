//! CSI volumes: the manager against a real driver in a process of its own, which really mounts, and fails on order.
//!
//! What cannot run here is skipped by name, with the reason.

// Everything here is for these tests alone.
#![allow(unreachable_pub, missing_docs)]
// Tests look at their own files, which do not hang.
#![allow(clippy::disallowed_methods)]
// They read better as what the stage does.
#![allow(clippy::unused_self)]

mod block;
mod codes;
mod crashes;
mod cuts;
mod faults;
mod foreign;
mod full;
mod hangs;
mod killed;
mod left;
mod life;
mod migrated;
mod restart;
mod said;
mod shared;
#[path = "../live/stage.rs"]
#[allow(dead_code)] // the other test program uses more of it
mod stage;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    refloat_test_csi_driver::run_if_driver();
    killed::run_if_manager();
    refloat_test_support::in_one_namespace(&[
        block::TESTS,
        codes::TESTS,
        crashes::TESTS,
        cuts::TESTS,
        faults::TESTS,
        foreign::TESTS,
        full::TESTS,
        hangs::TESTS,
        killed::TESTS,
        left::TESTS,
        life::TESTS,
        migrated::TESTS,
        restart::TESTS,
        said::TESTS,
        shared::TESTS,
    ])
}
