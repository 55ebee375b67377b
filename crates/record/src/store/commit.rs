//! Group commit: writers that come together share their syncs.
//!
//! Each writer makes, fills and syncs its own temporary files. One of those that wait then leads: it renames the files of
//! all, and syncs each folder once, while later writers queue up for the next round.
//!
//! Why this way: what costs time is making the file system's journal commit and the device flush its cache, not the
//! bytes. Writers that sync at the same time share both in the kernel (a journal commit holds the inodes of all, and the
//! block layer merges flushes), which one thread that syncs file after file does not: it pays a flush for each. So the data
//! is synced by whoever wrote it, and only the folder, which all have in common, is left to the leader. A writer with
//! many records starts write-back of all before it syncs the first, so that the first journal commit holds them all.
//! Every file gets its own `fdatasync`: file systems promise nothing about a file that was not asked for. `syncfs`
//! would be one call, but it waits for everything that anybody wrote to the file system, a minute of a busy database's
//! writes included.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::sync::{Condvar, Mutex, PoisonError, atomic::Ordering};

use super::{Store, TEMP, WriteError};
use crate::disk::Disk;
use crate::{Record, RecordKind, codec};

/// How many files one writer has open at once. Soft limits of 1,024 open files are common.
pub(super) const AT_ONCE: usize = 128;

/// A temporary file that is written.
pub(super) struct Item<D: Disk> {
    kind: RecordKind,
    temp: String,
    name: String,
    file: D::File,
}

/// The writers that wait.
pub(super) struct Group<D: Disk> {
    state: Mutex<State<D>>,
    changed: Condvar,
}

struct State<D: Disk> {
    next: u64,
    queue: Vec<(u64, Item<D>)>,
    done: HashMap<u64, Result<(), WriteError>>,
    led: bool,
}

