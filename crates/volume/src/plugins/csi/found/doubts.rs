//! What speaks against a `vol_data.json` in a pod's folder: the folder's own name, the hashes that it holds itself, and what is
//! mounted there and where volumes are staged.
//!
//! A driver need not stage a volume, nor publish what it staged, so that it is no contradiction if nothing of the kind
//! is found. A file that nothing speaks for, and anything against, may be of another volume: then nobody can tell which it is, and
//! its driver is not to be asked to undo it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use refloat_mount::{Device, Mount};
use refloat_record::VolumeMode;

use super::super::source::{attachment_name, ephemeral_handle};
use super::{VolData, is_folder_of, root_of, shows, stages};
use crate::{Doubts, FoundVolume, layout};

/// What speaks against it.
pub(super) fn of(found: &FoundVolume<'_>, data: &VolData) -> Doubts {
    let mut doubts = Doubts::default();
    let file = layout::VOL_DATA;
    if let Some(name) = data.spec_vol_id.as_deref().filter(|name| !is_folder_of(found.folder, name)) {
        // It may be as long as a file.
        let name: String = name.chars().take(256).collect();
        doubts.contradictions.push(format!(
            "{file} is about a volume called {name:?} ({data}), and its folder is called {:?}",
            found.folder
        ));
    }
    doubts.contradictions.extend(own_hashes(found, data));
    let staged = found.mode == VolumeMode::Filesystem && !data.is_ephemeral();
    let mount = found.table.at(found.path).filter(|_| staged);
    let compared = mount.zip(root_of(found)).map(|(mount, root)| by_mount(found, data, mount, root));
    let confirmed = match compared {
        None | Some(Compared::Nothing) => false,
        Some(Compared::Confirmed) => true,
        Some(Compared::Contradicted(why)) => {
            doubts.contradictions.push(why);
            false
        }
    };
    doubts.of_identity = !confirmed && !doubts.contradictions.is_empty();
    if doubts.of_identity && staged {
        let root = root_of(found);
        let there = |rel: &refloat_record::RelPath| root.is_some_and(|root| found.table.at(&rel.below(root)).is_some());
        doubts.by_file = stages(data).find(there);
    }
    doubts
}

/// What the file says of itself: names that the kubelet made of driver, volume, node and pod. Others are not judged.
fn own_hashes(found: &FoundVolume<'_>, data: &VolData) -> Option<String> {
    let is_hash = |name: &str| {
        name.strip_prefix("csi-").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let file = layout::VOL_DATA;
    if let (Some(attachment), Some(node)) = (&data.attachment_id, &data.node_name)
        && is_hash(attachment)
        && *attachment != attachment_name(&data.volume_handle, &data.driver_name, node)
    {
        return Some(format!(
            "{file} contradicts itself: it is about {data}, and its attachment {attachment} is another volume's, driver's or \
             node's"
        ));
    }
    let name = data.spec_vol_id.as_deref().unwrap_or(found.folder);
    // `<root>/pods/<uid>/volumes/<plugin>/<name>/mount`
    let pod = found.path.ancestors().nth(4).and_then(Path::file_name).and_then(|uid| uid.to_str());
    let foreign = |pod: &str| is_hash(&data.volume_handle) && data.volume_handle != ephemeral_handle(pod, name);
    (data.is_ephemeral() && found.mode == VolumeMode::Filesystem && pod.is_some_and(foreign)).then(|| {
        format!(
            "{file} is about {data}, which is the handle of another pod's or of another inline volume than {name:?}"
        )
    })
}

enum Compared {
    Nothing,
    Confirmed,
    Contradicted(String),
}

/// What a pod's mount says of the file.
fn by_mount(found: &FoundVolume<'_>, data: &VolData, mount: Mount<'_>, root: &Path) -> Compared {
    let own: Vec<PathBuf> = stages(data).map(|rel| rel.below(root)).collect();
    if own.iter().any(|path| shows(found, path, mount)) {
        return Compared::Confirmed;
    }
    let file = layout::VOL_DATA;
    let others = found.memo.csi_stages.get_or_init(|| staged(found, root));
    let others = others.get(&mount.device()).map_or(&[][..], Vec::as_slice);
    if let Some(other) = others.iter().find(|path| shows(found, path, mount)) {
        return Compared::Contradicted(format!(
            "{file} is about {data}, and what is mounted is what is staged at {}",
            other.display()
        ));
    }
    let stage = own.iter().find_map(|path| Some((path, found.table.at(path)?)));
    match stage.filter(|(_, stage)| is_another(*stage, mount)) {
        None => Compared::Nothing,
        Some((path, stage)) => Compared::Contradicted(format!(
            "{file} is about {data}, which is staged at {} from {:?}, and what is mounted is {:?}",
            path.display(),
            stage.source(),
            mount.source()
        )),
    }
}

/// Whether these are surely two volumes, and not what a driver made of one.
fn is_another(stage: Mount<'_>, mount: Mount<'_>) -> bool {
    let on_disks = stage.device().major != 0 && mount.device().major != 0;
    stage.device() != mount.device() && are_two(on_disks, &stage.source(), &mount.source())
}

/// Whether two sources are two disks, or two exports neither of which is a part of the other: a driver may stage an
/// export and publish a folder of it, as a mount of its own.
fn are_two(on_disks: bool, stage: &str, mount: &str) -> bool {
    let disks = on_disks || stage.starts_with("/dev/") && mount.starts_with("/dev/");
    let remote = |source: &str| source.starts_with("//") || source.contains(":/");
    let parts = || stage.starts_with(mount) || mount.starts_with(stage);
    stage != mount && (disks || remote(stage) && remote(mount) && !parts())
}

/// Where CSI volumes are staged, by file system.
fn staged(found: &FoundVolume<'_>, root: &Path) -> HashMap<Device, Vec<PathBuf>> {
    let mut all: HashMap<Device, Vec<PathBuf>> = HashMap::new();
    let mounts = found.table.under(&root.join(layout::PLUGINS).join(layout::CSI));
    for mount in mounts.filter(|mount| mount.point().ends_with(layout::CSI_GLOBAL_MOUNT)) {
        all.entry(mount.device()).or_default().push(mount.point().to_path_buf());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::are_two;

    #[test]
    fn two_disks_or_exports_are_two_volumes_and_what_a_driver_makes_of_one_is_not() {
        for (stage, mount, two) in [
            ("/dev/sda", "/dev/sdb", true),
            ("/dev/sda", "/dev/sda", false),
            ("srv:/a", "srv:/b", true),
            ("srv:/a", "other:/a", true),
            ("//srv/share", "//srv/other", true),
            ("srv:/", "srv:/pvc-1", false),
            ("//srv/share", "//srv/share/sub", false),
            ("tmpfs", "driver", false),
            ("/dev/sda", "srv:/a", false),
        ] {
            assert_eq!(are_two(false, stage, mount), two, "{stage} {mount}");
        }
        assert!(are_two(true, "one", "two"));
    }
}
