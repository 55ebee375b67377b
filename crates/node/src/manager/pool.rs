//! The workers: threads that carry operations out, one at a time each.
//!
//! What is asked of a driver, or of a server, has a lane of its own for each of them, with as many threads as there are
//! workers, started when there is something to ask: one that hangs holds up its own volumes and no others. With one worker everything has
//! one lane and is done in the plan's order.
//!
//! A job that takes longer than its deadline cannot be stopped: its thread may be in a system call that does not return.
//! It is given up instead: another thread takes its place, and its own ends when the call returns at last. What the
//! job excludes stays excluded until then.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use refloat_volume::{Problem, VolumeError};
use rustix::event::EventfdFlags;

use crate::execute::{Done, Executor, Failure, Job};

/// The worker threads and their queue.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<(u64, JoinHandle<()>)>,
    /// How many operations run at once.
    workers: usize,
    deadline: Duration,
    next_job: u64,
    next_thread: u64,
}

#[derive(Debug)]
struct Shared {
    executor: RwLock<Arc<Executor>>,
    state: Mutex<State>,
    ready: Condvar,
    /// Becomes readable when a job has ended.
    wake: OwnedFd,
}

/// What a lane is for ([`refloat_volume::Plugin::lane`]); none for everything else.
type LaneName = Option<String>;

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<(u64, Job)>,
    /// How many threads will take another job of it: all but those of jobs that are overdue.
    hands: usize,
}

#[derive(Debug, Default)]
struct State {
    lanes: BTreeMap<LaneName, Lane>,
    running: BTreeMap<u64, Running>,
    done: Vec<Done>,
    stop: bool,
}

#[derive(Debug)]
struct Running {
    thread: u64,
    lane: LaneName,
    since: Instant,
    subject: String,
    operation: &'static str,
    excludes: Vec<crate::Exclusion>,
    overdue: bool,
}

/// A job that is not waited for any more.
#[derive(Debug, Clone)]
pub(crate) struct Overdue {
    pub(crate) excludes: Vec<crate::Exclusion>,
    pub(crate) problem: Problem,
}

