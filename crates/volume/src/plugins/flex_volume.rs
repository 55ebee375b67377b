//! flexVolume: how a driver, which is a program, is found and asked to make a volume, and to undo what it made.
//!
//! A driver of the plugin `<vendor>/<driver>` is `<folder>/<vendor>~<driver>/<driver>`, called with a command and its arguments;
//! its answer is one JSON object on standard output. It gets a deadline, after which its whole process group is killed. What it
//! answers is believed when the mount table agrees. Undoing passes it a path and no secret. What a driver prints besides its
//! answer is never shown.
//!
//! Refloat does not detach: the attach/detach controller does, once the node no longer says that the volume is in use. Neither
//! does it call `init`, which is the kubelet's when it finds the driver.
//!
//! # Source
//! `pkg/volume/flexvolume` of Kubernetes v1.36: `probe.go`, `driver-call.go`, `unmounter.go`, `detacher.go`.

mod drivers;
mod expand;
mod info;
mod set_up;
mod source;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use refloat_csi::Secrets;
use refloat_mount::Standing;
use refloat_record::{PluginName, RecordedMount, RelPath, Verbatim};
use serde_json::{Map, Value};

pub use super::known::is_flex as is_flex_volume;
pub use drivers::FlexDrivers;
use info::Info;
pub(super) use set_up::{mount_device, set_up};
pub(super) use source::{Source, checked, inputs};

use crate::tool::{json_object, run, shortened};
use crate::{Host, Problem, Recorded, TearDown, ToolError, UnmountDevice, VolumeError};

/// The kubelet's folder of drivers, unless it is told another (`volumePluginDir`).
pub const DEFAULT_DRIVER_FOLDER: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

const UNMOUNT: &str = "unmount";
const UNMOUNT_DEVICE: &str = "unmountdevice";

/// The status of what a driver leaves to the kubelet.
const NOT_SUPPORTED: &str = "Not supported";

/// So many times in a row a driver may refuse to unmount what is not there, before that counts as done.
const REFUSALS: u32 = 4;

/// Why a driver did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is no such program.
    #[error("the flexVolume driver {driver} is not there: {} is no program", .program.display())]
    Missing {
        /// The driver.
        driver: String,
        /// Where it was looked for.
        program: PathBuf,
    },
    /// It could not be run, or did not end in time.
    #[error("the flexVolume driver {driver} gave no answer to {call}")]
    Run {
        /// The driver.
        driver: String,
        /// The command.
        call: &'static str,
        /// What happened.
        #[source]
        source: ToolError,
    },
    /// It answered, and not with one JSON object that has a status.
    #[error("the flexVolume driver {driver} answered {call} with {what} ({})", exit(*.code))]
    Garbage {
        /// The driver.
        driver: String,
        /// The command.
        call: &'static str,
        /// What it printed, in words.
        what: String,
        /// Its exit code; none if a signal ended it.
        code: Option<i32>,
    },
    /// It said no.
    #[error("the flexVolume driver {driver} refused {call}: status {status:?}, message {message:?}")]
    Refused {
        /// The driver.
        driver: String,
        /// The command.
        call: &'static str,
        /// The status that it answered with.
        status: String,
        /// What it said, shortened.
        message: String,
    },
}

fn exit(code: Option<i32>) -> String {
    code.map_or_else(|| "ended by a signal".to_owned(), |code| format!("exit code {code}"))
}

impl CallError {
    /// A stable code and a hint.
    pub(crate) fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Missing { .. } => (
                "DriverMissing",
                "Install the driver again, or name the folder of drivers with --flex-volume-plugin-dir. The volume is kept as \
                 it is until then.",
            ),
            Self::Run { source: ToolError::Deadline { .. }, .. } => {
                ("DriverTimeout", "The driver was killed. Look for a device or server that does not answer it.")
            }
            Self::Run { .. } | Self::Garbage { .. } => (
                "DriverFailed",
                "The driver may have done a part of it. Run it by hand with the same arguments to see what it meets.",
            ),
            Self::Refused { .. } => ("DriverRefused", "Look into the driver's log for why."),
        }
    }

    /// Whether the driver may do it when it is asked once more.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Whether it said no, or was not there to be asked: then nothing of it goes on any more.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Missing { .. })
    }

    /// The driver.
    pub fn driver(&self) -> &str {
        match self {
            Self::Missing { driver, .. }
            | Self::Run { driver, .. }
            | Self::Garbage { driver, .. }
            | Self::Refused { driver, .. } => driver,
        }
    }
}

