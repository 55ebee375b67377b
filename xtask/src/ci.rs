//! `cargo xtask ci`: everything that a change must pass.

use std::process::ExitCode;

use anyhow::Result;

use crate::generate;
use crate::process;
use crate::process::{cargo, timed};
use crate::test;

/// Runs the command.
pub(crate) fn run() -> Result<ExitCode> {
    process::run(&mut cargo(&["fmt", "--all", "--check"]))?;
    timed("clippy", || {
        process::run(&mut cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"]))
    })?;
    timed("generated code", || generate::run(&generate::Args { check: true }))?;
    let mut doc = cargo(&["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
    timed("docs", || process::run(doc.env("RUSTDOCFLAGS", "--deny warnings")))?;
    test::run(&test::Args::default())
}
