//! Volumes and devices without a record: what the kubelet's `vol_data.json` tells.

mod doubts;

use std::path::Path;

use refloat_mount::Mount;
use refloat_record::{RelPath, VolumeMode};

use super::info::Info;
use super::source::{stage_folder, stage_path, volume_name};
use super::vol_data::{ForeignFile, VolData};
use crate::plugins::{node_root, rebuilt_persistent_volume};
use crate::{FoundVolume, GlobalMount, Rebuilt, RebuiltDevice, RebuiltSpec, layout};

/// What only a spec tells.
const LOST: [&str; 11] = [
    "spec.accessModes",
    "spec.capacity",
    "spec.claimRef",
    "spec.csi.fsType",
    "spec.csi.nodePublishSecretRef",
    "spec.csi.nodeStageSecretRef",
    "spec.csi.volumeAttributes",
    "spec.mountOptions",
    "spec.nodeAffinity",
    "spec.persistentVolumeReclaimPolicy",
    "spec.storageClassName",
];
const LOST_INLINE: [&str; 4] = ["csi.fsType", "csi.nodePublishSecretRef", "csi.readOnly", "csi.volumeAttributes"];

fn info(data: &VolData) -> Info {
    Info {
        driver: data.driver_name.clone(),
        volume_handle: data.volume_handle.clone(),
        ephemeral: data.is_ephemeral(),
        attachment_id: data.attachment_id.clone(),
    }
}

pub(super) fn volume(found: &FoundVolume<'_>) -> Option<Rebuilt> {
    let data = found.foreign?.good()?;
    let doubts = doubts::of(found, data);
    // What the folder is called stands. The kubelet's folders have `~` for the `/` of a name.
    let name = data.spec_vol_id.as_deref().filter(|name| is_folder_of(found.folder, name)).unwrap_or(found.folder);
    let known = !doubts.of_identity;
    let provider_info = known.then(|| info(data).verbatim());
    let mut source = serde_json::Map::new();
    if known {
        source.insert("driver".into(), data.driver_name.as_str().into());
    }
    if data.is_ephemeral() {
        let spec = serde_json::json!({ "name": name, "csi": source });
        let lost = (!known).then_some("csi.driver").into_iter().chain(LOST_INLINE).collect();
        return Some(Rebuilt { spec: RebuiltSpec::Volume(spec), lost, volume_name: None, provider_info, doubts });
    }
    if known {
        source.insert("volumeHandle".into(), data.volume_handle.as_str().into());
    }
    let spec = rebuilt_persistent_volume(name, "csi", &source.into(), found.mode);
    let identity: &[&str] = if known { &[] } else { &["spec.csi.driver", "spec.csi.volumeHandle"] };
    Some(Rebuilt {
        spec: RebuiltSpec::PersistentVolume(spec),
        lost: LOST.iter().chain(identity).copied().collect(),
        volume_name: known.then(|| volume_name(&data.driver_name, &data.volume_handle)),
        provider_info,
        doubts,
    })
}

/// Whether the kubelet calls the folder of the volume with this spec name so.
fn is_folder_of(folder: &str, spec_name: &str) -> bool {
    folder.len() == spec_name.len() && folder.bytes().eq(spec_name.bytes().map(|b| if b == b'/' { b'~' } else { b }))
}

/// Where the volume that the file is about is staged, if it is mounted there: by the hash of its handle, or by the
/// `PersistentVolume`'s name, as kubelets before 1.24 had it.
pub(super) fn device_of(found: &FoundVolume<'_>) -> Option<GlobalMount> {
    let data = found.foreign?.good().filter(|data| !data.is_ephemeral() && found.mode == VolumeMode::Filesystem)?;
    let mount = found.table.at(found.path)?;
    let root = root_of(found)?;
    let path = stages(data).map(|rel| rel.below(root)).find(|path| shows(found, path, mount))?;
    Some(GlobalMount { path, volume_name: Some(volume_name(&data.driver_name, &data.volume_handle)) })
}

/// The node root. The path is the `mount` in the volume's folder.
fn root_of<'a>(found: &FoundVolume<'a>) -> Option<&'a Path> {
    node_root(found.path.parent()?)
}

/// Where the volume that a file is about is staged if it is, in both layouts.
fn stages(data: &VolData) -> impl Iterator<Item = RelPath> {
    let old = || {
        let name = data.spec_vol_id.as_deref()?;
        RelPath::new(format!("{}/{}/pv/{name}/{}", layout::PLUGINS, layout::CSI, layout::CSI_GLOBAL_MOUNT)).ok()
    };
    std::iter::once_with(|| stage_path(&data.driver_name, &data.volume_handle))
        .chain(std::iter::once_with(old))
        .flatten()
}

/// Whether a pod's mount can have been bound from what is mounted at this path.
fn shows(found: &FoundVolume<'_>, stage: &Path, mount: Mount<'_>) -> bool {
    let stage = found.table.at(stage);
    stage.is_some_and(|stage| stage.device() == mount.device() && mount.root().starts_with(stage.root()))
}

/// A staged volume, from the file beside its global mount. The folder's name must be the hash of the handle, and the one
/// above it the driver's, or those of kubelets before 1.24, `pv/<persistent volume>`.
pub(super) fn device(rel: &RelPath, foreign: &ForeignFile) -> Result<RebuiltDevice, String> {
    let data = match foreign {
        ForeignFile::Good(data) => data,
        ForeignFile::Bad { why } => return Err(format!("{} beside it says nothing: {why}", layout::VOL_DATA)),
    };
    let above = |levels: usize| {
        rel.as_path()
            .ancestors()
            .nth(levels)
            .and_then(Path::file_name)
            .and_then(|name| name.to_str())
            .unwrap_or_default()
    };
    let (folder, driver) = (above(1), above(2));
    let old = driver == "pv";
    // Of a block volume, the `PersistentVolume`'s name is the folder's.
    let block = rel.as_path().parent().is_some_and(|above| above == Path::new(layout::CSI_BLOCK).join("staging"));
    if block && data.spec_vol_id.as_deref() != rel.as_path().file_name().and_then(|name| name.to_str()) {
        return Err(format!("{} of it is of {data}, which is another volume's", layout::VOL_DATA));
    }
    if !old && !block && (driver != data.driver_name || folder != stage_folder(&data.volume_handle)) {
        return Err(format!("{} beside it is of {data}, which is staged in another folder", layout::VOL_DATA));
    }
    Ok(RebuiltDevice {
        volume_name: volume_name(&data.driver_name, &data.volume_handle),
        provider_info: info(data).verbatim(),
    })
}
