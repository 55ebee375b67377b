//! Whether a driver that hangs delays the volumes of another: volumes set up and torn down by a running manager beside another
//! driver, which answers, or has as many calls under way as it may have, none of which it answers.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use refloat_test_csi_driver::{Action, Event, Fault, Options, Process, Program};
use serde_json::{Value, json};

use super::node::CsiNode;
use crate::process::THIS_PROGRAM;

/// As in the other measurements.
const WORKERS: usize = 32;
/// Volumes of another driver.
const OTHERS: usize = 2 * WORKERS;
const OTHER: &str = "other.test";
const PATIENCE: Duration = Duration::from_secs(300);

/// Counts how many calls of a name ended, as the driver's journal grows.
struct Ended {
    journal: File,
    rest: Vec<u8>,
}

impl Ended {
    fn of(driver: &Process) -> Result<Self> {
        let path = driver.options().journal.as_ref().context("a driver without a journal")?;
        Ok(Self { journal: File::open(path)?, rest: vec![] })
    }

    /// Waits for so many more.
    fn wait_for(&mut self, call: &str, mut missing: usize) -> Result<()> {
        let call = format!("\"call\":\"{call}\"");
        let end = Instant::now() + PATIENCE;
        while missing > 0 {
            ensure!(Instant::now() < end, "waited in vain for {missing} more {call}");
            self.journal.read_to_end(&mut self.rest)?;
            let whole = self.rest.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            let lines = String::from_utf8_lossy(&self.rest[..whole]);
            let ended = lines.lines().filter(|line| line.contains(&call) && line.contains("\"end\":\"Ok\"")).count();
            missing = missing.saturating_sub(ended);
            self.rest.drain(..whole);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// How long the volumes took, up and down.
fn once(binary: &Path, volumes: usize, hangs: bool) -> Result<[f64; 2]> {
    // The journal is in memory, as all of the node is.
    let csi = CsiNode::with(binary, None, |options| {
        options.journal = Some(options.state.with_file_name("journal"));
    })?;
    let mut options = Options::new(OTHER, csi.node.folder().join("other"));
    options.noop = true;
    let mut other = Process::start(Program::At(THIS_PROGRAM.into()), options).context("cannot start a driver")?;
    if hangs {
        other.faults().order("NodeStageVolume", &Fault::always(Action::Hang))?;
    }
    csi.remember(&other)?;
    csi.want_of(OTHER, "other-", OTHERS, 1)?;
    let mut manager = csi.manager(WORKERS)?;
    let (stop, stopped) = UnixStream::pair()?;
    let running = std::thread::spawn(move || manager.run(stopped.as_fd()));
    let count = |call: &str, begun: bool| -> Result<usize> {
        let journal = other.journal()?;
        Ok(journal.iter().filter(|e| e.call == call && (e.event == Event::Begin) == begun).count())
    };
    let end = Instant::now() + PATIENCE;
    while if hangs { count("NodeStageVolume", true)? < WORKERS } else { count("NodePublishVolume", false)? < OTHERS } {
        ensure!(Instant::now() < end, "the other driver is not asked");
        std::thread::sleep(Duration::from_millis(5));
    }
    // At rest.
    std::thread::sleep(Duration::from_millis(300));
    let mut ended = Ended::of(&csi.driver)?;
    let up = Instant::now();
    csi.want(volumes, 1)?;
    ended.wait_for("NodePublishVolume", volumes)?;
    let up = up.elapsed();
    std::thread::sleep(Duration::from_millis(300));
    for number in 0..volumes {
        csi.node.remove(&format!("pod-{number}.yaml"))?;
    }
    // Not counted is the second in which the folder must have been left alone.
    while csi.driver.journal()?.iter().all(|e| e.call != "NodeUnpublishVolume") {
        ensure!(Instant::now() < end, "the pods' volumes are not torn down");
        std::thread::sleep(Duration::from_millis(5));
    }
    let down = Instant::now();
    ended.wait_for("NodeUnstageVolume", volumes)?;
    let down = down.elapsed();
    if hangs {
        let (begun, ended) = (count("NodeStageVolume", true)?, count("NodeStageVolume", false)?);
        ensure!((begun, ended) == (WORKERS, 0), "of the driver that hangs {begun} calls began and {ended} ended");
        // What waits for it ends with it.
        other.kill()?;
    }
    drop(stop);
    running.join().map_err(|_| anyhow::anyhow!("the manager panicked"))??;
    Ok([up, down].map(|time| time.as_secs_f64() * 1000.0))
}

/// Measures both, in turns.
pub(super) fn measure(binary: &Path, volumes: usize, rounds: usize) -> Result<Value> {
    let mut all: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..rounds.max(1) {
        for (times, hangs) in all.iter_mut().zip([false, true]) {
            for (times, time) in times.iter_mut().zip(once(binary, volumes, hangs)?) {
                times.push(time);
            }
        }
    }
    let told = all.map(|both| {
        both.map(|mut times| {
            times.sort_by(f64::total_cmp);
            json!({ "median": times[times.len() / 2], "least": times[0], "most": times[times.len() - 1] })
        })
    });
    Ok(json!({ "answers": told[0], "hangs": told[1] }))
}

/// The part of the report.
pub(super) fn report(text: &mut String, volumes: usize, measured: &Value) {
    let _ = writeln!(
        text,
        "### Beside a driver that hangs\n\n{volumes} volumes of one driver, from the first manifest to the driver's last answer, by a \
         manager that runs with {WORKERS} workers, on a node with {OTHERS} volumes of another driver: they are set up, or \
         {WORKERS} calls for them are under way that the other driver never answers, and the rest waits. In ms: the median, and the \
         least and the most of all rounds.\n",
    );
    text.push_str("| | the other driver answers | the other driver hangs | ratio |\n| --- | --- | --- | --- |\n");
    for (phase, name) in ["up", "down"].into_iter().enumerate() {
        let number = |who: &str, field: &str| measured[who][phase][field].as_f64().unwrap_or(f64::NAN);
        let shown = |who: &str| {
            format!("{:.0} ({:.0} to {:.0})", number(who, "median"), number(who, "least"), number(who, "most"))
        };
        let ratio = number("hangs", "median") / number("answers", "median");
        let _ = writeln!(text, "| {name} | {} | {} | {ratio:.2} |", shown("answers"), shown("hangs"));
    }
    text.push_str("\nGoal: no difference that can be told from that of two rounds.\n\n");
}
