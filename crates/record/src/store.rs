//! The crash-safe store of records: one file a record.
//!
//! ```text
//! <state>/devices/<name>.json     DeviceMount       files 0600, folders 0700
//! <state>/volumes/<name>.json     PodVolume
//! <state>/pods/<name>.json        PodCheckpoint
//! <state>/drivers/<name>.json     Driver
//! <state>/set-aside/<time>-<reason>-<name>          files that are no good records, intact
//! <state>/lock                                      held by the manager, holds its process id
//! ```
//!
//! A record is written to a new temporary file in its folder (a name with a dot before it), synced, renamed, and the
//! folder synced. Before the first of them the state folder is synced too, for the names of the folders. A reader therefore
//! sees the old record or the new one, and so does the next start after a crash.
//! No call follows a symlink below the state folder.

mod commit;
mod load;
mod place;
mod set_aside;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, atomic::AtomicU64};
use std::time::{Duration, Instant};

use crate::codec::{self, Extra};
use crate::disk::{Disk, RealDisk};
use crate::{DeviceMount, Record, RecordKey, RecordKind};

pub use load::Verified;
pub use set_aside::SetAside;

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process holds the store.
    #[error("the state folder {} is in use by another manager, process {}", .folder.display(), .pid.map_or("unknown".into(), |p| p.to_string()))]
    Locked {
        /// The state folder.
        folder: PathBuf,
        /// The holder's process id, where it could be read.
        pid: Option<u32>,
    },
    /// A file call failed.
    #[error("cannot {doing} {}", .path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// Why a record could not be written or removed. Nothing is half done: the record is as it was before.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} record {} in {}", .name, .folder.display())]
pub struct WriteError {
    /// What was being done.
    pub doing: &'static str,
    /// The record's file name.
    pub name: String,
    /// The folder.
    pub folder: PathBuf,
    /// What the system said.
    #[source]
    pub source: std::io::Error,
}

/// What is wrong with a record file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnreadableReason {
    /// Empty or cut off.
    #[error("it is torn: {detail}")]
    Torn {
        /// Where.
        detail: String,
    },
    /// The checksum does not fit the content.
    #[error("its checksum is {found}, its content has {computed}")]
    Checksum {
        /// As the file says.
        found: String,
        /// As computed.
        computed: String,
    },
    /// A version that this program does not know.
    #[error("its version {version:?} is newer than this program")]
    Newer {
        /// The file's `apiVersion`.
        version: String,
    },
    /// Another kind than the folder's, or an unknown one, or a record under another record's file name.
    #[error("it is {found:?} where {expected:?} belongs")]
    WrongKind {
        /// The file's kind.
        found: String,
        /// The folder's kind.
        expected: String,
    },
    /// Not JSON, or JSON that is no record.
    #[error("it is no record: {detail}")]
    Malformed {
        /// What is wrong.
        detail: String,
    },
    /// A symlink, folder, socket or the like.
    #[error("it is not a regular file but {what}")]
    NotAFile {
        /// What it is.
        what: String,
    },
    /// Larger than [`crate::codec::MAX_BYTES`].
    #[error("it has {bytes} bytes, more than any record")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// Reading it failed.
    #[error("it cannot be read: {error}")]
    Io {
        /// What the system said.
        error: String,
    },
}

/// A file that is no good record. It has not been changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Where it is now (where it was set aside to, if it was).
    pub path: PathBuf,
    /// Its name in the kind's folder.
    pub name: String,
    /// The record that it was, where content or file name still tell.
    pub key: Option<RecordKey>,
    /// What is wrong.
    pub reason: UnreadableReason,
    /// Whether it was set aside.
    pub set_aside: bool,
}

/// All that was in the store.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The good records, each key once, sorted by key.
    pub records: Vec<Record>,
    /// What could not be read, sorted by path. What earlier starts set aside is not here: see [`Store::set_aside`].
    pub unreadable: Vec<Unreadable>,
}

/// The store of one node. Methods may be called from several threads at once; writes that come together share
/// their syncs.
///
/// # Fields that this version does not know
/// A record that a later minor release wrote may have more top-level fields. [`Store::load`] remembers them,
/// [`Store::put`] writes them again with the record's new content, and [`Store::remove`] forgets them.
pub struct Store<D: Disk = RealDisk> {
    disk: D,
    path: PathBuf,
    state: D::Folder,
    folders: Folders<D>,
    /// Whether the names in the state folder are durable: those of the folders, without which no record in them is.
    /// Made so before the first write, not at the start: a start that only reads waits for no disk.
    names_durable: Mutex<bool>,
    /// Writers share it; `load`, which removes temporary files, has it alone.
    busy: RwLock<()>,
    group: commit::Group<D>,
    known: Mutex<Known>,
    temp_number: AtomicU64,
    /// Held, and with it the lock, as long as the store lives.
    lock: Option<Arc<Lock>>,
}

impl<D: Disk> std::fmt::Debug for Store<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The open folders of a store.
struct Folders<D: Disk> {
    kinds: [D::Folder; RecordKind::COUNT],
    set_aside: D::Folder,
}

