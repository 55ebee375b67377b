//! What `clean --yes` does, done by the agent once the node has come to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use refloat_record::{PodUid, Store};
use refloat_volume::error_chain;

use crate::Actual;
use crate::clean::{Authority, CleanError, CleanOptions, CleanPlan, Cleaner, CleanerOptions, StepResult};

/// Who is told of orphans besides the log.
pub trait Listener: Send {
    /// What is left of a pod that is gone was found, or removed. It must not wait long; what it cannot pass on it drops.
    fn event(&mut self, event: &Event);
}

/// What happened to what a pod that is gone left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The pod.
    pub pod: PodUid,
    /// Its namespace and name, where they are known.
    pub name: Option<(String, String)>,
    /// What happened.
    pub what: Happened,
    /// The same in a sentence.
    pub message: String,
}

/// What can happen to an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// It was found, and is going to be removed.
    Found,
    /// All of it that may go is gone.
    Cleaned,
    /// Some of it could not be removed; it is tried again.
    NotCleaned,
}

/// How an agent cleans.
pub struct Cleaning {
    /// What may be cleaned, and how.
    pub options: CleanOptions,
    /// How it is carried out. The agent sets [`CleanerOptions::write`] as it needs it.
    pub cleaner: CleanerOptions,
    /// Makes the sources of pods, which are asked anew each time.
    pub authority: Box<dyn FnMut() -> Box<dyn Authority> + Send>,
    /// Who is told, besides the log.
    pub listener: Option<Box<dyn Listener>>,
}

/// How long nothing must have changed before it is cleaned: twenty turns of a kubelet's volume manager.
pub(super) const REST: Duration = Duration::from_secs(2);
/// The longest pause before it is tried again.
const LONGEST: Duration = Duration::from_secs(300);

/// What is remembered from one time to the next.
pub(super) struct Cleanup {
    how: Cleaning,
    /// What was said of what stays, and of pods whose things go.
    told: BTreeSet<String>,
    /// Pods of which was told that their things are going to be removed, and are not yet.
    announced: BTreeSet<PodUid>,
    failures: u32,
}

type Names = BTreeMap<PodUid, (String, String)>;

/// The pods' names, where a record or source tells them.
fn names(actual: &Actual) -> Names {
    actual.volumes.iter().filter_map(|v| Some((v.key.pod.clone(), v.pod_name.clone()?))).collect()
}

fn shown(pod: &PodUid, names: &Names) -> String {
    match names.get(pod) {
        Some((namespace, name)) => format!("pod {namespace}/{name} ({pod})"),
        None => format!("pod {pod}"),
    }
}

fn tell(listener: &mut Option<Box<dyn Listener>>, pod: &PodUid, names: &Names, what: Happened, message: String) {
    if let Some(listener) = listener {
        listener.event(&Event { pod: pod.clone(), name: names.get(pod).cloned(), what, message });
    }
}

/// What one time came to.
pub(super) struct Cleaned {
    /// Whether something was done, so that the records have changed.
    pub(super) did: bool,
    /// After how long it is to be looked again although nothing changes.
    pub(super) again: Option<Duration>,
}

impl Cleanup {
    pub(super) fn new(how: Cleaning) -> Self {
        Self { how, told: BTreeSet::new(), announced: BTreeSet::new(), failures: 0 }
    }

    /// Looks for what no pod wants, and removes it.
    pub(super) fn run(&mut self, store: &Arc<Store>) -> Cleaned {
        match self.try_run(store) {
            Ok(cleaned) => cleaned,
            Err(error) => {
                let text = error_chain(&error);
                if self.told.insert(text.clone()) {
                    tracing::warn!(why = text, "cannot clean; it is tried again");
                }
                Cleaned { did: false, again: Some(self.later()) }
            }
        }
    }

