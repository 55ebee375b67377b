//! The object that `scan -o json` prints. Scripts rely on every name here; see `docs/commands.md`.
//!
//! A field that is not known is null, a list is never null.
#![allow(clippy::struct_field_names)] // the names are those of the interface

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use refloat_node::{
    Actual, ActualDevice, ActualVolume, Leftover, LeftoverKind, MountSeen, ReconstructionResult, RecordState,
    VolumeState, Wanted, on_two_threads,
};
use refloat_record::{PodUid, ProviderAnswer, ProviderAnswers, Verbatim, VolumeMode};
use refloat_volume::Problem;
use serde::Serialize;

use super::path_text::path_or_problem;
use crate::look::{Authority, View};
use crate::sources::{self, SourceOut};
use crate::usage::Usage;

/// All that is on a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeVolumes {
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) node: Node,
    /// Who was asked which pods are on the node.
    pub(crate) sources: Vec<SourceOut>,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) devices: Vec<Device>,
    pub(crate) leftovers: Vec<LeftoverOut>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) summary: Summary,
}

/// What was looked at.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    pub(crate) root_dir: String,
    pub(crate) state_dir: Option<String>,
    #[serde(rename = "bootID")]
    pub(crate) boot_id: Option<String>,
    /// The file that the mount table is from; none for the node's own table.
    pub(crate) mountinfo: Option<String>,
    pub(crate) scanned_at: String,
}

/// One pod's use of one volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Volume {
    pub(crate) pod: Pod,
    pub(crate) volume: Option<String>,
    pub(crate) spec_name: String,
    pub(crate) plugin: String,
    pub(crate) unique_name: Option<String>,
    pub(crate) mode: VolumeMode,
    pub(crate) path: Option<String>,
    pub(crate) device_path: Option<String>,
    pub(crate) sub_paths: Vec<SubPath>,
    pub(crate) mounted: bool,
    pub(crate) mount: Option<Mount>,
    pub(crate) state: &'static str,
    pub(crate) record: &'static str,
    pub(crate) reconstruction: &'static str,
    pub(crate) lost: Vec<Cow<'static, str>>,
    pub(crate) wanted: &'static str,
    pub(crate) wanted_by: Option<String>,
    pub(crate) spec: Option<Spec>,
    /// What providers outside this program remember of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) providers: BTreeMap<String, ProviderOut>,
    /// How full its file system is; only where that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    pub(crate) problems: Vec<Problem>,
    /// Whether a person should look.
    #[serde(skip)]
    pub(crate) attention: bool,
}

/// A pod.
#[derive(Debug, Serialize)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
}

/// A subPath mount.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SubPath {
    pub(crate) path: String,
    pub(crate) container: String,
    pub(crate) index: Option<u32>,
    pub(crate) sub_path: Option<String>,
    pub(crate) mounted: bool,
}

/// The topmost mount at a path.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mount {
    pub(crate) id: Option<u64>,
    pub(crate) fs_type: String,
    pub(crate) source: String,
    pub(crate) root: String,
    pub(crate) options: String,
    pub(crate) stack: usize,
}

/// The reconstructed spec, verbatim.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Spec {
    PersistentVolume(Verbatim),
    Volume(Verbatim),
}

/// A device mounted for pods.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Device {
    pub(crate) unique_name: Option<String>,
    pub(crate) plugin: String,
    pub(crate) path: String,
    pub(crate) device: Option<String>,
    pub(crate) mounted: bool,
    pub(crate) mount: Option<Mount>,
    pub(crate) state: &'static str,
    pub(crate) record: &'static str,
    pub(crate) users: Vec<String>,
    pub(crate) wanted: &'static str,
    pub(crate) wanted_by: Option<String>,
    /// What providers outside this program remember of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) providers: BTreeMap<String, ProviderOut>,
    pub(crate) problems: Vec<Problem>,
    #[serde(skip)]
    pub(crate) attention: bool,
}

/// What one provider said.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProviderOut {
    pub(crate) provider_info: Option<Verbatim>,
}

