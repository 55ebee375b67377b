//! `refloat node`: the volume manager.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use refloat_node::{Manager, ManagerError, ManagerOptions};

use crate::cli::NodeArgs;
use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::look::{Authority, View, boot_id, open_root};

/// Operations at once. They wait for disks, devices and servers, not for processors, and each for its record first: records
/// that are written together share their syncs, so many at once take little longer than one. As many hung ones would be
/// needed to hold up one more, and each is given up after its deadline.
const WORKERS: u16 = 64;
/// Seconds for an operation: a check of a large file system takes tens of them.
const OPERATION_DEADLINE: u32 = 120;
/// Seconds that `--once` waits for operations.
const PATIENCE: u32 = 60;

/// Runs the command.
pub(crate) fn run(args: &NodeArgs, settings: &Settings) -> Result<Done, Failure> {
    if args.die_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
            .map_err(std::io::Error::from)
            .context("cannot ask to be killed with the parent")?;
    }
    let Some(manifests) = args.manifests.as_deref().or(settings.file.manifests.as_deref()) else {
        return Err(Failure::usage("no source of pods was given", "name the folder of manifests with --manifests DIR"));
    };
    let root = open_root(settings)?.path().to_owned();
    let deadline = args.operation_deadline.or(settings.file.operation_deadline).unwrap_or(OPERATION_DEADLINE);
    let options = ManagerOptions {
        root_dir: settings.root_dir.clone(),
        state_dir: settings.state_dir.clone(),
        manifests: std::path::absolute(manifests).context("cannot make the manifest folder absolute")?,
        workers: args.workers.or(settings.file.workers).unwrap_or(WORKERS).max(1).into(),
        operation_deadline: Duration::from_secs(deadline.max(1).into()),
        lazy_unmount: args.lazy_unmount || settings.file.lazy_unmount.unwrap_or(false),
        flex_volume_dir: settings.flex_volume_dir(&args.drivers),
        sys: args.drivers.sys(),
        provider_dir: settings.provider_dir(&args.drivers),
        records: !args.without_records,
    };
    if args.once {
        let patience = args.patience.or(settings.file.patience).unwrap_or(PATIENCE);
        return once(options, root, Duration::from_secs(patience.into()), settings);
    }
    // The signals are taken before anything is done, so that none can stop an operation half-way.
    let stop = stop_signals()?;
    let mut manager = Manager::start(options).map_err(|e| explain(e, settings))?;
    tracing::info!(root = %root.display(), manifests = %manifests.display(), "the volume manager runs");
    manager.run(stop.as_fd()).map_err(|e| explain(e, settings))?;
    tracing::info!("stopped; every volume stays mounted");
    Ok(Done::Well)
}

/// Makes the world match once, and prints it.
fn once(
    options: ManagerOptions,
    root: std::path::PathBuf,
    patience: Duration,
    settings: &Settings,
) -> Result<Done, Failure> {
    let mut manager = Manager::start(options).map_err(|e| explain(e, settings))?;
    let outcome = manager.run_once(patience).map_err(|e| explain(e, settings))?;
    let mut problems = outcome.failures;
    for pod in outcome.desired.pods.values() {
        problems.extend(pod.waiting.iter().map(|waiting| waiting.problem.clone()));
    }
    let view = View {
        holders: refloat_node::Holders::default(),
        root,
        given_root: settings.root_dir.clone(),
        state_dir: Some(settings.state_dir.clone()),
        mountinfo: None,
        boot_id: Some(boot_id()?),
        scanned_at: Timestamp::now(),
        actual: outcome.actual,
        authority: Authority::Source(outcome.desired),
        table: std::sync::Arc::default(),
        usage: std::collections::BTreeMap::new(),
    };
    super::scan::print(&view, &problems, settings)
}

/// A stream that becomes readable at SIGTERM or SIGINT.
pub(super) fn stop_signals() -> Result<UnixStream, Failure> {
    let (read, write) = UnixStream::pair().context("cannot make a pipe for signals")?;
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let write = write.try_clone().context("cannot make a pipe for signals")?;
        signal_hook::low_level::pipe::register(signal.as_raw(), write)
            .with_context(|| format!("cannot listen for signal {}", signal.as_raw()))?;
    }
    Ok(read)
}

/// What to do about a manager that does not start.
fn explain(error: ManagerError, settings: &Settings) -> Failure {
    let state: &Path = &settings.state_dir;
    let hint = match &error {
        ManagerError::Store(refloat_record::OpenError::Locked { .. })
        | ManagerError::StoreTaken(refloat_record::OpenError::Locked { .. }) => {
            "only one manager may use a state folder: stop the other one, or give this one another --state-dir".into()
        }
        ManagerError::Store(_) => {
            format!("{} must be a folder that this user can write; name another with --state-dir", state.display())
        }
        ManagerError::Root(_) => "name the kubelet's root folder with --root-dir".into(),
        ManagerError::Unable { .. } => "`refloat doctor` says what this node lacks".into(),
        _ => String::new(),
    };
    Failure::with_hint(error, hint)
}
