//! One round: takes what ended and what changed, reconstructs, plans, and starts the plan's operations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use refloat_mount::UnmountError;
use refloat_record::{PodCheckpoint, PodUid};
use refloat_volume::{Problem, VolumeError};

use super::hanging::Hanging;
use super::{Manager, ManagerError, News, records, retry};
use refloat_volume::plugins::csi::REPUBLISH_EVERY;

use crate::evidence::Gather;
use crate::execute::{Adopt, Force, Job, Success};
use crate::plan::digest;
use crate::{Exclusion, Operation, RecordState, VolumeKey, VolumeState, Wanted, compare, plan, reconstruct};

/// How often the folders of pods with a conflict are looked at again: with the pauses of a failed operation, since
/// nothing tells when somebody moves away the file that stands in the way.
const LOOK: fn(u32) -> std::time::Duration = retry::back_off;

/// So many times a flexVolume's driver that is not there is looked for, before a pod's mount comes off without it: with
/// the pauses between tries, about a minute.
const DRIVER_TURNS: u32 = 7;

impl Manager {
    /// Takes the results of operations that have ended.
    pub(super) fn take_ended(&mut self) {
        let ended = self.pool.ended();
        if ended.is_empty() {
            return;
        }
        let now = self.now();
        let mut changes = vec![];
        for done in ended {
            for exclusion in &done.excludes {
                self.input.running.remove(exclusion);
                self.news.about(exclusion);
            }
            self.news.pods.extend(done.changes.iter().filter_map(records::pod));
            if done.generation != self.executor.generation {
                self.do_again(&done.changes);
            }
            changes.extend(done.changes);
            let about = &done.excludes[0];
            let (wish, why) = self.wishes.remove(about).unwrap_or_default();
            match done.result {
                Ok(success) => {
                    match success {
                        Success::SetUp(key, digest) => {
                            self.input.republish.insert(key.clone(), now + REPUBLISH_EVERY);
                            self.input.verified.insert(key, digest);
                        }
                        Success::NoDevice(name) => drop(self.input.no_device.insert(name)),
                        Success::Answered(id, answer) => self.input.providers.answered(id, answer),
                        Success::Noted(id) => self.input.providers.noted(&id),
                        Success::Done => {}
                    }
                    tracing::info!(subject = %about, operation = %why, "done");
                    // A driver that was missing may have answered without having registered again.
                    self.news.drivers |= !self.evidence.missing_drivers.is_empty();
                    self.retries.succeeded(about, wish, &why, now);
                }
                Err(failure) => {
                    let problem = failure.problem();
                    if matches!(failure.source, VolumeError::Record(_)) {
                        tracing::debug!(subject = %about, "no record, so nothing was started");
                        self.state.look = true;
                    }
                    // Whether it has a device is asked again: what is at its path may have changed.
                    self.input.no_device.retain(|name| !done.excludes.contains(&Exclusion::Device(name.clone())));
                    if let VolumeError::Unmount(UnmountError::Hangs(unmount)) = failure.source {
                        self.input.running.extend(done.excludes.iter().cloned());
                        let since = now;
                        self.hanging.push(Hanging { excludes: done.excludes, unmount, problem, since, told: false });
                        continue;
                    }
                    // What is the provider's own fault is told once, and not for each volume.
                    if matches!(&failure.source, VolumeError::Provider(error) if !error.is_of_volume()) {
                        continue;
                    }
                    self.retries.failed(about.clone(), wish, problem, now);
                    if let VolumeError::Driver(error) = &failure.source {
                        self.retries.blame(about, &error.driver);
                        self.news.drivers = true;
                    }
                    if let VolumeError::FlexDriver(error) = &failure.source {
                        self.retries.blame(about, error.driver());
                    }
                }
            }
        }
        let records = &mut self.evidence.records;
        records::apply(&mut records.records, &mut records.unreadable, changes);
    }

