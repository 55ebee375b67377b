//! A container runtime that lists what a test says.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use refloat_sources::proto::cri as pb;
use refloat_sources::proto::cri::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

/// How it answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mood {
    /// With what it has.
    #[default]
    Well,
    /// Not at all.
    Hangs,
    /// That it is broken, when it is asked for containers.
    Fails,
    /// As a server of something else.
    Other,
}

/// What it has.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// How it answers.
    pub mood: Mood,
    /// Its sandboxes.
    pub sandboxes: Vec<pb::PodSandbox>,
    /// Its containers.
    pub containers: Vec<pb::Container>,
}

impl State {
    /// Adds a pod: whether its sandbox is ready, and whether its one container runs.
    #[must_use]
    pub fn with_pod(mut self, uid: &str, name: &str, ready: bool, runs: bool) -> Self {
        let sandbox_state =
            if ready { pb::PodSandboxState::SandboxReady } else { pb::PodSandboxState::SandboxNotready };
        let container_state =
            if runs { pb::ContainerState::ContainerRunning } else { pb::ContainerState::ContainerExited };
        let id = format!("sandbox-{uid}");
        self.sandboxes.push(pb::PodSandbox {
            id: id.clone(),
            metadata: Some(pb::PodSandboxMetadata {
                name: name.into(),
                uid: uid.into(),
                namespace: "test".into(),
                attempt: 0,
            }),
            state: sandbox_state.into(),
            created_at: 1,
            ..pb::PodSandbox::default()
        });
        let labels = [("uid", uid), ("namespace", "test"), ("name", name)];
        let labels = labels.map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.to_owned()));
        self.containers.push(pb::Container {
            id: format!("container-{uid}"),
            pod_sandbox_id: id,
            state: container_state.into(),
            labels: labels.into(),
            ..pb::Container::default()
        });
        self
    }
}

/// A runtime on a socket. It ends when this is dropped.
pub struct RuntimeServer {
    socket: PathBuf,
    state: Arc<Mutex<State>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl RuntimeServer {
    /// Starts it.
    ///
    /// # Panics
    /// If nothing can listen there.
    pub fn start(socket: &Path, state: State) -> Self {
        let state = Arc::new(Mutex::new(state));
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket).expect("a socket")
        };
        let service = RuntimeServiceServer::new(Service { state: Arc::clone(&state) });
        let thread = std::thread::spawn(move || {
            let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
            let server = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming);
            runtime.block_on(async {
                // A call that hangs would keep an orderly end waiting.
                let ended = stopped;
                let mut server = std::pin::pin!(server);
                let mut ended = std::pin::pin!(ended);
                std::future::poll_fn(|context| {
                    use std::task::Poll;
                    let over = server.as_mut().poll(context).is_ready() || ended.as_mut().poll(context).is_ready();
                    if over { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            });
            runtime.shutdown_background();
        });
        Self { socket: socket.into(), state, stop: Some(stop), thread: Some(thread) }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Gives it other things to list.
    ///
    /// # Panics
    /// If a call that looked at them did.
    pub fn set(&self, state: State) {
        *self.state.lock().expect("nobody panics") = state;
    }
}

impl Drop for RuntimeServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

struct Service {
    state: Arc<Mutex<State>>,
}

impl Service {
    async fn state(&self, fails: bool) -> Result<State, Status> {
        let state = self.state.lock().expect("nobody panics").clone();
        match state.mood {
            Mood::Fails if fails => Err(Status::internal("the store is locked")),
            Mood::Well | Mood::Fails => Ok(state),
            Mood::Hangs => std::future::pending().await,
            Mood::Other => Err(Status::unimplemented("unknown service runtime.v1.RuntimeService")),
        }
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn list_pod_sandbox(
        &self,
        _: Request<pb::ListPodSandboxRequest>,
    ) -> Result<Response<pb::ListPodSandboxResponse>, Status> {
        let items = self.state(false).await?.sandboxes;
        Ok(Response::new(pb::ListPodSandboxResponse { items }))
    }

    async fn list_containers(
        &self,
        _: Request<pb::ListContainersRequest>,
    ) -> Result<Response<pb::ListContainersResponse>, Status> {
        let containers = self.state(true).await?.containers;
        Ok(Response::new(pb::ListContainersResponse { containers }))
    }
}
