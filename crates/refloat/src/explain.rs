//! Collects all that is known of one volume, pod, device or path.

use std::num::NonZeroU64;
use std::path::Path;

use refloat_mount::{Mount, UniqueMountId};
use refloat_node::{ActualDevice, ActualVolume, Held, Leftover, Plan, PlanInput, VolumeKey, Wanted, plan};
use refloat_record::{PodUid, ProviderAnswer, ProviderAnswers};
use refloat_volume::migration::same_volume;
use refloat_volume::{Plugins, Problem};
use serde::Serialize;

use crate::look::View;
use crate::output::node_volumes::{self, state_word};
use crate::output::path_text::path_text;

/// All that is known of what the user named.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    api_version: &'static str,
    kind: &'static str,
    target: String,
    pub(crate) subjects: Vec<Subject>,
}

/// One volume, pod, device or leftover.
#[allow(clippy::struct_field_names)] // the names are those of the output
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Subject {
    /// As a person names it.
    pub(crate) subject: String,
    /// What it is, a sentence each.
    pub(crate) what: Vec<String>,
    /// Who wants it.
    pub(crate) wanted: String,
    /// What the conclusion stands on, a sentence each.
    pub(crate) evidence: Vec<String>,
    /// What was concluded, a sentence each.
    pub(crate) conclusion: Vec<String>,
    /// What needs attention.
    pub(crate) problems: Vec<Problem>,
    /// What a manager would do with it now.
    pub(crate) next: Vec<Step>,
    #[serde(skip)]
    attention: bool,
}

/// What would happen next, and why.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) decision: &'static str,
    pub(crate) reason: String,
}

impl Explanation {
    /// Whether a person should look at something.
    pub(crate) fn needs_attention(&self) -> bool {
        self.subjects.iter().any(|s| s.attention)
    }
}

/// Explains what the user named; none if nothing is known by that name.
pub(crate) fn explain(target: &str, view: &View) -> Option<Explanation> {
    let plan = plan(view.authority.desired(), &view.actual, &PlanInput::new(&Plugins::builtin()));
    let asked = target;
    let by_id = mount_of(target, view);
    // What a mount is, is what its mount point is.
    let point = by_id.and_then(|mount| mount.point().to_str());
    let target = point.unwrap_or(target);
    let mut subjects: Vec<Subject> = by_id.map(|mount| mount_itself(mount, view)).into_iter().collect();
    for seen in view.actual.volumes.iter().filter(|v| names_volume(target, v, view)) {
        subjects.push(volume(seen, view, &plan));
    }
    for seen in view.actual.devices.iter().filter(|d| names_device(target, d, view)) {
        subjects.push(device(seen, view, &plan));
    }
    for seen in view.actual.leftovers.iter().filter(|l| names_leftover(target, l, view)) {
        subjects.push(leftover(seen, view, &plan));
    }
    subjects.extend(not_there_yet(target, view, &plan));
    if subjects.is_empty() {
        return None;
    }
    Some(Explanation { api_version: "refloat.dev/v1", kind: "Explanation", target: asked.into(), subjects })
}

/// The mount with this id: the kernel's unique one, or the one that `findmnt -o ID` shows.
fn mount_of<'v>(target: &str, view: &'v View) -> Option<Mount<'v>> {
    let id: u64 = target.parse().ok()?;
    if view.actual.volumes.iter().any(|volume| volume.key.pod.as_str() == target) {
        return None;
    }
    let unique = NonZeroU64::new(id).and_then(|id| view.table.by_id(UniqueMountId(id)));
    unique.or_else(|| view.table.by_short_id(u32::try_from(id).ok()?))
}

/// The mount as the table has it.
fn mount_itself(mount: Mount<'_>, view: &View) -> Subject {
    let point = path_text(mount.point()).0;
    let stack = view.table.stack(mount.point());
    let layer = stack.iter().position(|other| other.short_id() == mount.short_id()).map_or(1, |place| place + 1);
    let unique = mount.id().map_or_else(String::new, |id| format!(", unique id {}", id.0));
    let mut what = vec![
        format!(
            "A mount at {point}: {} from {:?} (root {}).",
            mount.fs_type(),
            mount.source(),
            path_text(mount.root()).0
        ),
        format!("Its id is {}{unique}; it hangs on mount {}.", mount.short_id(), mount.parent_short_id()),
    ];
    if stack.len() > 1 {
        what.push(format!("It is layer {layer} of {} at that path, counted from below.", stack.len()));
    }
    if mount.hidden() {
        what.push("No path leads to it: another mount lies over a folder above.".into());
    }
    let same = view.table.same_root(mount.device(), mount.root());
    let others = same.into_iter().filter(|other| other.short_id() != mount.short_id());
    let mut evidence = vec![format!("mount table: options {}; file system {}", mount.options(), mount.fs_options())];
    evidence.extend(others.map(|other| format!("mount table: the same is mounted at {}", path_text(other.point()).0)));
    evidence.extend(view.holders.of(mount).map(|holder| format!("holder: {holder}")));
    let below = mount.point().starts_with(&view.root);
    Subject {
        subject: format!("mount {}", mount.short_id()),
        what,
        wanted: if below { "What it is of is told below.".into() } else { "It is outside the node root.".into() },
        evidence,
        next: if below {
            vec![]
        } else {
            vec![Step { decision: "HandsOff", reason: "it is not below the node root".into() }]
        },
        ..Subject::default()
    }
}

