//! The drivers of this node: where they are, and what they said of themselves.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use refloat_csi::Secrets;
use refloat_record::PluginName;
use serde_json::{Map, Value};

use super::{Answer, CallError, field, is_there, program_of};
use crate::Host;

const INIT: &str = "init";

/// What a driver says of itself when it is asked to `init`. The kubelet's `selinuxRelabel` and
/// `supportsMetrics` are accepted and change nothing here.
///
/// # Source
/// `DriverCapabilities` of `pkg/volume/flexvolume/driver-call.go`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DriverCapabilities {
    /// Its volumes are attached first, and may have a device that pods share.
    pub(super) attach: bool,
    /// The files are given to the pod's fsGroup after it has mounted.
    pub(super) fs_group: bool,
    /// Its file systems are grown after its volumes have.
    pub(super) fs_resize: bool,
}

impl DriverCapabilities {
    /// What the answer says, and the kubelet's defaults for the rest.
    fn told(answer: &Map<String, Value>) -> Self {
        let told = field(answer, "capabilities").and_then(Value::as_object);
        let is = |name: &str| told.and_then(|told| field(told, name)).and_then(Value::as_bool).unwrap_or(true);
        Self { attach: is("attach"), fs_group: is("fsGroup"), fs_resize: is("requiresFSResize") }
    }
}

/// Which program it was: another one is another driver, which is asked anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Identity {
    fn of(program: &Path) -> Option<Self> {
        let seen = std::fs::metadata(program).ok()?;
        Some(Self {
            device: seen.dev(),
            inode: seen.ino(),
            changed: (seen.ctime(), seen.ctime_nsec()),
            modified: (seen.mtime(), seen.mtime_nsec()),
        })
    }
}

type Initialised = Arc<Mutex<Option<(Identity, DriverCapabilities)>>>;

/// The folder of drivers, and which of them were initialised. Clones share what is known.
#[derive(Debug, Clone, Default)]
pub struct FlexDrivers {
    folder: PathBuf,
    known: Arc<Mutex<HashMap<PluginName, Initialised>>>,
}

impl FlexDrivers {
    /// The drivers in this folder; none of them was asked anything yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, known: Arc::default() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the driver can do: as it said when it was initialised, which it is now if it was not since this program started or is
    /// another program than then. A driver that hangs meanwhile keeps nobody but its own volumes waiting.
    pub(super) fn initialised(&self, host: &Host, plugin: &PluginName) -> Result<DriverCapabilities, CallError> {
        let missing = || CallError::Missing {
            driver: plugin.to_string(),
            program: program_of(&self.folder, plugin).unwrap_or_default(),
        };
        if !is_there(&self.folder, plugin) {
            return Err(missing());
        }
        let known = {
            let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(plugin.clone()).or_default())
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let identity = program_of(&self.folder, plugin).as_deref().and_then(Identity::of).ok_or_else(missing)?;
        if let Some((then, capabilities)) = *known
            && then == identity
        {
            return Ok(capabilities);
        }
        let none = Secrets::default();
        let answer =
            match super::ask(host, plugin, &super::Call { command: INIT, args: &[], secrets: &none, info: None })? {
                Answer::Done(answer) => answer,
                Answer::NotSupported => {
                    return Err(CallError::Refused {
                        driver: plugin.to_string(),
                        call: INIT,
                        status: super::NOT_SUPPORTED.into(),
                        message: String::new(),
                    });
                }
            };
        let capabilities = DriverCapabilities::told(&answer);
        tracing::info!(driver = %plugin, ?capabilities, "the flexVolume driver is initialised");
        *known = Some((identity, capabilities));
        Ok(capabilities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_does_not_say_is_as_the_kubelet_takes_it() {
        let told = |text: &str| {
            let capabilities = DriverCapabilities::told(&serde_json::from_str(text).unwrap());
            (capabilities.attach, capabilities.fs_group, capabilities.fs_resize)
        };
        assert_eq!(told(r#"{"status":"Success"}"#), (true, true, true));
        assert_eq!(told(r#"{"capabilities":{"attach":false,"requiresFSResize":false}}"#), (false, true, false));
        let other = r#"{"Capabilities":{"Attach":false,"FSGroup":false,"supportsMetrics":true}}"#;
        assert_eq!(told(other), (false, false, true));
        assert_eq!(told(r#"{"capabilities":{"attach":"no"}}"#), (true, true, true));
    }
}
