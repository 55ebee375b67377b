//! The node as whoever works on it opens it: a manager, and a clean-up.

use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use refloat_csi::Drivers;
use refloat_mount::{Kernel, NodeRoot, TableReader};
use refloat_volume::Host;
use refloat_volume::plugins::flex_volume::FlexDrivers;
use refloat_volume::provider::Providers;
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

/// Where programs of others, and disks, are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Programs<'a> {
    /// The folder of flexVolume drivers, if any are to be asked.
    pub(crate) flex_volume_dir: Option<&'a Path>,
    /// The folder of providers, if there is one.
    pub(crate) provider_dir: Option<&'a Path>,
    /// Where disks are, if not in the usual places.
    pub(crate) sys: Option<&'a Sys>,
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
    programs: Programs<'_>,
) -> io::Result<Host> {
    Ok(Host {
        root,
        kernel,
        boot_id: boot_id()?,
        tool_deadline: operation_deadline.mul_f64(TOOL_PART),
        table: Mutex::new(TableReader::new(kernel)),
        drivers,
        flex_drivers: FlexDrivers::new(programs.flex_volume_dir.unwrap_or(Path::new("")).to_path_buf()),
        providers: Providers::new(programs.provider_dir.map(Path::to_path_buf)),
        sys: programs.sys.cloned().unwrap_or_default(),
    })
}
