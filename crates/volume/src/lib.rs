//! What a volume is: its spec, its names, its place in the kubelet's layout, the [`Plugin`] trait, and one module a
//! plugin under [`plugins`].
//!
//! A pod's `volumes[x]` entry becomes a [`VolumeSpec`]; the plugin that supports it, from [`Plugins`], names it and
//! sets it up. What plugins may do to the node they do through [`Host`]; before the first thing that could be
//! seen, SetUp and MountDevice must [`announce`](SetUp::announce) it, which makes the record durable. TearDown and
//! UnmountDevice get that record, never a live API object.

mod atomic_writer;
mod beneath;
mod bind_again;
pub mod block;
mod disk;
mod error;
mod force;
pub mod foreign;
mod fs_group;
mod grow;
mod host;
pub mod layout;
pub mod migration;
mod object;
mod payload;
mod plugin;
pub mod plugins;
mod pod_resources;
pub mod provider;
mod quantity;
pub mod scsi;
mod secret_text;
mod spec;
pub mod sub_path;
mod tear_down;
mod tool;

pub use atomic_writer::{
    WriteOutcome, clear as clear_payload, holds_nothing_else as holds_only_payload, write as write_payload,
};
pub(crate) use bind_again::set_options_again;
pub use error::{Problem, SpecError, VolumeError, error_chain};
pub use force::{Forced, force_unmount};
pub use foreign::{ForeignForm, ForeignRecord, ForeignSays};
pub use fs_group::apply as apply_fs_group;
pub use host::Host;
pub use object::{Lookup, NodeFacts, Object, Objects};
pub use payload::{ContentError, Payload, PayloadFile};
pub use plugin::{
    Announced, Announcer, Capabilities, DeviceAnnouncer, DeviceOutcome, Doubts, FoundVolume, GlobalMount, LayoutMemo,
    MountDevice, Peers, Plugin, Plugins, Presence, Rebuilt, RebuiltDevice, RebuiltSpec, Reconstruction, Recorded,
    Servers, SetUp, TearDown, UnmountDevice,
};
pub use plugins::csi::{DriverInputs, ForeignFile};
pub use pod_resources::{PodResources, PodResourcesError};
pub use quantity::{Quantity, QuantityError};
pub use secret_text::secrets_of;
pub use spec::{SpecSource, SubPathSpec, VolumeSpec};
pub use tear_down::{remove_volume_dir, unmount_nested, unmount_own_layers};
pub use tool::{ToolError, ToolOutput, run_tool};
