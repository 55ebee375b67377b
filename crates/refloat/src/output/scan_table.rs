//! The tables of `scan`.

use std::io::Write;

use super::node_volumes::{NodeVolumes, Pod};
use super::table::{Look, print, printable};
use crate::exit::Failure;
use crate::sources::SourceOut;
use crate::usage::Usage;

/// Prints what was seen as tables, with the problems below.
pub(crate) fn scan(out: &mut impl Write, look: Look, seen: &NodeVolumes, wide: bool) -> Result<(), Failure> {
    let nothing = seen.volumes.is_empty() && seen.devices.is_empty() && seen.leftovers.is_empty();
    if nothing {
        writeln!(out, "No volumes, devices or leftovers under {}.", printable(&seen.node.root_dir))?;
    }
    if !seen.volumes.is_empty() {
        let mut header = vec!["POD", "VOLUME", "PLUGIN", "STATE", "RECORD", "RECONSTRUCTION", "WANTED"];
        let used = seen.volumes.iter().any(|v| v.usage.is_some());
        if used {
            header.extend(["USED", "SIZE"]);
        }
        if wide {
            header.extend(["FSTYPE", "SOURCE", "STACK", "WANTED-BY", "UID", "PATH"]);
        }
        let rows = seen.volumes.iter().map(|v| {
            let state = if v.problems.is_empty() { v.state.into() } else { format!("{} *", v.state) };
            let mut row = vec![
                pod_text(&v.pod),
                v.volume.clone().unwrap_or_else(|| v.spec_name.clone()),
                short_plugin(&v.plugin),
                state,
                v.record.into(),
                v.reconstruction.into(),
                v.wanted.into(),
            ];
            if used {
                let of = |bytes: fn(&Usage) -> u64| v.usage.as_ref().map_or_else(dash, |usage| size(bytes(usage)));
                row.extend([of(|usage| usage.used_bytes), of(|usage| usage.total_bytes)]);
            }
            if wide {
                let mount = v.mount.as_ref();
                row.extend([
                    mount.map_or_else(dash, |m| m.fs_type.clone()),
                    mount.map_or_else(dash, |m| m.source.clone()),
                    mount.map_or_else(dash, |m| m.stack.to_string()),
                    v.wanted_by.clone().unwrap_or_else(dash),
                    v.pod.uid.clone(),
                    v.path.clone().unwrap_or_else(dash),
                ]);
            }
            row
        });
        print(out, look, &header, &rows.collect::<Vec<_>>())?;
    }
    if !seen.devices.is_empty() {
        writeln!(out)?;
        let mut header = vec!["DEVICE", "NODE", "STATE", "RECORD", "USERS"];
        if wide {
            header.extend(["FSTYPE", "STACK", "PATH"]);
        }
        let rows = seen.devices.iter().map(|d| {
            let mut row = vec![
                d.unique_name.clone().unwrap_or_else(dash),
                d.device.clone().unwrap_or_else(dash),
                d.state.into(),
                d.record.into(),
                d.users.len().to_string(),
            ];
            if wide {
                row.extend([
                    d.mount.as_ref().map_or_else(dash, |m| m.fs_type.clone()),
                    d.mount.as_ref().map_or_else(dash, |m| m.stack.to_string()),
                    d.path.clone(),
                ]);
            }
            row
        });
        print(out, look, &header, &rows.collect::<Vec<_>>())?;
    }
    if !seen.leftovers.is_empty() {
        writeln!(out)?;
        let rows: Vec<_> = seen.leftovers.iter().map(|l| vec![l.kind.into(), l.path.clone()]).collect();
        print(out, look, &["LEFTOVER", "PATH"], &rows)?;
    }
    if !seen.sources.is_empty() {
        let asked: Vec<_> = seen.sources.iter().map(SourceOut::text).collect();
        writeln!(out, "\nAsked which pods are here: {}", printable(&asked.join(", ")))?;
    }
    problems(out, look, seen)
}

/// Every problem once, with what to do.
fn problems(out: &mut impl Write, look: Look, seen: &NodeVolumes) -> Result<(), Failure> {
    let volumes = seen.volumes.iter().map(|v| (volume_text(&v.pod, v.volume.as_ref(), &v.spec_name), &v.problems));
    let devices = seen.devices.iter().map(|d| (d.unique_name.clone().unwrap_or_else(|| d.path.clone()), &d.problems));
    let leftovers = seen.leftovers.iter().map(|l| (l.path.clone(), &l.problems));
    let node = std::iter::once(("node".to_owned(), &seen.problems));
    let bold = anstyle::Style::new().bold();
    for (subject, problems) in node.chain(volumes).chain(devices).chain(leftovers) {
        for problem in problems {
            let code = look.paint(bold, problem.code);
            writeln!(out, "\n* {}: {code}: {}", printable(&subject), printable(&problem.message))?;
            if !problem.hint.is_empty() {
                writeln!(out, "  {}", printable(&problem.hint))?;
            }
        }
    }
    Ok(out.flush()?)
}

/// Bytes in the largest unit of which there is at least one.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut whole, mut rest, mut unit) = (bytes, 0, "");
    for next in units {
        if whole < 1024 {
            break;
        }
        (whole, rest, unit) = (whole / 1024, whole % 1024, next);
    }
    match rest * 10 / 1024 {
        0 => format!("{whole}{unit}"),
        tenths => format!("{whole}.{tenths}{unit}"),
    }
}

fn dash() -> String {
    "-".into()
}

/// A pod as a person names it.
pub(crate) fn pod_text(pod: &Pod) -> String {
    match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        _ => pod.uid.clone(),
    }
}

fn volume_text(pod: &Pod, volume: Option<&String>, spec_name: &str) -> String {
    format!("{} {}", pod_text(pod), volume.map_or(spec_name, String::as_str))
}

/// `kubernetes.io/empty-dir` as `empty-dir`; other vendors in full.
fn short_plugin(plugin: &str) -> String {
    plugin.strip_prefix("kubernetes.io/").unwrap_or(plugin).to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_short() {
        for (bytes, text) in
            [(0, "0"), (1023, "1023"), (1024, "1Ki"), (1536, "1.5Ki"), (u64::MAX, "15.9Ei"), (5 << 30, "5Gi")]
        {
            assert_eq!(super::size(bytes), text);
        }
    }
}
