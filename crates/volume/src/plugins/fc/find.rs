//! Finds the disk that a spec means, and mounts it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::FCVolumeSource;
use refloat_record::Verbatim;

use super::{Info, Wanted, undo};
use crate::disk::{self, Disk, Words};
use crate::scsi::{self, Hold, Lun, Scan, Seen};
use crate::tear_down::{origin_of, other_mount};
use crate::{Host, MountDevice, Problem, VolumeError};

/// How long multipathd is waited for when there is more than one path and no map. The kubelet's iSCSI plugin waits as long; its
/// plugin for Fibre Channel does not, and may mount a path over which a map comes a moment later.
const MAP_PATIENCE: Duration = Duration::from_secs(10);

/// How long other paths are waited for when the first has come.
const PATHS_PATIENCE: Duration = Duration::from_secs(2);

/// What may be waited for in all, as a part of an operation's time: the rest is for mkfs and mount.
const PART: u32 = 3;

impl Wanted {
    /// What its folder is called.
    pub(super) fn path_name(&self) -> String {
        match self {
            Self::Targets { wwns, lun } => format!("{}-lun-{lun}", wwns.join("-")),
            Self::Wwids(wwids) => wwids.join("-"),
        }
    }

    /// For messages.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Targets { wwns, lun } => format!("LUN {lun} behind {}", wwns.join(", ")),
            Self::Wwids(wwids) => format!("the disk {}", wwids.join(", ")),
        }
    }

    /// Whether this disk is one that is meant.
    pub(super) fn fits(&self, disk: &scsi::Disk) -> bool {
        match self {
            Self::Targets { wwns, lun } => {
                let behind = |wwn: &String| disk.target_port.as_deref() == Some(&scsi::normal_wwn(wwn));
                disk.address.has_lun(*lun) && wwns.iter().any(behind)
            }
            Self::Wwids(wwids) => wwids.iter().any(|wwid| disk.has_id(wwid)),
        }
    }

    /// The logical units that are meant. More than one: the spec's words do not agree with what the storage shows.
    pub(super) fn luns(&self, seen: &Seen) -> Vec<Lun> {
        let mut luns: Vec<Lun> = vec![];
        for disk in seen.disks.iter().filter(|disk| self.fits(disk)) {
            if !luns.iter().any(|lun| lun.disks.iter().any(|its| its.name == disk.name)) {
                luns.push(seen.lun_of(std::slice::from_ref(disk)));
            }
        }
        if let (Self::Wwids(wwids), []) = (self, luns.as_slice()) {
            // A map that has no path at the moment.
            luns.extend(wwids.iter().map(|wwid| seen.lun(wwid)).find(|lun| !lun.is_gone()));
        }
        luns
    }

    /// Whether nothing more can come: there is a map, or each port that is named has its path.
    fn is_whole(&self, lun: &Lun) -> bool {
        if !lun.maps.is_empty() {
            return true;
        }
        match self {
            Self::Targets { wwns, .. } => wwns
                .iter()
                .all(|wwn| lun.disks.iter().any(|disk| disk.target_port.as_deref() == Some(&scsi::normal_wwn(wwn)))),
            Self::Wwids(_) => !lun.disks.is_empty(),
        }
    }

    /// What the SCSI hosts are told to look for.
    fn scans(&self, host: &Host) -> Vec<(u32, Scan)> {
        let mut scans = vec![];
        if let Self::Targets { wwns, lun } = self {
            for port in wwns.iter().flat_map(|wwn| host.sys.remote_ports(wwn)) {
                if let Some(target) = port.target {
                    let lun = u64::try_from(*lun).ok();
                    scans.push((port.host, Scan::Target { channel: port.channel, target, lun }));
                }
            }
        }
        if scans.is_empty() {
            let mut hosts = host.sys.fc_hosts();
            if hosts.is_empty() {
                hosts = host.sys.scsi_hosts();
            }
            scans.extend(hosts.into_iter().map(|host| (host, Scan::All)));
        }
        scans
    }
}

/// The one logical unit that is meant, if it is there.
fn the_one(wanted: &Wanted, seen: &Seen) -> Result<Option<Lun>, VolumeError> {
    let mut luns = wanted.luns(seen);
    match luns.len() {
        0 | 1 => Ok(luns.pop()),
        _ => {
            let shown: Vec<String> =
                luns.iter().map(|lun| format!("{} ({})", lun.shown(), lun.id().unwrap_or("no id"))).collect();
            Err(VolumeError::Refused(Problem::new(
                "AmbiguousDisk",
                format!("{} is more than one disk on this node: {}", wanted.shown(), shown.join("; ")),
                "Nothing is used. Correct targetWWNs and lun, or name the disk by its id in wwids.",
            )))
        }
    }
}

