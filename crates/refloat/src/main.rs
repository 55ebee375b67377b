//! The `refloat` command: shows, makes and undoes the volumes of a node.
//!
//! `main` parses the command line, hands over to one module a command under [`commands`], and is the only place
//! that turns how a command ended into an exit code. What a command prints is laid out in [`output`].

mod cli;
mod commands;
mod config;
mod duration;
mod exit;
mod explain;
mod logging;
mod look;
mod output;
mod sources;
mod usage;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        // Also `--help` and `--version`, which are no errors and go to standard output. A reader who has gone away
        // wants no more of it.
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE));
        }
    };
    let settings = match config::Settings::resolve(&cli.shared) {
        Ok(settings) => settings,
        Err(error) => return exit::report(Err(error), None),
    };
    if let Err(error) = logging::start(&settings) {
        return exit::report(Err(error), Some(&settings));
    }
    let result = commands::run(&cli.command, &settings);
    exit::report(result, Some(&settings))
}
