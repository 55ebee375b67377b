//! Compares the two states, thing by thing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use refloat_mount::BindOptions;
use refloat_record::{PodCheckpoint, PodUid, UniqueVolumeName, Verbatim};

use super::changed::{device_changed, volume_changed};
use super::{Exclusion, Held, MayUnmount, Operation, Plan, PlanInput, Report, digest};
use crate::{
    Actual, ActualDevice, ActualVolume, Desired, DesiredPod, DesiredVolume, Leftover, LeftoverKind,
    ReconstructionResult, RecordState, VolumeKey, VolumeState, Wanted,
};

/// Decides what to do now.
pub fn plan(desired: &Desired, actual: &Actual, input: &PlanInput) -> Plan {
    let mut planner = Planner {
        desired,
        input,
        may: MayUnmount::new(desired, actual),
        volumes: actual.volumes.iter().map(|v| (&v.key, v)).collect(),
        devices: actual.devices.iter().filter_map(|d| Some((d.unique_name.as_ref()?, d))).collect(),
        checkpoints: actual.checkpoints.iter().map(|c| (&c.pod.uid, c)).collect(),
        taken: input.running.clone(),
        running_pods: input.running.iter().filter_map(Exclusion::pod).cloned().collect(),
        plan: Plan::default(),
    };
    let wanted: HashSet<&VolumeKey> = desired.pods.values().flat_map(|p| &p.volumes).map(|v| &v.key).collect();
    for volume in actual.volumes.iter().filter(|v| !wanted.contains(&v.key)) {
        planner.unlisted(volume);
    }
    for pod in desired.pods.values() {
        planner.admit(pod);
    }
    let mut mounts = Mounts::default();
    for pod in desired.pods.values() {
        for volume in &pod.volumes {
            planner.wanted(pod, volume, &mut mounts);
        }
        for waiting in &pod.waiting {
            let subject = format!("volume {:?} of {}", waiting.outer_name, pod_subject(pod));
            planner.report(subject, waiting.key.clone(), "Wait", waiting.problem.message.clone());
        }
    }
    planner.plan.operations.extend(mounts.devices);
    planner.plan.operations.extend(mounts.volumes);
    for device in &actual.devices {
        planner.device(device);
    }
    planner.pods(actual);
    planner.providers(actual);
    planner.plan
}

/// Operations that mount, in the order in which they are to be.
#[derive(Default)]
struct Mounts {
    devices: Vec<Operation>,
    volumes: Vec<Operation>,
}

pub(super) struct Planner<'a> {
    pub(super) desired: &'a Desired,
    pub(super) input: &'a PlanInput,
    pub(super) may: MayUnmount<'a>,
    volumes: HashMap<&'a VolumeKey, &'a ActualVolume>,
    devices: HashMap<&'a UniqueVolumeName, &'a ActualDevice>,
    checkpoints: HashMap<&'a PodUid, &'a PodCheckpoint>,
    /// What is under way, and what this plan starts.
    pub(super) taken: BTreeSet<Exclusion>,
    /// Pods with an operation under way on them or one of their volumes.
    running_pods: BTreeSet<PodUid>,
    pub(super) plan: Plan,
}

/// What a wanted volume needs.
enum Need {
    Nothing(String),
    SetUp(String),
    HandsOff(String),
    Wait(String),
}

