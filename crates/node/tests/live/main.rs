//! The manager on a real kernel, in a private mount namespace: what goes right, and how it must fail.
//!
//! What cannot run here is skipped by name, with the reason.

// Everything here is for these tests alone.
#![allow(unreachable_pub, missing_docs)]
// Tests look at their own files, which do not hang.
#![allow(clippy::disallowed_methods)]
// They read better as what the stage does.
#![allow(clippy::unused_self)]

mod block;
mod by_hand;
mod changed;
mod clean_devices;
mod clean_states;
mod devices;
mod fc;
mod glusterfs;
mod hung;
mod iscsi;
mod life;
mod manifests;
mod nfs;
mod nfs_server;
mod root;
mod running;
mod san;
mod stage;
mod state_folder;

use std::process::ExitCode;

use refloat_test_support::scsi_sim;

fn main() -> ExitCode {
    let tests = [
        block::TESTS,
        by_hand::TESTS,
        changed::TESTS,
        clean_devices::TESTS,
        clean_states::TESTS,
        devices::TESTS,
        fc::TESTS,
        glusterfs::TESTS,
        hung::TESTS,
        iscsi::TESTS,
        life::TESTS,
        manifests::TESTS,
        nfs::TESTS,
        nfs_server::TESTS,
        root::TESTS,
        running::TESTS,
        state_folder::TESTS,
    ];
    let tools = [refloat_test_support::MOUNT_NFS, scsi_sim::ISCSIADM, scsi_sim::MULTIPATH];
    refloat_test_support::with_tools(&tools, || refloat_test_support::in_one_namespace(&tests))
}
