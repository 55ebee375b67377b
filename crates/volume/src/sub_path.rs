//! subPath mounts: a part of a volume, bound where a container's runtime finds it.

use refloat_record::{PodUid, PodVolume, RecordedMount, RecordedSubPath, SpecName};

use crate::{Host, SubPathSpec, VolumeError};

/// The record entries for these subPaths, without mounts.
pub fn plan(
    pod: &PodUid,
    spec: &SpecName,
    sub_paths: &[SubPathSpec],
) -> Result<Vec<RecordedSubPath>, crate::SpecError> {
    let _ = (pod, spec, sub_paths);
    todo!()
}

/// Makes the subPath mounts that are missing. `announce` makes the record durable with what is about to be mounted
/// and is called once, before the first one is attached; not at all if none is missing.
pub fn set_up(
    host: &Host,
    record: &PodVolume,
    sub_paths: &[SubPathSpec],
    announce: &mut dyn FnMut(Vec<Option<RecordedMount>>) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let _ = (host, record, sub_paths, announce);
    todo!()
}

/// Undoes every subPath mount of the volume: those of the record, and those that the table or the folders show
/// for its spec name. Removes the empty folders upwards.
pub fn tear_down(host: &Host, record: &PodVolume) -> Result<(), VolumeError> {
    let _ = (host, record);
    todo!()
}
