//! Reading the table from the kernel.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use linux_raw_sys::general as raw;
use rustix::event::{PollFd, PollFlags};

use super::entries::{Entries, Text};
use super::index::{NONE, normal};
use super::{Device, MountTable, UniqueMountId};
use crate::kernel::{short_mount_id, unique_mount_id};
use crate::mountinfo::Line;
use crate::{Kernel, sys};

/// The mount table of this thread's mount namespace. (`/proc/self` would be the main thread's.)
pub(crate) const MOUNTINFO: &str = "/proc/thread-self/mountinfo";

/// How often a table that changes while it is read is read again before what there is is taken.
const MAX_ROUNDS: usize = 8;

/// Asking for this many mounts takes so little time (less than a millisecond) that the list is not looked at again.
const FEW: usize = 64;

/// From this many mounts on, two threads ask for them.
const SPLIT: usize = 1024;

/// Why the table could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the mount table by {call}")]
pub struct TableError {
    /// The call or file.
    pub call: &'static str,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl TableError {
    fn of(call: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self { call, source }
    }
}

/// Reads the table; with `listmount` it asks only for what is new since its last reading.
#[derive(Debug)]
pub struct TableReader {
    kernel: Kernel,
    last: Option<Arc<MountTable>>,
    buffer: sys::StatMountBuffer,
    ids: Vec<u64>,
    /// The highest id that was ever listed.
    newest: u64,
    /// Where mounts may have changed since they were read.
    doubted: Vec<Vec<u8>>,
}

