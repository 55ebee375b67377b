//! Carries operations out, one file an operation.
//!
//! Whatever happens, the records say at least what is there: they are written before and removed after. What an
//! operation did to the store comes back as [`Change`]s, also when it failed, so that the manager's picture of the
//! store is never older than the store.

mod admit_pod;
mod announced;
mod ask_provider;
mod forget_pod;
mod mount_device;
mod set_up;
mod tear_down;
mod tidy_pod;
mod unmount_device;
mod unmount_leftover;

use std::cell::RefCell;
use std::sync::Arc;

use refloat_mount::{MountTable, UnmountError};
use refloat_record::{
    DeviceMount, PodCheckpoint, PodRef, PodVolume, Record, RecordKey, RecordedBlock, RecordedMount, RelPath, Store,
    VolumeMode,
};
use refloat_volume::{Forced, Host, Peers, Plugins, Problem, VolumeError};

use crate::reconstruct::{self, Mounts};
use crate::{Exclusion, Operation, VolumeKey};

/// Carries operations out on this node.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) host: Arc<Host>,
    pub(crate) plugins: Arc<Plugins>,
    /// None if no records are written, which only the benchmark of their cost wants.
    pub(crate) store: Option<Arc<Store>>,
    /// How many stores there were before this one.
    pub(crate) generation: u64,
}

/// An operation with what is known of its subject.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) operation: Operation,
    /// The volume's record as the store has it.
    pub(crate) record: Option<PodVolume>,
    /// The record of the device that the volume is on, or that is to be mounted.
    pub(crate) device: Option<DeviceMount>,
    /// What has no record and is to be taken for the volume's.
    pub(crate) adopt: Option<Adopt>,
    /// The pod as it is to be admitted.
    pub(crate) checkpoint: Option<PodCheckpoint>,
    /// How many times in a row it failed before.
    pub(crate) failures: u32,
    /// What it may have to wait for outside of this node ([`refloat_volume::Plugin::lane`]).
    pub(crate) lane: Option<String>,
    /// Whether the mount of a dead file system may be taken away by force: its pod is gone, and an ordinary unmount has
    /// failed for long.
    pub(crate) force: Option<Force>,
    /// Whether the files that an atomic writer made are removed from the volume's folder, whoever ran it.
    pub(crate) clear_payload: bool,
    /// Whether what a driver mounted is unmounted without it if the driver is not there any more.
    pub(crate) without_driver: bool,
}

/// What a mount that was forced had to suffer.
#[derive(Debug, Clone)]
pub(crate) struct WasForced {
    pub(crate) path: std::path::PathBuf,
    /// Whether it was only taken out of sight.
    pub(crate) lazily: bool,
}

/// How far force may go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Force {
    /// As far as `umount -l`.
    pub(crate) lazy: bool,
}

/// What was found without a record.
#[derive(Debug)]
pub(crate) enum Adopt {
    /// A mount at the volume's path.
    Mount(RecordedMount),
    /// A block volume's device, bound at its map path.
    Block(RecordedBlock),
}

/// What an operation did to the store.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Put(Box<Record>),
    Removed(RecordKey),
}

/// How an operation ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) excludes: Vec<Exclusion>,
    pub(crate) changes: Vec<Change>,
    /// Which store they were done to: the executor's generation.
    pub(crate) generation: u64,
    /// The mounts that an ordinary unmount did not take away.
    pub(crate) forced: Vec<WasForced>,
    pub(crate) result: Result<Success, Failure>,
}

/// What was achieved.
#[derive(Debug)]
pub(crate) enum Success {
    /// The volume is set up, with what it is to be in short form.
    SetUp(VolumeKey, u64),
    /// The volume has no device of its own.
    NoDevice(refloat_record::UniqueVolumeName),
    /// A provider answered; with what is not in its record yet.
    Answered((String, Exclusion), Option<refloat_record::ProviderAnswer>),
    /// What a provider answered is in the record.
    Noted((String, Exclusion)),
    /// Anything else.
    Done,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} of {subject} failed")]
pub(crate) struct Failure {
    pub(crate) operation: &'static str,
    /// Volume and pod, device or pod, with the path where there is one.
    pub(crate) subject: String,
    #[source]
    pub(crate) source: VolumeError,
}

impl Failure {
    /// What to show a person.
    pub(crate) fn problem(&self) -> Problem {
        let cause = self.source.problem();
        Problem::new(cause.code, format!("{self}: {}", cause.message), cause.hint)
    }
}

