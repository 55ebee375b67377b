//! The options of a bind that is mounted already.

use refloat_mount::{BindOptions, set_bind_options_again};
use refloat_record::RelPath;

use crate::{Host, VolumeError};

/// Gives a bind of ours the options that it should have. Where the kernel makes binds with their options they always have
/// them; where it takes a second call, a manager that died in between left them away, read-only included.
pub(crate) fn set_options_again(host: &Host, path: &RelPath, options: &BindOptions) -> Result<(), VolumeError> {
    let Some(mounted) = host.root.open_mount_point(path.as_path()).map_err(VolumeError::Path)? else { return Ok(()) };
    if set_bind_options_again(&mounted, options).map_err(VolumeError::Mount)? {
        tracing::warn!(path = %mounted.path().display(), "the mount had not the options that it should have; they were set");
    }
    Ok(())
}
