//! Sources of pods.

pub mod asked;
pub mod manifests;
pub mod verdict;
pub mod yaml;

use std::path::Path;

use refloat_record::{PodCheckpoint, PodVolume, Record};
use refloat_volume::Plugins;

use crate::Desired;
use crate::desired::resolve;

/// Reads the manifest folder and resolves what its pods want. Pods that it can no longer tell of are taken from their
/// checkpoints, and their volumes from the records.
pub fn desired<'r>(
    folder: &Path,
    checkpoints: &[PodCheckpoint],
    records: impl IntoIterator<Item = &'r Record>,
    plugins: &Plugins,
) -> Desired {
    let volumes: Vec<&PodVolume> = records
        .into_iter()
        .filter_map(|record| match record {
            Record::PodVolume(volume) => Some(volume),
            Record::DeviceMount(_) | Record::PodCheckpoint(_) | Record::Driver(_) => None,
        })
        .collect();
    resolve(&manifests::read_folder(folder), checkpoints, &volumes, plugins)
}
