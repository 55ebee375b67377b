//! Gives a volume's files to the pod's fsGroup.

use std::os::fd::BorrowedFd;

use refloat_record::FsGroup;

use crate::VolumeError;

/// Gives the tree below `dir` to the group: children first, symlinks only their owner, no mount crossed.
pub fn apply(dir: BorrowedFd<'_>, shown: &std::path::Path, group: FsGroup, read_only: bool) -> Result<(), VolumeError> {
    let _ = (dir, shown, group, read_only);
    todo!()
}
