//! One kill point: a node in a namespace of its own, the kill, and the checks after it.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use super::{Point, calls};
use crate::node;
use crate::scenario::{Data, Scenario};

/// What the manager is doing when it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The first start ever, with the pods there.
    First,
    /// The pods come to a node that has a state folder.
    SetUp,
    /// Their configMap and secret change.
    Update,
    /// Some pods go: one of two users of a device, and the only user of another.
    TearDown,
    /// All pods go.
    End,
}

impl Phase {
    pub(super) const ALL: [Self; 5] = [Self::First, Self::SetUp, Self::Update, Self::TearDown, Self::End];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::SetUp => "set-up",
            Self::Update => "update",
            Self::TearDown => "tear-down",
            Self::End => "end",
        }
    }

    pub(super) fn by_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name).with_context(|| format!("there is no phase {name:?}"))
    }

    /// Brings the node to where the phase starts.
    fn prepare(self, scenario: &Scenario) -> Result<()> {
        match self {
            Self::First => return Ok(()),
            Self::SetUp => {
                // A start without pods, so that the calls which make the state folder do not outrun the worker's.
                scenario.node.delete_all()?;
                scenario.node.once()?.expect(0).context("the start before the pods")?;
                return scenario.apply_all();
            }
            Self::Update | Self::TearDown | Self::End => {}
        }
        scenario.node.once()?.expect(0).context("the set-up before the kill")?;
        scenario.write_data()?;
        match self {
            Self::First | Self::SetUp => Ok(()),
            Self::Update => scenario.update(),
            Self::TearDown => scenario.remove_some(),
            Self::End => scenario.node.delete_all(),
        }
    }

    /// Starts again with the same pods, and checks that all is there.
    fn check_restart(self, scenario: &Scenario) -> Result<()> {
        if self == Self::End {
            // "The same pods" are none here, which is checked afterwards. Before that they all come back.
            scenario.apply_all()?;
        }
        scenario.node.once()?.expect(0).context("the restart with the same pods")?;
        match self {
            Self::First | Self::SetUp => scenario.check_all_there("one", false, Data::None),
            Self::Update => scenario.check_all_there("two", false, Data::All),
            Self::TearDown => scenario.check_all_there("one", true, Data::All),
            Self::End => scenario.check_all_there("one", false, Data::Persistent),
        }
    }
}

/// Runs one kill point (or a reference run, with a file for its trace) in this process.
pub(super) fn run(inside: &str, binary: &Path, image: Option<&Path>, trace: Option<&Path>) -> Result<ExitCode> {
    refloat_mount::enter_private_namespace().context("there is no mount namespace to be had")?;
    node::finish_on_signals()?;
    let scenario = Scenario::new(binary, image)?;
    if let Some(trace) = trace {
        let phase = Phase::by_name(inside)?;
        phase.prepare(&scenario)?;
        let list = format!("trace={}", calls::CALLS.join(","));
        let status = strace(&scenario, trace, &list, None)?;
        ensure!(status.success(), "the reference run ended with {status}");
        return Ok(ExitCode::SUCCESS);
    }
    let point: Point = inside.parse()?;
    point.phase.prepare(&scenario)?;
    let output = scenario.node.folder().join("trace");
    let Point { call, number, .. } = &point;
    let inject = format!("inject={call}:signal=KILL:when={number}");
    let status = strace(&scenario, &output, &format!("trace={call}"), Some(&inject))?;
    if status.signal() != Some(9) && status.code() != Some(137) {
        // Another order of events can make it end before; then the two checks hold all the more.
        if !status.success() {
            bail!("the manager was not killed, and ended with {status}");
        }
        println!("not reached: {point}");
    }
    point.phase.check_restart(&scenario)?;
    scenario.node.delete_all()?;
    scenario.node.once()?.expect(0).context("the restart without pods")?;
    scenario.check_nothing_left()?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the manager once under strace.
fn strace(scenario: &Scenario, output: &Path, trace: &str, inject: Option<&str>) -> Result<std::process::ExitStatus> {
    let mut command = Command::new("strace");
    // `-b execve` lets go of the tools that the manager starts: it is the manager that is to be killed.
    command.args(["-f", "-qq", "-b", "execve", "-s", "0", "-o"]).arg(output).arg("-e").arg(trace);
    if let Some(inject) = inject {
        command.args(["-e", inject]);
    }
    let pods = scenario.node.pods();
    let pods = pods.to_str().context("a folder's name is not UTF-8")?;
    command.arg("--").arg(scenario.node.binary());
    scenario.node.configure(&mut command, &["node", "--once", "-o", "json", "--workers", "1", "--manifests", pods]);
    let out = std::fs::File::create(scenario.node.folder().join("out"))?;
    command.stdout(out).status().context("cannot run strace")
}
