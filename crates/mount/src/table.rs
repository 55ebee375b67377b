//! The mount table as one value.

mod entries;
mod index;
mod reader;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use entries::{Entries, Text};
use index::{NONE, PathIndex, normal};
pub(crate) use reader::{MOUNTINFO, mount_of, read_mountinfo};
pub use reader::{TableError, TableReader};

use crate::mountinfo;

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

/// Texts of a mount with the kernel's escapes still in them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawTexts<'t> {
    pub(crate) optional: &'t [u8],
    pub(crate) fs_type: &'t [u8],
    pub(crate) source: &'t [u8],
    pub(crate) fs_options: &'t [u8],
}

impl<'t> Mount<'t> {
    fn entry(self) -> &'t entries::Entry {
        &self.table.entries.list[self.index as usize]
    }

    fn text(self, which: Text) -> &'t [u8] {
        self.table.entries.text(self.index, which)
    }

    pub(crate) fn raw(self) -> RawTexts<'t> {
        RawTexts {
            optional: self.text(Text::Optional),
            fs_type: self.text(Text::FsType),
            source: self.text(Text::Source),
            fs_options: self.text(Text::FsOptions),
        }
    }

    /// The unique id, where the kernel tells it (mountinfo does not).
    pub fn id(self) -> Option<UniqueMountId> {
        NonZeroU64::new(self.entry().id).map(UniqueMountId)
    }

    /// The short id of mountinfo, which the kernel uses again.
    pub fn short_id(self) -> u32 {
        self.entry().short
    }

    /// The short id of the parent mount. That of the topmost mount of all may be of no mount in the table.
    pub fn parent_short_id(self) -> u32 {
        self.entry().parent
    }

    /// The device of the file system.
    pub fn device(self) -> Device {
        self.entry().device
    }

    /// The folder or file of the file system that is the mount's root. `//deleted` is at its end if that is gone
    /// ([`Mount::root_deleted`]).
    pub fn root(self) -> &'t Path {
        Path::new(OsStr::from_bytes(self.text(Text::Root)))
    }

    /// Whether the folder or file that is the mount's root was deleted. The mount works on; only its source is gone.
    pub fn root_deleted(self) -> bool {
        self.text(Text::Root).ends_with(b"//deleted")
    }

    /// The root without the kernel's mark for a deleted one. (No real path can end in it: it has a doubled slash.)
    pub fn root_path(self) -> &'t Path {
        let root = self.text(Text::Root);
        Path::new(OsStr::from_bytes(root.strip_suffix(b"//deleted").unwrap_or(root)))
    }

    /// Where it is mounted.
    pub fn point(self) -> &'t Path {
        Path::new(OsStr::from_bytes(self.text(Text::Point)))
    }

    /// Whether a walk to its mount point does not come by it: something was mounted later over a folder above. It is
    /// still mounted, busy and in use by whoever is in it, but no path leads to it. (A mount that merely has
    /// another one on top at the same path is not hidden in this sense.)
    pub fn hidden(self) -> bool {
        self.entry().hidden
    }

    /// The mount's own options (`rw,nosuid,relatime`).
    pub fn options(self) -> &'t str {
        std::str::from_utf8(self.text(Text::Options)).unwrap_or_default()
    }

    /// Whether it is read-only, as a mount or as a file system.
    pub fn read_only(self) -> bool {
        [self.text(Text::Options), self.text(Text::FsOptions)]
            .into_iter()
            .any(|options| options.split(|&byte| byte == b',').any(|option| option == b"ro"))
    }

    /// Whether what is mounted below it shows elsewhere too (`shared:N`).
    pub fn shared(self) -> bool {
        self.text(Text::Optional).split(|&byte| byte == b' ').any(|field| field.starts_with(b"shared:"))
    }

    /// The optional fields as mountinfo has them: `shared:2 master:1`, or nothing.
    pub fn propagation(self) -> &'t str {
        std::str::from_utf8(self.text(Text::Optional)).unwrap_or_default()
    }

    /// The type of the file system, with its subtype (`fuse.glusterfs`).
    pub fn fs_type(self) -> Cow<'t, str> {
        lossy(mountinfo::unescape(self.text(Text::FsType)))
    }

    /// The source as it was given; may be empty. Bytes that are no UTF-8 are replaced; see [`Mount::source_bytes`].
    pub fn source(self) -> Cow<'t, str> {
        lossy(self.source_bytes())
    }

    /// The source, byte for byte.
    pub fn source_bytes(self) -> Cow<'t, [u8]> {
        mountinfo::unescape(self.text(Text::Source))
    }

    /// The options of the file system, as the kernel prints them.
    pub fn fs_options(self) -> Cow<'t, str> {
        lossy(mountinfo::unescape(self.text(Text::FsOptions)))
    }
}

