//! The node as whoever works on it opens it: a manager, and a clean-up.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use refloat_csi::Drivers;
use refloat_mount::{Kernel, NodeRoot, TableReader};
use refloat_volume::Host;
use refloat_volume::plugins::flex_volume::FlexDrivers;
use refloat_volume::scsi::Sys;

use super::ManagerError;
use crate::evidence::boot_id;

/// How long a tool (mkfs, fsck, blkid) may take, as a part of the operation's deadline: the operation must have time to
/// say what happened.
const TOOL_PART: f64 = 0.8;

/// Opens the node root, on a kernel that can walk it safely.
pub(crate) fn open_root(path: &Path) -> Result<(Kernel, NodeRoot), ManagerError> {
    let kernel = Kernel::detect();
    if !kernel.features().openat2 {
        let what = "this kernel has no openat2 (Linux 5.6), without which no path can be walked safely".into();
        return Err(ManagerError::Unable { what });
    }
    Ok((kernel, NodeRoot::open(path).map_err(ManagerError::Root)?))
}

/// What operations work on.
///
/// # Errors
/// The boot id cannot be read.
pub(crate) fn open_host(
    kernel: Kernel,
    root: NodeRoot,
    drivers: Drivers,
    operation_deadline: Duration,
    flex_volume_dir: PathBuf,
    sys: Sys,
) -> io::Result<Host> {
    Ok(Host {
        root,
        kernel,
        boot_id: boot_id()?,
        tool_deadline: operation_deadline.mul_f64(TOOL_PART),
        table: Mutex::new(TableReader::new(kernel)),
        drivers,
        flex_drivers: FlexDrivers::new(flex_volume_dir),
        sys,
    })
}