    /// One round.
    pub(super) fn round(&mut self) -> Result<(), ManagerError> {
        let begun = Instant::now();
        self.take_ended();
        let now = self.now();
        if self.next_look.is_some_and(|at| at <= now) {
            self.next_look = None;
            self.news.pods.extend(self.watched_pods.iter().cloned());
            self.news.devices = true;
        }
        if self.settled_at.is_some_and(|at| at <= now) {
            self.settled_at = None;
            self.news.manifests = true;
        }
        let news = std::mem::take(&mut self.news);
        self.look_again(&news)?;
        self.state.look |= news.table;
        let was_away = self.root_problem.is_some() || self.state.problem.is_some();
        if !self.state_is_here()? || !self.root_is_here()? {
            self.plan = crate::Plan::default();
            self.log_problems();
            self.last_round = (Instant::now(), begun.elapsed());
            return Ok(());
        }
        self.actual = reconstruct(&self.evidence, &self.executor.plugins);
        if news.manifests || was_away {
            self.read_desired();
        }
        self.give_up_hanging();
        compare(&self.desired, &mut self.actual);
        self.show_overdue();

        let (desired, digests) = (&self.desired, &self.input.digests);
        self.retries.keep_wishes(|about| wish(desired, digests, about));
        self.input.now = now;
        self.input.not_before = self.retries.not_before();
        let known = &self.actual;
        let is_known = |key: &VolumeKey| known.volumes.binary_search_by(|v| v.key.cmp(key)).is_ok();
        self.input.verified.retain(|key, _| is_known(key));
        self.input.republish.retain(|key, _| is_known(key));
        self.prepare_providers();
        self.plan = plan(&self.desired, &self.actual, &self.input);

        let planned: BTreeSet<Exclusion> =
            self.plan.operations.iter().filter_map(|o| o.excludes().into_iter().next()).collect();
        self.retries.settled(|about| planned.contains(about) || self.input.running.contains(about));
        self.watch_conflicts(now);
        self.log_problems();
        self.start_operations()?;
        self.last_round = (Instant::now(), begun.elapsed());
        Ok(())
    }

    /// Brings the evidence up to date.
    fn look_again(&mut self, news: &News) -> Result<(), ManagerError> {
        if news.is_empty() {
            return Ok(());
        }
        self.evidence.table = self.executor.host.mount_table().map_err(ManagerError::Table)?;
        let gather = Gather::new(&self.executor.host);
        for pod in &news.pods {
            gather.pod_again(&mut self.evidence, pod);
        }
        if news.devices {
            gather.devices_again(&mut self.evidence);
        }
        if news.drivers {
            gather.drivers_again(&mut self.evidence);
        }
        Ok(())
    }

    fn read_desired(&mut self) {
        // Before reading: what changes while it is read is seen afterwards.
        self.folder_watch.rearm();
        let records = &self.evidence.records.records;
        self.desired =
            crate::sources::desired(&self.options.manifests, &self.actual.checkpoints, records, &self.executor.plugins);
        // A little later than that, so that it has passed then.
        self.settled_at = self.desired.settles_in.map(|left| self.now() + left + Duration::from_millis(10));
        let volumes = self.desired.pods.values().flat_map(|pod| &pod.volumes);
        self.input.digests = volumes.map(|v| (v.key.clone(), digest(v))).collect();
    }

    /// What an operation hangs at is uncertain.
    fn show_overdue(&mut self) {
        for overdue in self.overdue() {
            match overdue.excludes.first() {
                Some(Exclusion::Volume(key)) => {
                    if let Some(volume) = self.actual.volumes.iter_mut().find(|v| v.key == *key) {
                        volume.state = VolumeState::Uncertain;
                        volume.state_reason = "an operation on it has not ended".into();
                        volume.problems.push(overdue.problem);
                    }
                }
                Some(Exclusion::Device(name)) => {
                    if let Some(device) = self.actual.devices.iter_mut().find(|d| d.unique_name.as_ref() == Some(name))
                    {
                        device.state = VolumeState::Uncertain;
                        device.problems.push(overdue.problem);
                    }
                }
                Some(Exclusion::Pod(_) | Exclusion::Provider(..) | Exclusion::Asked(_)) | None => {}
            }
        }
    }

