//! Disks that a network brings, for the plugins of which each volume is one (Fibre Channel, iSCSI): found by what the spec
//! calls them, known from then on by their id, used as a file system or as they are, and taken off the node.
//!
//! A spec says where a disk is or what it is ([`Wanted`]). What is found is known from then on by its id, which the record has
//! ([`Found`]): UnmountDevice looks for that and not for a name like `sdc`, which may be another disk's by then. Everything is
//! read from sysfs ([`crate::scsi`]).

pub(super) mod block;
mod find;
mod found;
mod mount;
mod undo;

use refloat_record::{RelPath, VolumeMode};

use crate::Host;
use crate::disk::Words;
use crate::scsi::{self, Lun, Scan, Seen};

pub(super) use find::open;
pub(super) use found::Found;
pub(super) use mount::{Seek, adopted, find, mount};
pub(super) use undo::unmount;

/// What a volume calls its disk.
pub(super) trait Wanted: Clone {
    /// What messages call the fields of a volume.
    const WORDS: Words;
    /// What to do where nothing is found.
    const NOT_FOUND: &'static str;
    /// What to do where it means more than one disk.
    const AMBIGUOUS: &'static str;
    /// Why no host can be told to look for it, where none can.
    const NOWHERE: &'static str;

    /// For messages.
    fn shown(&self) -> String;

    /// Whether this disk is one that is meant.
    fn fits(&self, seen: &Seen, disk: &scsi::Disk) -> bool;

    /// The logical units that are meant. More than one: the spec's words do not agree with what the storage shows.
    fn luns(&self, seen: &Seen) -> Vec<Lun> {
        luns_of_disks(self, seen)
    }

    /// Whether nothing more can come: there is a map, or each path that is named is there.
    fn is_whole(&self, seen: &Seen, lun: &Lun) -> bool;

    /// What the SCSI hosts are told to look for.
    fn scans(&self, host: &Host) -> Vec<(u32, Scan)>;
}

/// The kubelet's global mount path of a disk, or its global map path. `plugin`: the plugin's folder below `plugins/`; `name`: what
/// the disk is called there.
pub(super) fn global_path(plugin: &str, mode: VolumeMode, name: &str) -> Option<RelPath> {
    let maps = match mode {
        VolumeMode::Filesystem => String::new(),
        VolumeMode::Block => format!("{}/", crate::layout::VOLUME_DEVICES),
    };
    RelPath::new(format!("{}/{plugin}/{maps}{name}", crate::layout::PLUGINS)).ok()
}

/// The logical units of the disks that are meant, each once.
pub(super) fn luns_of_disks(wanted: &impl Wanted, seen: &Seen) -> Vec<Lun> {
    let mut luns: Vec<Lun> = vec![];
    for disk in seen.disks.iter().filter(|disk| wanted.fits(seen, disk)) {
        if !luns.iter().any(|lun| lun.disks.iter().any(|its| its.name == disk.name)) {
            luns.push(seen.lun_of(std::slice::from_ref(disk)));
        }
    }
    luns
}
