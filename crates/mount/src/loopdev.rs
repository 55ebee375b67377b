//! Loop devices: attach with one atomic ioctl, detach, and find by backing file (device and inode, never text) or by the
//! mark that they were attached with.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use linux_raw_sys::loop_device as raw;

use crate::{Device, sys};

/// How often another free device is asked for when somebody else took the one that was free.
const MAX_TRIES: usize = 64;

/// The longest mark, in bytes.
pub const MAX_MARK: usize = 63;

/// What the kernel says of an attached loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopStatus {
    /// The device that the backing file is on.
    pub device: Device,
    /// The backing file's inode there.
    pub inode: u64,
    /// The name that it was attached under: a mark, or what another program wrote (losetup: the beginning of the
    /// file's path).
    pub mark: Vec<u8>,
}

/// An attached loop device as sysfs shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoopFile {
    /// Its number.
    pub number: u32,
    /// Its device node, `/dev/loop<number>`.
    pub path: PathBuf,
    /// The path of the backing file as the kernel spells it now for this process: renamed with the file, `/` for a file
    /// mount that was detached. Only a hint at which file it is.
    pub backing: PathBuf,
    /// Whether the kernel says that the backing file was deleted.
    pub deleted: bool,
}

/// Attaches a file to a free loop device and returns its path (`/dev/loop3`). Each call takes a new device, also
/// for a file that has one.
///
/// # Source
/// `LOOP_CONFIGURE` (Linux 5.8) sets file and flags in one step, so that no half-made device is ever seen.
pub fn attach(backing: &Path, read_only: bool) -> io::Result<PathBuf> {
    let file = OpenOptions::new().read(true).write(!read_only).open(backing)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the backing file is no regular file"));
    }
    // For people who look with losetup; never used to find the device again.
    let name = backing.as_os_str().as_bytes();
    attach_open(file.as_fd(), read_only, &name[..name.len().min(MAX_MARK)])
}