impl TableReader {
    /// A reader for this kernel. Reads the table of the mount namespace that the calling thread is in at each reading.
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            last: None,
            buffer: sys::StatMountBuffer::default(),
            ids: Vec::new(),
            newest: 0,
            doubted: Vec::new(),
        }
    }

    /// Another reader that knows what this one has read, for a thread that must not wait for this one.
    #[must_use]
    pub fn fork(&self) -> Self {
        let doubted = self.doubted.clone();
        Self { last: self.last.clone(), newest: self.newest, doubted, ..Self::new(self.kernel) }
    }

    /// The table now. Mounts that were known keep what was read of them before (see [`TableReader::read_anew`]), but for
    /// those at a path where a mount came or went: their place in the stack may be another. So do not those that were
    /// [doubted](TableReader::doubt).
    ///
    /// A table that changes while it is read is no error: it is read again, at most a few times, and then taken as it
    /// is: every mount that existed throughout is in it.
    pub fn read(&mut self) -> Result<Arc<MountTable>, TableError> {
        if self.kernel.features().listmount { self.read_ids(false) } else { self.read_text() }
    }

    /// Lets the next reading ask anew for what it knows at this path. To be called when another program has mounted there: it may have
    /// set options (`mount --bind`, then `mount -o remount,ro`) after its mount was seen.
    pub fn doubt(&mut self, path: &Path) {
        self.doubted.extend(normal(path.as_os_str().as_bytes()).map(std::borrow::Cow::into_owned));
    }

    /// The table now, every mount asked for anew: also moved mounts, renamed folders above them and changed options show.
    pub fn read_anew(&mut self) -> Result<Arc<MountTable>, TableError> {
        if self.kernel.features().listmount { self.read_ids(true) } else { self.read_text() }
    }

    /// The mounts at this path, over the folders above it, and those below it if `below`, as they are now: a table of their
    /// own, which tells what a walk of the path meets. Only these are asked for, so it takes as long as they are many, however
    /// long the table is. Where the kernel cannot be asked for single mounts, or has new ones, the whole table is read.
    ///
    /// What was made before the last reading of the whole table and attached after it, or moved here, is not seen before the
    /// next one. Who acts on what this shows does it by calls that refuse what they do not expect: an unmount of one mount, a
    /// removal that crosses none.
    pub fn read_at(&mut self, path: &Path, below: bool) -> Result<Arc<MountTable>, TableError> {
        let Some(last) = self.last.clone().filter(|_| self.kernel.features().listmount) else { return self.read() };
        if sys::listmount(self.newest, &mut [0]).map_err(TableError::of("listmount"))? > 0 {
            return self.read();
        }
        let Some(path) = normal(path.as_os_str().as_bytes()) else { return Ok(Arc::default()) };
        let known = &last.entries;
        let mut wanted: BTreeSet<u32> = BTreeSet::new();
        let mut next = last.index.nearest(known, &path);
        while let Some(group) = next {
            wanted.extend(last.index.members(group));
            next = last.index.above(group);
        }
        if below {
            wanted.extend(last.index.below(known, &path));
        }
        let mut entries = Entries::default();
        for index in wanted {
            self.ask(known.list[index as usize].id, &mut entries)?;
        }
        Ok(Arc::new(MountTable::from_entries(entries)))
    }

    /// Whether a file system is mounted at more than one place; `table` is any that was just read.
    pub(crate) fn is_mounted_twice(&mut self, device: Device, table: &MountTable) -> Result<bool, TableError> {
        let Some(last) = self.last.clone().filter(|_| self.kernel.features().listmount) else {
            return Ok(table.of_device(device).len() > 1);
        };
        let mut found = 0;
        for mount in last.of_device(device) {
            let Some(id) = mount.id() else { continue };
            match self.buffer.statmount(id.0.get(), u64::from(raw::STATMOUNT_MNT_BASIC)) {
                Ok(_) => found += 1,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(TableError { call: "statmount", source: error }),
            }
            if found > 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the kernel, asked directly, still has this mount at this path. True where it cannot be asked.
    pub(crate) fn is_still_at(&mut self, id: UniqueMountId, path: &Path) -> Result<bool, TableError> {
        if !self.kernel.features().listmount {
            return Ok(true);
        }
        match self.buffer.statmount(id.0.get(), u64::from(raw::STATMOUNT_MNT_POINT)) {
            Ok(mount) => Ok(mount
                .text(raw::STATMOUNT_MNT_POINT, mount.mnt_point)
                .is_some_and(|point| point == path.as_os_str().as_bytes())),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(TableError { call: "statmount", source: error }),
        }
    }

    fn read_text(&mut self) -> Result<Arc<MountTable>, TableError> {
        self.doubted.clear();
        let text = read_mountinfo().map_err(TableError::of(MOUNTINFO))?;
        let (table, bad) = MountTable::from_mountinfo(&text);
        for line in bad {
            tracing::warn!(line = line.number, why = line.why, "a line of the mount table was not understood");
        }
        let table = Arc::new(table);
        self.last = Some(Arc::clone(&table));
        Ok(table)
    }

    fn read_ids(&mut self, anew: bool) -> Result<Arc<MountTable>, TableError> {
        if anew {
            self.last = None;
        }
        self.list()?;
        for _ in 0..MAX_ROUNDS {
            let asked = self.catch_up()?;
            if asked <= FEW {
                break;
            }
            // What was asked took time; were the mounts the same at its end?
            let before = std::mem::take(&mut self.ids);
            self.list()?;
            if self.ids == before {
                break;
            }
        }
        Ok(self.last.clone().unwrap_or_default())
    }

    /// Lists the ids of all mounts, ascending.
    fn list(&mut self) -> Result<(), TableError> {
        let expected = self.last.as_ref().map_or(0, |table| table.len());
        let page = (expected + expected / 4).max(4096);
        let ids = &mut self.ids;
        ids.clear();
        loop {
            let have = ids.len();
            ids.resize(have + page, 0);
            let last = if have == 0 { 0 } else { ids[have - 1] };
            let got = sys::listmount(last, &mut ids[have..]).map_err(TableError::of("listmount"))?;
            ids.truncate(have + got);
            // One page is a snapshot. Ids ascend and are never used again, so further pages miss no mount that existed
            // throughout.
            if got < page {
                self.newest = self.newest.max(ids.last().copied().unwrap_or_default());
                return Ok(());
            }
        }
    }

    /// Makes the last table one of the mounts in `ids`. Answers how many mounts were asked for.
    fn catch_up(&mut self) -> Result<usize, TableError> {
        let last = self.last.clone().unwrap_or_default();
        let known = &last.entries;
        let change = Change::between(known, &self.ids);
        let mut again = self.doubtful(&last)?;
        if self.last.is_some() && change.is_empty() && again.is_empty() {
            return Ok(0);
        }
        let fresh = self.ask_all(&change.new)?;
        if last.is_empty() {
            self.last = Some(Arc::new(MountTable::from_entries(fresh)));
            return Ok(change.new.len());
        }
        // At a path where a mount came or went, the others may hang on another parent now.
        let points = (0..fresh.list.len() as u32)
            .map(|index| fresh.point(index))
            .chain(change.gone.iter().map(|&index| known.point(index)));
        for point in points {
            if let Ok(group) = last.index.find(known, point) {
                again.extend(last.index.members(group));
            }
        }
        for gone in &change.gone {
            again.remove(gone);
        }
        let mut renewed = Entries::default();
        for &index in &again {
            self.ask(known.list[index as usize].id, &mut renewed)?;
        }
        self.last = Some(Arc::new(merge(&last, &change, &again, &[&renewed, &fresh])));
        Ok(change.new.len() + again.len())
    }

    /// The mounts of the table at doubted paths of which the kernel tells something else by now. Most often there are none, and the
    /// table needs no copy.
    fn doubtful(&mut self, last: &MountTable) -> Result<BTreeSet<u32>, TableError> {
        let mut found = BTreeSet::new();
        for path in std::mem::take(&mut self.doubted) {
            let Ok(group) = last.index.find(&last.entries, &path) else { continue };
            for &index in last.index.members(group) {
                let mut now = Entries::default();
                self.ask(last.entries.list[index as usize].id, &mut now)?;
                if !now.list.is_empty() && !last.entries.tells_the_same(index, &now, 0) {
                    found.insert(index);
                }
            }
        }
        Ok(found)
    }

    /// Asks for these mounts; many of them on two threads. (A new thread is in the mount namespace of the one that made it.)
    fn ask_all(&mut self, ids: &[u64]) -> Result<Entries, TableError> {
        if ids.len() < SPLIT {
            return ask_each(&mut self.buffer, ids);
        }
        let (left, right) = ids.split_at(ids.len() / 2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| ask_each(&mut sys::StatMountBuffer::default(), right));
            let mut entries = ask_each(&mut self.buffer, left)?;
            entries.append(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            Ok(entries)
        })
    }

    /// Asks for one mount. Gone meanwhile is fine.
    fn ask(&mut self, id: u64, into: &mut Entries) -> Result<(), TableError> {
        ask(&mut self.buffer, id, into)
    }
}