/// The program of the driver with this name; none if the name is no driver's. Names come from folders of pods.
fn program_of(folder: &Path, plugin: &PluginName) -> Option<PathBuf> {
    let name = plugin.as_str();
    let driver = name.rsplit('/').next()?;
    // The kubelet passes over folders that begin with a dot.
    if !is_flex_volume(plugin) || name.starts_with('.') || [".", ".."].contains(&driver) {
        return None;
    }
    Some(folder.join(plugin.escaped()).join(driver))
}

/// Whether the driver of this plugin is in the folder of drivers and can be run.
pub fn is_there(folder: &Path, plugin: &PluginName) -> bool {
    program_of(folder, plugin).is_some_and(|program| {
        std::fs::metadata(program).is_ok_and(|seen| seen.is_file() && seen.permissions().mode() & 0o111 != 0)
    })
}

/// What a driver answered that did not fail.
#[derive(Debug, PartialEq)]
enum Answer {
    /// It did it; the whole answer.
    Done(Map<String, Value>),
    NotSupported,
}

/// A path as the kubelet spells it.
fn spelled(host: &Host, path: &RelPath) -> PathBuf {
    let root = std::path::absolute(host.root.given_path()).unwrap_or_else(|_| host.root.path().to_path_buf());
    path.below(&root)
}

/// The variable in which a driver gets what it said of the volume, its own `providerInfo`, in every call: also those that have
/// no options to put it into.
const PROVIDER_INFO: &str = "REFLOAT_PROVIDER_INFO";

/// What a driver is asked.
#[derive(Clone, Copy)]
struct Call<'a> {
    command: &'static str,
    args: &'a [&'a OsStr],
    /// What it says is shown without these.
    secrets: &'a Secrets,
    /// Its own `providerInfo`, as it was recorded.
    info: Option<&'a Verbatim>,
}

/// Asks the driver.
fn ask(host: &Host, plugin: &PluginName, call: &Call<'_>) -> Result<Answer, CallError> {
    let Call { command, args, secrets, info } = *call;
    let driver = || plugin.to_string();
    let folder = host.flex_drivers.folder();
    let program = program_of(folder, plugin).unwrap_or_default();
    if !is_there(folder, plugin) {
        return Err(CallError::Missing { driver: driver(), program });
    }
    tracing::debug!(driver = %plugin, command, "asks a flexVolume driver");
    let args: Vec<&OsStr> = std::iter::once(OsStr::new(command)).chain(args.iter().copied()).collect();
    let environment: Vec<_> = info.map(|info| (PROVIDER_INFO, OsStr::new(info.get()))).into_iter().collect();
    let output = run(program.as_os_str(), &args, &environment, None, host.tool_deadline)
        .map_err(|source| CallError::Run { driver: driver(), call: command, source })?;
    let garbage = |what| CallError::Garbage { driver: driver(), call: command, what, code: output.code };
    let answer = parse(&output.stdout).map_err(garbage)?;
    match (answer.status.as_str(), output.code) {
        (NOT_SUPPORTED, _) => Ok(Answer::NotSupported),
        ("Success", Some(0)) => Ok(Answer::Done(answer.whole)),
        ("Success", _) => Err(garbage("Success, and yet failed".into())),
        _ => Err(CallError::Refused {
            driver: driver(),
            call: command,
            status: shortened(&secrets.hidden_in(&answer.status)),
            message: shortened(&secrets.hidden_in(&answer.message)),
        }),
    }
}

/// An answer, and what stands in it.
#[derive(Debug)]
struct Parsed {
    status: String,
    message: String,
    whole: Map<String, Value>,
}

/// The error is what it is instead of an answer, without a byte of it.
fn parse(stdout: &[u8]) -> Result<Parsed, String> {
    let whole = json_object(stdout)?;
    let text = |name: &str| field(&whole, name).and_then(Value::as_str).map(str::to_owned);
    let status = text("status").filter(|status| !status.is_empty()).ok_or("an object without a status")?;
    let message = text("message").unwrap_or_default();
    Ok(Parsed { status, message, whole })
}

/// A field of an answer. Go's decoder takes names in any case.
fn field<'a>(answer: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let other = || answer.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    answer.get(name).or_else(other)
}