impl Planner<'_> {
    fn report(&mut self, subject: String, volume: Option<VolumeKey>, decision: &'static str, reason: String) {
        self.plan.report.push(Report { subject, volume, decision, reason });
    }

    /// Takes the operation into the plan, unless something under way or its back-off forbids it.
    pub(super) fn start(
        &mut self,
        subject: String,
        volume: Option<VolumeKey>,
        operation: Operation,
        list: Option<&mut Vec<Operation>>,
    ) {
        let excludes = operation.excludes();
        let name = operation.name();
        if excludes.iter().any(|e| self.taken.contains(e)) {
            let reason = format!("{name} ({}) waits for an operation under way", operation.reason());
            return self.report(subject, volume, "Wait", reason);
        }
        if let Some(until) = self.input.not_before.get(&excludes[0]).filter(|t| **t > self.input.now) {
            self.plan.wake_at = Some(self.plan.wake_at.map_or(*until, |w| w.min(*until)));
            let left = until.saturating_sub(self.input.now);
            let reason =
                format!("{name} failed and is tried again in {:.1} s ({})", left.as_secs_f64(), operation.reason());
            return self.report(subject, volume, "Wait", reason);
        }
        self.taken.extend(excludes);
        self.report(subject, volume, name, operation.reason().to_owned());
        list.unwrap_or(&mut self.plan.operations).push(operation);
    }

    fn held(&mut self, subject: String, volume: Option<VolumeKey>, held: &Held) {
        let decision = if held.is_hands_off() { "HandsOff" } else { "Keep" };
        self.report(subject, volume, decision, held.to_string());
    }

    /// A volume on the node that is not among those that pods want and that can be set up.
    fn unlisted(&mut self, volume: &ActualVolume) {
        let subject = volume_subject(volume);
        let key = volume.key.clone();
        match (self.may.volume(volume), &volume.record) {
            (Ok(()), Some(record)) => {
                if self.taken.contains(&Exclusion::Pod(key.pod.clone())) {
                    let reason = "TearDown waits for an operation on its pod".to_owned();
                    return self.report(subject, Some(key), "Wait", reason);
                }
                let reason = match self.desired.wanted_volume(&key) {
                    Wanted::No { by } => format!("not wanted any more ({by})"),
                    Wanted::Yes { .. } | Wanted::Unknown { .. } => return,
                };
                let operation = Operation::TearDown {
                    key: key.clone(),
                    record: Box::new(record.clone()),
                    trusted: volume.record_state == RecordState::Ok,
                    reason,
                };
                self.start(subject, Some(key), operation, None);
            }
            (Ok(()), None) => self.held(subject, Some(key), &Held::NotUnderstood),
            (Err(held), _) => self.held(subject, Some(key), &held),
        }
    }

    /// The checkpoint of a wanted pod.
    fn admit(&mut self, pod: &DesiredPod) {
        if pod.only_checkpoint.is_some() || (pod.volumes.is_empty() && pod.waiting.is_empty()) {
            return;
        }
        let reason = match self.checkpoints.get(&pod.pod.uid) {
            None => "it is new here",
            // What may be half written is not what is to be remembered.
            Some(_) if pod.unsettled.is_some() => return,
            Some(old) if old.object != pod.object || old.source != pod.source || old.pod != pod.pod => "it changed",
            Some(_) => return,
        };
        let operation = Operation::AdmitPod { pod: pod.pod.uid.clone(), reason: reason.into() };
        self.start(pod_subject(pod), None, operation, None);
    }

    /// A volume that a pod wants and that can be set up.
    fn wanted(&mut self, pod: &DesiredPod, volume: &Arc<DesiredVolume>, mounts: &mut Mounts) {
        let names: Vec<_> = volume.outer_names.iter().map(|n| format!("{:?}", n.as_str())).collect();
        let subject = format!("volume {} of {}", names.join(", "), pod_subject(pod));
        let key = Some(volume.key.clone());
        let actual = self.volumes.get(&volume.key).copied();
        let reason = match self.need(volume, actual) {
            Need::Nothing(reason) => return self.report(subject, key, "Keep", reason),
            Need::HandsOff(reason) => return self.report(subject, key, "HandsOff", reason),
            Need::Wait(reason) => return self.report(subject, key, "Wait", reason),
            Need::SetUp(reason) => reason,
        };
        if self.input.running.contains(&Exclusion::Pod(pod.pod.uid.clone())) {
            return self.report(subject, key, "Wait", "SetUp waits for an operation on its pod".into());
        }
        if !self.checkpoints.contains_key(&pod.pod.uid) {
            return self.report(subject, key, "Wait", "SetUp waits for its pod to be admitted".into());
        }
        if volume.device_mount_path.is_some() && !self.has_no_device(volume, actual) {
            let device = self.devices.get(&volume.unique_name).copied();
            if let Some(why) = device.and_then(|d| d.conflict.as_ref()) {
                return self.report(subject, key, "HandsOff", format!("its device: {why}"));
            }
            if let Some(field) = device.and_then(|d| device_changed(volume, d)) {
                let reason = format!(
                    "{field} is not what it was when its device was mounted; it waits until the pods that use that are gone"
                );
                return self.report(subject, key, "Wait", reason);
            }
            if device.is_none_or(|d| d.state != VolumeState::Mounted || d.record_state != RecordState::Ok) {
                let (by_driver, adopts) = (&self.input.by_driver, &self.input.adopts_devices);
                let looks = by_driver.contains(&volume.key.plugin) || adopts.contains(&volume.key.plugin);
                let unrecorded = device.filter(|d| d.record_state != RecordState::Ok && !looks);
                if let Some(mount) = unrecorded.and_then(|d| d.mount.as_ref()) {
                    let reason = format!("its device is mounted ({}) and no record tells what it is", mount.source);
                    return self.report(subject, key, "HandsOff", reason);
                }
                let operation = Operation::MountDevice { volume: Arc::clone(volume), reason };
                return self.start(subject, key, operation, Some(&mut mounts.devices));
            }
        }
        let operation = Operation::SetUp { volume: Arc::clone(volume), reason };
        self.start(subject, key, operation, Some(&mut mounts.volumes));
    }

    fn has_no_device(&self, volume: &DesiredVolume, actual: Option<&ActualVolume>) -> bool {
        self.input.no_device.contains(&volume.unique_name)
            || actual.is_some_and(|a| {
                a.state == VolumeState::Mounted
                    && a.record_state == RecordState::Ok
                    && a.record.as_ref().is_some_and(|r| r.device_mount_path.is_none())
            })
    }

    fn need(&mut self, volume: &DesiredVolume, actual: Option<&ActualVolume>) -> Need {
        let Some(actual) = actual else { return Need::SetUp("it is not there yet".into()) };
        if let Some(why) = &actual.conflict {
            return Need::HandsOff(why.clone());
        }
        if actual.reconstruction == ReconstructionResult::Failed {
            return Need::HandsOff(Held::NotUnderstood.to_string());
        }
        if actual.record_state != RecordState::Ok {
            return match &actual.mount {
                None => Need::SetUp("it has no record that can be used".into()),
                Some(_) if self.input.by_driver.contains(&volume.key.plugin) => {
                    if actual.unique_name.as_ref() == Some(&volume.unique_name) {
                        Need::SetUp(
                            "it has no record that can be used, and its driver tells whether it is whole".into(),
                        )
                    } else {
                        Need::HandsOff(
                            "it is mounted, and neither a record nor another program's file tells that it is what the pod \
                             wants; it is kept for the pod"
                                .into(),
                        )
                    }
                }
                Some(_) if adoptable(volume, actual) => {
                    Need::SetUp("its record is lost, and what is mounted is what the pod wants".into())
                }
                Some(mount) => Need::HandsOff(format!(
                    "{} {:?} is mounted there, and no record tells what it is; it is kept for the pod",
                    mount.fs_type, mount.source
                )),
            };
        }
        match actual.state {
            VolumeState::NotMounted | VolumeState::Uncertain => return Need::SetUp(actual.state_reason.to_string()),
            VolumeState::Unknown => return Need::Wait(actual.state_reason.to_string()),
            VolumeState::Mounted => {}
        }
        if let Some(field) = volume_changed(volume, actual) {
            return Need::Nothing(format!("{field} is not what it was when it was set up; it keeps what it has"));
        }
        let missing = volume.sub_paths.iter().find(|wanted| {
            !actual.sub_paths.iter().any(|seen| {
                seen.container == wanted.container && seen.index == Some(wanted.index) && seen.mounted && seen.ours
            })
        });
        if let Some(missing) = missing {
            return Need::SetUp(format!(
                "subPath {:?} of container {:?} is not mounted",
                missing.sub_path, missing.container
            ));
        }
        if let Some(why) = self.republish(volume) {
            return Need::SetUp(why);
        }
        match self.input.verified.get(&volume.key) {
            Some(then) if *then == self.digest(volume) => Need::Nothing(actual.state_reason.to_string()),
            Some(_) => Need::SetUp("what the pod wants of it changed".into()),
            None if volume.content.is_some() => {
                Need::SetUp("its content was not compared since the manager started".into())
            }
            None if self.input.verify.contains(&volume.key.plugin) => {
                Need::SetUp("it was not checked since the manager started".into())
            }
            None if actual.record.as_ref().is_some_and(|record| differs(volume, record)) => {
                Need::SetUp("what the pod wants of it changed".into())
            }
            // A crash between the two calls that older kernels need leaves a bind without them.
            None if self.input.binds.contains(&volume.key.plugin) && has_other_options(volume, actual) => {
                Need::SetUp("it has not the mount options that it should have".into())
            }
            None => Need::Nothing(actual.state_reason.to_string()),
        }
    }

    /// Why a volume that is set up is published again, if its driver wants that and it is time.
    fn republish(&mut self, volume: &DesiredVolume) -> Option<String> {
        if !volume.inputs.as_ref().is_some_and(|inputs| inputs.requires_republish()) {
            return None;
        }
        let due = self.input.republish.get(&volume.key).copied().unwrap_or_default();
        if due <= self.input.now {
            return Some("its driver wants to be asked again from time to time".into());
        }
        self.plan.wake_at = Some(self.plan.wake_at.map_or(due, |at| at.min(due)));
        None
    }

    fn digest(&self, volume: &DesiredVolume) -> u64 {
        self.input.digests.get(&volume.key).copied().unwrap_or_else(|| digest(volume))
    }

    fn device(&mut self, device: &ActualDevice) {
        let name = device.unique_name.as_ref().map_or_else(|| device.path.display().to_string(), ToString::to_string);
        let subject = format!("device {name}");
        match (self.may.device(device), &device.record) {
            (Ok(()), Some(record)) => {
                let operation = Operation::UnmountDevice {
                    record: Box::new(record.clone()),
                    trusted: device.record_state == RecordState::Ok,
                    reason: "no pod uses or wants it".into(),
                };
                self.start(subject, None, operation, None);
            }
            (Ok(()), None) => self.held(subject, None, &Held::NotUnderstood),
            (Err(held), _) => self.held(subject, None, &held),
        }
    }

    /// Pods that are gone, and what is left of them.
    fn pods(&mut self, actual: &Actual) {
        let of_pods = actual.leftovers.iter().filter(|l| removable(l)).filter_map(|l| l.pod.as_ref());
        let candidates: BTreeSet<&PodUid> = actual.checkpoints.iter().map(|c| &c.pod.uid).chain(of_pods).collect();
        let mut forgotten = HashSet::new();
        for pod in candidates {
            if self.may.pod(pod).is_err() || self.running_pods.contains(pod) {
                continue;
            }
            let operation =
                Operation::ForgetPod { pod: pod.clone(), reason: "it is gone and has no volume left".into() };
            let planned = self.plan.operations.len();
            self.start(format!("pod {pod}"), None, operation, None);
            if self.plan.operations.len() > planned {
                forgotten.insert(pod);
            }
        }
        for leftover in &actual.leftovers {
            let subject = leftover.path.display().to_string();
            let Some(pod) = &leftover.pod else {
                let reason = "it is in no pod's folder, so whose it is cannot be told".to_owned();
                self.report(subject, None, "HandsOff", reason);
                continue;
            };
            match self.may.pod(pod) {
                Err(held) => self.held(subject, None, &held),
                Ok(()) if forgotten.contains(pod) && removable(leftover) => {
                    self.report(subject, None, "ForgetPod", format!("pod {pod} is gone"));
                }
                Ok(()) if removable(leftover) => {
                    self.report(
                        subject,
                        None,
                        "Wait",
                        "its pod is forgotten when what is under way or pausing is done".into(),
                    );
                }
                Ok(()) => {
                    let reason = format!("pod {pod} is gone, but these files are nobody's known volume; they are kept");
                    self.report(subject, None, "HandsOff", reason);
                }
            }
        }
    }
}

