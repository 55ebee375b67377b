//! The state folder under a running manager: deleted, moved away, covered by a mount, or a part of it.
//!
//! The store works on descriptors, so without its folder no record can be written (or only where nobody looks), and its
//! lock keeps no other manager out. Then nothing is done until the store has been opened anew at its path, under a lock of
//! its own, with all the records that the manager knows.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use refloat_record::{OpenError, Record, RecordKey};
use refloat_volume::{Problem, error_chain};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::{Manager, ManagerError, records, retry};
use crate::execute::{Change, Executor};

/// The pause before the store is opened anew, and before it is looked whether all stayed: whoever deletes a folder with
/// all in it takes a while, and would take what is written meanwhile.
const PAUSE: Duration = Duration::from_millis(500);

/// What is known of the state folder.
#[derive(Debug)]
pub(super) struct StateFolder {
    watch: StateWatch,
    /// Something may have happened to it.
    pub(super) look: bool,
    /// Why nothing can be done.
    pub(super) problem: Option<Problem>,
    /// When it is tried again.
    pub(super) again: Option<Duration>,
    failures: u32,
}

impl StateFolder {
    pub(super) fn new(folder: &Path) -> std::io::Result<Self> {
        let watch = StateWatch { inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)? };
        watch.rearm(folder);
        // What happened before the watch was there is seen at the first look.
        Ok(Self { watch, look: true, problem: None, again: None, failures: 0 })
    }

    /// Takes in what the watch heard.
    pub(super) fn take_news(&mut self) {
        self.look |= self.watch.changed();
    }

    /// Whether it is being put right, and that has not failed again and again.
    pub(super) fn is_coming_back(&self) -> bool {
        self.problem.is_some() && self.failures < 3
    }
}

impl AsFd for StateFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.inotify.as_fd()
    }
}

/// Notices that names vanish from the state folder, or that it vanishes. The manager's own work removes no name directly
/// in it.
#[derive(Debug)]
struct StateWatch {
    inotify: OwnedFd,
}

impl StateWatch {
    fn rearm(&self, folder: &Path) {
        let flags = WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        // What cannot be watched cannot be opened either, and opening says so.
        let _ = inotify::add_watch(&self.inotify, folder, flags);
    }

    /// Reads the events, and answers whether there were any.
    fn changed(&self) -> bool {
        let mut changed = false;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                // The end of a watch comes after what ended it.
                Ok(event) => changed |= !event.events().contains(ReadFlags::IGNORED),
                Err(Errno::INTR) => {}
                Err(_) => return changed,
            }
        }
    }
}

impl Manager {
    /// Whether the store is where it belongs, so that a round makes sense. One that is not is opened anew after a pause.
    pub(super) fn state_is_here(&mut self) -> Result<bool, ManagerError> {
        let Some(store) = self.executor.store.clone() else { return Ok(true) };
        let now = self.now();
        self.state.take_news();
        let look = std::mem::take(&mut self.state.look);
        if self.state.problem.is_none() {
            if !look || store.is_at_its_path() {
                return Ok(true);
            }
            self.state.problem = Some(Problem::new(
                "StateFolderGone",
                format!(
                    "the state folder {} (or its lock file, or a folder in it) was deleted, moved or covered, so nothing is done",
                    store.path().display()
                ),
                "It is made again by itself, with all records that are known. Find out who took it away.",
            ));
            self.state.again = Some(now + PAUSE);
            return Ok(false);
        }
        if self.state.again.is_some_and(|at| at > now) {
            return Ok(false);
        }
        match self.open_state_again() {
            // Written just now: whether it stays is looked at once more.
            Ok(written) if written > 0 => {
                self.state.failures = 0;
                self.state.again = Some(now + PAUSE);
                Ok(false)
            }
            Ok(_) => {
                self.state.problem = None;
                self.state.again = None;
                self.state.failures = 0;
                let count = self.evidence.records.records.len();
                tracing::info!(folder = %store.path().display(), records = count, "the state folder is whole again");
                Ok(true)
            }
            Err(Trouble::Store(error @ OpenError::Locked { .. })) => Err(ManagerError::StoreTaken(error)),
            Err(trouble) => {
                let message = match trouble {
                    Trouble::Store(error) => error_chain(&error),
                    Trouble::Record(message) => message,
                };
                let message =
                    format!("the state folder is gone and cannot be made again, so nothing is done: {message}");
                let hint = "Make room for it, and make it a folder that can be written. It is tried again.";
                self.state.problem = Some(Problem::new("StateFolderGone", message, hint));
                self.state.failures = self.state.failures.saturating_add(1);
                self.state.again = Some(now + retry::back_off(self.state.failures));
                Ok(false)
            }
        }
    }

    /// Opens the store anew, and writes all records that it lacks. Answers how many these were.
    fn open_state_again(&mut self) -> Result<usize, Trouble> {
        let Some(store) = self.executor.store.clone() else { return Ok(0) };
        let moved = !store.is_at_its_path();
        let (store, loaded) = store.open_again().map_err(Trouble::Store)?;
        self.state.watch.rearm(store.path());
        // What runs now goes on with the old store, so what it does is done to the new one too when it ends.
        let store = Arc::new(store);
        let old = Arc::clone(&self.executor);
        let (host, plugins) = (Arc::clone(&old.host), Arc::clone(&old.plugins));
        let generation = old.generation + 1;
        self.use_executor(Executor { host, plugins, store: Some(Arc::clone(&store)), generation });

        let mut there: BTreeMap<RecordKey, Record> = loaded.records.into_iter().map(|r| (r.key(), r)).collect();
        let known = &self.evidence.records.records;
        let lacking: Vec<Record> = known.iter().filter(|r| there.get(&r.key()) != Some(*r)).cloned().collect();
        for record in known {
            there.remove(&record.key());
        }
        let mut written = usize::from(moved);
        let mut failed = None;
        for result in store.put_all(&lacking) {
            match result {
                Ok(()) => written += 1,
                Err(error) => failed = Some(error_chain(&error)),
            }
        }
        // Another store at the path may have records of its own: as at a start, they are evidence like any other.
        let found = there.into_values().map(|record| Change::Put(Box::new(record))).collect();
        let records = &mut self.evidence.records;
        records.unreadable = loaded.unreadable;
        records::apply(&mut records.records, &mut records.unreadable, found);
        failed.map_or(Ok(written), |message| Err(Trouble::Record(message)))
    }

    /// Does to the store what an operation did to the one before it.
    pub(super) fn do_again(&mut self, changes: &[Change]) {
        let Some(store) = &self.executor.store else { return };
        for change in changes {
            let result = match change {
                Change::Put(record) => store.put(record),
                Change::Removed(key) => store.remove(key),
            };
            if let Err(error) = result {
                self.state.problem = Some(Problem::new(
                    "StateFolderGone",
                    format!("records cannot be written anew, so nothing is done: {}", error_chain(&error)),
                    "Make room for them. It is tried again.",
                ));
                self.state.again = Some(self.started.elapsed() + PAUSE);
            }
        }
    }
}

/// Why the store could not be made whole.
enum Trouble {
    Store(OpenError),
    Record(String),
}
