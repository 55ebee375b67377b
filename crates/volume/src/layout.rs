//! The kubelet's folder layout, as paths relative to the node root.
//!
//! # Source
//! `pkg/kubelet/kubelet_getters.go`, `pkg/volume/util/util.go` of Kubernetes v1.36.

mod global;

pub use global::{GlobalPath, global_path, map_file};

use refloat_record::{NameError, PluginName, PodRef, PodUid, RelPath, SpecName, UniqueVolumeName};

/// `pods`
pub const PODS: &str = "pods";
/// `volumes`, below a pod's folder.
pub const VOLUMES: &str = "volumes";
/// `volumeDevices`, below a pod's folder.
pub const VOLUME_DEVICES: &str = "volumeDevices";
/// `volume-subpaths`, below a pod's folder.
pub const VOLUME_SUBPATHS: &str = "volume-subpaths";
/// `plugins`, below the root and below a pod's folder.
pub const PLUGINS: &str = "plugins";

/// The name of the CSI plugin. A CSI volume's mount is one level deeper than its folder, at [`CSI_MOUNT`], and the
/// kubelet's file about it beside that, [`VOL_DATA`].
///
/// # Source
/// `GetPath` of the kubelet's `csiMountMgr`.
pub const CSI: &str = "kubernetes.io/csi";
/// Its folder below `volumes/`.
pub const CSI_FOLDER: &str = "kubernetes.io~csi";
/// `mount`, in a CSI volume's folder.
pub const CSI_MOUNT: &str = "mount";
/// Where everything of CSI block volumes is, relative to the node root: `staging/<volume>`, `publish/<volume>/<pod uid>`,
/// `<volume>/dev/<pod uid>` and `<volume>/data/vol_data.json`.
pub const CSI_BLOCK: &str = "plugins/kubernetes.io/csi/volumeDevices";
/// Where flexVolume drivers have their devices, relative to the node root: `<vendor>/<driver>/mounts/<volume>`.
pub const FLEX_VOLUME: &str = "plugins/kubernetes.io/flexvolume";
/// `globalmount`, in the folder of a staged CSI volume.
pub const CSI_GLOBAL_MOUNT: &str = "globalmount";
/// `vol_data.json`, in a CSI volume's folder and beside a global mount.
pub const VOL_DATA: &str = "vol_data.json";

/// The folder of the kubelet's file about a staged CSI volume, by its staging path; both relative to the node root.
pub fn csi_data_folder(staged: &std::path::Path) -> Option<std::path::PathBuf> {
    let block = std::path::Path::new(CSI_BLOCK);
    match staged.strip_prefix(block.join("staging")) {
        Ok(volume) => Some(block.join(volume).join("data")),
        Err(_) => staged.parent().map(std::path::Path::to_path_buf),
    }
}

fn rel(text: String) -> RelPath {
    RelPath::new(text).expect("made of names that hold no slash and are not dots")
}

/// [`RelPath::new`] refuses all but this.
fn one_element(what: &'static str, text: &str) -> Result<(), NameError> {
    if text.contains('/') {
        let text = text.chars().take(64).collect();
        return Err(NameError::Escapes { what, text, why: "it holds a slash" });
    }
    Ok(())
}

/// `pods/<uid>`
pub fn pod_path(pod: &PodUid) -> RelPath {
    rel(format!("{PODS}/{pod}"))
}

/// `pods/<uid>/volumes/<escaped plugin>/<spec>`
pub fn volume_path(pod: &PodUid, plugin: &PluginName, spec: &SpecName) -> RelPath {
    rel(format!("{PODS}/{pod}/{VOLUMES}/{}/{spec}", plugin.escaped()))
}

/// `pods/<uid>/volumeDevices/<escaped plugin>/<spec>`: the symlink of a block volume.
pub fn volume_device_path(pod: &PodUid, plugin: &PluginName, spec: &SpecName) -> RelPath {
    rel(format!("{PODS}/{pod}/{VOLUME_DEVICES}/{}/{spec}", plugin.escaped()))
}

/// `pods/<uid>/volume-subpaths/<spec>/<container>/<index>`
pub fn sub_path(pod: &PodUid, spec: &SpecName, container: &str, index: u32) -> Result<RelPath, NameError> {
    one_element("container name", container)?;
    RelPath::new(format!("{PODS}/{pod}/{VOLUME_SUBPATHS}/{spec}/{container}/{index}"))
}

/// `pods/<uid>/plugins/kubernetes.io~empty-dir/<name>`: the folder of the `ready` marker. `name` is the volume's for
/// an emptyDir and `wrapped_<name>` for configMap, secret, downwardAPI and projected volumes.
pub fn marker_dir(pod: &PodUid, name: &str) -> Result<RelPath, NameError> {
    one_element("marker name", name)?;
    RelPath::new(format!("{PODS}/{pod}/{PLUGINS}/kubernetes.io~empty-dir/{name}"))
}

/// The unique volume name of a volume that is one pod's own: `<plugin>/<uid>-<spec>`.
pub fn unique_name_of_pod(pod: &PodRef, plugin: &PluginName, spec: &SpecName) -> UniqueVolumeName {
    UniqueVolumeName::new(format!("{plugin}/{}-{spec}", pod.uid)).expect("made of names")
}

/// The unique volume name of a device that pods share: `<plugin>/<volume name>`.
pub fn unique_name_of_device(plugin: &PluginName, volume_name: &str) -> Result<UniqueVolumeName, NameError> {
    UniqueVolumeName::new(format!("{plugin}/{volume_name}"))
}

#[cfg(test)]
mod tests;