/// What belongs to no volume.
#[derive(Debug, Serialize)]
pub(crate) struct LeftoverOut {
    pub(crate) path: String,
    pub(crate) kind: &'static str,
    pub(crate) problems: Vec<Problem>,
    #[serde(skip)]
    pub(crate) attention: bool,
}

/// Counts.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) volumes: usize,
    pub(crate) devices: usize,
    pub(crate) leftovers: usize,
    /// Volumes by `state`.
    pub(crate) state: BTreeMap<&'static str, usize>,
    /// Volumes by `reconstruction`.
    pub(crate) reconstruction: BTreeMap<&'static str, usize>,
    /// All problems by `code`.
    pub(crate) problems: BTreeMap<&'static str, usize>,
}

impl NodeVolumes {
    /// What was seen, as it is printed. `more` are problems of the node that the view does not have.
    pub(crate) fn new(view: &View, more: &[Problem]) -> Self {
        let Actual { volumes, devices, leftovers, problems, .. } = &view.actual;
        let mut problems = problems.clone();
        problems.extend_from_slice(more);
        problems.extend(view.authority.problems().iter().cloned());
        problems.extend(sources::problems(view.authority.answers()));
        let root_dir = path_or_problem(&view.root, &mut problems);
        let state_dir = view.state_dir.as_deref().map(|path| path_or_problem(path, &mut problems));
        let mountinfo = view.mountinfo.as_deref().map(|path| path_or_problem(path, &mut problems));
        problems.sort();
        problems.dedup();
        let mut this = Self {
            api_version: "refloat.dev/v1",
            kind: "NodeVolumes",
            node: Node {
                root_dir,
                state_dir,
                boot_id: view.boot_id.as_ref().map(ToString::to_string),
                mountinfo,
                scanned_at: view.scanned_at.to_string(),
            },
            sources: sources::printed(view.authority.answers()),
            volumes: on_two_threads(volumes, |v| volume(v, &view.authority)),
            devices: devices.iter().map(|d| device(d, &view.authority)).collect(),
            leftovers: leftovers.iter().map(|l| leftover(l, &view.authority)).collect(),
            problems,
            summary: Summary {
                volumes: volumes.len(),
                devices: devices.len(),
                leftovers: leftovers.len(),
                state: BTreeMap::from(["Mounted", "Uncertain", "NotMounted", "Unknown"].map(|s| (s, 0))),
                reconstruction: BTreeMap::from(["Full", "Partial", "UnmountOnly", "Failed"].map(|s| (s, 0))),
                problems: BTreeMap::new(),
            },
        };
        if !view.usage.is_empty() {
            for (printed, seen) in this.volumes.iter_mut().zip(volumes) {
                printed.usage = seen.path.as_ref().and_then(|path| view.usage.get(path)).copied();
            }
        }
        this.volumes.sort_by(|a, b| a.order().cmp(&b.order()));
        this.devices.sort_by(|a, b| (&a.unique_name, &a.path).cmp(&(&b.unique_name, &b.path)));
        this.leftovers.sort_by(|a, b| a.path.cmp(&b.path));
        for volume in &this.volumes {
            *this.summary.state.entry(volume.state).or_default() += 1;
            *this.summary.reconstruction.entry(volume.reconstruction).or_default() += 1;
        }
        // That of a damaged record is shown at its volume and among the node's: it is one all the same.
        let mut counts = BTreeMap::new();
        for problem in this.all_problems().collect::<BTreeSet<_>>() {
            *counts.entry(problem.code).or_default() += 1;
        }
        this.summary.problems = counts;
        this
    }

    /// Whether a person should look at something.
    pub(crate) fn needs_attention(&self) -> bool {
        !self.problems.is_empty()
            || self.volumes.iter().any(|v| v.attention)
            || self.devices.iter().any(|d| d.attention)
            || self.leftovers.iter().any(|l| l.attention)
    }

    fn all_problems(&self) -> impl Iterator<Item = &Problem> {
        let lists = [&self.problems].into_iter();
        let lists = lists.chain(self.volumes.iter().map(|v| &v.problems));
        let lists = lists.chain(self.devices.iter().map(|d| &d.problems));
        lists.chain(self.leftovers.iter().map(|l| &l.problems)).flatten()
    }
}

