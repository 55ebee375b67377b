//! Who hangs on what: pods on volumes, volumes on devices and other sources; and what hangs on nothing.

use std::collections::BTreeMap;

use maud::{Markup, html};
use refloat_record::VolumeMode;
use refloat_volume::Problem;

use super::attention::{device_reason, reason, without_subject};
use super::text::{plural, prose, thousands};
use crate::output::node_volumes::{Device, LeftoverOut, Mount, NodeVolumes, Spec, Volume};
use crate::output::scan_table::{pod_text, size};
use crate::output::shown::shown;

/// With more volumes than these, pods are closed at first, unless they need attention.
const FEW_VOLUMES: usize = 60;
/// With more pods than these, groups of pods are closed at first.
const FEW_PODS: usize = 60;
/// A closed list is opened for what needs attention, if no more than these do.
const FEW_TROUBLES: usize = 20;

/// Volumes of pods, by the pod's name and uid.
type Pods<'a> = BTreeMap<(String, &'a str), Vec<usize>>;

/// The picture.
pub(super) struct Picture<'a> {
    seen: &'a NodeVolumes,
    /// Pods by namespace, then by name and uid. Those whose namespace nobody knows come last.
    namespaces: Vec<(Option<&'a str>, Pods<'a>)>,
    /// Anchors and names of pods by uid.
    anchors: BTreeMap<&'a str, (String, String)>,
    /// Devices by path.
    devices: BTreeMap<&'a str, usize>,
    /// Devices by unique name.
    by_name: BTreeMap<&'a str, usize>,
    troubles: usize,
}

impl<'a> Picture<'a> {
    pub(super) fn new(seen: &'a NodeVolumes) -> Self {
        let mut namespaces: BTreeMap<Option<&str>, Pods<'_>> = BTreeMap::new();
        for (i, volume) in seen.volumes.iter().enumerate() {
            let pods = namespaces.entry(volume.pod.namespace.as_deref()).or_default();
            pods.entry((pod_text(&volume.pod), &volume.pod.uid)).or_default().push(i);
        }
        let mut namespaces: Vec<_> = namespaces.into_iter().collect();
        namespaces.sort_by_key(|(namespace, _)| namespace.is_none());
        let pods = namespaces.iter().flat_map(|(_, pods)| pods.keys()).enumerate();
        let anchors = pods.map(|(i, (name, uid))| (*uid, (format!("p{i}"), name.clone()))).collect();
        let devices = seen.devices.iter().enumerate().map(|(i, d)| (d.path.as_str(), i)).collect();
        let by_name =
            seen.devices.iter().enumerate().filter_map(|(i, d)| Some((d.unique_name.as_deref()?, i))).collect();
        let troubles = seen.volumes.iter().filter(|v| v.attention).count();
        Self { seen, namespaces, anchors, devices, by_name, troubles }
    }

    /// Anchor and name of a volume.
    pub(super) fn volume(&self, i: usize) -> (String, String) {
        let volume = &self.seen.volumes[i];
        let name = volume.volume.as_deref().unwrap_or(&volume.spec_name);
        (format!("v{i}"), format!("{} of {}", shown(name), shown(&pod_text(&volume.pod))))
    }

    /// Anchor and name of a device.
    pub(super) fn device(&self, i: usize) -> (String, String) {
        (format!("d{i}"), device_name(&self.seen.devices[i]))
    }

    /// Anchor and name of a leftover.
    pub(super) fn leftover(&self, i: usize) -> (String, String) {
        (format!("l{i}"), shown(&self.seen.leftovers[i].path).into_owned())
    }

