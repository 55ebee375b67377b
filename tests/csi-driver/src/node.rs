//! The node service.

use std::sync::Arc;

use refloat_csi::proto::csi::node_server::Node;
use refloat_csi::proto::csi::node_service_capability::rpc::Type as RpcType;
use refloat_csi::proto::csi::node_service_capability::{Rpc, Type};
use refloat_csi::proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse, Topology,
};
use tonic::{Request, Response, Status};

use crate::answer::{Call, Driver};

/// The service.
pub(crate) struct NodeService(pub(crate) Arc<Driver>);

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let options = &self.0.options;
        let segments = options.topology.iter().cloned().collect::<std::collections::BTreeMap<_, _>>();
        let info = NodeGetInfoResponse {
            node_id: options.node_id.clone(),
            max_volumes_per_node: options.max_volumes,
            accessible_topology: (!segments.is_empty()).then_some(Topology { segments }),
        };
        let answer = info.clone();
        self.0.answer(Call::new("NodeGetInfo", "", ""), info, |_| Ok(answer)).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let options = &self.0.options;
        let types = [
            (RpcType::StageUnstageVolume, !options.no_stage),
            (RpcType::GetVolumeStats, true),
            (RpcType::ExpandVolume, !options.no_expand),
            (RpcType::SingleNodeMultiWriter, options.multi_writer),
            (RpcType::VolumeMountGroup, options.mount_group),
        ];
        let capability =
            |r#type: RpcType| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: r#type.into() })) };
        let capabilities = types.iter().filter(|(_, has)| *has).map(|(r#type, _)| capability(*r#type)).collect();
        let answer = NodeGetCapabilitiesResponse { capabilities };
        let copy = answer.clone();
        self.0.answer(Call::new("NodeGetCapabilities", "", ""), answer, |_| Ok(copy)).await
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("NodeStageVolume", &request.volume_id, &request.staging_target_path);
        let call = call.with_secrets(&request.secrets);
        let nothing = NodeStageVolumeResponse {};
        self.0.answer(call, nothing, move |driver| driver.stage(&request).map(|()| NodeStageVolumeResponse {})).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("NodeUnstageVolume", &request.volume_id, &request.staging_target_path);
        let nothing = NodeUnstageVolumeResponse {};
        self.0
            .answer(call, nothing, move |driver| driver.unstage(&request).map(|()| NodeUnstageVolumeResponse {}))
            .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("NodePublishVolume", &request.volume_id, &request.target_path);
        let call = call.with_secrets(&request.secrets);
        let nothing = NodePublishVolumeResponse {};
        self.0
            .answer(call, nothing, move |driver| driver.publish(&request).map(|()| NodePublishVolumeResponse {}))
            .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("NodeUnpublishVolume", &request.volume_id, &request.target_path);
        let nothing = NodeUnpublishVolumeResponse {};
        let work = move |driver: &Driver| driver.unpublish(&request).map(|()| NodeUnpublishVolumeResponse {});
        self.0.answer(call, nothing, work).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("NodeExpandVolume", &request.volume_id, &request.volume_path);
        let call = call.with_secrets(&request.secrets);
        let nothing = NodeExpandVolumeResponse::default();
        self.0.answer(call, nothing, move |driver| driver.expand(&request)).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("NodeGetVolumeStats", &request.volume_id, &request.volume_path);
        let nothing = NodeGetVolumeStatsResponse::default();
        self.0.answer(call, nothing, move |driver| driver.stats(&request)).await
    }
}
