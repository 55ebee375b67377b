//! Lists of pods as kubelets and API servers print them: of each pod only what tells whether it is there.

use std::collections::BTreeMap;

use jiff::Timestamp;
use refloat_node::{Claim, KnownPod, SourceError};
use refloat_record::PodUid;
use serde::{Deserialize, Deserializer};

/// A `PodList`.
#[derive(Debug, Deserialize)]
struct List {
    kind: Option<String>,
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Items,
}

/// The pods of a list. A kubelet without pods prints null; an answer of another kind has no such field.
#[derive(Debug, Default)]
struct Items {
    there: bool,
    pods: Vec<Pod>,
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pods: Option<Vec<Pod>> = Option::deserialize(deserializer)?;
        Ok(Self { there: true, pods: pods.unwrap_or_default() })
    }
}

#[derive(Debug, Default, Deserialize)]
struct ListMeta {
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Pod {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    uid: String,
    name: String,
    #[serde(default)]
    namespace: Option<String>,
    deletion_timestamp: Option<String>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Deserialize)]
struct ContainerStatus {
    #[serde(default)]
    state: State,
}

#[derive(Debug, Default, Deserialize)]
struct State {
    terminated: Option<Terminated>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated {
    finished_at: Option<String>,
}

/// A pod of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// As it is known, a mirror as the pod that it mirrors.
    pub(crate) pod: KnownPod,
    /// Whether it came from the API server, not from a manifest on the node. A mirror did not.
    pub(crate) from_api: bool,
    /// The node that it is bound to.
    pub(crate) node: Option<String>,
}

/// The pods of a list, and the token that asks for more of them.
pub(crate) fn read(text: &[u8]) -> Result<(Vec<Listed>, Option<String>), SourceError> {
    let list: List = serde_json::from_slice(text)
        .map_err(|e| SourceError::incomplete(format!("it is no whole list of pods ({e})")))?;
    if list.kind.as_deref() != Some("PodList") {
        let kind = list.kind.unwrap_or_else(|| "nothing of a kind".into());
        return Err(SourceError::incomplete(format!("it is {kind}, not a PodList")));
    }
    if !list.items.there {
        return Err(SourceError::incomplete("it has no list of pods in it"));
    }
    let pods = list.items.pods.into_iter().map(listed).collect::<Result<_, _>>()?;
    Ok((pods, list.metadata.next.filter(|token| !token.is_empty())))
}

/// # Source
/// `pkg/kubelet/types/pod_update.go`: `kubernetes.io/config.source` is `api`, `file` or `http` in a kubelet's own list;
/// `kubernetes.io/config.mirror` of a mirror in the API server is the uid of the static pod that it is of.
/// `podutil.IsPodTerminal`: a pod is at its end in the phases `Succeeded` and `Failed`.
fn listed(pod: Pod) -> Result<Listed, SourceError> {
    let Pod { metadata, spec, status } = pod;
    let annotation = |name: &str| metadata.annotations.as_ref()?.get(name).filter(|value| !value.is_empty());
    let mirrored = annotation("kubernetes.io/config.mirror");
    let from_api = mirrored.is_none()
        && match annotation("kubernetes.io/config.source").map(String::as_str) {
            Some(source) => source == "api",
            None => annotation("kubernetes.io/config.hash").is_none(),
        };
    let namespace = metadata.namespace.clone().unwrap_or_else(|| "default".into());
    let uid = PodUid::new(mirrored.unwrap_or(&metadata.uid))
        .map_err(|e| SourceError::incomplete(format!("the uid of pod {namespace}/{} is none ({e})", metadata.name)))?;
    let finished = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    // A mirror is deleted and made anew whenever the static pod changes; the pod itself goes with its manifest alone.
    let deleted = metadata.deletion_timestamp.as_deref().filter(|_| mirrored.is_none());
    let (claim, since) = if finished {
        (Claim::Finished, ended(&status))
    } else if let Some(deleted) = deleted {
        (Claim::Terminating, deleted.parse().ok())
    } else {
        (Claim::Wanted, None)
    };
    let pod = KnownPod { uid, name: Some((namespace, metadata.name)), claim, since };
    Ok(Listed { pod, from_api, node: spec.node_name })
}

