//! `cargo xtask clean-states`: `clean --yes` on thousands of nodes made at random, with a canary in every file system.

use std::process::ExitCode;

use anyhow::Result;

use crate::process::{cargo, run as run_command};

/// Arguments of `clean-states`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many nodes
    #[arg(long, default_value_t = 5000)]
    states: u64,
    /// Only the node of this seed
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut command =
        cargo(&["test", "-p", "refloat-node", "--test", "live", "--", "--nocapture", "no_canary_is_lost"]);
    command.env("REFLOAT_CLEAN_STATES", args.states.to_string());
    if let Some(seed) = args.seed {
        command.env("REFLOAT_CLEAN_SEED", seed.to_string());
    }
    run_command(&mut command)?;
    println!("{} nodes were cleaned, and no canary is lost", args.seed.map_or(args.states, |_| 1));
    Ok(ExitCode::SUCCESS)
}
