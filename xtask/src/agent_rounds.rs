//! `cargo xtask agent-rounds`: the agent beside a real kubelet that is killed again and again, with pods and faults at random.

use std::process::ExitCode;

use anyhow::{Result, bail};
use refloat_test_support::real_node::OUT;

use crate::process::{cargo, run as run_command};
use crate::real_node;

/// Arguments of `agent-rounds`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many rounds; each is the life of one pod
    #[arg(long, default_value_t = 300)]
    rounds: u64,
    /// The rounds of this seed once more
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let out = match real_node::build()? {
        Ok(out) => out,
        Err(why) => bail!("there can be no real node: {why}"),
    };
    let mut command =
        cargo(&["test", "-p", "refloat", "--test", "real-node", "--", "--nocapture", "agent_rounds_beside"]);
    command.env(OUT, out).env("REFLOAT_AGENT_ROUNDS", args.rounds.to_string());
    if let Some(seed) = args.seed {
        command.env("REFLOAT_AGENT_SEED", seed.to_string());
    }
    run_command(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
