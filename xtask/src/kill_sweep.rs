//! `cargo xtask kill-sweep`: the manager is killed before and after every state-changing system call, and two restarts
//! are checked after each kill: with the same pods, and with no pods at all.
//!
//! A reference run counts the calls of each phase, over all threads. Then, for each number and each side of the call, a
//! fresh node in a fresh mount namespace, where the manager is killed at that call. As threads may take turns in another
//! way, a run can make a few calls more or less: one that ends before its point is checked all the same, counted, and
//! said.

mod calls;
mod clean;
mod csi;
mod drivers;
mod flex;
mod glusterfs;
mod one;
mod plugins;
mod point;
mod san;
mod scenario;
pub(crate) mod tracer;

use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::node;
use crate::process::build_refloat;
use point::Point;

/// Arguments of `kill-sweep`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only an even sample that takes less than three minutes
    #[arg(long)]
    pub(crate) part: bool,
    /// Only this kill point: phase, number of the call, and side of it
    #[arg(long, value_name = "PHASE:N[:after]")]
    only: Option<String>,
    /// Only these phases
    #[arg(long = "phase", value_name = "PHASE")]
    phases: Vec<String>,
    /// How many kill points are tried at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Try one kill point, or count the calls of a phase, in this process (what the others are started for)
    #[arg(long, hide = true, requires_all = ["binary", "shared"])]
    inside: Option<String>,
    /// The binary
    #[arg(long, hide = true)]
    binary: Option<PathBuf>,
    /// The folder of what all nodes share
    #[arg(long, hide = true)]
    shared: Option<PathBuf>,
}

impl Args {
    /// What `cargo xtask test` runs.
    pub(crate) fn of_part() -> Self {
        Self { part: true, only: None, phases: Vec::new(), jobs: 2, inside: None, binary: None, shared: None }
    }
}

