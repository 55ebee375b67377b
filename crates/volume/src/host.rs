//! What plugins may use of the node.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use refloat_csi::Drivers;
use refloat_mount::{Kernel, MountTable, NodeRoot, TableError, TableReader};
use refloat_record::{BootId, RecordedMount, RelPath};

use crate::plugins::flex_volume::FlexDrivers;
use crate::provider::Providers;
use crate::scsi::Sys;

/// The node as plugins see it: its root, its mount calls, its table. One for the life of the manager, shared by
/// all operations.
#[derive(Debug)]
pub struct Host {
    /// The node root.
    pub root: NodeRoot,
    /// What the kernel can do.
    pub kernel: Kernel,
    /// This boot.
    pub boot_id: BootId,
    /// How long a tool may take.
    pub tool_deadline: Duration,
    /// Reads the table.
    pub table: Mutex<TableReader>,
    /// The CSI drivers of this node; [`Drivers::none`] for those who only look.
    pub drivers: Drivers,
    /// The flexVolume drivers of this node.
    pub flex_drivers: FlexDrivers,
    /// Where its disks are.
    pub sys: Sys,
    /// Programs outside this one that are asked about volumes.
    pub providers: Providers,
}

impl Host {
    /// The mount table now.
    pub fn mount_table(&self) -> Result<Arc<MountTable>, TableError> {
        let _time = tracing::trace_span!(target: "refloat::time", "table").entered();
        self.table.lock().unwrap_or_else(std::sync::PoisonError::into_inner).read()
    }

    /// Lets the next reading of the table look anew at what is mounted at this absolute path ([`TableReader::doubt`]).
    pub fn doubt(&self, path: &std::path::Path) {
        self.table.lock().unwrap_or_else(std::sync::PoisonError::into_inner).doubt(path);
    }

    /// The mounts at, above and below this absolute path now ([`TableReader::read_at`]): for who undoes one thing of many.
    pub fn mount_table_at(&self, path: &std::path::Path) -> Result<Arc<MountTable>, TableError> {
        let _time = tracing::trace_span!(target: "refloat::time", "table").entered();
        self.table.lock().unwrap_or_else(std::sync::PoisonError::into_inner).read_at(path, true)
    }

    /// The mounts at and above this absolute path now.
    pub fn mount_table_over(&self, path: &std::path::Path) -> Result<Arc<MountTable>, TableError> {
        let _time = tracing::trace_span!(target: "refloat::time", "table").entered();
        self.table.lock().unwrap_or_else(std::sync::PoisonError::into_inner).read_at(path, false)
    }

    /// The absolute path of what lies below the root, as the mount table spells it.
    pub fn absolute(&self, path: &RelPath) -> PathBuf {
        path.below(self.root.path())
    }

    /// The record's mount, for comparing with the table: an id from another boot says nothing and is left out.
    pub fn announced_mount(&self, mount: Option<&RecordedMount>, boot: &BootId) -> Option<RecordedMount> {
        let mut mount = mount?.clone();
        if *boot != self.boot_id {
            mount.id = None;
        }
        Some(mount)
    }
}