    fn start_operations(&mut self) -> Result<(), ManagerError> {
        let mut jobs = vec![];
        for operation in &self.plan.operations {
            let excludes = operation.excludes();
            let why = format!("{} ({})", operation.name(), operation.reason());
            self.wishes.insert(excludes[0].clone(), (wish(&self.desired, &self.input.digests, &excludes[0]), why));
            self.input.running.extend(excludes);
            jobs.push(self.job(operation.clone()));
        }
        if jobs.is_empty() {
            return Ok(());
        }
        self.pool.submit(jobs).map_err(|source| ManagerError::Io { doing: "start a worker thread".into(), source })
    }

    fn job(&self, operation: Operation) -> Job {
        let all = &self.evidence.records.records;
        let mut job = Job {
            operation,
            record: None,
            device: None,
            adopt: None,
            checkpoint: None,
            force: None,
            failures: 0,
            lane: None,
            clear_payload: false,
            without_driver: false,
        };
        job.failures = self.retries.failures(&job.operation.excludes()[0]);
        // A flexVolume's mount does not stay for ever because its driver was taken away.
        job.without_driver = job.failures >= DRIVER_TURNS;
        job.lane = self.lane(&job.operation);
        match &job.operation {
            Operation::AdmitPod { pod, .. } => {
                job.checkpoint = self.desired.pods.get(pod).map(|pod| PodCheckpoint {
                    pod: pod.pod.clone(),
                    source: pod.source.clone(),
                    object: pod.object.clone(),
                });
            }
            Operation::SetUp { volume, .. } => {
                job.record = records::volume(all, &volume.key).cloned();
                if volume.device_mount_path.is_some() && !self.input.no_device.contains(&volume.unique_name) {
                    job.device = records::device(all, &volume.unique_name).cloned();
                }
                if job.record.is_none() {
                    job.adopt = self.unrecorded_mount(&volume.key);
                }
            }
            Operation::MountDevice { volume, .. } => {
                job.device = records::device(all, &volume.unique_name).cloned();
            }
            Operation::TearDown { key: VolumeKey { pod, .. }, .. } | Operation::ForgetPod { pod, .. } => {
                let about = &job.operation.excludes()[0];
                let busy = self.retries.failing_for(about, "UnmountBusy", self.now()).unwrap_or_default();
                if busy >= self.force_after() && matches!(self.desired.wanted(pod), Wanted::No { .. }) {
                    job.force = Some(Force { lazy: self.options.lazy_unmount });
                }
            }
            Operation::NoteAnswer { of, .. } => match of {
                Exclusion::Volume(key) => job.record = records::volume(all, key).cloned(),
                Exclusion::Device(name) => job.device = records::device(all, name).cloned(),
                Exclusion::Pod(_) | Exclusion::Provider(..) | Exclusion::Asked(_) => {}
            },
            // The last two are never planned by a manager.
            Operation::AskProvider { .. }
            | Operation::UnmountDevice { .. }
            | Operation::UnmountLeftover { .. }
            | Operation::TidyPod { .. } => {}
        }
        job
    }

    /// What the operation may have to wait for outside of this node.
    fn lane(&self, operation: &Operation) -> Option<String> {
        let plugin = |name| self.executor.plugins.by_name(name);
        match operation {
            Operation::SetUp { volume, .. } | Operation::MountDevice { volume, .. } => {
                plugin(&volume.key.plugin)?.lane(&volume.spec)
            }
            Operation::TearDown { record, .. } => plugin(&record.plugin)?.recorded_lane((&**record).into()),
            Operation::UnmountDevice { record, .. } => plugin(&record.plugin)?.recorded_lane((&**record).into()),
            Operation::AskProvider { provider, .. } => Some(format!("provider {}", provider.name())),
            Operation::AdmitPod { .. }
            | Operation::NoteAnswer { .. }
            | Operation::ForgetPod { .. }
            | Operation::UnmountLeftover { .. }
            | Operation::TidyPod { .. } => None,
        }
    }

