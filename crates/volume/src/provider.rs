//! Providers: programs outside this one that are asked about volumes, and may remember something of them.
//!
//! A provider is a manifest in a folder, with a program or a Unix socket. It is asked after a volume is there, again after a
//! restart, and told when the volume is gone. What it answers is kept in the volume's record, beside the plugin's own
//! `providerInfo`, and handed back. Nothing of the volume depends on it: one that is missing, hangs or talks nonsense is told,
//! rests for a while, and is asked again. `docs/providers.md` is the interface.

mod answer;
mod manifest;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use refloat_csi::Secrets;
use refloat_record::{BootId, PluginName, Record, Verbatim, codec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::tool::{MAX_OUTPUT, ToolError, run};
use crate::{Host, Problem};
pub(crate) use answer::MAX_INFO;
use socket::SocketError;

/// The version of the interface that this program speaks.
pub const API_VERSION: &str = "provider.refloat.dev/v1";

/// What is asked of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProviderCall {
    /// A device was mounted.
    MountDevice,
    /// A volume was set up for a pod.
    SetUp,
    /// After a restart: find your way back to what you remembered, and say whether it is well.
    Reconnect,
    /// After a restart: say whether it is well.
    Check,
    /// A volume is gone from its pod's folder.
    TearDown,
    /// A device is unmounted.
    UnmountDevice,
}

impl ProviderCall {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::MountDevice, Self::SetUp, Self::Reconnect, Self::Check, Self::TearDown, Self::UnmountDevice];

    /// Its name in the interface.
    pub fn name(self) -> &'static str {
        match self {
            Self::MountDevice => "mountDevice",
            Self::SetUp => "setUp",
            Self::Reconnect => "reconnect",
            Self::Check => "check",
            Self::TearDown => "tearDown",
            Self::UnmountDevice => "unmountDevice",
        }
    }
}

impl std::fmt::Display for ProviderCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How a provider is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reached {
    /// A program with its first arguments.
    Program(PathBuf, Vec<String>),
    /// A Unix socket.
    Socket(PathBuf),
}

/// A provider as its manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    name: String,
    /// Those whose volumes it is asked about; all if there are none.
    plugins: BTreeSet<String>,
    calls: BTreeSet<ProviderCall>,
    deadline: Duration,
    reached: Reached,
    /// What tells whether it is another one than before.
    identity: u64,
}

impl Provider {
    /// Its name, which is its manifest's file name without `.json`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is asked about volumes of this plugin.
    pub fn is_for(&self, plugin: &PluginName) -> bool {
        self.plugins.is_empty() || self.plugins.contains(plugin.as_str())
    }

    /// Whether it wants this call.
    pub fn has(&self, call: ProviderCall) -> bool {
        self.calls.contains(&call)
    }
}

/// Why a provider gave no answer that counts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// There is nothing at its place.
    #[error("the provider {provider} is not there: cannot reach {}", .at.display())]
    Missing {
        /// The provider.
        provider: String,
        /// Where it was looked for.
        at: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It did not answer in time. A program was killed with its children.
    #[error("the provider {provider} did not answer {call} within {deadline:?}{}", if *.killed { " and was killed" } else { "" })]
    Timeout {
        /// The provider.
        provider: String,
        /// The call.
        call: ProviderCall,
        /// The deadline.
        deadline: Duration,
        /// Whether it is a program.
        killed: bool,
    },
    /// It answered, and not as the interface says.
    #[error("the provider {provider} answered {call} with {what}")]
    Failed {
        /// The provider.
        provider: String,
        /// The call.
        call: ProviderCall,
        /// What it did, in words, without a byte of what it printed.
        what: String,
    },
    /// It answered in a version that nobody asked for.
    #[error("the provider {provider} answered {call} in the version {found:?}, and was asked in {API_VERSION}")]
    Version {
        /// The provider.
        provider: String,
        /// The call.
        call: ProviderCall,
        /// The version, shortened.
        found: String,
    },
    /// It says that something is wrong with the volume.
    #[error("the provider {provider} answered {call} with Failure: {message:?}")]
    Refused {
        /// The provider.
        provider: String,
        /// The call.
        call: ProviderCall,
        /// What it said, shortened and without secrets.
        message: String,
    },
}

