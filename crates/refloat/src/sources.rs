//! Which sources of pods are asked: those that are named, and those that this machine has.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use refloat_node::agent::{Listener, WholeObjects};
use refloat_node::clean::Left;
use refloat_node::{Answers, Asked, Covers, PodSource, SourceError, SourceKind};
use refloat_sources::{ApiServer, ApiServerOptions, Cgroups, Events, Kubelet, KubeletOptions, Runtime, Whole, cri};
use refloat_volume::Problem;
use serde::Serialize;

use crate::cli::{FindSources, SourceArgs};
use crate::config::Settings;
use crate::exit::Failure;
use crate::look::boot_id;

/// Where distributions put the kubelet's root.
const ROOTS: &[&str] = &["/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"];

/// How long a source is waited for, where nobody says.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a source is waited for.
pub(crate) fn patience(args: &SourceArgs) -> Duration {
    args.source_timeout.unwrap_or(PATIENCE)
}

/// An address on the command line.
pub(crate) fn parse_url(text: &str) -> Result<http::Uri, String> {
    let url: http::Uri = text.parse().map_err(|e| format!("{e}"))?;
    match (url.scheme_str(), url.host(), url.path()) {
        (Some("https" | "http"), Some(host), "" | "/") if !host.is_empty() => Ok(url),
        _ => Err("it must be like https://10.0.0.7:10250".into()),
    }
}

/// The sources of pods of this node, besides a folder of manifests.
pub(crate) fn of_this_node(args: &SourceArgs, settings: &Settings) -> Result<Vec<Arc<dyn PodSource>>, Failure> {
    let mut sources: Vec<Arc<dyn PodSource>> = Vec::new();
    if let Some(kubelet) = kubelet(args) {
        sources.push(Arc::new(kubelet));
    }
    if let Some(api_server) = api_server(args)? {
        sources.push(Arc::new(api_server));
    }
    for socket in &args.cri {
        let absolute = std::path::absolute(socket);
        let wrong = |e| format!("cannot make {} absolute: {e}", socket.display());
        sources.push(Arc::new(Runtime::at(absolute.map_err(|e| Failure::usage(wrong(e), "check --cri"))?)));
    }
    let found = |which| args.sources.contains(&which);
    let auto = args.sources.is_empty() || found(FindSources::Auto);
    if found(FindSources::None) && args.sources.len() > 1 {
        return Err(Failure::usage("--sources none excludes all others", "leave none away"));
    }
    // Whoever looks at another root on this machine, such as a copy, asks about other pods.
    let is_usual = ROOTS.iter().any(|root| settings.root_dir == Path::new(root));
    if found(FindSources::Cgroups) || auto && (is_usual || !sources.is_empty()) {
        sources.push(Arc::new(Cgroups::of_this_node()));
    }
    if args.cri.is_empty() {
        let listening = if found(FindSources::Cri) {
            let all = if is_usual { cri::sockets(&settings.root_dir) } else { cri::all_sockets() };
            if all.is_empty() {
                let message = "--sources cri: no container runtime listens where one usually does";
                return Err(Failure::usage(message, "name its socket with --cri"));
            }
            all
        } else if auto && is_usual {
            cri::sockets(&settings.root_dir)
        } else {
            vec![]
        };
        sources.extend(listening.into_iter().map(|socket| Arc::new(Runtime::found(socket)) as Arc<dyn PodSource>));
    }
    Ok(sources)
}

/// Who of them knows pods, claims and volumes whole, if anybody does.
pub(crate) fn objects(args: &SourceArgs) -> Result<Option<Box<dyn WholeObjects>>, Failure> {
    let (kubelet, api_server) = (kubelet(args), api_server(args)?);
    let some = kubelet.is_some() || api_server.is_some();
    Ok(some.then(|| Box::new(Whole::new(kubelet, api_server, patience(args))) as Box<dyn WholeObjects>))
}

/// What is attached to this node, for who has to prove that nothing is: as the API server says, if one is named. One that cannot be
/// asked proves nothing, and that is told as if something was.
pub(crate) fn attachments(args: &SourceArgs) -> Result<Vec<Left>, Failure> {
    let Some(api_server) = api_server(args)? else { return Ok(vec![]) };
    let left = |path: String, what| Left { kind: "Attachment", path: path.into(), what };
    Ok(match api_server.attached(Instant::now() + patience(args)) {
        Ok(attached) => attached.into_iter().map(|one| left(one.device_path, one.name)).collect(),
        Err(error) => {
            let what = format!("the {} cannot be asked what is attached: {}", api_server.name(), error.text());
            vec![left(String::new(), what)]
        }
    })
}

/// Who is told of orphans besides the log: the API server, if one is named.
pub(crate) fn listener(args: &SourceArgs) -> Result<Option<Box<dyn Listener>>, Failure> {
    let Some(api_server) = api_server(args)? else { return Ok(None) };
    let events = Events::start(api_server, patience(args)).context("cannot start a thread for events")?;
    Ok(Some(Box::new(events)))
}

fn kubelet(args: &SourceArgs) -> Option<Kubelet> {
    let certificate = args.kubelet_certificate.clone().zip(args.kubelet_key.clone());
    Some(Kubelet::new(KubeletOptions {
        url: args.kubelet.clone()?,
        token_file: args.kubelet_token_file.clone(),
        certificate,
        ca: args.kubelet_ca.clone(),
        server_name: args.kubelet_server_name.clone(),
        insecure: args.kubelet_insecure,
    }))
}

