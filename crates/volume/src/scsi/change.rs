//! How disks come to a node and leave it.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use refloat_mount::write_within;
use rustix::fs::{Mode, OFlags};

use super::used::{User, shown};
use super::{Address, Disk, Lun, Map, Seen, Sys, read};
use crate::{Host, Problem, VolumeError, run_tool};

/// How often it is looked whether something came or went, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// What a host is told to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// Everything.
    All,
    /// This logical unit of that target, or, without one, all of them.
    Target {
        /// The channel.
        channel: u32,
        /// The target.
        target: u32,
        /// The logical unit.
        lun: Option<u64>,
    },
}

impl std::fmt::Display for Scan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => write!(f, "- - -"),
            Self::Target { channel, target, lun: Some(lun) } => write!(f, "{channel} {target} {lun}"),
            Self::Target { channel, target, lun: None } => write!(f, "{channel} {target} -"),
        }
    }
}

/// What became of a logical unit that was to leave the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakenOff {
    /// It is gone: it was taken off, or had been before.
    Gone,
    /// Somebody uses it, so nothing was done.
    InUse(Vec<User>),
}

fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> VolumeError {
    let path = path.to_path_buf();
    move |source| VolumeError::Io { doing, path, source }
}

/// Opens a file of sysfs to write to it. It is never made.
fn open_to_write(folder: Option<&OwnedFd>, path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match folder {
        Some(folder) => rustix::fs::openat(folder, path, flags, Mode::empty()),
        None => rustix::fs::open(path, flags, Mode::empty()),
    };
    Ok(opened?)
}

impl Sys {
    /// Tells a SCSI host to look for new disks.
    ///
    /// # Errors
    /// It cannot be told, or did not answer in time: then it goes on by itself.
    pub fn rescan(&self, host: u32, scan: Scan, patience: Duration) -> Result<(), VolumeError> {
        let path = self.sysfs.join(format!("class/scsi_host/host{host}/scan"));
        let file = open_to_write(None, &path).map_err(io("open", &path))?;
        if write_within(&file, scan.to_string().as_bytes(), patience).map_err(io("ask for new disks in", &path))? {
            return Ok(());
        }
        Err(no_answer(&format!("the SCSI host {host} did not end its search for new disks within {patience:?}")))
    }

