//! The registration folder: sockets that come and go, and one task a socket that keeps its driver registered.
//!
//! # Source
//! The kubelet's `pluginwatcher` and its plugin registration API. As there: sockets below the folder, also in folders in
//! it; names that begin with a dot, symlinks and other files are ignored; a socket that was there before is registered
//! at start; a socket that was made anew is registered anew. Otherwise than there: the folder may be missing, be removed
//! and come back; no mount is crossed; and of two drivers of one name the newer registration wins whatever versions
//! they claim, so that a driver which died without removing its socket does not lock out its successor.

mod register;
mod scan;

pub(crate) use register::Registrar;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::inotify::{self, ReadFlags};
use tokio::net::unix::pipe::Receiver;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::DriverChange;
use crate::socket::{Socket, SocketId};
use crate::table::Trying;
use register::Backoff;
use scan::Watches;

/// The least time between two looks at the folder, so that one who makes and removes files in it all the time costs
/// little.
const REST: Duration = Duration::from_millis(10);

/// The watch, not running yet.
#[derive(Debug)]
pub(crate) struct Watch {
    inotify: OwnedFd,
    folder: PathBuf,
}

/// A socket in the folder, and the task that keeps its driver registered.
struct Tracked {
    id: SocketId,
    number: u64,
    task: AbortHandle,
}

impl Watch {
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, folder: folder.to_owned() })
    }

    /// Watches until it is dropped. Each event only says that it is time to look; what is there is what counts, so that
    /// a lost or doubled event changes nothing.
    pub(crate) async fn run(self, registrar: Arc<Registrar>, first_look: Trying) {
        let mut first_look = Some(first_look);
        // What it is given is not checked to be a pipe; an inotify descriptor is read in the same way.
        let inotify = match Receiver::from_owned_fd_unchecked(self.inotify) {
            Ok(inotify) => inotify,
            Err(error) => {
                registrar.refused(&self.folder, format!("the folder cannot be watched: {error}"));
                return;
            }
        };
        let mut watches = Watches::default();
        let mut tracked = BTreeMap::new();
        let mut number = 0;
        let mut backoff = Backoff::default();
        let mut told = None;
        loop {
            let looked = Instant::now();
            let problem = match watches.look(inotify.as_fd(), &self.folder) {
                Ok(found) => {
                    let problem = found.problem;
                    follow(&registrar, &mut tracked, &mut number, found.sockets);
                    problem
                }
                // Nothing is known, so nothing is gone.
                Err(error) => Some(format!("the folder cannot be watched: {error}")),
            };
            // Each socket that was found has a try of its own by now.
            drop(first_look.take());
            if problem.is_some() && problem != told {
                registrar.refused(&self.folder, problem.clone().unwrap_or_default());
            }
            told.clone_from(&problem);
            if problem.is_none() {
                backoff = Backoff::default();
                wait_for_event(&inotify).await;
            } else {
                let _ = tokio::time::timeout(backoff.next(), wait_for_event(&inotify)).await;
            }
            tokio::time::sleep_until(looked + REST).await;
        }
    }
}

/// Brings what is tracked in line with what was found.
fn follow(
    registrar: &Arc<Registrar>,
    tracked: &mut BTreeMap<PathBuf, Tracked>,
    number: &mut u64,
    mut found: Vec<scan::Found>,
) {
    tracked.retain(|path, old| {
        if found.iter().any(|new| new.socket.path() == path && new.socket.id() == old.id) {
            return true;
        }
        // Aborted first: this thread runs all tasks, so it does nothing more after this line.
        old.task.abort();
        if let Some(name) = registrar.shared.unregister(old.number) {
            (registrar.changed)(DriverChange::Gone { name });
        }
        false
    });
    // The newest last: it wins where two have one name.
    found.sort_by(|a, b| (a.made, a.socket.path()).cmp(&(b.made, b.socket.path())));
    for scan::Found { socket, .. } in found {
        let path = socket.path().to_owned();
        tracked.entry(path).or_insert_with(|| {
            *number += 1;
            let (id, number) = (socket.id(), *number);
            let trying = registrar.shared.trying();
            let task = tokio::spawn(Arc::clone(registrar).keep_registered(socket, number, trying)).abort_handle();
            Tracked { id, number, task }
        });
    }
}

/// Waits until something happened in a watched folder, and takes all events.
async fn wait_for_event(inotify: &Receiver) {
    let mut buffer = [0; 4096];
    let mut any = false;
    while !any {
        if inotify.readable().await.is_err() {
            return;
        }
        // Until there is nothing more to read, or nothing can be read at all: then a look does no harm.
        while let Ok(length) = inotify.try_read(&mut buffer) {
            any |= is_time_to_look(&buffer[..length]);
        }
    }
}

/// Whether any of these events says more than that a watch ended: that is told beside the event that ended it, and
/// after we ended it ourselves.
///
/// # Source
/// `struct inotify_event` in inotify(7): `wd`, `mask`, `cookie`, `len`, each of four bytes, and a name of `len` bytes.
fn is_time_to_look(mut events: &[u8]) -> bool {
    const HEAD: usize = 16;
    while let Some(head) = events.first_chunk::<HEAD>() {
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(4) != ReadFlags::IGNORED.bits() {
            return true;
        }
        events = events.get(HEAD + word(12) as usize..).unwrap_or_default();
    }
    false
}

/// What a socket is held by.
type Held = Arc<Socket>;