impl Volume {
    /// What the list is sorted by.
    fn order(&self) -> (&str, &str, Option<&str>) {
        (&self.pod.uid, self.volume.as_ref().unwrap_or(&self.spec_name), self.path.as_deref())
    }
}

/// One volume as it is printed.
pub(crate) fn volume(seen: &ActualVolume, authority: &Authority) -> Volume {
    let mut problems = seen.problems.clone();
    let wanted = authority.wanted_volume(&seen.key);
    let (wanted_word, wanted_by) = wanted_and_by(&wanted, authority);
    let path = seen.path.as_deref().map(|p| path_or_problem(p, &mut problems));
    let device_path = seen.device_path.as_deref().map(|p| path_or_problem(p, &mut problems));
    let sub_paths = seen.sub_paths.iter().map(|s| SubPath {
        path: path_or_problem(&s.path, &mut problems),
        container: s.container.clone(),
        index: s.index,
        sub_path: s.sub_path.clone(),
        mounted: s.mounted,
    });
    let sub_paths = sub_paths.collect();
    let mount = seen.mount.as_ref().map(|m| mount(m, &mut problems));
    conflict_problem(seen.conflict.as_deref(), &mut problems);
    let (reconstruction, lost) = match &seen.reconstruction {
        ReconstructionResult::Full => ("Full", vec![]),
        ReconstructionResult::Partial { lost } => ("Partial", lost.clone()),
        ReconstructionResult::UnmountOnly => ("UnmountOnly", vec![]),
        ReconstructionResult::Failed => ("Failed", vec![]),
    };
    let spec = match (&seen.spec_persistent_volume, &seen.spec_volume) {
        (Some(pv), _) => Some(Spec::PersistentVolume(pv.clone())),
        (None, Some(volume)) => Some(Spec::Volume(volume.clone())),
        (None, None) => None,
    };
    let attention = !problems.is_empty()
        || matches!(wanted, Wanted::No { .. })
        || matches!(seen.state, VolumeState::Uncertain)
        || matches!((seen.state, &wanted), (VolumeState::NotMounted | VolumeState::Unknown, Wanted::Yes { .. }))
        || matches!(seen.record_state, RecordState::Damaged | RecordState::Newer)
        || reconstruction == "Failed";
    Volume {
        pod: Pod {
            uid: seen.key.pod.to_string(),
            namespace: seen.pod_name.as_ref().map(|(namespace, _)| namespace.clone()),
            name: seen.pod_name.as_ref().map(|(_, name)| name.clone()),
        },
        volume: seen.outer_names.first().map(ToString::to_string),
        spec_name: seen.key.spec_name.to_string(),
        plugin: seen.key.plugin.to_string(),
        unique_name: seen.unique_name.as_ref().map(ToString::to_string),
        mode: seen.key.mode,
        path,
        device_path,
        sub_paths,
        mounted: mount.is_some(),
        mount,
        state: state_word(seen.state),
        record: record_word(seen.record_state),
        reconstruction,
        lost,
        wanted: wanted_word,
        wanted_by,
        spec,
        providers: seen.record.as_ref().map_or_else(BTreeMap::new, |record| providers(&record.providers)),
        usage: None,
        problems,
        attention,
    }
}

/// One device as it is printed.
pub(crate) fn device(seen: &ActualDevice, authority: &Authority) -> Device {
    let mut problems = seen.problems.clone();
    let path = path_or_problem(&seen.path, &mut problems);
    let mount = seen.mount.as_ref().map(|m| mount(m, &mut problems));
    conflict_problem(seen.conflict.as_deref(), &mut problems);
    // A device that is mounted for nobody is an orphan too, unless it cannot be told who uses it.
    let orphan = seen.users.iter().all(|pod| matches!(authority.wanted(pod), Wanted::No { .. }))
        && seen.other_references.is_empty();
    let (wanted, wanted_by) = wanted_and_by(&authority.wanted_device(&seen.users), authority);
    let attention = !problems.is_empty()
        || orphan
        || seen.state == VolumeState::Uncertain
        || matches!(seen.record_state, RecordState::Damaged | RecordState::Newer);
    Device {
        unique_name: seen.unique_name.as_ref().map(ToString::to_string),
        plugin: seen.plugin.to_string(),
        path,
        device: seen.device.clone(),
        mounted: mount.is_some(),
        mount,
        state: state_word(seen.state),
        record: record_word(seen.record_state),
        users: seen.users.iter().map(ToString::to_string).collect(),
        wanted,
        wanted_by,
        providers: seen.record.as_ref().map_or_else(BTreeMap::new, |record| providers(&record.providers)),
        problems,
        attention,
    }
}

