//! The CSI drivers of the node: what the manager hears of them, and what it writes down.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use refloat_csi::{DriverChange, Drivers, DriversOptions};
use refloat_record::{Driver, DriverName, PluginName, Record, RecordKey};
use refloat_volume::{Problem, Recorded, layout};
use rustix::event::EventfdFlags;

use super::{Manager, records, retry};
use crate::execute::Change;

/// How long who works once waits for drivers that are about to register, and how often it looks whether they have.
pub(crate) const DRIVERS_PATIENCE: Duration = Duration::from_secs(5);
pub(crate) const DRIVERS_STEP: Duration = Duration::from_millis(50);

/// The folder of registration sockets, below the node root.
///
/// # Source
/// `DefaultKubeletPluginsRegistrationDirName` of the kubelet.
pub(crate) const REGISTRY: &str = "plugins_registry";

/// How long a driver may take for one call, as a part of the operation's deadline: most operations make one call that takes
/// its time, and must then have time to say what happened.
const CALL_PART: f64 = 0.8;

/// How long a driver must have been missing before it is forgotten, if nothing on this node is its own any more. Long enough
/// for a node that was drained and switched off over the weekend to find its drivers by their sockets.
const FORGET_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_hours(7 * 24);

/// What was heard since the manager last listened. Written by the watch's own thread.
#[derive(Debug)]
pub(crate) struct DriverNews {
    changes: Mutex<Vec<DriverChange>>,
    /// Becomes readable when there is something.
    wake: OwnedFd,
}

