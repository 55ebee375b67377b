//! The journal: a line of JSON when a call begins and one when it ends, each synced before anything goes on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The driver's process.
    pub pid: u32,
    /// The call's number in this process.
    pub number: u64,
    /// The call, such as `NodeStageVolume`; `Connection` for a connection that was accepted.
    pub call: String,
    /// Its beginning or its end.
    pub event: Event,
    /// The volume's handle.
    pub volume: String,
    /// The staging or target path.
    pub path: String,
    /// Names of the secrets that came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
}

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    /// The call came.
    Begin,
    /// It was answered: a gRPC code by name, `Ok` or such as `NotFound`, with the text.
    End(String),
    /// The client gave it up.
    Dropped,
}

/// Writes the journal. Nothing if it has no file.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Option<File>,
    next: AtomicU64,
}

impl Journal {
    pub(crate) fn open(path: Option<&Path>) -> io::Result<Self> {
        let open = |path| OpenOptions::new().append(true).create(true).open(path);
        Ok(Self { file: path.map(open).transpose()?, next: AtomicU64::new(1) })
    }

    /// A number for a call.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn write(&self, entry: &Entry) {
        let Some(mut file) = self.file.as_ref() else { return };
        let written = serde_json::to_vec(entry).map_err(io::Error::other).and_then(|mut line| {
            line.push(b'\n');
            file.write_all(&line)?;
            file.sync_data()
        });
        if let Err(error) = written {
            // A test that reads the journal would judge wrongly.
            eprintln!("the journal cannot be written: {error}");
            std::process::exit(1);
        }
    }
}

/// Reads a journal. A missing one is empty; a last line that is not complete is left out.
pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str(line).map_err(io::Error::other)).collect()
}