    /// The mount of a volume without a record, which the plan found to be what the pod wants.
    fn unrecorded_mount(&self, key: &VolumeKey) -> Option<Adopt> {
        let index = self.actual.volumes.binary_search_by(|v| v.key.cmp(key)).ok()?;
        let volume = &self.actual.volumes[index];
        if volume.record_state == RecordState::Ok {
            return None;
        }
        let record = volume.record.as_ref()?;
        match &record.block {
            Some(block) => block.mount.is_some().then(|| Adopt::Block(block.clone())),
            None => record.mount.clone().map(Adopt::Mount),
        }
    }

    /// Looks again, with growing pauses, at the folders of pods that hands are kept off of.
    fn watch_conflicts(&mut self, now: std::time::Duration) {
        let pods: BTreeSet<PodUid> = self
            .plan
            .report
            .iter()
            .filter(|r| r.decision == "HandsOff")
            .filter_map(|r| r.volume.as_ref().map(|key| key.pod.clone()))
            .collect();
        if pods != self.watched_pods {
            self.watched_pods = pods;
            self.looks = 0;
            self.next_look = None;
        }
        if self.next_look.is_none() && !self.watched_pods.is_empty() {
            self.looks = self.looks.saturating_add(1);
            self.next_look = Some(now + LOOK(self.looks));
        }
    }

    /// Logs each problem once when it appears, and once when it is gone.
    fn log_problems(&mut self) {
        let mut all: BTreeSet<Problem> = self.failures().into_iter().collect();
        all.extend(self.actual.problems.iter().chain(&self.desired.problems).cloned());
        all.extend(self.driver_problems());
        let overdue: BTreeSet<Problem> = self.overdue().into_iter().map(|o| o.problem).collect();
        for volume in &self.actual.volumes {
            // What an operation has made so far looks half done while it runs: it is no news before the operation ends.
            let running = self.input.running.contains(&Exclusion::Volume(volume.key.clone()));
            let news = |p: &&Problem| !running || overdue.contains(*p) || self.logged.contains(*p);
            all.extend(volume.problems.iter().filter(news).cloned());
        }
        all.extend(self.actual.devices.iter().flat_map(|d| &d.problems).cloned());
        all.extend(self.actual.leftovers.iter().flat_map(|l| &l.problems).cloned());
        for pod in self.desired.pods.values() {
            for waiting in &pod.waiting {
                let problem = &waiting.problem;
                let message = format!("{} (pod {}/{})", problem.message, pod.pod.namespace, pod.pod.name);
                all.insert(Problem::new(problem.code, message, problem.hint.clone()));
            }
        }
        for problem in all.difference(&self.logged) {
            tracing::warn!(code = problem.code, hint = %problem.hint, "{}", problem.message);
        }
        for problem in self.logged.difference(&all) {
            tracing::info!(code = problem.code, "no longer so: {}", problem.message);
        }
        self.logged = all;
    }
}

/// What is wished for something, in short form: a failure counts for this wish only.
fn wish(desired: &crate::Desired, digests: &BTreeMap<VolumeKey, u64>, about: &Exclusion) -> u64 {
    match about {
        // A wanted volume's differs from that of one that is not, whatever the digest.
        Exclusion::Volume(key) => digests.get(key).map_or(0, |digest| digest | 1),
        Exclusion::Pod(pod) => u64::from(desired.pods.contains_key(pod)),
        Exclusion::Device(name) => {
            let wanted = desired.pods.values().flat_map(|p| &p.volumes).any(|v| v.unique_name == *name);
            u64::from(wanted)
        }
        Exclusion::Provider(_, of) | Exclusion::Asked(of) => wish(desired, digests, of),
    }
}
