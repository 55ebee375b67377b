//! Opens what a subPath names, beneath the volume's root.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use refloat_mount::{Dir, MountTable, PathError};
use refloat_record::{PluginName, PodVolume};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::tear_down::{is_own, other_mount};
use crate::{Host, Problem, VolumeError};

/// What a subPath names, held open.
pub(super) struct Opened {
    /// By name only (`O_PATH`).
    pub fd: OwnedFd,
    /// Its path, for messages.
    pub shown: PathBuf,
    /// Whether it is a folder.
    pub is_dir: bool,
}

/// Whether the volume's content is written by its plugin and by nobody else: nothing is made in it for a subPath.
pub(super) fn is_written_by_us(plugin: &PluginName) -> bool {
    matches!(
        plugin.as_str(),
        "kubernetes.io/configmap" | "kubernetes.io/secret" | "kubernetes.io/downward-api" | "kubernetes.io/projected"
    )
}

/// Opens the volume's root: its folder, or the mount that the record announces there, or the host's own path.
pub(super) fn open_root(host: &Host, record: &PodVolume, table: &MountTable) -> Result<Dir, VolumeError> {
    let Some(path) = &record.path else {
        let Some(host_path) = &record.host_path else {
            return Err(missing(Path::new("the volume"), "its record has no path"));
        };
        let shown = PathBuf::from(host_path);
        let fd = rustix::fs::open(&shown, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| io("open", &shown, error))?;
        return Ok(Dir::new(fd, shown));
    };
    let absolute = host.absolute(path);
    let expected = host.announced_mount(record.mount.as_ref(), &record.boot_id);
    match (table.at(&absolute), expected) {
        (None, None) => {}
        (Some(top), Some(expected)) if is_own(top, &expected) => {}
        (Some(top), _) => return Err(VolumeError::Refused(other_mount(&absolute, top))),
        (None, Some(_)) => return Err(missing(&absolute, "the volume is not mounted")),
    }
    host.root
        .open_dir_in_mount(path.as_path())
        .map_err(VolumeError::Path)?
        .ok_or_else(|| missing(&absolute, "the volume's folder is not there"))
}

/// Opens the subPath; makes the folders that are missing if `create`.
pub(super) fn open(root: &Dir, sub_path: &str, create: bool) -> Result<Opened, VolumeError> {
    let parts: Vec<&str> = sub_path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let relative = if parts.is_empty() { ".".to_owned() } else { parts.join("/") };
    let shown = root.path().join(&relative);
    let fd = match beneath(root.as_fd(), &relative) {
        Err(Errno::NOENT) if create => make(root, &parts, &shown)?,
        Err(Errno::NOENT) => return Err(missing(&shown, "there is no such file or folder in the volume")),
        answer => answer.map_err(|error| refused_or_io(&shown, error))?,
    };
    let stat = rustix::fs::fstat(&fd).map_err(|error| io("look at", &shown, error))?;
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Ok(Opened { fd, shown, is_dir })
}

/// Opens by name only, and never what does not lie beneath `root`, whatever symlinks say meanwhile.
fn beneath(root: BorrowedFd<'_>, relative: &str) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // The kernel gives up with EAGAIN when something was renamed while it looked for `..` in a symlink.
    for _ in 0..64 {
        match rustix::fs::openat2(root, relative, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            answer => return answer,
        }
    }
    Err(Errno::AGAIN)
}

/// Makes the folders that are missing, each with the mode of the volume's root, which a pod's fsGroup was given to
/// already; its setgid bit hands the group on.
///
/// # Source
/// `SafeMakeDir` in `subpath_linux.go`, called with the mode of the volume's root.
fn make(root: &Dir, parts: &[&str], shown: &Path) -> Result<OwnedFd, VolumeError> {
    let stat = rustix::fs::fstat(root).map_err(|error| io("look at", root.path(), error))?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    let mut at: OwnedFd = root.as_fd().try_clone_to_owned().map_err(|source| VolumeError::Io {
        doing: "hold open",
        path: root.path().to_path_buf(),
        source,
    })?;
    let mut so_far = String::new();
    for part in parts {
        so_far = if so_far.is_empty() { (*part).to_owned() } else { format!("{so_far}/{part}") };
        // From the root each time, so that a symlink on the way is held to the same border.
        at = match beneath(root.as_fd(), &so_far) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&at, *part, mode) {
                    // Somebody was faster, or a symlink without a target is there: the next look tells.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(io("make a folder for", shown, error)),
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
                let new = rustix::fs::openat2(&at, *part, flags, Mode::empty(), resolve)
                    .map_err(|error| refused_or_io(shown, error))?;
                rustix::fs::fchmod(&new, mode).map_err(|error| io("set the mode of", shown, error))?;
                new
            }
            Err(error) => return Err(refused_or_io(shown, error)),
        };
    }
    Ok(at)
}

fn refused_or_io(shown: &Path, error: Errno) -> VolumeError {
    match error {
        Errno::XDEV | Errno::LOOP => VolumeError::Refused(Problem::new(
            "SubPathEscapes",
            format!("the subPath {} leaves its volume by a symlink", shown.display()),
            "a symlink in the volume must stay in it; look at what the pod's containers made there",
        )),
        Errno::NOTDIR => VolumeError::Refused(Problem::new(
            "SubPathMissing",
            format!("the subPath {} goes through something that is no folder", shown.display()),
            "look at what is in the volume, or correct the subPath",
        )),
        error => io("open", shown, error),
    }
}

fn missing(shown: &Path, why: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "SubPathMissing",
        format!("cannot mount the subPath {}: {why}", shown.display()),
        "it is tried again when the volume changes",
    ))
}

fn io(doing: &'static str, path: &Path, source: Errno) -> VolumeError {
    VolumeError::Io { doing, path: path.to_path_buf(), source: source.into() }
}

/// The size of a file beneath the node root, no symlink followed and no mount crossed; none if it is gone.
pub(super) fn file_size(host: &Host, rel: &Path) -> Result<Option<u64>, VolumeError> {
    let absolute = host.root.path().join(rel);
    let (Some(parent), Some(name)) = (rel.parent(), rel.file_name()) else {
        return Err(VolumeError::Path(PathError::Escapes { path: rel.to_path_buf() }));
    };
    let Some(dir) = host.root.open_dir(parent).map_err(VolumeError::Path)? else { return Ok(None) };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(&dir, name, flags, Mode::empty(), resolve) {
        Ok(fd) => {
            let stat = rustix::fs::fstat(&fd).map_err(|error| io("look at", &absolute, error))?;
            Ok(Some(u64::try_from(stat.st_size).unwrap_or(u64::MAX)))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(io("look at", &absolute, error)),
    }
}
