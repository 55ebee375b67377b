//! Each source against a real server, and each way in which a server fails: none of them may read as "no such pod".

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use refloat_node::{Answer, Claim, Covers, PodSource, SourceError};
use refloat_record::{BootId, PodUid};
use refloat_sources::{ApiServer, ApiServerOptions, Kubelet, KubeletOptions, Runtime};
use refloat_test_pod_sources::{Https, Mood, Reply, Request, RuntimeServer, State, pb, pod, pod_list};

const UID: &str = "7d0a1f1e-2b3c-4d5e-8f90-a1b2c3d4e5f6";
const OTHER: &str = "11111111-2b3c-4d5e-8f90-a1b2c3d4e5f6";
const STATIC: &str = "0b1d9c3e4f5a6b7c8d9e0f1a2b3c4d5e";
const BOOT: &str = "3f1b2c4d-0000-4000-8000-000000000001";

fn ask_for(source: &dyn PodSource, patience: Duration) -> Result<Answer, SourceError> {
    source.ask(Instant::now() + patience)
}

fn ask(source: &dyn PodSource) -> Result<Answer, SourceError> {
    ask_for(source, Duration::from_secs(60))
}

fn uids(answer: &Answer) -> Vec<&str> {
    answer.pods().map(|pod| pod.uid.as_str()).collect()
}

fn static_pod() -> String {
    format!(
        r#"{{"metadata":{{"uid":"{STATIC}","namespace":"kube-system","name":"etcd-n1",
            "annotations":{{"kubernetes.io/config.source":"file","kubernetes.io/config.hash":"{STATIC}"}}}}}}"#
    )
}

// ── kubelet ──────────────────────────────────────────────────────────────────────────────────────────────────────────

fn kubelet(server: &Https) -> KubeletOptions {
    KubeletOptions {
        url: server.url().parse().unwrap(),
        token_file: Some(server.file("token")),
        ca: Some(server.file("ca.crt")),
        ..KubeletOptions::default()
    }
}

fn with_pods(list: String) -> impl Fn(&Request) -> Reply {
    move |request| match request.path.as_str() {
        "/pods" => Reply::Answer(200, list.clone()),
        _ => Reply::Answer(404, "404 page not found".into()),
    }
}

#[test]
fn a_kubelet_is_asked_with_a_token_and_tells_of_all() {
    let server = Https::start(with_pods(pod_list(&[pod(UID, "shop", "web", "n1"), static_pod()])));
    let source = Kubelet::new(kubelet(&server));
    let answer = ask(&source).unwrap();
    assert_eq!(uids(&answer), [STATIC, UID]);
    assert_eq!(answer.covers, Covers::Every);
    let web = answer.get(&PodUid::new(UID).unwrap()).unwrap();
    assert_eq!((web.claim, web.name.clone()), (Claim::Wanted, Some(("shop".into(), "web".into()))));
    let asked = server.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].authorization.as_deref(), Some("Bearer the-token"));
    assert!(!source.name().contains("the-token") && !format!("{source:?}").contains("the-token"));
}

#[test]
fn a_kubelet_is_asked_with_a_client_certificate() {
    let server = Https::start(|request| {
        if request.has_certificate { with_pods(pod_list(&[pod(UID, "a", "b", "n")]))(request) } else { Reply::Hang }
    });
    let certificate = Some((server.file("client.crt"), server.file("client.key")));
    let answer = ask(&Kubelet::new(KubeletOptions { token_file: None, certificate, ..kubelet(&server) })).unwrap();
    assert_eq!(uids(&answer), [UID]);
}

#[test]
fn a_kubelet_that_lists_nothing_of_the_api_servers_tells_of_static_pods_alone() {
    for list in [pod_list(&[]), r#"{"kind":"PodList","items":null}"#.into(), pod_list(&[static_pod()])] {
        let server = Https::start(with_pods(list));
        let answer = ask(&Kubelet::new(kubelet(&server))).unwrap();
        assert_eq!(answer.covers, Covers::Static);
    }
}

#[test]
fn a_certificate_must_be_trusted_unless_any_will_do() {
    let server = Https::start(with_pods(pod_list(&[pod(UID, "a", "b", "n")])));
    let other = Https::start(|_| Reply::Hang);
    for options in [
        KubeletOptions { ca: Some(other.file("ca.crt")), ..kubelet(&server) },
        KubeletOptions { ca: None, ..kubelet(&server) },
        KubeletOptions { server_name: Some("node-1".into()), ..kubelet(&server) },
    ] {
        let error = ask(&Kubelet::new(options)).unwrap_err();
        assert!(matches!(error, SourceError::Untrusted { .. }), "{error:?}");
    }
    assert!(server.asked().is_empty(), "the token was shown to one that is not trusted");
    ask(&Kubelet::new(KubeletOptions { ca: None, insecure: true, ..kubelet(&server) })).unwrap();
    ask(&Kubelet::new(KubeletOptions { server_name: Some("localhost".into()), ..kubelet(&server) })).unwrap();
}

