//! The loop: gathers evidence, reconstructs, plans, executes, and sleeps until something changes.
//!
//! It wakes when an operation has ended, the mount table or the manifest folder has changed, a pause before another
//! try is over, or an operation is overdue; otherwise it makes no system call at all. What it knows of the store and of
//! the folders it keeps up to date by what its own operations did, so a round reads the mount table's news and the
//! folders of the pods that were worked on, and nothing else.

pub(crate) mod drivers;
mod flex;
mod hanging;
pub(crate) mod host;
pub(crate) mod pool;
mod providers;
pub(crate) mod records;
mod retry;
pub(crate) mod root;
mod round;
mod state;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use refloat_mount::TableWatch;
use refloat_record::{PodUid, Store};
use refloat_volume::scsi::Sys;
use refloat_volume::{Plugins, Problem};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use crate::evidence::{Gather, GatherError};
use crate::execute::Executor;
use crate::{Actual, Desired, Evidence, Plan, PlanInput, reconstruct};

use drivers::{DRIVERS_STEP, DriverNews};
use flex::FlexWatch;
use hanging::Hanging;
use pool::Pool;
use retry::Retries;
use state::StateFolder;
use watch::FolderWatch;

/// How the manager is run.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// The node root (the kubelet's).
    pub root_dir: PathBuf,
    /// The state folder.
    pub state_dir: PathBuf,
    /// The manifest folder.
    pub manifests: PathBuf,
    /// How many operations run at once. With 1 they run one after another on one thread, in plan order.
    pub workers: usize,
    /// How long an operation may take before the manager stops waiting for it.
    pub operation_deadline: Duration,
    /// Whether the mount of a gone pod's dead file system is taken out of sight (`umount -l`) when nothing else helps.
    pub lazy_unmount: bool,
    /// The folder that flexVolume drivers are in.
    pub flex_volume_dir: PathBuf,
    /// Where its disks are.
    pub sys: Sys,
    /// The folder of providers outside this program, if there are any.
    pub provider_dir: Option<PathBuf>,
    /// Whether records are written. Only the benchmark that measures their cost switches them off.
    pub records: bool,
}

