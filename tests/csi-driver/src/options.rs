//! What the driver is told when it starts.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::disk::FileSystem;

/// Options of the driver. [`Options::new`] has everything switched on that a usual driver has.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // each is one independent flag
pub struct Options {
    /// The driver's name
    #[arg(long)]
    pub name: String,
    /// The socket to answer at
    #[arg(long)]
    pub endpoint: PathBuf,
    /// Where volumes are kept
    #[arg(long)]
    pub state: PathBuf,
    /// The registration socket to make, as node-driver-registrar does
    #[arg(long)]
    pub registration: Option<PathBuf>,
    /// The name to register under, if not its own
    #[arg(long)]
    pub register_as: Option<String>,
    /// The endpoint to register, if not its own
    #[arg(long)]
    pub register_endpoint: Option<String>,
    /// The type to register as
    #[arg(long, default_value = "CSIPlugin")]
    pub register_type: String,
    /// The versions to register
    #[arg(long = "register-version", default_values_t = [String::from("1.0.0")])]
    pub register_versions: Vec<String>,
    /// The file that gets every call and how it ended, appended and synced
    #[arg(long)]
    pub journal: Option<PathBuf>,
    /// The folder of orders to fail
    #[arg(long)]
    pub faults: Option<PathBuf>,
    /// The node's id
    #[arg(long, default_value = "node-1")]
    pub node_id: String,
    /// How many volumes the node can have; 0 says nothing
    #[arg(long, default_value_t = 0)]
    pub max_volumes: i64,
    /// Topology of the node, `KEY=VALUE`
    #[arg(long, value_parser = pair)]
    pub topology: Vec<(String, String)>,
    /// Do not have `STAGE_UNSTAGE_VOLUME`
    #[arg(long)]
    pub no_stage: bool,
    /// Do not have `EXPAND_VOLUME`
    #[arg(long)]
    pub no_expand: bool,
    /// Have `VOLUME_MOUNT_GROUP`
    #[arg(long)]
    pub mount_group: bool,
    /// Have `SINGLE_NODE_MULTI_WRITER`
    #[arg(long)]
    pub multi_writer: bool,
    /// Make a volume of so many bytes when one is staged or published that there is not
    #[arg(long)]
    pub create_missing: Option<u64>,
    /// The file system for a volume that says none
    #[arg(long, value_enum, default_value = "ext4")]
    pub default_fs: FileSystem,
    /// Do nothing and say OK
    #[arg(long)]
    pub noop: bool,
}

impl Options {
    /// A driver of this name whose files are in `folder`: `csi.sock`, `state`, `journal`, `faults`. It does not register,
    /// and makes volumes of 16 MiB as they are asked for.
    pub fn new(name: &str, folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        Self {
            name: name.into(),
            endpoint: folder.join("csi.sock"),
            state: folder.join("state"),
            registration: None,
            register_as: None,
            register_endpoint: None,
            register_type: "CSIPlugin".into(),
            register_versions: vec!["1.0.0".into()],
            journal: Some(folder.join("journal")),
            faults: Some(folder.join("faults")),
            node_id: "node-1".into(),
            max_volumes: 0,
            topology: Vec::new(),
            no_stage: false,
            no_expand: false,
            mount_group: false,
            multi_writer: false,
            create_missing: Some(16 << 20),
            default_fs: FileSystem::Ext4,
            noop: false,
        }
    }

    /// The same as arguments of the program.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut value = |flag: &str, value: OsString| args.extend([flag.into(), value]);
        value("--name", self.name.clone().into());
        value("--endpoint", self.endpoint.clone().into());
        value("--state", self.state.clone().into());
        value("--register-type", self.register_type.clone().into());
        value("--node-id", self.node_id.clone().into());
        value("--max-volumes", self.max_volumes.to_string().into());
        value("--default-fs", self.default_fs.name().into());
        for version in &self.register_versions {
            value("--register-version", version.into());
        }
        for (key, text) in &self.topology {
            value("--topology", format!("{key}={text}").into());
        }
        let optional = [
            ("--registration", self.registration.clone().map(OsString::from)),
            ("--register-as", self.register_as.clone().map(OsString::from)),
            ("--register-endpoint", self.register_endpoint.clone().map(OsString::from)),
            ("--journal", self.journal.clone().map(OsString::from)),
            ("--faults", self.faults.clone().map(OsString::from)),
            ("--create-missing", self.create_missing.map(|bytes| bytes.to_string().into())),
        ];
        for (flag, text) in optional {
            if let Some(text) = text {
                value(flag, text);
            }
        }
        let switches = [
            ("--no-stage", self.no_stage),
            ("--no-expand", self.no_expand),
            ("--mount-group", self.mount_group),
            ("--multi-writer", self.multi_writer),
            ("--noop", self.noop),
        ];
        args.extend(switches.iter().filter(|(_, on)| *on).map(|(flag, _)| OsString::from(flag)));
        args
    }
}

fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("it has no `=`")?;
    Ok((key.into(), value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn arguments_say_all_that_options_say() {
        let mut options = Options::new("a.b", "/x");
        let parse = |options: &Options| {
            let args = [OsString::from("program")].into_iter().chain(options.to_args());
            Cli::try_parse_from(args).expect("they are valid").options
        };
        assert_eq!(parse(&options), options);
        options.registration = Some("/r/reg.sock".into());
        options.register_as = Some("c".into());
        options.register_endpoint = Some("/other".into());
        options.register_versions = vec!["0.1".into(), "2.0".into()];
        options.topology = vec![("zone".into(), "a=b".into())];
        (options.no_stage, options.no_expand, options.mount_group, options.multi_writer) = (true, true, true, true);
        (options.noop, options.journal, options.faults, options.create_missing) = (true, None, None, None);
        options.default_fs = FileSystem::Xfs;
        (options.max_volumes, options.node_id) = (7, "n".into());
        assert_eq!(parse(&options), options);
    }
}
