//! The atomic writer: readers of a volume never see half an update.

use std::os::fd::BorrowedFd;

use refloat_record::FsGroup;

use crate::{Payload, VolumeError};

/// What [`write`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Everything was as it should be.
    Unchanged,
    /// Something was written.
    Written,
}

/// Makes the folder hold exactly this payload, in the kubelet's layout: `..data` -> a timestamped folder, and a link
/// through `..data` for each top-level name. Repairs whatever an interrupted writer left.
pub fn write(
    dir: BorrowedFd<'_>,
    shown: &std::path::Path,
    payload: &Payload,
    fs_group: Option<FsGroup>,
) -> Result<WriteOutcome, VolumeError> {
    let _ = (dir, shown, payload, fs_group);
    todo!()
}

/// Removes what the writer wrote and nothing else.
pub fn clear(dir: BorrowedFd<'_>, shown: &std::path::Path) -> Result<(), VolumeError> {
    let _ = (dir, shown);
    todo!()
}
