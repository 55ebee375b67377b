//! Making a mount visible, in the new way and in the old one.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags};

use super::options::Options;
use super::{BindOptions, MountError};
use crate::kernel::{short_mount_id, unique_mount_id};
use crate::root::{open_entry, open_real, proc_path};
use crate::{Dir, Kernel, MountTable, UniqueMountId, table};

const DOING: &str = "mount on";

/// Where something is to be mounted, looked at a moment ago.
pub(super) struct Place<'t> {
    target: &'t Dir,
    /// The folder that the target is in.
    parent: OwnedFd,
    name: OsString,
}

impl<'t> Place<'t> {
    /// Makes sure that the target's path still leads to the target and that nothing is mounted there.
    pub(super) fn free(target: &'t Dir) -> Result<Self, MountError> {
        let error = |errno: Errno| MountError::new(DOING, target.path(), errno);
        let (Some(parent), Some(name)) = (target.path().parent(), target.path().file_name()) else {
            return Err(error(Errno::BUSY).because("the root is always mounted"));
        };
        let parent = open_real(parent, OFlags::PATH | OFlags::DIRECTORY).map_err(error)?;
        let entry = open_entry(&parent, name).map_err(|errno| match errno {
            Errno::XDEV => error(Errno::BUSY).because("something else has been mounted there"),
            errno => error(errno),
        })?;
        let here = rustix::fs::fstat(&entry).map_err(error)?;
        let expected = rustix::fs::fstat(target).map_err(error)?;
        if (here.st_dev, here.st_ino) != (expected.st_dev, expected.st_ino) {
            return Err(error(Errno::STALE).because("something else stands there by now"));
        }
        Ok(Self { target, parent, name: name.to_owned() })
    }

    fn error(&self, source: impl Into<io::Error>) -> MountError {
        MountError::new(DOING, self.target.path(), source)
    }

    /// Checks that this mount hangs on the target itself. If not, takes exactly this mount away again: the
    /// descriptor stands for its root, so no other mount can be meant.
    fn check(&self, kernel: Kernel, mount: BorrowedFd<'_>) -> Result<Option<UniqueMountId>, MountError> {
        let id = if kernel.features().unique_mount_id { unique_mount_id(mount) } else { None };
        let wanted = short_mount_id(self.target).map_err(|error| self.error(error))?;
        let parent = table::mount_of(kernel, mount).and_then(|t| t.iter().next().map(crate::Mount::parent_short_id));
        if parent == Some(wanted) {
            return Ok(id);
        }
        let error = self.error(Errno::BUSY).because("something else was mounted there at the same moment");
        match rustix::mount::unmount(proc_path(mount), UnmountFlags::DETACH) {
            // EINVAL: it is not mounted (any more).
            Ok(()) | Err(Errno::INVAL) => Err(error),
            Err(errno) => Err(self.error(errno).because("it lies on another mount and could not be taken away again")),
        }
    }

    /// Checks what a helper program mounted. It is not opened (its server may be gone again): the table is asked
    /// whether a mount on the target's path hangs on the mount that the target is in.
    pub(super) fn check_helper(&self, kernel: Kernel) -> Result<(), MountError> {
        let wanted = short_mount_id(self.target).map_err(|error| self.error(error))?;
        let table = crate::TableReader::new(kernel).read().map_err(|error| self.error(io::Error::other(error)))?;
        if table.stack(self.target.path()).into_iter().any(|mount| mount.parent_short_id() == wanted) {
            return Ok(());
        }
        Err(self.error(Errno::STALE).because("mount(8) reported success, but the mount table does not show it there"))
    }

    /// Opens the root of what was just mounted by `mount(2)`, by way of the folder above.
    fn open_mounted(&self) -> Result<OwnedFd, MountError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let resolve = rustix::fs::ResolveFlags::BENEATH
            | rustix::fs::ResolveFlags::NO_SYMLINKS
            | rustix::fs::ResolveFlags::NO_MAGICLINKS;
        let mode = rustix::fs::Mode::empty();
        let fd = rustix::fs::openat2(&self.parent, self.name.as_os_str(), flags | OFlags::CLOEXEC, mode, resolve)
            .map_err(|errno| self.error(errno))?;
        let mounted = short_mount_id(&fd).map_err(|error| self.error(error))?;
        let below = short_mount_id(self.target).map_err(|error| self.error(error))?;
        if mounted == below {
            return Err(self.error(Errno::STALE).because("it vanished again"));
        }
        Ok(fd)
    }
}

/// Moves a detached mount to its place.
pub(super) fn attach_detached(
    kernel: Kernel,
    mount: &OwnedFd,
    place: &Place<'_>,
) -> Result<Option<UniqueMountId>, MountError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", place.target, "", flags).map_err(|errno| place.error(errno))?;
    place.check(kernel, mount.as_fd())
}

