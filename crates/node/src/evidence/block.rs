//! What block volumes leave on a node outside the pods' folders: the files that devices are bound over, and loop devices.

use std::path::{Path, PathBuf};

use refloat_mount::{EntryKind, NodeRoot};
use refloat_record::PodUid;
use refloat_volume::block::{HeldLoop, LoopMarks, survey};
use refloat_volume::{Problem, layout};

/// What was found of block volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks {
    /// What is in global map folders, relative to the root: `<global map path>/<pod uid>`. Sorted.
    pub maps: Vec<PathBuf>,
    /// What stands where CSI drivers publish devices, relative to the root: [`MapPlace::published`]. Sorted.
    pub published: Vec<PathBuf>,
    /// The loop devices that may be block volumes' of this root. None if that could not be told.
    pub loops: Option<Loops>,
}

/// Loop devices, with what tells ours from others'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loops {
    /// The marks of this root.
    pub marks: LoopMarks,
    /// Those with such a mark, and those whose backing file is called as a block volume's.
    pub all: Vec<HeldLoop>,
}

/// The pod's volume that a path `<global map path>/<pod uid>` belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapPlace<'p> {
    /// The plugin's name as folders have it (escaped).
    pub plugin: &'p str,
    /// The volume's folder name.
    pub name: &'p str,
    /// The pod.
    pub pod: &'p str,
}

/// Where the plugins have their global map paths, below the root: the folders above the volumes', those between a volume's
/// and the pods' files, and the plugin's escaped name.
///
/// # Source
/// `GetGlobalMapPath` of `pkg/volume/local` and `pkg/volume/csi` of Kubernetes v1.36.
const PLACES: [(&str, &str, &str); 2] = [
    ("plugins/kubernetes.io~local-volume/volumeDevices", "", "kubernetes.io~local-volume"),
    ("plugins/kubernetes.io/csi/volumeDevices", "dev", "kubernetes.io~csi"),
];

/// Where CSI drivers publish devices, below the root.
const PUBLISHED: &str = "plugins/kubernetes.io/csi/volumeDevices/publish";

impl<'p> MapPlace<'p> {
    /// What the layout says of this path, relative to the root.
    pub fn of(rel: &'p Path) -> Option<Self> {
        PLACES.iter().find_map(|(top, between, plugin)| {
            let rest = rel.strip_prefix(top).ok()?;
            let parts: Vec<&str> = rest.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
            let (name, pod) = match parts.as_slice() {
                [name, pod] if between.is_empty() => (name, pod),
                [name, middle, pod] if middle == between => (name, pod),
                _ => return None,
            };
            PodUid::new(*pod).ok()?;
            Some(Self { plugin, name, pod })
        })
    }

    /// The pod's volume that a CSI driver publishes at this path, relative to the root; from there it is bound for the pod.
    ///
    /// # Source
    /// `getPublishPath` of the kubelet's `csiBlockMapper`.
    pub fn published(rel: &'p Path) -> Option<Self> {
        let parts: Vec<&str> =
            rel.strip_prefix(PUBLISHED).ok()?.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
        let [name, pod] = parts.as_slice() else { return None };
        PodUid::new(*pod).ok()?;
        Some(Self { plugin: layout::CSI_FOLDER, name, pod })
    }
}

/// Looks for both; without loop devices, if those of this machine say nothing about the root: one that was saved.
/// `maps` is what is in the map folders that are called after devices.
pub(super) fn look(root: &NodeRoot, maps: Vec<PathBuf>, saved: bool, problems: &mut Vec<Problem>) -> Blocks {
    let mut blocks = Blocks { maps, ..Blocks::default() };
    let of_pod = |path: &PathBuf| path.to_str().is_some_and(|path| layout::map_file(path).is_some());
    blocks.maps.retain(of_pod);
    for (top, between, _) in PLACES {
        for volume in folders(root, Path::new(top)) {
            let folder = if between.is_empty() { volume } else { volume.join(between) };
            let entries = root.list(&folder).ok().flatten().unwrap_or_default();
            let files = entries.into_iter().map(|entry| folder.join(entry.name));
            blocks.maps.extend(files.filter(|path| MapPlace::of(path).is_some()));
        }
    }
    blocks.maps.sort_unstable();
    for volume in folders(root, Path::new(PUBLISHED)) {
        let entries = root.list(&volume).ok().flatten().unwrap_or_default();
        blocks.published.extend(entries.into_iter().map(|entry| volume.join(entry.name)));
    }
    blocks.published.retain(|path| MapPlace::published(path).is_some());
    blocks.published.sort_unstable();
    if saved {
        return blocks;
    }
    match survey(root) {
        Ok((marks, all)) => blocks.loops = Some(Loops { marks, all }),
        Err(error) => problems.push(Problem::new(
            "LoopDevicesUnknown",
            format!("cannot look through the loop devices: {error}"),
            "Run it as root with /sys and the loop devices in sight; block volumes are judged without them.",
        )),
    }
    blocks
}

