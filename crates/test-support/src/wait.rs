//! Waiting for what other processes and the kernel do.

use std::time::{Duration, Instant};

/// Waits until it is so.
///
/// # Panics
/// It is not so within this time.
#[track_caller]
pub fn wait_within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + patience;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