impl<D: Disk> Folders<D> {
    fn of(&self, kind: RecordKind) -> &D::Folder {
        &self.kinds[kind as usize]
    }
}

/// What `load` found out and `put` needs.
#[derive(Debug, Default)]
struct Known {
    /// Whether the store was loaded. If not, `put` looks at the file that it replaces.
    loaded: bool,
    /// Unknown fields of records.
    extras: HashMap<RecordKey, Extra>,
    /// Bad files that could not be set aside.
    in_the_way: HashSet<(RecordKind, String)>,
}

const SET_ASIDE: &str = "set-aside";
const LOCK: &str = "lock";
/// How long the lock is waited for. A manager that is killed as it starts a tool leaves its lock to the child, which holds
/// it until its exec.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// Temporary files start with this; no record does.
const TEMP: &str = ".tmp-";

impl Store {
    /// Opens the store for writing: makes the folders (0700) where they are missing and takes the lock, which is
    /// held until the store is dropped.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let state = open_state(folder)?;
        let lock = take_lock(&state, folder)?;
        let mut store = Self::open_on(RealDisk, state, folder)?;
        store.lock = Some(Arc::new(lock));
        Ok(store)
    }

    /// Reads all records in one pass without writing anything, also while a manager holds the store.
    /// A missing folder is an empty store.
    pub fn read(folder: &Path) -> Result<Loaded, OpenError> {
        match open_existing(folder)? {
            Some(state) => load::read_on(&RealDisk, &state, folder),
            None => Ok(Loaded::default()),
        }
    }

    /// What is in the store, file by file, without writing anything: each record with its size and what is wrong with
    /// it, if anything. Sorted by path. A missing folder is an empty store.
    pub fn verify(folder: &Path) -> Result<Vec<Verified>, OpenError> {
        match open_existing(folder)? {
            Some(state) => load::verify_on(&RealDisk, &state, folder),
            None => Ok(Vec::new()),
        }
    }

    /// What this and earlier starts set aside, oldest first. Writes nothing. A missing folder means nothing.
    pub fn set_aside(folder: &Path) -> Result<Vec<SetAside>, OpenError> {
        match open_existing(folder)? {
            Some(state) => set_aside::list_on(&RealDisk, &state, folder),
            None => Ok(Vec::new()),
        }
    }
}

/// Opens the state folder; makes it where it is missing.
fn open_state(folder: &Path) -> Result<OwnedFd, OpenError> {
    let io = |doing| move |source| OpenError::Io { doing, path: folder.into(), source };
    match RealDisk::open_state(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            RealDisk::make_state(folder).map_err(io("make the state folder"))?;
            RealDisk::open_state(folder)
        }
        opened => opened,
    }
    .map_err(io("open the state folder"))
}

fn open_existing(folder: &Path) -> Result<Option<OwnedFd>, OpenError> {
    match RealDisk::open_state(folder) {
        Ok(state) => Ok(Some(state)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OpenError::Io { doing: "open the state folder", path: folder.into(), source }),
    }
}

/// The lock of a store. It is given back in so many words: a child that another thread starts holds a copy of the
/// descriptor until its exec, and with it the lock, if the descriptor were only closed.
#[derive(Debug)]
struct Lock(std::fs::File);

impl Drop for Lock {
    fn drop(&mut self) {
        // The end of the process gives it back too.
        let _ = self.0.unlock();
    }
}

/// Takes the lock, or says who has it.
fn take_lock(state: &OwnedFd, folder: &Path) -> Result<Lock, OpenError> {
    use std::io::Read as _;
    use std::os::unix::fs::FileExt as _;
    let path = folder.join(LOCK);
    let io = |doing| {
        let path = path.clone();
        move |source| OpenError::Io { doing, path, source }
    };
    let open = || RealDisk::open_lock(state, LOCK).map_err(io("open the lock file"));
    let start = Instant::now();
    let mut lock = open()?;
    let lock = loop {
        match lock.try_lock() {
            Ok(()) => {
                let held = Lock(lock);
                if held.is_in(state) {
                    break held;
                }
                // Deleted before it was locked: whoever comes next would lock another file.
                lock = open()?;
            }
            Err(std::fs::TryLockError::WouldBlock) if start.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                let mut text = String::new();
                let pid = lock.take(32).read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(OpenError::Locked { folder: folder.into(), pid });
            }
            Err(std::fs::TryLockError::Error(e)) => return Err(io("lock")(e)),
        }
    };
    // It is for the message that another manager gets. On a full disk it may find no room, and a manager that could not
    // start there could not unmount anything either. Whoever reads it between the two calls sees nothing, never another's.
    let _ = lock.0.set_len(0);
    let _ = lock.0.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0);
    Ok(lock)
}

