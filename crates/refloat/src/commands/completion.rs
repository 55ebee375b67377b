//! `refloat completion SHELL`.

use std::io::Write;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::exit::{Done, Failure};

/// Runs the command.
pub(crate) fn run(shell: clap_complete::Shell) -> Result<Done, Failure> {
    // Into memory first: the generator panics where writing fails, and a closed pipe is no failure.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "refloat", &mut script);
    let mut out = std::io::stdout().lock();
    out.write_all(&script)?;
    out.flush()?;
    Ok(Done::Well)
}
