//! The node manager: from evidence to the actual state, from the actual and the desired state to a plan, from a plan
//! to operations, and round again.
//!
//! ```text
//! evidence ──► reconstruct ──► actual state ─┐
//! (records, mount table,                     ├─► plan ──► operations ──► execute ──► records, actual state
//!  folders, boot id)           desired state ┘
//! ```
//!
//! [`Evidence`] is gathered once, in one pass each. [`reconstruct()`] and [`plan()`] are pure: no I/O, no clock.
//! [`Manager`] drives the loop. Start reading at [`actual`].

pub mod actual;
pub mod agent;
pub mod clean;
pub mod desired;
pub mod evidence;
mod execute;
#[doc(hidden)]
pub mod fuzz;
pub mod holders;
pub mod manager;
pub mod plan;
pub mod reconstruct;
pub mod sources;
#[cfg(test)]
mod testing;

pub use actual::{
    Actual, ActualDevice, ActualVolume, Leftover, LeftoverKind, MountSeen, ReconstructionResult, RecordState,
    SubPathSeen, VolumeKey, VolumeState,
};
pub use desired::{Desired, DesiredPod, DesiredVolume, Waiting, Wanted};
pub use evidence::{Evidence, Gather, GatherError, PodTree, Tree, VolumeFolder};
pub use holders::{Holder, Holders};
pub use manager::{Manager, ManagerError, ManagerOptions};
pub use plan::{Exclusion, Held, MayUnmount, Operation, Plan, PlanInput, ProviderInput, Report, compare, plan};
pub use reconstruct::{hanging_problem, on_two_threads, reconstruct, reconstruct_explained};
pub use sources::asked::{
    Answer, Answers, Asked, Claim, Covers, KnownPod, PodSource, SourceError, SourceKind, ask_all,
};
pub use sources::verdict::Verdict;
