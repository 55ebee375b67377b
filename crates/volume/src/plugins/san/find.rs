//! Finds the disk that a spec means.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use super::Wanted;
use crate::scsi::{self, Hold, Lun, Seen};
use crate::{Host, Problem, VolumeError};

/// How long multipathd is waited for when there is more than one path and no map. The kubelet's iSCSI plugin waits as long; its
/// plugin for Fibre Channel does not, and may mount a path over which a map comes a moment later.
const MAP_PATIENCE: Duration = Duration::from_secs(10);

/// After how much of that multipathd is asked for it.
const MAP_UNASKED: Duration = Duration::from_secs(2);

/// How long other paths are waited for when the first has come.
const PATHS_PATIENCE: Duration = Duration::from_secs(2);

/// What may be waited for in all, as a part of an operation's time: the rest is for mkfs and mount.
const PART: u32 = 3;

/// The one logical unit that is meant, if it is there.
fn the_one<W: Wanted>(wanted: &W, seen: &Seen) -> Result<Option<Lun>, VolumeError> {
    let mut luns = wanted.luns(seen);
    match luns.len() {
        0 | 1 => Ok(luns.pop()),
        _ => {
            let shown: Vec<String> =
                luns.iter().map(|lun| format!("{} ({})", lun.shown(), lun.id().unwrap_or("no id"))).collect();
            Err(VolumeError::Refused(Problem::new(
                "AmbiguousDisk",
                format!("{} is more than one disk on this node: {}", wanted.shown(), shown.join("; ")),
                W::AMBIGUOUS,
            )))
        }
    }
}

/// Finds the disk, looking for it anew if it is not there or not by all paths, and holds it. What the record knows it by has
/// to be what it is.
///
/// `before_search` is called before the node is made to look for disks: what comes then has a record that says why.
pub(super) fn find<W: Wanted>(
    host: &Host,
    wanted: &W,
    before: Option<&str>,
    before_search: impl FnOnce() -> Result<(), VolumeError>,
) -> Result<(Lun, Hold), VolumeError> {
    let patience = host.tool_deadline / PART;
    let seen = host.sys.look()?;
    let mut lun = the_one(wanted, &seen)?;
    if !lun.as_ref().is_some_and(|lun| wanted.is_whole(&seen, lun)) {
        before_search()?;
        lun = Some(search(host, wanted, lun.is_some(), patience)?);
    }
    let mut lun = lun.unwrap_or_default();
    if lun.maps.is_empty() && lun.disks.len() > 1 {
        let with_map = |seen: &Seen| the_one(wanted, seen).ok().flatten().filter(|lun| !lun.maps.is_empty());
        let patience = patience.min(MAP_PATIENCE);
        let mut found = host.sys.wait_for(patience.min(MAP_UNASKED), with_map)?;
        if found.is_err() {
            scsi::want_map(&lun, patience / 2);
            found = host.sys.wait_for(patience.saturating_sub(MAP_UNASKED), with_map)?;
        }
        if let Ok(found) = found {
            lun = found;
        } else {
            tracing::warn!(
                code = "NoMultipathMap",
                "{} has the paths {} and no multipath map, so one path is used alone: look whether multipathd runs",
                wanted.shown(),
                lun.shown()
            );
        }
    }
    same_as_before(wanted, &lun, before)?;
    let hold = host.sys.hold(&key(&lun), patience)?;
    // Somebody may just have taken it off.
    match the_one(wanted, &host.sys.look()?)? {
        Some(still) if still.id() == lun.id() && still.device().is_some() => Ok((still, hold)),
        _ => Err(not_found(wanted, "it went away again while it was looked at")),
    }
}

/// What it is held by.
pub(super) fn key(lun: &Lun) -> String {
    lun.id().map_or_else(|| lun.shown(), str::to_owned)
}

fn search<W: Wanted>(host: &Host, wanted: &W, is_there: bool, patience: Duration) -> Result<Lun, VolumeError> {
    let scans = wanted.scans(host);
    let mut complaints = vec![];
    for (number, scan) in &scans {
        tracing::info!(host = number, %scan, "looks for {}", wanted.shown());
        if let Err(error) = host.sys.rescan(*number, *scan, patience) {
            complaints.push(error.problem().message);
        }
    }
    // What there was before all others need not be waited for as long as the first.
    let first = if is_there { PATHS_PATIENCE.min(patience) } else { patience };
    let mut since = None;
    let found = |seen: &Seen| match the_one(wanted, seen) {
        Ok(None) => None,
        Ok(Some(lun)) => {
            let since = since.get_or_insert_with(std::time::Instant::now);
            (wanted.is_whole(seen, &lun) || since.elapsed() >= PATHS_PATIENCE.min(patience)).then_some(Ok(lun))
        }
        Err(error) => Some(Err(error)),
    };
    match host.sys.wait_for(first, found)? {
        Ok(found) => found,
        Err(seen) => the_one(wanted, &seen)?.ok_or_else(|| {
            let hosts: Vec<String> = scans.iter().map(|(host, scan)| format!("host{host} ({scan})")).collect();
            let mut why = match hosts.as_slice() {
                [] => W::NOWHERE.to_owned(),
                hosts => format!("{} looked for it", hosts.join(", ")),
            };
            for complaint in complaints {
                why = format!("{why}; {complaint}");
            }
            not_found(wanted, &why)
        }),
    }
}

fn not_found<W: Wanted>(wanted: &W, why: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "DiskNotFound",
        format!("{} is not on this node: {why}", wanted.shown()),
        W::NOT_FOUND,
    ))
}

/// Behind the same ports there may be another disk under the same number by now.
fn same_as_before(wanted: &impl Wanted, lun: &Lun, before: Option<&str>) -> Result<(), VolumeError> {
    let Some(before) = before else { return Ok(()) };
    let is_same = lun.disks.iter().any(|disk| disk.has_id(before))
        || lun.id().is_some_and(|id| scsi::normal_id(id) == scsi::normal_id(before));
    if is_same {
        return Ok(());
    }
    Err(VolumeError::Refused(Problem::new(
        "OtherDevice",
        format!(
            "{} was the disk {before} when it was last used, and now it is {} ({})",
            wanted.shown(),
            lun.id().unwrap_or("one without an id"),
            lun.shown()
        ),
        "It is not touched. Look whether LUNs were swapped on the array; if this is right, remove the pods that use the volume \
         and create them again.",
    )))
}

/// The node of a logical unit, opened by name only, if it is that device's.
pub(in crate::plugins) fn open(host: &Host, lun: &Lun) -> Result<(OwnedFd, PathBuf), VolumeError> {
    let missing = |node: &std::path::Path, why: &str| {
        VolumeError::Refused(Problem::new(
            "DeviceNodeMissing",
            format!("the disk {} has no device node: {} {why}", lun.shown(), node.display()),
            "Look whether /dev of this program is the node's. It is tried again.",
        ))
    };
    let (name, number) = lun.device().ok_or_else(|| missing(&host.sys.node(""), "has nothing of it"))?;
    let node = host.sys.node(name);
    let is_there = |_: &Seen| (host.sys.number_of_node(name) == Some(number)).then_some(());
    if host.sys.wait_for(host.tool_deadline / PART, is_there)?.is_err() {
        return Err(missing(&node, &format!("is not {number}")));
    }
    let fd = rustix::fs::open(&node, rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())
        .map_err(|_| missing(&node, "is not there"))?;
    Ok((fd, node))
}
