//! `cargo xtask kill-sweep`: the manager is killed at every state-changing system call, and two restarts are checked
//! after each kill: with the same pods, and with no pods at all.
//!
//! A reference run under strace counts how often the manager makes each call. Then, for each call and each number, a
//! fresh node in a fresh mount namespace: strace kills the manager as it enters that call. strace counts calls for
//! each thread by itself, so calls of a thread that another one always outruns would be missed: they are counted, and
//! said.

mod calls;
mod one;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::node;
use crate::process::{build_refloat, find_tool};
use crate::scenario;

/// Kill points that `--part` tries: with 2 at a time they take about a minute and a half.
const PART: usize = 240;

/// Arguments of `kill-sweep`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only an even sample that takes less than three minutes
    #[arg(long)]
    pub(crate) part: bool,
    /// Only this kill point: phase, call, number
    #[arg(long, value_name = "PHASE:CALL:N")]
    only: Option<String>,
    /// How many kill points are tried at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Try one kill point in this process (what the others are started for)
    #[arg(long, hide = true, requires = "binary")]
    inside: Option<String>,
    /// The binary
    #[arg(long, hide = true)]
    binary: Option<PathBuf>,
    /// The image of a file system
    #[arg(long, hide = true)]
    image: Option<PathBuf>,
    /// Count the calls of a phase in this process, into this file
    #[arg(long, hide = true)]
    trace: Option<PathBuf>,
}

impl Args {
    /// What `cargo xtask test` runs.
    pub(crate) fn of_part() -> Self {
        Self { part: true, only: None, jobs: 2, inside: None, binary: None, image: None, trace: None }
    }
}

/// Where the manager is killed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Point {
    phase: one::Phase,
    call: String,
    number: usize,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.phase.name(), self.call, self.number)
    }
}

impl std::str::FromStr for Point {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(':');
        let (Some(phase), Some(call), Some(number)) = (parts.next(), parts.next(), parts.next()) else {
            bail!("{text:?} is not PHASE:CALL:N")
        };
        let number = number.parse().context("the number is none")?;
        Ok(Self { phase: one::Phase::by_name(phase)?, call: call.into(), number })
    }
}

/// What a sweep ended with.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Why it did not run, if it did not.
    pub(crate) skipped: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let (Some(inside), Some(binary)) = (&args.inside, &args.binary) {
        return one::run(inside, binary, args.image.as_deref(), args.trace.as_deref());
    }
    let summary = sweep(args)?;
    if let Some(why) = summary.skipped {
        bail!("the kill sweep cannot run: {why}");
    }
    Ok(if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sweeps.
pub(crate) fn sweep(args: &Args) -> Result<Summary> {
    let skipped = |why: &str| Ok(Summary { skipped: Some(why.into()), ..Summary::default() });
    if find_tool("strace").is_none() {
        return skipped("there is no strace");
    }
    let binary = build_refloat(false)?;
    let temp = tempfile::tempdir().context("cannot make a temporary folder")?;
    let image = temp.path().join("image");
    let image = scenario::make_image(&image)?.then_some(image);
    if image.is_none() {
        println!("kill sweep: without disks (they need root, mkfs.ext4 and blkid)");
    }
    let start = Instant::now();
    let tools = Tools { binary, image, temp: temp.path().to_owned() };
    let mut points = Vec::new();
    if let Some(only) = &args.only {
        points.push(only.parse()?);
    } else {
        for phase in one::Phase::ALL {
            points.extend(tools.count(phase)?);
        }
    }
    let all = points.len();
    if args.part && all > PART {
        points = (0..PART).map(|i| points[i * all / PART].clone()).collect();
    }
    println!("kill sweep: {} of {all} kill points, {} at once", points.len(), args.jobs);
    let summary = tools.try_all(points, args.jobs.max(1))?;
    println!(
        "kill sweep: {} kill points survived, {} failed, in {} s",
        summary.passed,
        summary.failed,
        start.elapsed().as_secs()
    );
    Ok(summary)
}

/// What every run needs.
struct Tools {
    binary: PathBuf,
    image: Option<PathBuf>,
    temp: PathBuf,
}

impl Tools {
    fn child(&self, inside: &str) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args(["kill-sweep", "--inside", inside, "--binary"]).arg(&self.binary);
        if let Some(image) = &self.image {
            command.arg("--image").arg(image);
        }
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// The kill points of a phase, from a reference run.
    fn count(&self, phase: one::Phase) -> Result<Vec<Point>> {
        let trace = self.temp.join(format!("trace-{}", phase.name()));
        let output =
            self.child(phase.name())?.arg("--trace").arg(&trace).output().context("cannot run the reference")?;
        if !output.status.success() {
            bail!("the reference run of {} failed: {}", phase.name(), String::from_utf8_lossy(&output.stderr));
        }
        let text = std::fs::read(&trace).context("cannot read the reference run's trace")?;
        let counted = calls::count(&String::from_utf8_lossy(&text));
        println!(
            "kill sweep: {}: {} state-changing calls, {} of them in other threads behind the first",
            phase.name(),
            counted.points.len() + counted.outrun,
            counted.outrun
        );
        Ok(counted.points.into_iter().map(|(call, number)| Point { phase, call, number }).collect())
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
                    Ok(()) => summary.passed += 1,
                    Err(why) => {
                        summary.failed += 1;
                        println!(
                            "FAILED: killed at call {} number {} during {}\n{}\n  again: cargo xtask kill-sweep --only {point}",
                            point.call,
                            point.number,
                            point.phase.name(),
                            why.trim_end()
                        );
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

    /// Tries one point: what was wrong, if something was.
    fn try_one(&self, point: &Point) -> Result<std::result::Result<(), String>> {
        let mut child = self.child(&point.to_string())?;
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
            Some(status) if status.success() => Ok(()),
            Some(_) => Err(text),
            None => Err(format!("it did not end within two minutes\n{text}")),
        })
    }
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
