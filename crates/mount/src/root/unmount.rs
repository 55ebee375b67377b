//! The guarded unmount.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::child::{self, Child, Ended, PendingUnmount};
use super::walk::{Xdev, checked, diagnose, open_beneath, open_entry, proc_path, split};
use super::{Liveness, NodeRoot, PathError, UnmountError, UnmountHow};
use crate::kernel::short_mount_id;
use crate::{Mount, MountTable, TableReader, UniqueMountId};

/// What tells a mount from all others, as far as the table can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    id: Option<UniqueMountId>,
    short: u32,
    parent: u32,
}

impl Identity {
    fn of(mount: Mount<'_>) -> Self {
        Self { id: mount.id(), short: mount.short_id(), parent: mount.parent_short_id() }
    }
    /// The mount in the table.
    fn mount(self, table: &MountTable) -> Option<Mount<'_>> {
        table.by_short_id(self.short).filter(|mount| Self::of(*mount) == self)
    }
    /// Whether the table still has it at this path.
    fn is_at(self, table: &MountTable, path: &Path) -> bool {
        match self.id {
            Some(id) => table.by_id(id).is_some_and(|mount| mount.point() == path),
            None => table.stack(path).into_iter().any(|mount| Self::of(mount) == self),
        }
    }
}

impl NodeRoot {
    /// Unmounts exactly the mount with this id at this path (or, without an id, the topmost one), if it is there
    /// and on top; then reads the table and believes only that. Nothing mounted there is done.
    ///
    /// Without an id in the table (mountinfo has none) a given id cannot be compared; then the topmost one is
    /// taken, and the caller is to have compared what else it knows.
    ///
    /// The mount's own root is never opened or asked anything, so a dead server does not hold this up before the
    /// unmount itself does. Folders above the mount point are walked without following symlinks. If another mount
    /// is on the way (the mount is inside another one), that one is entered: the path is checked to end in the very
    /// mount that the table names as the parent. [`UnmountHow::Lazy`] takes everything mounted inside along.
    ///
    /// # What cannot be excluded
    /// The kernel has no call that unmounts by id. Between the last look (directly before the call) and the call,
    /// somebody could mount over the mount; that newer mount would then be the one that is undone. It is noticed:
    /// the table still has ours, and the answer is [`UnmountError::StillMounted`].
    pub fn unmount(
        &self,
        rel: &Path,
        id: Option<UniqueMountId>,
        how: UnmountHow,
        table: &mut TableReader,
    ) -> Result<(), UnmountError> {
        self.unmount_within(rel, id, how, table, None)
    }

    /// As [`NodeRoot::unmount`], but waits no longer than `patience` for a file system that asks a device or a server: its
    /// unmount is made by a child process, and if that has not come back by then the answer is [`UnmountError::Hangs`],
    /// whatever the table says: the mount point may be free long before the file system is.
    pub fn unmount_within(
        &self,
        rel: &Path,
        id: Option<UniqueMountId>,
        how: UnmountHow,
        table: &mut TableReader,
        patience: Option<Duration>,
    ) -> Result<(), UnmountError> {
        let Some((parent, name)) = split(checked(rel).map_err(UnmountError::Path)?) else {
            return Err(UnmountError::Path(PathError::Escapes { path: rel.to_owned() }));
        };
        let path = self.absolute(rel);
        let mut before = table.read_at(&path, true).map_err(UnmountError::Table)?;
        if before.stack(&path).is_empty() {
            if !self.may_be_mounted(parent, name) {
                return Ok(());
            }
            // Moved here, or a folder above was renamed: only asking anew shows it.
            before = table.read_anew().map_err(UnmountError::Table)?;
        }
        let Some(target) = target(&before, &path, id)? else { return Ok(()) };
        let Some(parent) = self.open_mount_parent(parent, name, &before, &path)? else {
            return gone_or(target, table, &path, Errno::NOENT);
        };
        // The last look: the mount still exists, still here.
        if let Some(id) = target.id
            && !table.is_still_at(id, &path).map_err(UnmountError::Table)?
        {
            return gone_or(target, table, &path, Errno::NOENT);
        }
        let flags = UnmountFlags::NOFOLLOW
            | match how {
                UnmountHow::Ordinary => UnmountFlags::empty(),
                UnmountHow::Force => UnmountFlags::FORCE,
                UnmountHow::Lazy => UnmountFlags::DETACH,
            };
        let mut risky = target.mount(&before).filter(|mount| child::asks_somebody(*mount));
        if let Some(mount) = risky
            && table.is_mounted_twice(mount.device(), &before).map_err(UnmountError::Table)?
        {
            risky = None;
        }
        let called = match (patience, risky) {
            (Some(patience), Some(mount)) => {
                let io = |source| UnmountError::Io { path: path.clone(), source };
                let child = Child::unmount(&parent, name, flags.bits()).map_err(io)?;
                match child.wait(patience).map_err(io)? {
                    Some(Ended::Answered(answer)) => answer,
                    // Somebody killed it, and nobody who wants this one to stop kills a child of it.
                    Some(Ended::Killed) => rustix::mount::unmount(proc_path(&parent).join(name), flags),
                    None => {
                        let (device, fs_type) = (mount.device(), mount.fs_type().into_owned());
                        return Err(UnmountError::Hangs(PendingUnmount { child, path, device, fs_type }));
                    }
                }
            }
            _ => rustix::mount::unmount(proc_path(&parent).join(name), flags),
        };
        let after = table.read_at(&path, true).map_err(UnmountError::Table)?;
        match (called, target.is_at(&after, &path)) {
            (_, false) => Ok(()),
            (Ok(()), true) => Err(UnmountError::StillMounted { path }),
            (Err(Errno::BUSY), true) => Err(UnmountError::Busy { path }),
            (Err(errno), true) => Err(UnmountError::Io { path, source: errno.into() }),
        }
    }

