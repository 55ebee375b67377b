//! The controller service, as far as volumes must be made and deleted.

use std::sync::Arc;

use refloat_csi::proto::csi::controller_server::Controller;
use refloat_csi::proto::csi::controller_service_capability::rpc::Type as RpcType;
use refloat_csi::proto::csi::controller_service_capability::{Rpc, Type};
use refloat_csi::proto::csi::validate_volume_capabilities_response::Confirmed;
use refloat_csi::proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerServiceCapability, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, Topology, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume as CsiVolume,
};
use tonic::{Request, Response, Status};

use crate::answer::{Call, Driver, internal};
use crate::disk::Volume;
use crate::work::required;

/// A volume's size where nobody says, in bytes: what mkfs.ext4 is quick with.
const DEFAULT_SIZE: i64 = 16 << 20;
/// The largest size, in bytes.
const MAX_SIZE: i64 = 1 << 40;

/// The service.
pub(crate) struct ControllerService(pub(crate) Arc<Driver>);

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let options = &self.0.options;
        let types = [
            (RpcType::CreateDeleteVolume, true),
            (RpcType::ExpandVolume, !options.no_expand),
            (RpcType::SingleNodeMultiWriter, options.multi_writer),
        ];
        let capability =
            |r#type: RpcType| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: r#type.into() })) };
        let capabilities = types.iter().filter(|(_, has)| *has).map(|(r#type, _)| capability(*r#type)).collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("CreateVolume", &request.name, "").with_secrets(&request.secrets);
        self.0.answer(call, CreateVolumeResponse::default(), move |driver| driver.create(&request)).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("DeleteVolume", &request.volume_id, "").with_secrets(&request.secrets);
        self.0.answer(call, DeleteVolumeResponse {}, move |driver| driver.delete(&request)).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("ValidateVolumeCapabilities", &request.volume_id, "");
        let work = move |driver: &Driver| {
            required(&[("volume_id", &request.volume_id)])?;
            if request.volume_capabilities.is_empty() {
                return Err(Status::invalid_argument("volume_capabilities are missing"));
            }
            driver.find(&request.volume_id)?;
            let confirmed = Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            };
            Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
        };
        self.0.answer(call, ValidateVolumeCapabilitiesResponse::default(), work).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = Call::new("ControllerExpandVolume", &request.volume_id, "").with_secrets(&request.secrets);
        let work = move |driver: &Driver| {
            required(&[("volume_id", &request.volume_id)])?;
            let range = request.capacity_range.ok_or_else(|| Status::invalid_argument("capacity_range is missing"))?;
            let volume = driver.find(&request.volume_id)?;
            // The node grows it; here it is only checked that it can.
            let capacity = size(Some(range))?.max(volume.capacity.cast_signed());
            Ok(ControllerExpandVolumeResponse { capacity_bytes: capacity, node_expansion_required: true })
        };
        self.0.answer(call, ControllerExpandVolumeResponse::default(), work).await
    }
}

impl Driver {
    fn create(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        required(&[("name", &request.name)])?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities are missing"));
        }
        if request.volume_content_source.is_some() {
            return Err(Status::invalid_argument("a volume cannot be made of another"));
        }
        let wanted = size(request.capacity_range)?;
        let all = self.disks.all().map_err(internal("read the volumes"))?;
        let volume = if let Some(volume) = all.into_iter().find(|volume| volume.name == request.name) {
            let has = volume.capacity.cast_signed();
            let limit = request.capacity_range.map_or(0, |range| range.limit_bytes);
            let required = request.capacity_range.map_or(0, |range| range.required_bytes);
            if has < required || (limit > 0 && has > limit) {
                return Err(Status::already_exists("a volume of that name has another size"));
            }
            volume
        } else {
            let id = id_of(&request.name);
            let capacity = u64::try_from(wanted).map_err(|_| Status::out_of_range("the size is negative"))?;
            self.disks.create(&id, &request.name, capacity).map_err(internal("make the volume"))?
        };
        Ok(CreateVolumeResponse { volume: Some(self.described(&volume)) })
    }

    fn described(&self, volume: &Volume) -> CsiVolume {
        let segments: std::collections::BTreeMap<_, _> = self.options.topology.iter().cloned().collect();
        let topology = if segments.is_empty() { vec![] } else { vec![Topology { segments }] };
        CsiVolume {
            volume_id: volume.id.clone(),
            capacity_bytes: volume.capacity.cast_signed(),
            accessible_topology: topology,
            ..CsiVolume::default()
        }
    }

    fn delete(&self, request: &DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        required(&[("volume_id", &request.volume_id)])?;
        if self.disks.device(&request.volume_id).map_err(internal("find the device"))?.is_some() {
            return Err(Status::failed_precondition("the volume is in use"));
        }
        self.disks.delete(&request.volume_id).map_err(internal("delete the volume"))?;
        Ok(DeleteVolumeResponse {})
    }
}

/// The size that a range asks for, in bytes.
fn size(range: Option<CapacityRange>) -> Result<i64, Status> {
    let CapacityRange { required_bytes, limit_bytes } = range.unwrap_or_default();
    let size = match (required_bytes, limit_bytes) {
        (0, 0) => DEFAULT_SIZE,
        (0, limit) => DEFAULT_SIZE.min(limit),
        (required, _) => required,
    };
    if size <= 0 || size > MAX_SIZE || limit_bytes < 0 || (limit_bytes > 0 && size > limit_bytes) {
        return Err(Status::out_of_range("there is no such size"));
    }
    Ok(size)
}

/// A handle for a name: the same again after a crash.
fn id_of(name: &str) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    format!("vol-{:016x}", hasher.finish())
}