impl ProviderError {
    /// A stable code and a hint.
    pub(crate) fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Missing { .. } => (
                "ProviderMissing",
                "Install it again, or remove its manifest. The volumes stay as they are, and it is asked again.",
            ),
            Self::Timeout { .. } => (
                "ProviderTimeout",
                "Look for what keeps it. The volumes stay as they are; it is left alone for a while and asked again.",
            ),
            Self::Failed { .. } => (
                "ProviderFailed",
                "Call it by hand as docs/providers.md says, to see what it prints. The volumes stay as they are.",
            ),
            Self::Version { .. } => {
                ("ProviderVersionUnknown", "Use a provider that speaks this version. The volumes stay as they are.")
            }
            Self::Refused { .. } => (
                "ProviderRefused",
                "See the provider's own documentation. The volume stays as it is; it is asked again.",
            ),
        }
    }

    /// Whether it is about the one volume. Anything else is about the provider.
    pub fn is_of_volume(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

/// What is said to a provider.
#[derive(Debug, Clone, Copy)]
pub struct ProviderRequest<'a> {
    /// The call.
    pub call: ProviderCall,
    /// The node root.
    pub root: &'a Path,
    /// This boot.
    pub boot_id: &'a BootId,
    /// The volume's or device's record.
    pub record: &'a Record,
    /// What must not stand in its answer; `None` where that cannot be told, and then no `providerInfo` is taken.
    pub secrets: Option<&'a Secrets>,
}

/// A provider that failed is left alone for this long after so many failures in a row: a second, doubled each time, at most
/// two minutes.
fn rest(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.saturating_sub(1).min(7)).min(Duration::from_secs(120))
}

/// A provider that is left alone.
#[derive(Debug)]
struct Resting {
    failures: u32,
    until: Instant,
    problem: Problem,
}

#[derive(Debug, Default)]
struct State {
    list: Arc<Vec<Arc<Provider>>>,
    /// What is wrong with manifests.
    problems: Vec<Problem>,
    resting: BTreeMap<String, Resting>,
}

/// The providers of a node. Clones share what is known.
#[derive(Debug, Clone, Default)]
pub struct Providers {
    folder: Option<PathBuf>,
    state: Arc<Mutex<State>>,
}

impl Providers {
    /// Those in this folder, if there is one. It is read now.
    pub fn new(folder: Option<PathBuf>) -> Self {
        let providers = Self { folder, state: Arc::default() };
        providers.load();
        providers
    }

    /// The folder.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the folder. Answers the names of those that came, went, or are others than before.
    pub fn load(&self) -> BTreeSet<String> {
        let Some(folder) = &self.folder else { return BTreeSet::new() };
        let (list, problems) = manifest::read_all(folder);
        let mut state = self.state();
        let one_sided = |these: &[Arc<Provider>], those: &[Arc<Provider>]| -> BTreeSet<String> {
            these.iter().filter(|one| !those.contains(one)).map(|one| one.name.clone()).collect()
        };
        let mut changed = one_sided(&list, &state.list);
        changed.append(&mut one_sided(&state.list, &list));
        state.resting.retain(|name, _| !changed.contains(name));
        state.list = Arc::new(list);
        state.problems = problems;
        changed
    }

    /// Those that can be asked, by name.
    pub fn list(&self) -> Arc<Vec<Arc<Provider>>> {
        Arc::clone(&self.state().list)
    }

    /// Those that failed last, with when each may be asked again.
    pub fn resting(&self) -> BTreeMap<String, Instant> {
        self.state().resting.iter().map(|(name, resting)| (name.clone(), resting.until)).collect()
    }

    /// What is wrong with manifests, and with providers that failed.
    pub fn problems(&self) -> Vec<Problem> {
        let state = self.state();
        state.problems.iter().chain(state.resting.values().map(|resting| &resting.problem)).cloned().collect()
    }

    /// Asks. The answer is its `providerInfo`, if it is to be kept: what is recorded stays if it has none. A provider that
    /// fails is left alone for a while.
    ///
    /// # Errors
    /// It gave no answer that counts.
    pub fn ask(&self, provider: &Provider, request: &ProviderRequest<'_>) -> Result<Option<Verbatim>, ProviderError> {
        let answered = provider.ask(request);
        let mut state = self.state();
        match &answered {
            Err(error) if !error.is_of_volume() => {
                let failures =
                    state.resting.get(provider.name()).map_or(0, |resting| resting.failures).saturating_add(1);
                let (code, hint) = error.words();
                let problem = Problem::new(code, crate::error_chain(error), hint);
                let until = Instant::now() + rest(failures);
                state.resting.insert(provider.name.clone(), Resting { failures, until, problem });
            }
            Ok(_) | Err(_) => drop(state.resting.remove(provider.name())),
        }
        answered
    }

