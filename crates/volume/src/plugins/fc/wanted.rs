//! What a Fibre Channel volume calls its disk.

use super::Wanted;
use crate::Host;
use crate::disk::Words;
use crate::plugins::san;
use crate::scsi::{self, Lun, Scan, Seen};

impl Wanted {
    /// What its folder is called.
    pub(super) fn path_name(&self) -> String {
        match self {
            Self::Targets { wwns, lun } => format!("{}-lun-{lun}", wwns.join("-")),
            Self::Wwids(wwids) => wwids.join("-"),
        }
    }
}

impl san::Wanted for Wanted {
    const WORDS: Words = Words::FC;
    const NOT_FOUND: &'static str = "Look whether the array shows it to this node (zoning, LUN masking), and into the kernel log. It is tried again.";
    const NOWHERE: &'static str = "this node has no SCSI host";
    const AMBIGUOUS: &'static str = "Nothing is used. Correct targetWWNs and lun, or name the disk by its id in wwids.";

    fn shown(&self) -> String {
        match self {
            Self::Targets { wwns, lun } => format!("LUN {lun} behind {}", wwns.join(", ")),
            Self::Wwids(wwids) => format!("the disk {}", wwids.join(", ")),
        }
    }

    fn fits(&self, _: &Seen, disk: &scsi::Disk) -> bool {
        match self {
            Self::Targets { wwns, lun } => {
                let behind = |wwn: &String| disk.target_port.as_deref() == Some(&scsi::normal_wwn(wwn));
                disk.address.has_lun(*lun) && wwns.iter().any(behind)
            }
            Self::Wwids(wwids) => wwids.iter().any(|wwid| disk.has_id(wwid)),
        }
    }

    fn luns(&self, seen: &Seen) -> Vec<Lun> {
        let mut luns = san::luns_of_disks(self, seen);
        if let (Self::Wwids(wwids), []) = (self, luns.as_slice()) {
            // A map that has no path at the moment.
            luns.extend(wwids.iter().map(|wwid| seen.lun(wwid)).find(|lun| !lun.is_gone()));
        }
        luns
    }

    fn is_whole(&self, _: &Seen, lun: &Lun) -> bool {
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