fn providers(answers: &ProviderAnswers) -> BTreeMap<String, ProviderOut> {
    let printed = |answer: &ProviderAnswer| ProviderOut { provider_info: answer.provider_info.clone() };
    answers.iter().map(|(name, answer)| (name.clone(), printed(answer))).collect()
}

/// One leftover as it is printed.
pub(crate) fn leftover(seen: &Leftover, authority: &Authority) -> LeftoverOut {
    let mut problems = seen.problems.clone();
    let path = path_or_problem(&seen.path, &mut problems);
    let wanted = |pod: &PodUid| matches!(authority.wanted(pod), Wanted::Yes { .. });
    let attention = !problems.is_empty() || !seen.pod.as_ref().is_some_and(wanted);
    LeftoverOut { path, kind: leftover_word(seen.kind), problems, attention }
}

fn conflict_problem(conflict: Option<&str>, problems: &mut Vec<Problem>) {
    let Some(conflict) = conflict else { return };
    if !problems.iter().any(|p| p.message == conflict || p.code.contains("Conflict")) {
        problems.push(Problem::new(
            "EvidenceConflict",
            conflict,
            "nothing is done to it until this is settled; `refloat explain` shows all evidence",
        ));
    }
}

fn mount(seen: &MountSeen, problems: &mut Vec<Problem>) -> Mount {
    Mount {
        id: seen.id.map(|id| id.0.get()),
        fs_type: seen.fs_type.clone(),
        source: seen.source.clone(),
        root: path_or_problem(&seen.root, problems),
        options: seen.options.clone(),
        stack: seen.stack,
    }
}

/// A state as it is printed.
pub(crate) fn state_word(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Mounted => "Mounted",
        VolumeState::Uncertain => "Uncertain",
        VolumeState::NotMounted => "NotMounted",
        VolumeState::Unknown => "Unknown",
    }
}

fn record_word(state: RecordState) -> &'static str {
    match state {
        RecordState::Ok => "Ok",
        RecordState::Missing => "Missing",
        RecordState::Damaged => "Damaged",
        RecordState::Newer => "Newer",
        RecordState::Foreign => "Foreign",
    }
}

fn leftover_word(kind: LeftoverKind) -> &'static str {
    match kind {
        LeftoverKind::EmptyPodDir => "EmptyPodDir",
        LeftoverKind::PodDirWithData => "PodDirWithData",
        LeftoverKind::SubPath => "SubPath",
        LeftoverKind::StaleMount => "StaleMount",
        LeftoverKind::LoopDevice => "LoopDevice",
        LeftoverKind::Socket => "Socket",
        LeftoverKind::Unknown => "Unknown",
    }
}

/// Whether something is wanted, and who says so: or, where a source was asked and cannot tell, what keeps it from telling.
fn wanted_and_by(wanted: &Wanted, authority: &Authority) -> (&'static str, Option<String>) {
    match wanted {
        Wanted::Unknown { why } if authority.was_asked() => ("Unknown", Some(why.clone())),
        _ => wanted_words(wanted),
    }
}

/// Whether it is wanted, and the source that said so (none if no source could).
pub(crate) fn wanted_words(wanted: &Wanted) -> (&'static str, Option<String>) {
    match wanted {
        Wanted::Yes { by } => ("Yes", Some(by.clone())),
        Wanted::No { by } => ("No", Some(by.clone())),
        Wanted::Unknown { .. } => ("Unknown", None),
    }
}
