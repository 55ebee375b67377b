//! `emptyDir`: a folder that lives as long as its pod.
//!
//! | medium | what is at `pods/<uid>/volumes/kubernetes.io~empty-dir/<volume>` |
//! | --- | --- |
//! | none | a folder, mode 0777 |
//! | `Memory` | a tmpfs, mode 1777, source `tmpfs`, `size` of the smallest of `sizeLimit`, the pod's and the node's memory |
//! | `HugePages`, `HugePages-<size>` | a hugetlbfs, source `nodev`, `pagesize`, which a container must request |
//!
//! The kubelet marks a finished SetUp with an empty file `ready`, and so does this plugin: data that a pod wrote is
//! never touched by another SetUp. The kubelet's TearDown decides by statfs whether to unmount and then removes
//! everything, also what somebody mounted inside; here the record and the mount table decide, and nested mounts
//! come off first. Without a record neither medium nor size limit is claimed, and no file is deleted.
//!
//! # Source
//! `pkg/volume/emptydir` of Kubernetes v1.36.

#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::path::Path;

use refloat_mount::{Dir, NewMount};
use refloat_record::{FsGroup, PluginName, RelPath};
use rustix::fs::{Mode, OFlags};

use crate::tear_down::{is_own, other_mount};
use crate::{
    Announced, Capabilities, FoundVolume, NodeFacts, Plugin, PodResources, Presence, Problem, Quantity, Rebuilt,
    RebuiltSpec, Reconstruction, SetUp, SpecError, SpecSource, TearDown, VolumeError, VolumeSpec,
};

use super::Marker;

/// The plugin `kubernetes.io/empty-dir`.
#[derive(Debug, Clone, Copy)]
pub struct EmptyDir;

/// Mode of the folder, whatever the umask.
const MODE: u32 = 0o777;

/// Mode of a tmpfs's root. The kubelet mounts it over its 0777 folder without a `mode` option, so pods see the kernel's
/// default: `drwxrwxrwt`.
const MEMORY_MODE: u32 = 0o1777;

/// Where an emptyDir's data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Medium {
    Disk,
    /// With a limit in bytes.
    Memory(Option<u64>),
    /// With a page size in bytes, if the pod names one.
    HugePages(Option<u64>),
}

fn medium(spec: &VolumeSpec) -> Result<Medium, SpecError> {
    let volume = &spec.source.volume().typed;
    let field = |field: &str, why: String| SpecError::Field {
        volume: volume.name.clone(),
        field: format!("emptyDir.{field}"),
        why,
    };
    let bytes = |text: &str| Quantity::parse(text).ok().and_then(Quantity::to_u64);
    let source = volume.empty_dir.clone().unwrap_or_default();
    let limit = match &source.size_limit {
        None => None,
        Some(text) => Some(
            bytes(&text.0)
                .ok_or_else(|| field("sizeLimit", format!("is {:?}, which is no quantity of bytes", text.0)))?,
        ),
    };
    match source.medium.as_deref().unwrap_or_default() {
        "" => Ok(Medium::Disk),
        // A limit of zero means none.
        "Memory" => Ok(Medium::Memory(limit.filter(|bytes| *bytes > 0))),
        "HugePages" => Ok(Medium::HugePages(None)),
        other => match other.strip_prefix("HugePages-").map(bytes) {
            Some(Some(bytes)) if bytes > 0 => Ok(Medium::HugePages(Some(bytes))),
            _ => Err(field("medium", format!("is {other:?}; known are \"\", Memory, HugePages and HugePages-<size>"))),
        },
    }
}