type Is = fn(&SourceError) -> bool;

#[test]
fn whatever_a_kubelet_gets_wrong_is_an_error() {
    let whole = pod_list(&[pod(UID, "shop", "web", "n1")]);
    let cut = whole[..whole.len() - 20].to_owned();
    let empty = pod_list(&[]);
    let cases: [(&str, Reply, Is); 9] = [
        ("401", Reply::Answer(401, "Unauthorized".into()), |e| matches!(e, SourceError::Status { status: 401, .. })),
        (
            "403",
            Reply::Answer(403, "Forbidden (user=x)\nmore".into()),
            |e| matches!(e, SourceError::Status { status: 403, hint: Some(hint), what } if hint.contains("nodes/pods") && what == "Forbidden (user=x)"),
        ),
        ("500", Reply::Answer(500, String::new()), |e| matches!(e, SourceError::Status { status: 500, .. })),
        ("302", Reply::Answer(302, empty.clone()), |e| matches!(e, SourceError::Status { status: 302, .. })),
        ("cut", Reply::Answer(200, cut.clone()), |e| matches!(e, SourceError::Incomplete { .. })),
        ("another kind", Reply::Answer(200, r#"{"kind":"Status"}"#.into()), |e| {
            matches!(e, SourceError::Incomplete { .. })
        }),
        ("torn, and the part is a whole list", Reply::Torn(empty.clone()), |e| matches!(e, SourceError::Failed { .. })),
        ("torn between chunks", Reply::TornChunk(empty), |e| matches!(e, SourceError::Failed { .. })),
        ("a part", Reply::Answer(200, r#"{"kind":"PodList","metadata":{"continue":"x"},"items":[]}"#.into()), |e| {
            matches!(e, SourceError::Incomplete { .. })
        }),
    ];
    for (name, reply, is) in cases {
        let server = Https::start(move |_| reply.clone());
        let error = ask(&Kubelet::new(kubelet(&server))).unwrap_err();
        assert!(is(&error), "{name}: {error:?}");
        assert!(!error.text().contains("the-token"), "{name}");
    }
}

