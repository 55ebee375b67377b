//! Kubernetes events about what pods that are gone left on the node.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use refloat_node::agent::{Event, Happened, Listener};
use serde_json::{Value, json};

use crate::ApiServer;

/// How many events wait for the API server. More are dropped: the log has them all.
const WAITING: usize = 100;

/// The component that events are from.
const COMPONENT: &str = "refloat-agent";

/// Sends events to an API server, on a thread of its own: a server that is away holds up nothing.
#[derive(Debug)]
pub struct Events {
    queue: SyncSender<Value>,
    node: String,
}

impl Events {
    /// Starts the thread. It ends when this is dropped.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(api_server: ApiServer, patience: Duration) -> std::io::Result<Self> {
        let node = api_server.node_name().to_owned();
        let (queue, waiting) = sync_channel(WAITING);
        let run = move || send_all(&api_server, patience, &waiting);
        std::thread::Builder::new().name("events".into()).spawn(run)?;
        Ok(Self { queue, node })
    }
}

fn send_all(api_server: &ApiServer, patience: Duration, waiting: &Receiver<Value>) {
    let mut told = false;
    while let Ok(event) = waiting.recv() {
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or("default");
        let path = format!("/api/v1/namespaces/{namespace}/events");
        match api_server.post(&path, &event, Instant::now() + patience) {
            Ok(()) => told = false,
            Err(error) => {
                // Once, until one arrives again.
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(why = error.text(), "an event cannot be sent to the API server; the log has it");
                }
            }
        }
    }
}

/// The event as an object. The pod is gone, so it is about the node; the pod is named beside it.
///
/// # Source
/// `Event` of the core API; `EventRecorder` puts events about nodes into the namespace `default`, with the node's name as uid.
fn object(node: &str, event: &Event, now: Timestamp) -> Value {
    let (reason, kind) = match event.what {
        Happened::Found => ("OrphanedVolumesFound", "Warning"),
        Happened::Cleaned => ("OrphanedVolumesCleaned", "Normal"),
        Happened::NotCleaned => ("OrphanedVolumesLeft", "Warning"),
    };
    let (namespace, name) = event.name.as_ref().map_or((None, None), |(a, b)| (Some(a), Some(b)));
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "default", "generateName": format!("{node}.")},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "related": {"apiVersion": "v1", "kind": "Pod", "uid": event.pod.as_str(), "namespace": namespace, "name": name},
        "reason": reason,
        "message": event.message,
        "type": kind,
        "count": 1,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "source": {"component": COMPONENT, "host": node},
    })
}

impl Listener for Events {
    fn event(&mut self, event: &Event) {
        // A full queue drops it.
        let _ = self.queue.try_send(object(&self.node, event, Timestamp::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refloat_record::PodUid;

    #[test]
    fn an_event_is_about_the_node_and_names_the_pod() {
        let event = Event {
            pod: PodUid::new("u1").unwrap(),
            name: Some(("shop".into(), "web".into())),
            what: Happened::Found,
            message: "no pod wants it".into(),
        };
        let object = object("n1", &event, Timestamp::from_second(0).unwrap());
        assert_eq!(object["involvedObject"]["name"], "n1");
        assert_eq!(object["related"]["uid"], "u1");
        assert_eq!(object["related"]["namespace"], "shop");
        assert_eq!((&object["type"], &object["firstTimestamp"]), (&json!("Warning"), &json!("1970-01-01T00:00:00Z")));
        k8s_openapi_reads(&object);
        let unnamed = super::object("n1", &Event { name: None, ..event }, Timestamp::from_second(0).unwrap());
        assert!(unnamed["related"]["name"].is_null());
        k8s_openapi_reads(&unnamed);
    }

    fn k8s_openapi_reads(object: &Value) {
        serde_json::from_value::<k8s_openapi::api::core::v1::Event>(object.clone()).unwrap();
    }
}
