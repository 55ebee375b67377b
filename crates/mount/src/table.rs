//! The mount table as one value.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use crate::Kernel;

/// The kernel's unique id of a mount: never used again within one boot.
///
/// # Source
/// `STATX_MNT_ID_UNIQUE` (Linux 6.8), `statmount(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UniqueMountId(pub NonZeroU64);

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// One mount of a table: a view that is cheap to copy. All text is bytes as the kernel has them, escapes undone.
#[derive(Debug, Clone, Copy)]
pub struct Mount<'t> {
    table: &'t MountTable,
    index: u32,
}

impl<'t> Mount<'t> {
    /// The unique id, where the kernel tells it.
    pub fn id(self) -> Option<UniqueMountId> {
        todo!()
    }
    /// The short id of mountinfo, which the kernel uses again.
    pub fn short_id(self) -> u32 {
        todo!()
    }
    /// The short id of the parent mount.
    pub fn parent_short_id(self) -> u32 {
        todo!()
    }
    /// The device of the file system.
    pub fn device(self) -> Device {
        todo!()
    }
    /// The folder or file of the file system that is the mount's root. `//deleted` is at its end if that is gone.
    pub fn root(self) -> &'t Path {
        todo!()
    }
    /// Where it is mounted.
    pub fn point(self) -> &'t Path {
        todo!()
    }
    /// The mount's own options (`rw,nosuid,relatime`).
    pub fn options(self) -> &'t str {
        todo!()
    }
    /// Whether it is read-only, as a mount or as a file system.
    pub fn read_only(self) -> bool {
        todo!()
    }
    /// Whether what is mounted below it shows elsewhere too (`shared:N`).
    pub fn shared(self) -> bool {
        todo!()
    }
    /// The type of the file system, with its subtype (`fuse.glusterfs`).
    pub fn fs_type(self) -> Cow<'t, str> {
        todo!()
    }
    /// The source as it was given; may be empty.
    pub fn source(self) -> Cow<'t, str> {
        todo!()
    }
    /// The options of the file system, as the kernel prints them.
    pub fn fs_options(self) -> Cow<'t, str> {
        todo!()
    }
}

/// The mount table at one moment. Look-ups take time that does not grow with the table (or with its logarithm).
#[derive(Debug, Default)]
pub struct MountTable {}

impl MountTable {
    /// A table from mountinfo text. Lines that cannot be understood are left out and told.
    pub fn from_mountinfo(text: &[u8]) -> (Self, Vec<crate::mountinfo::BadLine>) {
        let _ = text;
        todo!()
    }
    /// The number of mounts.
    pub fn len(&self) -> usize {
        todo!()
    }
    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// All mounts, in the kernel's order (a mount comes after the one that it covers).
    pub fn iter(&self) -> impl Iterator<Item = Mount<'_>> {
        std::iter::empty::<Mount<'_>>()
    }
    /// The topmost mount at exactly this path.
    pub fn at(&self, path: &Path) -> Option<Mount<'_>> {
        let _ = path;
        todo!()
    }
    /// All mounts at exactly this path, lowest first.
    pub fn stack(&self, path: &Path) -> Vec<Mount<'_>> {
        let _ = path;
        todo!()
    }
    /// The mounts strictly below this path, in path order; a stack lowest first.
    pub fn under(&self, path: &Path) -> impl Iterator<Item = Mount<'_>> {
        let _ = path;
        std::iter::empty::<Mount<'_>>()
    }
    /// The topmost mount that this path lies in: at the path or at the nearest folder above.
    pub fn covering(&self, path: &Path) -> Option<Mount<'_>> {
        let _ = path;
        todo!()
    }
    /// The mount with this unique id.
    pub fn by_id(&self, id: UniqueMountId) -> Option<Mount<'_>> {
        let _ = id;
        todo!()
    }
    /// All mounts that show the same file system and root (the given one included).
    pub fn same_root(&self, device: Device, root: &Path) -> Vec<Mount<'_>> {
        let _ = (device, root);
        todo!()
    }
    /// All mounts of this file system.
    pub fn of_device(&self, device: Device) -> Vec<Mount<'_>> {
        let _ = device;
        todo!()
    }
}

/// Why the table could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the mount table by {call}")]
pub struct TableError {
    /// The call or file.
    pub call: &'static str,
    /// What the system said.
    #[source]
    pub source: std::io::Error,
}

/// Reads the table; with `listmount` it asks only for what is new since its last reading.
#[derive(Debug)]
pub struct TableReader {}

impl TableReader {
    /// A reader for this kernel.
    pub fn new(kernel: Kernel) -> Self {
        let _ = kernel;
        todo!()
    }
    /// The table now. Mounts that were known keep what was read of them before (see [`TableReader::read_anew`]).
    pub fn read(&mut self) -> Result<Arc<MountTable>, TableError> {
        todo!()
    }
    /// The table now, every mount asked for anew: also moved mounts and changed options show.
    pub fn read_anew(&mut self) -> Result<Arc<MountTable>, TableError> {
        todo!()
    }
}