/// Why the manager could not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The state folder cannot be used.
    #[error("cannot use the state folder")]
    Store(#[source] refloat_record::OpenError),
    /// The state folder was taken away from under the manager, and another manager was quicker to make it again.
    #[error("the state folder was deleted or moved while this manager ran, and cannot be had back")]
    StoreTaken(#[source] refloat_record::OpenError),
    /// The node root cannot be used.
    #[error("cannot use the node root")]
    Root(#[source] refloat_mount::PathError),
    /// The mount table cannot be read.
    #[error("cannot read the mount table")]
    Table(#[source] refloat_mount::TableError),
    /// The kernel or the privileges do not do.
    #[error("{what}")]
    Unable {
        /// What is missing and what to do.
        what: String,
    },
    /// The system said no.
    #[error("cannot {doing}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// What a run ended with.
#[derive(Debug)]
pub struct Outcome {
    /// The world at the end.
    pub actual: Actual,
    /// What was wanted.
    pub desired: Desired,
    /// The last plan: empty of operations if the world matches.
    pub plan: Plan,
    /// Failures that were still being retried.
    pub failures: Vec<refloat_volume::Problem>,
}

/// How long an orderly stop waits for operations under way. Most end in milliseconds; one that hangs is left to the end
/// of the process, which its record survives.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// After a round, this many times its own duration passes before the next one while operations are under way, so that
/// rounds take a fifth of one core at most and what ends meanwhile is looked at together.
const ROUND_PAUSE: u32 = 4;

/// An operation that has been under way for this long is not about to end: the next round does not wait for it. Most take
/// milliseconds.
const SLOW: Duration = Duration::from_millis(100);

/// The node's volume manager.
#[derive(Debug)]
pub struct Manager {
    options: ManagerOptions,
    executor: Arc<Executor>,
    pool: Pool,
    table_watch: TableWatch,
    folder_watch: FolderWatch,
    flex_watch: FlexWatch,
    provider_watch: Option<FolderWatch>,
    driver_news: Arc<DriverNews>,
    state: StateFolder,
    /// Drivers that could not be registered, by their sockets.
    refused_drivers: BTreeMap<PathBuf, Problem>,
    started: Instant,
    evidence: Evidence,
    desired: Desired,
    actual: Actual,
    plan: Plan,
    input: PlanInput,
    retries: Retries,
    news: News,
    /// When the last round ended, and how long it took.
    last_round: (Instant, Duration),
    /// Pods with something that hands are kept off of, whose folders are looked at again from time to time.
    watched_pods: BTreeSet<PodUid>,
    looks: u32,
    next_look: Option<Duration>,
    /// Problems that were logged and still are there.
    logged: BTreeSet<Problem>,
    /// What was wished for and why, when an operation was started.
    wishes: BTreeMap<crate::Exclusion, (u64, String)>,
    /// Unmounts that have not come back.
    hanging: Vec<Hanging>,
    /// When a manifest that was changed a moment ago is settled.
    settled_at: Option<Duration>,
    /// Why nothing can be done, if the root is not at its path.
    root_problem: Option<Problem>,
}

/// What has changed since the last round.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // each is one independent piece of news
struct News {
    manifests: bool,
    table: bool,
    /// Folders of pods to list again.
    pods: BTreeSet<PodUid>,
    devices: bool,
    /// A driver came or went, or failed.
    drivers: bool,
    /// A provider came or went, or was asked.
    providers: bool,
}

impl Manager {
    /// Opens the store (taking its lock), the node root and the watches, and reconstructs. Acts on nothing yet.
    pub fn start(options: ManagerOptions) -> Result<Self, ManagerError> {
        let io = |doing: &str| {
            let doing = doing.to_owned();
            move |source| ManagerError::Io { doing, source }
        };
        let (kernel, root) = host::open_root(&options.root_dir)?;
        let store = Store::open(&options.state_dir).map_err(ManagerError::Store)?;
        let (drivers, driver_news) =
            drivers::watch(root.given_path(), options.operation_deadline).map_err(io("watch for CSI drivers"))?;
        let state = StateFolder::new(&options.state_dir).map_err(io("watch the state folder"))?;
        // The watch comes before the first look into the folder.
        let provider_watch = options.provider_dir.as_deref().map(FolderWatch::new).transpose();
        let provider_watch = provider_watch.map_err(io("watch for providers"))?;
        let programs = host::Programs {
            flex_volume_dir: Some(&options.flex_volume_dir),
            provider_dir: options.provider_dir.as_deref(),
            sys: Some(&options.sys),
        };
        let host = host::open_host(kernel, root, drivers, options.operation_deadline, programs)
            .map_err(io("read the boot id"))?;
        // The watches come first: what changes while evidence is gathered is looked at afterwards.
        let table_watch = TableWatch::open().map_err(io("watch the mount table"))?;
        let folder_watch = FolderWatch::new(&options.manifests).map_err(io("watch the manifest folder"))?;
        let flex_watch = FlexWatch::new(&options.flex_volume_dir).map_err(io("watch for flexVolume drivers"))?;
        let evidence = Gather::new(&host).read(|| store.load()).map_err(|error| match error {
            GatherError::Records(source) => ManagerError::Store(source),
            GatherError::Table(source) => ManagerError::Table(source),
        })?;
        let plugins = Arc::new(Plugins::builtin());
        let actual = reconstruct(&evidence, &plugins);
        let input = PlanInput::new(&plugins);
        let store = options.records.then(|| Arc::new(store));
        let executor = Arc::new(Executor { host: Arc::new(host), plugins, store, generation: 0 });
        let pool = Pool::new(Arc::clone(&executor), options.workers, options.operation_deadline)
            .map_err(io("make an eventfd"))?;
        let now = Instant::now();
        let mut manager = Self {
            options,
            executor,
            pool,
            table_watch,
            folder_watch,
            flex_watch,
            provider_watch,
            driver_news,
            state,
            refused_drivers: BTreeMap::new(),
            started: now,
            evidence,
            desired: Desired { incomplete: Some("not read yet".into()), ..Desired::default() },
            actual,
            plan: Plan::default(),
            input,
            retries: Retries::default(),
            news: News { manifests: true, ..News::default() },
            last_round: (now, Duration::ZERO),
            watched_pods: BTreeSet::new(),
            looks: 0,
            next_look: None,
            logged: BTreeSet::new(),
            wishes: BTreeMap::new(),
            hanging: vec![],
            root_problem: None,
            settled_at: None,
        };
        manager.remember_drivers();
        Ok(manager)
    }

    /// The actual state as it was last concluded.
    pub fn actual(&self) -> &Actual {
        &self.actual
    }

    /// Makes the world match, and returns when nothing is left to do, or only what failed and is waiting for its
    /// next try or what takes longer than `patience`. What failed once is tried once more before that, and a driver that
    /// is not where its record says has time to register.
    pub fn run_once(&mut self, patience: Duration) -> Result<Outcome, ManagerError> {
        let end = Instant::now() + patience;
        loop {
            self.round()?;
            let idle = self.pool.is_idle();
            let soon = self.retries.has_first_failures(self.input.now) && self.plan.wake_at.is_some();
            let settled = self.settled_at.is_none() && !self.state.is_coming_back();
            let for_drivers = self.awaits_drivers();
            if (idle && !soon && settled && !for_drivers) || Instant::now() >= end {
                break;
            }
            let step = (idle && for_drivers).then(|| end.min(Instant::now() + DRIVERS_STEP));
            self.wait(None, Some(step.unwrap_or(end)))?;
        }
        let failures = self.failures();
        Ok(Outcome {
            actual: std::mem::take(&mut self.actual),
            desired: self.desired.clone(),
            plan: std::mem::take(&mut self.plan),
            failures,
        })
    }

    /// Runs until `stop` becomes readable (a signal descriptor, an eventfd). Leaves every volume mounted.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), ManagerError> {
        loop {
            self.round()?;
            if self.wait(Some(stop), None)? {
                self.pool.stop(STOP_PATIENCE);
                return Ok(());
            }
        }
    }

    /// Sleeps until there is something to do. Answers whether to stop.
    fn wait(&mut self, stop: Option<BorrowedFd<'_>>, end: Option<Instant>) -> Result<bool, ManagerError> {
        loop {
            let times = [self.next_timer(), self.pool.next_deadline(), end];
            let until = times.into_iter().flatten().min();
            let ready = self.poll(stop, until)?;
            if ready.stop {
                return Ok(true);
            }
            self.news.table |= ready.table;
            if ready.folder {
                self.news.manifests |= self.folder_watch.changed();
            }
            if ready.state {
                self.state.take_news();
            }
            if ready.drivers {
                self.take_driver_changes();
            }
            if ready.flex {
                self.take_flex_news();
            }
            if ready.providers {
                self.take_provider_news();
            }
            self.take_ended();
            self.take_hanging();
            self.pool
                .give_up_overdue()
                .map_err(|source| ManagerError::Io { doing: "start a worker thread".into(), source })?;
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(false);
            }
            if self.is_due() {
                return Ok(false);
            }
        }
    }

    /// Whether a round is worth its time now.
    fn is_due(&self) -> bool {
        if self.pool.is_idle() {
            return self.has_news() || self.next_timer().is_some_and(|at| at <= Instant::now());
        }
        // One worker works through a plan in its order, and the next plan is made when it is done.
        if self.options.workers <= 1 {
            return false;
        }
        let now = Instant::now();
        self.rested_at() <= now && (self.has_news() || self.next_timer().is_some_and(|at| at <= now))
    }

    /// When the next round may be, while operations are under way. What hangs is not waited for: nothing else ends meanwhile.
    fn rested_at(&self) -> Instant {
        let (at, took) = self.last_round;
        let rested = at + took * ROUND_PAUSE;
        self.pool.stuck_at(SLOW).map_or(rested, |stuck| rested.min(stuck))
    }

    fn has_news(&self) -> bool {
        !self.news.is_empty() || self.state.look
    }

    /// When the next pause before another try is over, a look into folders is due, or a round that was put off.
    fn next_timer(&self) -> Option<Instant> {
        let at = |since_start: Duration| self.started + since_start;
        let put_off = (self.has_news() && !self.pool.is_idle() && self.options.workers > 1).then(|| self.rested_at());
        [
            self.plan.wake_at.map(at),
            self.next_look.map(at),
            self.next_give_up().map(at),
            self.settled_at.map(at),
            self.state.again.map(at),
            put_off,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn poll(&self, stop: Option<BorrowedFd<'_>>, until: Option<Instant>) -> Result<Ready, ManagerError> {
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = vec![
            PollFd::new(&self.pool, PollFlags::IN),
            PollFd::new(&self.table_watch, PollFlags::PRI),
            PollFd::new(&self.folder_watch, PollFlags::IN),
            PollFd::new(&*self.driver_news, PollFlags::IN),
            PollFd::new(&self.state, PollFlags::IN),
            PollFd::new(&self.flex_watch, PollFlags::IN),
        ];
        fds.extend(self.hanging.iter().map(|h| PollFd::new(&h.unmount, PollFlags::IN)));
        let providers_at = self.provider_watch.as_ref().map(|watch| {
            fds.push(PollFd::new(watch, PollFlags::IN));
            fds.len() - 1
        });
        let stop_at = fds.len();
        if let Some(stop) = &stop {
            fds.push(PollFd::new(stop, PollFlags::IN));
        }
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(ManagerError::Io { doing: "wait for changes".into(), source: error.into() }),
        }
        let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        Ok(Ready {
            table: ready(1),
            folder: ready(2),
            drivers: ready(3),
            state: ready(4),
            flex: ready(5),
            providers: providers_at.is_some_and(ready),
            stop: ready(stop_at),
        })
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What failed or hangs.
    fn failures(&self) -> Vec<Problem> {
        let overdue = self.overdue().into_iter().map(|o| o.problem);
        self.retries
            .problems()
            .cloned()
            .chain(overdue)
            .chain(self.root_problem.clone())
            .chain(self.state.problem.clone())
            .chain(self.executor.host.providers.problems())
            .collect()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.pool.stop(STOP_PATIENCE);
    }
}

/// What the poll told.
#[allow(clippy::struct_excessive_bools)] // each is one independent descriptor
struct Ready {
    table: bool,
    folder: bool,
    drivers: bool,
    flex: bool,
    providers: bool,
    state: bool,
    stop: bool,
}

impl News {
    fn is_empty(&self) -> bool {
        !self.manifests && !self.table && !self.devices && !self.drivers && !self.providers && self.pods.is_empty()
    }
}
