//! The container runtime, by the Container Runtime Interface: pods with a sandbox or a container that runs.
//!
//! # Source
//! `k8s.io/cri-api` (`runtime.v1`). `pkg/kubelet/kuberuntime/kuberuntime_sandbox.go`: the sandbox's metadata has the pod's
//! uid, a static pod's hash included; `kuberuntime_container.go` and `labels.go`: a container's labels have it too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use jiff::Timestamp;
use refloat_node::{Answer, Claim, Covers, KnownPod, PodSource, SourceError, SourceKind};
use refloat_record::PodUid;
use rustix::fs::FileType;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use crate::proto::cri as pb;
use crate::proto::cri::runtime_service_client::RuntimeServiceClient;
use crate::web;

/// How long a list may be: 64 MiB, four times what the kubelet takes.
const MAX_MESSAGE: usize = 64 << 20;

/// Where runtimes listen, and the kubelet's root that each is used with. k3s and RKE2 have the usual root.
const SOCKETS: &[(&str, &str)] = &[
    ("/run/containerd/containerd.sock", "/var/lib/kubelet"),
    ("/run/crio/crio.sock", "/var/lib/kubelet"),
    ("/run/cri-dockerd.sock", "/var/lib/kubelet"),
    ("/run/k3s/containerd/containerd.sock", "/var/lib/kubelet"),
    ("/run/k0s/containerd.sock", "/var/lib/k0s/kubelet"),
    ("/var/snap/microk8s/common/run/containerd.sock", "/var/snap/microk8s/common/var/lib/kubelet"),
    // Both also run with the usual root, as a link or as it is.
    ("/run/k0s/containerd.sock", "/var/lib/kubelet"),
    ("/var/snap/microk8s/common/run/containerd.sock", "/var/lib/kubelet"),
];

/// The runtimes' sockets on this machine that a kubelet with this root may use.
pub fn sockets(root: &Path) -> Vec<PathBuf> {
    let of_root = SOCKETS.iter().filter(|(_, usual)| root == Path::new(usual)).map(|(socket, _)| Path::new(socket));
    of_root.filter(|path| is_socket(path)).map(Path::to_path_buf).collect()
}

/// Every socket on this machine at which a runtime usually listens.
pub fn all_sockets() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = SOCKETS.iter().map(|(socket, _)| PathBuf::from(socket)).collect();
    all.sort();
    all.dedup();
    all.retain(|path| is_socket(path));
    all
}

fn is_socket(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
}

/// A container runtime.
#[derive(Debug, Clone)]
pub struct Runtime {
    socket: PathBuf,
    /// Whether nobody named it: it may be no kubelet's.
    found: bool,
}

impl Runtime {
    /// The runtime that listens there.
    pub fn at(socket: PathBuf) -> Self {
        Self { socket, found: false }
    }

    /// A runtime that was found, and may be there for something else: one that does not speak the protocol runs no pods.
    pub fn found(socket: PathBuf) -> Self {
        Self { socket, found: true }
    }

    async fn list(&self) -> Result<(Vec<pb::PodSandbox>, Vec<pb::Container>), SourceError> {
        let socket = self.socket.display();
        let uri = format!("unix://{socket}");
        let failed =
            |e: tonic::transport::Error| SourceError::failed(format!("connecting to {socket}"), web::plain(&e));
        let channel = Endpoint::try_from(uri).map_err(failed)?.connect().await.map_err(failed)?;
        let mut client = RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        // Sandboxes first: that of a pod which comes meanwhile is missing, and its containers tell of it.
        let sandboxes = client.list_pod_sandbox(pb::ListPodSandboxRequest { filter: None }).await;
        let sandboxes = sandboxes.map_err(|e| refused("ListPodSandbox", &e))?.into_inner().items;
        let containers = client.list_containers(pb::ListContainersRequest { filter: None }).await;
        let containers = containers.map_err(|e| refused("ListContainers", &e))?.into_inner().containers;
        Ok((sandboxes, containers))
    }
}

impl PodSource for Runtime {
    fn name(&self) -> String {
        format!("container runtime at {}", self.socket.display())
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Runtime
    }

    fn ask(&self, deadline: Instant) -> Result<Answer, SourceError> {
        let asked_at = Timestamp::now();
        let listed = web::wait(deadline, async { Ok(self.list().await) })?;
        match listed {
            Err(SourceError::Incomplete { why }) if self.found && why == NO_CRI => {
                Ok(Answer::new(Covers::Nobody, asked_at))
            }
            Err(error) => Err(error),
            Ok((sandboxes, containers)) => running(sandboxes, &containers, asked_at),
        }
    }
}

/// What is wrong with a server of something else.
const NO_CRI: &str = "it does not speak the runtime interface (runtime.v1)";

fn refused(call: &str, status: &Status) -> SourceError {
    if status.code() == Code::Unimplemented {
        return SourceError::incomplete(NO_CRI);
    }
    let mut why = format!("{:?}: {}", status.code(), status.message());
    if let Some(cause) = std::error::Error::source(status) {
        why = format!("{why}: {}", web::plain(cause));
    }
    SourceError::failed(call, why)
}

/// The pods of which something runs.
fn running(
    sandboxes: Vec<pb::PodSandbox>,
    containers: &[pb::Container],
    asked_at: Timestamp,
) -> Result<Answer, SourceError> {
    let mut answer = Answer::new(Covers::Every, asked_at);
    let mut by_id = BTreeMap::new();
    for sandbox in sandboxes {
        let ready = sandbox.state != i32::from(pb::PodSandboxState::SandboxNotready);
        let Some(metadata) = sandbox.metadata else {
            return Err(SourceError::incomplete(format!("sandbox {} has no metadata", sandbox.id)));
        };
        // A uid that no folder can be named by is no kubelet's.
        let uid = PodUid::new(&metadata.uid).ok();
        if let Some(uid) = uid.clone().filter(|_| ready) {
            let name = Some((metadata.namespace.clone(), metadata.name.clone()));
            answer.insert(KnownPod { uid, name, claim: Claim::Wanted, since: None });
        }
        by_id.insert(sandbox.id, (uid, metadata));
    }
    // One that was made and never started cannot start where its sandbox is not ready.
    let rests = [pb::ContainerState::ContainerCreated, pb::ContainerState::ContainerExited].map(i32::from);
    for container in containers.iter().filter(|container| !rests.contains(&container.state)) {
        let label = |name: &str| container.labels.get(name).cloned();
        let (uid, namespace, name) = if let Some((uid, metadata)) = by_id.get(&container.pod_sandbox_id) {
            let Some(uid) = uid.clone() else { continue };
            (uid, metadata.namespace.clone(), metadata.name.clone())
        } else {
            let Some(uid) = label("io.kubernetes.pod.uid").and_then(|uid| PodUid::new(uid).ok()) else {
                let why = format!("container {} runs and belongs to no pod that it lists", container.id);
                return Err(SourceError::incomplete(why));
            };
            let part = |name| label(name).unwrap_or_default();
            (uid, part("io.kubernetes.pod.namespace"), part("io.kubernetes.pod.name"))
        };
        answer.insert(KnownPod { uid, name: Some((namespace, name)), claim: Claim::Wanted, since: None });
    }
    Ok(answer)
}
