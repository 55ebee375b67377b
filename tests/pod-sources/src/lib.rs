//! Servers that the sources of pods are tested against: HTTPS with a made certificate, answering as a test says, and a
//! container runtime on a Unix socket.

mod https;
mod runtime;

pub use https::{Https, Reply, Request};
pub use runtime::{Mood, RuntimeServer, State};

pub use refloat_sources::proto::cri as pb;

/// A `PodList` with these pods, each the JSON of its `metadata` and of what follows it.
pub fn pod_list(pods: &[String]) -> String {
    format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[{}]}}"#, pods.join(","))
}

/// A pod of the API server's.
pub fn pod(uid: &str, namespace: &str, name: &str, node: &str) -> String {
    format!(
        r#"{{"metadata":{{"uid":"{uid}","namespace":"{namespace}","name":"{name}"}},"spec":{{"nodeName":"{node}"}},
            "status":{{"phase":"Running"}}}}"#
    )
}
