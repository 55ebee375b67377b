//! SCSI disks of this node, read from sysfs alone: what they are, which multipath map lies over them, who uses them, and how
//! they come and go. For the plugins whose disks a network brings (iSCSI, Fibre Channel).
//!
//! A disk's name (`sdc`) and number are its own in one boot at most, and may be another's tomorrow. What it is known by is an
//! id that the storage gives it ([`Disk::ids`]), spelled as udev and multipath spell it.
//!
//! Everything here is a snapshot ([`Sys::look`]): what went away meanwhile is left out, what cannot be understood is
//! [`Seen::unreadable`], and what cannot be listed is an error. No device is opened.
//!
//! # Source
//! `Documentation/ABI/testing/sysfs-class-fc_remote_ports`, `drivers/scsi/scsi_sysfs.c`, `scsi_transport_fc.c`,
//! `scsi_transport_iscsi.c` and `drivers/md/dm-sysfs.c` of the kernel.

mod change;
mod hold;
mod ids;
mod read;
mod session;
#[cfg(test)]
mod tests;
mod used;

use std::path::{Path, PathBuf};

use refloat_record::DeviceNumber;

use crate::VolumeError;

pub use change::{Scan, TakenOff};
pub(crate) use change::{left_in_use, want_map};
pub use hold::Hold;
pub use ids::normal as normal_id;
pub use session::Session;
pub use used::User;

/// Where this node's sysfs and device nodes are, and who works on which disk.
#[derive(Debug, Clone)]
pub struct Sys {
    sysfs: PathBuf,
    dev: PathBuf,
    iscsi: Vec<PathBuf>,
    held: hold::Held,
}

impl Default for Sys {
    fn default() -> Self {
        Self::new("/sys", "/dev")
    }
}

/// Where distributions have the database of open-iscsi.
///
/// # Source
/// `ISCSI_DB_ROOT`: Debian's, and that of those who follow the file system hierarchy.
const ISCSI: [&str; 2] = ["/etc/iscsi", "/var/lib/iscsi"];

/// Where a disk is: `host:channel:target:lun`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The number of its SCSI host.
    pub host: u32,
    /// The channel of that.
    pub channel: u32,
    /// The target on that channel.
    pub target: u32,
    /// The logical unit of that target, as the kernel counts them.
    pub lun: u64,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}:{}", self.host, self.channel, self.target, self.lun)
    }
}

impl Address {
    /// Reads `host:channel:target:lun`.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| part.parse::<u64>().ok()).flatten()
        };
        let mut parts = text.split(':');
        let mut next = || number(parts.next()?);
        let (host, channel, target, lun) = (next()?, next()?, next()?, next()?);
        let small = |number: u64| u32::try_from(number).ok();
        let address = Self { host: small(host)?, channel: small(channel)?, target: small(target)?, lun };
        parts.next().is_none().then_some(address)
    }

    /// Whether this is the logical unit that a spec calls so.
    ///
    /// # Source
    /// SAM-5, 4.7.7: a number above 255 has the flat addressing method, `01b` in the upper two of 16 bits, which the
    /// kernel counts with (`scsilun_to_int`).
    pub fn has_lun(&self, lun: i32) -> bool {
        let Ok(lun) = u64::try_from(lun) else { return false };
        self.lun == lun || (lun < 1 << 14 && self.lun == lun | 1 << 14)
    }
}

/// One SCSI disk as the kernel has it: one path to a logical unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Its name in this boot, `sdc`.
    pub name: String,
    /// Its number.
    pub number: DeviceNumber,
    /// Where it is.
    pub address: Address,
    /// The ids of the logical unit, the one that multipath uses first; none if it says none.
    pub ids: Vec<String>,
    /// What the kernel thinks of it: `running`, `offline`, `blocked`, `transport-offline`.
    pub state: Option<String>,
    /// The name of the Fibre Channel port that it is behind, as lower-case hexadecimal digits.
    pub target_port: Option<String>,
    /// The iSCSI session that it is behind: `session3`.
    pub session: Option<String>,
    /// What the kernel lays over it or one of its partitions: `dm-0`, `md1`.
    pub holders: Vec<String>,
    /// The numbers of its partitions.
    pub partitions: Vec<DeviceNumber>,
}

impl Disk {
    /// The id that it is known by across boots.
    pub fn id(&self) -> Option<&str> {
        self.ids.first().map(String::as_str)
    }

    /// Whether it is the logical unit with this id, in whichever of its spellings.
    pub fn has_id(&self, id: &str) -> bool {
        ids::has(&self.ids, id)
    }

    /// Whether the kernel sends requests to it.
    pub fn is_running(&self) -> bool {
        self.state.as_deref() == Some("running")
    }
}

