//! What is seen of a block volume's three objects: bind mount, symlink and loop device.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use refloat_record::{PodUid, RelPath};
use refloat_volume::Problem;
use refloat_volume::block::{HeldLoop, LoopMarks};

use super::Context;
use super::notes::Notes;
use crate::evidence::{MapPlace, VolumeFolder};
use crate::{ActualVolume, Evidence, Leftover, LeftoverKind};

/// The loop devices by what they may be looked up with.
#[derive(Default)]
pub(super) struct LoopIndex<'e> {
    marks: Option<&'e LoopMarks>,
    all: &'e [HeldLoop],
    by_mark: HashMap<&'e [u8], Vec<&'e HeldLoop>>,
    by_path: HashMap<&'e Path, Vec<&'e HeldLoop>>,
}

impl<'e> LoopIndex<'e> {
    pub(super) fn new(evidence: &'e Evidence) -> Self {
        let Some(loops) = evidence.tree.as_ref().and_then(|tree| tree.blocks.loops.as_ref()) else {
            return Self::default();
        };
        let mut index = Self { marks: Some(&loops.marks), all: &loops.all, ..Self::default() };
        for one in &loops.all {
            if loops.marks.is_own(&one.mark) {
                index.by_mark.entry(&one.mark).or_default().push(one);
            } else {
                index.by_path.entry(&one.backing).or_default().push(one);
            }
        }
        index
    }

    /// Ours over the file at this map path; none if loop devices could not be looked through.
    fn ours(&self, map_path: &RelPath) -> Option<Vec<&'e HeldLoop>> {
        let mark = self.marks?.mark(map_path);
        Some(self.by_mark.get(mark.as_slice()).cloned().unwrap_or_default())
    }

    /// Those of others over a file that is called so.
    fn others(&self, absolute: &Path) -> &[&'e HeldLoop] {
        self.by_path.get(absolute).map_or(&[], Vec::as_slice)
    }
}

/// What stands where the symlink belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    /// The folders were not listed.
    NotListed,
    /// Nothing.
    Missing,
    /// A symlink, and what it says.
    Says(PathBuf),
    /// Something else.
    Taken,
}

impl Link {
    pub(super) fn of(context: &Context<'_>, folder: Option<&VolumeFolder>) -> Self {
        match folder {
            _ if context.evidence.tree.is_none() => Self::NotListed,
            None => Self::Missing,
            Some(VolumeFolder { link: Some(says), .. }) => Self::Says(says.clone()),
            Some(_) => Self::Taken,
        }
    }
}

/// What is seen of symlink and loop device.
pub(super) struct Objects {
    pub(super) link: Link,
    /// What is not as it should be, one sentence each. A record says what the symlink should say.
    pub(super) wrong: Vec<String>,
    /// Whether anything but an empty file or the symlink is there: a loop device.
    pub(super) held: bool,
}

impl Objects {
    /// What is seen is told in `notes`. `counts_unmarked` is whether another manager's loop device is as good as ours: where no record says who made it.
    pub(super) fn look(
        context: &Context<'_>,
        folder: Option<&VolumeFolder>,
        map_path: &RelPath,
        target: Option<&str>,
        counts_unmarked: bool,
        notes: &mut Notes,
    ) -> Self {
        let mut seen = Self { link: Link::of(context, folder), wrong: vec![], held: false };
        match &seen.link {
            Link::NotListed => {}
            Link::Missing => seen.wrong.push("its symlink is not there".into()),
            Link::Taken => seen.wrong.push("something else stands where its symlink belongs".into()),
            Link::Says(says) => {
                notes.add(|| format!("symlink: to {}", says.display()));
                if target.is_some_and(|target| says != Path::new(target)) {
                    seen.wrong.push(format!("its symlink says {}", says.display()));
                }
            }
        }
        let others = context.loops.others(&map_path.below(context.mounts.root));
        let names =
            |loops: &[&HeldLoop]| loops.iter().map(|one| one.path.display().to_string()).collect::<Vec<_>>().join(", ");
        if !others.is_empty() {
            notes.add(|| format!("loop devices: {} of another program", names(others)));
        }
        let Some(ours) = context.loops.ours(map_path) else { return seen };
        if !ours.is_empty() {
            notes.add(|| format!("loop devices: {} of ours", names(&ours)));
        }
        seen.held = !ours.is_empty() || (counts_unmarked && !others.is_empty());
        if !seen.held {
            seen.wrong.push("no loop device holds it open".into());
        }
        seen
    }
}

/// The loop devices that no volume explains.
pub(super) fn loops_left(context: &Context<'_>, volumes: &[ActualVolume]) -> Vec<Leftover> {
    let index = &context.loops;
    let Some(marks) = index.marks.filter(|_| !index.all.is_empty()) else { return vec![] };
    let root = context.mounts.root;
    let mut explained: Vec<&Path> = vec![];
    for volume in volumes {
        let Some(block) = volume.record.as_ref().and_then(|record| record.block.as_ref()) else { continue };
        let ours = index.ours(&block.map_path).unwrap_or_default();
        let others = index.others(&block.map_path.below(root));
        explained.extend(ours.iter().chain(others).map(|one| one.path.as_path()));
    }
    let left = index.all.iter().filter(|one| !explained.contains(&one.path.as_path()));
    left.map(|one| {
        let place = one.backing.strip_prefix(root).ok().and_then(MapPlace::of);
        // Without our mark it is known by its file alone, and only while that stands where it should.
        let named = place.filter(|_| one.same_file).and_then(|place| PodUid::new(place.pod).ok());
        let pod = marks.pod_of(&one.mark).or(named);
        let deleted = if one.deleted { ", which was deleted" } else { "" };
        let message = format!(
            "{} is attached to {}{deleted}, and no volume is known there",
            one.path.display(),
            one.backing.display()
        );
        let hint = if pod.is_some() {
            "When its pod is gone it is detached."
        } else {
            "Whose it is cannot be told for certain: detach it with `losetup -d` if nobody needs it."
        };
        let problems = vec![Problem::new("LoopDeviceLeft", message, hint)];
        Leftover { path: one.path.clone(), kind: LeftoverKind::LoopDevice, pod, mounted: false, problems }
    })
    .collect()
}
