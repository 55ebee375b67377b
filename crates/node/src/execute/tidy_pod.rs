//! `TidyPod`: the folders of a pod that is gone, as far as they are empty or hold nothing but what a kubelet or volume
//! manager is known to write there; then the checkpoint. Nothing is unmounted.

use refloat_record::{PodUid, RecordKey};
use refloat_volume::{VolumeError, block, layout};

use super::forget_pod::remove_empty;
use super::{Executor, Journal, Success};
use crate::clean::known_files;

pub(super) fn run(executor: &Executor, journal: &Journal<'_>, pod: &PodUid) -> Result<Success, VolumeError> {
    let path = layout::pod_path(pod);
    let root = &executor.host.root;
    executor.check_unmounted(&path)?;
    block::detach_left(&executor.host, pod)?;
    for known in known_files::of_pod(root, pod).map_err(VolumeError::Path)? {
        if known.empty {
            root.remove_empty_file(&known.path).map_err(VolumeError::Remove)?;
        } else {
            root.remove_file(&known.path).map_err(VolumeError::Remove)?;
        }
    }
    remove_empty(executor, path.as_path(), 0)?;
    journal.remove(RecordKey::PodCheckpoint(pod.clone()))?;
    Ok(Success::Done)
}