/// A device of the device mapper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Its name in this boot, `dm-0`.
    pub name: String,
    /// Its number.
    pub number: DeviceNumber,
    /// What it is called: `mpatha`.
    pub map_name: String,
    /// Who made it and over what: `mpath-3600508b4…`.
    pub uuid: String,
    /// What it lies over.
    pub slaves: Vec<String>,
    /// What lies over it.
    pub holders: Vec<String>,
}

impl Map {
    /// The id of the logical unit that this is the multipath map of; none if it is another kind of map.
    ///
    /// # Source
    /// `UUID_PREFIX` of multipath-tools.
    pub fn multipath_id(&self) -> Option<&str> {
        self.uuid.strip_prefix("mpath-").filter(|id| !id.is_empty())
    }

    /// Whether it is a partition of a multipath map: whoever flushes that takes it along.
    ///
    /// # Source
    /// kpartx(8): `part<number>-mpath-<id>`.
    fn is_partition(&self) -> bool {
        self.uuid.strip_prefix("part").and_then(|rest| rest.split_once("-mpath-")).is_some()
    }
}

/// All disks, maps and iSCSI sessions of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// The disks, by name.
    pub disks: Vec<Disk>,
    /// The maps, by name.
    pub maps: Vec<Map>,
    /// The iSCSI sessions, by number.
    pub sessions: Vec<Session>,
    /// The names of disks, maps and sessions that are there and could not be understood.
    pub unreadable: Vec<String>,
}

/// One logical unit: all disks that are paths to it, and the multipath maps over it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lun {
    /// The paths.
    pub disks: Vec<Disk>,
    /// The maps: one, or none.
    pub maps: Vec<Map>,
}

impl Lun {
    /// Whether nothing of it is there.
    pub fn is_gone(&self) -> bool {
        self.disks.is_empty() && self.maps.is_empty()
    }

    /// The id that it is known by across boots.
    pub fn id(&self) -> Option<&str> {
        self.maps.iter().find_map(Map::multipath_id).or_else(|| self.disks.iter().find_map(Disk::id))
    }

    /// Name and number of what is to be used: the map if there is one, else the first path that the kernel sends requests to.
    pub fn device(&self) -> Option<(&str, DeviceNumber)> {
        let map = self.maps.first().map(|map| (map.name.as_str(), map.number));
        let disk = || self.disks.iter().find(|disk| disk.is_running()).or(self.disks.first());
        map.or_else(|| disk().map(|disk| (disk.name.as_str(), disk.number)))
    }

    /// The names of paths and maps, for messages: `sdc, sdd, dm-0 (mpatha)`.
    pub fn shown(&self) -> String {
        let maps = self.maps.iter().map(|map| format!("{} ({})", map.name, map.map_name));
        let names: Vec<_> = self.disks.iter().map(|disk| disk.name.clone()).chain(maps).collect();
        names.join(", ")
    }
}

impl Seen {
    /// The disk with this name.
    pub fn disk(&self, name: &str) -> Option<&Disk> {
        self.disks.iter().find(|disk| disk.name == name)
    }

    /// The map with this name (`dm-0`).
    pub fn map(&self, name: &str) -> Option<&Map> {
        self.maps.iter().find(|map| map.name == name)
    }

    /// The iSCSI session that a disk is behind.
    pub fn session_of(&self, disk: &Disk) -> Option<&Session> {
        let name = disk.session.as_deref()?;
        self.sessions.iter().find(|session| session.name == name)
    }

    /// Whatever has this number: the disk or a partition of it, or the map.
    pub fn lun_of_number(&self, number: DeviceNumber) -> Option<Lun> {
        let disk = self.disks.iter().find(|disk| disk.number == number || disk.partitions.contains(&number));
        if let Some(disk) = disk {
            return Some(self.lun_of(std::slice::from_ref(disk)));
        }
        let map = self.maps.iter().find(|map| map.number == number)?;
        Some(match map.multipath_id() {
            Some(id) => self.lun(id),
            None => Lun { disks: vec![], maps: vec![map.clone()] },
        })
    }

    /// The logical unit with this id, empty if nothing of it is there.
    pub fn lun(&self, id: &str) -> Lun {
        let disks: Vec<Disk> = self.disks.iter().filter(|disk| disk.has_id(id)).cloned().collect();
        let mut lun = self.with_maps(disks);
        // One that has lost all its paths has none to be found by.
        for map in self.maps.iter().filter(|map| map.multipath_id().is_some_and(|its| ids::same(its, id))) {
            if !lun.maps.contains(map) {
                lun.maps.push(map.clone());
            }
        }
        lun
    }

    /// The logical unit that these disks are paths to, with all other paths to it.
    pub fn lun_of(&self, disks: &[Disk]) -> Lun {
        let ids: Vec<&str> = disks.iter().filter_map(Disk::id).collect();
        let all = self
            .disks
            .iter()
            .filter(|disk| disks.iter().any(|given| given.name == disk.name) || ids.iter().any(|id| disk.has_id(id)));
        self.with_maps(all.cloned().collect())
    }

