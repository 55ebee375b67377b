//! The atomic writer: readers of a volume never see half an update.
//!
//! The layout is the kubelet's: the files lie in a folder `..YYYY_MM_DD_hh_mm_ss.<random>`, `..data` is a symlink to
//! it, and each top-level name is a symlink through `..data`. An update writes a whole new folder, with modes and
//! owners, syncs it where the file system keeps data over a power cut, and renames a new `..data` over the old one:
//! whoever resolves a path sees all of the old content or all of the new.
//!
//! Every call looks at everything that is there, whatever an interrupted writer left: each byte, mode, owner and link,
//! not `..data` alone. What is right is not touched. Names that begin with `..` are the writer's own in such a
//! volume; anything else that it did not make is left alone, and an error where it is in the way.
//!
//! # Source
//! `pkg/volume/util/atomic_writer.go` of Kubernetes v1.36 for the layout and the rules of paths. Unlike there, remains
//! of an interrupted update are found and removed, missing and wrong links are repaired, and data is synced.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use refloat_record::FsGroup;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::{Payload, PayloadFile, Problem, VolumeError, beneath};

mod compare;
mod tree;

use tree::{Node, Tree, tree_of};

/// The symlink to the current content.
const DATA: &CStr = c"..data";
/// A symlink on its way to become `..data` or a repaired link.
const TEMPORARY: &CStr = c"..data_tmp";

/// What [`write()`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Everything was as it should be.
    Unchanged,
    /// Something was written.
    Written,
}

/// Makes the folder hold exactly this payload, in the kubelet's layout: `..data` -> a timestamped folder, and a link
/// through `..data` for each top-level name. Repairs whatever an interrupted writer left.
///
/// `dir` is the volume's folder, seen by others or not yet; `shown` is its path, for messages only. With `fs_group`
/// everything, the volume's folder included, belongs to that group and has the bits that the kubelet gives to volumes
/// that are read-only (files `0440`, folders `0550` and setgid, added to what they have); its change policy makes no
/// difference to content that is written anew.
///
/// # Errors
/// [`VolumeError::Io`] with what was being done; readers then still see the content that they saw before, or the new
/// one whole. [`VolumeError::Refused`] with `ForeignEntry` if something that the writer did not make is in the way, and
/// with the codes of [`Payload`] if its paths cannot be used.
pub fn write(
    dir: BorrowedFd<'_>,
    shown: &Path,
    payload: &Payload,
    fs_group: Option<FsGroup>,
) -> Result<WriteOutcome, VolumeError> {
    write_by_steps(dir, shown, payload, fs_group, &mut |_| Ok(()))
}

/// Removes what the writer wrote and nothing else.
pub fn clear(dir: BorrowedFd<'_>, shown: &Path) -> Result<(), VolumeError> {
    let mut step = |_: &str| Ok(());
    let mut writer = Writer::new(dir, shown, None, &mut step)?;
    let names = writer.list()?;
    for (name, kind) in &names {
        if *kind == FileType::Symlink && writer.is_own_link(name)? {
            writer.unlink(name)?;
        }
    }
    for (name, kind) in &names {
        if *kind == FileType::Symlink && (**name == *DATA || **name == *TEMPORARY) {
            writer.unlink(name)?;
        }
    }
    for (name, kind) in &names {
        if *kind == FileType::Directory && is_timestamped(name) {
            writer.remove_tree(name)?;
        }
    }
    Ok(())
}

/// Whether everything in the folder is what [`clear`] removes. An empty folder holds nothing else either. Reads names and
/// links; opens nothing in it.
pub fn holds_nothing_else(dir: BorrowedFd<'_>, shown: &Path) -> Result<bool, VolumeError> {
    let mut step = |_: &str| Ok(());
    let writer = Writer::new(dir, shown, None, &mut step)?;
    for (name, kind) in &writer.list()? {
        let own = match *kind {
            FileType::Symlink => **name == *DATA || **name == *TEMPORARY || writer.is_own_link(name)?,
            FileType::Directory => is_timestamped(name),
            _ => false,
        };
        if !own {
            return Ok(false);
        }
    }
    Ok(true)
}