#[test]
fn a_kubelet_that_hangs_is_left_at_the_deadline() {
    let server = Https::start(|_| Reply::Hang);
    let start = Instant::now();
    let error = ask_for(&Kubelet::new(kubelet(&server)), Duration::from_millis(500)).unwrap_err();
    assert!(matches!(error, SourceError::Deadline(_)), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_kubelet_of_another_machine_and_files_that_are_not_there_are_errors() {
    // Of TEST-NET-1, which no machine has.
    let url = "https://192.0.2.1:10250".parse().unwrap();
    let error = ask(&Kubelet::new(KubeletOptions { url, ..KubeletOptions::default() })).unwrap_err();
    assert!(
        matches!(&error, SourceError::Incomplete { why } if why.contains("no address of this machine")),
        "{error:?}"
    );
    let server = Https::start(with_pods(pod_list(&[])));
    let absent = Some("/absent/file".into());
    for options in [
        KubeletOptions { token_file: absent.clone(), ..kubelet(&server) },
        KubeletOptions { ca: absent.clone(), ..kubelet(&server) },
        KubeletOptions { ca: Some(server.file("token")), ..kubelet(&server) },
        KubeletOptions { certificate: absent.clone().zip(absent), ..kubelet(&server) },
    ] {
        let error = ask(&Kubelet::new(options)).unwrap_err();
        assert!(matches!(error, SourceError::Failed { .. }), "{error:?}");
    }
    let closed = server.url();
    drop(server);
    let options = KubeletOptions { url: closed.parse().unwrap(), insecure: true, ..KubeletOptions::default() };
    assert!(matches!(ask(&Kubelet::new(options)).unwrap_err(), SourceError::Failed { .. }));
}

// ── API server ───────────────────────────────────────────────────────────────────────────────────────────────────────

fn api(server: &Https) -> ApiServer {
    let boot_id = BootId::new(BOOT).unwrap();
    ApiServer::new(ApiServerOptions { kubeconfig: Some(server.kubeconfig()), node_name: "n1".into(), boot_id })
}

fn node(boot: &str) -> Reply {
    Reply::Answer(200, format!(r#"{{"kind":"Node","status":{{"nodeInfo":{{"bootID":"{boot}"}}}}}}"#))
}

/// Answers as an API server does to a request for the node, and as `list` says to one for pods.
fn cluster(list: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Https {
    Https::start(move |request| match request.path.as_str() {
        "/api/v1/nodes/n1" => node(BOOT),
        path => match path.strip_prefix("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&limit=500") {
            Some(rest) => list(rest),
            None => Reply::Answer(404, format!("no such path {path}")),
        },
    })
}

fn part(pods: &[String], next: &str) -> Reply {
    let list =
        pod_list(pods).replace(r#""metadata":{},"items""#, &format!(r#""metadata":{{"continue":"{next}"}},"items""#));
    Reply::Answer(200, list)
}

#[test]
fn an_api_server_is_asked_for_all_parts_of_the_list() {
    let mirror = format!(
        r#"{{"metadata":{{"uid":"{OTHER}","name":"etcd-n1","annotations":{{"kubernetes.io/config.mirror":"{STATIC}"}}}},
            "spec":{{"nodeName":"n1"}}}}"#
    );
    let server = cluster(move |rest| match rest {
        "" => part(&[pod(UID, "shop", "web", "n1")], "a/b=="),
        "&continue=a%2Fb%3D%3D" => part(std::slice::from_ref(&mirror), ""),
        _ => Reply::Answer(400, rest.into()),
    });
    let answer = ask(&api(&server)).unwrap();
    assert_eq!(uids(&answer), [STATIC, UID]);
    assert_eq!(answer.covers, Covers::FromApi);
    assert!(server.asked().iter().all(|request| request.has_certificate));
}

#[test]
fn a_list_that_grew_too_old_is_begun_anew() {
    let count = AtomicUsize::new(0);
    let server = cluster(move |rest| match (rest, count.fetch_add(1, Ordering::SeqCst)) {
        ("", _) => part(&[pod(UID, "shop", "web", "n1")], "x"),
        (_, 1) => Reply::Answer(410, r#"{"kind":"Status","code":410}"#.into()),
        _ => part(&[pod(OTHER, "shop", "db", "n1")], ""),
    });
    assert_eq!(uids(&ask(&api(&server)).unwrap()), [OTHER, UID]);
    let server = cluster(|rest| if rest.is_empty() { part(&[], "x") } else { Reply::Answer(410, String::new()) });
    assert!(matches!(ask(&api(&server)).unwrap_err(), SourceError::Incomplete { .. }));
}

#[test]
fn another_nodes_list_is_not_taken_for_this_ones() {
    for reply in [
        node("99999999-0000-4000-8000-000000000001"),
        node(""),
        Reply::Answer(200, r#"{"kind":"Node","status":{}}"#.into()),
        Reply::Answer(404, r#"{"kind":"Status","message":"nodes \"n1\" not found"}"#.into()),
        Reply::Answer(403, r#"{"kind":"Status","message":"nodes \"n1\" is forbidden"}"#.into()),
    ] {
        let server = Https::start(move |request| {
            if request.path.contains("/nodes/") { reply.clone() } else { Reply::Answer(200, pod_list(&[])) }
        });
        let error = ask(&api(&server)).unwrap_err();
        assert!(matches!(error, SourceError::Incomplete { .. } | SourceError::Status { .. }), "{error:?}");
    }
    let stray = cluster(|_| Reply::Answer(200, pod_list(&[pod(UID, "shop", "web", "n2")])));
    assert!(matches!(ask(&api(&stray)).unwrap_err(), SourceError::Incomplete { .. }));
}

#[test]
fn whatever_an_api_server_gets_wrong_is_an_error() {
    let whole = pod_list(&[pod(UID, "shop", "web", "n1")]);
    let torn = cluster(move |rest| match rest {
        "" => part(&[], "x"),
        _ => Reply::Torn(whole.clone()),
    });
    assert!(matches!(ask(&api(&torn)).unwrap_err(), SourceError::Failed { .. }));
    let refused = cluster(|_| Reply::Answer(403, r#"{"kind":"Status","message":"pods is forbidden"}"#.into()));
    let error = ask(&api(&refused)).unwrap_err();
    assert!(matches!(&error, SourceError::Status { status: 403, hint: Some(_), what } if what == "pods is forbidden"));
    let hangs = cluster(|rest| if rest.is_empty() { part(&[], "x") } else { Reply::Hang });
    let error = ask_for(&api(&hangs), Duration::from_millis(700)).unwrap_err();
    assert!(matches!(error, SourceError::Deadline(_)), "{error:?}");
    let boot_id = BootId::new(BOOT).unwrap();
    let kubeconfig = Some("/absent/kubeconfig".into());
    let absent = ApiServer::new(ApiServerOptions { kubeconfig, node_name: "n1".into(), boot_id: boot_id.clone() });
    assert!(matches!(ask(&absent).unwrap_err(), SourceError::Failed { .. }));
    let odd = ApiServer::new(ApiServerOptions { kubeconfig: None, node_name: "n1&limit=1".into(), boot_id });
    assert!(matches!(ask(&odd).unwrap_err(), SourceError::Incomplete { .. }));
}

// ── runtime ──────────────────────────────────────────────────────────────────────────────────────────────────────────

fn runtime(state: State) -> (RuntimeServer, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (RuntimeServer::start(&folder.path().join("cri.sock"), state), folder)
}

#[test]
fn a_runtime_tells_of_pods_of_which_something_runs() {
    let state = State::default()
        .with_pod(UID, "ready", true, true)
        .with_pod(OTHER, "sandbox-died", false, true)
        .with_pod("22222222-2b3c-4d5e-8f90-a1b2c3d4e5f6", "over", false, false)
        .with_pod(STATIC, "static", true, false);
    let (server, _folder) = runtime(state.clone());
    let answer = ask(&Runtime::at(server.socket().into())).unwrap();
    assert_eq!(uids(&answer), [STATIC, OTHER, UID]);
    assert_eq!(answer.covers, Covers::Every);
    assert_eq!(answer.get(&PodUid::new(OTHER).unwrap()).unwrap().name, Some(("test".into(), "sandbox-died".into())));

    // A container whose sandbox is not listed is known by its labels, and is no secret without them.
    let mut orphaned = state;
    orphaned.sandboxes.clear();
    server.set(orphaned.clone());
    assert_eq!(uids(&ask(&Runtime::at(server.socket().into())).unwrap()), [OTHER, UID]);
    orphaned.containers.iter_mut().for_each(|container| container.labels.clear());
    server.set(orphaned);
    assert!(matches!(ask(&Runtime::at(server.socket().into())).unwrap_err(), SourceError::Incomplete { .. }));

    server.set(State::default());
    assert_eq!(ask(&Runtime::at(server.socket().into())).unwrap().pods().count(), 0);
}

#[test]
fn containers_of_unknown_state_count_and_those_that_never_started_do_not() {
    let mut state = State::default().with_pod(UID, "a", false, true);
    for (container_state, known) in [
        (pb::ContainerState::ContainerUnknown as i32, true),
        (pb::ContainerState::ContainerCreated as i32, false),
        (77, true),
    ] {
        state.containers[0].state = container_state;
        let (server, _folder) = runtime(state.clone());
        let answer = ask(&Runtime::at(server.socket().into())).unwrap();
        assert_eq!(answer.pods().count() == 1, known, "{container_state}");
    }
}

#[test]
fn a_runtime_that_fails_hangs_or_is_none_says_nothing() {
    let (server, folder) = runtime(State { mood: Mood::Fails, ..State::default() });
    let socket = server.socket().to_owned();
    let error = ask(&Runtime::at(socket.clone())).unwrap_err();
    assert!(error.text().contains("the store is locked"), "{error:?}");
    server.set(State { mood: Mood::Hangs, ..State::default() });
    let error = ask_for(&Runtime::at(socket.clone()), Duration::from_millis(500)).unwrap_err();
    assert!(matches!(error, SourceError::Deadline(_)), "{error:?}");
    server.set(State { mood: Mood::Other, ..State::default() });
    assert!(matches!(ask(&Runtime::at(socket.clone())).unwrap_err(), SourceError::Incomplete { .. }));
    assert_eq!(ask(&Runtime::found(socket.clone())).unwrap().covers, Covers::Nobody);
    drop(server);
    assert!(matches!(ask(&Runtime::found(socket)).unwrap_err(), SourceError::Failed { .. }));
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file.as_path(), Path::new("/absent/socket")] {
        assert!(
            matches!(ask(&Runtime::at(path.into())).unwrap_err(), SourceError::Failed { .. }),
            "{}",
            path.display()
        );
    }
    // One that accepts and never says a word.
    let silent = folder.path().join("silent.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let error = ask_for(&Runtime::at(silent), Duration::from_millis(500)).unwrap_err();
    assert!(matches!(error, SourceError::Deadline(_)), "{error:?}");
}