impl Executor {
    /// Carries one operation out. Blocks as long as it takes.
    ///
    /// The spans of target `refloat::time`, here and in what it calls, are what `cargo xtask bench csi` adds up.
    pub(crate) fn run(&self, job: &Job) -> Done {
        let _time = tracing::trace_span!(target: "refloat::time", "operation").entered();
        let journal = Journal { store: self.store.as_deref(), changes: RefCell::default() };
        let forced = RefCell::default();
        let result = self.root_is_here(&job.operation).and_then(|()| match &job.operation {
            Operation::AdmitPod { .. } => admit_pod::run(&journal, job.checkpoint.as_ref()),
            Operation::SetUp { volume, .. } => set_up::run(self, &journal, job, volume),
            Operation::MountDevice { volume, .. } => mount_device::run(self, &journal, job, volume),
            Operation::TearDown { record, trusted, .. } => {
                self.with_force(job.force, &forced, || tear_down::run(self, &journal, record, *trusted, job))
            }
            Operation::UnmountDevice { record, trusted, .. } => {
                self.with_force(job.force, &forced, || unmount_device::run(self, &journal, record, *trusted))
            }
            Operation::ForgetPod { pod, .. } => {
                self.with_force(job.force, &forced, || forget_pod::run(self, &journal, pod))
            }
            Operation::UnmountLeftover { path, expected, folder, .. } => {
                self.with_force(job.force, &forced, || unmount_leftover::run(self, path, expected.as_ref(), *folder))
            }
            Operation::TidyPod { pod, .. } => tidy_pod::run(self, &journal, pod),
            Operation::AskProvider { provider, call, of, record, volume, .. } => {
                ask_provider::ask(self, provider, *call, of, record, volume.as_deref())
            }
            Operation::NoteAnswer { provider, of, answer, .. } => {
                ask_provider::note(&journal, job, provider, of, answer)
            }
        });
        let result = result.map_err(|source| Failure {
            operation: job.operation.name(),
            subject: self.subject(&job.operation),
            source,
        });
        Done {
            excludes: job.operation.excludes(),
            changes: journal.changes.into_inner(),
            generation: self.generation,
            forced: forced.into_inner(),
            result,
        }
    }

    /// Refuses what would be done beneath a root that is not at its path any more: the table would tell nothing of it.
    fn root_is_here(&self, operation: &Operation) -> Result<(), VolumeError> {
        if matches!(operation, Operation::AdmitPod { .. }) {
            return Ok(());
        }
        let doing = "look for the node root at";
        let path = || self.host.root.path().to_path_buf();
        let table = self.host.mount_table_over(self.host.root.path()).map_err(VolumeError::Table)?;
        let place = self.host.root.place(&table);
        let place = place.map_err(|source| VolumeError::Io { doing, path: path(), source })?;
        crate::manager::root::trouble(&self.host, &place).map_or(Ok(()), |problem| Err(VolumeError::Refused(problem)))
    }

    /// Carries out what undoes, and where a mount is busy because its file system is dead, takes that away by force and
    /// goes on.
    fn with_force(
        &self,
        force: Option<Force>,
        forced: &RefCell<Vec<WasForced>>,
        undo: impl Fn() -> Result<Success, VolumeError>,
    ) -> Result<Success, VolumeError> {
        let mut before = None;
        loop {
            let result = undo();
            let (Err(VolumeError::Unmount(UnmountError::Busy { path })), Some(force)) = (&result, force) else {
                return result;
            };
            // Somebody mounts it again: that is not fought.
            if before.as_ref() == Some(path) {
                return result;
            }
            match refloat_volume::force_unmount(&self.host, path, force.lazy)? {
                Forced::Done { lazily } => {
                    forced.borrow_mut().push(WasForced { path: path.clone(), lazily });
                    before = Some(path.clone());
                }
                Forced::Alive => return result,
                Forced::Shared { at } => {
                    return Err(VolumeError::Refused(Problem::new(
                        "UnmountBusy",
                        format!(
                            "cannot unmount {}: it is busy, and its file system does not answer; it is not forced, since \
                             the same file system is mounted at {} too",
                            path.display(),
                            at.display()
                        ),
                        "Look at the server or daemon behind it, or unmount it lazily by hand (umount -l).",
                    )));
                }
            }
        }
    }

    /// What the operation is about, as a person names it.
    pub(crate) fn subject(&self, operation: &Operation) -> String {
        let at = |path: Option<&RelPath>| {
            path.map_or_else(String::new, |path| format!(" at {}", self.host.absolute(path).display()))
        };
        match operation {
            Operation::AdmitPod { pod, .. } | Operation::ForgetPod { pod, .. } | Operation::TidyPod { pod, .. } => {
                format!("pod {pod}")
            }
            Operation::UnmountLeftover { path, .. } => {
                format!("what is mounted at {}", self.host.absolute(path).display())
            }
            Operation::SetUp { volume, .. } => {
                let name = volume.outer_names.first().map_or(volume.key.spec_name.as_str(), |n| n.as_str());
                volume_of(name, &volume.pod) + &at(volume.path.as_ref())
            }
            Operation::MountDevice { volume, .. } => {
                format!("device {}{}", volume.unique_name, at(volume.device_mount_path.as_ref()))
            }
            Operation::TearDown { record, .. } => {
                let name = record.volume_names.first().map_or(record.spec_name.as_str(), |n| n.as_str());
                volume_of(name, &record.pod) + &at(record.path.as_ref())
            }
            Operation::UnmountDevice { record, .. } => {
                format!("device {}{}", record.unique_name, at(Some(&record.device_mount_path)))
            }
            Operation::AskProvider { of, .. } | Operation::NoteAnswer { of, .. } => of.to_string(),
        }
    }