impl<D: Disk> Default for Group<D> {
    fn default() -> Self {
        let state = State { next: 0, queue: Vec::new(), done: HashMap::new(), led: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

/// How a new file got its name, and so how that is undone.
enum Placed {
    /// There was none before.
    New,
    /// The old one has the temporary name now.
    Exchanged,
    /// The old one is gone: the file system can neither exchange names nor refuse to replace.
    Replaced,
}

impl<D: Disk> Store<D> {
    /// Writes these records (at most [`AT_ONCE`]) and waits until they are durable.
    pub(super) fn write_together(&self, records: &[Record]) -> Vec<Result<(), WriteError>> {
        let written: Vec<_> = records.iter().map(|record| self.write_temp(record)).collect();
        let written: Vec<_> = written.into_iter().map(|item| self.sync_data(item?)).collect();
        let mut tickets = Vec::with_capacity(written.len());
        let mut state = self.group.state.lock().unwrap_or_else(PoisonError::into_inner);
        for item in written {
            tickets.push(item.map(|item| {
                let ticket = state.next;
                state.next += 1;
                state.queue.push((ticket, item));
                ticket
            }));
        }
        let waits_for = |state: &State<D>| tickets.iter().flatten().any(|t| !state.done.contains_key(t));
        while waits_for(&state) {
            if state.led {
                state = self.group.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.led = true;
            let (numbers, items): (Vec<u64>, Vec<Item<D>>) = std::mem::take(&mut state.queue).into_iter().unzip();
            drop(state);
            let outcomes = self.commit(&items);
            state = self.group.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.done.extend(numbers.into_iter().zip(outcomes));
            state.led = false;
            self.group.changed.notify_all();
        }
        tickets.into_iter().map(|t| t.and_then(|t| state.done.remove(&t).expect("waited for"))).collect()
    }

    /// Makes and fills a record's temporary file, and starts its write-back.
    fn write_temp(&self, record: &Record) -> Result<Item<D>, WriteError> {
        let key = record.key();
        let (kind, name) = (key.kind(), codec::file_name(&key));
        self.make_way(kind, &name)?;
        let bytes = codec::encode_with(record, &self.extra_of(&key, &name)?);
        let folder = self.folders.of(kind);
        let (temp, file) = loop {
            let number = self.temp_number.fetch_add(1, Ordering::Relaxed);
            let temp = format!("{TEMP}{}-{number}", std::process::id());
            match self.disk.create(folder, &temp) {
                Ok(file) => break (temp, file),
                // A leftover of an earlier process with the same id, before `load` removed it.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(self.write_error("make a temporary file for", kind, &name, e)),
            }
        };
        let mut item = Item { kind, temp, name, file };
        if let Err(e) = self.disk.write(&mut item.file, &bytes) {
            return Err(self.give_up(&item, "write", e));
        }
        self.disk.start_sync(&item.file, bytes.len() as u64);
        Ok(item)
    }

    /// Makes a written file's data durable.
    fn sync_data(&self, item: Item<D>) -> Result<Item<D>, WriteError> {
        match self.disk.sync(&item.file) {
            Ok(()) => Ok(item),
            Err(e) => Err(self.give_up(&item, "sync the data of", e)),
        }
    }

    /// Makes files whose data is durable durable under their names.
    fn commit(&self, items: &[Item<D>]) -> Vec<Result<(), WriteError>> {
        if let Err(e) = self.sync_names() {
            let again = || e.raw_os_error().map_or_else(|| e.kind().into(), io::Error::from_raw_os_error);
            return items.iter().map(|item| Err(self.give_up(item, "sync the state folder for", again()))).collect();
        }
        let mut outcomes: Vec<Result<(), WriteError>> = Vec::with_capacity(items.len());
        let mut placed = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            outcomes.push(match self.place(item) {
                Ok(how) => {
                    placed.push((i, how));
                    Ok(())
                }
                Err(e) => Err(self.give_up(item, "rename the temporary file to", e)),
            });
        }
        for kind in RecordKind::ALL {
            let here = || placed.iter().filter(|(i, _)| items[*i].kind == kind);
            if here().next().is_none() {
                continue;
            }
            match self.disk.sync_folder(self.folders.of(kind)) {
                Ok(()) => {
                    for (i, _) in here().filter(|(_, how)| matches!(how, Placed::Exchanged)) {
                        // Not needed any more, and removed by the next `load` if this fails.
                        let _ = self.disk.unlink(self.folders.of(kind), OsStr::new(&items[*i].temp));
                    }
                }
                Err(e) => {
                    // Last first: two of them may have the same name.
                    for (i, how) in here().collect::<Vec<_>>().into_iter().rev() {
                        let item = &items[*i];
                        self.take_back(item, how);
                        let again = e.raw_os_error().map_or_else(|| e.kind().into(), io::Error::from_raw_os_error);
                        outcomes[*i] = Err(self.write_error("sync the folder of", kind, &item.name, again));
                    }
                }
            }
        }
        outcomes
    }

    /// Gives the file its name.
    fn place(&self, item: &Item<D>) -> io::Result<Placed> {
        let folder = self.folders.of(item.kind);
        let (temp, name) = (OsStr::new(&item.temp), OsStr::new(&item.name));
        let unable = |e: &io::Error| matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported);
        let outcome = match self.disk.rename_new(folder, temp, folder, name) {
            Ok(()) => return Ok(Placed::New),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.disk.exchange(folder, &item.temp, &item.name).map(|()| Placed::Exchanged)
            }
            Err(e) => Err(e),
        };
        match outcome {
            Err(e) if unable(&e) => self.disk.replace(folder, temp, folder, name).map(|()| Placed::Replaced),
            outcome => outcome,
        }
    }

    /// Brings back what was there before the file got its name. The names are not durable, so a power cut may still
    /// choose either; both are whole.
    fn take_back(&self, item: &Item<D>, how: &Placed) {
        let folder = self.folders.of(item.kind);
        match how {
            Placed::New => drop(self.disk.unlink(folder, OsStr::new(&item.name))),
            Placed::Exchanged => {
                if self.disk.exchange(folder, &item.temp, &item.name).is_ok() {
                    let _ = self.disk.unlink(folder, OsStr::new(&item.temp));
                }
            }
            Placed::Replaced => {}
        }
    }

    /// Removes the temporary file of a write that failed.
    fn give_up(&self, item: &Item<D>, doing: &'static str, error: io::Error) -> WriteError {
        let _ = self.disk.unlink(self.folders.of(item.kind), OsStr::new(&item.temp));
        self.write_error(doing, item.kind, &item.name, error)
    }
}
