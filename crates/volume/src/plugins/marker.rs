//! The `ready` marker of emptyDirs and of the volumes that the kubelet makes out of one (configMap, secret,
//! downwardAPI, projected).

use refloat_mount::EntryKind;
use refloat_record::{PodUid, RelPath};

use crate::{Announced, Host, Problem, VolumeError, layout};

const READY: &str = "ready";

/// The marker that says that SetUp was finished: an empty file, written last and removed first.
///
/// # Source
/// `SetReady`, `IsReady` of `pkg/volume/util/util.go` in Kubernetes v1.36.
#[derive(Debug, Clone)]
pub struct Marker {
    dir: RelPath,
    pod_dir: RelPath,
}

impl Marker {
    /// The marker of the emptyDir with this name; `wrapped_<volume>` for those made out of one.
    pub fn new(pod: &PodUid, name: &str) -> Result<Self, VolumeError> {
        let dir = layout::marker_dir(pod, name).map_err(|error| {
            VolumeError::Refused(Problem::new(
                "BadName",
                format!("no marker folder can be named {name:?}: {error}"),
                "give the volume a shorter name of letters, digits and dashes",
            ))
        })?;
        Ok(Self { dir, pod_dir: layout::pod_path(pod) })
    }

    /// The marker file, relative to the node root.
    fn file(&self) -> RelPath {
        self.dir.join(READY).expect("a constant name without a slash")
    }

    /// Whether it is there.
    pub fn is_set(&self, host: &Host) -> Result<bool, VolumeError> {
        let entries = host.root.list(self.dir.as_path()).map_err(VolumeError::Path)?.unwrap_or_default();
        Ok(entries.iter().any(|e| e.name == READY && e.kind == EntryKind::File))
    }

    /// Writes it.
    pub fn set(&self, announced: &Announced<'_>) -> Result<(), VolumeError> {
        let root = &announced.host.root;
        root.make_dirs(self.dir.as_path(), 0o750).map_err(VolumeError::Path)?;
        root.make_file(self.file().as_path(), 0o644).map(drop).map_err(VolumeError::Path)
    }

    /// Removes it, and the folders above it that became empty, up to but without the pod's own.
    pub fn remove(&self, host: &Host) -> Result<(), VolumeError> {
        host.root.remove_file(self.file().as_path()).map_err(VolumeError::Remove)?;
        host.root.remove_empty_dirs_up(self.dir.as_path(), self.pod_dir.as_path()).map_err(VolumeError::Remove)
    }
}
