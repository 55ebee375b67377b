//! The identity service.

use std::sync::Arc;

use refloat_csi::proto::csi::identity_server::Identity;
use refloat_csi::proto::csi::plugin_capability::service::Type as ServiceType;
use refloat_csi::proto::csi::plugin_capability::volume_expansion::Type as ExpansionType;
use refloat_csi::proto::csi::plugin_capability::{Service, Type, VolumeExpansion};
use refloat_csi::proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use crate::answer::{Call, Driver};

/// The service.
pub(crate) struct IdentityService(pub(crate) Arc<Driver>);

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let info = GetPluginInfoResponse {
            name: self.0.options.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            ..GetPluginInfoResponse::default()
        };
        let answer = info.clone();
        self.0.answer(Call::new("GetPluginInfo", "", ""), info, |_| Ok(answer)).await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let mut types = vec![Type::Service(Service { r#type: ServiceType::ControllerService.into() })];
        if !self.0.options.topology.is_empty() {
            types.push(Type::Service(Service { r#type: ServiceType::VolumeAccessibilityConstraints.into() }));
        }
        if !self.0.options.no_expand {
            types.push(Type::VolumeExpansion(VolumeExpansion { r#type: ExpansionType::Online.into() }));
        }
        let capabilities = types.into_iter().map(|r#type| PluginCapability { r#type: Some(r#type) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let ready = ProbeResponse { ready: Some(true) };
        self.0.answer(Call::new("Probe", "", ""), ready, |_| Ok(ProbeResponse { ready: Some(true) })).await
    }
}
