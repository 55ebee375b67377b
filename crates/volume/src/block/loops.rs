//! The loop device that holds a block volume's device open.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use refloat_mount::loopdev::{self, LoopFile, LoopStatus};
use refloat_mount::{Device, NodeRoot, Standing};
use refloat_record::{DeviceNumber, PodUid, RelPath};
use rustix::fs::OFlags;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::{io, number, reopen};
use crate::{Host, Problem, VolumeError};

/// What every mark of ours begins with.
const PREFIX: &str = "refloat:";

/// Eight hexadecimal digits of a SHA-256 over this.
pub(super) fn short_hash(bytes: &[u8]) -> String {
    let short = Sha256::digest(bytes)[..4].try_into().expect("a SHA-256 has 32 bytes");
    format!("{:08x}", u32::from_be_bytes(short))
}

/// The marks of the loop devices of one node root: `refloat:<hash of root>:<hash of map path>:<pod uid>`.
///
/// The root is told by its device and inode, not by its path, which is another one in each container. Another root's
/// volume of the same name so has another mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopMarks {
    prefix: String,
}

impl LoopMarks {
    /// The marks of this root.
    pub fn of(root: &NodeRoot) -> std::io::Result<Self> {
        let stat = rustix::fs::fstat(root)?;
        Ok(Self::of_numbers(stat.st_dev, stat.st_ino))
    }

    /// The marks of a root with this device and inode.
    pub fn of_numbers(device: u64, inode: u64) -> Self {
        Self { prefix: format!("{PREFIX}{}:", short_hash(&[device.to_le_bytes(), inode.to_le_bytes()].concat())) }
    }

    /// The mark of the loop device over the file at this map path.
    pub fn mark(&self, map_path: &RelPath) -> Vec<u8> {
        let uid = map_path.as_str().rsplit('/').next().unwrap_or_default();
        let mut mark = format!("{}{}:{uid}", self.prefix, short_hash(map_path.as_str().as_bytes())).into_bytes();
        mark.truncate(loopdev::MAX_MARK);
        mark
    }

    /// The pod of a mark of this root; none for another mark, and for one whose uid was too long for it.
    pub fn pod_of(&self, mark: &[u8]) -> Option<PodUid> {
        let rest = mark.strip_prefix(self.prefix.as_bytes()).filter(|_| mark.len() < loopdev::MAX_MARK)?;
        let (_, uid) = std::str::from_utf8(rest).ok()?.split_once(':')?;
        PodUid::new(uid).ok()
    }

    /// Whether a mark is of this root.
    pub fn is_own(&self, mark: &[u8]) -> bool {
        mark.starts_with(self.prefix.as_bytes())
    }

    /// Whether a mark is of a Refloat, of this root or another.
    pub fn is_mark(mark: &[u8]) -> bool {
        mark.starts_with(PREFIX.as_bytes())
    }
}

/// A loop device that a block volume of this root may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLoop {
    /// Its device node.
    pub path: PathBuf,
    /// What its backing file is called now (see [`LoopFile::backing`]).
    pub backing: PathBuf,
    /// Whether the backing file was deleted.
    pub deleted: bool,
    /// The name that it was attached under.
    pub mark: Vec<u8>,
    /// Whether the backing file is the very regular file that stands at that path below the root now: no device is
    /// bound there.
    pub same_file: bool,
}

/// The loop devices that block volumes of this root may have: those with a mark of this root, and those without a mark
/// whose backing file is below the root and called as a block volume's. One pass over sysfs; only devices that look so
/// are asked more.
pub fn survey(root: &NodeRoot) -> std::io::Result<(LoopMarks, Vec<HeldLoop>)> {
    let marks = LoopMarks::of(root)?;
    let mut found = vec![];
    for LoopFile { path, backing, deleted, .. } in loopdev::all()? {
        let named = backing.iter().any(|part| part == crate::layout::VOLUME_DEVICES);
        if !named && backing != Path::new("/") {
            continue;
        }
        let status = match loopdev::status(&path) {
            Ok(Some(status)) => status,
            Ok(None) => continue,
            // Whoever may not open it has not attached it either: root is refused with another error, if at all.
            Err(error) if error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) => continue,
            // A block volume's is over a device node, whose file system is the kernel's own.
            Err(error) if loopdev::is_backing_dead(&error) => continue,
            Err(error) => return Err(error),
        };
        let below = backing.strip_prefix(root.path()).ok().filter(|_| named && !LoopMarks::is_mark(&status.mark));
        if !marks.is_own(&status.mark) && below.is_none() {
            continue;
        }
        let same_file = !deleted && below.is_some_and(|rel| is_file(root, rel, &status));
        found.push(HeldLoop { path, backing, deleted, mark: status.mark, same_file });
    }
    Ok((marks, found))
}