/// Whether `path` is the target, lies below it, or the target lies below it. Both spellings of the root are understood.
fn names_path(target: &str, path: &Path, view: &View) -> bool {
    if !target.starts_with('/') {
        return false;
    }
    let target = Path::new(target);
    let target = match target.strip_prefix(&view.given_root) {
        Ok(rest) => view.root.join(rest),
        Err(_) => target.to_owned(),
    };
    // The root itself, or `pods`, would name everything; that is what `scan` is for.
    let pods = view.root.join("pods");
    target == path
        || path.starts_with(&target) && target.starts_with(&pods) && target != pods
        || target.starts_with(path)
}

fn names_volume(target: &str, seen: &ActualVolume, view: &View) -> bool {
    let VolumeKey { pod, spec_name, .. } = &seen.key;
    let of_pod = |rest: &str| spec_name.as_str() == rest || seen.outer_names.iter().any(|n| n.as_str() == rest);
    let pod_name = seen.pod_name.as_ref().map(|(namespace, name)| format!("{namespace}/{name}"));
    target == pod.as_str()
        || pod_name.as_deref() == Some(target)
        || target.strip_prefix(pod.as_str()).and_then(|t| t.strip_prefix('/')).is_some_and(of_pod)
        || pod_name.and_then(|p| target.strip_prefix(&format!("{p}/")).map(of_pod)).unwrap_or(false)
        || seen.unique_name.as_ref().is_some_and(|n| same_volume(n.as_str(), target))
        || seen.path.as_deref().is_some_and(|p| names_path(target, p, view))
        || seen.sub_paths.iter().any(|s| names_path(target, &s.path, view))
        || seen.record.as_ref().and_then(|r| r.host_path.as_deref()).is_some_and(|p| p == target)
        || seen
            .record
            .as_ref()
            .and_then(|r| r.block.as_ref())
            .is_some_and(|block| names_path(target, &block.map_path.below(&view.root), view))
        || target.starts_with("/dev/")
            && (seen.device_path.as_deref() == Some(Path::new(target))
                || seen.mount.as_ref().is_some_and(|mount| mount.source == target)
                || seen
                    .mount
                    .as_ref()
                    .is_some_and(|m| m.fs_type == "devtmpfs" && target == format!("/dev{}", m.root.display())))
}

fn names_device(target: &str, seen: &ActualDevice, view: &View) -> bool {
    seen.unique_name.as_ref().is_some_and(|n| same_volume(n.as_str(), target))
        || seen.device.as_deref() == Some(target)
        || names_path(target, &seen.path, view)
}

fn names_leftover(target: &str, seen: &Leftover, view: &View) -> bool {
    seen.pod.as_ref().is_some_and(|p| p.as_str() == target) || names_path(target, &seen.path, view)
}

/// What the sources of pods say of a pod, a sentence each.
fn told_of(pod: &PodUid, view: &View) -> Vec<String> {
    view.authority.answers().map(|answers| answers.sentences(pod)).unwrap_or_default()
}

/// Who holds what is mounted at a path, in other mount namespaces.
fn held_at(path: &Path, view: &View) -> Vec<String> {
    let stack = view.table.stack(path);
    stack.iter().filter_map(|mount| Some(format!("holder: {}", view.holders.of(*mount)?))).collect()
}

/// What providers outside this program remember, a sentence each.
fn told_by_providers(answers: Option<&ProviderAnswers>) -> Vec<String> {
    let told = |(name, answer): (&String, &ProviderAnswer)| match &answer.provider_info {
        Some(info) => format!("provider {name}: {}", info.get()),
        None => format!("provider {name}: it was asked and has nothing to remember"),
    };
    answers.into_iter().flatten().map(told).collect()
}

