//! The volumes of pods.

use std::path::{Path, PathBuf};

use refloat_mount::Mount;
use refloat_record::VolumeMode;
use refloat_volume::layout;

use super::Planner;
use super::steps::{is_of_one_origin, kept, mount_step, plain_step};
use crate::clean::{Action, Contents, Kept, Stage, Step, Unit, What};
use crate::{ActualVolume, Exclusion, Operation, ReconstructionResult, RecordState};

const EMPTY_DIR: &str = "kubernetes.io/empty-dir";

/// How a volume is torn down.
struct Doing<'a> {
    driver: &'a Option<String>,
    clear_payload: bool,
    delete: bool,
}

impl Planner<'_> {
    pub(super) fn volume(&mut self, index: usize, volume: &ActualVolume) {
        if !self.names_volume(volume) {
            self.staying.insert(volume.key.pod.clone());
            return;
        }
        let Some(by) = self.may_go(&volume.key.pod) else { return };
        if let Some(unit) = self.tear_down(volume, &by) {
            self.planned.insert(index);
            self.add(unit);
        }
    }

    /// The unit that tears a volume down; none if it stays, which is said.
    fn tear_down(&mut self, volume: &ActualVolume, by: &str) -> Option<Unit> {
        let options = self.input.options;
        let path = path_of(self.input.root, volume);
        let contents = self.input.contents.get(&path).copied().filter(|c| c.what != What::Empty);
        let plugin = self.input.plugins.by_name(&volume.key.plugin);
        let is_empty_dir = volume.key.plugin.as_str() == EMPTY_DIR;
        let is_payload = plugin.is_some_and(|p| p.capabilities().content);
        let mounted = volume.mount.is_some();
        let mut record = match (&volume.record, &volume.reconstruction) {
            (Some(record), result) if *result != ReconstructionResult::Failed => record.clone(),
            _ => {
                let why = volume.conflict.clone().unwrap_or_else(|| "it is not understood".into());
                self.keep_volume(volume, "NotUnderstood", why);
                return None;
            }
        };
        let data = contents.filter(|_| !mounted && volume.key.mode == VolumeMode::Filesystem);
        let mut clear_payload = false;
        let mut trusted = volume.record_state == RecordState::Ok;
        let mut delete = false;
        match data {
            Some(found) if is_empty_dir && !options.delete_ephemeral => {
                let reason = "it is an emptyDir's content; --delete-ephemeral deletes it".to_owned();
                self.keep_data(volume, &path, found, "EphemeralData", &reason);
                self.nested(volume, &path, by);
                return None;
            }
            Some(_) if is_empty_dir => delete = true,
            Some(found) if is_payload && found.what == What::Payload => clear_payload = true,
            Some(found) => {
                let reason = match self.input.table.under(&path).next() {
                    Some(inside) => format!(
                        "files lie there that no mount holds, and {} is mounted inside",
                        inside.point().display()
                    ),
                    None => "files lie there, and nothing is mounted; nobody is known to have written them".to_owned(),
                };
                self.keep_data(volume, &path, found, "DataKept", &reason);
                return None;
            }
            None => {}
        }
        if volume.stray_files && !clear_payload && !delete {
            // Beside what is mounted: the folder of a CSI volume.
            let folder = path.parent().unwrap_or(&path).to_path_buf();
            let (reason, command) = ("files lie in its folder that nobody is known to have written", None);
            let kept_here = Kept { command, ..kept(folder, "DataKept", reason.into()) };
            self.keep(Kept { pod: Some(volume.key.pod.clone()), volume: Some(name_of(volume)), ..kept_here });
            return None;
        }
        if let Some(why) = &volume.conflict {
            self.keep_volume(volume, "Conflict", why.clone());
            return None;
        }
        let stack = self.mounts.stack(&path);
        if volume.key.mode == VolumeMode::Filesystem && !is_of_one_origin(&stack) {
            let why = "mounts of different origins lie over one another there".to_owned();
            self.keep_volume(volume, "Conflict", why);
            return None;
        }
        if is_empty_dir && mounted && !options.delete_ephemeral && !options.release {
            let reason = "its content is in memory and goes with its mount; --delete-ephemeral unmounts it".to_owned();
            self.keep_volume(volume, "EphemeralData", reason);
            self.nested(volume, &path, by);
            return None;
        }
        // Whatever a record says: content is deleted by the operator's word alone, and a payload by its own shape.
        if is_empty_dir {
            trusted = delete;
        } else if is_payload {
            trusted = false;
        }
        let mut driver = plugin.and_then(|p| p.recorded_driver((&record).into()));
        let mut reason = by.to_owned();
        if let Some(name) = driver.clone().filter(|name| !self.input.drivers.contains(name)) {
            if !options.without_driver {
                let why = format!("its driver {name} cannot be reached; --without-driver unmounts it all the same");
                self.keep_volume(volume, "DriverMissing", why);
                return None;
            }
            reason = format!("{by}; its driver {name} cannot be reached, and is not asked");
            // Without these nobody is named who could be asked.
            record.provider_info = None;
            record.persistent_volume = None;
            trusted = false;
            driver = None;
        }
        let name = name_of(volume);
        let steps = self.volume_steps(volume, &path, &name, &reason, &Doing { driver: &driver, clear_payload, delete });
        if let Some(who) = self.holder(&steps) {
            self.keep_volume(volume, "Held", who);
            return None;
        }
        let mut scope = vec![path];
        if let Some(sub_paths) = sub_path_folder(self.input.root, volume) {
            scope.push(sub_paths);
        }
        if let Some(block) = &record.block {
            scope.push(block.map_path.below(self.input.root));
        }
        scope.extend(published(self.input.root, volume));
        Some(Unit {
            subject: format!("volume {name}"),
            pod: Some(volume.key.pod.clone()),
            steps,
            stage: if volume.key.mode == VolumeMode::Block { Stage::Blocks } else { Stage::Volumes },
            operation: Operation::TearDown { key: volume.key.clone(), record: Box::new(record), trusted, reason },
            clear_payload,
            driver,
            scope,
            device: None,
        })
    }

    fn keep_volume(&mut self, volume: &ActualVolume, code: &'static str, reason: String) {
        let path = path_of(self.input.root, volume);
        self.keep(Kept {
            pod: Some(volume.key.pod.clone()),
            volume: Some(name_of(volume)),
            ..kept(path, code, reason)
        });
    }

    fn keep_data(&mut self, volume: &ActualVolume, path: &Path, contents: Contents, code: &'static str, reason: &str) {
        let more = if contents.complete { "" } else { " (and more: not all was counted)" };
        self.keep(Kept {
            pod: Some(volume.key.pod.clone()),
            volume: Some(name_of(volume)),
            bytes: Some(contents.bytes),
            entries: Some(contents.entries),
            command: self.remove_command(path),
            ..kept(path.to_path_buf(), code, format!("{reason}{more}"))
        });
    }

    fn volume_steps(
        &self,
        volume: &ActualVolume,
        path: &Path,
        name: &str,
        reason: &str,
        doing: &Doing<'_>,
    ) -> Vec<Step> {
        let step = |action, path: &Path| plain_step(action, path, Some(name), reason);
        let mut steps = vec![];
        if let Some(folder) = sub_path_folder(self.input.root, volume) {
            let mounts: Vec<Mount<'_>> = self.input.table.under(&folder).collect();
            let steps_of = mounts.iter().rev().map(|m| mount_step(Action::UnmountSubPath, *m, Some(name), reason));
            steps.extend(steps_of);
        }
        if volume.key.mode == VolumeMode::Block {
            if let Some(block) = volume.record.as_ref().and_then(|r| r.block.as_ref()) {
                let at = block.map_path.below(self.input.root);
                steps.extend(self.stack(&at, Action::UnmapBlock, Some(name), reason));
            }
            if !steps.iter().any(|s| s.action == Action::UnmapBlock) {
                steps.push(step(Action::UnmapBlock, path));
            }
            if let Some(published) = published(self.input.root, volume) {
                let (action, reason) = match doing.driver {
                    Some(driver) => (Action::TearDown, format!("{reason}; by its driver {driver}")),
                    None => (Action::Unmount, reason.to_owned()),
                };
                let mut own = self.stack(&published, action, Some(name), &reason);
                if own.is_empty() && doing.driver.is_some() {
                    own.push(plain_step(action, &published, Some(name), &reason));
                }
                steps.extend(own);
            }
        } else if let Some(driver) = doing.driver {
            let mut own =
                self.unmounts(path, Action::TearDown, Some(name), &format!("{reason}; by its driver {driver}"));
            if !own.iter().any(|s| s.action == Action::TearDown) {
                own.push(step(Action::TearDown, path));
            }
            steps.extend(own);
        } else {
            steps.extend(self.unmounts(path, Action::Unmount, Some(name), reason));
        }
        if doing.clear_payload {
            steps.push(step(Action::RemoveFiles, path));
        }
        if doing.delete {
            steps.push(step(Action::DeleteContent, path));
        }
        if volume.key.mode == VolumeMode::Filesystem && self.input.contents.contains_key(path) || volume.mount.is_some()
        {
            steps.push(step(Action::RemoveFolder, path));
        }
        if volume.record_state == RecordState::Ok {
            steps.push(step(Action::ForgetRecord, path));
        }
        steps
    }

    /// What is mounted inside a volume that stays.
    fn nested(&mut self, volume: &ActualVolume, path: &Path, by: &str) {
        for point in self.topmost_under(path) {
            let name = name_of(volume);
            let of = Exclusion::Volume(volume.key.clone());
            self.unmount_leftover(&point, of, Some(volume.key.pod.clone()), Some(&name), by, Stage::Volumes, false);
        }
    }
}