/// What a sweep ended with.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Of those that passed: runs that ended before their point.
    pub(crate) not_reached: usize,
    /// Why it did not run, if it did not.
    pub(crate) skipped: Option<String>,
    /// Scenarios that cannot run here, and why.
    pub(crate) left_out: Vec<String>,
    /// How often somebody was killed at each call.
    hits: BTreeMap<String, usize>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let (Some(inside), Some(binary), Some(shared)) = (&args.inside, &args.binary, &args.shared) {
        return match inside.parse() {
            Ok(point) => one::run(&point, binary, shared),
            Err(_) => one::count(inside, binary, shared),
        };
    }
    let summary = sweep(args)?;
    if let Some(why) = summary.skipped {
        bail!("the kill sweep cannot run: {why}");
    }
    Ok(if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sweeps.
pub(crate) fn sweep(args: &Args) -> Result<Summary> {
    let binary = build_refloat(false)?;
    let temp = tempfile::tempdir().context("cannot make a temporary folder")?;
    if let Err(why) = can_trace() {
        return Ok(Summary { skipped: Some(format!("{why:#}")), ..Summary::default() });
    }
    let mut left_out = Vec::new();
    let mut kinds = Vec::new();
    for kind in scenario::ALL {
        match (kind.shared)(temp.path())? {
            None => kinds.push(kind),
            Some(why) => left_out.push(format!("{}: {why}", kind.phases.join(", "))),
        }
    }
    let start = Instant::now();
    let tools = Tools { binary, temp: temp.path().to_owned() };
    let mut points = Vec::new();
    let mut all = 0;
    if let Some(only) = &args.only {
        points.push(only.parse()?);
        all = 1;
    } else {
        for phase in &args.phases {
            scenario::of_phase(phase)?;
        }
        for kind in kinds {
            let mut of_kind = Vec::new();
            let wanted = |phase: &&str| args.phases.is_empty() || args.phases.iter().any(|one| one == phase);
            for phase in kind.phases.iter().copied().filter(wanted) {
                of_kind.extend(Point::of_phase(phase, tools.count(phase)?)?);
            }
            all += of_kind.len();
            points.extend(if args.part { sample(of_kind, kind.part) } else { of_kind });
        }
    }
    println!("kill sweep: {} of {all} kill points, {} at once", points.len(), args.jobs);
    let summary = Summary { left_out, ..tools.try_all(points, args.jobs.max(1))? };
    let hits: Vec<_> = summary.hits.iter().map(|(call, times)| format!("{call} {times}")).collect();
    println!("kill sweep: killed at {}", hits.join(", "));
    println!(
        "kill sweep: {} kill points survived ({} of them not reached), {} failed, in {} s",
        summary.passed,
        summary.not_reached,
        summary.failed,
        start.elapsed().as_secs()
    );
    Ok(summary)
}

/// An even sample of so many.
fn sample(points: Vec<Point>, part: usize) -> Vec<Point> {
    let all = points.len();
    if all <= part {
        return points;
    }
    (0..part).map(|i| points[i * all / part].clone()).collect()
}

/// Whether this machine lets a program be traced.
fn can_trace() -> Result<()> {
    let mut command = tracer::command(Path::new("true"));
    tracer::run(command.stdin(Stdio::null()), &[], None).map(drop)
}

/// What every run needs.
struct Tools {
    binary: PathBuf,
    temp: PathBuf,
}

impl Tools {
    fn child(&self, inside: &str) -> Command {
        let mut command = Command::new(crate::process::THIS_PROGRAM);
        command.args(["kill-sweep", "--inside", inside, "--binary"]).arg(&self.binary);
        command.arg("--shared").arg(&self.temp).stdin(Stdio::null());
        command
    }

    /// The number of counted calls of a phase, from a reference run.
    fn count(&self, phase: &str) -> Result<usize> {
        let output = self.child(phase).output().context("cannot run the reference")?;
        if !output.status.success() {
            bail!("the reference run of {phase} failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let (mut calls, mut other_threads) = (0, 0);
        for line in text.lines() {
            let (thread, _) = line.split_once(' ').with_context(|| format!("what is {line:?}?"))?;
            calls += 1;
            other_threads += usize::from(thread != "0");
        }
        println!("kill sweep: {phase}: {calls} state-changing calls, {other_threads} of them not in the first thread");
        Ok(calls)
    }

    fn try_all(&self, points: Vec<Point>, jobs: usize) -> Result<Summary> {
        let total = points.len();
        let queue = Mutex::new(VecDeque::from(points));
        let summary = Mutex::new(Summary::default());
        let lock = |queue: &Mutex<VecDeque<Point>>| queue.lock().expect("no thread panics with it").pop_front();
        let show = std::io::stderr().is_terminal();
        let stop = node::finish_on_signals()?;
        let work = || -> Result<()> {
            while let Some(point) = lock(&queue) {
                if stop.load(Ordering::Relaxed) {
                    bail!("interrupted");
                }
                let result = self.try_one(&point)?;
                let mut summary = summary.lock().expect("no thread panics with it");
                match result {
                    Ok(hit) => {
                        summary.passed += 1;
                        match hit {
                            Some(call) => *summary.hits.entry(call).or_default() += 1,
                            None => summary.not_reached += 1,
                        }
                    }
                    Err(why) => {
                        summary.failed += 1;
                        println!("FAILED: {point}\n{}\n  again: cargo xtask kill-sweep --only {point}", why.trim_end());
                    }
                }
                if show {
                    eprint!("\r{} of {total} ", summary.passed + summary.failed);
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        })?;
        if show {
            eprintln!();
        }
        Ok(summary.into_inner().expect("no thread panicked"))
    }

    /// Tries one point. Answers the name of the call at which somebody was killed, unless it ended before; or what was
    /// wrong.
    fn try_one(&self, point: &Point) -> Result<std::result::Result<Option<String>, String>> {
        let mut child = self.child(&point.to_string());
        let log = self.temp.join(format!("log-{point}"));
        let file = std::fs::File::create(&log).context("cannot write a log")?;
        let mut child = child.stdout(file.try_clone()?).stderr(file).spawn().context("cannot start a run")?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if start.elapsed() > Duration::from_secs(120) {
                child.kill()?;
                child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let text = read_lossy(&log);
        let _ = std::fs::remove_file(&log);
        Ok(match status {
            Some(status) if status.success() => {
                let hit = text.lines().find_map(|line| line.strip_prefix(one::HIT));
                Ok(hit.map(|hit| hit.split('(').next().unwrap_or(hit).to_owned()))
            }
            Some(_) => Err(text),
            None => Err(format!("it did not end within two minutes\n{text}")),
        })
    }
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
