//! The tests' CSI driver as a program.

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(about = "A CSI driver for the tests: it really mounts, and fails on order.")]
struct Cli {
    #[command(flatten)]
    options: refloat_test_csi_driver::Options,
}

fn main() -> ExitCode {
    match refloat_test_csi_driver::run(Cli::parse().options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