/// When the last container ended.
fn ended(status: &Status) -> Option<Timestamp> {
    let statuses = [&status.container_statuses, &status.init_container_statuses];
    let ended = statuses.into_iter().flatten().flatten().filter_map(|one| one.state.terminated.as_ref());
    ended.filter_map(|t| t.finished_at.as_deref()?.parse().ok()).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(metadata: &str, rest: &str) -> Listed {
        let text = format!(r#"{{"kind":"PodList","apiVersion":"v1","items":[{{"metadata":{metadata}{rest}}}]}}"#);
        let (mut pods, next) = read(text.as_bytes()).unwrap();
        assert_eq!((pods.len(), next), (1, None));
        pods.remove(0)
    }

    #[test]
    fn each_kind_of_pod_is_known_as_what_it_is() {
        let plain = one(r#"{"uid":"u-1","name":"web","namespace":"shop"}"#, r#","spec":{"nodeName":"n1"}"#);
        assert_eq!(plain.pod.claim, Claim::Wanted);
        assert_eq!(plain.pod.name, Some(("shop".into(), "web".into())));
        assert!(plain.from_api && plain.node.as_deref() == Some("n1"));

        let leaving = r#"{"uid":"u-1","name":"web","deletionTimestamp":"2026-01-02T03:04:05Z"}"#;
        let leaving = one(leaving, "");
        assert_eq!(leaving.pod.claim, Claim::Terminating);
        assert_eq!(leaving.pod.since.unwrap().to_string(), "2026-01-02T03:04:05Z");

        let status = r#","status":{"phase":"Failed","containerStatuses":[
            {"state":{"terminated":{"finishedAt":"2026-01-02T03:04:05Z"}}},
            {"state":{"terminated":{"finishedAt":"2026-01-02T03:04:06Z"}}}, {"state":{"waiting":{}}}]}"#;
        let failed = one(r#"{"uid":"u-1","name":"job","deletionTimestamp":"2026-01-02T09:00:00Z"}"#, status);
        assert_eq!(failed.pod.claim, Claim::Finished);
        assert_eq!(failed.pod.since.unwrap().to_string(), "2026-01-02T03:04:06Z");
    }

    #[test]
    fn a_mirror_is_its_static_pod_and_is_not_gone_when_it_is_deleted() {
        let mirror = one(
            r#"{"uid":"7d0a1f1e-2b3c-4d5e-8f90-a1b2c3d4e5f6","name":"etcd-n1","namespace":"kube-system",
                "deletionTimestamp":"2026-01-02T03:04:05Z","annotations":{"kubernetes.io/config.source":"file",
                "kubernetes.io/config.mirror":"0b1d9c3e4f5a6b7c8d9e0f1a2b3c4d5e"}}"#,
            "",
        );
        assert_eq!(mirror.pod.uid.as_str(), "0b1d9c3e4f5a6b7c8d9e0f1a2b3c4d5e");
        assert_eq!(mirror.pod.claim, Claim::Wanted);
        assert!(!mirror.from_api);
        let with_own_uid = one(
            r#"{"uid":"7d0a1f1e-2b3c-4d5e-8f90-a1b2c3d4e5f6","name":"etcd-n1",
                "annotations":{"kubernetes.io/config.source":"file"}}"#,
            "",
        );
        assert!(!with_own_uid.from_api);
    }

    #[test]
    fn what_is_not_a_whole_list_is_an_error() {
        let whole = r#"{"kind":"PodList","items":[{"metadata":{"uid":"u-1","name":"web"}}]}"#;
        read(whole.as_bytes()).unwrap();
        for end in 0..whole.len() {
            assert!(read(&whole.as_bytes()[..end]).is_err(), "cut after {end} bytes");
        }
        for wrong in [
            r#"{"kind":"PodList"}"#,
            r#"{"items":[]}"#,
            r#"{"kind":"Status","status":"Failure","items":[]}"#,
            r#"{"kind":"PodList","items":{}}"#,
            r#"{"kind":"PodList","items":[{"metadata":{"name":"web"}}]}"#,
            r#"{"kind":"PodList","items":[{"metadata":{"uid":"","name":"web"}}]}"#,
            r#"{"kind":"PodList","items":[{"metadata":{"uid":"../..","name":"web"}}]}"#,
            r#"{"kind":"PodList","items":[null]}"#,
        ] {
            assert!(matches!(read(wrong.as_bytes()), Err(SourceError::Incomplete { .. })), "{wrong}");
        }
        let none = read(br#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":null}"#).unwrap();
        assert_eq!(none, (vec![], None));
        let part = read(br#"{"kind":"PodList","metadata":{"continue":"abc"},"items":[]}"#).unwrap();
        assert_eq!(part, (vec![], Some("abc".into())));
    }
}