    /// Tells those that remember something of it that a volume or device is gone. It is gone whether they hear of it or not.
    pub fn tell_gone(&self, host: &Host, record: &Record) {
        let (call, answers) = match record {
            Record::PodVolume(volume) => (ProviderCall::TearDown, &volume.providers),
            Record::DeviceMount(device) => (ProviderCall::UnmountDevice, &device.providers),
            Record::PodCheckpoint(_) | Record::Driver(_) => return,
        };
        for (name, _) in answers.iter().filter(|(_, answer)| answer.provider_info.is_some()) {
            let list = self.list();
            let Some(provider) = list.iter().find(|p| p.name == *name && p.has(call)) else { continue };
            if self.resting().get(name).is_some_and(|until| *until > Instant::now()) {
                tracing::warn!(provider = name, %call, key = ?record.key(), "not told: the provider did not answer lately");
                continue;
            }
            let request =
                ProviderRequest { call, root: host.root.path(), boot_id: &host.boot_id, record, secrets: None };
            let told = self.ask(provider, &request);
            if let Err(error) = told {
                let (code, _) = error.words();
                tracing::warn!(code, error = %crate::error_chain(&error), "a provider did not hear that a volume is gone");
            }
        }
    }
}

impl Provider {
    fn ask(&self, request: &ProviderRequest<'_>) -> Result<Option<Verbatim>, ProviderError> {
        let call = request.call;
        tracing::debug!(provider = self.name, %call, "asks a provider");
        let mut text = self.request(request).to_string().into_bytes();
        text.push(b'\n');
        let failed = |what: String| ProviderError::Failed { provider: self.name.clone(), call, what };
        let timeout =
            |killed| ProviderError::Timeout { provider: self.name.clone(), call, deadline: self.deadline, killed };
        let missing =
            |at: &Path, source| ProviderError::Missing { provider: self.name.clone(), at: at.to_owned(), source };
        let (printed, code) = match &self.reached {
            Reached::Program(program, first) => {
                let args: Vec<&OsStr> = first.iter().map(OsStr::new).chain([OsStr::new(call.name())]).collect();
                let output = run(program.as_os_str(), &args, &[], Some(&text), self.deadline);
                let output = output.map_err(|error| match error {
                    ToolError::Deadline { .. } => timeout(true),
                    ToolError::Start { source, .. } => missing(program, source),
                    error @ ToolError::Failed { .. } => failed(error.to_string()),
                })?;
                (output.stdout, output.code)
            }
            Reached::Socket(path) => {
                let answered = socket::ask(path, &text, self.deadline, MAX_OUTPUT).map_err(|error| match error {
                    SocketError::Connect(source) => missing(path, source),
                    SocketError::Broken(source) => failed(format!("a broken connection ({source})")),
                    SocketError::Deadline => timeout(false),
                    SocketError::TooMuch => failed(format!("more than {} KiB", MAX_OUTPUT >> 10)),
                })?;
                (answered, Some(0))
            }
        };
        answer::Parsed::of(&printed, code).map_err(failed)?.judge(&self.name, request)
    }

    /// The request as it is sent.
    fn request(&self, request: &ProviderRequest<'_>) -> Value {
        let (path, answers) = match request.record {
            Record::PodVolume(volume) => (volume.path.as_ref(), Some(&volume.providers)),
            Record::DeviceMount(device) => (Some(&device.device_mount_path), Some(&device.providers)),
            Record::PodCheckpoint(_) | Record::Driver(_) => (None, None),
        };
        let own = answers.and_then(|all| all.get(&self.name)).and_then(|answer| answer.provider_info.as_ref());
        let mut record: Map<String, Value> =
            serde_json::from_slice(&codec::encode(request.record)).expect("a record is a JSON object");
        // The checksum is of the file; what other providers said is theirs.
        record.shift_remove("checksum");
        record.shift_remove("providers");
        json!({
            "apiVersion": API_VERSION,
            "kind": "ProviderRequest",
            "call": request.call,
            "rootDir": request.root.to_string_lossy(),
            "bootID": request.boot_id,
            "path": path.map(|path| path.below(request.root).to_string_lossy().into_owned()),
            "record": record,
            "providerInfo": own,
        })
    }
}
