//! The drivers of this node: those that register in `plugins_registry/`, and those that did once.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::registry::{Registrar, Watch};
use crate::runtime::Runtime;
use crate::table::Shared;
use crate::{CallError, CallErrorKind, Driver, NodeInfo, Outcome};

/// How long a call may take where nobody says.
///
/// # Source
/// `csiTimeout` of the kubelet.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);

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

/// The drivers of this node. Cheap to clone; the watch ends with the last clone of this and of every [`Driver`].
#[derive(Clone)]
pub struct Drivers {
    inner: Arc<Inner>,
}

impl fmt::Debug for Drivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

/// What all clones share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    deadline: Duration,
    /// Started with the watch, or by the first call.
    runtime: Mutex<Option<Arc<Runtime>>>,
}

impl Inner {
    pub(crate) fn runtime(&self) -> std::io::Result<Arc<Runtime>> {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*runtime {
            return Ok(Arc::clone(runtime));
        }
        Ok(Arc::clone(runtime.insert(Arc::new(Runtime::start()?))))
    }
}

impl Drivers {
    /// No drivers and no watch: for those who only look. Drivers may be [remembered](Self::remember) and called.
    pub fn none() -> Self {
        Self::new(DEFAULT_DEADLINE)
    }

    fn new(deadline: Duration) -> Self {
        Self { inner: Arc::new(Inner { shared: Arc::default(), deadline, runtime: Mutex::new(None) }) }
    }

    /// Starts watching. `changed` is called from the watch's own thread for each change and must not block.
    pub fn start(
        options: DriversOptions,
        changed: Box<dyn Fn(DriverChange) + Send + Sync>,
    ) -> Result<Self, StartError> {
        let DriversOptions { registry, deadline } = options;
        let drivers = Self::new(deadline);
        let watch = match Watch::new(&registry) {
            Ok(watch) => watch,
            Err(source) => return Err(StartError::Watch { path: registry, source }),
        };
        let runtime = drivers.inner.runtime().map_err(StartError::Runtime)?;
        // Begun before this returns, so that nobody takes the time before the first look for the time after it.
        let first_look = drivers.inner.shared.trying();
        let registrar = Registrar { shared: Arc::clone(&drivers.inner.shared), changed, deadline };
        runtime.spawn(watch.run(Arc::new(registrar), first_look));
        Ok(drivers)
    }

    /// Remembers a driver that was registered in an earlier life, so that its volumes can be undone as soon as its
    /// socket answers, also before it registers again. A registration replaces it, and is never replaced by it.
    pub fn remember(&self, name: &str, endpoint: &Path) {
        self.inner.shared.remember(name, endpoint);
    }

    /// The driver of this name: registered, or remembered (then it is checked by `GetPluginInfo` before its first call
    /// that it is the driver of this name). `call` is what the caller wants, for the error.
    pub fn get(&self, name: &str, call: &'static str) -> Result<Driver, CallError> {
        match self.inner.shared.link(name) {
            Some(link) => Ok(Driver::new(Arc::clone(&self.inner), link, self.inner.deadline)),
            None => Err(CallError {
                driver: name.to_owned(),
                call,
                outcome: Outcome::NotStarted,
                kind: CallErrorKind::NotRegistered,
            }),
        }
    }

    /// Whether a socket that was in the registration folder at the start, or has come since, has not been tried yet: its
    /// driver may be about to register.
    pub fn is_trying(&self) -> bool {
        self.inner.shared.is_trying()
    }

    /// All drivers that are known, by name.
    pub fn list(&self) -> Vec<DriverStatus> {
        self.inner.shared.list()
    }
}
