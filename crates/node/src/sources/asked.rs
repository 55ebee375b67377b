//! Sources of pods for a node that something else runs: each is asked on a thread of its own, with a deadline.
//!
//! What they answer is judged by [`Answers::verdict`].

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use refloat_record::PodUid;

/// What kind of source it is, which says what its silence about a pod is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    /// A folder of manifests that the operator named.
    Manifests,
    /// The kubelet's own list.
    Kubelet,
    /// The API server's list of the node's pods.
    ApiServer,
    /// The container runtime: pods that have a running sandbox or container. It never heard of a pod whose volumes are
    /// being mounted, since those come first.
    Runtime,
    /// Cgroups with living processes. An empty one says nothing: the kubelet makes it before the first volume, and
    /// keeps it as long as a volume of the pod is mounted.
    Cgroup,
}

impl SourceKind {
    /// Whether it knows which pods *should* be on the node. The others only know what runs there: they can say that a
    /// pod is wanted, and on their word alone no pod is gone.
    pub fn is_authority(self) -> bool {
        matches!(self, Self::Manifests | Self::Kubelet | Self::ApiServer)
    }

    /// Whether it knows what runs on the node. The API server does not: a pod that was deleted by force is gone there
    /// while its containers run on.
    pub fn sees_the_node(self) -> bool {
        matches!(self, Self::Kubelet | Self::Runtime | Self::Cgroup)
    }
}

/// In what way a source knows a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// It is to run, or runs.
    Wanted,
    /// It is being deleted (it has a `deletionTimestamp`). It is wanted until the kubelet or the runtime has it no more.
    Terminating,
    /// It ran to its end (phase `Succeeded` or `Failed`). The kubelet unmounts the volumes of such a pod.
    Finished,
}

/// A pod that a source knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPod {
    /// The uid that its folder is named by. For a static pod this is its hash, not the uid of its mirror.
    pub uid: PodUid,
    /// Namespace and name, where the source tells them.
    pub name: Option<(String, String)>,
    /// How it is known.
    pub claim: Claim,
    /// Since when it has been finished or terminating, where the source tells.
    pub since: Option<Timestamp>,
}

/// Of which pods a whole answer can say that they are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Covers {
    /// Of all.
    Every,
    /// Of those that came from the API server. A static pod is there only by its mirror, which may be missing.
    FromApi,
    /// Of those that did not: a kubelet that lists nothing from the API server may not have heard from it yet.
    Static,
    /// Of none: it is not known to see where pods would be. What it knows of others counts.
    Nobody,
}

impl Covers {
    /// Whether it can tell that this pod is not there.
    pub fn covers(self, pod: &PodUid) -> bool {
        match self {
            Self::Every => true,
            Self::FromApi => !is_static_uid(pod),
            Self::Static => is_static_uid(pod),
            Self::Nobody => false,
        }
    }
}

/// Whether a uid was made by the kubelet from a static pod's manifest, not by the API server.
///
/// # Source
/// `applyDefaults` in `pkg/kubelet/config/common.go`: a hash of 128 bits in hexadecimal, without dashes. API servers give UUIDs.
pub fn is_static_uid(pod: &PodUid) -> bool {
    let text = pod.as_str().as_bytes();
    let dash = |i: usize| matches!(i, 8 | 13 | 18 | 23);
    let uuid = text.len() == 36
        && text.iter().enumerate().all(|(i, b)| if dash(i) { *b == b'-' } else { b.is_ascii_hexdigit() });
    !uuid
}

/// All pods that a source knows. A source that cannot tell all gives an error instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The pods.
    pods: BTreeMap<PodUid, KnownPod>,
    /// Of which other pods it says that they are not there.
    pub covers: Covers,
    /// When the question was sent: the answer is no older.
    pub asked_at: Timestamp,
}

impl Answer {
    /// An answer without pods.
    pub fn new(covers: Covers, asked_at: Timestamp) -> Self {
        Self { pods: BTreeMap::new(), covers, asked_at }
    }

    /// Adds a pod. Of two claims on one pod the stronger stays.
    pub fn insert(&mut self, pod: KnownPod) {
        match self.pods.entry(pod.uid.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(pod);
            }
            Entry::Occupied(mut entry) => {
                let name = entry.get().name.clone().or_else(|| pod.name.clone());
                if pod.claim < entry.get().claim {
                    entry.insert(pod);
                }
                entry.get_mut().name = name;
            }
        }
    }

    /// Adds pods.
    pub fn extend(&mut self, pods: impl IntoIterator<Item = KnownPod>) {
        for pod in pods {
            self.insert(pod);
        }
    }

    /// What it knows of a pod.
    pub fn get(&self, pod: &PodUid) -> Option<&KnownPod> {
        self.pods.get(pod)
    }

    /// All pods that it knows, by uid.
    pub fn pods(&self) -> impl Iterator<Item = &KnownPod> {
        self.pods.values()
    }
}

