//! Developing Refloat: `cargo xtask COMMAND`. One file a command.

mod agent_rounds;
mod bench;
#[allow(dead_code)] // the tests use more of it
#[path = "../../crates/refloat/tests/cli/browser.rs"]
mod browser;
mod ci;
mod clean_states;
mod fuzz;
mod generate;
mod kill_sweep;
#[path = "../../crates/refloat/tests/cli/node.rs"]
mod node;
mod packages;
mod peer;
mod process;
mod real_node;
mod sanity;
mod screenshot;
mod test;
mod vm;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Developing Refloat.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run all tests: the crates', the demo and a part of the kill sweep; the last line counts them
    Test(test::Args),
    /// What `.ci/run` runs: format, clippy and docs with warnings as errors, then `test`
    Ci,
    /// Generate the Rust code of the protocols from their .proto files
    Generate(generate::Args),
    /// Kill the manager before and after every state-changing system call, and check two restarts after each
    KillSweep(kill_sweep::Args),
    /// Clean thousands of nodes made at random, each with a canary in every file system
    CleanStates(clean_states::Args),
    /// Run the agent beside a real kubelet that is killed again and again, with pods and faults at random
    AgentRounds(agent_rounds::Args),
    /// Measure reconstruct, records and the mount table against what they are compared to
    Bench(bench::Args),
    /// Check what `scan` finds on a kubelet's tree without a record, against the truth
    PeerCheck(peer::check::Args),
    /// Build a real kubelet and API server for the tests beside them, and run a command in such a node
    RealNode(real_node::Args),
    /// Boot Debian's kernel in a virtual machine and run the tests there that need it: NFS, iSCSI, multipath
    Vm(vm::Args),
    /// Make the picture of `scan -o html` in the README anew (needs root and Chromium)
    Screenshot(screenshot::Args),
    /// Run every fuzz target for a while
    Fuzz(fuzz::Args),
    /// Become another program, traced by the one that started this
    #[command(hide = true, name = kill_sweep::tracer::EXEC)]
    ExecTraced {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
}

fn main() -> anyhow::Result<std::process::ExitCode> {
    refloat_test_csi_driver::run_if_driver();
    match Cli::parse().command {
        Command::Test(args) => test::run(&args),
        Command::Ci => ci::run(),
        Command::Generate(args) => generate::run(&args),
        Command::KillSweep(args) => kill_sweep::run(&args),
        Command::CleanStates(args) => clean_states::run(&args),
        Command::AgentRounds(args) => agent_rounds::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::PeerCheck(args) => peer::check::run(&args),
        Command::RealNode(args) => real_node::run(&args),
        Command::Vm(args) => vm::run(&args),
        Command::Screenshot(args) => screenshot::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::ExecTraced { words } => match kill_sweep::tracer::exec(&words)? {},
    }
}