    /// Whether the file system that is mounted at this path answers: a child process asks it for its numbers. None if nothing
    /// is mounted there.
    pub fn liveness(
        &self,
        rel: &Path,
        table: &mut TableReader,
        patience: Duration,
    ) -> Result<Option<Liveness>, UnmountError> {
        let Some((parent, name)) = split(checked(rel).map_err(UnmountError::Path)?) else {
            return Err(UnmountError::Path(PathError::Escapes { path: rel.to_owned() }));
        };
        let path = self.absolute(rel);
        let now = table.read().map_err(UnmountError::Table)?;
        if now.at(&path).is_none() {
            return Ok(None);
        }
        let Some(parent) = self.open_mount_parent(parent, name, &now, &path)? else { return Ok(None) };
        let io = |source| UnmountError::Io { path: path.clone(), source };
        let child = Child::stat_fs(&parent, name).map_err(io)?;
        Ok(Some(match child.wait(patience).map_err(io)? {
            Some(Ended::Answered(Err(errno))) if is_dead(errno) => Liveness::Dead(errno.into()),
            Some(Ended::Answered(_) | Ended::Killed) => Liveness::Answers,
            None => {
                child.kill();
                // Reaped if it dies of that, left behind if the kernel does not let it.
                let _ = child.wait(Duration::from_millis(50));
                Liveness::Silent
            }
        }))
    }

    /// Whether the kernel, asked by path, finds a mount there or on the way, without touching what is mounted.
    fn may_be_mounted(&self, parent: &Path, name: &OsStr) -> bool {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let entry = open_beneath(self, parent, OFlags::PATH | OFlags::DIRECTORY, Xdev::Stop)
            .and_then(|parent| open_entry(&parent, name));
        entry.err() == Some(Errno::XDEV)
    }

    /// Opens the folder that the mount point is in, and makes sure that the walk ended in the mount that the lowest
    /// visible mount there hangs on. `None` if it does not exist.
    fn open_mount_parent(
        &self,
        parent: &Path,
        name: &OsStr,
        table: &MountTable,
        path: &Path,
    ) -> Result<Option<std::os::fd::OwnedFd>, UnmountError> {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let shown = self.absolute(parent);
        let fd = match open_beneath(self, parent, OFlags::PATH | OFlags::DIRECTORY, Xdev::Cross) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(UnmountError::Path(diagnose(self, parent, errno, "unmount in", &shown))),
        };
        let lowest = table.stack(path).into_iter().find(|mount| !mount.hidden());
        let walked = short_mount_id(fd.as_fd()).map_err(|source| UnmountError::Io { path: path.to_owned(), source })?;
        if lowest.is_some_and(|lowest| lowest.parent_short_id() != walked) {
            return Err(UnmountError::OtherMount {
                path: path.to_owned(),
                found: format!(
                    "the folder {} that holds {} is in another mount",
                    shown.display(),
                    Path::new(name).display()
                ),
            });
        }
        Ok(Some(fd))
    }
}

/// Whether an error says that server, daemon or device is gone, and not that somebody asked for what may not be had.
fn is_dead(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOTCONN
            | Errno::CONNABORTED
            | Errno::CONNREFUSED
            | Errno::CONNRESET
            | Errno::STALE
            | Errno::IO
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::SHUTDOWN
            | Errno::TIMEDOUT
            | Errno::NXIO
            | Errno::NODEV
    )
}

/// The mount to undo, none if nothing is mounted there.
fn target(table: &MountTable, path: &Path, id: Option<UniqueMountId>) -> Result<Option<Identity>, UnmountError> {
    let other = |found: String| UnmountError::OtherMount { path: path.to_owned(), found };
    let Some(top) = table.at(path) else {
        return match table.stack(path).first() {
            None => Ok(None),
            Some(hidden) => Err(other(format!("{} is hidden by a mount over a folder above it", describe(*hidden)))),
        };
    };
    match (id, top.id()) {
        (Some(wanted), Some(found)) if wanted != found => {
            let below = table.stack(path).iter().any(|mount| mount.id() == Some(wanted));
            let relation = if below { "over it lies" } else { "there is" };
            Err(other(format!("{relation} {}", describe(top))))
        }
        _ => Ok(Some(Identity::of(top))),
    }
}

fn describe(mount: Mount<'_>) -> String {
    let id = mount.id().map_or_else(|| mount.short_id().to_string(), |id| id.0.to_string());
    format!("mount {id} of type {} from '{}'", mount.fs_type(), mount.source())
}

/// The answer when the mount seemed to vanish under our hands: done if the table agrees.
fn gone_or(target: Identity, table: &mut TableReader, path: &Path, errno: Errno) -> Result<(), UnmountError> {
    let after = table.read_anew().map_err(UnmountError::Table)?;
    if target.is_at(&after, path) {
        return Err(UnmountError::Io { path: PathBuf::from(path), source: errno.into() });
    }
    Ok(())
}
