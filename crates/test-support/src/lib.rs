//! What tests share, above all the programs that mount (`harness = false`). For development alone; no crate of the product uses it.
//!
//! - [`in_one_namespace`]: all tests in this process, in a private mount namespace, on a tmpfs of their own.
//! - [`in_one_process_each`]: a process and a namespace for each test.
//! - [`as_nobody`]: the same program once more, as an ordinary user.
//! - [`with_tools`]: the same program with scripts of ours in its `PATH`.
//! - [`in_the_virtual_machine`]: tests for another kernel than this machine's.
//! - [`corpus()`]: the seeds of a fuzz target.
//! - [`ScsiSim`]: disks of a storage array that is not there.
//! - [`RealNode`](real_node::RealNode): a real kubelet with its API server and real containers.
//!
//! A test that cannot run prints `skipped: NAME: REASON` and passes; `cargo xtask test` counts such lines.

mod corpus;
mod message;
mod namespace;
mod processes;
pub mod real_node;
pub mod scsi_sim;
mod skip;
mod tools;
pub mod virtual_machine;
mod wait;

pub use libtest_mimic::{Arguments, Failed, Trial};

pub use corpus::corpus;
pub use message::assert_readable;
pub use namespace::{base, enter, in_one_namespace, run};
pub use processes::{as_nobody, in_one_process_each, is_as_nobody};
pub use scsi_sim::ScsiSim;
pub use skip::{Outcome, Run, Skip, Test, Verdict, skip, trial};
pub use tools::{MOUNT_NFS, with_tools, write_tool};
pub use virtual_machine::in_the_virtual_machine;
pub use wait::wait_within;

/// Lists functions as tests: `tests!(a, b);` makes `TESTS`, in which each is named by its module and itself.
///
/// A function takes nothing, and answers nothing or an [`Outcome`].
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[$crate::Test] =
            &[$((concat!(module_path!(), "::", stringify!($name)), || $crate::Run::run($name()))),*];
    };
}
