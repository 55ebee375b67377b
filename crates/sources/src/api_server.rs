//! The API server's list of the node's pods.
//!
//! It does not know what runs: a pod that was deleted by force is gone there while its containers run on.

use std::path::PathBuf;
use std::time::Instant;

use http::StatusCode;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use refloat_node::{Answer, Covers, PodSource, SourceError, SourceKind};
use refloat_record::BootId;
use serde::Deserialize;
use serde_json::Value;

use crate::{pods, web};

/// How many pods are asked for at once, as `kubectl` does.
const CHUNK: usize = 500;

/// How often a list is begun anew that grew too old while it was read.
const TRIES: usize = 3;

/// How the API server is asked.
#[derive(Debug, Clone)]
pub struct ApiServerOptions {
    /// The kubeconfig file; none for the service account of the pod that this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// The name of this node there.
    pub node_name: String,
    /// This machine's boot. What another node does not have is not gone here.
    pub boot_id: BootId,
}

/// A volume that is attached to the node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attached {
    /// Its unique name.
    pub name: String,
    /// The device that it is attached as; empty where the controller does not know.
    #[serde(default)]
    pub device_path: String,
}

/// What is read of a node's status.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    node_info: NodeInfo,
    volumes_attached: Option<Vec<Attached>>,
}

#[derive(Deserialize)]
struct NodeInfo {
    #[serde(rename = "bootID")]
    boot_id: String,
}

/// An API server.
#[derive(Debug, Clone)]
pub struct ApiServer {
    options: ApiServerOptions,
}

impl ApiServer {
    /// The API server that is asked in this way.
    pub fn new(options: ApiServerOptions) -> Self {
        Self { options }
    }

    async fn config(&self) -> Result<Config, SourceError> {
        let Some(file) = &self.options.kubeconfig else {
            return Config::incluster()
                .map_err(|e| SourceError::failed("reading the pod's service account", web::plain(&e)));
        };
        let failed = |e: kube::config::KubeconfigError| {
            SourceError::failed(format!("reading the kubeconfig {}", file.display()), web::plain(&e))
        };
        let read = Kubeconfig::read_from(file).map_err(failed)?;
        Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(failed)
    }

    async fn client(&self) -> Result<Client, SourceError> {
        web::client(self.config().await?, &self.name())
    }

    /// The node of this name, which is this machine: nobody else's list is taken for its own.
    async fn node(&self, client: &Client) -> Result<NodeStatus, SourceError> {
        #[derive(Deserialize)]
        struct Node {
            status: NodeStatus,
        }
        let name = &self.options.node_name;
        let text = web::get(client, &format!("/api/v1/nodes/{name}"), node_hint).await?;
        let node: Node = serde_json::from_slice(&text)
            .map_err(|e| SourceError::incomplete(format!("what it says of node {name} has no boot id ({e})")))?;
        let told = &node.status.node_info.boot_id;
        if told != self.options.boot_id.as_str() {
            return Err(SourceError::incomplete(format!(
                "node {name} is another machine, or its kubelet has not reported since this boot (it says boot {told:?})"
            )));
        }
        Ok(node.status)
    }

    /// Whether a node can be called so.
    fn check_name(&self) -> Result<(), SourceError> {
        let name = &self.options.node_name;
        if !web::is_plain(name) {
            return Err(SourceError::incomplete(format!("no node can be called {name:?}")));
        }
        Ok(())
    }

    /// One object as it came.
    pub(crate) fn get(&self, path: &str, deadline: Instant) -> Result<Vec<u8>, SourceError> {
        web::wait(deadline, async {
            let client = self.client().await?;
            web::get(&client, path, list_hint).await
        })
    }

    /// What this node is called there.
    pub(crate) fn node_name(&self) -> &str {
        &self.options.node_name
    }

    /// Creates an object.
    pub(crate) fn post(&self, path: &str, object: &Value, deadline: Instant) -> Result<(), SourceError> {
        web::wait(deadline, async {
            let client = self.client().await?;
            web::post(&client, path, object, list_hint).await
        })
    }

