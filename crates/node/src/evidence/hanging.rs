//! FUSE file systems whose daemon cannot answer, told without asking them: every process that serves one is stopped.
//!
//! Nothing of such a file system is touched. Who serves it is what its processes have open: the kernel names the connection
//! of each open `/dev/fuse`, and that is the device number's minor part of the mount. Only stopped processes are looked at,
//! which are few; the others only to see whether another one serves the same connection.
//!
//! # Source
//! `fuse_dev_show_fdinfo` of Linux (`fuse_connection`, since 6.11: where it is missing nothing is told); `fuse_fill_super_common` for
//! the device number; `proc_pid_stat(5)` for the state.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use refloat_mount::{Device, Mount, MountTable};

/// Why each of them does not answer, by device: the end of a sentence.
pub(super) fn look(table: &MountTable, root: &Path) -> BTreeMap<Device, String> {
    let is_fuse = |kind: &str| kind == "fuse" || kind.starts_with("fuse.");
    let under = table.under(root).filter(|mount| mount.device().major == 0 && is_fuse(&mount.fs_type()));
    let devices: BTreeSet<Device> = under.map(Mount::device).collect();
    if devices.is_empty() {
        return BTreeMap::new();
    }
    let processes: Vec<Process> = Process::all();
    let mut found: BTreeMap<Device, String> = BTreeMap::new();
    for process in processes.iter().filter(|process| process.stopped) {
        for minor in process.connections() {
            let device = Device { major: 0, minor };
            if devices.contains(&device) {
                let why = format!("its FUSE daemon, process {} ({}), is stopped", process.id, process.name);
                found.entry(device).or_insert(why);
            }
        }
    }
    if !found.is_empty() {
        // Another process of the daemon may answer.
        for process in processes.iter().filter(|process| !process.stopped) {
            for minor in process.connections() {
                found.remove(&Device { major: 0, minor });
            }
        }
    }
    found
}

struct Process {
    id: u32,
    name: String,
    stopped: bool,
}

impl Process {
    fn all() -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return vec![] };
        let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        ids.filter_map(Self::read).collect()
    }

    fn read(id: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name may hold anything, brackets too.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let stopped = rest.trim_start().starts_with(['T', 't']);
        Some(Self { id, name: name.to_owned(), stopped })
    }

    /// The FUSE connections that it has open.
    fn connections(&self) -> Vec<u32> {
        let folder = format!("/proc/{}/fd", self.id);
        let Ok(entries) = std::fs::read_dir(&folder) else { return vec![] };
        let fds = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            let is_fuse = std::fs::read_link(entry.path()).is_ok_and(|to| to == Path::new("/dev/fuse"));
            is_fuse.then(|| entry.file_name())
        });
        fds.filter_map(|fd| {
            let info = std::fs::read_to_string(format!("/proc/{}/fdinfo/{}", self.id, fd.to_str()?)).ok()?;
            info.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
        })
        .collect()
    }
}
