//! A node that another program made: its mount table, the folders that its mounts stand in, and that program's file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use refloat_mount::MountTable;
use refloat_record::{BootId, Loaded, PodUid};
use refloat_volume::{ForeignFile, Plugins, layout};

use crate::evidence::{Evidence, PodTree, Tree, VolumeFolder};
use crate::reconstruct;

const ROOT: &str = "/r";
/// The longest name that a folder can have, in bytes (`limits.h` of Linux).
const NAME_MAX: usize = 255;

/// Reads bytes as a mount table and, behind a NUL, as the file beside each CSI volume; reconstructs the node whose folders are
/// those that something is mounted at. Any answer is fine as long as it is the same twice, stays below the root, and
/// loses no volume.
pub fn foreign(bytes: &[u8]) {
    let (mounts, file) = match bytes.iter().position(|&byte| byte == 0) {
        Some(end) => (&bytes[..end], Some(&bytes[end + 1..])),
        None => (bytes, None),
    };
    let (table, _) = MountTable::from_mountinfo(mounts);
    let file = file.map(ForeignFile::parse);
    let tree = tree(&table, file.as_ref());
    let folders: BTreeSet<PathBuf> = tree.pods.iter().flat_map(volume_paths).collect();
    let evidence = Evidence {
        root: ROOT.into(),
        boot_id: BootId::new("this").expect("a boot's id"),
        records: Loaded::default(),
        table: Arc::new(table),
        tree: Some(tree),
        missing_drivers: BTreeMap::new(),
        hanging: std::collections::BTreeMap::new(),
    };
    let plugins = Plugins::builtin();
    let actual = reconstruct(&evidence, &plugins);
    assert_eq!(format!("{actual:?}"), format!("{:?}", reconstruct(&evidence, &plugins)), "the same answer twice");
    for volume in &actual.volumes {
        assert!(volume.path.iter().all(|path| path.starts_with(ROOT)), "{:?}", volume.path);
        assert!(volume.record.iter().all(|r| r.path.iter().all(|p| p.as_path().starts_with(layout::PODS))));
        // Whatever a file names: a CSI volume's global mount is in one place.
        let of_csi = volume.record.iter().filter(|r| r.plugin.as_str() == layout::CSI);
        let csi = Path::new(layout::PLUGINS).join(layout::CSI);
        assert!(of_csi.filter_map(|r| r.device_mount_path.as_ref()).all(|path| path.as_path().starts_with(&csi)));
    }
    assert!(actual.devices.iter().all(|device| device.path.starts_with(ROOT)));
    let seen: BTreeSet<&Path> = actual.volumes.iter().filter_map(|volume| volume.path.as_deref()).collect();
    let left: Vec<&Path> = actual.leftovers.iter().map(|leftover| leftover.path.as_path()).collect();
    for folder in folders {
        // A CSI volume's path is the folder's `mount`.
        let found = seen.iter().chain(&left).any(|path| path.starts_with(&folder) || folder.starts_with(path));
        assert!(found, "{} is nowhere in {actual:?}", folder.display());
    }
}

/// The folders that these mounts stand in.
fn tree(table: &MountTable, file: Option<&ForeignFile>) -> Tree {
    let mut tree = Tree::default();
    let mut pods: BTreeMap<String, PodTree> = BTreeMap::new();
    for mount in table.iter() {
        let Some(rel) = mount.point().to_str().and_then(|path| path.strip_prefix("/r/")) else { continue };
        let parts: Vec<&str> = rel.split('/').collect();
        // No folder can be called so.
        if parts.iter().any(|part| part.is_empty() || *part == "." || *part == ".." || part.len() > NAME_MAX) {
            continue;
        }
        match parts.as_slice() {
            ["pods", uid, "volumes", plugin, name, ..] => {
                if PodUid::new(*uid).is_err() {
                    continue;
                }
                let pod = pods.entry((*uid).to_owned()).or_insert_with(|| PodTree::new(uid.as_ref()));
                if !pod.volumes.iter().any(|v| v.plugin == *plugin && v.name == *name) {
                    pod.volumes.push(VolumeFolder {
                        plugin: (*plugin).to_owned(),
                        name: (*name).to_owned(),
                        is_dir: true,
                        link: None,
                        link_device: None,
                        empty: None,
                        foreign: file.filter(|_| *plugin == layout::CSI_FOLDER).cloned(),
                    });
                }
            }
            // What a symlink says cannot be in a mount table: all say the same.
            ["pods", uid, "volumeDevices", plugin, name] => {
                if PodUid::new(*uid).is_err() {
                    continue;
                }
                let pod = pods.entry((*uid).to_owned()).or_insert_with(|| PodTree::new(uid.as_ref()));
                if !pod.volume_devices.iter().any(|v| v.plugin == *plugin && v.name == *name) {
                    pod.volume_devices.push(VolumeFolder {
                        plugin: (*plugin).to_owned(),
                        name: (*name).to_owned(),
                        is_dir: false,
                        link: Some("/dev/sdb".into()),
                        link_device: Some("/dev/sdb".into()),
                        empty: None,
                        foreign: None,
                    });
                }
            }
            _ if layout::map_file(rel).is_some() => {
                let path = PathBuf::from(rel);
                tree.global_folders.extend(path.parent().map(Path::to_path_buf));
                tree.blocks.maps.push(path);
            }
            _ if layout::global_path(rel).is_some() => {
                let path = PathBuf::from(rel);
                if let (Some(file), Some(folder)) = (file, layout::csi_data_folder(&path)) {
                    tree.foreign.insert(folder.clone(), file.clone());
                }
                tree.global_folders.push(path);
            }
            _ => {}
        }
    }
    tree.global_folders.sort_unstable();
    tree.global_folders.dedup();
    tree.blocks.maps.sort_unstable();
    tree.blocks.maps.dedup();
    tree.pods = pods.into_values().collect();
    for pod in &mut tree.pods {
        pod.volumes.sort_unstable();
        pod.volume_devices.sort_unstable();
    }
    tree
}

/// The volumes' folders, without those whose names can be no volume's.
fn volume_paths(pod: &PodTree) -> Vec<PathBuf> {
    let named = pod.volumes.iter().filter(|v| {
        refloat_record::SpecName::new(&v.name).is_ok() && refloat_record::PluginName::from_escaped(&v.plugin).is_ok()
    });
    named.map(|v| Path::new(ROOT).join(&pod.path).join(layout::VOLUMES).join(&v.plugin).join(&v.name)).collect()
}
