//! One at a time: who mounts a disk and who takes it off the node must not meet.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::Sys;
use crate::{Problem, VolumeError};

/// The ids of the logical units that somebody works on.
#[derive(Debug, Clone, Default)]
pub(super) struct Held(Arc<(Mutex<HashSet<String>>, Condvar)>);

/// While this lives nobody else of this process works on the logical unit.
#[derive(Debug)]
#[must_use = "it is let go when this is dropped"]
pub struct Hold {
    held: Held,
    id: String,
}

impl Sys {
    /// Waits, at most so long, until nobody works on the logical unit with this id.
    ///
    /// # Errors
    /// Somebody still does.
    pub fn hold(&self, id: &str, patience: Duration) -> Result<Hold, VolumeError> {
        let id = super::normal_id(id);
        let (set, changed) = &*self.held.0;
        let set = set.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut set, waited) =
            changed.wait_timeout_while(set, patience, |set| set.contains(&id)).unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && set.contains(&id) {
            return Err(VolumeError::Refused(Problem::new(
                "DeviceBusy",
                format!("another operation works on the disk {id} and did not end within {patience:?}"),
                "Look for what that operation waits for. It is tried again.",
            )));
        }
        set.insert(id.clone());
        Ok(Hold { held: self.held.clone(), id })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (set, changed) = &*self.held.0;
        set.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        changed.notify_all();
    }
}