fn folders(root: &NodeRoot, top: &Path) -> Vec<PathBuf> {
    let entries = root.list(top).ok().flatten().unwrap_or_default();
    let names = entries.into_iter().filter(|entry| entry.kind == EntryKind::Dir).map(|entry| entry.name);
    names.map(|name| top.join(name)).collect()
}

/// What the symlinks of block volumes say, which no walk of theirs follows.
pub(super) fn read_links(root: &NodeRoot, pod: &mut super::PodTree) {
    let path = pod.path.join(layout::VOLUME_DEVICES);
    for folder in pod.volume_devices.iter_mut().filter(|f| !f.is_dir) {
        let link = root.look(&path.join(&folder.plugin).join(&folder.name));
        folder.link = match link {
            Ok(refloat_mount::Standing::Symlink(says)) => Some(says),
            _ => None,
        };
    }
}

/// Where the symlinks of block volumes lead, if that is below `/dev`: nowhere else is anything asked, since it may not
/// answer.
pub(super) fn resolve_links(pod: &mut super::PodTree) {
    for folder in &mut pod.volume_devices {
        folder.link_device = folder.link.as_deref().and_then(below_dev);
    }
}

/// The end of a chain of symlinks below `/dev`, none of which leads out of it.
fn below_dev(path: &Path) -> Option<PathBuf> {
    use rustix::fs::{Mode, OFlags, ResolveFlags};
    let rest = path.strip_prefix("/dev").ok()?;
    let dev = rustix::fs::open("/dev", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let node = rustix::fs::openat2(&dev, rest, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).ok()?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&node);
    let end = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    end.starts_with("/dev").then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_paths_name_plugin_volume_and_pod() {
        let found = |path: &'static str| MapPlace::of(Path::new(path)).map(|p| (p.plugin, p.name, p.pod));
        assert_eq!(
            found("plugins/kubernetes.io~local-volume/volumeDevices/pv/u1"),
            Some(("kubernetes.io~local-volume", "pv", "u1"))
        );
        assert_eq!(found("plugins/kubernetes.io/csi/volumeDevices/pv/dev/u1"), Some(("kubernetes.io~csi", "pv", "u1")));
        for other in [
            "plugins/kubernetes.io/csi/volumeDevices/pv/data/vol_data.json",
            "plugins/kubernetes.io/csi/volumeDevices/publish/pv/u1",
            "plugins/kubernetes.io/csi/volumeDevices/staging/pv",
            "plugins/kubernetes.io~local-volume/volumeDevices/pv",
            "plugins/kubernetes.io~local-volume/volumeDevices/pv/u1/deep",
            "pods/u1/volumeDevices/kubernetes.io~csi/pv",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn published_paths_name_volume_and_pod() {
        let found = |path: &'static str| MapPlace::published(Path::new(path)).map(|p| (p.plugin, p.name, p.pod));
        let top = "plugins/kubernetes.io/csi/volumeDevices";
        assert_eq!(
            found("plugins/kubernetes.io/csi/volumeDevices/publish/pv/u1"),
            Some(("kubernetes.io~csi", "pv", "u1"))
        );
        for other in ["pv/dev/u1", "publish/pv", "publish/pv/u1/deep", "staging/pv"] {
            assert!(MapPlace::published(&Path::new(top).join(other)).is_none(), "{other}");
        }
    }
}
