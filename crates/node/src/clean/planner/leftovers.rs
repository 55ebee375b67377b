//! What is of no volume.

use std::path::Path;

use refloat_record::{PodUid, RelPath};

use super::Planner;
use super::steps::{expected, is_of_one_origin, kept, plain_step, unmount_command};
use crate::clean::{Action, Kept, Stage, Unit};
use crate::{Exclusion, Leftover, LeftoverKind, Operation};

impl Planner<'_> {
    pub(super) fn leftover(&mut self, leftover: &Leftover) {
        if !self.names_leftover(leftover) {
            return;
        }
        let Some(pod) = &leftover.pod else {
            if leftover.kind == LeftoverKind::Socket {
                // A driver's, and no volume: nothing of a volume is left by it.
                return;
            }
            let message = leftover.problems.first().map(|p| p.message.clone());
            let command = leftover.mounted.then(|| unmount_command(&leftover.path)).flatten();
            let reason = "it is in no pod's folder, so nobody can tell whose it is";
            let reason = message.map_or_else(|| reason.to_owned(), |message| format!("{reason}: {message}"));
            return self.keep(Kept { command, ..kept(leftover.path.clone(), "NotOurs", reason) });
        };
        match leftover.kind {
            LeftoverKind::SubPath | LeftoverKind::StaleMount if leftover.mounted => {
                let Some(by) = self.may_go(pod) else { return };
                let sub_path = leftover.kind == LeftoverKind::SubPath;
                let stage = if sub_path { Stage::SubPaths } else { Stage::Volumes };
                let of = Exclusion::Pod(pod.clone());
                self.unmount_leftover(&leftover.path, of, Some(pod.clone()), None, &by, stage, true);
            }
            LeftoverKind::Socket | LeftoverKind::Unknown if self.may_go(pod).is_some() => {
                let reason = "nobody is known to have made it".into();
                self.keep(Kept { pod: Some(pod.clone()), ..kept(leftover.path.clone(), "NotUnderstood", reason) });
            }
            // With the pod's folder.
            _ => {}
        }
    }

    #[allow(clippy::too_many_arguments)] // what a unit is made of
    pub(super) fn unmount_leftover(
        &mut self,
        point: &Path,
        of: Exclusion,
        pod: Option<PodUid>,
        volume: Option<&str>,
        by: &str,
        stage: Stage,
        folder: bool,
    ) {
        if self.unmounted.contains(point) {
            return;
        }
        let action = if stage == Stage::SubPaths { Action::UnmountSubPath } else { Action::Unmount };
        let mut steps = self.unmounts(point, action, volume, by);
        let rel = point.strip_prefix(self.input.root).ok().and_then(|rel| RelPath::new(rel.to_str()?).ok());
        let stack = self.mounts.stack(point);
        let trouble = match (&rel, stack.is_empty(), is_of_one_origin(&stack)) {
            (None, ..) => Some(("NotUnderstood", "its path cannot be written as text".to_owned())),
            (_, true, _) => Some(("Conflict", "another mount hides it".to_owned())),
            (_, _, false) => Some(("Conflict", "mounts of different origins lie over one another there".to_owned())),
            _ => self.holder(&steps).map(|who| ("Held", who)),
        };
        if let Some((code, reason)) = trouble {
            let command = unmount_command(point);
            let volume = volume.map(str::to_owned);
            return self.keep(Kept { pod, volume, command, ..kept(point.to_path_buf(), code, reason) });
        }
        let Some(path) = rel else { return };
        if folder {
            steps.push(plain_step(Action::RemoveFolder, point, volume, by));
        }
        self.add(Unit {
            subject: point.display().to_string(),
            pod,
            steps,
            stage,
            operation: Operation::UnmountLeftover {
                of,
                path,
                expected: expected(&stack),
                folder,
                reason: by.to_owned(),
            },
            clear_payload: false,
            driver: None,
            scope: vec![point.to_path_buf()],
            device: None,
        });
    }
}