fn lossy(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    match bytes {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(
            String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
        ),
    }
}

/// The mount table at one moment. Look-ups take time that does not grow with the table (or with its logarithm).
///
/// # Mounts that hide others
/// Mounts lie in a tree: each is mounted on a folder of its parent. A later mount at the same path covers the earlier
/// one (a stack). A later mount over a folder *above* hides everything that was mounted below that folder before:
/// those mounts still exist, at paths that now lead elsewhere. [`MountTable::at`] and [`MountTable::covering`] say what a
/// walk of the path ends in, hence never a hidden mount; [`MountTable::stack`], [`MountTable::under`] and the other
/// look-ups say what exists, hidden ones ([`Mount::hidden`]) included, because who removes or counts users must not
/// miss them.
///
/// Paths are absolute; doubled and trailing slashes do not matter; symlinks are not resolved.
#[derive(Debug, Default)]
pub struct MountTable {
    entries: Entries,
    index: PathIndex,
    /// By device, then root, then order. Made when first asked.
    by_root: OnceLock<Vec<u32>>,
    /// By unique id. Made when first asked.
    by_id: OnceLock<Vec<(u64, u32)>>,
    /// By short id. Made when first asked.
    by_short: OnceLock<Vec<(u32, u32)>>,
}

impl MountTable {
    /// A table from mountinfo text. Lines that cannot be understood are left out and told.
    pub fn from_mountinfo(text: &[u8]) -> (Self, Vec<mountinfo::BadLine>) {
        let mut entries = Entries::with_capacity(text.len() / 160, text.len());
        let mut bad = Vec::new();
        for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            if line.is_empty() {
                continue;
            }
            let pushed = mountinfo::Line::parse(line).and_then(|line| entries.push_line(&line));
            if let Err(why) = pushed {
                bad.push(mountinfo::BadLine { number, line: line.to_vec(), why });
            }
        }
        (Self::from_entries(entries), bad)
    }

    fn from_entries(mut entries: Entries) -> Self {
        let index = PathIndex::build(&mut entries);
        Self { entries, index, ..Self::default() }
    }

    fn mount(&self, index: u32) -> Mount<'_> {
        Mount { table: self, index }
    }

    /// The number of mounts.
    pub fn len(&self) -> usize {
        self.entries.list.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All mounts, in the kernel's order: the order in which they were made (on older kernels: the order of the tree).
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Mount<'_>> + ExactSizeIterator {
        (0..self.entries.list.len() as u32).map(|index| self.mount(index))
    }

    /// The topmost mount at exactly this path, as a walk finds it. None if nothing is mounted there, or only mounts that
    /// are hidden by one over a folder above.
    pub fn at(&self, path: &Path) -> Option<Mount<'_>> {
        let path = normal(path.as_os_str().as_bytes())?;
        let group = self.index.find(&self.entries, &path).ok()?;
        let top = self.index.groups.get(group)?.top;
        (top != NONE && self.entries.point(top) == &*path).then(|| self.mount(top))
    }

    /// All mounts at exactly this path, lowest first. Those that are hidden by a mount over a folder above come before
    /// all others.
    pub fn stack(&self, path: &Path) -> Vec<Mount<'_>> {
        let Some(path) = normal(path.as_os_str().as_bytes()) else { return Vec::new() };
        let Ok(group) = self.index.find(&self.entries, &path) else { return Vec::new() };
        self.index.members(group).iter().map(|&index| self.mount(index)).collect()
    }

    /// The mounts strictly below this path, in path order (`a/b` directly after `a`); a stack lowest first. Hidden
    /// ones included. Reversed it is an order in which they can be unmounted.
    pub fn under<'t>(
        &'t self,
        path: &Path,
    ) -> impl DoubleEndedIterator<Item = Mount<'t>> + ExactSizeIterator + use<'t> {
        let mounts = match normal(path.as_os_str().as_bytes()) {
            Some(path) => self.index.below(&self.entries, &path),
            None => &[],
        };
        mounts.iter().map(|&index| self.mount(index))
    }

    /// The topmost mount that this path lies in: at the path or at the nearest folder above, as a walk finds it.
    pub fn covering(&self, path: &Path) -> Option<Mount<'_>> {
        let path = normal(path.as_os_str().as_bytes())?;
        let group = self.index.nearest(&self.entries, &path)?;
        let top = self.index.groups.get(group)?.top;
        (top != NONE).then(|| self.mount(top))
    }

    /// The mount with this unique id.
    pub fn by_id(&self, id: UniqueMountId) -> Option<Mount<'_>> {
        let ids = self.by_id.get_or_init(|| self.sorted_by(|entry| (entry.id != 0).then_some(entry.id)));
        let at = ids.binary_search_by_key(&id.0.get(), |&(id, _)| id).ok()?;
        Some(self.mount(ids[at].1))
    }

    /// The mount with this short id.
    pub fn by_short_id(&self, id: u32) -> Option<Mount<'_>> {
        let ids = self.by_short.get_or_init(|| self.sorted_by(|entry| Some(entry.short)));
        let at = ids.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(self.mount(ids[at].1))
    }

    fn sorted_by<K: Ord>(&self, key: impl Fn(&entries::Entry) -> Option<K>) -> Vec<(K, u32)> {
        let mut keys: Vec<(K, u32)> =
            (0..).zip(&self.entries.list).filter_map(|(index, entry)| Some((key(entry)?, index))).collect();
        keys.sort_unstable();
        keys
    }

    /// All mounts that show the same file system and root (the given one included), in the kernel's order.
    pub fn same_root(&self, device: Device, root: &Path) -> Vec<Mount<'_>> {
        let root = root.as_os_str().as_bytes();
        self.in_root_order(|mount| (mount.device(), mount.text(Text::Root)).cmp(&(device, root)))
    }

    /// All mounts of this file system, by their roots.
    pub fn of_device(&self, device: Device) -> Vec<Mount<'_>> {
        self.in_root_order(|mount| mount.device().cmp(&device))
    }

    /// The mounts that compare equal, of those sorted by device and root.
    fn in_root_order(&self, compare: impl Fn(Mount<'_>) -> std::cmp::Ordering) -> Vec<Mount<'_>> {
        let order = self.by_root.get_or_init(|| {
            let mut order: Vec<u32> = (0..self.entries.list.len() as u32).collect();
            let key = |index: u32| (self.mount(index).device(), self.entries.text(index, Text::Root), index);
            order.sort_unstable_by(|&a, &b| key(a).cmp(&key(b)));
            order
        });
        let first = order.partition_point(|&index| compare(self.mount(index)).is_lt());
        let count = order[first..].partition_point(|&index| compare(self.mount(index)).is_eq());
        order[first..first + count].iter().map(|&index| self.mount(index)).collect()
    }
}

#[cfg(test)]
mod tests;
