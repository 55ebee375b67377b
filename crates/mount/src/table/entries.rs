//! The mounts of a table in two vectors: one of all text, one of numbers and places in the text.

use linux_raw_sys::general as raw;

use crate::mountinfo::{self, Line};
use crate::{Device, sys::StatMount};

/// The number of texts that an entry has.
const TEXTS: usize = 7;

/// Which text of an entry.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Text {
    /// Decoded.
    Root,
    /// Decoded.
    Point,
    /// Plain ASCII (or at least UTF-8).
    Options,
    /// The optional fields.
    Optional,
    /// Escaped as in mountinfo, with the subtype.
    FsType,
    /// Escaped as in mountinfo.
    Source,
    /// Escaped as in mountinfo.
    FsOptions,
}

/// One mount.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// The unique id, 0 if not known.
    pub(crate) id: u64,
    pub(crate) short: u32,
    pub(crate) parent: u32,
    pub(crate) device: Device,
    /// Where its texts start; they follow each other.
    start: u32,
    /// Where each text ends, from `start`.
    ends: [u32; TEXTS],
    /// Whether another mount over a folder above hides it.
    pub(crate) hidden: bool,
}

/// All mounts in the kernel's order.
#[derive(Debug, Default, Clone)]
pub(crate) struct Entries {
    arena: Vec<u8>,
    pub(crate) list: Vec<Entry>,
}

