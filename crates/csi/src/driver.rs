//! One driver: the calls of its node service.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{CallError, ExpandVolume, PublishVolume, StageVolume, StringMap, VolumeStats};

/// What a driver's node service can do.
///
/// # Source
/// `NodeServiceCapability.RPC.Type` of `csi.proto`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is one independent capability
pub struct NodeCapabilities {
    /// `STAGE_UNSTAGE_VOLUME`.
    pub stage_unstage: bool,
    /// `GET_VOLUME_STATS`.
    pub volume_stats: bool,
    /// `EXPAND_VOLUME`.
    pub expand: bool,
    /// `VOLUME_CONDITION`.
    pub condition: bool,
    /// `SINGLE_NODE_MULTI_WRITER`.
    pub single_node_multi_writer: bool,
    /// `VOLUME_MOUNT_GROUP`.
    pub mount_group: bool,
}

/// What a driver says of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// `node_id`.
    pub node_id: String,
    /// `max_volumes_per_node`; 0 leaves it open.
    pub max_volumes: i64,
    /// `accessible_topology.segments`, where it reports any.
    pub topology: StringMap,
}

/// A driver that is registered, or was once and whose socket is remembered.
///
/// Each call blocks until the driver answered or the deadline passed. A driver that hangs holds up nobody but its
/// callers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Driver {
    _private: (),
}

impl Driver {
    /// Its name.
    pub fn name(&self) -> &str {
        todo!()
    }
    /// Its socket.
    pub fn endpoint(&self) -> &Path {
        todo!()
    }
    /// Whether it is registered now; else its socket is only remembered.
    pub fn is_registered(&self) -> bool {
        todo!()
    }
    /// What it said of this node when it registered, or says now.
    pub fn node_info(&self) -> Result<NodeInfo, CallError> {
        todo!()
    }
    /// `NodeGetCapabilities`, asked once a connection and kept.
    pub fn capabilities(&self) -> Result<NodeCapabilities, CallError> {
        todo!()
    }
    /// `NodeStageVolume`.
    pub fn stage(&self, request: &StageVolume) -> Result<(), CallError> {
        let _ = request;
        todo!()
    }
    /// `NodePublishVolume`.
    pub fn publish(&self, request: &PublishVolume) -> Result<(), CallError> {
        let _ = request;
        todo!()
    }
    /// `NodeUnpublishVolume`.
    pub fn unpublish(&self, volume_id: &str, target_path: &str) -> Result<(), CallError> {
        let _ = (volume_id, target_path);
        todo!()
    }
    /// `NodeUnstageVolume`.
    pub fn unstage(&self, volume_id: &str, staging_target_path: &str) -> Result<(), CallError> {
        let _ = (volume_id, staging_target_path);
        todo!()
    }
    /// `NodeExpandVolume`: the capacity in bytes afterwards, where the driver tells it.
    pub fn expand(&self, request: &ExpandVolume) -> Result<Option<i64>, CallError> {
        let _ = request;
        todo!()
    }
    /// `NodeGetVolumeStats`.
    pub fn stats(
        &self,
        volume_id: &str,
        volume_path: &str,
        staging_target_path: &str,
    ) -> Result<VolumeStats, CallError> {
        let _ = (volume_id, volume_path, staging_target_path);
        todo!()
    }
    /// The same driver with another deadline for its calls.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        let _ = deadline;
        todo!()
    }
}

#[allow(dead_code)] // the socket's place
fn _endpoint(_: &PathBuf) {}