    /// What the attach/detach controller says is attached to this node.
    ///
    /// # Errors
    /// It cannot be asked, or the node of this name is another machine.
    ///
    /// # Source
    /// `status.volumesAttached` of the Node, which the controller alone writes.
    pub fn attached(&self, deadline: Instant) -> Result<Vec<Attached>, SourceError> {
        self.check_name()?;
        web::wait(deadline, async {
            let client = self.client().await?;
            Ok(self.node(&client).await?.volumes_attached.unwrap_or_default())
        })
    }

    /// The lists of the node's pods as they came. Whether they are all of one time is not asked.
    pub(crate) fn list_whole(&self, deadline: Instant) -> Result<Vec<Vec<u8>>, SourceError> {
        self.check_name()?;
        web::wait(deadline, async {
            let client = self.client().await?;
            let (mut all, mut next) = (vec![], None);
            loop {
                let text = web::get(&client, &self.list_path(next), list_hint).await?;
                next = pods::read(&text)?.1;
                all.push(text);
                if next.is_none() {
                    return Ok(all);
                }
            }
        })
    }

    /// The path that asks for the node's pods, from this token on.
    fn list_path(&self, next: Option<String>) -> String {
        let more = next.map(|token| format!("&continue={}", escaped(&token))).unwrap_or_default();
        format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}&limit={CHUNK}{more}", self.options.node_name)
    }

    /// All pods of the node, or none if the list grew too old on the way.
    async fn list(&self, client: &Client) -> Result<Option<Vec<pods::Listed>>, SourceError> {
        let name = &self.options.node_name;
        let mut all = Vec::new();
        let mut next = None;
        loop {
            let text = match web::get(client, &self.list_path(next), list_hint).await {
                Err(SourceError::Status { status: 410, .. }) => return Ok(None),
                answer => answer?,
            };
            let (pods, token) = pods::read(&text)?;
            all.extend(pods);
            if let Some(stray) = all.iter().find(|pod| pod.node.as_ref() != Some(name)) {
                // It does not heed the selector: not an API server, or a broken one between.
                let node = stray.node.as_deref().unwrap_or("no node");
                return Err(SourceError::incomplete(format!("it lists a pod of {node} where {name}'s were asked for")));
            }
            match token {
                Some(token) => next = Some(token),
                None => return Ok(Some(all)),
            }
        }
    }
}

impl PodSource for ApiServer {
    fn name(&self) -> String {
        match &self.options.kubeconfig {
            Some(file) => format!("API server of {}", file.display()),
            None => "API server".into(),
        }
    }

    fn kind(&self) -> SourceKind {
        SourceKind::ApiServer
    }

    fn ask(&self, deadline: Instant) -> Result<Answer, SourceError> {
        self.check_name()?;
        web::wait(deadline, async {
            let client = self.client().await?;
            self.node(&client).await?;
            for _ in 0..TRIES {
                let asked_at = Timestamp::now();
                if let Some(listed) = self.list(&client).await? {
                    let mut answer = Answer::new(Covers::FromApi, asked_at);
                    answer.extend(listed.into_iter().map(|listed| listed.pod));
                    return Ok(answer);
                }
            }
            Err(SourceError::incomplete("the list grew too old while it was read, each time"))
        })
    }
}

/// The text as a part of a query.
fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn node_hint(status: StatusCode) -> Option<&'static str> {
    match status {
        StatusCode::NOT_FOUND => Some("it has no node of this name: check --node-name"),
        StatusCode::FORBIDDEN => Some("whoever asks needs `get` on nodes, and `list` on pods"),
        other => list_hint(other),
    }
}

fn list_hint(status: StatusCode) -> Option<&'static str> {
    match status {
        StatusCode::UNAUTHORIZED => Some("it does not know who asks: check the kubeconfig's credentials"),
        StatusCode::FORBIDDEN => Some("whoever asks needs `list` on pods; a node's own kubeconfig has it"),
        _ => None,
    }
}
