//! What a scenario of the kill sweep is: a node, what the manager does on it, and what must hold after a kill.

use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;

use super::plugins;

/// A scenario on one node, in the mount namespace of this process.
pub(super) trait Scenario {
    /// Brings the node to where the phase starts.
    fn prepare(&mut self, phase: &str) -> Result<()>;

    /// The manager's run that is killed, made by [`tracer::command`](super::tracer::command). It ends by itself.
    fn command(&self) -> Result<Command>;

    /// A folder for what the run prints.
    fn folder(&self) -> &Path;

    /// Names of the calls that count too, if they are made on a socket: what the manager says to others and hears.
    fn socket_calls(&self) -> &'static [&'static str] {
        &[]
    }

    /// Another process to kill, by its name in [`Kind::others`].
    fn other(&self, name: &str) -> Option<Pid> {
        let _ = name;
        None
    }

    /// Checks how the run ended in which another process was killed, and starts that again.
    fn after_other(&mut self, name: &str, status: ExitStatus) -> Result<()> {
        ensure!(matches!(status.code(), Some(0 | 1 | 3)), "{name} was killed, and the manager ended with {status}");
        Ok(())
    }

    /// Starts again with the same pods, and checks that everything is there, once, with its data.
    fn check_restart(&mut self, phase: &str) -> Result<()>;

    /// Starts again without pods, and checks that nothing is left.
    fn check_no_pods(&mut self) -> Result<()>;
}

/// What is known of a scenario before there is a node.
pub(super) struct Kind {
    /// What the manager does when it is killed. No two scenarios have a phase of the same name.
    pub(super) phases: &'static [&'static str],
    /// The processes that are killed besides the manager.
    pub(super) others: &'static [&'static str],
    /// Makes what all nodes share, in this folder; it is called once.
    pub(super) shared: fn(&Path) -> Result<()>,
    /// Makes a node, with the binary and the folder of what is shared.
    pub(super) new: fn(&Path, &Path) -> Result<Box<dyn Scenario>>,
}

/// Every scenario.
pub(super) const ALL: &[Kind] = &[plugins::KIND];

/// The scenario that has a phase.
pub(super) fn of_phase(phase: &str) -> Result<&'static Kind> {
    ALL.iter().find(|kind| kind.phases.contains(&phase)).with_context(|| format!("there is no phase {phase:?}"))
}
