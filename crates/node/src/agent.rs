//! The companion of a kubelet: writes a record for every volume as it appears, while its pod is still known, and removes it
//! once the volume is gone.
//!
//! ```text
//! mount table, folders ──► fresh: what `scan` concludes without records ─┐
//! records of earlier looks ──────────────────────────────────────────────┼─► merge ──► records
//! pods, claims, volumes, from whoever knows them whole ──────────────────┘
//! ```
//!
//! It sleeps in the kernel until the mount table or a folder of a pod changes, and then until nothing has changed for a moment:
//! a kubelet sets up several things in a row. [`merge`] is pure. Nothing below a mount point is touched.

mod cleaning;
mod current;
mod enrich;
mod gone;
pub mod merge;
mod nested;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use refloat_csi::Drivers;
use refloat_record::{Loaded, OpenError, Record, RecordKey, Store, UnreadableReason};
use refloat_volume::{Host, Plugins, Problem, error_chain};

pub use cleaning::{Cleaning, Event, Happened, Listener};
pub use enrich::{ObjectsError, WholeObjects};

use crate::evidence::{Gather, GatherError};
use crate::manager::{host, root};
use crate::{ManagerError, reconstruct};
use cleaning::Cleanup;
use current::Current;
use nested::Nested;
use watch::{Folders, Table, Woken};

/// How an [`Agent`] is run.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The node root (the kubelet's).
    pub root_dir: PathBuf,
    /// The state folder.
    pub state_dir: PathBuf,
    /// How long nothing must have changed before it is looked.
    pub rest: Duration,
}

