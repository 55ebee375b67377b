//! `cargo xtask bench csi`: where the time of CSI volumes goes when the driver takes none, whether one that hangs delays
//! another's, and how fast many are reconstructed. Prints the results and writes them to their part of `docs/performance.md`.

mod beside;
mod node;
mod time;

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{How, Programs, machine, reconstruct, records};
use crate::process::workspace;
use node::CsiNode;
use time::{Adder, Sum, Sums};

/// The heading of this part.
const HEADING: &str = "## CSI volumes";

/// Arguments of `bench csi`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many volumes are set up and torn down
    #[arg(long, default_value_t = 500)]
    volumes: usize,
    /// How many volumes are reconstructed
    #[arg(long, default_value_t = 10_000)]
    many: usize,
    #[command(flatten)]
    how: How,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if let (Some(what), Some(binary)) = (&args.how.inside, &args.how.binary) {
        println!("{}", inside(what, binary, args)?);
        return Ok(ExitCode::SUCCESS);
    }
    let programs = Programs::build()?;
    let (volumes, many) = (args.volumes.to_string(), args.many.to_string());
    let measure = |what: &str| {
        eprintln!("csi {what}");
        args.how.measure(&programs, what, &["csi", "--volumes", &volumes, "--many", &many])
    };
    let runs: Vec<_> = RUNS.iter().map(|run| measure(run.name)).collect::<Result<_>>()?;
    let mut text =
        format!("{HEADING}\n\nWritten by `cargo xtask bench csi` (release build). {}\n\n", machine::machine());
    report(&mut text, args.volumes, &runs);
    beside::report(&mut text, args.volumes, &measure("beside")?);
    reconstruct::report_csi(&mut text, &measure("reconstruct")?);
    println!("{text}");
    if !args.how.dry {
        let path = workspace().join("docs/performance.md");
        let old = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        std::fs::write(&path, replaced(&old, &text)).with_context(|| format!("cannot write {}", path.display()))?;
        println!("written to {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The part of a report that this command writes, to be kept by who writes the rest.
pub(super) fn part_of(report: &str) -> &str {
    let Some(start) = report.find(HEADING) else { return "" };
    let rest = &report[start + HEADING.len()..];
    let end = rest.find("\n## ").map_or(report.len(), |end| start + HEADING.len() + end + 1);
    &report[start..end]
}

fn replaced(report: &str, part: &str) -> String {
    match part_of(report) {
        "" => format!("{}\n\n{part}", report.trim_end()),
        old => report.replace(old, part),
    }
}

/// A way to set up and tear down.
struct Run {
    name: &'static str,
    workers: usize,
    on_disk: bool,
    /// What the report calls it.
    title: &'static str,
}

const RUNS: [Run; 4] = [
    Run { name: "at-once", workers: 32, on_disk: false, title: "32 at once, everything in memory" },
    Run { name: "at-once-disk", workers: 32, on_disk: true, title: "32 at once, node root and records on the disk" },
    Run { name: "one", workers: 1, on_disk: false, title: "one after another, everything in memory" },
    Run { name: "one-disk", workers: 1, on_disk: true, title: "one after another, node root and records on the disk" },
];

fn inside(what: &str, binary: &Path, args: &Args) -> Result<Value> {
    refloat_mount::enter_private_namespace().context("there is no mount namespace to be had")?;
    crate::node::finish_on_signals()?;
    if what == "reconstruct" {
        let csi = CsiNode::new(binary, None)?;
        csi.want(args.many, 5)?;
        csi.settle(32, args.many)?;
        csi.mount_all()?;
        // What is measured is as it is taken to be: all there with records, all known from the files without.
        let summary = |state: &Path| -> Result<Value> {
            let mut command = Command::new(binary);
            command.args(["scan", "-o", "json", "--root-dir"]).arg(&csi.root).arg("--state-dir").arg(state);
            let output = command.stdin(Stdio::null()).output().context("cannot run scan")?;
            let scan: Value = serde_json::from_slice(&output.stdout).context("no JSON")?;
            Ok(scan["summary"].clone())
        };
        let empty = csi.node.folder().join("no-records");
        std::fs::create_dir(&empty)?;
        let (with, without) = (summary(&csi.state)?, summary(&empty)?);
        ensure!(with["state"]["Mounted"] == args.many && with["reconstruction"]["Full"] == args.many, "it is {with}");
        ensure!(without["reconstruction"]["Partial"] == args.many, "without records it is {without}");
        return reconstruct::measure_tree(&csi.root, &csi.state, &empty, args.many, args.how.rounds);
    }
    if what == "beside" {
        return beside::measure(binary, args.volumes, args.how.rounds);
    }
    let run = RUNS.iter().find(|run| run.name == what).with_context(|| format!("what is {what:?}?"))?;
    let disk = run.on_disk.then(records::on_disk).transpose()?;
    let csi = CsiNode::new(binary, disk.as_ref().map(tempfile::TempDir::path))?;
    let adder = Adder::install()?;
    let mut phases: [Vec<(f64, Measured)>; 2] = Default::default();
    for _ in 0..args.how.rounds.max(1) {
        csi.want(args.volumes, 1)?;
        let up = measured(&adder, || csi.settle(run.workers, args.volumes))?;
        csi.want_nothing()?;
        let down = measured(&adder, || csi.settle(run.workers, 0))?;
        phases[0].push((up.elapsed.as_secs_f64(), up));
        phases[1].push((down.elapsed.as_secs_f64(), down));
    }
    let [up, down] = phases.map(|mut rounds| {
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let middle = rounds.len() / 2;
        rounds.swap_remove(middle).1.json()
    });
    Ok(json!({ "up": up, "down": down }))
}

/// What one phase took.
struct Measured {
    elapsed: Duration,
    sums: Sums,
    /// The processor's time of the whole process: outside the kernel, and in it.
    process: (Duration, Duration),
}

fn measured(adder: &Adder, phase: impl FnOnce() -> Result<Duration>) -> Result<Measured> {
    adder.take();
    let before = time::process_time()?;
    let elapsed = phase()?;
    let after = time::process_time()?;
    Ok(Measured {
        elapsed,
        sums: adder.take(),
        process: (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1)),
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

impl Measured {
    fn json(&self) -> Value {
        let of = |name: &str| self.sums.get(name).copied().unwrap_or_default();
        let names = ["driver", "record", "table", "operation"];
        let total = names.iter().fold(Sum::default(), |all, name| {
            let one = of(name);
            Sum { count: 0, wall: all.wall + one.wall, own: all.own + one.own, waiting: all.waiting + one.waiting }
        });
        let in_calls = |sum: Sum| ms(sum.wall.saturating_sub(sum.own).saturating_sub(sum.waiting));
        json!({
            "elapsed": ms(self.elapsed),
            "operations": of("operation").count,
            "driverCalls": of("driver").count,
            "total": ms(total.wall),
            "driver": in_calls(of("driver")),
            "record": in_calls(of("record")),
            "kernel": in_calls(of("table")) + in_calls(of("operation")),
            "own": ms(total.own),
            "waiting": ms(total.waiting),
            "processOwn": ms(self.process.0),
            "processKernel": ms(self.process.1),
        })
    }
}

/// The part about setting up and tearing down.
fn report(text: &mut String, volumes: usize, runs: &[Value]) {
    let _ = writeln!(
        text,
        "{volumes} staged volumes, each of its own pod, set up and torn down, by a driver that answers OK and does nothing. The \
         time of all operations, added up over the workers, in ms; in brackets the part of it. *Driver*: waiting for \
         the driver's answers. *Kernel*: system calls, and waiting in them. *Records*: the same for the records, and waiting for \
         the group that is written together. *Own*: the processor's time outside the kernel. *No core*: its core was taken \
         for other workers, the driver, or the rest, and it waited for one; who waits for a core to come back from a call is \
         still in that call. *Processor*: of the whole process, outside the \
         kernel and in it, with the thread that talks gRPC and the one that plans.\n"
    );
    text.push_str("| | elapsed | operations | driver | kernel | records | own | no core | in calls | processor |\n");
    text.push_str("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (run, value) in RUNS.iter().zip(runs) {
        for (phase, name) in [("up", "up"), ("down", "down")] {
            let number = |field: &str| value[phase][field].as_f64().unwrap_or(f64::NAN);
            let total = number("total");
            let part = |field: &str| format!("{:.0} ({:.0} %)", number(field), 100.0 * number(field) / total);
            let calls = number("driver") + number("kernel") + number("record");
            let _ = writeln!(
                text,
                "| {name}, {} | {:.0} | {total:.0} | {} | {} | {} | {} | {} | {:.0} % | {:.0} + {:.0} |",
                run.title,
                number("elapsed"),
                part("driver"),
                part("kernel"),
                part("record"),
                part("own"),
                part("waiting"),
                100.0 * calls / total,
                number("processOwn"),
                number("processKernel"),
            );
        }
    }
    text.push_str("\nGoal: with 32 at once, at least 90 % in calls.\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_is_found_and_replaced() {
        let with = |part: &str| format!("# A\n\nx\n\n{part}## Z\n\nz\n");
        let old = format!("{HEADING}\n\nold\n\n### In it\n\n");
        assert_eq!(part_of(&with(&old)), old);
        assert_eq!(part_of(&with("")), "");
        let new = format!("{HEADING}\n\nnew\n\n");
        assert_eq!(replaced(&with(&old), &new), with(&new));
        assert_eq!(replaced("# A\n", &new), format!("# A\n\n{new}"));
    }
}
