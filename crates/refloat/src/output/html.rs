//! `scan -o html`: one page that stands alone. It loads nothing, works without scripts, and shows what needs attention
//! first, then who hangs on what.
//!
//! Every name on it comes from the node and is hostile input: `maud` escapes all of it, [`text`] shows what cannot be
//! seen, and the page's own policy lets no script but ours run and nothing be loaded. The same scan gives the same page.

mod attention;
mod picture;
mod text;

use std::io::Write;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::node_volumes::NodeVolumes;
use super::shown::shown;
use crate::exit::Failure;
use picture::Picture;
use text::{count, thousands};

/// The page's style sheet.
const STYLE: &str = include_str!("html/style.css");
/// The page's script: it filters what the page shows. Without it the page has no filter.
const SCRIPT: &str = include_str!("html/filter.js");
/// What the page may do: use this style sheet and this script, by their hashes, and load nothing.
const POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; \
                      style-src 'sha256-cm/aQCH4huxRkP7HHXP+YYLHAVgcvL7bjUj9Hxr6hps='; \
                      script-src 'sha256-jzC/Jh7pQnPOWwKdbJQOEXp0+h20SM2M81oleSOXtzI='";

/// Prints the page.
pub(crate) fn page(out: &mut impl Write, seen: &NodeVolumes) -> Result<(), Failure> {
    let picture = Picture::new(seen);
    let title = format!("Volumes under {}", shown(&seen.node.root_dir));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content={ "Refloat " (env!("CARGO_PKG_VERSION")) };
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#attention" { "Skip to what needs attention" }
                (head(seen))
                main {
                    (attention::section(seen, &picture))
                    form #filter hidden role="search" {
                        label { "Filter " input type="search" autocomplete="off" placeholder="pod, volume, plugin, path"; }
                        label { input type="checkbox"; " only what needs attention" }
                        output aria-live="polite" {}
                    }
                    (picture.pods())
                    (picture.devices())
                    (picture.leftovers())
                }
                footer {
                    p {
                        "A volume hangs on the device, folder or file system that the arrow leads to. "
                        code { "refloat explain TARGET" }
                        " tells all evidence of one of them."
                    }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    out.write_all(page.into_string().as_bytes())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// What was looked at, and how much of what is there.
fn head(seen: &NodeVolumes) -> Markup {
    let node = &seen.node;
    let states = [("Mounted", "good"), ("Uncertain", "bad"), ("NotMounted", "off"), ("Unknown", "odd")];
    let states = states.map(|(word, class)| (word, class, seen.summary.state.get(word).copied().unwrap_or(0)));
    html! {
        header {
            h1 { "Volumes of a node" }
            dl.facts {
                div { dt { "Node root" } dd { code { (shown(&node.root_dir)) } } }
                @for (name, value) in [("Records", &node.state_dir), ("Boot", &node.boot_id), ("Mount table", &node.mountinfo)] {
                    @if let Some(value) = value { div { dt { (name) } dd { code { (shown(value)) } } } }
                }
                div { dt { "Scanned" } dd { time datetime=(node.scanned_at) { (to_second(&node.scanned_at)) } } }
            }
            nav aria-label="Parts of this page" {
                ul.tiles {
                    li { a href="#attention" { strong { (thousands(attention::number(seen))) } " for your attention" } }
                    li { a href="#pods" { strong { (thousands(seen.summary.volumes)) } " volumes of pods" } }
                    li { a href="#devices" { strong { (thousands(seen.summary.devices)) } " mounted devices" } }
                    li { a href="#leftovers" { strong { (thousands(seen.summary.leftovers)) } " leftovers" } }
                }
            }
            @if seen.summary.volumes > 0 { (bar(&states, seen.summary.volumes)) }
        }
    }
}

/// A time stamp as a person reads it: to the second, in UTC.
fn to_second(stamp: &str) -> String {
    let parsed = stamp.parse::<jiff::Timestamp>();
    parsed.map_or_else(|_| shown(stamp).into_owned(), |t| t.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

/// The volumes by state, as a bar with its legend.
fn bar(states: &[(&'static str, &'static str, usize)], total: usize) -> Markup {
    let there = || states.iter().filter(|(.., number)| *number > 0);
    let label = there().map(|(word, _, number)| format!("{number} {word}")).collect::<Vec<_>>().join(", ");
    let mut before = 0;
    let parts = there().map(|(_, class, number)| {
        let x = before;
        before += number;
        (class, x, number)
    });
    html! {
        figure.bar {
            svg viewBox=(format!("0 0 {total} 1")) preserveAspectRatio="none" role="img" aria-label=(label) {
                @for (class, x, number) in parts { rect class=(class) x=(x) y="0" width=(number) height="1" {} }
            }
            figcaption {
                @for (word, class, number) in there() { span.key { span class={ "dot " (class) } {} (count(*number, word)) } }
            }
        }
    }
}

#[cfg(test)]
mod tests;