    fn try_run(&mut self, store: &Arc<Store>) -> Result<Cleaned, CleanError> {
        // First without looking for drivers, which takes threads and time: mostly there is nothing to do.
        let looking = CleanerOptions { write: false, ..self.how.cleaner.clone() };
        let (plan, _) = Cleaner::open(looking, (self.how.authority)())?.plan(&self.how.options)?;
        self.tell(&plan);
        let missing_driver = plan.kept.iter().any(|kept| kept.code == "DriverMissing");
        if plan.units.is_empty() && !missing_driver {
            return Ok(Cleaned { did: false, again: self.pause(&plan) });
        }
        let doing = CleanerOptions { write: true, ..self.how.cleaner.clone() };
        let mut cleaner = Cleaner::with_store(doing, (self.how.authority)(), Arc::clone(store))?;
        let (plan, seen) = cleaner.plan(&self.how.options)?;
        if plan.units.is_empty() {
            return Ok(Cleaned { did: false, again: self.pause(&plan) });
        }
        let names = names(&seen.actual);
        let orphans = self.found(&plan, &names);
        let report = cleaner.execute(plan, &self.how.options)?;
        self.cleaned(&report.plan, orphans, &names);
        for step in report.plan.steps() {
            let (action, path, volume) = (step.action.name(), step.path.display(), step.volume.as_deref());
            match &step.result {
                StepResult::Done => tracing::info!(action, %path, volume, reason = step.reason, "cleaned"),
                StepResult::Forced { lazily } => {
                    tracing::warn!(action, %path, volume, lazily, reason = step.reason, "cleaned by force");
                }
                StepResult::Failed(why) => {
                    if self.told.insert(format!("{action} {path}: {why}")) {
                        tracing::warn!(action, %path, volume, why, "not cleaned");
                    }
                }
                StepResult::Planned | StepResult::NotDone => {}
            }
        }
        if let Some(why) = &report.stopped {
            tracing::warn!(why, "something was not as it was planned, so no more was done; it is looked at anew");
        }
        let again = if report.is_unfinished() || report.stopped.is_some() {
            Some(self.later())
        } else {
            self.pause(&report.plan)
        };
        Ok(Cleaned { did: true, again })
    }

    /// Tells of the pods whose things are going to be removed, each once. Answers all of them.
    fn found(&mut self, plan: &CleanPlan, names: &Names) -> BTreeSet<PodUid> {
        let orphans: BTreeSet<PodUid> = plan.units.iter().filter_map(|unit| unit.pod.clone()).collect();
        for pod in orphans.iter().filter(|pod| !self.announced.contains(*pod)) {
            let steps = plan.units.iter().filter(|unit| unit.pod.as_ref() == Some(pod));
            let steps: usize = steps.map(|unit| unit.steps.len()).sum();
            let message = format!("no pod wants what is left of {}: {steps} things are removed", shown(pod, names));
            tell(&mut self.how.listener, pod, names, Happened::Found, message);
        }
        self.announced.clone_from(&orphans);
        orphans
    }

    /// Tells what became of them.
    fn cleaned(&mut self, plan: &CleanPlan, orphans: BTreeSet<PodUid>, names: &Names) {
        for pod in orphans {
            let of_pod =
                || plan.units.iter().filter(|unit| unit.pod.as_ref() == Some(&pod)).flat_map(|unit| &unit.steps);
            let failed = of_pod().find_map(|step| match &step.result {
                StepResult::Failed(why) => Some(format!("{} {}: {why}", step.action.name(), step.path.display())),
                StepResult::Planned | StepResult::Done | StepResult::Forced { .. } | StepResult::NotDone => None,
            });
            if let Some(why) = failed {
                if self.told.insert(format!("event {pod}: {why}")) {
                    let message = format!("what is left of {} could not all be removed: {why}", shown(&pod, names));
                    tell(&mut self.how.listener, &pod, names, Happened::NotCleaned, message);
                }
            } else {
                let message =
                    format!("what was left of {} was removed: {} things", shown(&pod, names), of_pod().count());
                tell(&mut self.how.listener, &pod, names, Happened::Cleaned, message);
                self.announced.remove(&pod);
            }
        }
    }

    /// Says once of each pod that its things go, and of what stays why.
    fn tell(&mut self, plan: &CleanPlan) {
        let mut now = BTreeSet::new();
        let orphans: BTreeSet<_> = plan.units.iter().filter_map(|unit| unit.pod.clone()).collect();
        for pod in orphans {
            let key = format!("orphan {pod}");
            if !self.told.contains(&key) {
                tracing::info!(%pod, "orphaned: no pod wants what is left of it");
            }
            now.insert(key);
        }
        for kept in &plan.kept {
            let key = format!("{} {}", kept.code, kept.path.display());
            if !self.told.contains(&key) {
                let (path, volume) = (kept.path.display(), kept.volume.as_deref());
                tracing::info!(code = kept.code, %path, volume, reason = kept.reason, "kept");
            }
            now.insert(key);
        }
        // What failed is told again only if it is another failure.
        let failures = std::mem::take(&mut self.told).into_iter().filter(|text| text.contains(": "));
        now.extend(failures.collect::<Vec<_>>());
        self.told = now;
    }

    /// When it is to be looked again, by what stays. What is data, or not understood, stays until something changes.
    fn pause(&mut self, plan: &CleanPlan) -> Option<Duration> {
        let has = |codes: &[&str]| plan.kept.iter().any(|kept| codes.contains(&kept.code));
        if has(&["NotKnown", "Held", "DriverMissing"]) {
            return Some(self.later());
        }
        self.failures = 0;
        let grace = self.how.options.grace;
        has(&["TooRecent"]).then(|| (grace / 2).clamp(Duration::from_millis(500), Duration::from_secs(60)))
    }

    fn later(&mut self) -> Duration {
        let pause = REST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        pause
    }
}
