//! Volumes and devices without a record: what the kubelet's `vol_data.json` tells.

use std::path::Path;

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
    let name = data.spec_vol_id.as_deref().unwrap_or(found.folder);
    let provider_info = Some(info(data).verbatim());
    if data.is_ephemeral() {
        let spec = serde_json::json!({ "name": name, "csi": { "driver": data.driver_name } });
        return Some(Rebuilt {
            spec: RebuiltSpec::Volume(spec),
            lost: LOST_INLINE.to_vec(),
            volume_name: None,
            provider_info,
        });
    }
    let source = serde_json::json!({ "driver": data.driver_name, "volumeHandle": data.volume_handle });
    let spec = rebuilt_persistent_volume(name, "csi", &source, found.mode);
    Some(Rebuilt {
        spec: RebuiltSpec::PersistentVolume(spec),
        lost: LOST.to_vec(),
        volume_name: Some(volume_name(&data.driver_name, &data.volume_handle)),
        provider_info,
    })
}

/// Where the volume that the file is about is staged, if it is mounted there: by the hash of its handle, or by the
/// `PersistentVolume`'s name, as kubelets before 1.24 had it.
pub(super) fn device_of(found: &FoundVolume<'_>) -> Option<GlobalMount> {
    let data = found.foreign?.good().filter(|data| !data.is_ephemeral() && found.mode == VolumeMode::Filesystem)?;
    let mount = found.table.at(found.path)?;
    // The path is the `mount` in the volume's folder.
    let root = node_root(found.path.parent()?)?;
    let staged = |rel: Option<RelPath>| {
        let path = rel?.below(root);
        let stage = found.table.at(&path)?;
        (stage.device() == mount.device() && mount.root().starts_with(stage.root())).then_some(path)
    };
    let old = || {
        let name = data.spec_vol_id.as_deref()?;
        staged(RelPath::new(format!("{}/{}/pv/{name}/{}", layout::PLUGINS, layout::CSI, layout::CSI_GLOBAL_MOUNT)).ok())
    };
    let path = staged(stage_path(&data.driver_name, &data.volume_handle)).or_else(old)?;
    Some(GlobalMount { path, volume_name: Some(volume_name(&data.driver_name, &data.volume_handle)) })
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
