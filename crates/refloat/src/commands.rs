//! One module a command.

mod agent;
mod clean;
mod completion;
mod demo;
mod doctor;
mod explain;
mod node;
mod record;
mod release;
mod scan;
mod version;
mod wait;

use crate::cli::{Command, OutputFormat};
use crate::config::Settings;
use crate::exit::{Done, Failure};

/// Runs a command.
pub(crate) fn run(command: &Command, settings: &Settings) -> Result<Done, Failure> {
    if settings.output == OutputFormat::Html && !matches!(command, Command::Scan(_)) {
        return Err(Failure::usage("only scan prints html", "use table, wide, json or yaml"));
    }
    match command {
        Command::Scan(args) => scan::run(args, settings),
        Command::Explain(args) => explain::run(args, settings),
        Command::Clean(args) => clean::run(args, settings),
        Command::Release(args) => release::run(args, settings),
        Command::Wait(args) => wait::run(args, settings),
        Command::Node(args) => node::run(args, settings),
        Command::Agent(args) => agent::run(args, settings),
        Command::Record(command) => record::run(command, settings),
        Command::Doctor => doctor::run(settings),
        Command::Demo => demo::run(settings),
        Command::Completion { shell } => completion::run(*shell),
        Command::Version => version::run(settings),
        Command::UsageProbe => {
            crate::usage::probe().map_err(|error| Failure::message(error.to_string(), ""))?;
            Ok(Done::attention_if(false))
        }
    }
}