/// As [`write()`]; `step` is called before each change of the file system, and an error from it ends the writer there
/// without any clean-up, as a kill would.
fn write_by_steps(
    dir: BorrowedFd<'_>,
    shown: &Path,
    payload: &Payload,
    fs_group: Option<FsGroup>,
    step: &mut Step<'_>,
) -> Result<WriteOutcome, VolumeError> {
    let tree = tree_of(payload)?;
    let mut writer = Writer::new(dir, shown, fs_group, step)?;
    writer.own_volume_folder()?;

    let current = writer.current()?;
    let (current, same) = match current {
        Some((name, folder)) => {
            let same = writer.is_same(&folder, &tree, 0)?;
            (Some(name), same)
        }
        None => (None, false),
    };
    let current = match current {
        Some(name) if same => {
            writer.own_link(DATA)?;
            name
        }
        _ => writer.write_new(&tree)?,
    };
    for name in tree.keys() {
        writer.link_name(name)?;
    }
    for path in &payload.mount_points {
        writer.make_mount_point(path)?;
    }
    if writer.changed {
        // Before the old content goes: after a power cut `..data` may be the old one or the new, never one to nowhere.
        writer.sync_volume_folder()?;
    }
    writer.remove_remains(&tree, &current)?;
    Ok(if writer.changed { WriteOutcome::Written } else { WriteOutcome::Unchanged })
}

type Step<'s> = dyn FnMut(&'static str) -> rustix::io::Result<()> + 's;

/// Whether this is the name of a folder of content: `..YYYY_MM_DD_hh_mm_ss.<random>`.
fn is_timestamped(name: &CStr) -> bool {
    let Some(rest) = name.to_bytes().strip_prefix(b"..") else { return false };
    let shape = b"dddd_dd_dd_dd_dd_dd.";
    rest.len() > shape.len()
        && rest.iter().zip(shape).all(|(c, s)| if *s == b'd' { c.is_ascii_digit() } else { c == s })
        && rest[shape.len()..].iter().all(u8::is_ascii_alphanumeric)
}

