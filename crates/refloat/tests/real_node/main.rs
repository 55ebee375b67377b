//! The binary beside a real kubelet with real containers (`tests/real-node`), each test with a node of its own.
//!
//! They run one after another: a node takes half a gigabyte and most of two processors as it starts. Where there can be none,
//! each says `skipped: NAME: REASON` and passes.

mod agent;
mod looking;
mod rounds;
mod world;

use std::path::Path;
use std::process::ExitCode;

use refloat_test_support::real_node::{RealNode, tail};
use refloat_test_support::{Arguments, skip, trial};

/// The binary.
const REFLOAT: &str = env!("CARGO_BIN_EXE_refloat");

type Test = fn(&mut RealNode) -> anyhow::Result<()>;

fn main() -> ExitCode {
    // This program is also the CSI driver of its tests.
    refloat_test_csi_driver::run_if_driver();
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = [looking::TESTS, agent::TESTS, rounds::TESTS].concat().into_iter().map(|(name, test)| {
        trial(name, move || {
            if let Some(why) = RealNode::unavailable() {
                return Ok(skip(why));
            }
            let run = || -> anyhow::Result<()> {
                let mut node = RealNode::start()?;
                let result = test(&mut node);
                if result.is_err() {
                    eprintln!("the end of the kubelet's log:\n{}", tail(&node.log("kubelet")));
                }
                result
            };
            run().map(Ok).map_err(|error| format!("{error:?}"))
        })
    });
    refloat_test_support::run(&arguments, trials.collect())
}

/// The binary, as the harness wants it.
fn refloat() -> &'static Path {
    Path::new(REFLOAT)
}
