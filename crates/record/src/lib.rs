//! The versioned record API of Refloat and the crash-safe store of records.
//!
//! A record is what a node writes down before it mounts something, so that after any crash it still knows what is
//! mounted, for whom, and how it is undone. The kinds are [`DeviceMount`], [`PodVolume`],
//! [`PodCheckpoint`] and [`Driver`]; [`Record`] is one of them. Kubernetes objects inside a record are [`Verbatim`] JSON, so that
//! fields which this version does not know survive it.
//!
//! The data flows: [`Record`] → [`codec`] (one JSON file with a checksum) → [`Store`] (temporary file, sync, rename,
//! folder sync) → after a restart [`Store::load`] → [`Loaded`]. Start reading at [`PodVolume`].
//!
//! The kinds and the codec perform no I/O; the store reaches files only through the [`disk::Disk`] trait.

mod block;
mod checkpoint;
pub mod codec;
mod device_mount;
pub mod disk;
mod driver;
#[doc(hidden)]
pub mod fuzz;
mod mount;
mod name;
mod pod_volume;
mod provider;
mod record;
#[cfg(test)]
mod samples;
mod store;
mod verbatim;

pub use block::{DeviceNumber, NoDeviceNumber, RecordedBlock};
pub use checkpoint::{PodCheckpoint, PodSource};
pub use device_mount::DeviceMount;
pub use driver::Driver;
pub use mount::RecordedMount;
pub use name::{BootId, DriverName, NameError, OuterSpecName, PluginName, PodUid, RelPath, SpecName, UniqueVolumeName};
pub use pod_volume::{ClaimRef, FsGroup, FsGroupChangePolicy, PodRef, PodVolume, RecordedSubPath, VolumeMode};
pub use provider::{ProviderAnswer, ProviderAnswers};
pub use record::{Record, RecordKey, RecordKind};
pub use store::{Loaded, OpenError, SetAside, Store, Unreadable, UnreadableReason, Verified, WriteError};
pub use verbatim::Verbatim;