/// Mounts a file system by `mount(2)`.
pub(super) fn attach_file_system(
    kernel: Kernel,
    fs_type: &str,
    source: &str,
    options: &Options,
    place: &Place<'_>,
) -> Result<Option<UniqueMountId>, MountError> {
    let data = CString::new(options.data()).map_err(|error| place.error(io::Error::other(error)))?;
    let data = Some(data.as_c_str()).filter(|data| !data.is_empty());
    rustix::mount::mount(source, proc_path(place.target), fs_type, options.flags, data).map_err(|errno| {
        place.error(errno).because(format!("type {fs_type}, source {source}, options '{}'", options.data()))
    })?;
    let mounted = place.open_mounted()?;
    place.check(kernel, mounted.as_fd())
}

/// Binds by `mount(2)`. Read-only and propagation are further calls, each on the new mount's own root.
pub(super) fn attach_bind(
    kernel: Kernel,
    source: BorrowedFd<'_>,
    shown: &Path,
    options: &BindOptions,
    place: &Place<'_>,
) -> Result<Option<UniqueMountId>, MountError> {
    let from = proc_path(source);
    let to = proc_path(place.target);
    let bound = if options.recursive {
        rustix::mount::mount_bind_recursive(from, to)
    } else {
        rustix::mount::mount_bind(from, to)
    };
    bound.map_err(|errno| place.error(errno).because(format!("bind of {}", shown.display())))?;
    let mounted = place.open_mounted()?;
    let id = place.check(kernel, mounted.as_fd())?;
    let finished = finish_bind(options, place, mounted.as_fd());
    if let Err(error) = finished {
        // Half a bind (writable where it must not be) is worse than none.
        let _ = rustix::mount::unmount(proc_path(&mounted), UnmountFlags::DETACH);
        return Err(error);
    }
    Ok(id)
}

/// See [`super::set_bind_options_again`].
pub(super) fn set_again(mounted: &Dir, change: &Options) -> Result<bool, MountError> {
    let error = |source: io::Error| MountError::new("set the options of the bind at", mounted.path(), source);
    let text = table::read_mountinfo().map_err(|e| error(io::Error::other(e)))?;
    let (table, _) = MountTable::from_mountinfo(&text);
    let id = short_mount_id(mounted).map_err(&error)?;
    let own = table.by_short_id(id).ok_or_else(|| error(Errno::STALE.into()))?;
    // It is gone, and the name is a plain folder of the mount below, which is none of ours.
    if own.point() != mounted.path() {
        return Err(error(Errno::STALE.into()));
    }
    if !change.changes(own.options()) {
        return Ok(false);
    }
    let flags = change.changing(own.options());
    rustix::mount::mount_remount(proc_path(mounted), flags | MountFlags::BIND, c"").map_err(|e| error(e.into()))?;
    Ok(true)
}

fn finish_bind(options: &BindOptions, place: &Place<'_>, mounted: BorrowedFd<'_>) -> Result<(), MountError> {
    let text = table::read_mountinfo().map_err(|error| place.error(error))?;
    let (table, _) = MountTable::from_mountinfo(&text);
    let mut all: Vec<(PathBuf, MountFlags)> = Vec::new();
    let id = short_mount_id(mounted).map_err(|error| place.error(error))?;
    let own = table.by_short_id(id).ok_or_else(|| place.error(Errno::STALE))?;
    let change = options.parsed();
    all.push((proc_path(mounted), change.changing(own.options())));
    if options.recursive {
        let point = own.point();
        for below in table.under(point).filter(|mount| !mount.hidden()) {
            let Ok(inside) = below.point().strip_prefix(point) else { continue };
            all.push((proc_path(mounted).join(inside), change.changing(below.options())));
        }
    }
    if !change.attr.is_empty() || !change.cleared.is_empty() {
        for (path, flags) in &all {
            rustix::mount::mount_remount(path, *flags | MountFlags::BIND, c"")
                .map_err(|errno| place.error(errno).because("setting the options of the bind"))?;
        }
    }
    let parent_shared = short_mount_id(place.target)
        .ok()
        .and_then(|parent| table.by_short_id(parent))
        .is_some_and(crate::Mount::shared);
    let recursive = if options.recursive { MountPropagationFlags::REC } else { MountPropagationFlags::empty() };
    let kind = if options.slave { MountPropagationFlags::DOWNSTREAM } else { MountPropagationFlags::PRIVATE };
    let change = |kind| {
        rustix::mount::mount_change(proc_path(mounted), kind | recursive)
            .map_err(|errno| place.error(errno).because("setting the propagation of the bind"))
    };
    change(kind)?;
    // What the kernel does by itself when a detached mount is attached below a shared one.
    if parent_shared { change(MountPropagationFlags::SHARED) } else { Ok(()) }
}
