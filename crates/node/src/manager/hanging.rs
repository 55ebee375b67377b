//! Unmounts that have not come back.
//!
//! The operation has ended and its worker is free; a child process waits in the kernel. What the operation excludes stays
//! excluded until the child ends, so that no second one is started, and the volume stays recorded and is shown as
//! uncertain.
//!
//! A manager that is started anew does not know that child. If the mount has left the table already, its device counts as
//! unmounted and its record goes, although the kernel still writes the file system's last blocks. On this node nothing is
//! lost by that: the superblock is the kernel's until it is done. A mount of the same device waits for it in `sget`, and
//! whoever opens the device exclusively (mkfs, fsck, the check whether it is blank) is told that it is busy, so it is
//! neither formatted nor repaired meanwhile. A child's process id in the record would help nobody: after a reboot it is
//! another's. What must not happen before the last block is that the device is detached from the node; what reports devices
//! as no longer in use to a controller has to ask the kernel (an exclusive open), not the record alone.

use std::time::Duration;

use refloat_mount::PendingUnmount;
use refloat_record::VolumeMode;
use refloat_volume::Problem;

use super::pool::Overdue;
use super::{Manager, News};
use crate::{Exclusion, Wanted};

/// After this part of the operations' deadline the file system of a gone pod that still does not answer is made to give up.
/// With the usual deadline that is a minute.
///
/// # Source
/// `UnmountWithForce` of Kubernetes' mount utilities, which the kubelet calls with a limit of one minute.
pub(super) const FORCE_PART: u32 = 2;

/// One of them.
#[derive(Debug)]
pub(super) struct Hanging {
    pub(super) excludes: Vec<Exclusion>,
    pub(super) unmount: PendingUnmount,
    pub(super) problem: Problem,
    pub(super) since: Duration,
    /// Whether it was told to give up.
    pub(super) told: bool,
}

impl Manager {
    /// Notices those that have come back. What they were about is looked at again.
    pub(super) fn take_hanging(&mut self) {
        let (ended, hanging) = std::mem::take(&mut self.hanging).into_iter().partition(|h| h.unmount.has_ended());
        self.hanging = hanging;
        let ended: Vec<Hanging> = ended;
        for one in ended {
            tracing::info!(path = %one.unmount.path().display(), "the unmount has come back");
            self.news.table = true;
            for exclusion in &one.excludes {
                self.input.running.remove(exclusion);
                self.news.about(exclusion);
            }
        }
    }

    /// Makes those give up whose time is over, if their pod is surely gone.
    pub(super) fn give_up_hanging(&mut self) {
        let (now, after) = (self.now(), self.force_after());
        for one in &mut self.hanging {
            let pod = one.excludes.first().and_then(Exclusion::pod);
            let gone = pod.is_some_and(|pod| matches!(self.desired.wanted(pod), Wanted::No { .. }));
            if !one.told && gone && one.unmount.is_served() && now >= one.since + after {
                one.told = true;
                tracing::warn!(
                    path = %one.unmount.path().display(),
                    fs_type = one.unmount.fs_type(),
                    "its pod is gone and the file system has not answered: what waits for it is made to give up"
                );
                one.unmount.give_up();
            }
        }
    }

    /// When the next one may be made to give up.
    pub(super) fn next_give_up(&self) -> Option<Duration> {
        let waiting = self.hanging.iter().filter(|h| !h.told && h.unmount.is_served());
        // Where the pod is not surely gone it is asked again when something else wakes the manager.
        waiting.map(|h| h.since + self.force_after()).filter(|at| *at > self.now()).min()
    }

    /// How long the file system of a gone pod may leave an unmount without an answer, or keep itself busy.
    pub(super) fn force_after(&self) -> Duration {
        self.options.operation_deadline / FORCE_PART
    }

    /// What is not waited for any more: operations over their deadline, and unmounts that have not come back.
    pub(super) fn overdue(&self) -> Vec<Overdue> {
        let hanging = self.hanging.iter().map(|h| Overdue { excludes: h.excludes.clone(), problem: h.problem.clone() });
        self.pool.overdue().into_iter().chain(hanging).collect()
    }
}

impl News {
    /// Something happened to this.
    pub(super) fn about(&mut self, exclusion: &Exclusion) {
        match exclusion {
            Exclusion::Volume(key) => {
                self.pods.insert(key.pod.clone());
                // Half of a block volume is outside its pod's folder.
                self.devices |= key.mode == VolumeMode::Block;
            }
            Exclusion::Pod(pod) => {
                self.pods.insert(pod.clone());
                // Its loop devices may have been detached.
                self.devices = true;
            }
            Exclusion::Device(_) => self.devices = true,
            // Nothing was done to the volume itself.
            Exclusion::Provider(..) | Exclusion::Asked(_) => self.providers = true,
        }
    }
}
