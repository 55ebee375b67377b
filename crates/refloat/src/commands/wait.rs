//! `refloat wait`: blocks until the node is empty, settled or clean.
//!
//! It sleeps in the kernel until the mount table, the folders of pods and devices, or the records change.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use refloat_mount::TableWatch;
use refloat_node::VolumeState;
use refloat_node::clean::{CleanOptions, Cleaner, what_is_left};
use refloat_record::RecordKind;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::time::Timespec;

use super::clean::{assumed, assumed_devices, cleaner, explain, how};
use crate::cli::{SourceArgs, WaitArgs, WaitFor};
use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::sources::attachments;

/// Whoever makes or undoes a volume changes several things: they are looked at together.
const REST: Duration = Duration::from_millis(50);

/// How often it is looked where nothing tells of a change: at pods that other programs know, at devices, and at a pod's time
/// of grace.
const LOOK: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: &WaitArgs, settings: &Settings) -> Result<Done, Failure> {
    let end = args.timeout.map(|timeout| Instant::now() + timeout);
    let (assume_gone, assume_unused) = (assumed(&args.authority)?, assumed_devices(&args.authority));
    let options = CleanOptions { assume_gone, assume_unused, ..CleanOptions::default() };
    let mut cleaner = cleaner(settings, &args.authority, how(settings, &args.drivers, 1, Duration::from_secs(60)))?;
    loop {
        // Before looking, so that what changes meanwhile is seen.
        let watch = Watch::new(cleaner.host().root.path(), &settings.state_dir, args)?;
        let Some(why) = waits_for(&mut cleaner, args.what, &options, &args.authority.sources, settings)? else {
            return Ok(Done::Well);
        };
        tracing::debug!(%why, "waits");
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            let what = format!("{:?}", args.what).to_lowercase();
            return Err(Failure::message(
                format!("the node is not {what} yet: {why}"),
                "`refloat clean` shows what is left and why; a longer --timeout waits longer",
            ));
        }
        watch.wait(left)?;
        std::thread::sleep(REST.min(left.unwrap_or(REST)));
    }
}

/// Why it is not so yet.
fn waits_for(
    cleaner: &mut Cleaner,
    what: WaitFor,
    options: &CleanOptions,
    sources: &SourceArgs,
    settings: &Settings,
) -> Result<Option<String>, Failure> {
    let explain = |e| explain(e, settings);
    Ok(match what {
        WaitFor::Empty => {
            let seen = cleaner.look().map_err(explain)?;
            let mut left = what_is_left(cleaner.host(), &seen.table, &seen.actual);
            if left.is_empty() {
                left = attachments(sources)?;
            }
            left.first().map(|left| format!("{} {} ({})", left.kind, left.path.display(), left.what))
        }
        WaitFor::Settled => {
            let seen = cleaner.look().map_err(explain)?;
            let is_between = |state| matches!(state, VolumeState::Uncertain | VolumeState::Unknown);
            let volumes = seen.actual.volumes.iter().filter(|v| is_between(v.state));
            let volumes =
                volumes.map(|v| format!("volume {:?} of pod {}: {}", v.key.spec_name, v.key.pod, v.state_reason));
            let devices = seen.actual.devices.iter().filter(|d| is_between(d.state));
            volumes.chain(devices.map(|d| format!("the device at {}", d.path.display()))).next()
        }
        WaitFor::Clean => {
            let (plan, _) = cleaner.plan(options).map_err(explain)?;
            let steps = plan.steps().map(|s| format!("{} {}", s.action.name(), s.path.display()));
            let kept = plan.kept.iter().map(|k| format!("{}: {}", k.path.display(), k.reason));
            steps.chain(kept).next()
        }
    })
}

/// What tells of changes.
struct Watch {
    table: TableWatch,
    folders: OwnedFd,
}

impl Watch {
    fn new(root: &Path, state: &Path, args: &WaitArgs) -> Result<Self, Failure> {
        let table = TableWatch::open().context("cannot watch the mount table")?;
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let folders = inotify::init(flags).map_err(std::io::Error::from).context("cannot watch folders")?;
        let pods = root.join("pods");
        let mut all: Vec<PathBuf> = vec![root.to_path_buf(), pods.clone(), state.to_path_buf()];
        all.extend(RecordKind::ALL.map(|kind| state.join(kind.folder())));
        all.extend(args.authority.sources.manifests.clone());
        for pod in std::fs::read_dir(&pods).into_iter().flatten().flatten() {
            all.push(pod.path());
            all.push(pod.path().join("volumes"));
        }
        let events = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW;
        for folder in all {
            // What is not there appears in the one above it.
            let _ = inotify::add_watch(&folders, &folder, events);
        }
        Ok(Self { table, folders })
    }

    fn wait(&self, left: Option<Duration>) -> Result<(), Failure> {
        let left = left.map_or(LOOK, |left| left.min(LOOK));
        let left = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(&self.table, PollFlags::PRI), PollFd::new(&self.folders, PollFlags::IN)];
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(anyhow::Error::new(std::io::Error::from(errno)).context("cannot wait").into()),
        }
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.folders, &mut buffer);
        while reader.next().is_ok() {}
        Ok(())
    }
}
