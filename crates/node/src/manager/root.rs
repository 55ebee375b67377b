//! The node root under a running manager: covered by another mount, moved away, bound onto itself.
//!
//! Everything is done beneath the folder that was opened at the start. When its path leads elsewhere, the mount table
//! tells of other mounts than those that lie in it, so nothing that is concluded would be true of it: then nothing is
//! done, no record is dropped, and it is told.

use std::sync::{Arc, Mutex};

use refloat_mount::{NodeRoot, RootPlace, TableReader};
use refloat_volume::{Host, Problem};

use super::{Manager, ManagerError, retry};
use crate::evidence::{Gather, GatherError};
use crate::execute::Executor;

/// The problem of a root that is not at its path; none if it is.
pub(crate) fn trouble(host: &Host, place: &RootPlace) -> Option<Problem> {
    let path = host.root.path().display();
    match place {
        RootPlace::Here => None,
        RootPlace::Covered { by, .. } => Some(Problem::new(
            "RootCovered",
            format!("the node root {path} is covered by another mount ({by}), so nothing is done"),
            "Unmount what lies over it; it goes on by itself then. If that is to be the node root, restart the manager.",
        )),
        RootPlace::Moved { to } => Some(Problem::new(
            "RootMoved",
            format!(
                "the node root {path} was moved, removed or unmounted (it is {} now), so nothing is done",
                to.display()
            ),
            "Put it back; it goes on by itself then. If another folder is to be the node root, restart the manager.",
        )),
    }
}

impl Manager {
    /// Whether the root is where it belongs, so that a round makes sense. A root that was bound onto itself is opened
    /// again.
    pub(super) fn root_is_here(&mut self) -> Result<bool, ManagerError> {
        let host = &self.executor.host;
        if self.root_problem.is_some() {
            self.evidence.table = host.mount_table().map_err(ManagerError::Table)?;
        }
        let io = |source| ManagerError::Io { doing: "look for the node root".into(), source };
        let place = host.root.place(&self.evidence.table).map_err(io)?;
        if let RootPlace::Covered { by, same_folder: true } = &place {
            tracing::warn!(%by, "the node root was bound onto itself; it is opened again");
            self.open_root_again()?;
            self.gather_anew()?;
            self.root_problem = None;
            return Ok(true);
        }
        match trouble(host, &place) {
            None if self.root_problem.take().is_some() => {
                self.gather_anew()?;
                Ok(true)
            }
            None => Ok(true),
            Some(problem) => {
                self.root_problem = Some(problem);
                // Nothing tells when a renamed folder comes back.
                self.looks = self.looks.saturating_add(1);
                self.next_look = Some(self.now() + retry::back_off(self.looks));
                Ok(false)
            }
        }
    }

    fn open_root_again(&mut self) -> Result<(), ManagerError> {
        let old = &self.executor.host;
        let host = Host {
            root: NodeRoot::open(&self.options.root_dir).map_err(ManagerError::Root)?,
            kernel: old.kernel,
            boot_id: old.boot_id.clone(),
            tool_deadline: old.tool_deadline,
            table: Mutex::new(TableReader::new(old.kernel)),
            drivers: self.executor.host.drivers.clone(),
            flex_drivers: old.flex_drivers.clone(),
            sys: old.sys.clone(),
            providers: old.providers.clone(),
        };
        let Executor { plugins, store, generation, .. } = &*self.executor;
        let (plugins, store, generation) = (Arc::clone(plugins), store.clone(), *generation);
        self.use_executor(Executor { host: Arc::new(host), plugins, store, generation });
        Ok(())
    }

    /// Operations that start from now on are carried out by this one.
    pub(super) fn use_executor(&mut self, executor: Executor) {
        self.executor = Arc::new(executor);
        self.pool.use_executor(Arc::clone(&self.executor));
    }

    /// Reads table and folders as at a start. The records are those that the manager knows.
    fn gather_anew(&mut self) -> Result<(), ManagerError> {
        let records = std::mem::take(&mut self.evidence.records);
        self.evidence = Gather::new(&self.executor.host).read(move || Ok(records)).map_err(|error| match error {
            GatherError::Records(source) => ManagerError::Store(source),
            GatherError::Table(source) => ManagerError::Table(source),
        })?;
        Ok(())
    }
}
