//! The command line: every command and flag, defined once. Help and completions come from here.
#![allow(clippy::doc_markdown)] // the comments are the help that users read, without marks

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use refloat_volume::scsi::Sys;

/// The volume manager of a Kubernetes node whose memory is on disk.
#[derive(Debug, Parser)]
#[command(
    name = "refloat",
    version,
    about = "The volume manager of a Kubernetes node whose memory is on disk.",
    after_help = "Exit codes: 0 done, nothing wrong; 1 it could not be done; 2 bad usage or configuration; \
                  3 done, but something needs attention.",
    propagate_version = true,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) shared: Shared,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that all commands share. Absent ones come from the configuration file, then from the defaults.
#[derive(Debug, Args)]
#[command(next_help_heading = "Flags of all commands")]
pub(crate) struct Shared {
    /// The node root: the kubelet's root folder [default: /var/lib/kubelet]
    #[arg(long, global = true, env = "REFLOAT_ROOT_DIR", value_name = "DIR")]
    pub(crate) root_dir: Option<PathBuf>,
    /// The state folder: where the records are [default: /var/lib/refloat]
    #[arg(long, global = true, env = "REFLOAT_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// How to print [default: table]
    #[arg(short, long, global = true, env = "REFLOAT_OUTPUT", value_name = "FORMAT")]
    pub(crate) output: Option<OutputFormat>,
    /// When to use colours [default: auto: on a terminal, unless NO_COLOR is set]
    #[arg(long, global = true, env = "REFLOAT_COLOR", value_name = "WHEN")]
    pub(crate) color: Option<ColorWhen>,
    /// Say more on standard error: once for each step, twice for each detail (REFLOAT_VERBOSE=1 or 2)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// How to print messages on standard error [default: text]
    #[arg(long, global = true, env = "REFLOAT_LOG_FORMAT", value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// A configuration file (kind RefloatConfiguration, apiVersion refloat.dev/v1); flags and environment win
    #[arg(long, global = true, env = "REFLOAT_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Where the programs are that set up and undo volumes.
#[derive(Debug, Clone, Args)]
pub(crate) struct DriverArgs {
    /// The folder of flexVolume drivers, as the kubelet's volumePluginDir
    /// [default: /usr/libexec/kubernetes/kubelet-plugins/volume/exec]
    #[arg(long, env = "REFLOAT_FLEX_VOLUME_PLUGIN_DIR", value_name = "DIR")]
    pub(crate) flex_volume_plugin_dir: Option<PathBuf>,
    /// The folder of providers: programs that are asked about volumes once they are there, and told when they are gone
    /// [default: none]
    #[arg(long, env = "REFLOAT_PROVIDER_DIR", value_name = "DIR")]
    pub(crate) provider_dir: Option<PathBuf>,
    /// Where sysfs is, for a manager in a container that has it elsewhere
    #[arg(long, env = "REFLOAT_SYSFS", value_name = "DIR", default_value = "/sys", hide = true)]
    sysfs: PathBuf,
    /// Where the device nodes are, likewise
    #[arg(long, env = "REFLOAT_DEVFS", value_name = "DIR", default_value = "/dev", hide = true)]
    devfs: PathBuf,
}

impl DriverArgs {
    /// Where this node's disks are.
    pub(crate) fn sys(&self) -> Sys {
        Sys::new(&self.sysfs, &self.devfs)
    }
}

/// How results are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutputFormat {
    /// A table that fits the terminal
    #[default]
    Table,
    /// A table with more columns
    Wide,
    /// One JSON object
    Json,
    /// One YAML document
    Yaml,
    /// A page that shows who hangs on what (scan only)
    Html,
}

