//! One kill point: a node in a namespace of its own, the kill, and the checks after it.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use super::point::Point;
use super::scenario::{self, Scenario};
use super::tracer::{self, Kill, Trace};
use crate::node;

/// In front of what was hit, on standard output.
pub(super) const HIT: &str = "killed at ";

/// Counts the calls of a phase in this process, and prints each on a line: the thread's number and the call's name.
pub(super) fn count(phase: &str, binary: &Path, shared: &Path) -> Result<ExitCode> {
    let mut scenario = stage(phase, binary, shared)?;
    scenario.prepare(phase)?;
    let trace = trace(&*scenario, None)?;
    ensure!(trace.status.success(), "the reference run ended with {}", trace.status);
    for (thread, name) in trace.calls {
        println!("{thread} {name}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs one kill point in this process.
pub(super) fn run(point: &Point, binary: &Path, shared: &Path) -> Result<ExitCode> {
    let mut scenario = stage(&point.phase, binary, shared)?;
    scenario.prepare(&point.phase)?;
    let other = match &point.other {
        None => None,
        Some(name) => Some(scenario.other(name).with_context(|| format!("there is no {name} to kill"))?),
    };
    let trace = trace(&*scenario, Some(&Kill { number: point.number, moment: point.moment, other }))?;
    match &trace.hit {
        Some(hit) => println!("{HIT}{hit}"),
        None => println!("not reached: {point}"),
    }
    match &point.other {
        Some(_) => scenario.after_other(point, trace.status)?,
        // In the time between the stop and the kill another thread can end the process by itself, but only in one way.
        None if trace.hit.is_none() || trace.status.signal() != Some(9) => {
            ensure!(trace.status.success(), "the manager was not killed, and ended with {}", trace.status);
        }
        None => {}
    }
    scenario.check_restart(&point.phase)?;
    scenario.check_no_pods()?;
    Ok(ExitCode::SUCCESS)
}

fn stage(phase: &str, binary: &Path, shared: &Path) -> Result<Box<dyn Scenario>> {
    refloat_mount::enter_private_namespace().context("there is no mount namespace to be had")?;
    node::finish_on_signals()?;
    (scenario::of_phase(phase)?.new)(binary, shared)
}

fn trace(scenario: &dyn Scenario, kill: Option<&Kill>) -> Result<Trace> {
    let out =
        std::fs::File::create(scenario.node().folder().join("out")).context("cannot write what the manager prints")?;
    let mut command = scenario.command()?;
    command.stdout(out);
    tracer::run(&mut command, scenario.socket_calls(), kill)
}
