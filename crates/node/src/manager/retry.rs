//! When what failed is tried again. Pure: the time is passed in.

use std::collections::BTreeMap;
use std::time::Duration;

use refloat_volume::Problem;

use crate::Exclusion;

/// How long to wait before the next try after this many failures in a row: 0.5 s, doubled each time, at most 2 min 2 s.
///
/// # Source
/// `initialDurationBeforeRetry` and `maxDurationBeforeRetry` of the kubelet's `goroutinemap/exponentialbackoff`.
pub(super) fn back_off(failures: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(500);
    const LAST: Duration = Duration::from_secs(122);
    let doublings = failures.saturating_sub(1).min(16);
    (FIRST * 2u32.pow(doublings)).min(LAST)
}

/// What failed, by what it was about.
#[derive(Debug, Default)]
pub(super) struct Retries {
    failed: BTreeMap<Exclusion, Failed>,
    /// Operations that succeeded again and again without anything having changed.
    repeated: BTreeMap<Exclusion, (String, u32)>,
}

#[derive(Debug)]
struct Failed {
    failures: u32,
    /// When it first failed in this way.
    since: Duration,
    until: Duration,
    problem: Problem,
    /// What was wished for then; another wish is tried at once.
    wish: u64,
    /// The driver that failed, if one did.
    driver: Option<String>,
}

/// So many times the same operation may succeed for the same reason before it counts as failing.
const REPEATS: u32 = 3;

impl Retries {
    /// An operation failed.
    pub(super) fn failed(&mut self, about: Exclusion, wish: u64, problem: Problem, now: Duration) {
        let before = self.failed.get(&about).filter(|f| f.wish == wish);
        let failures = before.map_or(1, |f| f.failures.saturating_add(1));
        let since = before.filter(|f| f.problem.code == problem.code).map_or(now, |f| f.since);
        self.failed
            .insert(about, Failed { failures, since, until: now + back_off(failures), problem, wish, driver: None });
    }

    /// It was a driver that failed.
    pub(super) fn blame(&mut self, about: &Exclusion, driver: &str) {
        if let Some(failed) = self.failed.get_mut(about) {
            failed.driver = Some(driver.to_owned());
        }
    }

    /// What a driver failed at is tried again at once. Answers whether there is something.
    pub(super) fn driver_is_back(&mut self, driver: &str) -> bool {
        let mut any = false;
        for failed in self.failed.values_mut().filter(|f| f.driver.as_deref() == Some(driver)) {
            failed.until = Duration::ZERO;
            any = true;
        }
        any
    }

    /// How many times in a row this failed.
    pub(super) fn failures(&self, about: &Exclusion) -> u32 {
        self.failed.get(about).map_or(0, |f| f.failures)
    }

    /// An operation succeeded. `why` is its name and reason: one that is planned again for the same reason as often as
    /// [`REPEATS`] did not achieve what it was to, and backs off like a failure.
    pub(super) fn succeeded(&mut self, about: &Exclusion, wish: u64, why: &str, now: Duration) {
        let entry = self.repeated.entry(about.clone()).or_default();
        if entry.0 == why {
            entry.1 += 1;
        } else {
            *entry = (why.to_owned(), 1);
        }
        if entry.1 > REPEATS {
            let problem = Problem::new(
                "NoProgress",
                format!("{about}: succeeded {} times in a row and is still to be done: {why}", entry.1),
                "Something undoes it, or what it did cannot be seen. It is tried again with growing pauses.",
            );
            self.failed(about.clone(), wish, problem, now);
        } else {
            self.failed.remove(about);
        }
    }

    /// Nothing is to be done about it any more.
    pub(super) fn settled(&mut self, still_planned: impl Fn(&Exclusion) -> bool) {
        self.repeated.retain(|about, _| still_planned(about));
    }

    /// Forgets failures of this.
    pub(super) fn forget(&mut self, is_this: impl Fn(&Exclusion) -> bool) {
        self.failed.retain(|about, _| !is_this(about));
    }

    /// Forgets failures whose wish has changed.
    pub(super) fn keep_wishes(&mut self, wish: impl Fn(&Exclusion) -> u64) {
        self.failed.retain(|about, failed| wish(about) == failed.wish);
    }

    /// When each may be tried again.
    pub(super) fn not_before(&self) -> BTreeMap<Exclusion, Duration> {
        self.failed.iter().map(|(about, failed)| (about.clone(), failed.until)).collect()
    }

    /// For how long it has been failing with this code, if it has.
    pub(super) fn failing_for(&self, about: &Exclusion, code: &str, now: Duration) -> Option<Duration> {
        let failed = self.failed.get(about).filter(|f| f.problem.code == code)?;
        Some(now.saturating_sub(failed.since))
    }

    /// Whether something failed only once and its pause is not over at this time. What could be tried again by then and
    /// was not waits for something else, which may have failed more often.
    pub(super) fn has_first_failures(&self, now: Duration) -> bool {
        self.failed.values().any(|f| f.failures == 1 && f.until > now)
    }

    /// What is wrong.
    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.failed.values().map(|f| &f.problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refloat_record::PodUid;

    fn about() -> Exclusion {
        Exclusion::Pod(PodUid::new("u1").unwrap())
    }

    fn problem() -> Problem {
        Problem::new("DiskFull", "no", "free some")
    }

    #[test]
    fn pauses_double_from_half_a_second_to_two_minutes_and_two_seconds() {
        let pauses: Vec<_> = (1..=11).map(|n| back_off(n).as_secs_f64()).collect();
        assert_eq!(pauses, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0, 122.0]);
        assert_eq!(back_off(0), Duration::from_millis(500));
        assert_eq!(back_off(u32::MAX), Duration::from_secs(122));
    }

    #[test]
    fn success_and_another_wish_reset_the_pause() {
        let now = Duration::from_secs(100);
        let mut retries = Retries::default();
        for _ in 0..4 {
            retries.failed(about(), 7, problem(), now);
        }
        assert_eq!(retries.not_before()[&about()], now + Duration::from_secs(4));
        retries.keep_wishes(|_| 7);
        assert_eq!(retries.not_before().len(), 1);
        retries.keep_wishes(|_| 8);
        assert!(retries.not_before().is_empty());
        retries.failed(about(), 8, problem(), now);
        assert_eq!(retries.not_before()[&about()], now + Duration::from_millis(500));
        retries.succeeded(&about(), 8, "SetUp: new", now);
        assert!(retries.not_before().is_empty());
    }

    #[test]
    fn a_first_failure_is_waited_for_while_it_pauses() {
        let now = Duration::from_secs(100);
        let mut retries = Retries::default();
        assert!(!retries.has_first_failures(now));
        retries.failed(about(), 7, problem(), now);
        assert!(retries.has_first_failures(now));
        assert!(!retries.has_first_failures(now + Duration::from_millis(500)), "it waits for another operation");
        retries.failed(about(), 7, problem(), now);
        assert!(!retries.has_first_failures(now));
    }

    #[test]
    fn what_succeeds_again_and_again_backs_off() {
        let mut retries = Retries::default();
        for _ in 0..REPEATS {
            retries.succeeded(&about(), 0, "ForgetPod: gone", Duration::ZERO);
            assert!(retries.not_before().is_empty());
        }
        retries.succeeded(&about(), 0, "ForgetPod: gone", Duration::ZERO);
        assert_eq!(retries.not_before()[&about()], Duration::from_millis(500));
        assert_eq!(retries.problems().next().unwrap().code, "NoProgress");
    }
}
