//! The table of drivers: who is registered, and who is only remembered.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::link::Link;
use crate::{DriverStatus, NodeInfo};

/// The table, and a wake-up for who waits for a change of it.
#[derive(Debug)]
pub(crate) struct Shared {
    drivers: Mutex<BTreeMap<String, Known>>,
    changes: watch::Sender<()>,
    /// How many first tries are not over.
    trying: AtomicUsize,
}

/// A first look at the registration folder, or a first try of a socket in it; over when dropped.
#[derive(Debug)]
pub(crate) struct Trying(Arc<Shared>);

impl Drop for Trying {
    fn drop(&mut self) {
        self.0.trying.fetch_sub(1, Ordering::Release);
    }
}

/// A driver.
#[derive(Debug)]
struct Known {
    link: Arc<Link>,
    registration: Option<Registration>,
}

/// A registration that holds.
#[derive(Debug)]
struct Registration {
    /// Which registration socket it came from. Grows: a newer socket has a higher number.
    number: u64,
    node: NodeInfo,
    /// Whether the driver knows, and [`crate::DriverChange::Registered`] was told.
    complete: bool,
}

impl Default for Shared {
    fn default() -> Self {
        Self { drivers: Mutex::default(), changes: watch::Sender::new(()), trying: AtomicUsize::new(0) }
    }
}

impl Shared {
    fn drivers(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        // Nothing that panics runs while it is held.
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn link(&self, name: &str) -> Option<Arc<Link>> {
        self.drivers().get(name).map(|known| Arc::clone(&known.link))
    }

    /// What the driver said of this node, if this link is that of its registration.
    pub(crate) fn registered_node(&self, link: &Arc<Link>) -> Option<NodeInfo> {
        let drivers = self.drivers();
        let known = drivers.get(link.name()).filter(|known| Arc::ptr_eq(&known.link, link))?;
        known.registration.as_ref().map(|registration| registration.node.clone())
    }

    pub(crate) fn list(&self) -> Vec<DriverStatus> {
        let drivers = self.drivers();
        let status = |(name, known): (&String, &Known)| DriverStatus {
            name: name.clone(),
            endpoint: known.link.endpoint().to_owned(),
            registered: known.registration.is_some(),
        };
        drivers.iter().map(status).collect()
    }

    pub(crate) fn remember(&self, name: &str, endpoint: &Path) {
        let mut drivers = self.drivers();
        let keep = |known: &Known| known.registration.is_some() || known.link.endpoint() == endpoint;
        if !drivers.get(name).is_some_and(keep) {
            let link = Arc::new(Link::new(name, endpoint));
            drivers.insert(name.to_owned(), Known { link, registration: None });
        }
    }

    /// Which registration the driver of this name has now.
    pub(crate) fn holder(&self, name: &str) -> Option<u64> {
        self.drivers().get(name)?.registration.as_ref().map(|registration| registration.number)
    }

    /// Registers a driver, in place of who is there with an older registration. False if a newer one is there.
    pub(crate) fn register(&self, number: u64, link: Arc<Link>, node: NodeInfo) -> bool {
        let mut drivers = self.drivers();
        let name = link.name().to_owned();
        let held = drivers.get(&name).and_then(|known| known.registration.as_ref());
        if held.is_some_and(|held| held.number > number) {
            return false;
        }
        let registration = Registration { number, node, complete: false };
        drivers.insert(name, Known { link, registration: Some(registration) });
        drop(drivers);
        self.changes.send_replace(());
        true
    }

    /// The driver knows that it is registered.
    pub(crate) fn complete(&self, number: u64) {
        for known in self.drivers().values_mut() {
            if let Some(registration) = known.registration.as_mut().filter(|r| r.number == number) {
                registration.complete = true;
            }
        }
    }

    /// Ends a registration; its socket stays remembered. The driver's name, if it had been complete.
    pub(crate) fn unregister(&self, number: u64) -> Option<String> {
        let mut gone = None;
        for (name, known) in self.drivers().iter_mut() {
            if let Some(registration) = known.registration.take_if(|r| r.number == number) {
                gone = registration.complete.then(|| name.clone());
            }
        }
        self.changes.send_replace(());
        gone
    }

    /// Begins a first try.
    pub(crate) fn trying(self: &Arc<Self>) -> Trying {
        self.trying.fetch_add(1, Ordering::Relaxed);
        Trying(Arc::clone(self))
    }

    /// Whether a first try is not over.
    pub(crate) fn is_trying(&self) -> bool {
        self.trying.load(Ordering::Acquire) > 0
    }

    /// A wake-up for each change from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}