    /// Pods, each with its volumes and what those hang on.
    pub(super) fn pods(&self) -> Markup {
        let number: usize = self.namespaces.iter().map(|(_, pods)| pods.len()).sum();
        html! {
            section #pods aria-labelledby="pods-title" {
                h2 #pods-title { "Pods and what hangs on them" }
                @if number == 0 { p.soft { "No pod has a volume here." } }
                @for (namespace, pods) in &self.namespaces {
                    @if self.namespaces.len() == 1 && number <= FEW_PODS {
                        @for ((name, uid), volumes) in pods { (self.pod(name, uid, volumes)) }
                    } @else {
                        details.namespace data-group open[number <= FEW_PODS] {
                            summary {
                                @match namespace {
                                    Some(name) => { "namespace " bdi.title { (shown(name)) } }
                                    None => { span.title { "pods whose name nobody knows" } }
                                }
                                span.number { (plural(pods.len(), "pod")) }
                                (troubles(pods.values().flatten().filter(|i| self.seen.volumes[**i].attention).count()))
                            }
                            @for ((name, uid), volumes) in pods { (self.pod(name, uid, volumes)) }
                        }
                    }
                }
            }
        }
    }

    fn pod(&self, name: &str, uid: &str, volumes: &[usize]) -> Markup {
        let bad = volumes.iter().filter(|i| self.seen.volumes[**i].attention).count();
        let open = self.seen.volumes.len() <= FEW_VOLUMES || bad > 0 && self.troubles <= FEW_TROUBLES;
        html! {
            details.pod data-group id=[self.anchors.get(uid).map(|(anchor, _)| anchor)] open[open] {
                summary {
                    span.kind { "pod" }
                    bdi.title { (shown(name)) }
                    @if name != uid { code.soft { (shown(uid)) } }
                    span.number { (plural(volumes.len(), "volume")) }
                    (troubles(bad))
                }
                ul.tree { @for i in volumes { (self.volume_row(*i)) } }
            }
        }
    }

    fn volume_row(&self, i: usize) -> Markup {
        let v = &self.seen.volumes[i];
        let name = v.volume.as_deref().unwrap_or(&v.spec_name);
        html! {
            li data-item data-bad[v.attention] id=(format!("v{i}")) {
                div.box.bad[v.attention] {
                    p { bdi.title { (shown(name)) } (badge(v.state)) @if v.wanted == "No" { (badge("Not wanted")) } }
                    p.soft {
                        (shown(&v.plugin)) " · record " (v.record) " · spec " (v.reconstruction)
                        @if v.mode == VolumeMode::Block { " · raw block device" }
                        @if let Some(usage) = &v.usage { " · " (size(usage.used_bytes)) " of " (size(usage.total_bytes)) " used" }
                    }
                    @for s in &v.sub_paths {
                        p.soft {
                            "subPath " @if let Some(path) = &s.sub_path { code { (shown(path)) } " " }
                            "for container " bdi { (shown(&s.container)) }
                            @if !s.mounted { ": not mounted" }
                        }
                    }
                    (problems(&v.problems, reason(v)))
                    (details(v))
                }
                span.arrow aria-hidden="true" {}
                (self.source(v))
            }
        }
    }

    /// What a volume hangs on.
    fn source(&self, v: &Volume) -> Markup {
        if let Some(device) = v.device_path.as_deref() {
            // A block volume comes from its device's node, and its device is at its map folder.
            let by_name = || self.by_name.get(v.unique_name.as_deref()?);
            let known = self.devices.get(device).or_else(by_name).copied();
            return known.map_or_else(
                || html! { div.box.source { p { "device " code { (shown(device)) } } } },
                |i| {
                    let d = &self.seen.devices[i];
                    let others = d.users.iter().filter(|user| **user != v.pod.uid).count();
                    html! {
                        div.box.source {
                            p { "device " a.title href={ "#d" (i) } { (device_name(d)) } }
                            @if let Some(node) = &d.device { p.soft { code { (shown(node)) } } }
                            @if others > 0 { p.soft { "shared with " (plural(others, "other pod")) } }
                        }
                    }
                },
            );
        }
        html! {
            div.box.source {
                @if let Some(mount) = &v.mount { (mount_source(mount)) }
                @else if let Some(path) = host_path(v) { p { "folder of the host" } p.soft { code { (shown(&path)) } } }
                @else if v.state == "NotMounted" { p { "nothing: it is not set up" } }
                @else { p { "its folder on the node's own disk" } }
            }
        }
    }

    /// Devices, each with the pods that use it.
    pub(super) fn devices(&self) -> Markup {
        html! {
            section #devices aria-labelledby="devices-title" {
                h2 #devices-title { "Devices, mounted once for all pods" }
                @if self.seen.devices.is_empty() { p.soft { "None." } }
                @else {
                    (many(self.seen.devices.len(), "devices", html! {
                        ul.plain { @for (i, d) in self.seen.devices.iter().enumerate() { (self.device_row(i, d)) } }
                    }))
                }
            }
        }
    }

    fn device_row(&self, i: usize, d: &Device) -> Markup {
        html! {
            li.alone data-item data-bad[d.attention] id=(format!("d{i}")) {
                div.box.bad[d.attention] {
                    p { bdi.title { (device_name(d)) } (badge(d.state)) }
                    p.soft { (shown(&d.plugin)) " · record " (d.record) }
                    p.soft { "at " code { (shown(&d.path)) } }
                    @if d.users.is_empty() { p.soft { "No pod is known to use it." } }
                    @else {
                        p.soft {
                            "Used by "
                            @for (n, user) in d.users.iter().enumerate() {
                                @if n > 0 { ", " }
                                @match self.anchors.get(user.as_str()) {
                                    Some((anchor, name)) => { a href={ "#" (anchor) } { (shown(name)) } }
                                    None => { bdi { (shown(user)) } }
                                }
                            }
                            "."
                        }
                    }
                    (problems(&d.problems, device_reason(d)))
                }
                span.arrow aria-hidden="true" {}
                div.box.source {
                    @if let Some(node) = &d.device { p { code { (shown(node)) } } }
                    @if let Some(mount) = &d.mount { (mount_source(mount)) }
                    @else if d.state == "Mounted" { p { "a raw block device, bound for each pod" } }
                    @else { p.soft { "nothing is mounted" } }
                }
            }
        }
    }

    /// What belongs to no volume.
    pub(super) fn leftovers(&self) -> Markup {
        let row = |i: usize, l: &LeftoverOut| {
            html! {
                li.alone data-item data-bad[l.attention] id=(format!("l{i}")) {
                    div.box.bad[l.attention] {
                        p { span.title { (leftover_text(l.kind)) } (badge(l.kind)) }
                        p.soft { code { (shown(&l.path)) } }
                        (problems(&l.problems, None))
                    }
                }
            }
        };
        html! {
            section #leftovers aria-labelledby="leftovers-title" {
                h2 #leftovers-title { "Leftovers: what belongs to no volume" }
                @if self.seen.leftovers.is_empty() { p.soft { "None." } }
                @else {
                    (many(self.seen.leftovers.len(), "leftovers", html! {
                        ul.plain { @for (i, l) in self.seen.leftovers.iter().enumerate() { (row(i, l)) } }
                    }))
                }
            }
        }
    }
}

