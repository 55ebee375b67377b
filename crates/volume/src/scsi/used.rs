//! Who uses a logical unit on this node.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use refloat_mount::{Mount, MountTable, loopdev};
use refloat_record::DeviceNumber;
use rustix::fs::{FileType, Mode, OFlags};

use super::{Lun, Seen, Sys};
use crate::{Host, VolumeError};

/// Somebody who uses a logical unit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// Its file system is mounted here.
    Mounted(PathBuf),
    /// Its device is bound here, for a block volume.
    Bound(PathBuf),
    /// Another device lies over it: `dm-3 (vg-root)`, `md0`.
    Held(String),
    /// A loop device has it as its backing file.
    Loop(PathBuf),
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mounted(path) => write!(f, "mounted at {}", path.display()),
            Self::Bound(path) => write!(f, "bound at {}", path.display()),
            Self::Held(by) => write!(f, "held by {by}"),
            Self::Loop(path) => write!(f, "the backing file of {}", path.display()),
        }
    }
}

/// Users as a part of a sentence.
pub(super) fn shown(users: &[User]) -> String {
    users.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// All devices that are a logical unit or a part of it.
#[derive(Debug, Default)]
struct Parts {
    names: HashSet<String>,
    numbers: HashSet<DeviceNumber>,
    /// What else lies over it.
    others: Vec<String>,
}

impl Parts {
    fn of(seen: &Seen, lun: &Lun) -> Self {
        let mut parts = Self::default();
        let mut above: Vec<&String> = vec![];
        for disk in &lun.disks {
            parts.names.insert(disk.name.clone());
            parts.numbers.insert(disk.number);
            parts.numbers.extend(&disk.partitions);
            above.extend(&disk.holders);
        }
        above.extend(lun.maps.iter().map(|map| &map.name));
        let mut known = HashSet::new();
        while let Some(name) = above.pop() {
            // Each once: nothing keeps a tree that is no sysfs from going round.
            if !known.insert(name) {
                continue;
            }
            match seen.map(name) {
                Some(map) if map.multipath_id().is_some() || map.is_partition() => {
                    parts.names.insert(map.name.clone());
                    parts.numbers.insert(map.number);
                    above.extend(&map.holders);
                }
                Some(map) => parts.others.push(format!("{name} ({})", map.map_name)),
                None => parts.others.push(name.clone()),
            }
        }
        parts
    }
}

impl Sys {
    /// Who uses the logical unit on this node, as far as mount table, sysfs and the node root's block volumes tell; nobody
    /// asks the device.
    ///
    /// # Errors
    /// The mount table or the loop devices cannot be read.
    pub fn users(&self, host: &Host, seen: &Seen, lun: &Lun) -> Result<Vec<User>, VolumeError> {
        let parts = Parts::of(seen, lun);
        let table = host.mount_table().map_err(VolumeError::Table)?;
        let mut users: Vec<User> = parts.others.iter().cloned().map(User::Held).collect();
        for mount in table.iter() {
            if self.is_of(&parts, mount) {
                users.push(User::Mounted(mount.point().to_path_buf()));
            }
        }
        users.extend(
            bound(host, &table).filter(|(number, _)| parts.numbers.contains(number)).map(|(_, at)| User::Bound(at)),
        );
        let loops = loopdev::all().map_err(|source| VolumeError::Io {
            doing: "list the loop devices in",
            path: "/sys/block".into(),
            source,
        })?;
        for one in loops {
            if one.backing.parent() == Some(&self.dev)
                && one.backing.file_name().and_then(|name| name.to_str()).is_some_and(|name| parts.names.contains(name))
            {
                users.push(User::Loop(one.path));
            }
        }
        users.sort();
        users.dedup();
        Ok(users)
    }

    /// Whether the file system of a mount is on one of these devices.
    fn is_of(&self, parts: &Parts, mount: Mount<'_>) -> bool {
        let device = mount.device();
        if device.major != 0 {
            return parts.numbers.contains(&DeviceNumber { major: device.major, minor: device.minor });
        }
        // btrfs has numbers of its own.
        let source = mount.source();
        let node = Path::new(&*source);
        node.starts_with(&self.dev) && number_of(node).is_some_and(|number| parts.numbers.contains(&number))
    }

    /// The number that the node of the device with this name has, if it is a block device.
    pub(crate) fn number_of_node(&self, name: &str) -> Option<DeviceNumber> {
        number_of(&self.node(name))
    }
}

/// The number of a device node, symlinks followed: nodes are in memory, and answer.
fn number_of(node: &Path) -> Option<DeviceNumber> {
    let fd = rustix::fs::open(node, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    number_of_fd(&fd)
}

fn number_of_fd(fd: impl std::os::fd::AsFd) -> Option<DeviceNumber> {
    let stat = rustix::fs::fstat(fd).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
        .then(|| DeviceNumber { major: rustix::fs::major(stat.st_rdev), minor: rustix::fs::minor(stat.st_rdev) })
}

/// The devices that are bound below the global folders of the node root.
fn bound<'t>(host: &'t Host, table: &'t MountTable) -> impl Iterator<Item = (DeviceNumber, PathBuf)> + 't {
    let plugins = host.root.path().join(crate::layout::PLUGINS);
    let mounts: Vec<Mount<'t>> = table.under(&plugins).collect();
    // A node lies in a file system in memory, so looking at it asks nobody.
    let in_memory =
        |mount: &Mount<'_>| ["devtmpfs", "tmpfs"].contains(&&*mount.fs_type()) && mount.root() != Path::new("/");
    mounts.into_iter().filter(in_memory).filter_map(|mount| {
        let rel = mount.point().strip_prefix(host.root.path()).ok()?;
        let fd = host.root.open_mounted(rel).ok()??;
        Some((number_of_fd(&fd)?, mount.point().to_path_buf()))
    })
}
