//! The drivers of this node: those that register in `plugins_registry/`, and those that did once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{CallError, Driver, NodeInfo};

/// How to watch for drivers.
#[derive(Debug, Clone)]
pub struct DriversOptions {
    /// The folder of registration sockets (`<root>/plugins_registry`). It may not exist yet.
    pub registry: PathBuf,
    /// How long a call may take unless it says otherwise.
    pub deadline: Duration,
}

/// What happened to a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverChange {
    /// It registered, or registered again, perhaps with another socket.
    Registered {
        /// Its name.
        name: String,
        /// Its socket.
        endpoint: PathBuf,
        /// What it says of this node.
        node: NodeInfo,
    },
    /// Its registration socket is gone.
    Gone {
        /// Its name.
        name: String,
    },
    /// Something in the registration folder could not be registered; the text says what and why.
    Refused {
        /// The registration socket.
        socket: PathBuf,
        /// Why.
        why: String,
    },
}

/// A driver as [`Drivers::list`] shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverStatus {
    /// Its name.
    pub name: String,
    /// Its socket.
    pub endpoint: PathBuf,
    /// Whether it is registered now.
    pub registered: bool,
}

/// Why the drivers cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The runtime could not be started.
    #[error("cannot start the thread that talks to CSI drivers")]
    Runtime(#[source] std::io::Error),
    /// The registration folder could not be watched.
    #[error("cannot watch {} for CSI drivers", .path.display())]
    Watch {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// The drivers of this node. Cheap to clone; the watch ends with the last clone.
#[derive(Debug, Clone)]
pub struct Drivers {
    _private: (),
}

impl Drivers {
    /// No drivers and no watch: for those who only look.
    pub fn none() -> Self {
        Self { _private: () }
    }

    /// Starts watching. `changed` is called from the watch's own thread for each change and must not block.
    pub fn start(
        options: DriversOptions,
        changed: Box<dyn Fn(DriverChange) + Send + Sync>,
    ) -> Result<Self, StartError> {
        let _ = (options, changed);
        todo!()
    }

    /// Remembers a driver that was registered in an earlier life, so that its volumes can be undone as soon as its
    /// socket answers, also before it registers again. A registration replaces it.
    pub fn remember(&self, name: &str, endpoint: &Path) {
        let _ = (name, endpoint);
        todo!()
    }

    /// The driver of this name: registered, or remembered (then it is checked by `GetPluginInfo` before its first call
    /// that it is the driver of this name). `call` is what the caller wants, for the error.
    pub fn get(&self, name: &str, call: &'static str) -> Result<Driver, CallError> {
        let _ = (name, call);
        todo!()
    }

    /// All drivers that are known, by name.
    pub fn list(&self) -> Vec<DriverStatus> {
        vec![]
    }
}