/// Why an agent cannot start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Store or root could not be had.
    #[error("cannot begin")]
    Start(#[source] ManagerError),
    /// The node could not be looked at.
    #[error("cannot look at the node")]
    Look(#[source] GatherError),
    /// The state folder was deleted, moved or covered: no record would be where it belongs.
    #[error("the state folder {} (or its lock file, or a folder in it) was deleted, moved or covered", .path.display())]
    StateGone {
        /// The folder.
        path: PathBuf,
    },
    /// Changes could not be watched.
    #[error("cannot {doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// However often things change, it is looked after this long.
const LONGEST_REST: Duration = Duration::from_secs(3);
/// The pauses after which it is looked again where something failed: the first, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// The companion of a kubelet.
pub struct Agent {
    options: AgentOptions,
    host: Host,
    plugins: Plugins,
    store: Arc<Store>,
    table: Table,
    objects: Option<Box<dyn WholeObjects>>,
    current: Current,
    /// All records in the store.
    records: BTreeMap<RecordKey, Record>,
    /// Records of newer versions, in whose place none is written.
    newer: BTreeSet<RecordKey>,
    nested: Nested,
    cleanup: Option<Cleanup>,
    /// What was said of what is wrong, so that it is said once.
    told: BTreeSet<String>,
    /// How often in a row something failed.
    failures: u32,
}

impl Agent {
    /// Opens root and store, taking the store's lock. `objects` knows pods, claims and volumes whole, if anybody does; without
    /// `cleaning` no volume is touched.
    pub fn start(
        options: AgentOptions,
        objects: Option<Box<dyn WholeObjects>>,
        cleaning: Option<Cleaning>,
    ) -> Result<Self, AgentError> {
        let io = |doing| move |source| AgentError::Io { doing, source };
        let (kernel, root) = host::open_root(&options.root_dir).map_err(AgentError::Start)?;
        let store = |error: OpenError| AgentError::Start(ManagerError::Store(error));
        let opened = Arc::new(Store::open(&options.state_dir).map_err(store)?);
        let loaded = opened.load().map_err(store)?;
        let host = host::open_host(kernel, root, Drivers::none(), Duration::ZERO, host::Programs::default())
            .map_err(io("read the boot id"))?;
        for file in &loaded.unreadable {
            tracing::warn!(file = %file.path.display(), why = %file.reason, "a record cannot be used; it is kept as it is");
        }
        let is_newer = |reason: &UnreadableReason| matches!(reason, UnreadableReason::Newer { .. });
        let newer = loaded.unreadable.iter().filter(|file| is_newer(&file.reason)).filter_map(|file| file.key.clone());
        let newer = newer.collect();
        let records = loaded.records.into_iter().map(|record| (record.key(), record)).collect();
        let table = Table::open().map_err(io("watch the mount table"))?;
        Ok(Self {
            options,
            host,
            plugins: Plugins::builtin(),
            store: opened,
            table,
            objects,
            current: Current::default(),
            records,
            newer,
            nested: Nested::default(),
            cleanup: cleaning.map(Cleanup::new),
            told: BTreeSet::new(),
            failures: 0,
        })
    }

    /// Runs until `stop` can be read. What it was doing is finished first.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), AgentError> {
        let io = |doing| move |source| AgentError::Io { doing, source };
        // When it is to be cleaned, if no change comes before.
        let mut clean_at = None;
        loop {
            // Before looking, so that what changes meanwhile is seen.
            let folders = Folders::watch(&self.host.root).map_err(io("watch folders"))?;
            if folders.incomplete && self.told.insert("watches".into()) {
                tracing::warn!(
                    "the system lets no more folders be watched (fs.inotify.max_user_watches), so a volume without a mount may \
                     be recorded late"
                );
            }
            let again = self.look()?;
            if self.cleanup.is_some() {
                clean_at = Some(Instant::now() + cleaning::REST);
            }
            let woken = loop {
                let due = clean_at.map(|at: Instant| at.saturating_duration_since(Instant::now()));
                if again.is_some_and(|again| due.is_none_or(|due| again < due)) {
                    break self.table.wait(&folders, stop, again).map_err(io("wait for changes"))?;
                }
                match self.table.wait(&folders, stop, due).map_err(io("wait for changes"))? {
                    Woken::Time if due.is_some() => clean_at = self.clean()?.map(|again| Instant::now() + again),
                    other => break other,
                }
            };
            if woken == Woken::Stop {
                return Ok(());
            }
            let rest = self.options.rest;
            let rested = self.table.rest(&folders, stop, rest, LONGEST_REST).map_err(io("wait for changes"))?;
            if rested == Woken::Stop {
                return Ok(());
            }
        }
    }

    /// Looks once, and cleans if it is to. Answers whether nothing is left to be tried again.
    pub fn once(&mut self) -> Result<bool, AgentError> {
        let mut done = self.look()?.is_none();
        if self.cleanup.is_some() {
            done &= self.clean()?.is_none();
            done &= self.look()?.is_none();
        }
        Ok(done)
    }

    /// Says once what is wrong.
    fn tell(&mut self, problem: &Problem) {
        if self.told.insert(problem.message.clone()) {
            tracing::warn!(code = problem.code, "{}", problem.message);
        }
    }

    /// Looks at the node, and brings the records up to date. Answers after how long it is to be looked again although nothing
    /// changes: only where something is not done.
    pub fn look(&mut self) -> Result<Option<Duration>, AgentError> {
        if !self.store.is_at_its_path() {
            return Err(AgentError::StateGone { path: self.options.state_dir.clone() });
        }
        let table = self.host.mount_table().map_err(|e| AgentError::Look(GatherError::Table(e)))?;
        let place = self.host.root.place(&table);
        let place = place.map_err(|source| AgentError::Io { doing: "look for the node root", source })?;
        if let Some(problem) = root::trouble(&self.host, &place) {
            // What is seen now is not the node's.
            self.tell(&problem);
            return Ok(Some(AGAIN.0));
        }
        let evidence = Gather::new(&self.host).read(|| Ok(Loaded::default())).map_err(AgentError::Look)?;
        let fresh = reconstruct(&evidence, &self.plugins);
        for problem in evidence.tree.iter().flat_map(|tree| &tree.problems) {
            self.tell(problem);
        }
        for line in self.nested.changes(&fresh, &evidence.table) {
            tracing::warn!("{line}");
        }

        let mut wanted = merge::merge(&fresh, &evidence.table, &self.records);
        wanted.retain(|record| !self.newer.contains(&record.key()));
        let whole = self.enrich(&mut wanted);
        let written = self.write(wanted);
        // A folder that could not be listed is not a folder that is not there.
        let listed = evidence.tree.as_ref().is_some_and(|tree| tree.problems.is_empty());
        let removed = !listed || self.remove_gone(&fresh, &evidence.table);
        if whole && written && removed {
            self.failures = 0;
            return Ok(None);
        }
        let pause = AGAIN.0.saturating_mul(1 << self.failures.min(16)).min(AGAIN.1);
        self.failures = self.failures.saturating_add(1);
        Ok(Some(pause))
    }

    /// Cleans what no pod wants. Answers after how long it is to be tried again although nothing changes.
    fn clean(&mut self) -> Result<Option<Duration>, AgentError> {
        let Some(cleanup) = &mut self.cleanup else { return Ok(None) };
        let cleaned = cleanup.run(&self.store);
        if cleaned.did {
            let loaded = self.store.load().map_err(|error| AgentError::Start(ManagerError::Store(error)))?;
            self.records = loaded.records.into_iter().map(|record| (record.key(), record)).collect();
        }
        Ok(cleaned.again)
    }

    /// Asks for what records lack, and for what may have changed. Answers whether everybody answered.
    fn enrich(&mut self, records: &mut [Record]) -> bool {
        let Some(objects) = &mut self.objects else { return true };
        let answered = enrich::enrich(records, &self.plugins, objects.as_mut())
            .and_then(|()| self.current.refresh(records, objects.as_mut(), Instant::now()));
        match answered {
            Ok(()) => {
                self.told.retain(|told| !told.starts_with("objects: "));
                true
            }
            Err(error) => {
                let message = format!("objects: {}", error_chain(&error));
                if self.told.insert(message) {
                    tracing::warn!(
                        why = error_chain(&error),
                        "pods, claims or volumes cannot be asked for, so records lack what only they tell; it is tried again"
                    );
                }
                false
            }
        }
    }

    /// Writes what is not in the store as it is to be. Answers whether all of it could be written.
    fn write(&mut self, wanted: Vec<Record>) -> bool {
        let new: Vec<Record> = wanted.into_iter().filter(|r| self.records.get(&r.key()) != Some(r)).collect();
        let answers = self.store.put_all(&new);
        let mut all = true;
        for (record, answer) in new.into_iter().zip(answers) {
            let key = record.key();
            match answer {
                Ok(()) => {
                    let known = self.records.insert(key, record.clone()).is_some();
                    let doing = if known { "the record of a volume was brought up to date" } else { "recorded" };
                    tracing::info!(subject = %shown(&record), "{doing}");
                }
                Err(error) => {
                    all = false;
                    let problem = Problem::new(
                        "RecordNotWritten",
                        format!("no record can be written of {}: {}", shown(&record), error_chain(&error)),
                        "Make room, and make the state folder one that can be written. It is tried again.",
                    );
                    self.tell(&problem);
                }
            }
        }
        all
    }

    /// Removes the records of what is gone. Answers whether all of them could be removed.
    fn remove_gone(&mut self, fresh: &crate::Actual, table: &refloat_mount::MountTable) -> bool {
        let mut all = true;
        for key in gone::gone(fresh, table, &self.host.root, &self.records) {
            let Some(record) = self.records.get(&key) else { continue };
            let subject = shown(record);
            match self.store.remove(&key) {
                Ok(()) => {
                    self.records.remove(&key);
                    tracing::info!(%subject, "gone, and its record with it");
                }
                Err(error) => {
                    all = false;
                    let message = format!("the record of {subject} cannot be removed: {}", error_chain(&error));
                    self.tell(&Problem::new("RecordNotWritten", message, "It is tried again."));
                }
            }
        }
        all
    }
}

/// What a record is of, in the log.
fn shown(record: &Record) -> String {
    match record {
        Record::PodVolume(r) if r.pod.name.is_empty() => format!("{} {} of pod {}", r.plugin, r.spec_name, r.pod.uid),
        Record::PodVolume(r) => {
            format!("{} {} of pod {}/{} ({})", r.plugin, r.spec_name, r.pod.namespace, r.pod.name, r.pod.uid)
        }
        Record::DeviceMount(r) => format!("device {}", r.unique_name),
        Record::PodCheckpoint(r) => format!("pod {}", r.pod.uid),
        Record::Driver(r) => format!("driver {}", r.name),
    }
}

#[cfg(test)]
mod tests;
