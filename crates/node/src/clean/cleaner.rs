//! Looks at the node, has the clean-up planned, and carries it out.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use refloat_csi::Drivers;
use refloat_mount::{Kernel, MountTable, NodeRoot, PathError, PendingUnmount, RemoveError, UnmountError};
use refloat_record::{PodUid, Record, Store};
use refloat_volume::plugins::flex_volume;
use refloat_volume::scsi::Sys;
use refloat_volume::{Host, Plugins, Recorded, VolumeError, layout};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use super::{
    Authority, CleanInput, CleanOptions, CleanPlan, MountKey, PodFolder, Stage, StepResult, Unit, Unused, Verdict,
    contents, known_files, plan, signs,
};
use crate::evidence::{Gather, GatherError};
use crate::execute::{Done, Executor, Failure, Force, Job};
use crate::manager::drivers::{self, DRIVERS_PATIENCE, DRIVERS_STEP};
use crate::manager::host;
use crate::manager::pool::Pool;
use crate::{Actual, Answers, Evidence, Exclusion, Holders, ManagerError, Operation, reconstruct};

/// How a [`Cleaner`] is run.
#[derive(Debug, Clone)]
pub struct CleanerOptions {
    /// The node root (the kubelet's).
    pub root_dir: PathBuf,
    /// The state folder.
    pub state_dir: PathBuf,
    /// Whether something may be changed: the store is locked then, and drivers are looked for.
    pub write: bool,
    /// How many operations run at once.
    pub workers: usize,
    /// How long one operation may take before the others go on without it.
    pub operation_deadline: Duration,
    /// How long all may take.
    pub timeout: Duration,
    /// The folder that flexVolume drivers are in.
    pub flex_volume_dir: PathBuf,
    /// Where its disks are.
    pub sys: Sys,
    /// The folder of providers outside this program, if there are any: they are told what is gone.
    pub provider_dir: Option<PathBuf>,
}