fn new_name() -> rustix::io::Result<CString> {
    let mut random = [0; 8];
    let mut filled = 0;
    while filled < random.len() {
        filled += rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    let time = jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S");
    Ok(CString::new(format!("..{time}.{}", u64::from_ne_bytes(random))).expect("made of digits"))
}

/// One run of the writer over one volume.
struct Writer<'a, 's> {
    dir: OwnedFd,
    shown: &'a Path,
    /// Owner of everything below the volume's folder.
    uid: Uid,
    gid: Gid,
    /// Whether `gid` is the pod's fsGroup.
    grouped: bool,
    /// Whether the file system keeps what is synced over a power cut.
    durable: bool,
    changed: bool,
    step: &'a mut Step<'s>,
}

impl<'a, 's> Writer<'a, 's> {
    fn new(
        dir: BorrowedFd<'_>,
        shown: &'a Path,
        fs_group: Option<FsGroup>,
        step: &'a mut Step<'s>,
    ) -> Result<Self, VolumeError> {
        let error = |doing| move |e: Errno| VolumeError::Io { doing, path: shown.to_owned(), source: e.into() };
        // The root of a detached mount comes as an O_PATH descriptor, which cannot be read.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(dir, c".", flags, Mode::empty()).map_err(error("open the volume's folder"))?;
        let durable = !beneath::is_in_memory(&dir).map_err(error("look at the file system of"))?;
        Ok(Self {
            dir,
            shown,
            uid: rustix::process::geteuid(),
            gid: fs_group.map_or_else(rustix::process::getegid, |g| Gid::from_raw(g.gid)),
            grouped: fs_group.is_some(),
            durable,
            changed: false,
            step,
        })
    }

    fn error(&self, doing: &'static str, name: &CStr, errno: Errno) -> VolumeError {
        VolumeError::Io { doing, path: self.shown.join(name.to_string_lossy().as_ref()), source: errno.into() }
    }

    fn foreign(&self, name: &CStr, what: &str) -> VolumeError {
        let path = self.shown.join(name.to_string_lossy().as_ref());
        VolumeError::Refused(Problem::new(
            "ForeignEntry",
            format!("cannot write the volume's content: {} is {what}, which is not this program's", path.display()),
            "Look what it is and who put it there, and move it away; the operation is retried.",
        ))
    }

    /// Announces a change. Its error is passed on untouched, so that nothing is cleaned up after it.
    fn step(&mut self, doing: &'static str, name: &CStr) -> Result<(), VolumeError> {
        (self.step)(doing).map_err(|e| self.error(doing, name, e))?;
        self.changed = true;
        Ok(())
    }

    fn list(&self) -> Result<Vec<(CString, FileType)>, VolumeError> {
        beneath::list(&self.dir).map_err(|e| self.error("list", c"", e))
    }

    fn file_mode(&self, mode: u32) -> u32 {
        (mode & 0o777) | if self.grouped { 0o440 } else { 0 }
    }

    fn folder_mode(&self) -> u32 {
        0o755 | if self.grouped { 0o2550 } else { 0 }
    }

    fn is_owned(&self, stat: &Stat) -> bool {
        stat.st_uid == self.uid.as_raw() && stat.st_gid == self.gid.as_raw()
    }

    /// Gives the volume's own folder to the group. Without one its owner and mode are none of the writer's business.
    fn own_volume_folder(&mut self) -> Result<(), VolumeError> {
        if !self.grouped {
            return Ok(());
        }
        let stat = rustix::fs::fstat(&self.dir).map_err(|e| self.error("look at", c"", e))?;
        if stat.st_gid != self.gid.as_raw() {
            self.step("give the volume's folder to the group", c"")?;
            rustix::fs::fchown(&self.dir, None, Some(self.gid))
                .map_err(|e| self.error("give the pod's fsGroup the folder", c"", e))?;
        }
        let mode = beneath::bits(&stat) | 0o2550;
        if mode != beneath::bits(&stat) {
            self.step("set the mode of the volume's folder", c"")?;
            rustix::fs::fchmod(&self.dir, Mode::from_raw_mode(mode))
                .map_err(|e| self.error("set the mode of", c"", e))?;
        }
        Ok(())
    }

    /// The folder that `..data` points to, if it does.
    fn current(&self) -> Result<Option<(CString, OwnedFd)>, VolumeError> {
        let target = match rustix::fs::readlinkat(&self.dir, DATA, Vec::new()) {
            Ok(target) => target,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::INVAL) => return Err(self.foreign(DATA, "no symlink")),
            Err(e) => return Err(self.error("read the link", DATA, e)),
        };
        if !is_timestamped(&target) {
            return Ok(None);
        }
        match beneath::open_dir(&self.dir, &target) {
            Ok(folder) => Ok(Some((target, folder))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(e) => Err(self.error("open", &target, e)),
        }
    }

    /// Writes a whole new folder of content and switches `..data` to it.
    fn write_new(&mut self, tree: &Tree<'_>) -> Result<CString, VolumeError> {
        let name = loop {
            let name = new_name().map_err(|e| self.error("draw a random name for", c"", e))?;
            self.step("make the folder of content", &name)?;
            match rustix::fs::mkdirat(&self.dir, &name, Mode::RWXU) {
                Ok(()) => break name,
                Err(Errno::EXIST) => {}
                Err(e) => return Err(self.error("make", &name, e)),
            }
        };
        let written = self.fill_and_switch(&name, tree);
        if written.is_err() && !matches!(self.current(), Ok(Some((current, _))) if current == name) {
            // It would be found and removed at the next call; space may be what was lacking, so do it now.
            let _ = self.remove_tree(&name);
        }
        written.map(|()| name)
    }

    fn fill_and_switch(&mut self, name: &CStr, tree: &Tree<'_>) -> Result<(), VolumeError> {
        let folder = beneath::open_dir(&self.dir, name).map_err(|e| self.error("open", name, e))?;
        self.fill(&folder, name, tree, 0)?;
        if self.durable {
            self.sync_volume_folder()?;
        }
        self.switch_link(DATA, name)
    }

    /// Fills a new folder that nobody is shown yet; its own owner and mode come last.
    fn fill(&mut self, folder: &OwnedFd, shown: &CStr, tree: &Tree<'_>, depth: usize) -> Result<(), VolumeError> {
        if depth > beneath::MAX_DEPTH {
            return Err(self.error("make folders so deep in", shown, Errno::NAMETOOLONG));
        }
        for (name, node) in tree {
            match node {
                Node::Folder(inner) => {
                    self.step("make a folder", name)?;
                    rustix::fs::mkdirat(folder, name, Mode::RWXU).map_err(|e| self.error("make", name, e))?;
                    let opened = beneath::open_dir(folder, name).map_err(|e| self.error("open", name, e))?;
                    self.fill(&opened, name, inner, depth + 1)?;
                }
                Node::File(file) => self.write_file(folder, name, file)?,
            }
        }
        self.finish(folder, shown, self.folder_mode())
    }

    fn write_file(&mut self, folder: &OwnedFd, name: &CStr, file: &PayloadFile) -> Result<(), VolumeError> {
        self.step("make a file", name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| self.error("make the file", name, e))?;
        self.step("write a file", name)?;
        let mut open = File::from(fd);
        open.write_all(&file.data).map_err(|source| VolumeError::Io {
            doing: "write",
            path: self.shown.join(name.to_string_lossy().as_ref()),
            source,
        })?;
        self.finish(&open, name, self.file_mode(file.mode))
    }

    /// Owner, then mode (a change of owner may drop bits), then sync.
    fn finish(&mut self, fd: impl AsFd, name: &CStr, mode: u32) -> Result<(), VolumeError> {
        self.step("set the owner", name)?;
        rustix::fs::fchown(&fd, Some(self.uid), Some(self.gid)).map_err(|e| self.error("set the owner of", name, e))?;
        self.step("set the mode", name)?;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode)).map_err(|e| self.error("set the mode of", name, e))?;
        if self.durable {
            self.step("sync", name)?;
            rustix::fs::fsync(&fd).map_err(|e| self.error("sync", name, e))?;
        }
        Ok(())
    }

    fn sync_volume_folder(&mut self) -> Result<(), VolumeError> {
        if self.durable {
            self.step("sync the volume's folder", c"")?;
            rustix::fs::fsync(&self.dir).map_err(|e| self.error("sync", c"", e))?;
        }
        Ok(())
    }

    /// Makes `link` point to `target` in one step, whatever link was there.
    fn switch_link(&mut self, link: &CStr, target: &CStr) -> Result<(), VolumeError> {
        match rustix::fs::statat(&self.dir, TEMPORARY, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if beneath::kind(&stat) == FileType::Symlink => self.unlink(TEMPORARY)?,
            Ok(_) => return Err(self.foreign(TEMPORARY, "no symlink")),
            Err(Errno::NOENT) => {}
            Err(e) => return Err(self.error("look at", TEMPORARY, e)),
        }
        self.step("make the temporary link", TEMPORARY)?;
        rustix::fs::symlinkat(target, &self.dir, TEMPORARY).map_err(|e| self.error("make the link", TEMPORARY, e))?;
        self.own_link(TEMPORARY)?;
        self.step("switch the link", link)?;
        rustix::fs::renameat(&self.dir, TEMPORARY, &self.dir, link).map_err(|e| self.error("switch the link", link, e))
    }

    /// Sets a link's owner if it is not right.
    fn own_link(&mut self, link: &CStr) -> Result<(), VolumeError> {
        let stat = rustix::fs::statat(&self.dir, link, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| self.error("look at the link", link, e))?;
        if self.is_owned(&stat) {
            return Ok(());
        }
        self.step("set the owner of a link", link)?;
        rustix::fs::chownat(&self.dir, link, Some(self.uid), Some(self.gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| self.error("set the owner of the link", link, e))
    }

    /// Makes the link of a top-level name right.
    fn link_name(&mut self, name: &CStr) -> Result<(), VolumeError> {
        let target = through_data(name);
        match rustix::fs::readlinkat(&self.dir, name, Vec::new()) {
            Ok(found) if found == target => self.own_link(name),
            Ok(_) => self.switch_link(name, &target),
            Err(Errno::NOENT) => {
                self.step("make a link", name)?;
                rustix::fs::symlinkat(&target, &self.dir, name).map_err(|e| self.error("make the link", name, e))?;
                self.own_link(name)
            }
            Err(Errno::INVAL) => Err(self.foreign(name, "no symlink")),
            Err(e) => Err(self.error("read the link", name, e)),
        }
    }

    /// Whether this link is one that the writer makes for a top-level name.
    fn is_own_link(&self, name: &CStr) -> Result<bool, VolumeError> {
        match rustix::fs::readlinkat(&self.dir, name, Vec::new()) {
            Ok(found) => Ok(found == through_data(name)),
            Err(Errno::NOENT | Errno::INVAL) => Ok(false),
            Err(e) => Err(self.error("read the link", name, e)),
        }
    }

    /// Makes the folders that another volume is mounted at. What is mounted there already is not touched.
    fn make_mount_point(&mut self, path: &str) -> Result<(), VolumeError> {
        let path = crate::payload::clean_path(path).map_err(|error| VolumeError::Refused(error.0))?;
        let mut folder = self.dir.try_clone().map_err(|source| VolumeError::Io {
            doing: "open again",
            path: self.shown.to_owned(),
            source,
        })?;
        for element in path.split('/') {
            let name = CString::new(element).expect("checked: no NUL in the path");
            let mut next = beneath::open_dir(&folder, &name);
            if matches!(next, Err(Errno::NOENT)) {
                self.step("make a mount point", &name)?;
                rustix::fs::mkdirat(&folder, &name, Mode::RWXU).map_err(|e| self.error("make", &name, e))?;
                next = beneath::open_dir(&folder, &name);
            }
            folder = match next {
                Ok(next) => next,
                Err(Errno::XDEV) => return Ok(()),
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(self.foreign(&name, "no folder")),
                Err(e) => return Err(self.error("open", &name, e)),
            };
            let stat = rustix::fs::fstat(&folder).map_err(|e| self.error("look at", &name, e))?;
            if !self.is_owned(&stat) || beneath::bits(&stat) != self.folder_mode() {
                self.finish(&folder, &name, self.folder_mode())?;
            }
        }
        Ok(())
    }

    /// Removes links of names that are gone, and folders and links that an update or an interrupted one left.
    fn remove_remains(&mut self, tree: &Tree<'_>, current: &CStr) -> Result<(), VolumeError> {
        for (name, kind) in self.list()? {
            match kind {
                FileType::Symlink if *name == *TEMPORARY => self.unlink(&name)?,
                FileType::Symlink if !tree.contains_key(&name) && self.is_own_link(&name)? => self.unlink(&name)?,
                FileType::Directory if is_timestamped(&name) && *name != *current => self.remove_tree(&name)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn unlink(&mut self, name: &CStr) -> Result<(), VolumeError> {
        self.step("remove a link", name)?;
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(self.error("remove the link", name, e)),
        }
    }

    fn remove_tree(&mut self, name: &CStr) -> Result<(), VolumeError> {
        self.changed = true;
        let step = &mut *self.step;
        beneath::remove_tree(&self.dir, name, &mut || step("remove old content"))
            .map_err(|e| self.error("remove the old content", name, e))
    }
}

/// The target of a top-level name's link.
fn through_data(name: &CStr) -> CString {
    let target = [DATA.to_bytes(), b"/", name.to_bytes()].concat();
    CString::new(target).expect("made of C strings")
}

#[cfg(test)]
mod tests;