/// Why a source gave no answer that can be relied on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// It did not answer in time.
    #[error("it did not answer within {:.1} s", .0.as_secs_f64())]
    Deadline(Duration),
    /// Something on the way failed.
    #[error("{doing} failed")]
    Failed {
        /// What was being done, with the path or address.
        doing: String,
        /// What failed.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// It answered with an HTTP status other than 200.
    #[error("it answered {status}{}", if what.is_empty() { String::new() } else { format!(": {what}") })]
    Status {
        /// The status.
        status: u16,
        /// What it said, in one line.
        what: String,
        /// What to do about it, where that can be told.
        hint: Option<&'static str>,
    },
    /// It did not show a certificate that is trusted.
    #[error("its certificate is not trusted: {why}")]
    Untrusted {
        /// What is wrong with it.
        why: String,
    },
    /// It answered, and not with all.
    #[error("its answer is not to be relied on: {why}")]
    Incomplete {
        /// What is missing or wrong.
        why: String,
    },
    /// The thread that asked it ended without an answer, which is a bug.
    #[error("the thread that asked it stopped")]
    Stopped,
}

impl SourceError {
    /// A [`SourceError::Failed`].
    pub fn failed(doing: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed { doing: doing.into(), source: source.into() }
    }

    /// A [`SourceError::Incomplete`].
    pub fn incomplete(why: impl Into<String>) -> Self {
        Self::Incomplete { why: why.into() }
    }

    /// The error and all its causes in one line.
    pub fn text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

/// One that knows pods of this node.
pub trait PodSource: Send + Sync {
    /// What it is called in the output, such as `kubelet at https://127.0.0.1:10250`. Never with a secret.
    fn name(&self) -> String;

    /// What kind it is.
    fn kind(&self) -> SourceKind;

    /// Asks it for all its pods. Should end by `deadline`; is not waited for any longer.
    fn ask(&self, deadline: Instant) -> Result<Answer, SourceError>;
}

/// A source that was asked, and what came of it.
#[derive(Debug)]
pub struct Asked {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: SourceKind,
    /// What it answered.
    pub outcome: Result<Answer, SourceError>,
}

/// What all sources answered.
#[derive(Debug, Default)]
pub struct Answers {
    /// In the order in which they were named.
    pub asked: Vec<Asked>,
}

/// Asks all sources at once and waits for them no longer than `patience`.
///
/// The thread of one that hangs is left behind: what it asks cannot be called off.
pub fn ask_all(sources: &[Arc<dyn PodSource>], patience: Duration) -> Answers {
    let deadline = Instant::now() + patience;
    let waiting: Vec<_> = sources
        .iter()
        .map(|source| {
            let (send, receive) = mpsc::sync_channel(1);
            let asking = Arc::clone(source);
            let thread = std::thread::Builder::new().name("pods".into()).spawn(move || {
                // Nobody listens any more when it was too late.
                let _ = send.send(asking.ask(deadline));
            });
            (source, thread.map(|_| receive))
        })
        .collect();
    let asked = waiting.into_iter().map(|(source, receive)| {
        let outcome = match receive {
            Err(error) => Err(SourceError::failed("starting a thread for it", error)),
            Ok(receive) => match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(outcome) => outcome,
                Err(mpsc::RecvTimeoutError::Timeout) => Err(SourceError::Deadline(patience)),
                Err(mpsc::RecvTimeoutError::Disconnected) => Err(SourceError::Stopped),
            },
        };
        Asked { name: source.name(), kind: source.kind(), outcome }
    });
    Answers { asked: asked.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sleeps(Duration);

    impl PodSource for Sleeps {
        fn name(&self) -> String {
            format!("sleeps {:?}", self.0)
        }

        fn kind(&self) -> SourceKind {
            SourceKind::Kubelet
        }

        fn ask(&self, _: Instant) -> Result<Answer, SourceError> {
            std::thread::sleep(self.0);
            assert!(!self.0.is_zero(), "the one that panics");
            Ok(Answer::new(Covers::Every, Timestamp::now()))
        }
    }

    #[test]
    fn one_that_hangs_or_panics_holds_up_nobody() {
        let sources = [3600, 1, 0].map(|s| {
            let time = if s == 1 { Duration::from_millis(1) } else { Duration::from_secs(s) };
            Arc::new(Sleeps(time)) as Arc<dyn PodSource>
        });
        let start = Instant::now();
        let answers = ask_all(&sources, Duration::from_secs(5));
        assert!(start.elapsed() < Duration::from_secs(30));
        let outcomes: Vec<_> = answers.asked.iter().map(|a| &a.outcome).collect();
        assert!(
            matches!(outcomes[..], [Err(SourceError::Deadline(_)), Ok(_), Err(SourceError::Stopped)]),
            "{outcomes:?}"
        );
    }

    #[test]
    fn static_uids_are_told_from_those_of_an_api_server() {
        let uid = |text: &str| PodUid::new(text).unwrap();
        assert!(is_static_uid(&uid("0b1d9c3e4f5a6b7c8d9e0f1a2b3c4d5e")));
        assert!(is_static_uid(&uid("my-own-uid")));
        assert!(!is_static_uid(&uid("7d0a1f1e-2b3c-4d5e-8f90-a1b2c3d4e5f6")));
    }

    #[test]
    fn an_error_tells_its_causes_once() {
        let error = SourceError::failed("reading /x", std::io::Error::other("no disk"));
        assert_eq!(error.text(), "reading /x failed: no disk");
    }
}