/// When colours are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ColorWhen {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How messages are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show every volume, device and leftover under the node root
    ///
    /// Reads the records, the mount table and the folders, and changes nothing. Without --manifests only the
    /// records can tell whether a pod is wanted.
    Scan(ScanArgs),
    /// Explain one volume, pod or path: what it is, who wants it, and why that was concluded
    ///
    /// Prints every piece of evidence, the conclusion, and what would happen next. Changes nothing.
    Explain(ExplainArgs),
    /// Remove what no pod wants: print the plan, and with --yes carry it out
    ///
    /// Unmounts what pods that are gone left behind, in the right order, and removes empty folders and files that a volume
    /// manager is known to write. Any other file is data: it stays, and is named with the command that would remove it.
    Clean(CleanArgs),
    /// Empty the node before a reset, uninstall or reboot: tear down every volume and prove that none is left
    Release(ReleaseArgs),
    /// Wait until the node is empty, settled or clean
    ///
    /// empty: nothing is mounted, attached or staged; settled: every volume and device is mounted or gone, none in between;
    /// clean: `refloat clean` would have nothing to do and nothing to keep.
    Wait(WaitArgs),
    /// Run the volume manager: make what the pods want, keep records, clean up
    ///
    /// SIGTERM and SIGINT stop it in order and leave every volume mounted.
    Node(NodeArgs),
    /// Run beside a kubelet: write a record for every volume as it appears, and keep the records current
    ///
    /// After any restart of kubelet, agent or node the records tell what every leftover is. It sleeps until the mount table or
    /// a folder of a pod changes. SIGTERM and SIGINT end it. Without --clean it changes no volume.
    Agent(AgentArgs),
    /// Look at the record store
    #[command(subcommand)]
    Record(RecordCommand),
    /// Check what Refloat needs on this node, and say what to do about what is missing
    Doctor,
    /// Show in under a minute what Refloat is for, in a mount namespace and a folder of its own
    ///
    /// Pods get volumes, the manager is killed hard, a pod is deleted meanwhile, and a restart finds out. Needs no
    /// cluster and leaves nothing behind.
    Demo,
    /// Print the completion script for a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version,
    /// Ask file systems how full they are, for scan --usage
    #[command(hide = true)]
    UsageProbe,
}

/// Arguments of `scan`.
#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// Ask each mounted volume's file system how full it is; one that does not answer within a second is named
    #[arg(long, conflicts_with = "mountinfo")]
    pub(crate) usage: bool,
    #[command(flatten)]
    pub(crate) sources: SourceArgs,
    #[command(flatten)]
    pub(crate) saved: SavedArgs,
}

/// A node that is not this one: its root, unpacked here, is named by --root-dir.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "A node that is not this one")]
pub(crate) struct SavedArgs {
    /// Take the mount table from this copy of the node's /proc/1/mountinfo; --root-dir names the node's root where it
    /// was unpacked, and --state-dir its records, if there are any
    #[arg(long, value_name = "FILE")]
    pub(crate) mountinfo: Option<PathBuf>,
    /// Where the root was on the node, as its mount table spells it [default: /var/lib/kubelet]
    #[arg(long, value_name = "DIR", requires = "mountinfo")]
    pub(crate) original_root: Option<PathBuf>,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A pod (uid or namespace/name), a volume (uid/volume, its path, its unique name), a device, a mount id
    /// or any path
    pub(crate) target: String,
    #[command(flatten)]
    pub(crate) sources: SourceArgs,
    #[command(flatten)]
    pub(crate) saved: SavedArgs,
}