fn wanted_text(wanted: &Wanted) -> String {
    match wanted {
        Wanted::Yes { by } => format!("Yes, says {by}."),
        Wanted::No { by } => format!("No, says {by}."),
        Wanted::Unknown { why } => format!("Unknown: {why}."),
    }
}

fn mount_text(mount: &refloat_node::MountSeen) -> String {
    let layers = if mount.stack > 1 { format!(", the topmost of {} layers", mount.stack) } else { String::new() };
    let id = mount.id.map_or_else(String::new, |id| format!(" with mount id {}", id.0));
    let ours = if mount.ours { "; it is the one that the record announces" } else { "" };
    format!("{} from {:?} is mounted there{id}{layers}{ours}.", mount.fs_type, mount.source)
}

fn steps(plan: &Plan, is_it: impl Fn(&refloat_node::Report) -> bool) -> Vec<Step> {
    let reports = plan.report.iter().filter(|r| is_it(r));
    reports.map(|r| Step { decision: r.decision, reason: r.reason.clone() }).collect()
}

fn volume(seen: &ActualVolume, view: &View, plan: &Plan) -> Subject {
    let out = node_volumes::volume(seen, &view.authority);
    let pod = match &seen.pod_name {
        Some((namespace, name)) => format!("pod {namespace}/{name} ({})", seen.key.pod),
        None => format!("pod {}", seen.key.pod),
    };
    let names: Vec<_> = seen.outer_names.iter().map(ToString::to_string).collect();
    let shown = if names.is_empty() { out.spec_name.clone() } else { names.join(", ") };
    let mut what = vec![format!("A volume of plugin {} in {:?} mode.", out.plugin, out.mode)];
    if out.spec_name != shown {
        what.push(format!("Its spec name, which names its folder, is {}.", out.spec_name));
    }
    what.extend(out.unique_name.as_ref().map(|n| format!("Its unique volume name is {n}.")));
    what.extend(out.path.as_ref().map(|p| format!("The pod sees it at {p}.")));
    what.extend(out.device_path.as_ref().map(|p| format!("It comes from {p}.")));
    what.extend(seen.mount.as_ref().map(mount_text));
    what.extend(out.sub_paths.iter().map(|s| {
        let mounted = if s.mounted { "mounted" } else { "not mounted" };
        format!(
            "Its subPath {:?} for container {} is {mounted} at {}.",
            s.sub_path.as_deref().unwrap_or("?"),
            s.container,
            s.path
        )
    }));
    let mut conclusion = vec![format!("{}: {}", state_word(seen.state), sentence(&seen.state_reason))];
    conclusion.push(format!("Its record is {}; its spec is known: {}.", out.record, out.reconstruction));
    if !out.lost.is_empty() {
        conclusion.push(format!("Nobody could tell {}.", out.lost.join(", ")));
    }
    conclusion.extend(seen.conflict.as_ref().map(|c| format!("Hands off: {}", sentence(c))));
    let mut next = steps(plan, |r| r.volume.as_ref() == Some(&seen.key));
    if let Some(reason) = view.authority.only_checkpoint(&seen.key.pod) {
        // The plan of a manager that knows no more than this tells of nobody's wish.
        let why = view.authority.desired().incomplete.clone().unwrap_or_default();
        let unknown = Held::Unknown { why }.to_string();
        next.iter_mut().filter(|step| step.reason == unknown).for_each(|step| reason.clone_into(&mut step.reason));
    }
    Subject {
        subject: format!("volume {shown} of {pod}"),
        what,
        wanted: wanted_text(&view.authority.wanted_volume(&seen.key)),
        evidence: [
            seen.evidence.clone(),
            told_by_providers(seen.record.as_ref().map(|record| &record.providers)),
            seen.path.as_deref().map(|path| held_at(path, view)).unwrap_or_default(),
            told_of(&seen.key.pod, view),
        ]
        .concat(),
        conclusion,
        problems: out.problems,
        next,
        attention: out.attention,
    }
}

