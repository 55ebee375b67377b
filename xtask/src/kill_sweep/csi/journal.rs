//! What a driver must have heard, and in which order.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use refloat_test_csi_driver::{Entry, Event};

/// How far a stage or a publication is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It was asked for, or to be undone, and not undone for sure.
    There,
    /// The driver said that it is undone.
    Undone,
}

/// Whether a call for a volume was answered with OK.
pub(super) fn succeeded(journal: &[Entry], call: &str, volume: &str) -> bool {
    journal.iter().any(|e| e.call == call && e.volume == volume && is_ok(e))
}

fn is_ok(entry: &Entry) -> bool {
    entry.event == Event::End("Ok".into())
}

/// Checks a journal up to the end of all volumes: each stage and each publication was asked to be undone until that
/// succeeded, published only while staged, unstaged only while not published. Answers how many calls came after
/// undoing had succeeded: none, unless its answer was lost.
pub(super) fn check(journal: &[Entry]) -> Result<usize> {
    let mut stages = BTreeMap::<&str, State>::new();
    let mut publications = BTreeMap::<(&str, &str), State>::new();
    // A driver that was killed in a call made no end of it.
    let mut again = 0;
    for entry in journal {
        let volume = entry.volume.as_str();
        let target = (volume, entry.path.as_str());
        let begins = entry.event == Event::Begin;
        match entry.call.as_str() {
            "NodeStageVolume" if begins => drop(stages.insert(volume, State::There)),
            "NodePublishVolume" if begins => {
                ensure!(stages.get(volume) != Some(&State::Undone), "{target:?} was published when it was unstaged");
                publications.insert(target, State::There);
            }
            // What was never asked for may be undone: the record is durable before the call.
            "NodeUnpublishVolume" if begins => again += usize::from(publications.get(&target) == Some(&State::Undone)),
            "NodeUnstageVolume" if begins => {
                let users: Vec<_> = publications.iter().filter(|(t, s)| t.0 == volume && **s == State::There).collect();
                ensure!(users.is_empty(), "{volume} was to be unstaged while it was published: {users:?}");
                again += usize::from(stages.get(volume) == Some(&State::Undone));
            }
            "NodeUnpublishVolume" if is_ok(entry) => drop(publications.insert(target, State::Undone)),
            "NodeUnstageVolume" if is_ok(entry) => drop(stages.insert(volume, State::Undone)),
            _ => {}
        }
    }
    let left: Vec<_> = stages.iter().filter(|(_, state)| **state == State::There).collect();
    ensure!(left.is_empty(), "never unstaged: {left:?}");
    let left: Vec<_> = publications.iter().filter(|(_, state)| **state == State::There).collect();
    ensure!(left.is_empty(), "never unpublished: {left:?}");
    Ok(again)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(calls: &[(&str, bool)]) -> Vec<Entry> {
        let entry = |call: &str, event| Entry {
            pid: 1,
            number: 1,
            call: format!("Node{call}Volume"),
            event,
            volume: "v".into(),
            path: "/p".into(),
            secrets: vec![],
        };
        let both = |(call, ok): &(&str, bool)| {
            let end = ok.then(|| entry(call, Event::End("Ok".into())));
            [Some(entry(call, Event::Begin)), end].into_iter().flatten().collect::<Vec<_>>()
        };
        calls.iter().flat_map(both).collect()
    }

    #[test]
    fn a_volume_must_be_undone_once() {
        let life = [("Stage", true), ("Publish", true), ("Unpublish", true), ("Unstage", true)];
        assert_eq!(check(&entries(&life)).unwrap(), 0);
        let failed = [("Stage", false), ("Unstage", false), ("Unstage", true)];
        assert_eq!(check(&entries(&failed)).unwrap(), 0, "until it succeeded");
        let again = [("Stage", true), ("Unstage", true), ("Unstage", true)];
        assert_eq!(check(&entries(&again)).unwrap(), 1);
        for wrong in [
            &[("Stage", true)][..],
            &[("Stage", true), ("Unstage", false)],
            &[("Stage", true), ("Publish", true), ("Unstage", true)],
            &[("Stage", true), ("Unstage", true), ("Publish", true), ("Unpublish", true)],
        ] {
            check(&entries(wrong)).unwrap_err();
        }
    }
}