impl Entries {
    pub(crate) fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { arena: Vec::with_capacity(bytes), list: Vec::with_capacity(count) }
    }

    /// The bytes of text.
    pub(crate) fn text_len(&self) -> usize {
        self.arena.len()
    }

    pub(crate) fn text(&self, index: u32, which: Text) -> &[u8] {
        let Some(entry) = self.list.get(index as usize) else { return b"" };
        let which = which as usize;
        let start = if which == 0 { 0 } else { entry.ends[which - 1] };
        let from = entry.start as usize;
        self.arena.get(from + start as usize..from + entry.ends[which] as usize).unwrap_or_default()
    }

    pub(crate) fn point(&self, index: u32) -> &[u8] {
        self.text(index, Text::Point)
    }

    /// Whether an entry of another table tells the same of a mount.
    pub(crate) fn tells_the_same(&self, index: u32, other: &Self, its: u32) -> bool {
        fn of(entries: &Entries, index: u32) -> (u64, u32, u32, Device, [u32; TEXTS], &[u8]) {
            let entry = &entries.list[index as usize];
            let start = entry.start as usize;
            let texts = &entries.arena[start..start + entry.ends[TEXTS - 1] as usize];
            (entry.id, entry.short, entry.parent, entry.device, entry.ends, texts)
        }
        of(self, index) == of(other, its)
    }

    /// Begins an entry's texts. None if the arena is full: offsets have 32 bits.
    fn begin(&self, needed: usize) -> Option<u32> {
        let start = u32::try_from(self.arena.len()).ok()?;
        u32::try_from(self.arena.len().checked_add(needed)?).ok()?;
        u32::try_from(self.list.len() + 1).ok()?;
        Some(start)
    }

    /// Adds a line of mountinfo.
    pub(crate) fn push_line(&mut self, line: &Line<'_>) -> Result<(), &'static str> {
        let texts =
            [line.root, line.point, line.options.as_bytes(), line.optional, line.fs_type, line.source, line.fs_options];
        let start = self.begin(texts.iter().map(|text| text.len()).sum()).ok_or("the table is too large")?;
        let mut ends = [0; TEXTS];
        for (which, text) in texts.into_iter().enumerate() {
            if which <= Text::Point as usize {
                mountinfo::unescape_into(text, &mut self.arena);
            } else {
                self.arena.extend_from_slice(text);
            }
            ends[which] = self.arena.len() as u32 - start;
        }
        // No path can hold one, and the order of paths relies on that.
        if self.arena[(start + ends[0]) as usize..(start + ends[1]) as usize].contains(&0) {
            self.arena.truncate(start as usize);
            return Err("the mount point holds a NUL byte");
        }
        let Line { id: short, parent, device, .. } = *line;
        self.list.push(Entry { id: 0, short, parent, device, start, ends, hidden: false });
        Ok(())
    }

    /// Adds what `statmount` answered, in mountinfo's words.
    pub(crate) fn push_statmount(&mut self, mount: &StatMount<'_>) -> Result<(), &'static str> {
        // Escaping makes a text four times as long at most.
        let start = self.begin(mount.size as usize * 4).ok_or("the table is too large")?;
        let mut ends = [0; TEXTS];
        let arena = &mut self.arena;
        let mut end = |arena: &Vec<u8>, which: Text| ends[which as usize] = arena.len() as u32 - start;
        arena.extend_from_slice(mount.text(raw::STATMOUNT_MNT_ROOT, mount.mnt_root).unwrap_or_default());
        end(arena, Text::Root);
        arena.extend_from_slice(mount.text(raw::STATMOUNT_MNT_POINT, mount.mnt_point).unwrap_or_default());
        end(arena, Text::Point);
        write_options(mount.mnt_attr, arena);
        end(arena, Text::Options);
        write_optional(mount, arena);
        end(arena, Text::Optional);
        mountinfo::escape_name(mount.text(raw::STATMOUNT_FS_TYPE, mount.fs_type).unwrap_or_default(), arena);
        if let Some(subtype) = mount.text(raw::STATMOUNT_FS_SUBTYPE, mount.fs_subtype) {
            arena.push(b'.');
            mountinfo::escape_name(subtype, arena);
        }
        end(arena, Text::FsType);
        mountinfo::escape_name(mount.text(raw::STATMOUNT_SB_SOURCE, mount.sb_source).unwrap_or_default(), arena);
        end(arena, Text::Source);
        write_fs_options(mount, arena);
        end(arena, Text::FsOptions);
        self.list.push(Entry {
            id: mount.mnt_id,
            short: mount.mnt_id_old,
            parent: mount.mnt_parent_id_old,
            device: Device { major: mount.sb_dev_major, minor: mount.sb_dev_minor },
            start,
            ends,
            hidden: false,
        });
        Ok(())
    }

    /// A copy that has room for more.
    pub(crate) fn copy_with_room(&self, count: usize, bytes: usize) -> Self {
        let mut copy = Self::with_capacity(self.list.len() + count, self.arena.len() + bytes);
        copy.arena.extend_from_slice(&self.arena);
        copy.list.extend_from_slice(&self.list);
        copy
    }

    /// Whether more of the text is of entries that are no longer in the list than of those that are.
    pub(crate) fn is_wasteful(&self) -> bool {
        let used: usize = self.list.iter().map(|entry| entry.ends[TEXTS - 1] as usize).sum();
        self.arena.len() > 2 * used + (1 << 16)
    }

    /// Adds all entries of another table, in their order. What cannot be added (a full arena) is left out.
    pub(crate) fn append(&mut self, from: Self) {
        if self.list.is_empty() {
            *self = from;
            return;
        }
        let Some(start) = self.begin(from.arena.len()) else { return };
        self.arena.extend_from_slice(&from.arena);
        self.list.extend(from.list.into_iter().map(|entry| Entry { start: entry.start + start, ..entry }));
    }

    /// Adds an entry of another table. What cannot be added (a full arena) is left out.
    pub(crate) fn push_copy(&mut self, from: &Self, index: u32) {
        let Some(entry) = from.list.get(index as usize) else { return };
        let length = entry.ends[TEXTS - 1] as usize;
        let at = entry.start as usize;
        let (Some(start), Some(text)) = (self.begin(length), from.arena.get(at..at + length)) else { return };
        self.arena.extend_from_slice(text);
        self.list.push(Entry { start, hidden: false, ..*entry });
    }
}

/// The mount's own options in mountinfo's words and order.
///
/// # Source
/// `show_mnt_opts` in the kernel's `fs/proc_namespace.c`.
fn write_options(attr: u64, out: &mut Vec<u8>) {
    let has = |bit: u32| attr & u64::from(bit) != 0;
    let atime = attr & u64::from(raw::MOUNT_ATTR__ATIME);
    out.extend_from_slice(if has(raw::MOUNT_ATTR_RDONLY) { b"ro" } else { b"rw" });
    let words: [(bool, &[u8]); 8] = [
        (has(raw::MOUNT_ATTR_NOSUID), b",nosuid"),
        (has(raw::MOUNT_ATTR_NODEV), b",nodev"),
        (has(raw::MOUNT_ATTR_NOEXEC), b",noexec"),
        (atime == u64::from(raw::MOUNT_ATTR_NOATIME), b",noatime"),
        (has(raw::MOUNT_ATTR_NODIRATIME), b",nodiratime"),
        (atime == u64::from(raw::MOUNT_ATTR_RELATIME), b",relatime"),
        (has(raw::MOUNT_ATTR_NOSYMFOLLOW), b",nosymfollow"),
        (has(raw::MOUNT_ATTR_IDMAP), b",idmapped"),
    ];
    for (_, word) in words.into_iter().filter(|(is, _)| *is) {
        out.extend_from_slice(word);
    }
}

/// The optional fields in mountinfo's words and order.
///
/// # Source
/// `show_mountinfo` in the kernel's `fs/proc_namespace.c`.
fn write_optional(mount: &StatMount<'_>, out: &mut Vec<u8>) {
    let has = |bit: u32| mount.mnt_propagation & u64::from(bit) != 0;
    let start = out.len();
    if has(raw::MS_SHARED) {
        out.extend_from_slice(format!("shared:{} ", mount.mnt_peer_group).as_bytes());
    }
    if has(raw::MS_SLAVE) {
        out.extend_from_slice(format!("master:{} ", mount.mnt_master).as_bytes());
        let from = mount.propagate_from;
        if from != 0 && from != mount.mnt_master {
            out.extend_from_slice(format!("propagate_from:{from} ").as_bytes());
        }
    }
    if has(raw::MS_UNBINDABLE) {
        out.extend_from_slice(b"unbindable ");
    }
    if out.len() > start {
        out.pop();
    }
}

/// The file system's options in mountinfo's words and order: what the superblock's flags say, then its own.
fn write_fs_options(mount: &StatMount<'_>, out: &mut Vec<u8>) {
    let has = |bit: u32| mount.sb_flags & bit != 0;
    out.extend_from_slice(if has(raw::MS_RDONLY) { b"ro" } else { b"rw" });
    let words: [(bool, &[u8]); 3] = [
        (has(raw::MS_SYNCHRONOUS), b",sync"),
        (has(raw::MS_DIRSYNC), b",dirsync"),
        (has(raw::MS_LAZYTIME), b",lazytime"),
    ];
    for (_, word) in words.into_iter().filter(|(is, _)| *is) {
        out.extend_from_slice(word);
    }
    if let Some(own) = mount.text(raw::STATMOUNT_MNT_OPTS, mount.mnt_opts)
        && !own.is_empty()
    {
        out.push(b',');
        out.extend_from_slice(own);
    }
}
