//! Taking away the mount of a dead file system.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use refloat_mount::{Liveness, UnmountError, UnmountHow};

use crate::tear_down::{UNMOUNT_PATIENCE, relative};
use crate::{Host, VolumeError};

/// How long a file system may take to answer a question before it counts as dead. `statfs` asks for numbers that a
/// server has at hand.
const SILENCE: Duration = Duration::from_secs(3);

/// How often a forced unmount is tried: whoever waited in the file system needs a moment to get its error and leave.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// What became of a forced unmount.
#[derive(Debug)]
pub enum Forced {
    /// Nothing is mounted there any more.
    Done {
        /// Whether it was taken out of sight only ([`UnmountHow::Lazy`]).
        lazily: bool,
    },
    /// The file system answers, so that nothing was forced.
    Alive,
    /// It is mounted elsewhere too, where forcing would be felt.
    Shared {
        /// One of those places.
        at: PathBuf,
    },
}

/// Takes the topmost mount at this absolute path away by force, if its file system is dead: as `umount -f`, then, where
/// `lazy` allows it, as `umount -l`.
///
/// # Safety of the node
/// For volumes of pods that are surely gone. What the pod wrote and the server never got is lost. A file system that
/// answers is not forced, nor is one that has another mount: forcing is felt at all of them.
pub fn force_unmount(host: &Host, path: &Path, lazy: bool) -> Result<Forced, VolumeError> {
    let rel = relative(host, path)?;
    let mut reader = host.table.lock().unwrap_or_else(PoisonError::into_inner).fork();
    let table = reader.read().map_err(VolumeError::Table)?;
    let Some(top) = table.at(path) else { return Ok(Forced::Done { lazily: false }) };
    let why = match host.root.liveness(&rel, &mut reader, SILENCE).map_err(VolumeError::Unmount)? {
        None => return Ok(Forced::Done { lazily: false }),
        Some(Liveness::Answers) => return Ok(Forced::Alive),
        Some(Liveness::Silent) => "it does not answer".to_owned(),
        Some(Liveness::Dead(error)) => error.to_string(),
    };
    let shared = table.of_device(top.device()).into_iter().find(|m| m.point() != path);
    let mut failed = None;
    if let Some(other) = shared {
        if !lazy {
            return Ok(Forced::Shared { at: other.point().to_path_buf() });
        }
    } else {
        tracing::warn!(path = %path.display(), %why, "forces the unmount of a dead file system");
        for _ in 0..TRIES {
            let mut unmount = |how| host.root.unmount_within(&rel, top.id(), how, &mut reader, Some(UNMOUNT_PATIENCE));
            // Forcing ends what waits in the file system; an ordinary one takes the mount away then.
            match unmount(UnmountHow::Force).or_else(|error| match error {
                UnmountError::Busy { .. } => unmount(UnmountHow::Ordinary),
                other => Err(other),
            }) {
                Ok(()) => return Ok(Forced::Done { lazily: false }),
                Err(error @ UnmountError::Busy { .. }) => failed = Some(error),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
    if lazy {
        tracing::warn!(path = %path.display(), %why, "takes a dead file system out of sight; it is gone when nobody uses it");
        let lazily = host.root.unmount_within(&rel, top.id(), UnmountHow::Lazy, &mut reader, Some(UNMOUNT_PATIENCE));
        return lazily.map(|()| Forced::Done { lazily: true }).map_err(VolumeError::Unmount);
    }
    Err(VolumeError::Unmount(failed.unwrap_or(UnmountError::Busy { path: path.to_path_buf() })))
}