impl Exclusion {
    /// The pod that it is about.
    pub(crate) fn pod(&self) -> Option<&PodUid> {
        match self {
            Self::Volume(key) => Some(&key.pod),
            Self::Pod(pod) => Some(pod),
            // What is asked meanwhile is undone before its pod is forgotten.
            Self::Device(_) | Self::Provider(..) | Self::Asked(_) => None,
        }
    }

    /// The volume that it is.
    pub(crate) fn volume(&self) -> Option<&VolumeKey> {
        match self {
            Self::Volume(key) => Some(key),
            Self::Pod(_) | Self::Device(_) | Self::Provider(..) | Self::Asked(_) => None,
        }
    }
}

/// Whether forgetting a gone pod removes this.
fn removable(leftover: &Leftover) -> bool {
    match leftover.kind {
        LeftoverKind::EmptyPodDir | LeftoverKind::SubPath | LeftoverKind::LoopDevice => true,
        LeftoverKind::StaleMount => leftover.mounted,
        LeftoverKind::PodDirWithData | LeftoverKind::Socket | LeftoverKind::Unknown => false,
    }
}

/// Whether a mount without a record may be taken for what the pod wants: its plugin can tell from the layout what it
/// is, nothing of that contradicts the wish, and it is the only layer.
fn adoptable(volume: &DesiredVolume, actual: &ActualVolume) -> bool {
    let single = actual.mount.as_ref().is_some_and(|m| m.stack == 1);
    let told = matches!(actual.reconstruction, ReconstructionResult::Partial { .. });
    let agrees = |told: Option<&Verbatim>, wanted: Option<&Verbatim>| match (told, wanted) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(told), Some(wanted)) => match (told.parse(), wanted.parse()) {
            (Ok(told), Ok(wanted)) => within(&told, &wanted),
            _ => false,
        },
    };
    let source = &volume.spec.source;
    // Told as a pod's own although it may be a `PersistentVolume`'s: then what it comes from is what can be compared.
    let in_doubt = matches!(&actual.reconstruction, ReconstructionResult::Partial { lost }
        if lost.iter().any(|field| field == "persistentVolume"));
    if let (true, Some(told), Some(wanted)) = (in_doubt, &actual.spec_volume, source.persistent_volume()) {
        return single && same_source(told, &wanted.raw);
    }
    single
        && told
        && agrees(actual.spec_volume.as_ref(), Some(&source.volume().raw))
        && agrees(actual.spec_persistent_volume.as_ref(), source.persistent_volume().map(|p| &p.raw))
}

