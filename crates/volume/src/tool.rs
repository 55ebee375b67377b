//! Runs an external tool (mkfs, fsck, blkid) with a deadline and bounded output.

use std::time::Duration;

/// What a tool did.
#[derive(Debug, Clone)]
pub struct ToolOutput {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output, at most 64 KiB of it.
    pub stdout: Vec<u8>,
    /// Its standard error, at most 64 KiB of it.
    pub stderr: Vec<u8>,
}

/// Why a tool gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// It is not there, or could not be started.
    #[error("cannot run {program}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It was killed with its whole process group after the deadline.
    #[error("{program} did not end within {deadline:?} and was killed")]
    Deadline {
        /// The program.
        program: String,
        /// The deadline.
        deadline: Duration,
    },
    /// It said no.
    #[error("{program} failed with {code:?}: {stderr}")]
    Failed {
        /// The program.
        program: String,
        /// Its exit code.
        code: Option<i32>,
        /// What it said.
        stderr: String,
    },
}

/// Runs the tool in a process group of its own, without standard input.
pub fn run_tool(program: &str, args: &[&std::ffi::OsStr], deadline: Duration) -> Result<ToolOutput, ToolError> {
    let _ = (program, args, deadline);
    todo!()
}
