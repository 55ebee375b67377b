//! What a command runs with: flags, then environment, then the configuration file, then defaults.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use refloat_volume::plugins::flex_volume;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

use crate::cli::{ColorWhen, DriverArgs, LogFormat, OutputFormat, Shared};
use crate::exit::Failure;

/// The configuration file's version.
const API_VERSION: &str = "refloat.dev/v1";
/// The configuration file's kind.
const KIND: &str = "RefloatConfiguration";

/// What a command runs with.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) root_dir: PathBuf,
    pub(crate) state_dir: PathBuf,
    /// Whether the state folder was named on the command line or in the environment.
    pub(crate) state_dir_given: bool,
    pub(crate) output: OutputFormat,
    pub(crate) color: ColorWhen,
    pub(crate) verbose: u8,
    pub(crate) log_format: LogFormat,
    pub(crate) file: ConfigFile,
}

/// The fields of a configuration file, all optional. Spelled as the flags, in camelCase.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ConfigFile {
    #[serde(rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(rename = "kind")]
    _kind: Option<String>,
    root_dir: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    output: Option<OutputFormat>,
    color: Option<ColorWhen>,
    verbose: Option<u8>,
    log_format: Option<LogFormat>,
    pub(crate) manifests: Option<PathBuf>,
    pub(crate) workers: Option<u16>,
    pub(crate) operation_deadline: Option<u32>,
    pub(crate) patience: Option<u32>,
    pub(crate) lazy_unmount: Option<bool>,
    flex_volume_plugin_dir: Option<PathBuf>,
    provider_dir: Option<PathBuf>,
}

impl Settings {
    /// Reads the configuration file, if there is one, and puts the layers together.
    pub(crate) fn resolve(flags: &Shared) -> Result<Self, Failure> {
        let file = flags.config.as_deref().map(read).transpose()?.unwrap_or_default();
        let absolute = |path: PathBuf| {
            std::path::absolute(&path)
                .map_err(|e| Failure::usage(format!("cannot make {} absolute: {e}", path.display()), ""))
        };
        let root = flags.root_dir.clone().or_else(|| file.root_dir.clone()).unwrap_or("/var/lib/kubelet".into());
        let state = flags.state_dir.clone().or_else(|| file.state_dir.clone()).unwrap_or("/var/lib/refloat".into());
        let verbose = match (flags.verbose, std::env::var("REFLOAT_VERBOSE")) {
            (0, Ok(text)) if !text.is_empty() => text.parse().map_err(|_| {
                Failure::usage(format!("REFLOAT_VERBOSE is {text:?}, which is no number"), "use 0, 1 or 2")
            })?,
            (0, _) => file.verbose.unwrap_or(0),
            (given, _) => given,
        };
        Ok(Self {
            root_dir: absolute(root)?,
            state_dir: absolute(state)?,
            state_dir_given: flags.state_dir.is_some(),
            output: flags.output.or(file.output).unwrap_or_default(),
            color: flags.color.or(file.color).unwrap_or_default(),
            verbose,
            log_format: flags.log_format.or(file.log_format).unwrap_or_default(),
            file,
        })
    }

    /// The folder of flexVolume drivers.
    pub(crate) fn flex_volume_dir(&self, args: &DriverArgs) -> PathBuf {
        let given = args.flex_volume_plugin_dir.as_ref().or(self.file.flex_volume_plugin_dir.as_ref());
        let folder = given.cloned().unwrap_or_else(|| flex_volume::DEFAULT_DRIVER_FOLDER.into());
        // Programs are run from wherever this is.
        std::path::absolute(&folder).unwrap_or(folder)
    }

    /// The folder of providers, if one is named.
    pub(crate) fn provider_dir(&self, args: &DriverArgs) -> Option<PathBuf> {
        let folder = args.provider_dir.clone().or_else(|| self.file.provider_dir.clone())?;
        Some(std::path::absolute(&folder).unwrap_or(folder))
    }
}

/// Reads a configuration file. Whatever is wrong with it is a mistake of usage.
fn read(path: &Path) -> Result<ConfigFile, Failure> {
    let name = path.display();
    let text = read_file(path)
        .map_err(|e| Failure::usage(format!("cannot read the configuration file {name}: {e}"), "check --config"))?;
    parse(&text).map_err(|(what, hint)| Failure::usage(format!("the configuration file {name} {what}"), hint))
}

/// The text of a regular file. Anything else may have no end, or wait for a writer.
fn read_file(path: &Path) -> std::io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Parses a configuration file; the error is what is wrong with it and what to do.
fn parse(text: &str) -> Result<ConfigFile, (String, String)> {
    let help = || "see docs/commands.md for the fields".to_owned();
    let value: serde_json::Value =
        serde_saphyr::from_str(text).map_err(|e| (format!("is not well-formed: {e}"), help()))?;
    let found = |field: &str| value.get(field).and_then(serde_json::Value::as_str).unwrap_or("absent").to_owned();
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if found(field) != expected {
            let what = format!("has the {field} {:?}, which this version does not read", found(field));
            return Err((what, format!("it must be {expected}")));
        }
    }
    serde_json::from_value(value).map_err(|e| (format!("is not as it must be: {e}"), help()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: refloat.dev/v1\nkind: RefloatConfiguration\n";

    #[test]
    fn fields_are_read() {
        let file =
            parse(&format!("{HEAD}rootDir: /r\nstateDir: /s\noutput: json\nworkers: 3\nlogFormat: json\n")).unwrap();
        assert_eq!(file.root_dir.as_deref(), Some(Path::new("/r")));
        assert_eq!(file.output, Some(OutputFormat::Json));
        assert_eq!(file.workers, Some(3));
    }

    #[test]
    fn what_is_unknown_is_refused() {
        for (text, part) in [
            (format!("{HEAD}rootDirectory: /r\n"), "rootDirectory"),
            ("apiVersion: refloat.dev/v9\nkind: RefloatConfiguration\n".into(), "refloat.dev/v9"),
            ("apiVersion: refloat.dev/v1\nkind: KubeletConfiguration\n".into(), "KubeletConfiguration"),
            ("rootDir: /r\n".into(), "apiVersion"),
            (format!("{HEAD}output: html5\n"), "html5"),
            (format!("{HEAD}rootDir: [\n"), "well-formed"),
            (String::new(), "apiVersion"),
        ] {
            let (what, _) = parse(&text).unwrap_err();
            assert!(what.contains(part), "{text:?}: {what}");
        }
    }
}
