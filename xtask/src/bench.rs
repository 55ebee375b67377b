//! `cargo xtask bench`: what reconstruct, records and the mount table cost, each beside what it is compared to, in the
//! same run on the same machine. Prints the results and writes them to `docs/performance.md`.
#![allow(clippy::cast_precision_loss)] // counts are far below 2^52

mod csi;
mod floor;
mod machine;
mod once;
mod peer;
mod reconstruct;
mod records;
mod table;
mod tree;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{build, workspace};

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// How many volumes
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 10_000, 50_000])]
    sizes: Vec<usize>,
    #[command(flatten)]
    how: How,
    /// The node root, for the floor
    #[arg(long, hide = true)]
    root: Option<PathBuf>,
    /// The state folder, for the floor
    #[arg(long, hide = true)]
    state: Option<PathBuf>,
}

/// How it is measured.
#[derive(Debug, clap::Args)]
struct How {
    /// How often each is measured; the median counts
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Do not write `docs/performance.md`
    #[arg(long)]
    dry: bool,
    /// Measure one thing in this process (what the others are started for)
    #[arg(long, hide = true, requires = "binary")]
    inside: Option<String>,
    /// The binary
    #[arg(long, hide = true)]
    binary: Option<PathBuf>,
}

impl How {
    /// Has one thing measured by another process: `bench` with these arguments.
    fn measure(&self, programs: &Programs, what: &str, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(&programs.xtask);
        command.arg("bench").args(arguments).args(["--inside", what, "--rounds", &self.rounds.to_string()]);
        let command = command.arg("--binary").arg(&programs.binary);
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            bail!("measuring {what} with {arguments:?} failed: {}", output.status);
        }
        serde_json::from_slice(&output.stdout).context("cannot read what was measured")
    }
}

/// What is measured and what measures, as they are released.
struct Programs {
    binary: PathBuf,
    xtask: PathBuf,
}

impl Programs {
    fn build() -> Result<Self> {
        Ok(Self { binary: build("refloat", true)?, xtask: build("xtask", true)? })
    }
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Measure scan beside the kubelet's own reconstruction and the floor, on one tree and in one run (needs Go)
    Peer(peer::Args),
    /// Measure where the time of CSI volumes goes, and the reconstruction of many (needs root)
    Csi(csi::Args),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        Some(What::Peer(args)) => return peer::run(args),
        Some(What::Csi(args)) => return csi::run(args),
        None => {}
    }
    if let Some(what) = &args.how.inside {
        return inside(what, args);
    }
    let programs = Programs::build()?;
    let measure = |what: &str, size: usize| {
        eprintln!("{what} {size}");
        args.how.measure(&programs, what, &["--sizes", &size.to_string()])
    };
    let mut text = machine::describe("How fast Refloat is", "cargo xtask bench");
    let sized: Vec<_> = args.sizes.iter().map(|&size| measure("reconstruct", size)).collect::<Result<_>>()?;
    text.push_str(&reconstruct::report(&sized));
    text.push_str(&records::report(&measure("records", 512)?, &measure("set-up", 1000)?));
    text.push_str(&table::report(&[measure("table", 1_000)?, measure("table", 50_000)?]));
    println!("{text}");
    if !args.how.dry {
        let path = workspace().join("docs/performance.md");
        // The part of `bench csi` stays.
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let csi = csi::part_of(&old);
        let text = if csi.is_empty() { text } else { format!("{text}\n{csi}") };
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("written to {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn inside(what: &str, args: &Args) -> Result<ExitCode> {
    let size = args.sizes.first().copied().unwrap_or(1000);
    let binary = args.how.binary.as_deref().context("which binary?")?;
    let value = match what {
        "floor" => {
            let root = args.root.as_deref().context("which root?")?;
            floor::run(root, args.state.as_deref())?
        }
        "scan" | "restart" => {
            let root = args.root.as_deref().context("which root?")?;
            let state = args.state.as_deref().context("which state folder?")?;
            if what == "scan" {
                once::scan(root, state)?;
            } else {
                once::restart(root, state)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        "table" => table::measure(size)?,
        "reconstruct" => reconstruct::measure(size, args.how.rounds, binary)?,
        "records" => records::measure(size)?,
        "set-up" => records::measure_set_up(size, args.how.rounds, binary)?,
        _ => bail!("there is nothing called {what:?} to measure"),
    };
    println!("{value}");
    Ok(ExitCode::SUCCESS)
}

/// The median.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
