//! What every TearDown is made of.

use refloat_record::{RecordedMount, RelPath};

use crate::{Host, VolumeError};

/// Takes off the layers at `path` that are the record's own (its id, or the same type, source and root), topmost first,
/// looking at the table after each, until none is left. A layer of another origin on top is refused: neither it nor
/// what lies under it is touched. `expected` is none for a mount that is known only from the table (each layer
/// of the topmost one's origin is taken off then).
pub fn unmount_own_layers(host: &Host, path: &RelPath, expected: Option<&RecordedMount>) -> Result<(), VolumeError> {
    let _ = (host, path, expected);
    todo!()
}

/// Unmounts what was mounted inside a plain folder by somebody else (deepest first, each layer). Their data is theirs:
/// it is never deleted.
pub fn unmount_nested(host: &Host, path: &RelPath) -> Result<(), VolumeError> {
    let _ = (host, path);
    todo!()
}

/// Removes the volume's folder: with everything in it if `content` is the pod's own, else only if it is empty.
pub fn remove_volume_dir(host: &Host, path: &RelPath, content: bool) -> Result<(), VolumeError> {
    let _ = (host, path, content);
    todo!()
}