/// A list that is closed at first if it is long.
fn many(number: usize, what: &str, list: Markup) -> Markup {
    if number <= FEW_VOLUMES {
        return list;
    }
    html! { details.namespace data-group { summary { span.title { (thousands(number)) " " (what) } } (list) } }
}

fn troubles(number: usize) -> Markup {
    html! { @if number > 0 { span.trouble { span aria-hidden="true" { "! " } (thousands(number)) @if number == 1 { " needs attention" } @else { " need attention" } } } }
}

/// A word that says how things stand, told by text and by colour.
fn badge(word: &str) -> Markup {
    let class = match word {
        "Mounted" => "good",
        "Uncertain" | "Not wanted" | "StaleMount" | "PodDirWithData" => "bad",
        "Unknown" => "odd",
        _ => "off",
    };
    html! { " " span class={ "badge " (class) } { (word) } }
}

fn problems(problems: &[Problem], reason: Option<(&str, &str)>) -> Markup {
    html! {
        @if !problems.is_empty() {
            ul.problems {
                @for p in problems { li {
                    code { (p.code) } ": " (prose(without_subject(&p.message)))
                    @if !p.hint.is_empty() { span.hint { (prose(&p.hint)) } }
                } }
            }
        } @else if let Some((title, hint)) = reason {
            ul.problems { li { (title) span.hint { (prose(hint)) } } }
        }
    }
}

/// The rest of what is known of a volume.
fn details(v: &Volume) -> Markup {
    html! {
        details.more {
            summary { "more" }
            dl {
                @if let Some(path) = &v.path { dt { "path" } dd { code { (shown(path)) } } }
                @if let Some(name) = &v.unique_name { dt { "unique name" } dd { code { (shown(name)) } } }
                @if v.volume.as_ref().is_some_and(|name| *name != v.spec_name) { dt { "spec name" } dd { (shown(&v.spec_name)) } }
                dt { "wanted" } dd { (v.wanted) @if let Some(by) = &v.wanted_by { ", says " (shown(by)) } }
                @if let Some(m) = &v.mount {
                    dt { "mount" }
                    dd {
                        @if let Some(id) = m.id { "id " (id) ", " }
                        code { (shown(&m.options)) }
                        @if m.stack > 1 { ", " (m.stack) " over one another" }
                    }
                }
                @if !v.lost.is_empty() { dt { "nobody could tell" } dd { (shown(&v.lost.join(", "))) } }
            }
        }
    }
}

/// What a mount shows.
fn mount_source(m: &Mount) -> Markup {
    html! {
        @if m.fs_type == "tmpfs" && m.root == "/" { p { "memory (tmpfs)" } }
        @else if m.root == "/" { p { (shown(&m.fs_type)) " from " code { (shown(&m.source)) } } }
        @else {
            p { "folder " code { (shown(&m.root)) } }
            p.soft { "of " (shown(&m.fs_type)) " on " code { (shown(&m.source)) } }
        }
        @if m.fs_type == "tmpfs" && m.root == "/" && !matches!(m.source.as_str(), "tmpfs" | "none" | "") {
            p.soft { "source " code { (shown(&m.source)) } }
        }
    }
}

/// A hostPath volume's folder.
fn host_path(v: &Volume) -> Option<String> {
    let Some(Spec::Volume(spec)) = &v.spec else { return None };
    let value = serde_json::to_value(spec).ok()?;
    Some(value.get("hostPath")?.get("path")?.as_str()?.to_owned())
}

fn device_name(d: &Device) -> String {
    shown(d.unique_name.as_deref().unwrap_or(&d.path)).into_owned()
}

fn leftover_text(kind: &str) -> &'static str {
    match kind {
        "EmptyPodDir" => "the folder of a pod that has nothing in it",
        "PodDirWithData" => "files in a pod's folder that are no known volume's",
        "SubPath" => "a subPath without its volume",
        "StaleMount" => "a mount that belongs to no volume",
        "LoopDevice" => "a loop device without a record",
        "Socket" => "a socket that nobody listens on",
        _ => "something that is not understood",
    }
}
