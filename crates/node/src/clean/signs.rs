//! Since when nothing has happened to a pod or device, as far as its folders date it.

use std::path::Path;

use jiff::Timestamp;
use refloat_mount::NodeRoot;
use refloat_record::PodUid;
use refloat_volume::layout;
use rustix::fs::AtFlags;

/// The newest change of the pod's folder and of those in it that a kubelet makes: when something of the pod was made or
/// removed there last. `None` if there is no folder.
pub(crate) fn of_pod(root: &NodeRoot, pod: &PodUid) -> Option<Timestamp> {
    let folder = layout::pod_path(pod);
    let own = of_folder(root, folder.as_path());
    let inside = ["volumes", "volumeDevices", "volume-subpaths", "plugins", "containers"];
    let inside = inside.iter().filter_map(|name| of_folder(root, &folder.as_path().join(name)));
    own.into_iter().chain(inside).max()
}

/// When a name in this folder was made or removed last.
pub(crate) fn of_folder(root: &NodeRoot, rel: &Path) -> Option<Timestamp> {
    // Opened by the rules of the root: a mount or symlink there dates nothing.
    let dir = root.open_dir(rel).ok()??;
    let stat = rustix::fs::statat(&dir, c"", AtFlags::EMPTY_PATH).ok()?;
    Timestamp::new(stat.st_mtime, 0).ok()
}