/// Who says which pods are wanted. All that are named are asked, and a pod is gone only if they agree.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Who says which pods are wanted")]
pub(crate) struct SourceArgs {
    /// A manifest folder that this node's pods come from
    #[arg(long, env = "REFLOAT_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    /// This node's kubelet, such as https://10.0.0.7:10250
    #[arg(long, env = "REFLOAT_KUBELET", value_name = "URL", value_parser = crate::sources::parse_url)]
    pub(crate) kubelet: Option<http::Uri>,
    /// A file with a bearer token for the kubelet
    #[arg(long, env = "REFLOAT_KUBELET_TOKEN_FILE", value_name = "FILE", requires = "kubelet")]
    pub(crate) kubelet_token_file: Option<PathBuf>,
    /// A client certificate for the kubelet (PEM)
    #[arg(long, env = "REFLOAT_KUBELET_CERTIFICATE", value_name = "FILE", requires_all = ["kubelet", "kubelet_key"])]
    pub(crate) kubelet_certificate: Option<PathBuf>,
    /// The key of the client certificate (PEM)
    #[arg(long, env = "REFLOAT_KUBELET_KEY", value_name = "FILE", requires = "kubelet_certificate")]
    pub(crate) kubelet_key: Option<PathBuf>,
    /// The certificates that the kubelet's own must be signed by (PEM) [default: the system's]
    #[arg(long, env = "REFLOAT_KUBELET_CA", value_name = "FILE", requires = "kubelet")]
    pub(crate) kubelet_ca: Option<PathBuf>,
    /// The name that the kubelet's certificate is for [default: the host of --kubelet]
    #[arg(long, env = "REFLOAT_KUBELET_SERVER_NAME", value_name = "NAME", requires = "kubelet")]
    pub(crate) kubelet_server_name: Option<String>,
    /// Believe the kubelet whatever certificate it shows
    #[arg(long, requires = "kubelet", conflicts_with = "kubelet_ca")]
    pub(crate) kubelet_insecure: bool,
    /// A kubeconfig: its API server is asked for the pods of --node-name. Without it, --node-name asks the API server of
    /// the pod that this runs in
    #[arg(long, env = "REFLOAT_KUBECONFIG", value_name = "FILE", requires = "node_name")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The name of this node in the API server
    #[arg(long, env = "REFLOAT_NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// A container runtime's socket, such as /run/containerd/containerd.sock (may be given again)
    #[arg(long, env = "REFLOAT_CRI", value_name = "SOCKET", value_delimiter = ',')]
    pub(crate) cri: Vec<PathBuf>,
    /// Who is asked besides those that are named [default: auto]
    #[arg(long, env = "REFLOAT_SOURCES", value_name = "WHICH", value_delimiter = ',')]
    pub(crate) sources: Vec<FindSources>,
    /// How long each of them is waited for [default: 5s]
    #[arg(long, env = "REFLOAT_SOURCE_TIMEOUT", value_name = "DURATION", value_parser = crate::duration::parse)]
    pub(crate) source_timeout: Option<std::time::Duration>,
}

/// Sources of pods that are looked for on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FindSources {
    /// What this machine has, where the node root is one that a distribution uses or another source is named
    Auto,
    /// None
    None,
    /// Pods' cgroups with living processes
    Cgroups,
    /// Container runtimes that listen where they usually do
    Cri,
}

/// Who says which pods are gone.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Who says which pods are wanted")]
pub(crate) struct AuthorityArgs {
    #[command(flatten)]
    pub(crate) sources: SourceArgs,
    /// Take this pod for gone, where no source of pods has it; or a staged device, by its path or unique name, for one that
    /// no pod is about to use, where no source that answers has a pod that may be (may be given again)
    #[arg(long, value_name = "UID|DEVICE")]
    pub(crate) assume_gone: Vec<String>,
}

/// How what goes is undone.
#[derive(Debug, Args)]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    pub(crate) authority: AuthorityArgs,
    /// Delete the content of emptyDirs whose pods are gone, or go; never through a mount inside
    #[arg(long)]
    pub(crate) delete_ephemeral: bool,
    /// Unmount what a driver mounted that cannot be reached any more, without it
    #[arg(long)]
    pub(crate) without_driver: bool,
    #[command(flatten)]
    pub(crate) drivers: DriverArgs,
    /// Unmount dead file systems by force, then lazily; what they had not written is lost
    #[arg(long)]
    pub(crate) force: bool,
    /// How long all may take
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::duration::parse)]
    pub(crate) timeout: std::time::Duration,
    /// How many operations run at once
    #[arg(long, hide = true, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,
}

