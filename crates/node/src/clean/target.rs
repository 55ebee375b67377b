//! What a person names to be cleaned.

use std::path::{Path, PathBuf};

use refloat_record::{OuterSpecName, UniqueVolumeName};
use refloat_volume::migration::{in_tree_plugin, same_volume};

use crate::{ActualDevice, ActualVolume, Leftover};

/// A pod's uid, `namespace/name`, a path, or a unique volume name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target(pub String);

impl Target {
    /// As a path that the mount table could spell, if it is one. `given` is how the root was named, `root` how the table
    /// spells it.
    fn path(&self, root: &Path, given: &Path) -> Option<PathBuf> {
        let path = Path::new(&self.0);
        if !path.is_absolute() {
            return None;
        }
        // Without `//`, `.` and a slash at the end.
        let path: PathBuf = path.components().collect();
        Some(path.strip_prefix(given).map_or_else(|_| path.clone(), |rest| root.join(rest)))
    }

    /// Whether it names this pod.
    pub(crate) fn names_pod(&self, pod: &str, name: Option<&(String, String)>, root: &Path, given: &Path) -> bool {
        let by_name = |(namespace, name): &(String, String)| self.0 == format!("{namespace}/{name}");
        self.0 == pod
            || name.is_some_and(by_name)
            || self.path(root, given).is_some_and(|path| path == root.join("pods").join(pod))
    }

    /// Whether it names this volume by its path or unique name.
    pub(crate) fn names_volume(&self, volume: &ActualVolume, root: &Path, given: &Path) -> bool {
        let unique_name = volume.unique_name.as_ref().map(UniqueVolumeName::as_str);
        // The pod's own name for a volume that a CSI driver took over names no folder any more.
        let own_name = |name: &OuterSpecName| self.0 == format!("{}/{name}", volume.key.pod);
        unique_name.is_some_and(|name| same_volume(name, &self.0))
            || unique_name.and_then(in_tree_plugin).is_some() && volume.outer_names.iter().any(own_name)
            || self.0 == format!("{}/{}", volume.key.pod, volume.key.spec_name)
            || self.path(root, given).is_some_and(|path| {
                volume.path.as_ref().is_some_and(|own| *own == path || own.parent() == Some(&path))
                    || volume.sub_paths.iter().any(|sub_path| sub_path.path == path)
            })
    }

    /// Whether it names this device by its path, from `/` or from the root, or by its unique name.
    pub(crate) fn names_device(&self, device: &ActualDevice, root: &Path, given: &Path) -> bool {
        device.unique_name.as_ref().is_some_and(|name| same_volume(name.as_str(), &self.0))
            || self.0.contains('/') && root.join(&self.0) == device.path
            || self.path(root, given).is_some_and(|path| path == device.path)
    }

    pub(crate) fn names_leftover(&self, leftover: &Leftover, root: &Path, given: &Path) -> bool {
        self.path(root, given).is_some_and(|path| path == leftover.path)
    }
}
