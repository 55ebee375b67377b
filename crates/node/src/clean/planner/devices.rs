//! Devices that no pod uses any more.

use std::path::{Path, PathBuf};

use refloat_record::{PodUid, UniqueVolumeName};
use refloat_volume::Presence;
use refloat_volume::plugins::flex_volume::is_flex_volume;

use super::Planner;
use super::steps::{kept, plain_step, unmount_command};
use super::volumes::name_of;
use crate::clean::{Action, AskedDevice, Kept, Stage, Unit, Unused, Verdict};
use crate::{ActualDevice, Exclusion, Operation, RecordState, VolumeState, reconstruct};

impl Planner<'_> {
    pub(super) fn device(&mut self, device: &ActualDevice) {
        let options = self.input.options;
        let (root, given) = (self.input.root, self.input.given_root);
        let named = options.targets.iter().any(|t| t.names_device(device, root, given));
        let of_named_pods = !device.users.is_empty() && device.users.iter().all(|pod| self.names_pod(pod));
        let of_planned = self.users(device).any(|index| self.planned.contains(&index));
        if !options.targets.is_empty() && !named && !of_named_pods && !of_planned {
            return;
        }
        let name = device.unique_name.as_ref().map_or_else(|| device.path.display().to_string(), ToString::to_string);
        let keep =
            |code, reason: String| Kept { volume: Some(name.clone()), ..kept(device.path.clone(), code, reason) };
        // Whoever uses it is looked for by the mount table and by records.
        let in_use = reconstruct::references(self.input.table, root, &device.path)
            .into_iter()
            .find(|point| !self.unmounted.contains(point));
        let by_record = self.users(device).find(|index| !self.planned.contains(index));
        if in_use.is_some() || by_record.is_some() {
            // What a wanted pod uses is no orphan's, whoever else used it.
            let leaving = |pod: &PodUid| self.is_torn_down(device, pod);
            let mut stay = device.users.iter().filter(|pod| !leaving(pod)).peekable();
            if !named && stay.peek().is_some() && stay.all(|pod| self.plan.wanted.contains(pod)) {
                return;
            }
            let by = match (in_use, by_record) {
                (Some(point), _) => format!("its file system is mounted at {}, which stays", point.display()),
                (None, Some(index)) => format!("volume {} stays", name_of(&self.input.actual.volumes[index])),
                (None, None) => return,
            };
            return self.keep(keep("InUse", by));
        }
        if device.mount.is_none()
            && device.state == VolumeState::NotMounted
            && device.record_state == RecordState::Missing
        {
            // A folder. The next volume of this name needs it again; an empty one harms nobody.
            return;
        }
        let had_users = !device.users.is_empty();
        let nobody = "nobody was asked".to_owned();
        let nobody = Unused { verdict: Verdict::Unknown { why: nobody.clone() }, objection: Some(nobody) };
        let unused = self.input.unused.get(&device.path).unwrap_or(&nobody);
        let assumed = options.assume_unused.iter().any(|t| t.names_device(device, root, given));
        // Whoever says that all its users are gone says that of what they had, too.
        let by_word = assumed || had_users && device.users.iter().all(|pod| options.assume_gone.contains(pod));
        let by = match (unused.clone().by_word(by_word), had_users) {
            (_, true) if options.including_running || options.release => "no pod uses it any more".to_owned(),
            (_, false) if options.release => "the node is released".to_owned(),
            (Verdict::Wanted { by }, _) => {
                return self.keep(keep("MayBeWanted", format!("{by} has a pod that may be about to use it")));
            }
            (Verdict::Unknown { why }, _) if assumed => {
                return self.keep(keep("NotKnown", format!("it was to be assumed that no pod wants it, but {why}")));
            }
            (Verdict::Unknown { why }, _) => {
                let hint =
                    if unused.objection.is_none() { "; --assume-gone with its path says that none is" } else { "" };
                let reason = format!("whether a pod is about to use it is not known: {why}{hint}");
                return self.keep(keep("NotKnown", reason));
            }
            (Verdict::Gone { .. }, _) if assumed => "the operator says that no pod wants it".to_owned(),
            (Verdict::Gone { .. }, true) => "no pod uses it any more".to_owned(),
            (Verdict::Gone { by, .. }, false) => {
                if let Some(why) = self.too_recent(self.input.device_changes.get(&device.path).copied()) {
                    return self.keep(keep("TooRecent", format!("no pod uses it ({by}), but {why}")));
                }
                format!("no pod uses or wants it ({by})")
            }
        };
        let before = self.plan.units.len();
        self.undo_device(device, &name, &by);
        let path = device.path.strip_prefix(root).unwrap_or(&device.path).to_path_buf();
        let asked = AskedDevice { name: device.unique_name.clone(), path, by_word };
        self.plan.units[before..].iter_mut().for_each(|unit| unit.device = Some(asked.clone()));
    }

    fn undo_device(&mut self, device: &ActualDevice, name: &str, by: &str) {
        let options = self.input.options;
        let keep = |code, reason: String| Kept {
            volume: Some(name.to_owned()),
            command: device.mount.as_ref().and_then(|_| unmount_command(&device.path)),
            ..kept(device.path.clone(), code, reason)
        };
        let plugin = self.input.plugins.by_name(&device.plugin);
        // Without a record, that its driver has to be asked is a flexVolume's only conflict.
        let by_program = is_flex_volume(&device.plugin);
        let by_driver = plugin.is_some_and(|p| p.capabilities().presence == Presence::Driver);
        let unrecorded = by_program && device.record_state != RecordState::Ok;
        let record = device.record.as_ref().filter(|_| unrecorded || device.conflict.is_none());
        let driver = record.and_then(|r| plugin?.recorded_driver(r.into()));
        let reachable = driver.as_ref().is_none_or(|name| self.input.drivers.contains(name));
        if let (Some(record), true, true) = (record, reachable, plugin.is_some() && (!by_driver || driver.is_some())) {
            let reason = if by_program { &format!("{by}; by its driver {}", device.plugin) } else { by };
            let mut steps = self.unmounts(&device.path, Action::UnmountDevice, Some(name), reason);
            if !steps.iter().any(|s| s.action == Action::UnmountDevice) {
                steps.push(plain_step(Action::UnmountDevice, &device.path, Some(name), by));
            }
            steps.push(plain_step(Action::RemoveFolder, &device.path, Some(name), by));
            let trusted = device.record_state == RecordState::Ok;
            if trusted {
                steps.push(plain_step(Action::ForgetRecord, &device.path, Some(name), by));
            }
            if let Some(who) = self.holder(&steps) {
                return self.keep(keep("Held", who));
            }
            let operation =
                Operation::UnmountDevice { record: Box::new(record.clone()), trusted, reason: by.to_owned() };
            return self.add(Unit {
                subject: format!("device {name}"),
                pod: None,
                steps,
                stage: Stage::Devices,
                operation,
                clear_payload: false,
                driver,
                scope: vec![device.path.clone()],
                device: None,
            });
        }
        if by_driver {
            let who = driver
                .map_or_else(|| "its driver is not known".to_owned(), |d| format!("its driver {d} cannot be reached"));
            // Some drivers mount in a folder of their own below the path that they are told.
            let deeper = if device.mount.is_some() { vec![] } else { self.topmost_under(&device.path) };
            let mounted = device.mount.is_some() || !deeper.is_empty();
            if !options.without_driver || !mounted {
                let hint = if mounted { "; --without-driver unmounts it all the same" } else { "" };
                return self.keep(keep("DriverMissing", format!("{who}{hint}")));
            }
            let references = |point: &PathBuf| reconstruct::references(self.input.table, self.input.root, point);
            let user = deeper.iter().flat_map(references).find(|user| !self.unmounted.contains(user));
            if let Some(user) = user {
                let why = format!("its file system is mounted at {}, which stays", user.display());
                return self.keep(keep("InUse", why));
            }
            let left = match (by_program, device.record_state) {
                (true, RecordState::Missing) => "what the driver would do besides (a session, a map) is not done",
                _ => "stays known as not unstaged",
            };
            self.plan.kept.push(Kept {
                command: None,
                ..keep("NotUnstaged", format!("{who}, so its mount is to come off without it, and {left}"))
            });
            let by = format!("{by}; {who}, and is not asked");
            if device.mount.is_some() {
                return self.plain_device(&device.path, device, name, &by, false);
            }
            for point in deeper {
                self.plain_device(&point, device, name, &by, false);
            }
            return;
        }
        // Whoever asks for this takes what it needs besides on himself: an iSCSI session, say, stays open.
        let needs = plugin.and_then(refloat_volume::Plugin::device_needs);
        let by = &needs.map_or_else(|| by.to_owned(), |needs| format!("{by}; afterwards, {needs}"));
        match &device.conflict {
            Some(why) if needs.is_none() && plugin.is_some() && device.unique_name.is_some() => {
                self.keep(keep("Conflict", why.clone()));
            }
            _ if device.mount.is_some() => self.plain_device(&device.path, device, name, by, true),
            Some(why) => self.keep(keep("NotUnderstood", why.clone())),
            None => {}
        }
    }

    /// A plain unmount of a global mount, at its path or below.
    fn plain_device(&mut self, point: &Path, device: &ActualDevice, name: &str, by: &str, folder: bool) {
        let text = format!("{}/{}", device.plugin, device.path.display());
        let Ok(unique) = UniqueVolumeName::new(text) else {
            let reason = "its path cannot be a name".to_owned();
            return self
                .keep(Kept { volume: Some(name.to_owned()), ..kept(device.path.clone(), "NotUnderstood", reason) });
        };
        self.unmount_leftover(point, Exclusion::Device(unique), None, Some(name), by, Stage::Devices, folder);
    }

    /// The volumes that are on this device by what is known of them, by their places in the list.
    fn users<'s>(&'s self, device: &'s ActualDevice) -> impl Iterator<Item = usize> + 's {
        let root = self.input.root;
        let volumes = self.input.actual.volumes.iter().enumerate();
        let uses = volumes.filter(move |(_, volume)| {
            let by_name = device.unique_name.is_some() && volume.unique_name == device.unique_name;
            let recorded = volume.record.as_ref().and_then(|r| r.device_mount_path.as_ref());
            by_name || recorded.is_some_and(|path| path.below(root) == device.path)
        });
        uses.map(|(index, _)| index)
    }

    /// Whether all that a pod has of this device is torn down.
    fn is_torn_down(&self, device: &ActualDevice, pod: &PodUid) -> bool {
        let volumes = &self.input.actual.volumes;
        let mut of_pod = self.users(device).filter(|index| volumes[*index].key.pod == *pod).peekable();
        of_pod.peek().is_some() && of_pod.all(|index| self.planned.contains(&index))
    }
}