/// Whether what a pod's entry tells of its source stands in that of a `PersistentVolume`.
fn same_source(entry: &Verbatim, persistent_volume: &Verbatim) -> bool {
    let fields: Option<serde_json::Map<String, serde_json::Value>> = entry.parse().ok();
    let whole: Option<serde_json::Value> = persistent_volume.parse().ok();
    let (Some(mut fields), Some(whole)) = (fields, whole) else { return false };
    fields.shift_remove("name");
    !fields.is_empty() && within(&fields.into(), &whole["spec"])
}

/// Whether each field of the first stands in the second with the same value, or is the value that it has when absent.
fn within(part: &serde_json::Value, whole: &serde_json::Value) -> bool {
    match (part, whole) {
        (serde_json::Value::Object(part), serde_json::Value::Object(whole)) => {
            part.iter().all(|(name, value)| match whole.get(name) {
                Some(other) => {
                    within(value, other) || name == "targetPortal" && is_same_portal(value.as_str(), other.as_str())
                }
                // `PersistentVolumeSpec`: "Value of Filesystem is implied when not included".
                None if name == "volumeMode" => value == "Filesystem",
                // `ISCSIVolumeSource`: with an initiator name, one is made.
                None => name == "iscsiInterface" && value == "default" && whole.get("initiatorName").is_none(),
            })
        }
        _ => part == whole,
    }
}

