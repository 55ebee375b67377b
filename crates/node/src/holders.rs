//! Who holds a mount: processes in other mount namespaces that have it too.
//!
//! Taking a mount off here does not take it off there, so a container goes on with it, and its device stays busy. A copy that
//! goes together with ours, as the kernel propagates unmounts, holds nothing.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use refloat_mount::{Device, Mount, MountTable};
use refloat_volume::layout;

/// A mount namespace that is not ours, by one of its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// What the kernel calls it (`comm`).
    pub command: String,
    /// Its cgroup, as `/proc/<pid>/cgroup` tells it; of a container this names pod and container. Empty where that cannot be
    /// read.
    pub cgroup: String,
    /// Where it has the mount, as it sees it.
    pub point: PathBuf,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, command, cgroup, point } = self;
        write!(f, "process {pid} ({command}) has it in another mount namespace, at {}", point.display())?;
        if cgroup.is_empty() { Ok(()) } else { write!(f, " (cgroup {cgroup})") }
    }
}

/// What other mount namespaces have of the mounts below a folder. A snapshot: a process may begin or end right after it.
#[derive(Debug, Default)]
pub struct Holders {
    by_mount: BTreeMap<u32, Holder>,
}

/// A namespace that is not ours, with one of its processes.
struct Namespace {
    pid: u32,
    cgroup: String,
    table: MountTable,
}

impl Holders {
    /// Asks `/proc` for all mount namespaces, reading each once, and compares them with our own mounts below the node root.
    /// Processes that end meanwhile, and those that may not be looked at, are passed over.
    ///
    /// A container of another pod does not hold a pod's mount: it has its own of the same file system. It does hold the
    /// device that both come from.
    pub fn look(ours: &MountTable, root: &Path) -> Self {
        if ours.under(root).next().is_none() {
            return Self::default();
        }
        Self::compare(ours, root, others())
    }

    fn compare(ours: &MountTable, root: &Path, namespaces: impl IntoIterator<Item = Namespace>) -> Self {
        let mut by_root: HashMap<(Device, &OsStr), Vec<Mount<'_>>> = HashMap::new();
        for mount in ours.under(root) {
            by_root.entry((mount.device(), mount.root().as_os_str())).or_default().push(mount);
        }
        let pods = root.join(layout::PODS);
        let mut by_mount = BTreeMap::new();
        for namespace in namespaces {
            for copy in namespace.table.iter() {
                let roots = copy.root().ancestors().map(|root| (copy.device(), root.as_os_str()));
                for mount in roots.filter_map(|key| by_root.get(&key)).flatten() {
                    let pod = mount.point().strip_prefix(&pods).ok().and_then(|path| path.iter().next()?.to_str());
                    if pod.is_none_or(|pod| !is_of_another_pod(&namespace.cgroup, pod))
                        && !goes_with(ours, *mount, &namespace.table, copy)
                    {
                        by_mount.entry(mount.short_id()).or_insert_with(|| namespace.holder(copy.point()));
                    }
                }
            }
        }
        Self { by_mount }
    }

    /// Who holds a mount of ours, if anybody does; one of them.
    pub fn of(&self, mount: Mount<'_>) -> Option<&Holder> {
        self.by_mount.get(&mount.short_id())
    }
}

impl Namespace {
    fn of(pid: u32, mountinfo: &[u8]) -> Self {
        // `ID:controllers:path`; of several hierarchies, the longest path tells most.
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| *path != "/");
        let cgroup = paths.max_by_key(|path| path.len()).unwrap_or_default().to_owned();
        Self { pid, cgroup, table: MountTable::from_mountinfo(mountinfo).0 }
    }

    fn holder(&self, point: &Path) -> Holder {
        let command = std::fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        Holder {
            pid: self.pid,
            command: command.trim_end().to_owned(),
            cgroup: self.cgroup.clone(),
            point: point.to_path_buf(),
        }
    }
}

/// Whether a cgroup is a pod's, and not this one's.
///
/// # Source
/// `pkg/kubelet/cm`: `pod<uid>` below `kubepods`; with the systemd driver `kubepods-…-pod<uid>.slice`, its dashes escaped as `_`.
fn is_of_another_pod(cgroup: &str, pod: &str) -> bool {
    cgroup.contains("kubepods") && !cgroup.contains(pod) && !cgroup.contains(&pod.replace('-', "_"))
}

/// The mount namespaces that are not ours.
fn others() -> Vec<Namespace> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok().map(PathBuf::into_os_string);
    let mut known: HashSet<OsString> = namespace("self").into_iter().collect();
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let mut found = vec![];
    for pid in pids {
        let Some(name) = namespace(&pid.to_string()).filter(|name| !known.contains(name)) else { continue };
        let Ok(text) = std::fs::read(format!("/proc/{pid}/mountinfo")) else { continue };
        // A process that is about to end has none.
        if !text.is_empty() {
            known.insert(name);
            found.push(Namespace::of(pid, &text));
        }
    }
    found
}

/// Whether a mount of another namespace goes when ours is unmounted.
///
/// # Source
/// `mount_namespaces(7)`: what is unmounted below a mount of a peer group is unmounted below its peers and slaves.
fn goes_with(ours: &MountTable, mount: Mount<'_>, theirs: &MountTable, copy: Mount<'_>) -> bool {
    let parents = ours.by_short_id(mount.parent_short_id()).zip(theirs.by_short_id(copy.parent_short_id()));
    let Some((parent, their_parent)) = parents else { return false };
    let group = |mount: Mount<'_>, of: &str| -> Option<u32> {
        mount.propagation().split(' ').find_map(|word| word.strip_prefix(of)?.parse().ok())
    };
    let Some(shared) = group(parent, "shared:") else { return false };
    let linked = ["shared:", "master:", "propagate_from:"].iter().any(|of| group(their_parent, of) == Some(shared));
    // The same place below the same file system.
    let place = |parent: Mount<'_>, mount: Mount<'_>| {
        Some(parent.root().join(mount.point().strip_prefix(parent.point()).ok()?))
    };
    linked && place(parent, mount).is_some_and(|ours| Some(ours) == place(their_parent, copy))
}
