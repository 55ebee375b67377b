//! Notices that flexVolume drivers come.
//!
//! Watched are the folder of drivers, or the nearest folder above it that is there, and the folder of each driver. Nobody polls.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::Manager;

/// What makes a program one that can be run.
const COMES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::CREATE)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR);

/// A watch on the folder of drivers.
#[derive(Debug)]
pub(super) struct FlexWatch {
    inotify: OwnedFd,
    folder: PathBuf,
    /// What each watch stands for: a driver, by its folder's name, or something above.
    drivers: BTreeMap<i32, Option<OsString>>,
}

impl FlexWatch {
    pub(super) fn new(folder: &Path) -> std::io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut watch = Self { inotify, folder: folder.to_path_buf(), drivers: BTreeMap::new() };
        if !folder.as_os_str().is_empty() {
            watch.rearm();
        }
        Ok(watch)
    }

    /// Watches what is there now.
    fn rearm(&mut self) {
        self.drivers.clear();
        for folder in self.folder.ancestors() {
            if let Ok(id) = inotify::add_watch(&self.inotify, folder, COMES) {
                self.drivers.insert(id, None);
                break;
            }
        }
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if let Ok(id) = inotify::add_watch(&self.inotify, entry.path(), COMES) {
                self.drivers.insert(id, Some(entry.file_name()));
            }
        }
    }

    /// Reads the events; the folders' names of drivers that something happened to. What happened above may have been of any
    /// that is there now.
    pub(super) fn take(&mut self) -> Vec<OsString> {
        let mut of_one = vec![];
        let mut any = false;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {}
                Ok(event) => match self.drivers.get(&event.wd()) {
                    Some(Some(driver)) => of_one.push(driver.clone()),
                    // Also an overflow, which says that events were lost.
                    Some(None) | None => any = true,
                },
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        if any {
            self.rearm();
            of_one.extend(self.drivers.values().flatten().cloned());
        }
        of_one
    }
}

impl AsFd for FlexWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl Manager {
    /// What failed at a driver that something happened to is tried again at once.
    pub(super) fn take_flex_news(&mut self) {
        for folder in self.flex_watch.take() {
            let Some(plugin) = folder.to_str().and_then(|name| refloat_record::PluginName::from_escaped(name).ok())
            else {
                continue;
            };
            self.news.drivers |= self.retries.driver_is_back(plugin.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_seen_whether_or_not_its_folders_were_there() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/exec");
        let mut watch = FlexWatch::new(&folder).unwrap();
        assert!(watch.take().is_empty());
        std::fs::create_dir_all(folder.join("acme~one")).unwrap();
        assert_eq!(watch.take(), ["acme~one"]);
        std::fs::write(folder.join("acme~one/one"), "x").unwrap();
        assert!(watch.take().contains(&"acme~one".into()));
        std::fs::create_dir(folder.join("two")).unwrap();
        let mut seen = watch.take();
        seen.sort();
        assert_eq!(seen, ["acme~one", "two"]);
        std::fs::write(folder.join("two/two"), "x").unwrap();
        assert!(watch.take().iter().all(|name| name == "two"));
        assert!(watch.take().is_empty());
    }
}
