//! Notices that the manifest folder changed.
//!
//! Watched are the folder, the place where it would appear (so that a missing folder is noticed when it comes, and a
//! replaced one when it is), and the folders of files that symlinks in it lead to.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// A watch on one manifest folder.
#[derive(Debug)]
pub(super) struct FolderWatch {
    inotify: OwnedFd,
    folder: PathBuf,
    /// Watches on folders that lead to the manifest folder, with the only name in each that matters.
    above: Vec<(i32, std::ffi::OsString)>,
}

/// What can happen to entries of a folder. A file that is being written is looked at when it is closed.
const CONTENT: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

impl FolderWatch {
    pub(super) fn new(folder: &Path) -> std::io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut watch = Self { inotify, folder: folder.to_path_buf(), above: vec![] };
        watch.rearm();
        Ok(watch)
    }

    /// Watches what is there now. To be called before the folder is read, so that what changes while it is read is seen
    /// afterwards.
    pub(super) fn rearm(&mut self) {
        // What cannot be watched cannot be read either, and reading says so.
        let add = |path: &Path, flags| inotify::add_watch(&self.inotify, path, flags);
        let _ = add(&self.folder, CONTENT);
        self.above.clear();
        let mut child = self.folder.as_path();
        while let (Some(parent), Some(name)) = (child.parent(), child.file_name()) {
            let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
            if let Ok(id) = add(parent, flags | WatchFlags::ATTRIB) {
                self.above.push((id, name.to_owned()));
                break;
            }
            child = parent;
        }
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for entry in entries.filter(|e| e.file_type().is_ok_and(|t| t.is_symlink())) {
            // A link to a link in the same folder (`..data`) is seen in the folder itself.
            if let Ok(target) = std::fs::read_link(entry.path())
                && let Some(folder) = self.folder.join(target).parent()
                && folder != self.folder
            {
                let _ = add(folder, CONTENT);
            }
        }
    }

    /// Reads the events, and answers whether any of them matters.
    pub(super) fn changed(&self) -> bool {
        let mut changed = false;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|n| n.to_bytes().to_vec());
                    let above = self.above.iter().find(|(id, _)| *id == event.wd());
                    changed |= match above {
                        Some((_, wanted)) if !event.events().contains(ReadFlags::IGNORED) => {
                            name.as_deref() == Some(wanted.as_encoded_bytes())
                        }
                        // Also an overflow, which says that events were lost.
                        _ => true,
                    };
                }
                Err(Errno::INTR) => {}
                Err(_) => return changed,
            }
        }
    }
}

impl AsFd for FolderWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
