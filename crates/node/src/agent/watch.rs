//! What wakes the agent: the mount table, and the folders in which volumes appear without a mount.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use refloat_mount::{DirEntry, EntryKind, NodeRoot, TableWatch};
use refloat_volume::layout;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// Something changed.
    News,
    /// The time is over.
    Time,
    /// The agent is to end.
    Stop,
}

/// The folders in which names of volumes appear and vanish: `pods`, each pod's, those of its volumes by plugin.
pub(super) struct Folders {
    inotify: OwnedFd,
    /// Whether the system let not all of them be watched.
    pub(super) incomplete: bool,
}

impl Folders {
    /// Watches what is there now. Each folder is watched before it is listed, so what appears meanwhile is heard of.
    pub(super) fn watch(root: &NodeRoot) -> std::io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut folders = Self { inotify, incomplete: false };
        folders.add(root, Path::new(""));
        for pod in folders.add(root, Path::new(layout::PODS)) {
            for inside in folders.add(root, &pod) {
                let name = inside.file_name().and_then(|name| name.to_str());
                if matches!(name, Some(layout::VOLUMES | layout::VOLUME_DEVICES)) {
                    for plugin in folders.add(root, &inside) {
                        folders.add(root, &plugin);
                    }
                }
            }
        }
        Ok(folders)
    }

    /// Watches one folder and answers those in it. A mount is not entered, and a symlink not followed: the folder is opened by
    /// the rules of the root, and watched by its descriptor.
    fn add(&mut self, root: &NodeRoot, rel: &Path) -> Vec<PathBuf> {
        let Ok(Some(dir)) = root.open_dir(rel) else { return vec![] };
        let events = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR;
        let path = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
        match inotify::add_watch(&self.inotify, path, events) {
            Ok(_) => {}
            // It was removed meanwhile, which the one above tells of.
            Err(Errno::NOENT) => return vec![],
            Err(_) => self.incomplete = true,
        }
        // The root's own folders are not the agent's to watch, all but one.
        if rel.as_os_str().is_empty() {
            return vec![];
        }
        let entries = dir.entries().unwrap_or_default();
        let is_dir = |entry: &DirEntry| entry.kind == EntryKind::Dir;
        entries.into_iter().filter(is_dir).map(|entry| rel.join(entry.name)).collect()
    }

    /// Forgets what was heard of so far.
    fn drain(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// The mount table, watched.
pub(super) struct Table {
    watch: TableWatch,
}

impl Table {
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self { watch: TableWatch::open()? })
    }

    /// Waits for the first change, for ever unless a time is given.
    pub(super) fn wait(
        &self,
        folders: &Folders,
        stop: BorrowedFd<'_>,
        time: Option<Duration>,
    ) -> std::io::Result<Woken> {
        let end = time.map(|time| Instant::now() + time);
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [
                PollFd::new(&self.watch, PollFlags::PRI),
                PollFd::new(&folders.inotify, PollFlags::IN),
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
            ];
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(Woken::Time),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let ready = fds.each_ref().map(|fd| !fd.revents().is_empty());
            if ready[2] {
                return Ok(Woken::Stop);
            }
            if ready[1] {
                folders.drain();
            }
            return Ok(Woken::News);
        }
    }

    /// Waits until nothing has changed for a moment, and no longer than `longest`.
    pub(super) fn rest(
        &self,
        folders: &Folders,
        stop: BorrowedFd<'_>,
        rest: Duration,
        longest: Duration,
    ) -> std::io::Result<Woken> {
        let end = Instant::now() + longest;
        while Instant::now() < end {
            match self.wait(folders, stop, Some(rest))? {
                Woken::News => {}
                other => return Ok(other),
            }
        }
        Ok(Woken::Time)
    }
}