fn ask_each(buffer: &mut sys::StatMountBuffer, ids: &[u64]) -> Result<Entries, TableError> {
    let mut entries = Entries::with_capacity(ids.len(), ids.len() * 192);
    for &id in ids {
        ask(buffer, id, &mut entries)?;
    }
    Ok(entries)
}

fn ask(buffer: &mut sys::StatMountBuffer, id: u64, into: &mut Entries) -> Result<(), TableError> {
    match buffer.statmount(id, sys::STATMOUNT_TABLE) {
        Ok(mount) => {
            into.push_statmount(&mount).map_err(|why| TableError { call: "statmount", source: io::Error::other(why) })
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(TableError { call: "statmount", source: error }),
    }
}

/// What differs between a table and a list of ids.
struct Change {
    /// Ids that the table does not have, ascending.
    new: Vec<u64>,
    /// Mounts of the table that the list does not have.
    gone: Vec<u32>,
}

impl Change {
    /// Both sides ascend by id.
    fn between(known: &Entries, ids: &[u64]) -> Self {
        let mut new = Vec::new();
        let mut gone = Vec::new();
        let mut old = (0_u32..).zip(&known.list).peekable();
        for &id in ids {
            while let Some((index, _)) = old.next_if(|(_, entry)| entry.id < id) {
                gone.push(index);
            }
            if old.next_if(|(_, entry)| entry.id == id).is_none() {
                new.push(id);
            }
        }
        gone.extend(old.map(|(index, _)| index));
        Self { new, gone }
    }

    fn is_empty(&self) -> bool {
        self.new.is_empty() && self.gone.is_empty()
    }
}

/// The known mounts without the gone ones and those asked again, and the fresh ones, in the order of their ids. Costs
/// little more than copying if few are fresh.
fn merge(last: &MountTable, change: &Change, again: &BTreeSet<u32>, fresh: &[&Entries]) -> MountTable {
    let known = &last.entries;
    let count = fresh.iter().map(|entries| entries.list.len()).sum();
    let bytes = fresh.iter().map(|entries| entries.text_len()).sum();
    let mut entries = known.copy_with_room(count, bytes);
    for &from in fresh {
        for index in 0..from.list.len() as u32 {
            entries.push_copy(from, index);
        }
    }
    // Old places (the fresh ones follow the known ones) in the order of the new.
    let mut gone = change.gone.iter().copied().peekable();
    let mut order: Vec<u32> = (0..known.list.len() as u32)
        .filter(|index| gone.next_if_eq(index).is_none() && !again.contains(index))
        .chain(known.list.len() as u32..entries.list.len() as u32)
        .collect();
    // In order already, but for those that were asked again.
    order.sort_by_key(|&old| entries.list[old as usize].id);
    let mut renamed = vec![NONE; entries.list.len()];
    let mut new_places = Vec::with_capacity(count);
    for (new, &old) in (0..).zip(&order) {
        renamed[old as usize] = new;
        if old as usize >= known.list.len() {
            new_places.push(new);
        }
    }
    entries.list = order.iter().map(|&old| entries.list[old as usize]).collect();
    if entries.is_wasteful() {
        let mut tidy = Entries::with_capacity(entries.list.len(), entries.text_len() / 2);
        for index in 0..entries.list.len() as u32 {
            tidy.push_copy(&entries, index);
        }
        entries = tidy;
    }
    let index = last.index.carry_over(&mut entries, &renamed, new_places);
    MountTable { entries, index, ..MountTable::default() }
}

/// Reads mountinfo whole. If the table changed meanwhile it is read again, at most a few times.
pub(crate) fn read_mountinfo() -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for _ in 0..MAX_ROUNDS {
        // Opening notes the state of the table; polling tells whether it changed since.
        let mut file = std::fs::File::open(MOUNTINFO)?;
        text.clear();
        file.read_to_end(&mut text)?;
        let mut poll = [PollFd::new(&file, PollFlags::PRI | PollFlags::ERR)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let changed = rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|ready| ready > 0)
            && poll[0].revents().intersects(PollFlags::PRI | PollFlags::ERR);
        if !changed {
            break;
        }
    }
    Ok(text)
}

/// A table of just the mount that a descriptor is in. None if it is in no mount of this namespace's table.
pub(crate) fn mount_of(kernel: Kernel, fd: BorrowedFd<'_>) -> Option<MountTable> {
    let mut entries = Entries::default();
    if kernel.features().listmount {
        let id = unique_mount_id(fd.as_fd())?;
        let mut buffer = sys::StatMountBuffer::default();
        entries.push_statmount(&buffer.statmount(id.0.get(), sys::STATMOUNT_TABLE).ok()?).ok()?;
    } else {
        let id = short_mount_id(fd).ok()?;
        let text = read_mountinfo().ok()?;
        let line = text.split(|&byte| byte == b'\n').find_map(|line| Line::parse(line).ok().filter(|l| l.id == id))?;
        entries.push_line(&line).ok()?;
    }
    if entries.text(0, Text::Point).is_empty() {
        return None;
    }
    Some(MountTable::from_entries(entries))
}