/// Whether two portals of iSCSI are one: a path has the port that a spec may leave out.
fn is_same_portal(told: Option<&str>, wanted: Option<&str>) -> bool {
    told.zip(wanted).is_some_and(|(told, wanted)| told == refloat_volume::plugins::iscsi::with_port(wanted))
}

/// Whether the record says something else than the pod wants now.
fn differs(volume: &DesiredVolume, record: &refloat_record::PodVolume) -> bool {
    let source = &volume.spec.source;
    record.volume_names != volume.outer_names
        || record.fs_group != volume.fs_group
        || record.read_only != volume.spec.read_only
        || record.mount_options != volume.spec.mount_options
        || record.volume != source.volume().raw
        || record.persistent_volume.as_ref() != source.persistent_volume().map(|p| &p.raw)
}

fn pod_subject(pod: &DesiredPod) -> String {
    format!("pod {}/{} ({})", pod.pod.namespace, pod.pod.name, pod.pod.uid)
}

pub(super) fn volume_subject(volume: &ActualVolume) -> String {
    let pod = match &volume.pod_name {
        Some((namespace, name)) => format!("pod {namespace}/{name} ({})", volume.key.pod),
        None => format!("pod {}", volume.key.pod),
    };
    match volume.outer_names.first() {
        Some(name) => format!("volume {:?} of {pod}", name.as_str()),
        None => format!("volume {:?} of {pod}", volume.key.spec_name.as_str()),
    }
}

/// Whether the mount table shows other options of a bind than its spec asks for.
fn has_other_options(volume: &DesiredVolume, actual: &ActualVolume) -> bool {
    let options = BindOptions {
        read_only: volume.spec.read_only,
        options: volume.spec.mount_options.clone(),
        ..BindOptions::default()
    };
    actual.mount.as_ref().is_some_and(|mount| options.differ_from(&mount.options))
}
