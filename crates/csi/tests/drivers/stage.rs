//! What the tests share: a folder with a registry, drivers in it, and what changed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use refloat_csi::{
    Access, AccessMode, DriverChange, Drivers, DriversOptions, ExpandVolume, PublishVolume, Secrets, StageVolume,
    StringMap, VolumeCapability,
};
use refloat_test_csi_driver::{Action, Event, Fault, Options, Process, Program};

/// How long a change may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What happened, in order.
#[derive(Default)]
pub struct Log {
    changes: Mutex<Vec<DriverChange>>,
    more: Condvar,
}

impl Log {
    pub fn add(&self, change: DriverChange) {
        self.changes.lock().expect("no test panics with it").push(change);
        self.more.notify_all();
    }

    pub fn all(&self) -> Vec<DriverChange> {
        self.changes.lock().expect("no test panics with it").clone()
    }

    /// Waits for a change among those that were not taken yet, and takes all up to it.
    #[track_caller]
    pub fn wait(&self, what: &str, fits: impl Fn(&DriverChange) -> bool) -> DriverChange {
        let start = Instant::now();
        let mut changes = self.changes.lock().expect("no test panics with it");
        loop {
            if let Some(at) = changes.iter().position(&fits) {
                return changes.drain(..=at).next_back().expect("it is there");
            }
            let left = PATIENCE.saturating_sub(start.elapsed());
            assert!(!left.is_zero(), "{what} did not come; there is {changes:?}");
            changes = self.more.wait_timeout(changes, left).expect("no test panics with it").0;
        }
    }

    #[track_caller]
    pub fn registered(&self, name: &str) -> PathBuf {
        let change =
            self.wait("a registration", |c| matches!(c, DriverChange::Registered { name: n, .. } if n == name));
        let DriverChange::Registered { endpoint, .. } = change else { unreachable!() };
        endpoint
    }

    #[track_caller]
    pub fn gone(&self, name: &str) {
        self.wait("the end of a registration", |c| matches!(c, DriverChange::Gone { name: n } if n == name));
    }

    #[track_caller]
    pub fn refused(&self, socket: &Path) -> String {
        let change = self.wait("a refusal", |c| matches!(c, DriverChange::Refused { socket: s, .. } if s == socket));
        let DriverChange::Refused { why, .. } = change else { unreachable!() };
        why
    }
}

pub struct Stage {
    pub folder: tempfile::TempDir,
    pub log: Arc<Log>,
}

impl Stage {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("refloat-csi-").tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("plugins_registry")).expect("a folder in it");
        Self { folder, log: Arc::default() }
    }

    pub fn registry(&self) -> PathBuf {
        self.folder.path().join("plugins_registry")
    }

    pub fn watch(&self) -> Drivers {
        let log = Arc::clone(&self.log);
        let options = DriversOptions { registry: self.registry(), deadline: Duration::from_secs(30) };
        Drivers::start(options, Box::new(move |change| log.add(change))).expect("it starts")
    }

    /// Options of a driver that does nothing and does not register.
    pub fn options(&self, name: &str) -> Options {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).expect("a folder for the driver");
        Options { noop: true, ..Options::new(name, folder) }
    }

    /// Options of a driver that does nothing and registers.
    pub fn registering(&self, name: &str) -> Options {
        let registration = Some(self.registry().join(format!("{name}-reg.sock")));
        Options { registration, ..self.options(name) }
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.registry().join(format!("{name}-reg.sock"))
    }
}

pub fn start(options: Options) -> Process {
    Process::start(Program::This, options).expect("the driver starts")
}

pub fn order(process: &Process, call: &str, fault: &Fault) {
    process.faults().order(call, fault).expect("a fault is ordered");
}

pub fn code(code: i32) -> Action {
    Action::Code { code, message: "as ordered".into() }
}

/// How often the journal has a call's beginning.
pub fn count(process: &Process, call: &str) -> usize {
    let journal = process.journal().expect("the journal can be read");
    journal.iter().filter(|entry| entry.call == call && entry.event == Event::Begin).count()
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn capability() -> VolumeCapability {
    let access = Access::Mount { fs_type: String::new(), mount_flags: vec![], volume_mount_group: String::new() };
    VolumeCapability { access, mode: AccessMode::SingleNodeWriter }
}

pub fn secrets() -> Secrets {
    Secrets::new(StringMap::from([("password".to_owned(), "hunter2-and-more".to_owned())]))
}

pub fn stage_request(volume: &str) -> StageVolume {
    StageVolume {
        volume_id: volume.into(),
        publish_context: StringMap::new(),
        staging_target_path: "/staging".into(),
        capability: capability(),
        secrets: secrets(),
        volume_context: StringMap::new(),
    }
}

pub fn publish_request(volume: &str) -> PublishVolume {
    PublishVolume {
        volume_id: volume.into(),
        publish_context: StringMap::new(),
        staging_target_path: "/staging".into(),
        target_path: "/target".into(),
        capability: capability(),
        readonly: false,
        secrets: secrets(),
        volume_context: StringMap::new(),
    }
}

pub fn expand_request(volume: &str) -> ExpandVolume {
    ExpandVolume {
        volume_id: volume.into(),
        volume_path: "/target".into(),
        staging_target_path: "/staging".into(),
        required_bytes: 1 << 30,
        capability: capability(),
        secrets: secrets(),
    }
}
