//! Volumes on a real kernel, in a private mount namespace.
//!
//! Each test runs on the mount calls of this kernel and, where it says so, on those of an old one. What cannot run
//! here is skipped by name, with the reason.

// Everything here is for these tests alone.
#![allow(unreachable_pub, missing_docs)]

mod block;
mod disk_tools;
mod empty_dir;
mod host_path;
mod life;
mod local;
mod node;
mod payload;
mod scsi;
mod sub_path;
mod tear_down;

use std::process::ExitCode;

use refloat_test_support::scsi_sim;

fn main() -> ExitCode {
    let tests = [
        block::TESTS,
        disk_tools::TESTS,
        empty_dir::TESTS,
        host_path::TESTS,
        life::TESTS,
        local::TESTS,
        payload::TESTS,
        scsi::TESTS,
        sub_path::TESTS,
        tear_down::TESTS,
    ];
    let tools = [refloat_test_support::MOUNT_NFS, scsi_sim::ISCSIADM, scsi_sim::MULTIPATH];
    let tools = [&tools[..], &disk_tools::TOOLS].concat();
    refloat_test_support::with_tools(&tools, || refloat_test_support::in_one_namespace(&tests))
}
