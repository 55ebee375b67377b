//! Block volumes: the three objects that present a device to one pod, whichever plugin it is of.
//!
//! 1. `<global map path>/<pod uid>`: an empty regular file with the device bound over it;
//! 2. `pods/<pod uid>/volumeDevices/<plugin>/<volume>`: a symlink to the device, which the container runtime resolves;
//! 3. a loop device whose backing file is the bound device, so that the device is held open and nobody detaches it
//!    unnoticed.
//!
//! [`map()`] makes what is missing of them, [`unmap()`] undoes what is there of them, each object on its own, so that a
//! crash between any two leaves something that both can go on from. The record is durable before the first of them can
//! be seen. Pods that share a device share none of the three; the folder of the global map path goes with the last one.
//!
//! The loop device is known by a mark of ours ([`LoopMarks`]), which the kernel keeps with it: the file's path in sysfs
//! changes with mounts, and all pods' bound files are one inode, the device's node.
//!
//! # Source
//! `MapBlockVolume` and `UnmapBlockVolume` in `pkg/volume/util/util.go`, `pkg/volume/util/volumepathhandler` of
//! Kubernetes v1.36.

mod loops;
mod unmap;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use refloat_mount::{BindOptions, NewMount, PathError, Standing};
use refloat_record::{DeviceNumber, RecordedBlock, RecordedMount, RelPath, Verbatim};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

pub use loops::{HeldLoop, LoopMarks, adopt_loop, detach_left, survey};
pub use unmap::unmap;

use crate::tear_down::other_mount;
use crate::{Host, Problem, SetUp, VolumeError};

/// The beginning of the name of a symlink that is about to replace another one. No volume is called so.
pub const TEMPORARY: &str = ".refloat-";

/// A block device that is held by name only.
#[derive(Debug)]
pub struct BlockDevice {
    fd: OwnedFd,
    number: DeviceNumber,
    path: PathBuf,
}

impl BlockDevice {
    /// The device that a path of the host leads to; symlinks are followed. `None` if it is no block device. It is not
    /// opened for reading or writing.
    pub fn open(path: &Path) -> Result<Option<Self>, VolumeError> {
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| io("open", path, errno))?;
        Self::of(fd, path)
    }

    /// The device that this descriptor stands for; `None` if it is no block device. `shown` is its path, for messages.
    pub fn of(fd: OwnedFd, shown: &Path) -> Result<Option<Self>, VolumeError> {
        let Some(number) = number(&fd).map_err(|errno| io("look at", shown, errno))? else { return Ok(None) };
        let path = std::fs::read_link(format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)))
            .map_err(|source| VolumeError::Io { doing: "resolve", path: shown.to_path_buf(), source })?;
        Ok(Some(Self { fd, number, path }))
    }

    /// Its number.
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// The path of its node, symlinks resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The number of a block device; none if it is something else.
fn number(fd: impl AsFd) -> Result<Option<DeviceNumber>, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    let block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let number = DeviceNumber { major: rustix::fs::major(stat.st_rdev), minor: rustix::fs::minor(stat.st_rdev) };
    Ok(block.then_some(number))
}

fn io(doing: &'static str, path: &Path, errno: Errno) -> VolumeError {
    VolumeError::Io { doing, path: path.to_path_buf(), source: errno.into() }
}

/// Presents the device to the pod: makes what is missing of the bind mount at `map_path` (`<global map path>/<pod
/// uid>`), the symlink at the volume's path, and the loop device. What is already right is left as it is, so it may be
/// called again at any time.
///
/// # Safety of the node
/// Neither path may have a symlink or a mount on the way. Whatever else stands at `map_path` or where the symlink
/// belongs is refused and left alone, a mount of another origin too; only a symlink is replaced.
pub fn map(
    step: &SetUp<'_>,
    map_path: &RelPath,
    device: &BlockDevice,
    provider_info: Option<Verbatim>,
) -> Result<(), VolumeError> {
    let host = step.host;
    let link = step.path.ok_or_else(no_link)?;
    let link_target = device.path.to_str().ok_or_else(|| no_text(&device.path))?.to_owned();
    free_for_link(host, link)?;
    let block = |mount: Option<RecordedMount>| RecordedBlock {
        map_path: map_path.clone(),
        link_target: link_target.clone(),
        mount,
        device: Some(device.number),
    };
    if step.mounted {
        let mount = step.record.and_then(|r| r.block.as_ref()?.mount.clone());
        let bound = bound(host, map_path)?;
        if bound != Some(device.number) {
            return Err(VolumeError::Refused(other_device(&host.absolute(map_path), bound, device)));
        }
        step.announce_block(block(mount), provider_info)?;
    } else {
        free_for_bind(host, map_path)?;
        let mount = NewMount::bind(host.kernel, device.fd.as_fd(), &device.path, &BindOptions::default())
            .map_err(VolumeError::Mount)?;
        step.announce_block(block(Some(crate::plugin::recorded(&mount))), provider_info)?;
        let file = retry_missing(|| host.root.make_file(map_path.as_path(), 0o750))?;
        mount.attach(&file).map_err(VolumeError::Mount)?;
    }
    make_link(host, link, &device.path)?;
    loops::hold(host, map_path, device.number, step.spec.read_only)
}

