//! Failing on order.
//!
//! A file in the faults folder, named after a call (`NodeStageVolume`) or `any`, holds a [`Fault`] as JSON. It is read at
//! each call, so a test can order and withdraw while the driver runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

/// The file for all calls.
const ANY: &str = "any";

/// An order to fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// What to do.
    pub action: Action,
    /// For how many calls; none for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// Only for calls of this volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

/// How to fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Action {
    /// Answer with a code, without having done anything.
    #[serde(rename_all = "camelCase")]
    Code {
        /// The gRPC code's number.
        code: i32,
        /// The error text; `{secrets}` in it is replaced by the values of the call's secrets.
        message: String,
    },
    /// Do the work, then answer with a code.
    #[serde(rename_all = "camelCase")]
    CodeAfter {
        /// The gRPC code's number.
        code: i32,
        /// The error text; as in `Code`.
        message: String,
    },
    /// Never answer, and do nothing.
    Hang,
    /// Do the work, and never answer.
    HangAfter,
    /// Answer OK, and do nothing.
    Lie,
    /// End the process by SIGKILL before the work.
    Crash,
    /// End the process by SIGKILL between the work and the answer.
    CrashAfter,
    /// Wait so many milliseconds, then do the work.
    Slow(u64),
}

impl Fault {
    /// For all calls.
    pub fn always(action: Action) -> Self {
        Self { action, times: None, volume: None }
    }

    /// For the next call.
    pub fn once(action: Action) -> Self {
        Self { times: Some(1), ..Self::always(action) }
    }

    /// Only for this volume.
    #[must_use]
    pub fn of_volume(self, volume: &str) -> Self {
        Self { volume: Some(volume.into()), ..self }
    }
}

/// The faults folder.
#[derive(Debug)]
pub struct Faults {
    folder: PathBuf,
    /// Held while a fault is counted down.
    lock: Mutex<()>,
}

impl Faults {
    /// The faults in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), lock: Mutex::new(()) }
    }

    /// Orders a fault of a call, or of `any`.
    pub fn order(&self, call: &str, fault: &Fault) -> io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let new = self.folder.join(format!(".{call}.{}", std::process::id()));
        std::fs::write(&new, serde_json::to_vec(fault)?)?;
        std::fs::rename(new, self.folder.join(call))
    }

    /// Withdraws what was ordered.
    pub fn withdraw(&self, call: &str) -> io::Result<()> {
        gone(std::fs::remove_file(self.folder.join(call)))
    }

    /// Withdraws everything.
    pub fn withdraw_all(&self) -> io::Result<()> {
        for name in names(&self.folder)? {
            self.withdraw(&name)?;
        }
        Ok(())
    }

    /// What to do in this call. A fault that cannot be read is an error, so that a test with a mistake does not pass.
    pub(crate) fn take(&self, call: &str, volume: &str) -> io::Result<Option<Action>> {
        let _held = self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for name in [call, ANY] {
            let text = match std::fs::read(self.folder.join(name)) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let mut fault: Fault = serde_json::from_slice(&text)?;
            if fault.volume.as_ref().is_some_and(|only| only != volume) {
                continue;
            }
            let action = fault.action.clone();
            match &mut fault.times {
                None => {}
                Some(0 | 1) => self.withdraw(name)?,
                Some(times) => {
                    *times -= 1;
                    self.order(name, &fault)?;
                }
            }
            return Ok(Some(action));
        }
        Ok(None)
    }
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