/// Why the node could not be looked at or cleaned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CleanError {
    /// Store, root or watches could not be had.
    #[error("cannot begin")]
    Start(#[source] ManagerError),
    /// The node could not be looked at.
    #[error("cannot look at the node")]
    Look(#[source] GatherError),
    /// No worker thread could be started, or nothing could be waited for.
    #[error("cannot {doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// What a clean-up did.
#[derive(Debug)]
pub struct CleanReport {
    /// The plan, with what became of each step.
    pub plan: CleanPlan,
    /// Why it was stopped before its end, if it was: something was not as it was planned.
    pub stopped: Option<String>,
}

impl CleanReport {
    /// How many steps failed.
    pub fn failed(&self) -> usize {
        self.plan.steps().filter(|step| matches!(step.result, StepResult::Failed(_))).count()
    }

    /// Whether something that was planned is not done.
    pub fn is_unfinished(&self) -> bool {
        self.plan.steps().any(|step| matches!(step.result, StepResult::Failed(_) | StepResult::NotDone))
    }
}

/// What was seen of the node.
#[derive(Debug)]
pub struct Seen {
    /// The mount table.
    pub table: Arc<MountTable>,
    /// What was concluded.
    pub actual: Actual,
}

/// How old the sources' answers may be when a unit is begun.
const FRESH: Duration = Duration::from_secs(1);

/// How long an unmount that was made to give up is waited for.
const GIVE_UP_PATIENCE: Duration = Duration::from_secs(5);

/// How often a driver that answers with an error is asked again at once. After so many a refusal to undo what is not there
/// is believed.
const DRIVER_TRIES: u32 = 5;

/// How long operations under way are waited for at the end.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// Cleans a node.
pub struct Cleaner {
    options: CleanerOptions,
    executor: Arc<Executor>,
    pool: Pool,
    authority: Box<dyn Authority>,
    asked: Option<Instant>,
    held: Option<(Instant, BTreeMap<MountKey, String>)>,
    started: Instant,
}

impl Cleaner {
    /// Opens the node root, and with [`CleanerOptions::write`] the store, taking its lock.
    pub fn open(options: CleanerOptions, authority: Box<dyn Authority>) -> Result<Self, CleanError> {
        // A root that is not there is told before a folder for records is made.
        let opened = host::open_root(&options.root_dir).map_err(CleanError::Start)?;
        let store = if options.write {
            Some(Arc::new(Store::open(&options.state_dir).map_err(|e| CleanError::Start(ManagerError::Store(e)))?))
        } else {
            None
        };
        Self::with(options, authority, store, opened)
    }

    /// The same with a store that this process has open already.
    pub fn with_store(
        options: CleanerOptions,
        authority: Box<dyn Authority>,
        store: Arc<Store>,
    ) -> Result<Self, CleanError> {
        let opened = host::open_root(&options.root_dir).map_err(CleanError::Start)?;
        Self::with(CleanerOptions { write: true, ..options }, authority, Some(store), opened)
    }

    fn with(
        options: CleanerOptions,
        authority: Box<dyn Authority>,
        store: Option<Arc<Store>>,
        (kernel, root): (Kernel, NodeRoot),
    ) -> Result<Self, CleanError> {
        let io = |doing: &'static str| move |source| CleanError::Io { doing, source };
        let drivers = if options.write {
            drivers::watch(root.given_path(), options.operation_deadline).map_err(io("watch for drivers"))?.0
        } else {
            Drivers::none()
        };
        let programs = host::Programs {
            flex_volume_dir: Some(&options.flex_volume_dir),
            provider_dir: options.provider_dir.as_deref(),
            sys: Some(&options.sys),
        };
        let host = host::open_host(kernel, root, drivers, options.operation_deadline, programs)
            .map_err(io("read the boot id"))?;
        let plugins = Arc::new(Plugins::builtin());
        let executor = Arc::new(Executor { host: Arc::new(host), plugins, store, generation: 0 });
        let pool = Pool::new(Arc::clone(&executor), options.workers, options.operation_deadline)
            .map_err(io("make an eventfd"))?;
        Ok(Self { options, executor, pool, authority, asked: None, held: None, started: Instant::now() })
    }

    /// The node, for whoever looks at it afterwards.
    pub fn host(&self) -> &Host {
        &self.executor.host
    }

    fn gather(&self) -> Result<Evidence, CleanError> {
        let gather = Gather::new(&self.executor.host);
        let state_dir = &self.options.state_dir;
        let evidence = match &self.executor.store {
            Some(store) => gather.read(|| store.load()),
            None => gather.read(|| Store::read(state_dir)),
        };
        evidence.map_err(CleanError::Look)
    }

    /// Looks, without asking anybody for pods and without looking into their folders.
    pub fn look(&self) -> Result<Seen, CleanError> {
        let evidence = self.gather()?;
        let actual = reconstruct(&evidence, &self.executor.plugins);
        Ok(Seen { table: evidence.table, actual })
    }

    /// What each source of pods answered last; none if nobody but a folder of manifests was asked.
    pub fn asked(&self) -> Option<&Answers> {
        self.authority.asked()
    }

    /// Looks, and plans.
    pub fn plan(&mut self, options: &CleanOptions) -> Result<(CleanPlan, Seen), CleanError> {
        let evidence = self.gather()?;
        // Afterwards: a pod is known to them before its first folder is made, so whose folder was seen is known to them.
        self.asked = None;
        self.ask();
        let mut actual = reconstruct(&evidence, &self.executor.plugins);
        if let Some(answers) = self.authority.asked() {
            answers.tell_names(&mut actual);
        }
        let drivers = self.drivers(&evidence, &actual);
        let facts = Facts::gather(&self.executor.host.root, &evidence, &actual, self.authority.as_ref());
        let plan = plan(CleanInput {
            actual: &actual,
            table: &evidence.table,
            root: &evidence.root,
            given_root: self.executor.host.root.given_path(),
            plugins: &self.executor.plugins,
            drivers: &drivers,
            verdicts: &facts.verdicts,
            unused: &facts.unused,
            contents: &facts.contents,
            folders: &facts.folders,
            device_changes: &facts.device_changes,
            held: &facts.held,
            now: Timestamp::now(),
            options,
        });
        Ok((plan, Seen { table: evidence.table, actual }))
    }

    /// Asks the sources of pods, unless that was done a moment ago.
    fn ask(&mut self) {
        if self.asked.is_none_or(|at| at.elapsed() > FRESH) {
            self.authority.refresh();
            self.asked = Some(Instant::now());
        }
    }

    /// The drivers that can be asked, of those that volumes on this node need. A dry run only looks whether somebody listens
    /// where they would be.
    fn drivers(&self, evidence: &Evidence, actual: &Actual) -> BTreeSet<String> {
        let (plugins, host) = (&self.executor.plugins, &self.executor.host);
        let of_volumes =
            actual.volumes.iter().filter_map(|v| v.record.as_ref()).map(|r| (&r.plugin, Recorded::from(r)));
        let of_devices =
            actual.devices.iter().filter_map(|d| d.record.as_ref()).map(|r| (&r.plugin, Recorded::from(r)));
        let (mut needed, mut programs) = (BTreeSet::new(), BTreeSet::new());
        for (plugin, recorded) in of_volumes.chain(of_devices) {
            let Some(name) = plugins.by_name(plugin).and_then(|p| p.recorded_driver(recorded)) else { continue };
            if !flex_volume::is_flex_volume(plugin) {
                needed.insert(name);
            } else if flex_volume::is_there(host.flex_drivers.folder(), plugin) {
                programs.insert(name);
            }
        }
        if needed.is_empty() {
            return programs;
        }
        let mut sockets: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
        for record in &evidence.records.records {
            if let Record::Driver(driver) = record {
                sockets.entry(driver.name.as_str()).or_default().push(driver.endpoint.clone().into());
            }
        }
        for name in &needed {
            let root = host.root.given_path();
            let usual = sockets.entry(name).or_default();
            // Where drivers are told to listen, in the examples of the CSI project.
            usual.push(root.join(layout::PLUGINS).join(name).join("csi.sock"));
            if self.options.write {
                let live = usual.iter().find(|socket| crate::evidence::drivers::answers(socket));
                if let Some(socket) = live {
                    host.drivers.remember(name, socket);
                }
            } else {
                usual.push(root.join(drivers::REGISTRY).join(format!("{name}-reg.sock")));
            }
        }
        let answers = |name: &String| {
            sockets.get(name.as_str()).is_some_and(|all| all.iter().any(|s| crate::evidence::drivers::answers(s)))
        };
        let registered = |name: &String| host.drivers.list().iter().any(|d| d.registered && d.name == *name);
        if self.options.write {
            let end = self.started + DRIVERS_PATIENCE;
            while !needed.iter().all(&registered) && host.drivers.is_trying() && Instant::now() < end {
                std::thread::sleep(DRIVERS_STEP);
            }
        }
        programs.extend(needed.iter().filter(|name| registered(name) || answers(name)).cloned());
        programs
    }

    // ── carrying out ───────────────────────────────────────────────────────────────────────────────────────────────

    /// Carries a plan out. What it did is in the steps.
    pub fn execute(&mut self, plan: CleanPlan, options: &CleanOptions) -> Result<CleanReport, CleanError> {
        let end = Instant::now() + self.options.timeout;
        let mut run =
            Run { plan, stopped: None, failed_pods: BTreeSet::new(), failed_devices: BTreeSet::new(), hanging: vec![] };
        for stage in [Stage::SubPaths, Stage::Volumes, Stage::Blocks, Stage::Devices, Stage::Folders] {
            self.stage(&mut run, stage, options, end)?;
        }
        self.pool.stop(STOP_PATIENCE);
        self.look_at_hanging(&mut run);
        let Run { plan, stopped, .. } = run;
        Ok(CleanReport { plan, stopped })
    }

    fn stage(&mut self, run: &mut Run, stage: Stage, options: &CleanOptions, end: Instant) -> Result<(), CleanError> {
        let mut queue: Vec<usize> =
            (0..run.plan.units.len()).filter(|index| run.plan.units[*index].stage == stage).collect();
        queue.reverse();
        let mut flying: BTreeMap<Exclusion, Flight> = BTreeMap::new();
        loop {
            if run.stopped.is_none() && Instant::now() >= end {
                run.stopped = Some("the time that --timeout gives is over".into());
            }
            while run.stopped.is_none() && flying.len() < self.options.workers.max(1) {
                // The next one whose subject nothing is being done to.
                let free = |index: &usize| {
                    let excludes = run.plan.units[*index].operation.excludes();
                    !excludes.iter().any(|e| flying.values().any(|flight| flight.excludes.contains(e)))
                };
                let Some(place) = queue.iter().rposition(free) else { break };
                let index = queue.remove(place);
                if let Some(why) = run.hopeless(index) {
                    run.fail(index, &why);
                    continue;
                }
                match self.check(&run.plan.units[index], options) {
                    Ok(()) => {
                        let flight = Flight { index, tries: 0, excludes: run.plan.units[index].operation.excludes() };
                        self.submit(&run.plan.units[index], options, 0)?;
                        flying.insert(flight.excludes[0].clone(), flight);
                    }
                    Err(surprise) => {
                        run.fail(index, &surprise);
                        run.stopped = Some(surprise);
                    }
                }
            }
            if flying.is_empty() && (queue.is_empty() || run.stopped.is_some()) {
                break;
            }
            self.wait(end)?;
            for done in self.pool.ended() {
                let Some(mut flight) = flying.remove(&done.excludes[0]) else { continue };
                if self.again(run, &done, &mut flight, options)? {
                    flying.insert(flight.excludes[0].clone(), flight);
                    continue;
                }
                self.landed(run, flight.index, done);
            }
            self.pool.give_up_overdue().map_err(|source| CleanError::Io { doing: "start a worker thread", source })?;
            for overdue in self.pool.overdue() {
                if let Some(flight) = flying.remove(&overdue.excludes[0]) {
                    run.fail(flight.index, &overdue.problem.message);
                }
            }
            if Instant::now() >= end {
                for (_, flight) in std::mem::take(&mut flying) {
                    run.fail(flight.index, "it had not ended when the time that --timeout gives was over");
                }
            }
        }
        for index in queue {
            run.not_done(index);
        }
        Ok(())
    }

    fn submit(&mut self, unit: &Unit, options: &CleanOptions, failures: u32) -> Result<(), CleanError> {
        let job = Job {
            operation: unit.operation.clone(),
            record: None,
            device: None,
            adopt: None,
            checkpoint: None,
            failures,
            lane: unit.driver.clone(),
            force: options.force.then_some(Force { lazy: true }),
            clear_payload: unit.clear_payload,
            without_driver: options.without_driver,
        };
        self.pool.submit([job]).map_err(|source| CleanError::Io { doing: "start a worker thread", source })
    }

    fn wait(&self, end: Instant) -> Result<(), CleanError> {
        let until = self.pool.next_deadline().map_or(end, |at| at.min(end));
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let left = Timespec::try_from(left).ok();
        match rustix::event::poll(&mut [PollFd::new(&self.pool, PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(CleanError::Io { doing: "wait for operations", source: errno.into() }),
        }
    }

    /// Who holds mounts now; looked up again once in a while.
    fn held(&mut self) -> Result<&BTreeMap<MountKey, String>, String> {
        let fresh = if let Some(fresh) = self.held.take().filter(|(at, _)| at.elapsed() <= FRESH) {
            fresh
        } else {
            let host = &self.executor.host;
            let table = host.mount_table().map_err(|error| refloat_volume::error_chain(&error))?;
            (Instant::now(), held(&table, host.root.path()))
        };
        Ok(&self.held.insert(fresh).1)
    }

    /// Whether everything still is as it was planned; the text says what is not.
    fn check(&mut self, unit: &Unit, options: &CleanOptions) -> Result<(), String> {
        self.ask();
        let host = Arc::clone(&self.executor.host);
        let asked = match (&unit.pod, &unit.device) {
            (Some(pod), _) if options.including_running || options.assume_gone.contains(pod) => {
                // A pod that somebody has is not gone, whatever the operator says.
                Some(self.authority.verdict(pod))
                    .filter(|v| matches!(v, Verdict::Wanted { .. }) && !options.including_running)
            }
            (Some(pod), _) => Some(self.authority.verdict(pod)),
            (None, Some(device)) if !options.release && !options.including_running => {
                let unused = Unused::ask(self.authority.as_ref(), device.name.as_ref(), &device.path);
                Some(unused.by_word(device.by_word))
            }
            (None, _) => None,
        };
        match asked {
            Some(Verdict::Wanted { by }) => return Err(format!("{} is wanted now: {by}", unit.subject)),
            Some(Verdict::Unknown { why }) => {
                return Err(format!("it cannot be told any more whether {} is wanted: {why}", unit.subject));
            }
            Some(Verdict::Gone { .. }) | None => {}
        }
        let table_at = |path: &Path| host.mount_table_at(path).map_err(|error| refloat_volume::error_chain(&error));
        let planned: BTreeSet<MountKey> = unit.steps.iter().filter_map(|step| step.mount).collect();
        for place in &unit.scope {
            let table = table_at(place)?;
            let there = table.under(place).chain(table.stack(place).into_iter().filter(|mount| !mount.hidden()));
            for mount in there {
                if !planned.contains(&MountKey::of(mount)) {
                    return Err(format!(
                        "{} {:?} is mounted at {} now, which it was not when this was planned",
                        mount.fs_type(),
                        mount.source(),
                        mount.point().display()
                    ));
                }
            }
        }
        for step in &unit.steps {
            let Some(key) = step.mount else { continue };
            let table = table_at(&step.path)?;
            let moved = table.by_short_id(key.short).filter(|m| MountKey::of(*m) == key && m.point() != step.path);
            if let Some(mount) = moved {
                return Err(format!("the mount at {} is at {} now", step.path.display(), mount.point().display()));
            }
        }
        let held = self.held()?;
        match unit.steps.iter().find_map(|step| Some((step, held.get(&step.mount?)?))) {
            Some((step, who)) => Err(format!("the mount at {} is held now: {who}", step.path.display())),
            None => Ok(()),
        }
    }

    /// Whether an operation that failed is worth another try at once, which is begun then.
    fn again(
        &mut self,
        run: &mut Run,
        done: &Done,
        flight: &mut Flight,
        options: &CleanOptions,
    ) -> Result<bool, CleanError> {
        let Err(Failure { source, .. }) = &done.result else { return Ok(false) };
        flight.tries += 1;
        match source {
            VolumeError::Driver(_) if flight.tries < DRIVER_TRIES => {}
            VolumeError::FlexDriver(error) if error.is_refusal() && flight.tries < DRIVER_TRIES => {}
            VolumeError::Unmount(UnmountError::Hangs(unmount)) if options.force && flight.tries < 3 => {
                tracing::warn!(path = %unmount.path().display(), "the unmount does not come back; it is made to give up");
                unmount.give_up();
                if !ended_within(unmount, GIVE_UP_PATIENCE) {
                    return Ok(false);
                }
            }
            _ => return Ok(false),
        }
        if run.stopped.is_some() {
            return Ok(false);
        }
        self.submit(&run.plan.units[flight.index], options, flight.tries)?;
        Ok(true)
    }

    /// Takes in how an operation ended.
    fn landed(&self, run: &mut Run, index: usize, done: Done) {
        let host = &self.executor.host;
        let unit = &mut run.plan.units[index];
        let error = done.result.as_ref().err();
        let message = error.map(|failure| failure.problem().message);
        let mut failed = false;
        for step in &mut unit.steps {
            let is_done = match (step.mount, step.action) {
                (Some(key), _) => host.mount_table_at(&step.path).is_ok_and(|table| !is_there(&table, key)),
                (None, super::Action::RemoveFolder) => is_nothing(host, &step.path),
                (None, _) => error.is_none(),
            };
            step.result = if is_done {
                match done.forced.iter().find(|forced| forced.path == step.path && step.mount.is_some()) {
                    Some(forced) => StepResult::Forced { lazily: forced.lazily },
                    None => StepResult::Done,
                }
            } else if failed {
                StepResult::NotDone
            } else {
                failed = true;
                StepResult::Failed(message.clone().unwrap_or_else(|| "it is still there: something is in it".into()))
            };
        }
        if error.is_some() && !failed {
            // All that can be seen is done.
            if let Some(step) = unit.steps.last_mut() {
                step.result = StepResult::Failed(message.clone().unwrap_or_default());
            }
            failed = true;
        }
        tracing::info!(subject = %unit.subject, failed, "cleaned");
        if failed {
            run.note_failure(index);
        }
        if let Err(failure) = done.result {
            if is_surprise(&failure.source, run.plan.units[index].driver.is_some()) && run.stopped.is_none() {
                run.stopped = message;
            }
            if let VolumeError::Unmount(UnmountError::Hangs(unmount)) = failure.source {
                run.hanging.push((index, unmount));
            }
        }
    }

    /// Unmounts that have come back meanwhile are done after all.
    fn look_at_hanging(&self, run: &mut Run) {
        let Ok(table) = self.executor.host.mount_table() else { return };
        for (index, unmount) in std::mem::take(&mut run.hanging) {
            if !unmount.has_ended() {
                continue;
            }
            for step in &mut run.plan.units[index].steps {
                if step.mount.is_some_and(|key| !is_there(&table, key))
                    && !matches!(step.result, StepResult::Forced { .. })
                {
                    step.result = StepResult::Done;
                }
            }
        }
    }
}

/// An operation under way.
struct Flight {
    index: usize,
    tries: u32,
    excludes: Vec<Exclusion>,
}

/// A plan that is being carried out.
struct Run {
    plan: CleanPlan,
    stopped: Option<String>,
    /// Pods with something that is not done.
    failed_pods: BTreeSet<PodUid>,
    /// Devices, by name and by path, with a volume that is not done.
    failed_devices: BTreeSet<String>,
    hanging: Vec<(usize, PendingUnmount)>,
}

impl Run {
    /// Why a unit makes no sense any more: something before it failed.
    fn hopeless(&self, index: usize) -> Option<String> {
        let unit = &self.plan.units[index];
        match &unit.operation {
            Operation::TidyPod { pod, .. } if self.failed_pods.contains(pod) => {
                Some("something of the pod is left".into())
            }
            Operation::UnmountDevice { record, .. } => {
                let names = [record.unique_name.as_str(), record.device_mount_path.as_str()];
                let used = names.iter().any(|name| self.failed_devices.contains(*name));
                used.then(|| "a volume that is on it could not be torn down".into())
            }
            _ => None,
        }
    }

    fn fail(&mut self, index: usize, why: &str) {
        let steps = &mut self.plan.units[index].steps;
        for (n, step) in steps.iter_mut().enumerate() {
            step.result = if n == 0 { StepResult::Failed(why.to_owned()) } else { StepResult::NotDone };
        }
        self.note_failure(index);
    }

    fn not_done(&mut self, index: usize) {
        self.plan.units[index].steps.iter_mut().for_each(|step| step.result = StepResult::NotDone);
        self.note_failure(index);
    }

    fn note_failure(&mut self, index: usize) {
        let unit = &self.plan.units[index];
        self.failed_pods.extend(unit.pod.clone());
        if let Operation::TearDown { record, .. } = &unit.operation {
            self.failed_devices.insert(record.unique_name.to_string());
            self.failed_devices.extend(record.device_mount_path.as_ref().map(ToString::to_string));
        }
    }
}

/// What is asked and looked up besides the evidence.
struct Facts {
    verdicts: BTreeMap<PodUid, Verdict>,
    unused: BTreeMap<PathBuf, Unused>,
    contents: BTreeMap<PathBuf, super::Contents>,
    folders: BTreeMap<PodUid, PodFolder>,
    device_changes: BTreeMap<PathBuf, Timestamp>,
    held: BTreeMap<MountKey, String>,
}

/// Which mounts below the node root other mount namespaces hold, and who does.
fn held(table: &MountTable, root: &Path) -> BTreeMap<MountKey, String> {
    let holders = Holders::look(table, root);
    table.under(root).filter_map(|mount| Some((MountKey::of(mount), holders.of(mount)?.to_string()))).collect()
}

impl Facts {
    fn gather(root: &NodeRoot, evidence: &Evidence, actual: &Actual, authority: &dyn Authority) -> Self {
        let mut pods: BTreeSet<PodUid> = actual.volumes.iter().map(|v| v.key.pod.clone()).collect();
        pods.extend(actual.leftovers.iter().filter_map(|l| l.pod.clone()));
        pods.extend(actual.checkpoints.iter().map(|c| c.pod.uid.clone()));
        let with_folder = evidence.tree.iter().flat_map(|tree| &tree.pods).filter_map(|pod| pod.uid.clone());
        let with_folder: BTreeSet<PodUid> = with_folder.collect();
        pods.extend(with_folder.iter().cloned());
        let verdicts: BTreeMap<PodUid, Verdict> =
            pods.into_iter().map(|pod| (pod.clone(), authority.verdict(&pod))).collect();
        // What a wanted pod has is not looked into.
        let may_go = |pod: &PodUid| !matches!(verdicts.get(pod), Some(Verdict::Wanted { .. }));
        let mut seen = BTreeMap::new();
        for volume in actual.volumes.iter().filter(|v| may_go(&v.key.pod)) {
            let path = volume.path.as_ref().filter(|_| volume.mount.is_none());
            let Some((path, rel)) = path.and_then(|path| Some((path, path.strip_prefix(root.path()).ok()?))) else {
                continue;
            };
            if let Some(found) = contents::of_folder(root, rel) {
                seen.insert(path.clone(), found);
            }
        }
        let folders = with_folder.into_iter().filter(|pod| may_go(pod)).map(|pod| {
            let known = known_files::of_pod(root, &pod).unwrap_or_default();
            let known: Vec<PathBuf> = known.into_iter().map(|known| known.path).collect();
            let strays = contents::of_pod(root, &pod, &known).unwrap_or_default();
            let folder = PodFolder { strays, known, last_change: signs::of_pod(root, &pod) };
            (pod, folder)
        });
        let folders = folders.collect();
        let rel = |path: &Path| path.strip_prefix(root.path()).map(Path::to_path_buf).ok();
        let devices = || actual.devices.iter().filter_map(|device| Some((device, rel(&device.path)?)));
        let unused = devices()
            .map(|(device, rel)| (device.path.clone(), Unused::ask(authority, device.unique_name.as_ref(), &rel)));
        let unused = unused.collect();
        let device_changes =
            devices().filter_map(|(device, rel)| Some((device.path.clone(), signs::of_folder(root, rel.parent()?)?)));
        let device_changes = device_changes.collect();
        Self { verdicts, unused, contents: seen, folders, device_changes, held: held(&evidence.table, &evidence.root) }
    }
}

fn is_there(table: &MountTable, key: MountKey) -> bool {
    match key.id {
        Some(id) => table.by_id(id).is_some(),
        None => table.by_short_id(key.short).is_some(),
    }
}

fn is_nothing(host: &Host, path: &Path) -> bool {
    let Ok(rel) = path.strip_prefix(host.root.path()) else { return false };
    matches!(host.root.look(rel), Ok(refloat_mount::Standing::Nothing))
}

fn ended_within(unmount: &PendingUnmount, patience: Duration) -> bool {
    let timeout = Timespec::try_from(patience).ok();
    let fd = unmount.as_fd();
    let _ = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref());
    unmount.has_ended()
}

/// Whether this error is about the node, so that nothing more is to be done: records or mount table cannot be had, the root is
/// another, or the mounts and paths were changed while this ran. All else holds up its own volume alone: a mount that is busy or
/// hangs, a driver that does not do what it is asked, files that came to light under a mount.
fn is_surprise(error: &VolumeError, by_driver: bool) -> bool {
    match error {
        VolumeError::Record(_) | VolumeError::Table(_) => true,
        VolumeError::Path(error) => is_path_surprise(error),
        VolumeError::Unmount(error) => match error {
            UnmountError::OtherMount { .. } | UnmountError::StillMounted { .. } | UnmountError::Table(_) => true,
            UnmountError::Path(error) => is_path_surprise(error),
            _ => false,
        },
        VolumeError::Remove(error) => match error {
            RemoveError::Mounts { .. } => true,
            RemoveError::Path(error) => is_path_surprise(error),
            _ => false,
        },
        VolumeError::Refused(problem) => match problem.code {
            "StillMounted" => !by_driver,
            code => matches!(code, "RootMoved" | "RootCovered"),
        },
        _ => false,
    }
}

fn is_path_surprise(error: &PathError) -> bool {
    !matches!(error, PathError::Io { .. })
}
