//! `AdmitPod`: the pod's checkpoint, before anything of it is set up.

use refloat_record::{PodCheckpoint, Record};
use refloat_volume::VolumeError;

use super::{Journal, Success};

pub(super) fn run(journal: &Journal<'_>, checkpoint: Option<&PodCheckpoint>) -> Result<Success, VolumeError> {
    if let Some(checkpoint) = checkpoint {
        journal.put(Record::PodCheckpoint(checkpoint.clone()))?;
    }
    Ok(Success::Done)
}
