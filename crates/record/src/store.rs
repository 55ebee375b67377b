//! The crash-safe store of records: one file a record.

use std::path::{Path, PathBuf};

use crate::{Record, RecordKey};

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
    /// What could not be read, sorted by path; includes what earlier starts set aside only if asked for.
    pub unreadable: Vec<Unreadable>,
}

/// The store of one node. Methods may be called from several threads at once; writes that come together share
/// their syncs.
#[derive(Debug)]
pub struct Store {}

impl Store {
    /// Opens the store for writing: makes the folders (0700) where they are missing and takes the lock, which is
    /// held until the store is dropped.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let _ = folder;
        todo!()
    }

    /// Reads all records in one pass without writing anything, also while a manager holds the store.
    /// A missing folder is an empty store.
    pub fn read(folder: &Path) -> Result<Loaded, OpenError> {
        let _ = folder;
        todo!()
    }

    /// Reads all records in one pass. What cannot be read is set aside intact, under a name that says when and
    /// why, and reported; left-over temporary files are removed.
    pub fn load(&self) -> Result<Loaded, OpenError> {
        todo!()
    }

    /// Writes a record durably, replacing the one with the same key. When this returns without an error the
    /// record survives a power cut.
    pub fn put(&self, record: &Record) -> Result<(), WriteError> {
        let _ = record;
        todo!()
    }

    /// Writes several records with shared syncs. One answer a record, in order.
    pub fn put_all(&self, records: &[Record]) -> Vec<Result<(), WriteError>> {
        let _ = records;
        todo!()
    }

    /// Removes a record. Removing what is not there is done already. Not synced: a record that a power cut
    /// brings back describes something already undone, and undoing is idempotent.
    pub fn remove(&self, key: &RecordKey) -> Result<(), WriteError> {
        let _ = key;
        todo!()
    }
}