/// TearDown: the driver's `unmount`, or a plain one where it leaves that to the kubelet.
pub(super) fn tear_down(step: &TearDown<'_>) -> Result<(), VolumeError> {
    let (host, record) = (step.host, step.record);
    let path = record.path.as_ref().ok_or_else(|| {
        VolumeError::Refused(Problem::new(
            "NoFolder",
            "the record of a flexVolume has no path",
            "the record was changed by hand or by another program; `refloat record show` prints it",
        ))
    })?;
    crate::unmount_nested(host, path)?;
    let expected = host.announced_mount(record.mount.as_ref(), &record.boot_id);
    if layers(host, path)? == 0 && host.root.look(path.as_path()).map_err(VolumeError::Path)? == Standing::Nothing {
        return Ok(());
    }
    if !is_there(host.flex_drivers.folder(), &record.plugin) && step.without_driver {
        tracing::warn!(driver = %record.plugin, path = %path, "its flexVolume driver is not there; unmounted without it");
        crate::unmount_own_layers(host, path, expected.as_ref())?;
    } else if let Err(error) = undo(host, record.into(), UNMOUNT, path, expected.as_ref()) {
        // Scripts fail when there is nothing to unmount, for ever: after a reboot, say.
        let refused = matches!(&error, VolumeError::FlexDriver(error) if error.is_refusal());
        if !refused || step.failures < REFUSALS || layers(host, path)? > 0 {
            return Err(error);
        }
        let entries = host.root.list(path.as_path()).map_err(VolumeError::Path)?;
        if entries.is_some_and(|entries| !entries.is_empty()) {
            return Err(error);
        }
        tracing::warn!(driver = %record.plugin, path = %path, "the driver refuses again and again, and nothing is there");
    }
    crate::remove_volume_dir(host, path, false)
}

/// UnmountDevice: the driver's `unmountdevice`, if the device is mounted.
pub(super) fn unmount_device(step: &UnmountDevice<'_>) -> Result<(), VolumeError> {
    let (host, record, path) = (step.host, step.record, &step.record.device_mount_path);
    let expected = host.announced_mount(record.mount.as_ref(), &record.boot_id);
    if layers(host, path)? > 0 {
        undo(host, record.into(), UNMOUNT_DEVICE, path, expected.as_ref())?;
    }
    crate::remove_volume_dir(host, path, false)
}

/// Asks until nothing is mounted there, as long as each call takes something off: a volume that was mounted several times over
/// needs several.
fn undo(
    host: &Host,
    of: Recorded<'_>,
    command: &'static str,
    path: &RelPath,
    expected: Option<&RecordedMount>,
) -> Result<(), VolumeError> {
    let Some(plugin) = of.plugin else { return Ok(()) };
    let info = Info::recorded(of.provider_info);
    loop {
        let before = layers(host, path)?;
        let spelled = spelled(host, path);
        let (args, none) = ([spelled.as_os_str()], Secrets::default());
        let call = Call { command, args: &args, secrets: &none, info: info.answered.as_ref() };
        if ask(host, plugin, &call)? == Answer::NotSupported {
            return crate::unmount_own_layers(host, path, expected);
        }
        match layers(host, path)? {
            0 => return Ok(()),
            after if after < before => {}
            _ => {
                return Err(VolumeError::Refused(Problem::new(
                    "StillMounted",
                    format!(
                        "the flexVolume driver {plugin} answered {command} with Success, but {} is still mounted",
                        host.absolute(path).display()
                    ),
                    "This is a fault of the driver; look into its log. Nothing is removed.",
                )));
            }
        }
    }
}

/// How many mounts are at and below a path.
fn layers(host: &Host, path: &RelPath) -> Result<usize, VolumeError> {
    let path = host.absolute(path);
    let table = host.mount_table_at(&path).map_err(VolumeError::Table)?;
    Ok(table.stack(&path).len() + table.under(&path).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_the_kubelets_rule() {
        let at = |name: &str| program_of(Path::new("/e"), &PluginName::new(name).unwrap());
        assert_eq!(at("acme/nfs"), Some("/e/acme~nfs/nfs".into()));
        assert_eq!(at("lone"), Some("/e/lone/lone".into()));
        assert_eq!(at("example.com/my.driver"), Some("/e/example.com~my.driver/my.driver".into()));
        for name in ["kubernetes.io/nfs", ".hidden/nfs", "a/.."] {
            assert_eq!(at(name), None, "{name}");
        }
    }

    #[test]
    fn answers_are_one_json_object_with_a_status() {
        let status = |text: &str| parse(text.as_bytes()).map(|answer| answer.status);
        assert_eq!(status(" {\"status\": \"Success\"}\n"), Ok("Success".into()));
        assert_eq!(status(r#"{"Status": "Not supported", "more": [1]}"#), Ok("Not supported".into()));
        for text in ["", "x", "[]", "{}", r#"{"status": 1}"#, r#"{"status":""}"#, "{\"status\":\"Success\"}\nbye"] {
            let what = status(text).unwrap_err();
            assert!(!what.contains("bye"), "{what}");
        }
    }
}