/// Whether this regular file stands at the path, with nothing mounted there.
fn is_file(root: &NodeRoot, rel: &Path, status: &LoopStatus) -> bool {
    if !matches!(root.look(rel), Ok(Standing::EmptyFile | Standing::File)) {
        return false;
    }
    let stat = root.open_mounted(rel).ok().flatten().and_then(|fd| rustix::fs::fstat(fd).ok());
    stat.is_some_and(|stat| node_of(&stat) == (status.device, status.inode))
}

fn node_of(stat: &rustix::fs::Stat) -> Node {
    (Device { major: rustix::fs::major(stat.st_dev), minor: rustix::fs::minor(stat.st_dev) }, stat.st_ino)
}

/// Whether the path that sysfs shows for a backing file can be that of this map path: its own, the one that it has in
/// another mount namespace, or the `/` of a bind that was detached.
///
/// Only such devices are asked more: the kernel answers for a backing file on a dead server when that server does.
fn may_be(file: &LoopFile, map_path: &RelPath) -> bool {
    file.backing == Path::new("/") || file.backing.ends_with(map_path.as_path())
}

fn cannot(doing: &'static str, device: &Path) -> impl FnOnce(std::io::Error) -> VolumeError {
    let path = device.to_path_buf();
    move |source| VolumeError::Io { doing, path, source }
}

/// The loop devices over the file at a map path.
pub(super) struct Found {
    /// Those with our mark.
    ours: Vec<LoopFile>,
    /// Those of somebody else over the very device node that is bound there, by that path.
    pub(super) others: Vec<PathBuf>,
    mark: Vec<u8>,
    /// Device and inode of the bound node, if one is bound.
    node: Option<Node>,
}

/// What tells a device node from all others: the device that it is on, and its inode.
type Node = (Device, u64);

impl Found {
    /// Detaches ours.
    pub(super) fn detach_ours(&self) -> Result<(), VolumeError> {
        self.ours.iter().try_for_each(|file| detach(&file.path, &self.mark))
    }

    /// Detaches the one of another manager; nothing if there is none or more than one.
    pub(super) fn detach_only_other(&self) -> Result<(), VolumeError> {
        let ([other], Some(node)) = (self.others.as_slice(), self.node) else { return Ok(()) };
        detach_where(other, |status| (status.device, status.inode) == node && !LoopMarks::is_mark(&status.mark))
    }
}

pub(super) fn find(host: &Host, map_path: &RelPath) -> Result<Found, VolumeError> {
    let root = host.root.path();
    let mark = LoopMarks::of(&host.root).map_err(cannot("look at", root))?.mark(map_path);
    let node = bound_node(host, map_path)?;
    let mut found = Found { ours: vec![], others: vec![], mark, node };
    let absolute = host.absolute(map_path);
    for file in loopdev::all().map_err(cannot("list the loop devices in", Path::new("/sys/block")))? {
        if !may_be(&file, map_path) {
            continue;
        }
        let status = match loopdev::status(&file.path) {
            Err(error) if loopdev::is_backing_dead(&error) => continue,
            answer => answer.map_err(cannot("ask", &file.path))?,
        };
        let Some(status) = status else { continue };
        if status.mark == found.mark {
            found.ours.push(file);
        } else if file.backing == absolute && node.is_some_and(|node| node == (status.device, status.inode)) {
            found.others.push(file.path);
        }
    }
    Ok(found)
}

