//! From our words to the protocol's, and back.

use std::time::Duration;

use tonic::Request;

use crate::link::timed;
use crate::proto::csi as pb;
use crate::proto::csi::node_service_capability::rpc::Type;
use crate::proto::csi::volume_capability::access_mode::Mode;
use crate::proto::csi::volume_capability::{AccessMode as PbMode, AccessType, BlockVolume, MountVolume};
use crate::{
    Access, AccessMode, ExpandVolume, NodeCapabilities, NodeInfo, PublishVolume, StageVolume, VolumeCapability,
};

/// `VOLUME_CONDITION`: removed by CSI 1.13, where its number is reserved; drivers of before answer with it.
const VOLUME_CONDITION: i32 = 4;

pub(crate) fn stage(request: &StageVolume, left: Duration) -> Request<pb::NodeStageVolumeRequest> {
    let message = pb::NodeStageVolumeRequest {
        volume_id: request.volume_id.clone(),
        publish_context: request.publish_context.clone(),
        staging_target_path: request.staging_target_path.clone(),
        volume_capability: Some(capability(&request.capability)),
        secrets: request.secrets.expose().clone(),
        volume_context: request.volume_context.clone(),
    };
    timed(message, left)
}

pub(crate) fn publish(request: &PublishVolume, left: Duration) -> Request<pb::NodePublishVolumeRequest> {
    let message = pb::NodePublishVolumeRequest {
        volume_id: request.volume_id.clone(),
        publish_context: request.publish_context.clone(),
        staging_target_path: request.staging_target_path.clone(),
        target_path: request.target_path.clone(),
        volume_capability: Some(capability(&request.capability)),
        readonly: request.readonly,
        secrets: request.secrets.expose().clone(),
        volume_context: request.volume_context.clone(),
    };
    timed(message, left)
}

pub(crate) fn expand(request: &ExpandVolume, left: Duration) -> Request<pb::NodeExpandVolumeRequest> {
    let message = pb::NodeExpandVolumeRequest {
        volume_id: request.volume_id.clone(),
        volume_path: request.volume_path.clone(),
        capacity_range: Some(pb::CapacityRange { required_bytes: request.required_bytes, limit_bytes: 0 }),
        staging_target_path: request.staging_target_path.clone(),
        volume_capability: Some(capability(&request.capability)),
        secrets: request.secrets.expose().clone(),
    };
    timed(message, left)
}

fn capability(capability: &VolumeCapability) -> pb::VolumeCapability {
    let access_type = match &capability.access {
        Access::Block => AccessType::Block(BlockVolume {}),
        Access::Mount { fs_type, mount_flags, volume_mount_group } => AccessType::Mount(MountVolume {
            fs_type: fs_type.clone(),
            mount_flags: mount_flags.clone(),
            volume_mount_group: volume_mount_group.clone(),
        }),
    };
    let mode = match capability.mode {
        AccessMode::Unknown => Mode::Unknown,
        AccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly => Mode::SingleNodeReaderOnly,
        AccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        AccessMode::MultiNodeSingleWriter => Mode::MultiNodeSingleWriter,
        AccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
        AccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
    };
    pb::VolumeCapability { access_mode: Some(PbMode { mode: mode.into() }), access_type: Some(access_type) }
}

pub(crate) fn capabilities(answer: &pb::NodeGetCapabilitiesResponse) -> NodeCapabilities {
    let mut found = NodeCapabilities::default();
    for capability in &answer.capabilities {
        let Some(pb::node_service_capability::Type::Rpc(rpc)) = &capability.r#type else { continue };
        if rpc.r#type == VOLUME_CONDITION {
            found.condition = true;
            continue;
        }
        match rpc.r#type() {
            Type::StageUnstageVolume => found.stage_unstage = true,
            Type::GetVolumeStats => found.volume_stats = true,
            Type::ExpandVolume => found.expand = true,
            Type::SingleNodeMultiWriter => found.single_node_multi_writer = true,
            Type::VolumeMountGroup => found.mount_group = true,
            // Also what a newer specification may add.
            Type::Unknown | Type::GetVolumeHealth | Type::GetStorageHealth => {}
        }
    }
    found
}

pub(crate) fn node_info(answer: pb::NodeGetInfoResponse) -> NodeInfo {
    NodeInfo {
        node_id: answer.node_id,
        max_volumes: answer.max_volumes_per_node,
        topology: answer.accessible_topology.map(|t| t.segments).unwrap_or_default(),
    }
}