fn api_server(args: &SourceArgs) -> Result<Option<ApiServer>, Failure> {
    let Some(node_name) = args.node_name.clone() else { return Ok(None) };
    let (kubeconfig, boot_id) = (args.kubeconfig.clone(), boot_id()?);
    Ok(Some(ApiServer::new(ApiServerOptions { kubeconfig, node_name, boot_id })))
}

/// The sources of pods of a node that was saved: there are none. Nobody on this machine is asked about another.
pub(crate) fn of_another_node(args: &SourceArgs) -> Result<Vec<Arc<dyn PodSource>>, Failure> {
    let named = [
        ("--kubelet", args.kubelet.is_some()),
        ("--node-name", args.node_name.is_some()),
        ("--cri", !args.cri.is_empty()),
    ];
    match named.iter().find(|(_, given)| *given) {
        Some((flag, _)) => {
            let message = format!("{flag} asks for what runs now, and --mountinfo is about a node that was saved");
            Err(Failure::usage(message, "name a folder of manifests with --manifests, or leave one of the two away"))
        }
        None => Ok(vec![]),
    }
}

/// A source as it is printed.
#[derive(Debug, Serialize)]
pub(crate) struct SourceOut {
    /// Its name.
    pub(crate) name: String,
    kind: &'static str,
    /// `Answered` or `Failed`.
    pub(crate) state: &'static str,
    /// How many pods it has; null if it did not answer.
    pub(crate) pods: Option<usize>,
    /// What went wrong, or why its answer says less than it could.
    pub(crate) message: Option<String>,
}

impl SourceOut {
    /// In a few words.
    pub(crate) fn text(&self) -> String {
        match self.pods {
            Some(1) => format!("{} (1 pod)", self.name),
            Some(pods) => format!("{} ({pods} pods)", self.name),
            None => format!("{} (no answer)", self.name),
        }
    }
}

/// Whoever was asked, as it is printed.
pub(crate) fn printed(answers: Option<&Answers>) -> Vec<SourceOut> {
    answers.iter().flat_map(|answers| &answers.asked).map(source_out).collect()
}

fn source_out(asked: &Asked) -> SourceOut {
    let kind = match asked.kind {
        SourceKind::Manifests => "Manifests",
        SourceKind::Kubelet => "Kubelet",
        SourceKind::ApiServer => "ApiServer",
        SourceKind::Runtime => "Runtime",
        SourceKind::Cgroup => "Cgroup",
    };
    let (state, pods, message) = match &asked.outcome {
        Ok(answer) => ("Answered", Some(answer.pods().count()), less(asked.kind, answer.covers).map(str::to_owned)),
        Err(error) => ("Failed", None, Some(error.text())),
    };
    // Which pods a folder of manifests has is told apart.
    let pods = pods.filter(|_| asked.kind != SourceKind::Manifests);
    SourceOut { name: asked.name.clone(), kind, state, pods, message }
}

/// Why a source's silence about a pod says less than it could.
fn less(kind: SourceKind, covers: Covers) -> Option<&'static str> {
    match (kind, covers) {
        (_, Covers::Every) | (SourceKind::ApiServer, Covers::FromApi) => None,
        (SourceKind::Cgroup, _) => {
            Some("no kubelet's cgroups are to be seen here, so it cannot tell that nothing runs")
        }
        (SourceKind::Kubelet, _) => Some(
            "it lists no pod of the API server's and may not have heard from it yet, so it tells of static pods alone",
        ),
        (SourceKind::Runtime, _) => Some("it runs no pods of a kubelet's: it does not speak the runtime interface"),
        _ => Some("it cannot tell of every pod that it is gone"),
    }
}

/// A problem for each source that gave no answer.
pub(crate) fn problems(answers: Option<&Answers>) -> impl Iterator<Item = Problem> {
    let asked = answers.into_iter().flat_map(|answers| &answers.asked);
    asked.filter(|asked| asked.kind != SourceKind::Manifests).filter_map(|asked| {
        let error = asked.outcome.as_ref().err()?;
        Some(Problem::new("SourceFailed", format!("{}: {}", asked.name, error.text()), hint(asked.kind, error)))
    })
}

fn hint(kind: SourceKind, error: &SourceError) -> String {
    let what = match (kind, error) {
        (_, SourceError::Status { hint: Some(hint), .. }) => hint,
        (SourceKind::Kubelet, SourceError::Untrusted { .. }) => {
            "name its CA with --kubelet-ca (of its own making: /var/lib/kubelet/pki/kubelet.crt), and with \
             --kubelet-server-name the name in it"
        }
        (_, SourceError::Deadline(_)) => "--source-timeout waits longer",
        (SourceKind::Kubelet, _) => "look whether the kubelet runs, and at --kubelet and its other flags",
        (SourceKind::ApiServer, _) => "look at --kubeconfig and --node-name, and at the way to the API server",
        (SourceKind::Runtime, _) => "look whether the container runtime runs; --sources leaves it out",
        (SourceKind::Cgroup, _) => "run it as root, in the node's own namespaces; --sources none leaves it out",
        (SourceKind::Manifests, _) => "look at --manifests",
    };
    format!("until it answers, no pod is known to be gone; {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_servers() {
        for good in ["https://10.0.0.7:10250", "https://[::1]:10250/", "http://node:10255"] {
            parse_url(good).unwrap();
        }
        for bad in ["10.0.0.7:10250", "https://10.0.0.7:10250/pods", "ftp://10.0.0.7", "https://", "/pods", ""] {
            assert!(parse_url(bad).is_err(), "{bad}");
        }
    }
}
