//! The binary on a kernel with NFS, iSCSI, SCSI and multipath, with Debian's tools: in the virtual machine of `cargo xtask vm`.
//!
//! Each test has a process and a mount namespace of its own, and they run one after another, for the kernel's servers, sessions
//! and devices are the whole machine's. What a test started is ended with it.

mod fc;
mod iscsi;
#[allow(dead_code, reason = "the other programs with this file use more of it")]
#[path = "../cli/kit.rs"]
mod kit;
mod nfs;
#[allow(dead_code, reason = "the other programs with this file use more of it")]
#[path = "../cli/node.rs"]
mod node;
mod services;
mod shared;

use std::process::ExitCode;

use node::Node;
use refloat_test_support::Verdict;

type Test = fn(&mut Node) -> anyhow::Result<Verdict>;

fn main() -> ExitCode {
    let tests = [fc::TESTS, iscsi::TESTS, nfs::TESTS].concat();
    let names: Vec<&str> = tests.iter().map(|(name, _)| *name).collect();
    refloat_test_support::in_the_virtual_machine(&names, |name, refloat| {
        let (_, test) = tests.iter().find(|(n, _)| *n == name).ok_or_else(|| anyhow::anyhow!("there is no {name}"))?;
        node::finish_on_signals()?;
        test(&mut Node::new(refloat)?)
    })
}
