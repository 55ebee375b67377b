//! Where the time of operations goes: adds up the spans of target `refloat::time`.
//!
//! At each entry to and exit from a span the thread's clocks are read, and what passed since the last reading belongs to the
//! innermost span: time by the wall, the processor's time in the program itself, and how long the thread waited for a core
//! that was taken from it. What is left is time in calls.
//!
//! A thread gives a core up by itself only in a system call, and has not returned from that before it has a core again. So
//! where none was taken from it, all its waiting is part of a call. Where one was, all its waiting since the last reading
//! counts as waiting for that one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use tracing::span::Id;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

const TARGET: &str = "refloat::time";

/// What was added up for one name.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    /// How many spans.
    pub(super) count: u64,
    /// By the wall.
    pub(super) wall: Duration,
    /// The processor's time, outside the kernel.
    pub(super) own: Duration,
    /// Ready to run, and its core taken.
    pub(super) waiting: Duration,
}

/// The sums by the spans' names.
pub(super) type Sums = BTreeMap<&'static str, Sum>;

/// What passes.
#[derive(Debug, Clone, Copy)]
struct Clocks {
    wall: Instant,
    own: Duration,
    waiting: Duration,
    /// How often a core was taken from the thread.
    taken: i64,
}

/// What one thread is in.
#[derive(Default)]
struct Thread {
    /// The scheduler's figures of the thread.
    figures: Option<File>,
    spans: Vec<&'static str>,
    last: Option<Clocks>,
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

impl Thread {
    fn now(&mut self) -> Clocks {
        if self.figures.is_none() {
            self.figures = File::open("/proc/thread-self/schedstat").ok();
        }
        let mut text = [0; 128];
        let length = self.figures.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..length]);
        // Time on a core, time waiting for one (both in ns), and how often.
        let waiting = text.split_ascii_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let taken = getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches());
        Clocks { wall: Instant::now(), own: own_time(), waiting: Duration::from_nanos(waiting), taken }
    }
}

/// The processor's time of this thread outside the kernel.
pub(super) fn own_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Duration::ZERO };
    let time = usage.user_time();
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec())) + Duration::from_micros(part(time.tv_usec()))
}

/// The processor's time of this process, outside the kernel and in it.
pub(super) fn process_time() -> Result<(Duration, Duration)> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("cannot ask for the processor's time")?;
    let time = |t: nix::sys::time::TimeVal| {
        Duration::from_micros(u64::try_from(t.tv_sec() * 1_000_000 + t.tv_usec()).unwrap_or(0))
    };
    Ok((time(usage.user_time()), time(usage.system_time())))
}

/// Adds up; a clone adds to the same.
#[derive(Debug, Default, Clone)]
pub(super) struct Adder(Arc<Mutex<Sums>>);

impl Adder {
    /// Starts to add up all spans of this process.
    pub(super) fn install() -> Result<Self> {
        let adder = Self::default();
        let subscriber = tracing_subscriber::registry().with(adder.clone());
        tracing::subscriber::set_global_default(subscriber).context("the time is added up already")?;
        Ok(adder)
    }

    /// Takes what was added up.
    pub(super) fn take(&self) -> Sums {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The innermost span changes.
    fn change(&self, change: impl FnOnce(&mut Vec<&'static str>), entered: Option<&'static str>) {
        THREAD.with_borrow_mut(|thread| {
            let now = thread.now();
            let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let (Some(name), Some(last)) = (thread.spans.last(), thread.last) {
                let sum = sums.entry(name).or_default();
                sum.wall += now.wall - last.wall;
                sum.own += now.own.saturating_sub(last.own);
                if now.taken != last.taken {
                    sum.waiting += now.waiting.saturating_sub(last.waiting);
                }
            }
            if let Some(name) = entered {
                sums.entry(name).or_default().count += 1;
            }
            drop(sums);
            change(&mut thread.spans);
            thread.last = Some(now);
        });
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Adder {
    fn enabled(&self, metadata: &Metadata<'_>, _: LayerContext<'_, S>) -> bool {
        metadata.target() == TARGET
    }

    fn on_enter(&self, id: &Id, context: LayerContext<'_, S>) {
        if let Some(name) = context.metadata(id).map(Metadata::name) {
            self.change(|spans| spans.push(name), Some(name));
        }
    }

    fn on_exit(&self, _: &Id, _: LayerContext<'_, S>) {
        let leave = |spans: &mut Vec<_>| {
            spans.pop();
        };
        self.change(leave, None);
    }
}