impl Pool {
    pub(crate) fn new(executor: Arc<Executor>, workers: usize, deadline: Duration) -> std::io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Shared { executor: RwLock::new(executor), state: Mutex::default(), ready: Condvar::new(), wake };
        let workers = workers.max(1);
        Ok(Self { shared: Arc::new(shared), threads: vec![], workers, deadline, next_job: 0, next_thread: 0 })
    }

    /// Starts as many threads as the queued jobs need, if there are not enough of them: a start or a node at rest needs
    /// none.
    fn staff(&mut self) -> std::io::Result<()> {
        // Threads that came back from an overdue job have ended.
        self.threads.retain(|(_, thread)| !thread.is_finished());
        let mut short: Vec<(LaneName, std::ops::Range<usize>)> = vec![];
        let state = self.shared.state();
        for (name, lane) in &state.lanes {
            let running = state.running.values().filter(|r| !r.overdue && r.lane == *name).count();
            let wanted = (lane.queue.len() + running).min(self.workers);
            if lane.hands < wanted {
                short.push((name.clone(), lane.hands..wanted));
            }
        }
        drop(state);
        for (lane, missing) in short {
            for hands in missing {
                match self.spawn(&lane) {
                    Ok(()) => {}
                    // Those that are there work the queue off, only slower.
                    Err(_) if hands > 0 => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn spawn(&mut self, lane: &LaneName) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let id = self.next_thread;
        self.next_thread += 1;
        // Counted first: the thread may end before this call does.
        self.shared.state().lane(lane).hands += 1;
        let own = lane.clone();
        let thread = std::thread::Builder::new().name(format!("operation-{id}")).spawn(move || shared.work(id, &own));
        match thread {
            Ok(thread) => self.threads.push((id, thread)),
            Err(error) => {
                self.shared.state().lane(lane).hands -= 1;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Jobs that start from now on are carried out by this one.
    pub(crate) fn use_executor(&self, executor: Arc<Executor>) {
        *self.shared.executor.write().unwrap_or_else(PoisonError::into_inner) = executor;
    }

    /// Queues jobs, to be started in this order.
    pub(crate) fn submit(&mut self, jobs: impl IntoIterator<Item = Job>) -> std::io::Result<()> {
        let mut state = self.shared.state();
        for job in jobs {
            let lane = job.lane.clone().filter(|_| self.workers > 1);
            state.lane(&lane).queue.push_back((self.next_job, job));
            self.next_job += 1;
        }
        drop(state);
        self.shared.ready.notify_all();
        self.staff()
    }

    /// Takes what has ended since the last call.
    pub(crate) fn ended(&self) -> Vec<Done> {
        let mut counter = [0; 8];
        // Not readable means that nothing has ended, which the list tells as well.
        let _ = rustix::io::read(&self.shared.wake, &mut counter);
        std::mem::take(&mut self.shared.state().done)
    }

    /// Whether nothing is queued, under way (but for what is overdue) or waiting to be taken.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.shared.state();
        state.is_queue_empty() && state.done.is_empty() && state.running.values().all(|r| r.overdue)
    }

    /// From when on nothing is about to end, as far as can be told, if nothing does until then: all that is under way has
    /// been for this long by then, and what is queued waits for that. None if something queued can start.
    pub(super) fn stuck_at(&self, time: Duration) -> Option<Instant> {
        let state = self.shared.state();
        let under_way = || state.running.values().filter(|r| !r.overdue);
        let can_start = |(name, lane): (&LaneName, &Lane)| {
            !lane.queue.is_empty() && under_way().filter(|r| r.lane == *name).count() < self.workers
        };
        if state.lanes.iter().any(can_start) {
            return None;
        }
        Some(under_way().map(|r| r.since + time).max().unwrap_or_else(Instant::now))
    }

    /// When the next job becomes overdue, if one is under way.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let state = self.shared.state();
        let running = state.running.values().filter(|r| !r.overdue).map(|r| r.since).min();
        // A queued job starts now at the earliest.
        let queued = (!state.is_queue_empty()).then(Instant::now);
        running.into_iter().chain(queued).min().map(|since| since + self.deadline)
    }

    /// Gives up jobs that are over their deadline; another thread takes the place of each one's as it is needed.
    pub(crate) fn give_up_overdue(&mut self) -> std::io::Result<()> {
        let mut state = self.shared.state();
        let State { running, lanes, .. } = &mut *state;
        for running in running.values_mut() {
            if !running.overdue && running.since.elapsed() >= self.deadline {
                running.overdue = true;
                lanes.entry(running.lane.clone()).or_default().hands -= 1;
            }
        }
        drop(state);
        self.staff()
    }

    /// The jobs that are not waited for any more.
    pub(crate) fn overdue(&self) -> Vec<Overdue> {
        let state = self.shared.state();
        let overdue = state.running.values().filter(|r| r.overdue);
        overdue
            .map(|r| Overdue {
                excludes: r.excludes.clone(),
                problem: Problem::new(
                    "OperationHangs",
                    format!(
                        "{} of {} has not ended within {} s; nothing else waits for it",
                        r.operation,
                        r.subject,
                        self.deadline.as_secs()
                    ),
                    "Look at the server, device or FUSE daemon behind it. It goes on by itself when that answers.",
                ),
            })
            .collect()
    }

    /// Drops what is queued, lets what is under way end, but waits for it no longer than this.
    pub(crate) fn stop(&mut self, patience: Duration) {
        let mut state = self.shared.state();
        state.stop = true;
        state.lanes.values_mut().for_each(|lane| lane.queue.clear());
        drop(state);
        self.shared.ready.notify_all();
        let end = Instant::now() + patience;
        for (id, thread) in std::mem::take(&mut self.threads) {
            loop {
                let overdue = self.shared.state().running.values().any(|r| r.thread == id && r.overdue);
                if thread.is_finished() {
                    // It catches panics itself.
                    let _ = thread.join();
                    break;
                }
                if overdue || Instant::now() >= end {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

impl AsFd for Pool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}

impl State {
    fn lane(&mut self, name: &LaneName) -> &mut Lane {
        self.lanes.entry(name.clone()).or_default()
    }

    fn is_queue_empty(&self) -> bool {
        self.lanes.values().all(|lane| lane.queue.is_empty())
    }
}

impl Shared {
    fn executor(&self) -> Arc<Executor> {
        Arc::clone(&self.executor.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, thread: u64, lane: &LaneName) {
        loop {
            let mut state = self.state();
            let (id, job) = loop {
                if state.stop {
                    return;
                }
                let own = state.lane(lane);
                match own.queue.pop_front() {
                    Some(next) => break next,
                    None if lane.is_none() => {}
                    // A driver may never be asked again.
                    None => {
                        own.hands -= 1;
                        return;
                    }
                }
                state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            let executor = self.executor();
            let subject = executor.subject(&job.operation);
            let operation = job.operation.name();
            let excludes = job.operation.excludes();
            let (lane, since) = (lane.clone(), Instant::now());
            state.running.insert(id, Running { thread, lane, since, subject, operation, excludes, overdue: false });
            drop(state);
            tracing::debug!(operation, subject = %executor.subject(&job.operation), reason = job.operation.reason(), "starts");
            let done = std::panic::catch_unwind(AssertUnwindSafe(|| executor.run(&job)));
            let done = done.unwrap_or_else(|_| Self::panicked(&executor, &job));
            let mut state = self.state();
            let overdue = state.running.remove(&id).is_some_and(|r| r.overdue);
            state.done.push(done);
            drop(state);
            // The counter cannot overflow: it is read whenever it is not zero.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
            if overdue {
                return;
            }
        }
    }

    /// A fault of the program in one operation is that operation's failure, not the manager's end.
    fn panicked(executor: &Executor, job: &Job) -> Done {
        let problem = Problem::new(
            "InternalError",
            "the program met a fault of its own; what it did of the operation is not known",
            "Please report it with the message on standard error.",
        );
        Done {
            excludes: job.operation.excludes(),
            changes: vec![],
            generation: executor.generation,
            forced: vec![],
            result: Err(Failure {
                operation: job.operation.name(),
                subject: executor.subject(&job.operation),
                source: VolumeError::Refused(problem),
            }),
        }
    }
}
