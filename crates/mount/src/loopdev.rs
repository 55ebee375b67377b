//! Loop devices: attach with one atomic ioctl, detach, and find by backing file (device and inode, never text).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use linux_raw_sys::loop_device as raw;

use crate::sys;

/// How often another free device is asked for when somebody else took the one that was free.
const MAX_TRIES: usize = 64;

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
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let mut config = sys::loop_config_empty();
    config.fd = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
    if read_only {
        config.info.lo_flags = raw::LO_FLAGS_READ_ONLY as u32;
    }
    // For people who look with losetup; never used to find the device again.
    let name = backing.as_os_str().as_bytes();
    let shown = name.len().min(config.info.lo_file_name.len() - 1);
    config.info.lo_file_name[..shown].copy_from_slice(&name[..shown]);
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
    for entry in std::fs::read_dir("/sys/block")? {
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
