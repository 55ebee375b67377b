//! The steps that a unit is made of.

use std::path::{Path, PathBuf};

use refloat_mount::Mount;
use refloat_record::RecordedMount;

use super::Planner;
use crate::clean::{Action, Kept, MountKey, Step, StepResult, Unit};
use crate::reconstruct;

impl Planner<'_> {
    /// Steps for every mount at and below a path, topmost and deepest first.
    pub(super) fn unmounts(&self, at: &Path, action: Action, volume: Option<&str>, reason: &str) -> Vec<Step> {
        let below: Vec<Mount<'_>> = self.input.table.under(at).collect();
        let mut steps: Vec<Step> =
            below.iter().rev().map(|m| mount_step(Action::Unmount, *m, volume, "it is mounted inside")).collect();
        steps.extend(self.stack(at, action, volume, reason));
        steps
    }

    pub(super) fn stack(&self, at: &Path, action: Action, volume: Option<&str>, reason: &str) -> Vec<Step> {
        let stack = self.mounts.stack(at);
        stack.iter().rev().map(|m| mount_step(action, *m, volume, reason)).collect()
    }

    /// The mount points below a path that are in no other one of them.
    pub(super) fn topmost_under(&self, path: &Path) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = vec![];
        for mount in self.input.table.under(path) {
            if !found.last().is_some_and(|last| mount.point().starts_with(last)) {
                found.push(mount.point().to_path_buf());
            }
        }
        found
    }

    /// Who holds one of these mounts.
    pub(super) fn holder(&self, steps: &[Step]) -> Option<String> {
        let (step, who) = steps.iter().find_map(|step| Some((step, self.input.held.get(&step.mount?)?)))?;
        Some(format!("{} is held: {who}", step.path.display()))
    }

    pub(super) fn add(&mut self, unit: Unit) {
        self.unmounted.extend(unit.steps.iter().filter(|s| s.mount.is_some()).map(|s| s.path.clone()));
        self.plan.units.push(unit);
    }
}

pub(super) fn kept(path: PathBuf, code: &'static str, reason: String) -> Kept {
    Kept { path, code, reason, pod: None, volume: None, bytes: None, entries: None, command: None }
}

pub(super) fn plain_step(action: Action, path: &Path, volume: Option<&str>, reason: &str) -> Step {
    Step {
        action,
        path: path.to_path_buf(),
        volume: volume.map(str::to_owned),
        reason: reason.to_owned(),
        result: StepResult::Planned,
        mount: None,
    }
}

pub(super) fn mount_step(action: Action, mount: Mount<'_>, volume: Option<&str>, reason: &str) -> Step {
    let id = mount.id().map_or_else(|| mount.short_id().to_string(), |id| id.0.to_string());
    let what = format!("{reason}; mount {id}: {} {:?}", mount.fs_type(), mount.source());
    Step { mount: Some(MountKey::of(mount)), ..plain_step(action, mount.point(), volume, &what) }
}

/// Whether all layers show the same part of the same file system.
pub(super) fn is_of_one_origin(stack: &[Mount<'_>]) -> bool {
    stack.windows(2).all(|two| two[0].device() == two[1].device() && two[0].root() == two[1].root())
}

/// What is to be found at a path when it is unmounted.
pub(super) fn expected(stack: &[Mount<'_>]) -> Option<RecordedMount> {
    reconstruct::told(stack)
}

/// The path as one word of a shell, if it is text.
pub(super) fn quoted(path: &Path) -> Option<String> {
    Some(format!("'{}'", path.to_str()?.replace('\'', r"'\''")))
}

pub(super) fn unmount_command(path: &Path) -> Option<String> {
    Some(format!("umount -- {}", quoted(path)?))
}
