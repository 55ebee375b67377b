//! From evidence to the actual state. Pure.
//!
//! One pass over the records, one over the folder names, one over the mounts below the node root; what they say of one
//! volume meets in one place and is concluded there (`volumes`). The mount table decides whether something is
//! mounted, the boot id whether it still could be, the record what it is and how it is undone, the folders the rest.

mod block;
mod by_driver;
mod devices;
mod foreign;
pub(crate) mod hanging;
mod leftovers;
mod mounts;
mod notes;
mod stages;
mod volumes;

use std::collections::HashMap;

use refloat_record::{PodCheckpoint, PodUid, Record, RecordKey, UnreadableReason};
use refloat_volume::{LayoutMemo, Plugins, Problem, layout};

pub(crate) use devices::references;
pub use hanging::problem as hanging_problem;
pub(crate) use mounts::{Mounts, told};

use crate::{Actual, ActualVolume, Evidence, RecordState};

/// Concludes what is on the node. When sources disagree it says how, and picks the least harmful reading.
///
/// [`ActualVolume::evidence`] and [`crate::ActualDevice::evidence`] stay empty.
pub fn reconstruct(evidence: &Evidence, plugins: &Plugins) -> Actual {
    conclude(evidence, plugins, false)
}

/// The same, with the evidence of each volume and device in words.
pub fn reconstruct_explained(evidence: &Evidence, plugins: &Plugins) -> Actual {
    conclude(evidence, plugins, true)
}

fn conclude(evidence: &Evidence, plugins: &Plugins, explained: bool) -> Actual {
    let mounts = Mounts::new(&evidence.table, &evidence.root);
    let mut actual = Actual { unreadable: evidence.records.unreadable.clone(), ..Actual::default() };
    for record in &evidence.records.records {
        if let Record::PodCheckpoint(checkpoint) = record {
            actual.checkpoints.push(checkpoint.clone());
        }
    }
    if let Some(tree) = &evidence.tree {
        actual.problems.extend(tree.problems.iter().cloned());
    }
    actual.problems.extend(doubled(&mounts));
    let checkpoints = actual.checkpoints.iter().map(|c| (&c.pod.uid, c)).collect();
    let unreadable = unreadable(&mut actual.problems, evidence);
    let loops = block::LoopIndex::new(evidence);
    // The one kind of plugin whose folders tell more than its mounts.
    let folders = evidence.tree.iter().flat_map(|tree| &tree.global_folders);
    let memo = LayoutMemo::new(folders.filter(|folder| folder.starts_with(layout::FLEX_VOLUME)).cloned());
    let foreign = foreign::ForeignIndex::new(evidence);
    let mut context = Context { evidence, plugins, mounts, checkpoints, unreadable, loops, memo, foreign, explained };

    let found = volumes::find(&context);
    context.foreign.note_shared(&found);
    let context = context;
    let mut leftovers = found.leftovers;
    let mut volumes = on_two_threads(&found.volumes, |found| volumes::conclude(&context, found));
    let order = |a: &ActualVolume, b: &ActualVolume| (&a.key, &a.path).cmp(&(&b.key, &b.path));
    if !volumes.is_sorted_by(|a, b| order(a, b).is_le()) {
        volumes.sort_unstable_by(order);
    }
    let (mut devices, stale) = devices::conclude(&context, &volumes);
    leftovers.extend(stale);
    let folders = leftovers::pod_folders(&context, &volumes, &leftovers);
    leftovers.extend(folders);
    leftovers.extend(block::loops_left(&context, &volumes));
    leftovers.extend(leftovers::sockets(&context));
    leftovers.sort_unstable_by(|a, b| (&a.pod, &a.path, a.kind).cmp(&(&b.pod, &b.path, b.kind)));
    leftovers.dedup();
    hanging::tell(evidence, &context.mounts, &mut volumes, &mut devices, &mut leftovers, explained);

    actual.volumes = volumes;
    actual.devices = devices;
    actual.leftovers = leftovers;
    actual.problems.sort_unstable();
    actual.problems.dedup();
    actual
}

/// One problem for all the mounts that show more than twice: a root that is bound onto itself once, and shared, shows each
/// mount once more, which is usual.
fn doubled(mounts: &Mounts<'_>) -> Option<Problem> {
    let (seen, hidden) = mounts.below();
    let root = mounts.root.display();
    (hidden > seen).then(|| {
        Problem::new(
            "MountsDoubled",
            format!(
                "{hidden} mounts below {root} are copies or remains of {seen} that a path leads to: something binds a folder \
                 above them onto itself again and again"
            ),
            "`refloat doctor` says more. Find what does it, then take the upper mounts off (`umount` of that folder).",
        )
    })
}

/// What every conclusion looks at.
struct Context<'e> {
    evidence: &'e Evidence,
    plugins: &'e Plugins,
    mounts: Mounts<'e>,
    checkpoints: HashMap<&'e PodUid, &'e PodCheckpoint>,
    /// What the unreadable record files were about, where that can still be told.
    unreadable: HashMap<&'e RecordKey, (RecordState, Problem)>,
    loops: block::LoopIndex<'e>,
    memo: LayoutMemo,
    foreign: foreign::ForeignIndex<'e>,
    explained: bool,
}

impl Context<'_> {
    /// Nothing noted yet.
    fn notes(&self) -> notes::Notes {
        notes::Notes::new(self.explained)
    }
}

/// From this many volumes on, two threads conclude: a thread costs about as much as concluding thirty.
const SPLIT: usize = 512;

/// Concludes what each of these is, in their order. Each stands for itself, so two threads share them if they are many.
pub fn on_two_threads<T: Sync, R: Send>(found: &[T], conclude: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let mut all = Vec::with_capacity(found.len());
    if found.len() < SPLIT {
        all.extend(found.iter().map(conclude));
        return all;
    }
    let (left, right) = found.split_at(found.len() / 2);
    let conclude = &conclude;
    std::thread::scope(|scope| {
        let other = scope.spawn(move || right.iter().map(conclude).collect::<Vec<_>>());
        all.extend(left.iter().map(conclude));
        match other.join() {
            Ok(rest) => all.extend(rest),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        all
    })
}

/// The records that cannot be read, by what they were about; those of which nothing can be told, and those of pods,
/// become problems of the node.
fn unreadable<'e>(
    problems: &mut Vec<Problem>,
    evidence: &'e Evidence,
) -> HashMap<&'e RecordKey, (RecordState, Problem)> {
    let mut by_key = HashMap::new();
    for file in &evidence.records.unreadable {
        let (state, code, hint) = match file.reason {
            UnreadableReason::Newer { .. } => (
                RecordState::Newer,
                "RecordNewer",
                "A newer Refloat wrote it. Run that version again, or keep the file for it.",
            ),
            _ => (
                RecordState::Damaged,
                "RecordDamaged",
                "The file is kept as it is. Compare it with a backup, or remove it when the volume is sorted out.",
            ),
        };
        let message = format!("the record file {} cannot be used: {}", file.path.display(), file.reason);
        let problem = Problem::new(code, message, hint);
        match &file.key {
            Some(key @ (RecordKey::PodVolume { .. } | RecordKey::DeviceMount(_))) => {
                by_key.insert(key, (state, problem.clone()));
            }
            Some(RecordKey::PodCheckpoint(_) | RecordKey::Driver(_)) | None => {}
        }
        problems.push(problem);
    }
    by_key
}

#[cfg(test)]
mod tests;