/// Device and inode of the node that is bound at a map path, if one is.
fn bound_node(host: &Host, map_path: &RelPath) -> Result<Option<Node>, VolumeError> {
    if host.root.look(map_path.as_path()).map_err(VolumeError::Path)? != Standing::MountPoint {
        return Ok(None);
    }
    let Some(fd) = host.root.open_mounted(map_path.as_path()).map_err(VolumeError::Path)? else { return Ok(None) };
    let stat = rustix::fs::fstat(&fd).map_err(|errno| io("look at", &host.absolute(map_path), errno))?;
    Ok(Some(node_of(&stat)))
}

/// Makes sure that a loop device of ours holds the bound device open.
pub(super) fn hold(
    host: &Host,
    map_path: &RelPath,
    expected: DeviceNumber,
    read_only: bool,
) -> Result<(), VolumeError> {
    let absolute = host.absolute(map_path);
    let found = find(host, map_path)?;
    let mut held = false;
    let mut stale = vec![];
    for LoopFile { path, backing, .. } in &found.ours {
        let status = loopdev::status(path).map_err(cannot("ask", path))?;
        if !held && *backing == absolute && status.is_some_and(|s| found.node == Some((s.device, s.inode))) {
            held = true;
        } else {
            // Over an earlier bind or a device that is gone, or a second one.
            stale.push(path);
        }
    }
    if !held {
        attach(host, map_path, &found.mark, expected, read_only)?;
    }
    stale.into_iter().try_for_each(|device| detach(device, &found.mark))
}

fn attach(
    host: &Host,
    map_path: &RelPath,
    mark: &[u8],
    expected: DeviceNumber,
    read_only: bool,
) -> Result<(), VolumeError> {
    let absolute = host.absolute(map_path);
    let fd = host.root.open_mounted(map_path.as_path()).map_err(VolumeError::Path)?;
    let fd = fd.ok_or_else(|| io("open", &absolute, Errno::NOENT))?;
    if number(&fd).map_err(|errno| io("look at", &absolute, errno))? != Some(expected) {
        return Err(VolumeError::Refused(Problem::new(
            "NotMountedAfterwards",
            format!("{} does not show the device {expected} that was bound there", absolute.display()),
            "look for something that unmounts or covers it; it is tried again",
        )));
    }
    let (backing, read_only) =
        open_for_use(fd.as_fd(), read_only || is_read_only(expected)).map_err(|errno| io("open", &absolute, errno))?;
    loopdev::attach_open(backing.as_fd(), read_only, mark).map(drop).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => VolumeError::Refused(Problem::new(
            "NoLoopDevices",
            format!("cannot hold the device at {} open: this machine has no loop devices", absolute.display()),
            "load the module `loop`, or give the container /dev/loop-control and the loop devices",
        )),
        _ => VolumeError::Io { doing: "attach a loop device to", path: absolute, source },
    })
}

/// Whether the kernel has the device as read-only; opening it for writing does not tell.
///
/// # Source
/// `Documentation/ABI/stable/sysfs-block`: `ro`.
fn is_read_only(device: DeviceNumber) -> bool {
    std::fs::read(format!("/sys/dev/block/{device}/ro")).is_ok_and(|text| text.starts_with(b"1"))
}

/// Opens a device for reading and writing, or, if it cannot be written, for reading.
fn open_for_use(fd: std::os::fd::BorrowedFd<'_>, read_only: bool) -> Result<(std::os::fd::OwnedFd, bool), Errno> {
    if !read_only {
        match reopen(fd, OFlags::RDWR) {
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => {}
            answer => return answer.map(|fd| (fd, false)),
        }
    }
    reopen(fd, OFlags::RDONLY).map(|fd| (fd, true))
}

/// How often, and how long apart, it is looked whether a loop device that was detached is gone. Whatever looks at new
/// devices (udev) opens them for a moment, and the kernel detaches when the last one has closed it.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Detaches this loop device if it has this mark, and waits until the kernel did.
fn detach(device: &Path, mark: &[u8]) -> Result<(), VolumeError> {
    detach_where(device, |status| status.mark == mark)
}