impl Plugin for EmptyDir {
    fn name(&self) -> PluginName {
        PluginName::new("kubernetes.io/empty-dir").expect("a constant name")
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            attachable: false,
            device_mountable: false,
            block: false,
            content: false,
            verify: false,
            binds: false,
            reconstruction: Reconstruction::FromLayout,
            presence: Presence::Marker,
        }
    }

    fn supports(&self, source: &SpecSource) -> bool {
        matches!(source, SpecSource::Inline { volume } if volume.typed.empty_dir.is_some())
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        medium(spec).map(drop)
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        Ok(spec.spec_name.to_string())
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        let path = folder(step.path)?;
        let medium = medium(step.spec).map_err(|error| {
            VolumeError::Refused(Problem::new("BadSpec", error.to_string(), "correct the pod's volume"))
        })?;
        let marker = Marker::new(&step.pod.uid, step.spec.spec_name.as_str())?;
        let ready = marker.is_set(step.host)?;

        // What is mounted there must be what the record announces; anything else is somebody else's.
        let table = step.host.mount_table().map_err(VolumeError::Table)?;
        let absolute = step.host.absolute(path);
        let found = table.at(&absolute);
        if let Some(found) = found
            && !step.mounted
        {
            return Err(VolumeError::Refused(other_mount(&absolute, found)));
        }
        match (medium, found) {
            (Medium::Disk, None) => set_up_folder(&step, path, &marker, ready),
            (Medium::Disk, Some(found)) => Err(VolumeError::Refused(other_mount(&absolute, found))),
            (_, Some(_)) => finish_mount(&step, path, &marker, ready),
            (Medium::Memory(limit), None) => {
                let mount = super::new_tmpfs(step.host, memory_size(limit, step.resources), MEMORY_MODE)?;
                set_up_mount(&step, path, &marker, ready, mount)
            }
            (Medium::HugePages(size), None) => {
                let size = requested_page_size(size, step.resources)?;
                has_page_size(size, Path::new("/sys/kernel/mm/hugepages"))?;
                // The kubelet gives no mode, so the folder is as the kernel makes it, 0755.
                let options = [format!("pagesize={size}")];
                let mount = NewMount::file_system(step.host.kernel, "hugetlbfs", "nodev", &options)
                    .map_err(VolumeError::Mount)?;
                set_up_mount(&step, path, &marker, ready, mount)
            }
        }
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        let path = folder(step.record.path.as_ref())?;
        Marker::new(&step.record.pod.uid, step.record.spec_name.as_str())?.remove(step.host)?;
        crate::unmount_nested(step.host, path)?;
        let expected = step.host.announced_mount(step.record.mount.as_ref(), &step.record.boot_id);
        refuse_other(step, path, expected.as_ref())?;
        crate::unmount_own_layers(step.host, path, expected.as_ref())?;
        crate::remove_volume_dir(step.host, path, step.trusted)
    }

    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        let mut lost = vec!["emptyDir.sizeLimit"];
        let mut source = serde_json::Map::new();
        match found.table.at(found.path).map(|m| m.fs_type().into_owned()).as_deref() {
            Some("tmpfs") => {
                source.insert("medium".into(), "Memory".into());
            }
            // Of huge pages it cannot be told whether the pod named their size. Without a mount, a folder may be all
            // that a reboot left of a tmpfs.
            _ => lost.push("emptyDir.medium"),
        }
        let spec = serde_json::json!({ "name": found.folder, "emptyDir": source });
        Some(Rebuilt {
            spec: RebuiltSpec::Volume(spec),
            lost,
            volume_name: None,
            provider_info: None,
            doubts: crate::Doubts::default(),
        })
    }
}

fn folder(path: Option<&RelPath>) -> Result<&RelPath, VolumeError> {
    path.ok_or_else(|| {
        VolumeError::Refused(Problem::new(
            "NoFolder",
            "the record of an emptyDir has no path",
            "the record was changed by hand or by another program; `refloat record show` prints it",
        ))
    })
}

/// A disk emptyDir.
fn set_up_folder(step: &SetUp<'_>, path: &RelPath, marker: &Marker, ready: bool) -> Result<(), VolumeError> {
    let there = step.host.root.open_dir(path.as_path()).map_err(VolumeError::Path)?.is_some();
    let announced = step.announce(None, None)?;
    if ready && there {
        return Ok(());
    }
    if ready {
        marker.remove(step.host)?;
    }
    let dir = announced.make_volume_dir(MODE)?;
    // An interrupted SetUp may have made it without the mode.
    set_mode(&dir, MODE)?;
    if let Some(group) = step.fs_group {
        crate::apply_fs_group(dir.as_fd(), dir.path(), group, false)?;
    }
    marker.set(&announced)
}

/// An emptyDir that is a mount of its own, which is already there: only what is missing is done.
fn finish_mount(step: &SetUp<'_>, path: &RelPath, marker: &Marker, ready: bool) -> Result<(), VolumeError> {
    let announced = step.announce(None, None)?;
    if ready {
        return Ok(());
    }
    group_of_mounted(&announced, path, step.fs_group)?;
    marker.set(&announced)
}