/// Where a volume is, or would be.
fn path_of(root: &Path, volume: &ActualVolume) -> PathBuf {
    volume
        .path
        .clone()
        .unwrap_or_else(|| layout::volume_path(&volume.key.pod, &volume.key.plugin, &volume.key.spec_name).below(root))
}

fn sub_path_folder(root: &Path, volume: &ActualVolume) -> Option<PathBuf> {
    let folder = layout::pod_path(&volume.key.pod).join(layout::VOLUME_SUBPATHS).ok()?;
    Some(folder.join(volume.key.spec_name.as_str()).ok()?.below(root))
}

/// Where a CSI driver publishes a block volume, which is not where it is bound for its pod.
fn published(root: &Path, volume: &ActualVolume) -> Option<PathBuf> {
    let is_one = volume.key.mode == VolumeMode::Block && volume.key.plugin.as_str() == layout::CSI;
    let path = format!("{}/publish/{}/{}", layout::CSI_BLOCK, volume.key.spec_name, volume.key.pod);
    is_one.then(|| root.join(path))
}

/// A volume as steps name it.
pub(super) fn name_of(volume: &ActualVolume) -> String {
    volume
        .unique_name
        .as_ref()
        .map_or_else(|| format!("{}/{}", volume.key.pod, volume.key.spec_name), ToString::to_string)
}
