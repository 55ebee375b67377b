//! One driver: the calls of its node service.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::Wire;
use crate::convert;
use crate::drivers::Inner;
use crate::hide::Hidden;
use crate::link::{Link, node_client, timed};
use crate::proto::csi as pb;
use crate::stats;
use crate::{CallError, CallErrorKind, ExpandVolume, Outcome, PublishVolume, StageVolume, StringMap, VolumeStats};

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
    /// `VOLUME_CONDITION`, which CSI 1.13 removed and drivers of before have.
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
/// callers. Before the first call over a connection, `GetPluginInfo` must give the driver's name. Cheap to clone.
///
/// A call from inside [`Drivers::start`](crate::Drivers::start)'s `changed` fails, as it would wait for itself.
#[derive(Clone)]
pub struct Driver {
    inner: Arc<Inner>,
    link: Arc<Link>,
    deadline: Duration,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("name", &self.name()).field("endpoint", &self.endpoint()).finish_non_exhaustive()
    }
}

impl Driver {
    pub(crate) fn new(inner: Arc<Inner>, link: Arc<Link>, deadline: Duration) -> Self {
        Self { inner, link, deadline }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.link.name()
    }

    /// Its socket.
    pub fn endpoint(&self) -> &Path {
        self.link.endpoint()
    }

    /// Whether it is registered now, with this socket; else its socket is only remembered.
    pub fn is_registered(&self) -> bool {
        self.inner.shared.registered_node(&self.link).is_some()
    }

    /// What it said of this node when it registered, or says now.
    pub fn node_info(&self) -> Result<NodeInfo, CallError> {
        if let Some(node) = self.inner.shared.registered_node(&self.link) {
            return Ok(node);
        }
        self.wait("NodeGetInfo", ask_node_info(&self.link, self.deadline))
    }

    /// `NodeGetCapabilities`, asked once a connection and kept.
    pub fn capabilities(&self) -> Result<NodeCapabilities, CallError> {
        self.wait("NodeGetCapabilities", self.link.capabilities(self.deadline))
    }

    /// `NodeStageVolume`.
    pub fn stage(&self, request: &StageVolume) -> Result<(), CallError> {
        let hidden = Hidden::of(&request.secrets, &request.volume_context, Some(&request.capability));
        self.call("NodeStageVolume", &hidden, |wire, left| {
            let mut node = node_client(wire);
            let message = convert::stage(request, left);
            async move { node.node_stage_volume(message).await }
        })
        .map(drop)
    }

    /// `NodePublishVolume`.
    pub fn publish(&self, request: &PublishVolume) -> Result<(), CallError> {
        let hidden = Hidden::of(&request.secrets, &request.volume_context, Some(&request.capability));
        self.call("NodePublishVolume", &hidden, |wire, left| {
            let mut node = node_client(wire);
            let message = convert::publish(request, left);
            async move { node.node_publish_volume(message).await }
        })
        .map(drop)
    }

    /// `NodeUnpublishVolume`.
    pub fn unpublish(&self, volume_id: &str, target_path: &str) -> Result<(), CallError> {
        self.call("NodeUnpublishVolume", &Hidden::default(), |wire, left| {
            let mut node = node_client(wire);
            let message =
                pb::NodeUnpublishVolumeRequest { volume_id: volume_id.into(), target_path: target_path.into() };
            async move { node.node_unpublish_volume(timed(message, left)).await }
        })
        .map(drop)
    }

    /// `NodeUnstageVolume`.
    pub fn unstage(&self, volume_id: &str, staging_target_path: &str) -> Result<(), CallError> {
        self.call("NodeUnstageVolume", &Hidden::default(), |wire, left| {
            let mut node = node_client(wire);
            let message = pb::NodeUnstageVolumeRequest {
                volume_id: volume_id.into(),
                staging_target_path: staging_target_path.into(),
            };
            async move { node.node_unstage_volume(timed(message, left)).await }
        })
        .map(drop)
    }

    /// `NodeExpandVolume`: the capacity in bytes afterwards, where the driver tells it.
    pub fn expand(&self, request: &ExpandVolume) -> Result<Option<i64>, CallError> {
        let hidden = Hidden::of(&request.secrets, &StringMap::new(), Some(&request.capability));
        let answer = self.call("NodeExpandVolume", &hidden, |wire, left| {
            let mut node = node_client(wire);
            let message = convert::expand(request, left);
            async move { node.node_expand_volume(message).await }
        })?;
        // 0 leaves it open.
        Ok((answer.capacity_bytes > 0).then_some(answer.capacity_bytes))
    }

    /// `NodeGetVolumeStats`.
    pub fn stats(
        &self,
        volume_id: &str,
        volume_path: &str,
        staging_target_path: &str,
    ) -> Result<VolumeStats, CallError> {
        let answer = self.call("NodeGetVolumeStats", &Hidden::default(), |wire, left| {
            let message = pb::NodeGetVolumeStatsRequest {
                volume_id: volume_id.into(),
                volume_path: volume_path.into(),
                staging_target_path: staging_target_path.into(),
            };
            stats::ask(wire, timed(message, left))
        })?;
        Ok(stats::seen(answer))
    }

    /// The same driver with another deadline for its calls.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    fn call<T: Send, F>(
        &self,
        call: &'static str,
        hidden: &Hidden,
        ask: impl Fn(Wire, Duration) -> F + Send + Sync,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send,
    {
        self.wait(call, self.link.call(call, self.deadline, hidden, ask))
    }

    fn wait<T: Send>(
        &self,
        call: &'static str,
        work: impl Future<Output = Result<T, CallError>> + Send,
    ) -> Result<T, CallError> {
        let _time = tracing::trace_span!(target: "refloat::time", "driver").entered();
        let not_started = |why: String| CallError {
            driver: self.name().into(),
            call,
            outcome: Outcome::NotStarted,
            kind: CallErrorKind::NotConnected { endpoint: self.endpoint().into(), why },
        };
        let runtime =
            self.inner.runtime().map_err(|e| not_started(format!("the thread for calls does not start: {e}")))?;
        runtime
            .wait(work)
            .unwrap_or_else(|| Err(not_started("the call came from the thread that watches for drivers".into())))
    }
}

/// `NodeGetInfo`.
pub(crate) async fn ask_node_info(link: &Link, deadline: Duration) -> Result<NodeInfo, CallError> {
    let answer = link
        .call("NodeGetInfo", deadline, &Hidden::default(), |wire, left| async move {
            node_client(wire).node_get_info(timed(pb::NodeGetInfoRequest {}, left)).await
        })
        .await?;
    Ok(convert::node_info(answer))
}