fn device(seen: &ActualDevice, view: &View, plan: &Plan) -> Subject {
    let out = node_volumes::device(seen, &view.authority);
    let name = out.unique_name.clone().unwrap_or_else(|| out.path.clone());
    let mut what = vec![format!("A device of plugin {}, mounted once for all pods at {}.", out.plugin, out.path)];
    what.extend(out.device.as_ref().map(|d| format!("Its device node is {d}.")));
    what.extend(seen.mount.as_ref().map(mount_text));
    let mut evidence = seen.evidence.clone();
    evidence.extend(seen.users.iter().map(|pod| format!("users: pod {pod}")));
    evidence.extend(seen.other_references.iter().map(|p| format!("mount table: also mounted at {}", path_text(p).0)));
    evidence.extend(told_by_providers(seen.record.as_ref().map(|record| &record.providers)));
    evidence.extend(held_at(&seen.path, view));
    let wanted = if seen.users.is_empty() {
        "No pod is known to use it.".to_owned()
    } else {
        let of_user = |pod| format!("{pod}: {}", wanted_text(&view.authority.wanted(pod)));
        seen.users.iter().map(of_user).collect::<Vec<_>>().join(" ")
    };
    let mut conclusion = vec![format!("{}; its record is {}.", out.state, out.record)];
    conclusion.extend(seen.conflict.as_ref().map(|c| format!("Hands off: {}", sentence(c))));
    Subject {
        subject: format!("device {name}"),
        what,
        wanted,
        evidence,
        conclusion,
        problems: out.problems,
        next: steps(plan, |r| r.volume.is_none() && r.subject.contains(&name)),
        attention: out.attention,
    }
}

fn leftover(seen: &Leftover, view: &View, plan: &Plan) -> Subject {
    let out = node_volumes::leftover(seen, &view.authority);
    let mut what = vec![format!("A leftover of kind {} that belongs to no known volume.", out.kind)];
    if seen.mounted {
        what.push("Something is mounted there.".into());
    }
    let pod = seen.pod.as_ref();
    let mounts = view.table.stack(&seen.path);
    let mount = |m: &Mount<'_>| {
        let root = path_text(m.root()).0;
        format!("mount table: {} from {:?} (root {root}), id {}", m.fs_type(), m.source(), m.short_id())
    };
    let mut evidence: Vec<String> = mounts.iter().map(mount).collect();
    if mounts.is_empty() {
        evidence.push("mount table: nothing at its path".into());
    }
    evidence.push("folders and records: no volume is known there".into());
    evidence.extend(pod.map(|pod| told_of(pod, view)).unwrap_or_default());
    Subject {
        evidence,
        subject: format!("leftover {}", out.path),
        what,
        wanted: pod.map_or_else(
            || "It is in no pod's folder.".into(),
            |pod| format!("Pod {pod}: {}", wanted_text(&view.authority.wanted(pod))),
        ),
        problems: out.problems,
        next: steps(plan, |r| {
            r.volume.is_none() && (r.subject.contains(&out.path) || pod.is_some_and(|p| r.subject.contains(p.as_str())))
        }),
        attention: out.attention,
        ..Subject::default()
    }
}

/// What is wanted under this name and was not found on the node.
fn not_there_yet(target: &str, view: &View, plan: &Plan) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for pod in view.authority.desired().pods.values() {
        let name = format!("{}/{}", pod.pod.namespace, pod.pod.name);
        let Some(rest) = [pod.pod.uid.as_str(), &name].iter().find_map(|n| target.strip_prefix(n)) else { continue };
        let is_named = |volume: &str| rest.is_empty() || rest.strip_prefix('/') == Some(volume);
        for wanted in &pod.volumes {
            let mut names = wanted.outer_names.iter().map(refloat_record::OuterSpecName::as_str);
            let found = view.actual.volumes.iter().any(|v| v.key == wanted.key);
            if !found && (names.any(is_named) || is_named(wanted.key.spec_name.as_str())) {
                subjects.push(Subject {
                    subject: format!("volume {} of pod {name} ({})", wanted.key.spec_name, pod.pod.uid),
                    what: vec![format!("A volume of plugin {} that is not there yet.", wanted.key.plugin)],
                    wanted: wanted_text(&view.authority.wanted_volume(&wanted.key)),
                    next: steps(plan, |r| r.volume.as_ref() == Some(&wanted.key)),
                    ..Subject::default()
                });
            }
        }
        for waiting in pod.waiting.iter().filter(|w| is_named(&w.outer_name)) {
            subjects.push(Subject {
                subject: format!("volume {} of pod {name} ({})", waiting.outer_name, pod.pod.uid),
                what: vec!["A volume that cannot be set up now.".into()],
                wanted: wanted_text(&view.authority.wanted(&pod.pod.uid)),
                problems: vec![waiting.problem.clone()],
                attention: true,
                ..Subject::default()
            });
        }
    }
    subjects
}

/// The text as a sentence: it ends with a full stop.
fn sentence(text: &str) -> String {
    if text.ends_with('.') { text.into() } else { format!("{text}.") }
}
