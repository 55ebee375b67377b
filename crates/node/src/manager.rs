//! The loop: gathers evidence, reconstructs, plans, executes, and sleeps until something changes.

use std::path::PathBuf;
use std::time::Duration;

use crate::{Actual, Desired, Plan};

/// How the manager is run.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// The node root (the kubelet's).
    pub root_dir: PathBuf,
    /// The state folder.
    pub state_dir: PathBuf,
    /// The manifest folder.
    pub manifests: PathBuf,
    /// How many operations run at once. With 1 they run one after another on one thread, in plan order.
    pub workers: usize,
    /// How long an operation may take before the manager stops waiting for it.
    pub operation_deadline: Duration,
    /// Whether records are written. Only the benchmark that measures their cost switches them off.
    pub records: bool,
}

/// Why the manager could not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The state folder cannot be used.
    #[error("cannot use the state folder")]
    Store(#[source] refloat_record::OpenError),
    /// The node root cannot be used.
    #[error("cannot use the node root")]
    Root(#[source] refloat_mount::PathError),
    /// The mount table cannot be read.
    #[error("cannot read the mount table")]
    Table(#[source] refloat_mount::TableError),
    /// The kernel or the privileges do not do.
    #[error("{what}")]
    Unable {
        /// What is missing and what to do.
        what: String,
    },
    /// The system said no.
    #[error("cannot {doing}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// What a run ended with.
#[derive(Debug)]
pub struct Outcome {
    /// The world at the end.
    pub actual: Actual,
    /// What was wanted.
    pub desired: Desired,
    /// The last plan: empty of operations if the world matches.
    pub plan: Plan,
    /// Failures that were still being retried.
    pub failures: Vec<refloat_volume::Problem>,
}

/// The node's volume manager.
#[derive(Debug)]
pub struct Manager {}

impl Manager {
    /// Opens the store (taking its lock), the node root and the watches, and reconstructs. Acts on nothing yet.
    pub fn start(options: ManagerOptions) -> Result<Self, ManagerError> {
        let _ = options;
        todo!()
    }

    /// Makes the world match, and returns when nothing is left to do, or only what failed and is waiting for its
    /// next try or what takes longer than `patience`.
    pub fn run_once(&mut self, patience: Duration) -> Result<Outcome, ManagerError> {
        let _ = patience;
        todo!()
    }

    /// Runs until `stop` becomes readable (a signal descriptor, an eventfd). Leaves every volume mounted.
    pub fn run(&mut self, stop: std::os::fd::BorrowedFd<'_>) -> Result<(), ManagerError> {
        let _ = stop;
        todo!()
    }
}
