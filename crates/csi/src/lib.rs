//! CSI on the node: the drivers that register in `plugins_registry/`, and the calls of their node service.
//!
//! Everything here is synchronous from outside: a call blocks its caller until the driver answered or its deadline
//! passed. Inside, one small asynchronous runtime serves all drivers: one kept connection a driver, a watch on
//! the registration folder, no polling, no CPU when idle.
//!
//! [`Drivers`] is where to start; [`Driver`] has the calls; [`CallError`] says what a failed call may have done. The protocols
//! in `proto/` become Rust by `cargo xtask generate`.
//!
//! # Source
//! The Container Storage Interface v1.13 (`csi.proto`), and the kubelet's plugin registration API v1.

mod call;
mod connection;
mod convert;
mod driver;
mod drivers;
mod hide;
mod link;
#[cfg(not(feature = "server"))]
mod proto;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod proto;
mod registry;
mod request;
mod runtime;
mod socket;
mod stats;
mod table;

pub use call::{CallError, CallErrorKind, Outcome};
pub use driver::{Driver, NodeCapabilities, NodeInfo};
pub use drivers::{DriverChange, DriverStatus, Drivers, DriversOptions, StartError};
pub use request::{
    Access, AccessMode, ConditionSeen, ExpandVolume, PublishVolume, Secrets, StageVolume, StringMap, UsageSeen,
    UsageUnit, VolumeCapability, VolumeStats,
};