    fn with_maps(&self, disks: Vec<Disk>) -> Lun {
        let over =
            |map: &&Map| map.multipath_id().is_some() && disks.iter().any(|disk| disk.holders.contains(&map.name));
        let maps = self.maps.iter().filter(over).cloned().collect();
        Lun { disks, maps }
    }
}

impl Sys {
    /// A node whose sysfs and device nodes are at these places.
    pub fn new(sysfs: impl Into<PathBuf>, dev: impl Into<PathBuf>) -> Self {
        let iscsi = ISCSI.map(PathBuf::from).to_vec();
        Self { sysfs: sysfs.into(), dev: dev.into(), iscsi, held: hold::Held::default() }
    }

    /// The same with the database of open-iscsi at this place.
    #[must_use]
    pub fn with_iscsi(self, place: impl Into<PathBuf>) -> Self {
        Self { iscsi: vec![place.into()], ..self }
    }

    /// Where the database of open-iscsi may be.
    pub(crate) fn iscsi_places(&self) -> &[PathBuf] {
        &self.iscsi
    }

    /// Where sysfs is.
    pub fn sysfs(&self) -> &Path {
        &self.sysfs
    }

    /// The node of the device that the kernel calls so.
    pub fn node(&self, name: &str) -> PathBuf {
        self.dev.join(name)
    }

    /// All SCSI disks, all maps and all iSCSI sessions.
    ///
    /// # Errors
    /// They cannot be listed: then nobody can tell what is not there.
    pub fn look(&self) -> Result<Seen, VolumeError> {
        let folder = self.sysfs.join("block");
        let listed = |source| VolumeError::Io { doing: "list the disks in", path: folder.clone(), source };
        let (sessions, unreadable) = self.sessions()?;
        let mut seen = Seen { sessions, unreadable, ..Seen::default() };
        for name in read::names(&folder).map_err(listed)? {
            if name.starts_with("sd") {
                match self.read_disk(&folder.join(&name), &name) {
                    read::Read::There(disk) => seen.disks.push(disk),
                    read::Read::Gone => {}
                    read::Read::Unreadable => seen.unreadable.push(name),
                }
            } else if name.starts_with("dm-") {
                match Self::read_map(&folder.join(&name), &name) {
                    read::Read::There(map) => seen.maps.push(map),
                    read::Read::Gone => {}
                    read::Read::Unreadable => seen.unreadable.push(name),
                }
            }
        }
        Ok(seen)
    }

    /// The SCSI hosts that are Fibre Channel ports.
    pub fn fc_hosts(&self) -> Vec<u32> {
        self.hosts("class/fc_host")
    }

    /// All SCSI hosts.
    pub fn scsi_hosts(&self) -> Vec<u32> {
        self.hosts("class/scsi_host")
    }

    fn hosts(&self, class: &str) -> Vec<u32> {
        let names = read::names(&self.sysfs.join(class)).unwrap_or_default();
        let mut hosts: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix("host")?.parse().ok()).collect();
        hosts.sort_unstable();
        hosts
    }

    /// Where the Fibre Channel ports with this name are: host, channel and target of each, and what the fabric says of it
    /// (`Online`).
    ///
    /// # Source
    /// `rport-<host>:<channel>-<number>` with `port_name` and `scsi_target_id` in `scsi_transport_fc.c`.
    pub fn remote_ports(&self, wwn: &str) -> Vec<RemotePort> {
        let folder = self.sysfs.join("class/fc_remote_ports");
        let names = read::names(&folder).unwrap_or_default();
        let port = |name: &String| {
            let folder = folder.join(name);
            let its = read::text(&folder.join("port_name"))?;
            if ids::wwn(&its) != ids::wwn(wwn) {
                return None;
            }
            let (host, rest) = name.strip_prefix("rport-")?.split_once(':')?;
            let (channel, _) = rest.split_once('-')?;
            Some(RemotePort {
                host: host.parse().ok()?,
                channel: channel.parse().ok()?,
                // -1 while it has none.
                target: read::text(&folder.join("scsi_target_id")).and_then(|id| id.parse().ok()),
                state: read::text(&folder.join("port_state")).unwrap_or_default(),
            })
        };
        names.iter().filter_map(port).collect()
    }
}

/// A port of a storage array that a SCSI host of this node sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePort {
    /// The number of that host.
    pub host: u32,
    /// The channel.
    pub channel: u32,
    /// The number that the port has there as a target; none while it is none.
    pub target: Option<u32>,
    /// `Online`, `Blocked`, `Not Present`.
    pub state: String,
}

/// The name of a Fibre Channel port as its hexadecimal digits, lower-case, without prefix and colons.
pub fn normal_wwn(text: &str) -> String {
    ids::wwn(text)
}
