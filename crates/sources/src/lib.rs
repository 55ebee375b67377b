//! Sources of pods for a node that something else runs, such as a kubelet.
//!
//! Each implements [`PodSource`](refloat_node::PodSource): it is asked on a thread of its own, and answers with all pods
//! that it knows or with an error. What the answers mean together is judged by
//! [`Answers::verdict`](refloat_node::Answers::verdict).

pub mod api_server;
pub mod cgroup;
pub mod cri;
pub mod events;
pub mod kubelet;
pub mod objects;
mod pods;
#[cfg(not(feature = "server"))]
mod proto;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod proto;
mod web;

pub use api_server::{ApiServer, ApiServerOptions, Attached};
pub use cgroup::Cgroups;
pub use cri::Runtime;
pub use events::Events;
pub use kubelet::{Kubelet, KubeletOptions};
pub use objects::Whole;
