//! The registration service, as node-driver-registrar has it.

use std::sync::Arc;

use refloat_csi::proto::pluginregistration::registration_server::Registration;
use refloat_csi::proto::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tonic::{Request, Response, Status};

use crate::answer::{Call, Driver};

/// The service.
pub(crate) struct RegistrationService(pub(crate) Arc<Driver>);

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let options = &self.0.options;
        let endpoint = options.register_endpoint.clone();
        let info = PluginInfo {
            r#type: options.register_type.clone(),
            name: options.register_as.clone().unwrap_or_else(|| options.name.clone()),
            endpoint: endpoint.unwrap_or_else(|| options.endpoint.to_string_lossy().into_owned()),
            supported_versions: options.register_versions.clone(),
        };
        let answer = info.clone();
        self.0.answer(Call::new("GetInfo", "", ""), info, |_| Ok(answer)).await
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        // The journal tells what it was told: in place of a path.
        let told = if status.plugin_registered { "registered".to_owned() } else { status.error };
        let call = Call::new("NotifyRegistrationStatus", "", &told);
        self.0.answer(call, RegistrationStatusResponse {}, |_| Ok(RegistrationStatusResponse {})).await
    }
}