/// An emptyDir that is a mount of its own: prepared before anybody sees it.
fn set_up_mount(
    step: &SetUp<'_>,
    path: &RelPath,
    marker: &Marker,
    ready: bool,
    mount: NewMount,
) -> Result<(), VolumeError> {
    super::refuse_hidden_data(step.host, path)?;
    let prepared = match (mount.root(), step.fs_group) {
        (None, _) => false,
        (Some(root), group) => {
            if let Some(group) = group {
                let root =
                    rustix::fs::openat(root, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                        .map_err(|source| io("open the new mount for", &step.host.absolute(path), source))?;
                crate::apply_fs_group(root.as_fd(), &step.host.absolute(path), group, false)?;
            }
            true
        }
    };
    let announced = step.announce(Some(&mount), None)?;
    if ready {
        // It speaks of a mount that is gone, with its data.
        marker.remove(step.host)?;
    }
    let dir = announced.make_volume_dir(MODE)?;
    announced.attach(mount, &dir)?;
    if !prepared {
        group_of_mounted(&announced, path, step.fs_group)?;
    }
    marker.set(&announced)
}

fn group_of_mounted(announced: &Announced<'_>, path: &RelPath, group: Option<FsGroup>) -> Result<(), VolumeError> {
    let Some(group) = group else { return Ok(()) };
    let host = announced.host;
    let dir = host
        .root
        .open_dir_in_mount(path.as_path())
        .map_err(VolumeError::Path)?
        .ok_or_else(|| io("open", &host.absolute(path), rustix::io::Errno::NOENT))?;
    crate::apply_fs_group(dir.as_fd(), dir.path(), group, false)
}

fn set_mode(dir: &Dir, mode: u32) -> Result<(), VolumeError> {
    rustix::fs::fchmod(dir, Mode::from_raw_mode(mode)).map_err(|source| io("set the mode of", dir.path(), source))
}

fn io(doing: &'static str, path: &Path, source: rustix::io::Errno) -> VolumeError {
    VolumeError::Io { doing, path: path.to_path_buf(), source: source.into() }
}

/// The size of a tmpfs: what the pod may use of the node's memory, and no more than its own limit. None, the kernel's
/// default, where nothing of it is known.
///
/// # Source
/// `calculateEmptyDirMemorySize` in `pkg/volume/emptydir` of Kubernetes v1.36.
fn memory_size(limit: Option<u64>, resources: &PodResources) -> Option<u64> {
    let machine = || NodeFacts::read(None).allocatable.get("memory").and_then(|q| q.to_u64());
    [limit, resources.memory_limit, resources.node_memory.or_else(machine)].into_iter().flatten().min()
}

/// The page size in bytes: the one that the medium names, which a container must request too, else the only one that is
/// requested.
///
/// # Source
/// `getPageSizeMountOption` in `pkg/volume/emptydir` of Kubernetes v1.36.
fn requested_page_size(named: Option<u64>, resources: &PodResources) -> Result<u64, VolumeError> {
    let requested = &resources.huge_page_sizes;
    let refused =
        |message: String, hint| Err(VolumeError::Refused(Problem::new("HugePagesNotRequested", message, hint)));
    let list = || requested.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match (named, requested.first()) {
        (Some(size), _) if requested.contains(&size) => Ok(size),
        (None, Some(size)) if requested.len() == 1 => Ok(*size),
        (None, Some(_)) => refused(
            format!("the medium HugePages names no size, and the pod requests pages of several sizes ({})", list()),
            "Name the size in the pod: medium: HugePages-2Mi.",
        ),
        (_, None) => refused(
            "the medium is huge pages, and no container of the pod requests any".into(),
            "Add hugepages-SIZE to the resources of a container.",
        ),
        (Some(size), Some(_)) => refused(
            format!("the medium is huge pages of {size} bytes, and the pod requests other sizes ({})", list()),
            "Make the medium and a container's request name the same size.",
        ),
    }
}

/// A mount at the folder that the record does not announce is not this volume's. Without a record, what an emptyDir
/// can be is taken for one.
fn refuse_other(
    step: &TearDown<'_>,
    path: &RelPath,
    expected: Option<&refloat_record::RecordedMount>,
) -> Result<(), VolumeError> {
    let absolute = step.host.absolute(path);
    let table = step.host.mount_table_at(&absolute).map_err(VolumeError::Table)?;
    let Some(top) = table.at(&absolute) else { return Ok(()) };
    let own = match expected {
        Some(expected) => is_own(top, expected),
        None => !step.trusted && matches!(&*top.fs_type(), "tmpfs" | "hugetlbfs"),
    };
    if own { Ok(()) } else { Err(VolumeError::Refused(other_mount(&absolute, top))) }
}

/// Refuses a page size that the kernel does not have.
fn has_page_size(size: u64, folder: &Path) -> Result<(), VolumeError> {
    let io = |source| VolumeError::Io { doing: "list the huge page sizes in", path: folder.to_path_buf(), source };
    let mut sizes: Vec<u64> = vec![];
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
        Ok(entries) => {
            for entry in entries {
                let name = entry.map_err(io)?.file_name();
                let kib =
                    name.to_str().and_then(|n| n.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok());
                sizes.extend(kib.and_then(|kib| kib.checked_mul(1024)));
            }
        }
    }
    if sizes.contains(&size) {
        return Ok(());
    }
    sizes.sort_unstable();
    let list = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    Err(VolumeError::Refused(Problem::new(
        "HugePagesUnsupported",
        format!("this kernel has no huge pages of {size} bytes (it has: {list})"),
        "Use a size that the kernel has, see /sys/kernel/mm/hugepages.",
    )))
}
