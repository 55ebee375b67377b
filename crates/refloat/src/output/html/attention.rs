//! What needs attention, rarest first: problems by code, and what has no problem but should not be as it is.

use std::collections::BTreeMap;

use maud::{Markup, html};
use refloat_volume::Problem;

use super::picture::Picture;
use super::text::{count, prose, thousands};
use crate::output::node_volumes::{Device, NodeVolumes, Volume};

/// So many of a group are listed; the others are marked in the picture.
const LISTED: usize = 100;
/// A group with more than these is closed at first.
const OPEN: usize = 8;

/// All that has the same reason and the same hint.
#[derive(Debug, Default)]
struct Group {
    hint: String,
    /// Whether the title is a problem's code.
    code: bool,
    items: Vec<Item>,
}

/// One thing that needs attention.
#[derive(Debug)]
struct Item {
    /// Where it is on the page; none for the node itself.
    anchor: Option<String>,
    name: String,
    message: String,
}

/// How many volumes, devices and leftovers need attention; the node itself counts with each of its problems.
pub(super) fn number(seen: &NodeVolumes) -> usize {
    seen.problems.len()
        + seen.volumes.iter().filter(|v| v.attention).count()
        + seen.devices.iter().filter(|d| d.attention).count()
        + seen.leftovers.iter().filter(|l| l.attention).count()
}

/// Why a volume that has no problem of its own needs attention, and what to do.
pub(super) fn reason(volume: &Volume) -> Option<(&'static str, &'static str)> {
    Some(match volume {
        Volume { problems, .. } if !problems.is_empty() => return None,
        Volume { wanted: "No", .. } => {
            ("Wanted by no pod", "a manager that runs undoes it; `refloat explain` tells what keeps it")
        }
        Volume { state: "Uncertain", .. } => {
            ("Half done", "a manager that runs finishes or undoes it; `refloat explain` tells what is missing")
        }
        Volume { wanted: "Yes", state: "NotMounted" | "Unknown", .. } => {
            ("Wanted, and not there", "a manager that runs sets it up; its log tells why it could not")
        }
        Volume { record: "Damaged" | "Newer", .. } => {
            ("Its record cannot be read", "`refloat record verify` tells what is wrong with the file")
        }
        Volume { reconstruction: "Failed", .. } => ("Not understood", "`refloat explain` shows all evidence"),
        _ => return None,
    })
}

/// Why a device that has no problem of its own needs attention, and what to do.
pub(super) fn device_reason(device: &Device) -> Option<(&'static str, &'static str)> {
    if !device.attention || !device.problems.is_empty() {
        return None;
    }
    Some(match device {
        Device { state: "Uncertain", .. } => {
            ("Half done", "a manager that runs finishes or undoes it; `refloat explain` tells what is missing")
        }
        Device { record: "Damaged" | "Newer", .. } => {
            ("Its record cannot be read", "`refloat record verify` tells what is wrong with the file")
        }
        _ => ("Used by no pod", "a manager that runs undoes it; `refloat explain` tells what keeps it"),
    })
}

/// The part of the page.
pub(super) fn section(seen: &NodeVolumes, picture: &Picture<'_>) -> Markup {
    let groups = groups(seen, picture);
    html! {
        section #attention aria-labelledby="attention-title" {
            h2 #attention-title { "Needs attention" }
            @if groups.is_empty() { p.well { span.mark aria-hidden="true" { "✓" } " Nothing is wrong." } }
            div.groups { @for ((title, _), group) in &groups { (shown_group(title, group)) } }
        }
    }
}

fn shown_group(title: &str, group: &Group) -> Markup {
    let more = group.items.len().saturating_sub(LISTED);
    html! {
        details.group open[group.items.len() <= OPEN] {
            summary {
                span.mark aria-hidden="true" { "!" }
                @if group.code { code.title { (title) } } @else { strong.title { (title) } }
                span.number { (thousands(group.items.len())) }
                @if !group.hint.is_empty() { span.hint { (prose(&group.hint)) } }
            }
            ul.plain {
                @for item in group.items.iter().take(LISTED) {
                    li {
                        @match &item.anchor {
                            Some(anchor) => { a href={ "#" (anchor) } { (item.name) } }
                            None => { strong { (item.name) } }
                        }
                        @if !item.message.is_empty() { ": " (prose(&item.message)) }
                    }
                }
                @if more > 0 { li.soft { "and " (count(more, "more, marked in the picture below")) } }
            }
        }
    }
}

/// A message without the volume that it begins with, where the page names that already.
pub(super) fn without_subject(message: &str) -> &str {
    let rest = message.strip_prefix("volume \"").and_then(|rest| rest.split_once("\" of pod "));
    rest.and_then(|(_, rest)| rest.split_once(": ")).map_or(message, |(_, rest)| rest)
}

/// The groups by title and hint, rarest first.
fn groups(seen: &NodeVolumes, picture: &Picture<'_>) -> Vec<((String, String), Group)> {
    let mut groups = BTreeMap::<(String, String), Group>::new();
    let mut add = |title: &str, code: bool, hint: &str, item: Item| {
        let group = groups.entry((title.to_owned(), hint.to_owned())).or_default();
        group.code = code;
        hint.clone_into(&mut group.hint);
        group.items.push(item);
    };
    for problem in &seen.problems {
        let item = Item { anchor: None, name: "the node".into(), message: problem.message.clone() };
        add(problem.code, true, &problem.hint, item);
    }
    let lists: [Vec<Found<'_>>; 3] = [
        seen.volumes.iter().enumerate().map(|(i, v)| (picture.volume(i), v.problems.as_slice(), reason(v))).collect(),
        seen.devices
            .iter()
            .enumerate()
            .map(|(i, d)| (picture.device(i), d.problems.as_slice(), device_reason(d)))
            .collect(),
        seen.leftovers
            .iter()
            .enumerate()
            .map(|(i, l)| {
                let reason = (l.attention && l.problems.is_empty())
                    .then_some(("Belongs to no volume", "`refloat explain` tells what it is"));
                (picture.leftover(i), l.problems.as_slice(), reason)
            })
            .collect(),
    ];
    for ((anchor, name), problems, reason) in lists.into_iter().flatten() {
        let item = |message: &str| Item { anchor: Some(anchor.clone()), name: name.clone(), message: message.into() };
        for problem in problems {
            add(problem.code, true, &problem.hint, item(without_subject(&problem.message)));
        }
        if let Some((title, hint)) = reason {
            add(title, false, hint, item(""));
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    // What is rare is what a person looks for; what everything has comes last.
    groups.sort_by_key(|(_, group)| group.items.len());
    groups
}

/// Where a thing is on the page and its name; its problems; what else is wrong with it.
type Found<'a> = ((String, String), &'a [Problem], Option<(&'static str, &'static str)>);
