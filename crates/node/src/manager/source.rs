//! Where the desired state comes from.

use std::path::Path;

use refloat_record::{PodCheckpoint, PodVolume, Record};
use refloat_volume::Plugins;

use crate::Desired;
use crate::desired::resolve;
use crate::sources::manifests;

/// Reads the manifest folder and resolves what its pods want.
pub(super) fn read(folder: &Path, checkpoints: &[PodCheckpoint], records: &[Record], plugins: &Plugins) -> Desired {
    let volumes: Vec<&PodVolume> = records
        .iter()
        .filter_map(|record| match record {
            Record::PodVolume(volume) => Some(volume),
            Record::DeviceMount(_) | Record::PodCheckpoint(_) => None,
        })
        .collect();
    resolve(&manifests::read_folder(folder), checkpoints, &volumes, plugins)
}
