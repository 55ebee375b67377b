//! How a call to a driver ended, when it did not end well.

use std::path::PathBuf;
use std::time::Duration;

/// What may be said of a call that failed.
///
/// # Source
/// `isFinalError` of the kubelet's CSI client, and the error tables of the CSI specification: `CANCELLED`,
/// `DEADLINE_EXCEEDED`, `UNAVAILABLE`, `RESOURCE_EXHAUSTED` and `ABORTED` leave open whether the driver is still at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The driver never saw the call.
    NotStarted,
    /// The driver refused it: nothing of it goes on.
    Final,
    /// It may have happened, may be going on, or may have half happened.
    Uncertain,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallErrorKind {
    /// No driver of this name is registered, and no socket of it is remembered.
    #[error("no driver of this name is registered")]
    NotRegistered,
    /// Its socket does not accept connections.
    #[error("its socket {} does not answer: {why}", .endpoint.display())]
    NotConnected {
        /// The socket.
        endpoint: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Something else answers at the socket.
    #[error("at its socket {} answers the driver {found:?}", .endpoint.display())]
    OtherDriver {
        /// The socket.
        endpoint: PathBuf,
        /// The name that `GetPluginInfo` gave.
        found: String,
    },
    /// It did not answer in time.
    #[error("it did not answer within {} s", .0.as_secs())]
    Deadline(Duration),
    /// It answered with a status. The text is the driver's own, shortened.
    #[error("it answered {code}: {message}")]
    Status {
        /// The gRPC code by name, such as `NOT_FOUND`.
        code: &'static str,
        /// What it said.
        message: String,
    },
    /// The connection broke during the call.
    #[error("the connection broke during the call: {0}")]
    Broken(String),
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} of the CSI driver {driver} failed")]
pub struct CallError {
    /// The driver.
    pub driver: String,
    /// The call, such as `NodeStageVolume`.
    pub call: &'static str,
    /// What is known of what it did.
    pub outcome: Outcome,
    /// Why.
    #[source]
    pub kind: CallErrorKind,
}
