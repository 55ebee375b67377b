//! A store whose folder is deleted, moved away or covered while it is open.
//!
//! Everything goes through descriptors that were opened once, so a store whose folder is gone from its path would write
//! where nobody looks, under a lock that keeps nobody out.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Stat};

use super::{LOCK, Loaded, Lock, OpenError, SET_ASIDE, Store, open_state, take_lock};
use crate::RecordKind;
use crate::disk::RealDisk;

impl Store {
    /// Whether the state folder, its lock file and the folders in it are what their paths name: false if any of them was
    /// deleted, moved, replaced or covered by a mount since the store was opened.
    pub fn is_at_its_path(&self) -> bool {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(there) = rustix::fs::open(&self.path, flags, Mode::empty()) else { return false };
        let kinds = RecordKind::ALL.map(|kind| (kind.folder(), self.folders.of(kind)));
        is_same(&there, "", &self.state)
            && kinds.iter().all(|(name, open)| is_same(&there, name, open))
            && is_same(&there, SET_ASIDE, &self.folders.set_aside)
            && self.lock.as_ref().is_none_or(|lock| is_same(&there, LOCK, &lock.0))
    }

    /// Opens the store that is at this one's path now, and reads it: makes what is missing and takes the lock, unless
    /// this store holds that very lock. Top-level fields that this version does not know are taken along from this store
    /// for records that are not there.
    ///
    /// # Errors
    /// As [`Store::open`]: [`OpenError::Locked`] if another manager has taken the path meanwhile.
    pub fn open_again(&self) -> Result<(Self, Loaded), OpenError> {
        let state = open_state(&self.path)?;
        let lock = match &self.lock {
            Some(lock) if is_same(&state, LOCK, &lock.0) => Arc::clone(lock),
            _ => Arc::new(take_lock(&state, &self.path)?),
        };
        let mut store = Self::open_on(RealDisk, state, &self.path)?;
        store.lock = Some(lock);
        let loaded = store.load()?;
        let mut known = store.known();
        for (key, extra) in &self.known().extras {
            known.extras.entry(key.clone()).or_insert_with(|| extra.clone());
        }
        drop(known);
        Ok((store, loaded))
    }
}

impl Lock {
    /// Whether the lock file is still the one at its path: one that was deleted before it was locked keeps nobody out.
    pub(super) fn is_in(&self, state: &OwnedFd) -> bool {
        is_same(state, LOCK, &self.0)
    }
}

/// Whether the name in the folder (or with no name the folder itself) is the open file.
fn is_same(folder: &OwnedFd, name: &str, open: impl std::os::fd::AsFd) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let which = |stat: Stat| (stat.st_dev, stat.st_ino);
    match (rustix::fs::statat(folder, name, flags), rustix::fs::fstat(open)) {
        (Ok(there), Ok(here)) => which(there) == which(here),
        _ => false,
    }
}

/// The path of a store.
impl<D: crate::disk::Disk> Store<D> {
    /// The state folder's path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