impl<D: Disk> Store<D> {
    /// Opens the store on a disk whose state folder is open, without a lock.
    fn open_on(disk: D, state: D::Folder, path: &Path) -> Result<Self, OpenError> {
        let io = |doing, name: &str| {
            let path = path.join(name);
            move |source| OpenError::Io { doing, path, source }
        };
        let open = |name: &str| {
            match disk.open_folder(&state, name) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    disk.make_folder(&state, name).map_err(io("make the folder", name))?;
                    disk.open_folder(&state, name)
                }
                opened => opened,
            }
            .map_err(io("open the folder", name))
        };
        let [devices, volumes, pods, drivers] = RecordKind::ALL.map(RecordKind::folder);
        let kinds = [open(devices)?, open(volumes)?, open(pods)?, open(drivers)?];
        let folders = Folders { kinds, set_aside: open(SET_ASIDE)? };
        Ok(Self {
            disk,
            path: path.into(),
            state,
            folders,
            names_durable: Mutex::new(false),
            busy: RwLock::default(),
            group: commit::Group::default(),
            known: Mutex::default(),
            temp_number: AtomicU64::new(0),
            lock: None,
        })
    }

    /// Reads all records in one pass. What cannot be read is set aside intact, under a name that says when and
    /// why, and reported; left-over temporary files are removed.
    ///
    /// A file that the system cannot read at all (an I/O error, too many open files) stays where it is: nothing is
    /// known against it. It is set aside when its record is written anew.
    pub fn load(&self) -> Result<Loaded, OpenError> {
        let _alone = self.busy.write().unwrap_or_else(PoisonError::into_inner);
        load::load(self)
    }

    /// The records of devices, as the disk has them now. What cannot be read is left out and left where it is.
    ///
    /// # Errors
    /// Their folder cannot be read.
    pub fn device_mounts(&self) -> Result<Vec<DeviceMount>, OpenError> {
        let _shared = self.busy.read().unwrap_or_else(PoisonError::into_inner);
        load::device_mounts(self)
    }

    /// Writes a record durably, replacing the one with the same key. When this returns without an error the
    /// record survives a power cut; when it returns one, the store has what it had before.
    pub fn put(&self, record: &Record) -> Result<(), WriteError> {
        self.put_all(std::slice::from_ref(record)).pop().expect("one answer a record")
    }

    /// Writes several records with shared syncs. One answer a record, in order.
    pub fn put_all(&self, records: &[Record]) -> Vec<Result<(), WriteError>> {
        let _shared = self.busy.read().unwrap_or_else(PoisonError::into_inner);
        records.chunks(commit::AT_ONCE).flat_map(|some| self.write_together(some)).collect()
    }

    /// Removes a record. Removing what is not there is done already. Not synced: a record that a power cut
    /// brings back describes something already undone, and undoing is idempotent.
    pub fn remove(&self, key: &RecordKey) -> Result<(), WriteError> {
        let _shared = self.busy.read().unwrap_or_else(PoisonError::into_inner);
        let (kind, name) = (key.kind(), codec::file_name(key));
        self.make_way(kind, &name)?;
        match self.disk.unlink(self.folders.of(kind), OsStr::new(&name)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(self.write_error("remove", kind, &name, e)),
        }
        self.known().extras.remove(key);
        Ok(())
    }

    /// Makes the names of the store's folders durable, if that was not done since the start. Also when all were there:
    /// an earlier start may have died between making and syncing them.
    fn sync_names(&self) -> io::Result<()> {
        let mut durable = self.names_durable.lock().unwrap_or_else(PoisonError::into_inner);
        if !*durable {
            self.disk.sync_folder(&self.state)?;
            *durable = true;
        }
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_error(&self, doing: &'static str, kind: RecordKind, name: &str, source: io::Error) -> WriteError {
        WriteError { doing, name: name.into(), folder: self.path.join(kind.folder()), source }
    }

    /// Sets a bad file aside that `load` could not, so that it is neither overwritten nor removed.
    fn make_way(&self, kind: RecordKind, name: &str) -> Result<(), WriteError> {
        let place = (kind, name.to_owned());
        if self.known().in_the_way.contains(&place) {
            match set_aside::move_away(self, kind, OsStr::new(name), "unreadable") {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(self.write_error("set aside the unreadable file of", kind, name, e)),
            }
            self.known().in_the_way.remove(&place);
        }
        Ok(())
    }

    /// The unknown fields that the record's file has now.
    fn extra_of(&self, key: &RecordKey, name: &str) -> Result<Extra, WriteError> {
        let known = self.known();
        if known.loaded {
            return Ok(known.extras.get(key).cloned().unwrap_or_default());
        }
        drop(known);
        let kind = key.kind();
        let mut buffer = Vec::new();
        match load::examine(&self.disk, self.folders.of(kind), kind, OsStr::new(name), &mut buffer) {
            None => Ok(Extra::default()),
            Some(load::Examined { outcome: Ok(stored), .. }) => Ok(stored.extra),
            Some(load::Examined { outcome: Err(reason), .. }) => {
                set_aside::move_away(self, kind, OsStr::new(name), set_aside::word(&reason))
                    .map_err(|e| self.write_error("set aside the unreadable file of", kind, name, e))?;
                Ok(Extra::default())
            }
        }
    }
}

/// A folder entry's name for people.
fn shown(name: &OsString) -> String {
    name.to_string_lossy().into_owned()
}