    /// Looks again and again until `found` answers, or the time is over: then with what was seen last.
    ///
    /// # Errors
    /// The disks cannot be listed.
    pub fn wait_for<T>(
        &self,
        patience: Duration,
        mut found: impl FnMut(&Seen) -> Option<T>,
    ) -> Result<Result<T, Seen>, VolumeError> {
        let end = Instant::now() + patience;
        let mut pause = PAUSE.0;
        loop {
            let seen = self.look()?;
            if let Some(answer) = found(&seen) {
                return Ok(Ok(answer));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Err(seen));
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Takes what `find` finds off this node, if nobody uses it: its multipath map is flushed, its paths are flushed and
    /// removed. A map that cannot be flushed leaves all of it. Whoever calls holds it ([`Sys::hold`]).
    ///
    /// # Errors
    /// It could not be done; what was not reached is as it was.
    pub fn take_off(&self, host: &Host, find: impl Fn(&Seen) -> Lun) -> Result<TakenOff, VolumeError> {
        let seen = self.look()?;
        let lun = find(&seen);
        if lun.is_gone() {
            return Ok(TakenOff::Gone);
        }
        let users = self.users(host, &seen, &lun)?;
        if !users.is_empty() {
            return Ok(TakenOff::InUse(users));
        }
        for map in &lun.maps {
            self.flush_map(host, map)?;
        }
        // Without the map, and only now what lies over each path itself.
        let seen = self.look()?;
        let lun = find(&seen);
        let users = self.users(host, &seen, &lun)?;
        if !users.is_empty() {
            return Ok(TakenOff::InUse(users));
        }
        if let Some(map) = lun.maps.first() {
            return Err(not_flushed(map, "multipathd made it again at once"));
        }
        for disk in &lun.disks {
            self.remove(host, disk)?;
        }
        let is_gone = |seen: &Seen| find(seen).is_gone().then_some(());
        match self.wait_for(host.tool_deadline, is_gone)? {
            Ok(()) => Ok(TakenOff::Gone),
            Err(seen) => Err(no_answer(&format!("{} did not go after it was removed", find(&seen).shown()))),
        }
    }

    /// Has multipath write out and remove a map, and looks whether it did.
    fn flush_map(&self, host: &Host, map: &Map) -> Result<(), VolumeError> {
        let args = [OsStr::new("-f"), OsStr::new(&map.map_name)];
        tracing::info!(map = map.map_name, "flushes a multipath map");
        let ran = run_tool("multipath", &args, host.tool_deadline).map_err(VolumeError::Tool)?;
        if let Err(error) = ran.success("multipath") {
            return Err(not_flushed(map, &crate::error_chain(&error)));
        }
        let is_gone =
            |seen: &Seen| (!seen.maps.iter().any(|its| its.uuid == map.uuid && its.name == map.name)).then_some(());
        match self.wait_for(GOES_WITHIN.min(host.tool_deadline), is_gone)? {
            Ok(()) => Ok(()),
            Err(_) => Err(not_flushed(map, "multipath said that it did, and it is still there")),
        }
    }

    /// Writes out what the kernel has of a path, and removes it, if its name still is that path's.
    fn remove(&self, host: &Host, disk: &Disk) -> Result<(), VolumeError> {
        let link = self.sysfs.join("block").join(&disk.name).join("device");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(&link, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(io("open", &link)(errno.into())),
        };
        if !still(&folder, &link, disk) {
            // Another disk by now, which is looked at anew.
            return Ok(());
        }
        self.flush_buffers(host, disk)?;
        if !still(&folder, &link, disk) {
            return Ok(());
        }
        tracing::info!(disk = disk.name, id = disk.id(), address = %disk.address, "removes a disk");
        let delete = link.join("delete");
        // By the folder that was looked at: its name may be another disk's from one moment to the next.
        let file = match open_to_write(Some(&folder), Path::new("delete")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            file => file.map_err(io("open", &delete))?,
        };
        match write_within(&file, b"1", host.tool_deadline) {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(no_answer(&format!("the kernel did not remove {} within {:?}", disk.name, host.tool_deadline)))
            }
            // Somebody else removed it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(()),
            Err(error) => Err(io("remove the disk by", &delete)(error)),
        }
    }

    fn flush_buffers(&self, host: &Host, disk: &Disk) -> Result<(), VolumeError> {
        // Nothing reaches one that is offline, and the request might wait for ever.
        if !disk.is_running() || self.number_of_node(&disk.name) != Some(disk.number) {
            return Ok(());
        }
        let node = self.node(&disk.name);
        let args = [OsStr::new("--flushbufs"), node.as_os_str()];
        let ran = run_tool("blockdev", &args, host.tool_deadline).and_then(|output| output.success("blockdev"));
        ran.map(drop).map_err(VolumeError::Tool)
    }
}

/// Asks multipathd for a map over these paths. By itself it makes one only when a path comes: not after a crash between the flush of
/// a map and the removal of its paths, nor after an administrator's `multipath -f`. Its configuration decides, as always;
/// what it says, and that it does not run, is for the log alone, for the map comes or not.
///
/// # Source
/// `add path` of multipathd(8): a path that is known and in no map is looked at anew (`cli_add_path`).
pub(crate) fn want_map(lun: &Lun, patience: Duration) {
    for disk in &lun.disks {
        let args = ["add", "path", &disk.name].map(OsStr::new);
        tracing::info!(disk = disk.name, "asks multipathd for a map");
        let ran = run_tool("multipathd", &args, patience).and_then(|output| output.success("multipathd"));
        if let Err(error) = ran {
            tracing::debug!(disk = disk.name, "no map is to be had: {}", crate::error_chain(&error));
            // The others would meet the same.
            return;
        }
    }
}

/// How long a map may be seen after multipath said that it is gone.
const GOES_WITHIN: Duration = Duration::from_secs(5);

/// Whether the disk's name still leads to this folder, and that is the disk's.
fn still(folder: &OwnedFd, link: &Path, disk: &Disk) -> bool {
    use std::os::fd::AsRawFd;
    let address: Option<Address> = read::address_of(link).ok().flatten();
    let opened = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    address == Some(disk.address) && read::ids_of(&opened) == disk.ids
}

fn not_flushed(map: &Map, why: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "MapNotFlushed",
        format!("the multipath map {} ({}) could not be flushed, so its paths are left: {why}", map.map_name, map.name),
        "See `multipath -ll` and `dmsetup info` for who has it open. It is tried again.",
    ))
}

fn no_answer(what: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "DiskTimeout",
        what,
        "Look into the kernel log for a target that does not answer. It is tried again.",
    ))
}

/// What is said of a logical unit that others use.
pub(crate) fn left_in_use(lun: &str, users: &[User]) -> String {
    format!("the disk {lun} is left on the node: it is {}", shown(users))
}