impl DriverNews {
    fn push(&self, change: DriverChange) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        // The counter cannot overflow: it is read whenever it is not zero.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<DriverChange> {
        let mut counter = [0; 8];
        // Not readable means that there is nothing, which the list tells as well.
        let _ = rustix::io::read(&self.wake, &mut counter);
        std::mem::take(&mut self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for DriverNews {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Starts to watch for drivers. A node where that cannot be done has its other volumes all the same.
pub(crate) fn watch(root: &Path, operation_deadline: Duration) -> std::io::Result<(Drivers, Arc<DriverNews>)> {
    let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let news = Arc::new(DriverNews { changes: Mutex::default(), wake });
    let options = DriversOptions { registry: root.join(REGISTRY), deadline: operation_deadline.mul_f64(CALL_PART) };
    let heard = Arc::clone(&news);
    let drivers = Drivers::start(options, Box::new(move |change| heard.push(change))).unwrap_or_else(|error| {
        tracing::error!(
            code = "DriversNotWatched",
            error = %refloat_volume::error_chain(&error),
            "no CSI driver can be used until the manager is started again"
        );
        Drivers::none()
    });
    Ok((drivers, news))
}

/// Now, as records have it.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Manager {
    /// Remembers the drivers of the records, and writes down which of them cannot be reached: since now, as far as is known.
    pub(super) fn remember_drivers(&mut self) {
        let mut gone = vec![];
        for record in &self.evidence.records.records {
            let Record::Driver(driver) = record else { continue };
            self.executor.host.drivers.remember(driver.name.as_str(), Path::new(&driver.endpoint));
            if driver.missing_since.is_none() && self.evidence.missing_drivers.contains_key(driver.name.as_str()) {
                gone.push(Driver { missing_since: Some(now()), ..driver.clone() });
            }
        }
        for driver in gone {
            self.write_driver(driver);
        }
        self.forget_drivers();
        self.news.drivers = true;
    }

    /// Removes the records of drivers that left this node for good.
    fn forget_drivers(&mut self) {
        let Some(used) = self.drivers_in_use() else { return };
        let now = jiff::Timestamp::now();
        let is_long_ago =
            |since: &str| since.parse::<jiff::Timestamp>().is_ok_and(|since| now.duration_since(since) >= FORGET_AFTER);
        let records = self.evidence.records.records.iter().filter_map(|record| match record {
            Record::Driver(driver) => Some(driver),
            Record::DeviceMount(_) | Record::PodVolume(_) | Record::PodCheckpoint(_) => None,
        });
        let stale: Vec<_> = records
            .filter(|driver| driver.missing_since.as_deref().is_some_and(is_long_ago))
            .filter(|driver| self.evidence.missing_drivers.contains_key(driver.name.as_str()))
            .filter(|driver| !used.contains(driver.name.as_str()))
            .map(|driver| driver.name.clone())
            .collect();
        for name in stale {
            let key = RecordKey::Driver(name.clone());
            if let Some(store) = &self.executor.store
                && let Err(error) = store.remove(&key)
            {
                tracing::warn!(
                    code = "RecordNotWritten",
                    error = %refloat_volume::error_chain(&error),
                    "the record of a CSI driver that left this node could not be removed"
                );
                continue;
            }
            tracing::info!(driver = %name, "the CSI driver has been gone for long and has nothing here: it is forgotten");
            self.evidence.missing_drivers.remove(name.as_str());
            let records = &mut self.evidence.records;
            records::apply(&mut records.records, &mut records.unreadable, vec![Change::Removed(key)]);
        }
    }

    /// The drivers that something on this node is of. None if that cannot be told for certain.
    fn drivers_in_use(&self) -> Option<BTreeSet<String>> {
        if self.evidence.tree.is_none() || !self.evidence.records.unreadable.is_empty() {
            return None;
        }
        let of = |plugin: &PluginName, record: Option<Recorded<'_>>| {
            if plugin.as_str() != layout::CSI {
                return Some(None);
            }
            // Of what is a driver's and does not say whose, any may be the one.
            Some(Some(self.executor.plugins.by_name(plugin)?.recorded_driver(record?)?))
        };
        let volumes = self.actual.volumes.iter().map(|v| of(&v.key.plugin, v.record.as_ref().map(Into::into)));
        let devices = self.actual.devices.iter().map(|d| of(&d.plugin, d.record.as_ref().map(Into::into)));
        volumes.chain(devices).collect::<Option<Vec<_>>>().map(|all| all.into_iter().flatten().collect())
    }

    /// Takes in what was heard of drivers.
    pub(super) fn take_driver_changes(&mut self) {
        for change in self.driver_news.take() {
            self.news.drivers = true;
            match change {
                DriverChange::Registered { name, endpoint, node } => {
                    tracing::info!(driver = name, endpoint = %endpoint.display(), "the CSI driver is registered");
                    let Ok(driver) = DriverName::new(&name) else { continue };
                    self.write_driver(Driver {
                        name: driver,
                        endpoint: endpoint.to_string_lossy().into_owned(),
                        node_id: node.node_id,
                        topology: node.topology,
                        registered_at: now(),
                        missing_since: None,
                    });
                    self.refused_drivers.clear();
                    self.retries.driver_is_back(&name);
                    // It may be another version, which stages where the one before did not.
                    let of_driver = format!("{}/{name}^", layout::CSI);
                    self.input.no_device.retain(|unique_name| !unique_name.as_str().starts_with(&of_driver));
                }
                DriverChange::Gone { name } => {
                    tracing::warn!(driver = name, "the CSI driver is gone");
                    let key = DriverName::new(&name).ok().map(RecordKey::Driver);
                    let known = key.and_then(|key| records::find(&self.evidence.records.records, &key).cloned());
                    if let Some(Record::Driver(driver)) = known {
                        self.write_driver(Driver { missing_since: Some(now()), ..driver });
                    }
                }
                DriverChange::Refused { socket, why } => {
                    let problem = Problem::new(
                        "DriverNotRegistered",
                        format!("the CSI driver at {} cannot be registered: {why}", socket.display()),
                        "Look into the log of the driver and of its node-driver-registrar. It is tried again when its socket \
                         is made anew.",
                    );
                    self.refused_drivers.insert(socket, problem);
                }
            }
        }
    }

    /// Whether a driver is not where its record says, and may yet say where it is: its registration is under way, or it has
    /// had less time than anything else that failed once.
    pub(super) fn awaits_drivers(&self) -> bool {
        let drivers = &self.executor.host.drivers;
        let known = drivers.list();
        let is_stale = |recorded: &Driver| {
            let of_name = known.iter().find(|d| d.registered && d.name == recorded.name.as_str());
            recorded.missing_since.is_some() || of_name.is_some_and(|d| d.endpoint != Path::new(&recorded.endpoint))
        };
        let stale = self.evidence.records.records.iter().any(|r| matches!(r, Record::Driver(d) if is_stale(d)));
        let passed = self.now();
        stale && (passed < retry::back_off(1) || (drivers.is_trying() && passed < DRIVERS_PATIENCE))
    }

    /// What is wrong with drivers that did not come in, as long as their sockets are there.
    pub(super) fn driver_problems(&mut self) -> Vec<Problem> {
        self.refused_drivers.retain(|socket, _| socket.symlink_metadata().is_ok());
        self.refused_drivers.values().cloned().collect()
    }

    /// Writes a driver's record. Without it a restart has to wait until the driver registers again, and nothing else: so a
    /// failure is told, and the next change tries again.
    fn write_driver(&mut self, driver: Driver) {
        let record = Record::Driver(driver);
        if let Some(store) = &self.executor.store
            && let Err(error) = store.put(&record)
        {
            tracing::warn!(
                code = "RecordNotWritten",
                error = %refloat_volume::error_chain(&error),
                "what is known of a CSI driver could not be written down"
            );
            self.state.look = true;
        }
        let records = &mut self.evidence.records;
        records::apply(&mut records.records, &mut records.unreadable, vec![Change::Put(Box::new(record))]);
    }
}