/// The number of the device that is bound at this path; none if it is no block device.
pub(crate) fn bound(host: &Host, map_path: &RelPath) -> Result<Option<DeviceNumber>, VolumeError> {
    match host.root.open_mounted(map_path.as_path()).map_err(VolumeError::Path)? {
        Some(fd) => number(&fd).map_err(|errno| io("look at", &host.absolute(map_path), errno)),
        None => Ok(None),
    }
}

/// Refuses whatever stands where the symlink belongs and is none.
fn free_for_link(host: &Host, link: &RelPath) -> Result<(), VolumeError> {
    match host.root.look(link.as_path()).map_err(VolumeError::Path)? {
        Standing::Nothing | Standing::Symlink(_) => Ok(()),
        found => Err(VolumeError::Refused(path_taken(&host.absolute(link), &found, "its symlink"))),
    }
}

/// Refuses whatever stands where the device is to be bound and is no empty file.
fn free_for_bind(host: &Host, map_path: &RelPath) -> Result<(), VolumeError> {
    let absolute = host.absolute(map_path);
    let table = host.mount_table().map_err(VolumeError::Table)?;
    if let Some(found) = table.at(&absolute) {
        return Err(VolumeError::Refused(other_mount(&absolute, found)));
    }
    match host.root.look(map_path.as_path()).map_err(VolumeError::Path)? {
        Standing::Nothing | Standing::EmptyFile => Ok(()),
        Standing::File => Err(VolumeError::Refused(Problem::new(
            "DataBelowMount",
            format!("{} is a file with content that binding the device would hide", absolute.display()),
            "it was written while the device was not bound there; move it away, then the volume is set up",
        ))),
        found => Err(VolumeError::Refused(path_taken(&absolute, &found, "the device's bind mount"))),
    }
}

fn make_link(host: &Host, link: &RelPath, target: &Path) -> Result<(), VolumeError> {
    let folder = link.as_path().parent().unwrap_or(Path::new("."));
    retry_missing(|| {
        host.root.make_dirs(folder, 0o750)?;
        host.root.make_symlink(link.as_path(), target, temporary_of(link).as_ref())
    })
}

/// The name, in the symlink's own folder, of the one that is to replace it. Short, whatever the volume is called.
fn temporary_of(link: &RelPath) -> String {
    format!("{TEMPORARY}{}", loops::short_hash(link.as_str().as_bytes()))
}

/// Repeats what found a folder missing that it had just made: another volume's undoing took the empty folder away.
fn retry_missing<T>(mut make: impl FnMut() -> Result<T, PathError>) -> Result<T, VolumeError> {
    const TRIES: u32 = 16;
    let mut tries = 0;
    loop {
        tries += 1;
        match make() {
            Err(PathError::Io { source, .. })
                if tries < TRIES && Errno::from_io_error(&source) == Some(Errno::NOENT) => {}
            answer => return answer.map_err(VolumeError::Path),
        }
    }
}

fn path_taken(path: &Path, found: &Standing, what: &str) -> Problem {
    Problem::new(
        "PathTaken",
        format!("{} is {}, where {what} belongs", path.display(), found.name()),
        "it is not touched; look what it is, and move it away",
    )
}

fn other_device(path: &Path, bound: Option<DeviceNumber>, device: &BlockDevice) -> Problem {
    let bound = bound.map_or_else(|| "no block device".to_owned(), |number| format!("the device {number}"));
    Problem::new(
        "OtherDevice",
        format!(
            "{} shows {bound}, and the volume's path now leads to {} ({})",
            path.display(),
            device.path.display(),
            device.number
        ),
        "what the pod has stays as it is; see whether disks were swapped or renamed, and start the pod anew",
    )
}

fn no_link() -> VolumeError {
    VolumeError::Refused(Problem::new(
        "NoFolder",
        "a block volume has no path for its symlink",
        "this is a fault in Refloat, or the record was changed by hand; `refloat record show` prints it",
    ))
}

fn no_text(path: &Path) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "UnreadableName",
        format!("the device node {} has a name that is no text", path.display()),
        "use a device whose node has a readable name",
    ))
}

/// Opens what this descriptor stands for anew, for use.
fn reopen(fd: BorrowedFd<'_>, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    rustix::fs::open(path, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}