/// Attaches an open file or block device to a free loop device and returns its path. `mark` is kept by the kernel with
/// the device, whatever becomes of the file's path. At most [`MAX_MARK`] bytes.
pub fn attach_open(backing: BorrowedFd<'_>, read_only: bool, mark: &[u8]) -> io::Result<PathBuf> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let mut config = sys::loop_config_empty();
    config.fd = u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?;
    if read_only {
        config.info.lo_flags = raw::LO_FLAGS_READ_ONLY as u32;
    }
    let place = config.info.lo_file_name.get_mut(..mark.len()).filter(|_| mark.len() <= MAX_MARK);
    place.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(mark);
    for _ in 0..MAX_TRIES {
        let path = PathBuf::from(format!("/dev/loop{}", sys::loop_get_free(&control)?));
        let device = OpenOptions::new().read(true).write(!read_only).open(&path)?;
        match sys::loop_configure(&device, &config) {
            Ok(()) => return Ok(path),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

/// The loop devices that have a backing file, in the order of their numbers: one pass over sysfs that opens no device.
/// A machine without sysfs or without loop devices has none.
pub fn all() -> io::Result<Vec<LoopFile>> {
    let mut found = Vec::new();
    for (number, path) in attached()? {
        // Detached meanwhile is none.
        let Ok(mut text) = std::fs::read(format!("/sys/block/loop{number}/loop/backing_file")) else { continue };
        if text.last() == Some(&b'\n') {
            text.pop();
        }
        let living = text.strip_suffix(b" (deleted)").map(<[u8]>::len);
        text.truncate(living.unwrap_or(text.len()));
        found.push(LoopFile { number, path, backing: OsString::from_vec(text).into(), deleted: living.is_some() });
    }
    found.sort_unstable();
    Ok(found)
}

/// What the kernel says of this loop device. None if it is not attached (any more).
///
/// The kernel asks the backing file's file system for this, so it may take as long as that does.
pub fn status(device: &Path) -> io::Result<Option<LoopStatus>> {
    match open_device(device)? {
        Some(file) => status_of(&file),
        None => Ok(None),
    }
}

/// Whether [`status()`] failed because the backing file's file system is dead: its server or daemon is gone. Nothing but that device
/// suffers from it.
pub fn is_backing_dead(error: &io::Error) -> bool {
    let dead = [
        libc::ENOTCONN,
        libc::ECONNABORTED,
        libc::ESTALE,
        libc::EIO,
        libc::ETIMEDOUT,
        libc::EHOSTDOWN,
        libc::ESHUTDOWN,
    ];
    error.raw_os_error().is_some_and(|errno| dead.contains(&errno))
}

fn status_of(device: &File) -> io::Result<Option<LoopStatus>> {
    match sys::loop_status(device) {
        Ok(info) => {
            let (major, minor, inode) = backing_of(&info);
            let mark = info.lo_file_name.iter().copied().take_while(|byte| *byte != 0).collect();
            Ok(Some(LoopStatus { device: Device { major, minor }, inode, mark }))
        }
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Detaches a loop device if it still is what `fits` looks for. Answers whether it did; already detached is done.
///
/// While something else has the device open, the kernel notes the wish, answers with success, and detaches when the
/// last user is gone: [`status()`] tells.
pub fn detach_if(device: &Path, fits: impl FnOnce(&LoopStatus) -> bool) -> io::Result<bool> {
    let Some(file) = open_device(device)? else { return Ok(true) };
    match status_of(&file)? {
        None => Ok(true),
        Some(status) if fits(&status) => match sys::loop_clear(&file) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(true),
            Err(error) => Err(error),
        },
        Some(_) => Ok(false),
    }
}

/// Detaches a loop device. Already detached is done.
///
/// While something still has the device open (a mount of it), the kernel notes the wish, answers with success, and
/// detaches when the last user is gone.
pub fn detach(device: &Path) -> io::Result<()> {
    let Some(device) = open_device(device)? else { return Ok(()) };
    match sys::loop_clear(&device) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        answer => answer,
    }
}

/// The loop devices whose backing file is this file, by device and inode as the kernel tells, in the order of their
/// numbers. Whatever the file is called now, and also if it was deleted and only `backing` holds it.
pub fn find(backing: &Path) -> io::Result<Vec<PathBuf>> {
    let stat = rustix::fs::stat(backing)?;
    let wanted = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev), stat.st_ino);
    let mut found = Vec::new();
    for (number, device) in attached()? {
        // Detached meanwhile is no match.
        let Some(file) = open_device(&device)? else { continue };
        match sys::loop_status(&file) {
            Ok(info) if backing_of(&info) == wanted => found.push((number, device)),
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
            // The file that is looked for has just answered.
            Err(error) if is_backing_dead(&error) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, device)| device).collect())
}

/// Major, minor and inode of the backing file. The device number is in the kernel's own coding.
///
/// # Source
/// `huge_encode_dev` in the kernel's `include/linux/kdev_t.h`.
fn backing_of(info: &raw::loop_info64) -> (u32, u32, u64) {
    let device = info.lo_device;
    let major = ((device >> 8) & 0xfff) as u32;
    let minor = ((device & 0xff) | ((device >> 12) & 0xf_ff00)) as u32;
    (major, minor, info.lo_inode)
}

/// The loop devices that have a backing file, as sysfs has them.
fn attached() -> io::Result<Vec<(u32, PathBuf)>> {
    let mut devices = Vec::new();
    let entries = match std::fs::read_dir("/sys/block") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(devices),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.strip_prefix("loop")).and_then(|n| n.parse().ok()) else {
            continue;
        };
        // The folder `loop` is there while a file is attached.
        if std::fs::symlink_metadata(entry.path().join("loop")).is_ok() {
            devices.push((number, Path::new("/dev").join(name)));
        }
    }
    Ok(devices)
}

/// Opens a loop device for asking and detaching. None if there is no such device node (any more).
fn open_device(path: &Path) -> io::Result<Option<File>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENXIO) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if file.metadata()?.file_type().is_block_device() {
        return Ok(Some(file));
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no block device", path.display())))
}
