//! What other programs, which the manager started, still do when it was killed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until no program runs any more that `is_one` knows by its command line. A manager that starts again at once could
/// not know of it, and neither could a kubelet.
pub(super) fn wait_for_end(what: &str, is_one: impl Fn(&[&[u8]]) -> bool) -> Result<()> {
    let begun = Instant::now();
    while runs(&is_one)? {
        ensure!(begun.elapsed() < PATIENCE, "{what} that the manager started runs on and on");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn runs(is_one: impl Fn(&[&[u8]]) -> bool) -> Result<bool> {
    for entry in std::fs::read_dir("/proc")? {
        // It may end between the two calls.
        let Ok(line) = std::fs::read(entry?.path().join("cmdline")) else { continue };
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        if is_one(&words) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a path that begins so is one of the words.
pub(super) fn names(words: &[&[u8]], folder: &Path) -> bool {
    words.iter().any(|word| word.starts_with(folder.as_os_str().as_encoded_bytes()))
}