/// Arguments of `clean`.
#[derive(Debug, Args)]
pub(crate) struct CleanArgs {
    /// Only these: pod uids, namespace/name, volume paths or unique volume names
    pub(crate) targets: Vec<String>,
    /// Carry the plan out, with every fact looked at again right before each step
    #[arg(long)]
    pub(crate) yes: bool,
    /// How long a pod must have been gone, such as 30s, 10m or 1h
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = crate::duration::parse)]
    pub(crate) grace: std::time::Duration,
    #[command(flatten)]
    pub(crate) undo: UndoArgs,
}

/// Arguments of `release`.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// Carry the plan out
    #[arg(long)]
    pub(crate) yes: bool,
    /// Also the volumes of pods that are wanted, or of which nobody can tell
    #[arg(long)]
    pub(crate) including_running: bool,
    #[command(flatten)]
    pub(crate) undo: UndoArgs,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// What to wait for
    #[arg(long = "for", value_name = "WHAT")]
    pub(crate) what: WaitFor,
    /// How long at most; for ever if not given
    #[arg(long, value_name = "DURATION", value_parser = crate::duration::parse)]
    pub(crate) timeout: Option<std::time::Duration>,
    #[command(flatten)]
    pub(crate) drivers: DriverArgs,
    #[command(flatten)]
    pub(crate) authority: AuthorityArgs,
}

/// What `wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitFor {
    /// Nothing is mounted, attached or staged under the node root
    Empty,
    /// Every volume and device is mounted or gone, none in between
    Settled,
    /// `refloat clean` would have nothing to do and nothing to keep
    Clean,
}

/// Arguments of `node`.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // each is one flag
pub(crate) struct NodeArgs {
    /// The manifest folder: Pod, PersistentVolume, PersistentVolumeClaim, ConfigMap, Secret, CSIDriver and
    /// VolumeAttachment documents in YAML or JSON, watched for changes
    #[arg(long, env = "REFLOAT_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) drivers: DriverArgs,
    /// Make the world match, print the result as `scan` does, and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// How many operations run at once [default: 64]
    #[arg(long, env = "REFLOAT_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: Option<u16>,
    /// How long one operation may take before the manager goes on without it, in seconds [default: 120]
    #[arg(long, env = "REFLOAT_OPERATION_DEADLINE", value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) operation_deadline: Option<u32>,
    /// Take the mount of a gone pod out of sight (umount -l) when its file system is dead and a forced unmount failed
    #[arg(long, env = "REFLOAT_LAZY_UNMOUNT")]
    pub(crate) lazy_unmount: bool,
    /// How long --once waits for what takes its time, in seconds [default: 60]
    #[arg(long, env = "REFLOAT_PATIENCE", value_name = "SECONDS")]
    pub(crate) patience: Option<u32>,
    /// Be killed when the parent process ends
    #[arg(long, hide = true)]
    pub(crate) die_with_parent: bool,
    /// Write no records: what that costs is measured against this. Volumes are forgotten by a restart.
    #[arg(long, hide = true)]
    pub(crate) without_records: bool,
}

/// Arguments of `agent`.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// How long nothing must have changed on the node before it is looked at: a kubelet does several things in a row
    #[arg(long, env = "REFLOAT_REST", value_name = "DURATION", default_value = "300ms",
          value_parser = crate::duration::parse)]
    pub(crate) rest: std::time::Duration,
    /// Look once, write the records, with --clean also clean, and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Do what `refloat clean --yes` does with what has been orphaned for --grace, whenever the node has come to rest
    #[arg(long, env = "REFLOAT_CLEAN")]
    pub(crate) clean: bool,
    /// How long a pod must have been gone, such as 30s, 10m or 1h
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = crate::duration::parse)]
    pub(crate) grace: std::time::Duration,
    #[command(flatten)]
    pub(crate) undo: UndoArgs,
}

/// The commands of `record`.
#[derive(Debug, Subcommand)]
pub(crate) enum RecordCommand {
    /// List the records
    List,
    /// Print one record
    Show {
        /// Its file name, or what it is of: a pod uid, uid/volume, or a unique volume name
        record: String,
    },
    /// Check every record file
    Verify,
}