fn detach_where(device: &Path, fits: impl Fn(&LoopStatus) -> bool) -> Result<(), VolumeError> {
    if !loopdev::detach_if(device, &fits).map_err(cannot("detach", device))? {
        // Somebody else's by now.
        return Ok(());
    }
    for _ in 0..TRIES {
        if !loopdev::status(device).map_err(cannot("ask", device))?.is_some_and(|status| fits(&status)) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err(VolumeError::Refused(Problem::new(
        "LoopDeviceBusy",
        format!("{} is still open in another program, so the kernel keeps it attached", device.display()),
        "see `fuser -v` of it; it is detached when the last one closes it, and the rest is tried again",
    )))
}

/// Makes the loop device of another manager that holds the device bound at a map path (the kubelet's, which has no mark)
/// ours: attaches one with our mark, then detaches that one. Nothing happens unless there is exactly one such.
pub fn adopt_loop(host: &Host, map_path: &RelPath, read_only: bool) -> Result<(), VolumeError> {
    let found = find(host, map_path)?;
    if found.others.len() != 1 {
        return Ok(());
    }
    let Some(number) = super::bound(host, map_path)? else { return Ok(()) };
    hold(host, map_path, number, read_only)?;
    found.detach_only_other()
}

/// Detaches what is left of a gone pod's block volumes when nothing but their loop devices is: those with our mark, and
/// those without one whose backing file is a plain file in that volume's place. No other is touched.
pub fn detach_left(host: &Host, pod: &PodUid) -> Result<(), VolumeError> {
    let sysfs = Path::new("/sys/block");
    let (marks, found) = survey(&host.root).map_err(cannot("look through the loop devices in", sysfs))?;
    for HeldLoop { path, backing, mark, same_file, .. } in found {
        let unmarked = same_file && backing.file_name() == Some(pod.as_str().as_ref());
        if unmarked || marks.pod_of(&mark).as_ref() == Some(pod) {
            detach(&path, &mark)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map_path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    #[test]
    fn marks_tell_roots_and_volumes_apart_and_fit() {
        let (one, other) = (LoopMarks::of_numbers(1, 2), LoopMarks::of_numbers(1, 3));
        let path = map_path("plugins/p/volumeDevices/pv/7f9c0e52-6b0f-4d8a-9a55-3f1c2d4e5f60");
        let mark = one.mark(&path);
        assert!(mark.ends_with(b":7f9c0e52-6b0f-4d8a-9a55-3f1c2d4e5f60") && LoopMarks::is_mark(&mark));
        assert_ne!(mark, other.mark(&path));
        assert_ne!(mark, one.mark(&map_path("plugins/p/volumeDevices/pw/7f9c0e52-6b0f-4d8a-9a55-3f1c2d4e5f60")));
        let long = one.mark(&map_path(&format!("plugins/p/volumeDevices/pv/{}", "u".repeat(255))));
        assert_eq!(long.len(), loopdev::MAX_MARK);
        assert_eq!(one.pod_of(&mark).unwrap().as_str(), "7f9c0e52-6b0f-4d8a-9a55-3f1c2d4e5f60");
        assert!(one.is_own(&mark) && !other.is_own(&mark) && other.pod_of(&mark).is_none());
        assert!(one.is_own(&long) && one.pod_of(&long).is_none(), "its uid is cut");
    }

    #[test]
    fn only_what_can_be_the_file_is_asked() {
        let path = map_path("plugins/p/volumeDevices/pv/u1");
        let file =
            |backing: &str| LoopFile { number: 0, path: "/dev/loop0".into(), backing: backing.into(), deleted: false };
        for (backing, asked) in [
            ("/", true),
            ("/r/plugins/p/volumeDevices/pv/u1", true),
            ("/rootfs/mnt/data/plugins/p/volumeDevices/pv/u1", true),
            ("/r/plugins/p/volumeDevices/pv/u11", false),
            ("/r/plugins/p/volumeDevices/pv", false),
            ("/nfs/disk.img", false),
        ] {
            assert_eq!(may_be(&file(backing), &path), asked, "{backing}");
        }
    }
}
