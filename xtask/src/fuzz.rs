//! `cargo xtask fuzz`: every fuzz target for a while.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::workspace;

/// Arguments of `fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Only these targets
    targets: Vec<String>,
}

/// Runs the command. Needs a nightly toolchain and cargo-fuzz.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let folder = workspace().join("fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut targets: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned))
        .filter(|name| args.targets.is_empty() || args.targets.contains(name))
        .collect();
    targets.sort();
    if targets.is_empty() {
        bail!("there is no such fuzz target in {}", folder.display());
    }
    let available = Command::new("cargo").args(["+nightly", "fuzz", "--version"]).stderr(Stdio::null()).output();
    if !available.is_ok_and(|output| output.status.success()) {
        bail!(
            "fuzzing needs a nightly toolchain and cargo-fuzz: rustup toolchain install nightly && cargo install cargo-fuzz"
        );
    }
    let mut failed = Vec::new();
    for target in &targets {
        println!("{target}: {} seconds", args.seconds);
        let status = Command::new("cargo")
            .args(["+nightly", "fuzz", "run", target, "--", "-rss_limit_mb=2048"])
            .arg(format!("-max_total_time={}", args.seconds))
            .current_dir(workspace())
            // Set by the cargo that runs this program, and not what the nightly one is to use.
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("CARGO")
            .stdin(Stdio::null())
            .status()
            .context("cannot run cargo fuzz")?;
        if !status.success() {
            failed.push(target.as_str());
        }
    }
    println!("{} targets ran, {} failed {}", targets.len(), failed.len(), failed.join(" "));
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
