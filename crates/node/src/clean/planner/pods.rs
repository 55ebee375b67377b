//! The folders and checkpoints of pods.

use std::collections::BTreeSet;

use refloat_record::PodUid;
use refloat_volume::layout;

use super::Planner;
use super::steps::{kept, plain_step};
use crate::clean::{Action, Kept, Stage, Unit};
use crate::{LeftoverKind, Operation};

impl Planner<'_> {
    pub(super) fn pods(&mut self) {
        let actual = self.input.actual;
        let of_loops = actual.leftovers.iter().filter(|l| l.kind == LeftoverKind::LoopDevice);
        let mut pods: BTreeSet<&PodUid> = self.input.folders.keys().collect();
        pods.extend(of_loops.filter_map(|l| l.pod.as_ref()));
        pods.extend(actual.checkpoints.iter().map(|c| &c.pod.uid));
        for pod in pods {
            if self.names_pod(pod) {
                self.pod(pod);
            }
        }
    }

    fn pod(&mut self, pod: &PodUid) {
        let Some(by) = self.may_go(pod) else { return };
        let root = self.input.root;
        let path = root.join(layout::PODS).join(pod.as_str());
        let folder = self.input.folders.get(pod);
        for stray in folder.iter().flat_map(|folder| &folder.strays) {
            let path = root.join(&stray.path);
            if self.input.table.at(&path).is_some() {
                // What a file is mounted over: judged as a mount.
                continue;
            }
            self.keep(Kept {
                pod: Some(pod.clone()),
                bytes: Some(stray.bytes),
                entries: Some(1),
                command: self.remove_command(&path),
                ..kept(path, "DataKept", "nobody is known to have written it".into())
            });
        }
        if self.staying.contains(pod) {
            return;
        }
        let mut steps = vec![];
        let loops = self.input.actual.leftovers.iter();
        for one in loops.filter(|l| l.kind == LeftoverKind::LoopDevice && l.pod.as_ref() == Some(pod)) {
            steps.push(plain_step(Action::DetachLoop, &one.path, None, &by));
        }
        for known in folder.iter().flat_map(|folder| &folder.known) {
            steps.push(plain_step(Action::RemoveFiles, &root.join(known), None, &by));
        }
        if folder.is_some() {
            steps.push(plain_step(Action::RemoveFolder, &path, None, &by));
        }
        if self.input.actual.checkpoints.iter().any(|c| c.pod.uid == *pod) {
            steps.push(plain_step(Action::ForgetRecord, &path, None, &by));
        }
        if steps.is_empty() {
            return;
        }
        self.add(Unit {
            subject: format!("pod {pod}"),
            pod: Some(pod.clone()),
            steps,
            stage: Stage::Folders,
            operation: Operation::TidyPod { pod: pod.clone(), reason: by },
            clear_payload: false,
            driver: None,
            scope: vec![path],
            device: None,
        });
    }
}