    fn table(&self) -> Result<Arc<MountTable>, VolumeError> {
        self.host.mount_table().map_err(VolumeError::Table)
    }

    /// Whether the table shows the recorded mount at the path, with nothing of another origin there.
    fn is_mounted(&self, path: &RelPath, mount: Option<&RecordedMount>, same_boot: bool) -> Result<bool, VolumeError> {
        let table = self.table()?;
        let mounts = Mounts::new(&table, self.host.root.path());
        Ok(mounts.is_ours(&self.host.absolute(path), mount, same_boot))
    }

    /// Whether a driver confirmed the volume in this boot, and what it mounted then is what the table shows.
    fn is_confirmed(
        &self,
        path: Option<&RelPath>,
        record: Option<&PodVolume>,
        mounted: bool,
    ) -> Result<bool, VolumeError> {
        let Some(record) = record.filter(|r| r.confirmed && r.boot_id == self.host.boot_id) else { return Ok(false) };
        match (&record.mount, path) {
            (Some(_), _) => Ok(mounted),
            // Of a block volume, the bind mount.
            _ if record.mode == VolumeMode::Block => Ok(mounted),
            (None, Some(path)) => Ok(self.mount_at(path)?.is_none()),
            (None, None) => Ok(true),
        }
    }

    /// A record's words for what the table shows at this path.
    fn mount_at(&self, path: &RelPath) -> Result<Option<RecordedMount>, VolumeError> {
        let table = self.table()?;
        let mounts = Mounts::new(&table, self.host.root.path());
        Ok(reconstruct::told(&mounts.stack(&self.host.absolute(path))))
    }

    /// Checks after mounting that the table shows what the record announced; answers the mount with its id, which older
    /// kernels do not tell before.
    fn check_mounted(&self, path: &RelPath, mount: &RecordedMount) -> Result<RecordedMount, VolumeError> {
        let table = self.table()?;
        let mounts = Mounts::new(&table, self.host.root.path());
        let absolute = self.host.absolute(path);
        if !mounts.is_ours(&absolute, Some(mount), true) {
            let message =
                format!("{} was mounted without an error, but the mount table does not show it", absolute.display());
            let hint = "Look for something that unmounts or covers it. It is tried again.";
            return Err(VolumeError::Refused(Problem::new("NotMountedAfterwards", message, hint)));
        }
        Ok(RecordedMount { id: mount.id.or(mounts.id(&absolute)), ..mount.clone() })
    }

    /// Checks after unmounting that the table shows nothing at or below the path.
    fn check_unmounted(&self, path: &RelPath) -> Result<(), VolumeError> {
        let absolute = self.host.absolute(path);
        let table = self.host.mount_table_at(&absolute).map_err(VolumeError::Table)?;
        let left = table.at(&absolute).or_else(|| table.under(&absolute).next());
        match left {
            None => Ok(()),
            Some(left) => Err(VolumeError::Refused(Problem::new(
                "StillMounted",
                format!("{} is still in the mount table", left.point().display()),
                "The record is kept and it is tried again. Look for something that mounts it anew.",
            ))),
        }
    }
}

impl Peers for Executor {
    fn devices(&self) -> Result<Vec<DeviceMount>, VolumeError> {
        let Some(store) = &self.store else { return Ok(vec![]) };
        store.device_mounts().map_err(|error| {
            VolumeError::Refused(Problem::new(
                "RecordsUnreadable",
                format!("what other devices use cannot be told: {}", refloat_volume::error_chain(&error)),
                "Nothing that they may share is touched. Look at the state folder. It is tried again.",
            ))
        })
    }
}

fn volume_of(name: &str, pod: &PodRef) -> String {
    if pod.name.is_empty() {
        format!("volume {name:?} of pod {}", pod.uid)
    } else {
        format!("volume {name:?} of pod {}/{} ({})", pod.namespace, pod.name, pod.uid)
    }
}

/// Writes to the store and remembers what was written.
struct Journal<'a> {
    store: Option<&'a Store>,
    changes: RefCell<Vec<Change>>,
}

impl Journal<'_> {
    fn put(&self, record: Record) -> Result<(), VolumeError> {
        let _time = tracing::trace_span!(target: "refloat::time", "record").entered();
        if let Some(store) = self.store {
            store.put(&record).map_err(VolumeError::Record)?;
        }
        self.changes.borrow_mut().push(Change::Put(Box::new(record)));
        Ok(())
    }

    fn remove(&self, key: RecordKey) -> Result<(), VolumeError> {
        let _time = tracing::trace_span!(target: "refloat::time", "record").entered();
        if let Some(store) = self.store {
            store.remove(&key).map_err(VolumeError::Record)?;
        }
        self.changes.borrow_mut().push(Change::Removed(key));
        Ok(())
    }
}