/// Finds the disk, looking for it anew if it is not there or not by all paths, and holds it. What the record knows it by has
/// to be what it is.
///
/// `before_search` is called before the node is made to look for disks: what comes then has a record that says why.
pub(super) fn find(
    host: &Host,
    wanted: &Wanted,
    before: Option<&str>,
    before_search: impl FnOnce() -> Result<(), VolumeError>,
) -> Result<(Lun, Hold), VolumeError> {
    let patience = host.tool_deadline / PART;
    let mut lun = the_one(wanted, &host.sys.look()?)?;
    if !lun.as_ref().is_some_and(|lun| wanted.is_whole(lun)) {
        before_search()?;
        lun = Some(search(host, wanted, lun.is_some(), patience)?);
    }
    let mut lun = lun.unwrap_or_default();
    if lun.maps.is_empty() && lun.disks.len() > 1 {
        let with_map = |seen: &Seen| the_one(wanted, seen).ok().flatten().filter(|lun| !lun.maps.is_empty());
        if let Ok(found) = host.sys.wait_for(patience.min(MAP_PATIENCE), with_map)? {
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

fn search(host: &Host, wanted: &Wanted, is_there: bool, patience: Duration) -> Result<Lun, VolumeError> {
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
            (wanted.is_whole(&lun) || since.elapsed() >= PATHS_PATIENCE.min(patience)).then_some(Ok(lun))
        }
        Err(error) => Some(Err(error)),
    };
    match host.sys.wait_for(first, found)? {
        Ok(found) => found,
        Err(seen) => the_one(wanted, &seen)?.ok_or_else(|| {
            let hosts: Vec<String> = scans.iter().map(|(host, scan)| format!("host{host} ({scan})")).collect();
            let mut why = match hosts.as_slice() {
                [] => "this node has no SCSI host".to_owned(),
                hosts => format!("{} looked for it", hosts.join(", ")),
            };
            for complaint in complaints {
                why = format!("{why}; {complaint}");
            }
            not_found(wanted, &why)
        }),
    }
}

fn not_found(wanted: &Wanted, why: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "DiskNotFound",
        format!("{} is not on this node: {why}", wanted.shown()),
        "Look whether the array shows it to this node (zoning, LUN masking), and into the kernel log. It is tried again.",
    ))
}

/// Behind the same ports there may be another disk under the same number by now.
fn same_as_before(wanted: &Wanted, lun: &Lun, before: Option<&str>) -> Result<(), VolumeError> {
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
pub(super) fn open(host: &Host, lun: &Lun) -> Result<(OwnedFd, PathBuf), VolumeError> {
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

/// Finds the disk for a MountDevice. Its record says what is looked for before that can bring anything, and then what was
/// found.
pub(super) fn announced(
    step: &MountDevice<'_>,
    wanted: &Wanted,
    before: &Info,
) -> Result<(Info, Lun, Hold), VolumeError> {
    let searching = || {
        let info = if before.id.is_some() { before.clone() } else { Info::of(wanted, &Lun::default()) };
        step.announce(None, None, Some(info.verbatim())).map(drop)
    };
    let (lun, hold) = find(step.host, wanted, before.id.as_deref(), searching)?;
    let mut info = Info::of(wanted, &lun);
    info.disk.clone_from(&before.disk);
    let node = lun.device().map(|(name, _)| step.host.sys.node(name).to_string_lossy().into_owned());
    step.announce(node, None, Some(info.verbatim()))?;
    Ok((info, lun, hold))
}

/// MountDevice of a disk with a file system.
pub(super) fn mount(step: &MountDevice<'_>, fc: &FCVolumeSource, wanted: &Wanted) -> Result<(), VolumeError> {
    if step.mounted {
        return step.announce(None, None, None).map(drop);
    }
    let host = step.host;
    let table = host.mount_table().map_err(VolumeError::Table)?;
    let absolute = host.absolute(step.path);
    if let Some(found) = table.at(&absolute) {
        let lun = if table.stack(&absolute).len() == 1 { undo::lun_of(host, found, wanted)? } else { None };
        let Some(lun) = lun.filter(|_| step.record.is_none()) else {
            return Err(VolumeError::Refused(other_mount(&absolute, found)));
        };
        // Its record was lost. What is on it was looked at when it was mounted.
        let (device, info) = (found.source().into_owned(), Info::of(wanted, &lun));
        return step.announce_found(Some(device), origin_of(found), info.verbatim());
    }
    super::super::refuse_hidden_data(host, step.path)?;
    let before = Info::recorded(step.record.and_then(|record| record.provider_info.as_ref()));
    let (info, lun, _hold) = announced(step, wanted, &before)?;
    let (fd, node) = open(host, &lun)?;
    disk::mount(
        step,
        &Disk {
            device: &fd,
            given: &node,
            fs_type: fc.fs_type.as_deref(),
            read_only: fc.read_only == Some(true),
            before: before.disk,
            words: Words::FC,
            info: &|identity| -> Verbatim { info.with_disk(identity).verbatim() },
        },
    )
}
