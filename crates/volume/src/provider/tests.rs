//! Providers that are real programs and sockets.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;

use refloat_record::{
    BootId, PodRef, PodUid, PodVolume, ProviderAnswer, RelPath, SpecName, UniqueVolumeName, VolumeMode,
};

use super::answer::MAX_INFO;
use super::*;

fn record(providers: &[(&str, &str)]) -> Record {
    let boot_id = BootId::new("b1").unwrap();
    let answer = |info: &str| ProviderAnswer {
        boot_id: boot_id.clone(),
        mount_id: None,
        provider_info: Some(Verbatim::from_text(info.into()).unwrap()),
    };
    Record::PodVolume(PodVolume {
        pod: PodRef { uid: PodUid::new("u1").unwrap(), namespace: "n".into(), name: "p".into() },
        volume_names: vec![],
        spec_name: SpecName::new("v").unwrap(),
        plugin: PluginName::new("kubernetes.io/nfs").unwrap(),
        unique_name: UniqueVolumeName::new("x/y").unwrap(),
        mode: VolumeMode::Filesystem,
        read_only: false,
        mount_options: vec![],
        fs_group: None,
        selinux_label: None,
        volume: Verbatim::from_text(r#"{"name":"v","nfs":{"server":"s","path":"/p"}}"#.into()).unwrap(),
        persistent_volume: None,
        claim: None,
        path: Some(RelPath::new("pods/u1/volumes/kubernetes.io~nfs/v").unwrap()),
        host_path: None,
        device_mount_path: None,
        mount: None,
        block: None,
        sub_paths: vec![],
        confirmed: false,
        boot_id: boot_id.clone(),
        provider_info: None,
        providers: providers.iter().map(|(name, info)| ((*name).to_owned(), answer(info))).collect(),
        lost: vec![],
    })
}

/// A provider with this script, asked with one second of patience.
fn program(folder: &Path, script: &str) -> Providers {
    // Not itself executed, so that nobody meets it while another thread's child holds it open for writing.
    std::fs::write(folder.join("script"), script).unwrap();
    let manifest = json!({
        "kind": "Provider", "apiVersions": [API_VERSION], "exec": ["/bin/sh", folder.join("script")], "plugins": ["*"],
        "deadlineSeconds": 1,
    });
    std::fs::write(folder.join("one.json"), manifest.to_string()).unwrap();
    let providers = Providers::new(Some(folder.to_owned()));
    assert!(providers.problems().is_empty(), "{:?}", providers.problems());
    providers
}

fn ask(
    providers: &Providers,
    call: ProviderCall,
    record: &Record,
    secrets: &Secrets,
) -> Result<Option<Verbatim>, ProviderError> {
    let boot_id = BootId::new("b2").unwrap();
    let request = ProviderRequest { call, root: Path::new("/r"), boot_id: &boot_id, record, secrets: Some(secrets) };
    providers.ask(&providers.list()[0], &request)
}

fn asked(script: &str, secrets: &[&str]) -> (Result<Option<Verbatim>, ProviderError>, Providers) {
    let folder = tempfile::tempdir().unwrap();
    let providers = program(folder.path(), script);
    let secrets = secrets.iter().map(|secret| ((*secret).to_owned(), (*secret).to_owned())).collect();
    (ask(&providers, ProviderCall::SetUp, &record(&[]), &Secrets::new(secrets)), providers)
}

fn code(asked: Result<Option<Verbatim>, ProviderError>) -> &'static str {
    asked.unwrap_err().words().0
}

#[test]
fn a_program_is_given_the_record_and_its_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        r#"cat > {}/request; echo "{{\"apiVersion\":\"{API_VERSION}\",\"status\":\"Success\",\"providerInfo\":{{\"call\":\"$1\"}}}}""#,
        folder.path().display()
    );
    let providers = program(folder.path(), &script);
    let record = record(&[("one", r#"{"id":1.0}"#), ("other", r#"{"of":"another"}"#)]);
    let info = ask(&providers, ProviderCall::Reconnect, &record, &Secrets::default()).unwrap().unwrap();
    assert_eq!(info.get(), r#"{"call":"reconnect"}"#);
    let request: Value = serde_json::from_slice(&std::fs::read(folder.path().join("request")).unwrap()).unwrap();
    assert_eq!(request["apiVersion"], API_VERSION);
    assert_eq!(request["call"], "reconnect");
    assert_eq!(request["path"], "/r/pods/u1/volumes/kubernetes.io~nfs/v");
    assert_eq!(request["bootID"], "b2");
    assert_eq!(request["providerInfo"], json!({"id": 1.0}));
    assert_eq!(request["record"]["apiVersion"], "volume.refloat.dev/v1");
    assert_eq!(request["record"]["volume"]["nfs"]["server"], "s");
    assert!(!request.to_string().contains("another") && request["record"].get("checksum").is_none(), "{request:#}");
}

#[test]
fn answers_are_judged() {
    let answer = |status: &str, more: &str| {
        let text = format!(r#"{{"apiVersion":"{API_VERSION}","status":"{status}"{more}}}"#);
        asked(&format!("cat >/dev/null; printf '%s' '{text}'"), &[]).0
    };
    assert_eq!(answer("Success", "").unwrap(), None);
    assert_eq!(answer("Success", r#","providerInfo":null"#).unwrap(), None);
    assert_eq!(answer("Not supported", r#","providerInfo":{"a":1}"#).unwrap(), None);
    let error = answer("Failure", r#","message":"the export \u001b[31mmoved""#).unwrap_err();
    assert!(
        error.is_of_volume() && !error.to_string().contains('\u{1b}') && error.to_string().contains("moved"),
        "{error}"
    );
    assert_eq!(code(answer("Success", r#","providerInfo":[1]"#)), "ProviderFailed");
    let large = format!(r#","providerInfo":{{"a":"{}"}}"#, "x".repeat(MAX_INFO));
    assert_eq!(code(answer("Success", &large)), "ProviderFailed");
    assert_eq!(code(answer("Maybe", "")), "ProviderFailed");
}

#[test]
fn nonsense_is_named_and_not_shown() {
    for script in [
        "echo hunter2",
        "exit 3",
        "kill -9 $$",
        "echo '[]'",
        "echo '{}'",
        r#"echo '{"apiVersion":"provider.refloat.dev/v1"}'"#,
        r#"echo '{"apiVersion":"provider.refloat.dev/v1","status":"Success"}'; exit 1"#,
        r#"echo '{"apiVersion":"provider.refloat.dev/v1","status":"Success"} hunter2'"#,
        "head -c 1000000 /dev/zero",
    ] {
        let (answered, providers) = asked(script, &[]);
        let error = answered.unwrap_err();
        assert_eq!(error.words().0, "ProviderFailed", "{script}: {error}");
        assert!(!error.to_string().contains("hunter2") && error.to_string().len() < 200, "{error}");
        // It is left alone for a while, and told once.
        assert_eq!(providers.problems().len(), 1);
        assert!(providers.resting()["one"] > Instant::now());
    }
    let (answered, _) = asked(r#"echo '{"apiVersion":"provider.refloat.dev/v2","status":"Success"}'"#, &[]);
    assert_eq!(code(answered), "ProviderVersionUnknown");
}

#[test]
fn one_that_hangs_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let providers = program(folder.path(), &format!("sleep 1000 & echo $! > {}; wait", pid.display()));
    let begun = Instant::now();
    let error = ask(&providers, ProviderCall::SetUp, &record(&[]), &Secrets::default()).unwrap_err();
    assert_eq!(error.words().0, "ProviderTimeout");
    assert!(error.to_string().contains("was killed") && begun.elapsed() < Duration::from_secs(10), "{error}");
    let pid = std::fs::read_to_string(pid).unwrap().trim().to_owned();
    let patience = Instant::now() + Duration::from_secs(20);
    while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|line| !line.contains(") Z")) {
        assert!(Instant::now() < patience);
        std::thread::sleep(Duration::from_millis(5));
    }
    // The pauses grow, and an answer ends them.
    let first = providers.resting()["one"];
    ask(&providers, ProviderCall::SetUp, &record(&[]), &Secrets::default()).unwrap_err();
    assert!(providers.resting()["one"] > first + Duration::from_secs(1));
    std::fs::write(
        folder.path().join("script"),
        format!(r#"echo '{{"apiVersion":"{API_VERSION}","status":"Success"}}'"#),
    )
    .unwrap();
    ask(&providers, ProviderCall::SetUp, &record(&[]), &Secrets::default()).unwrap();
    assert!(providers.resting().is_empty() && providers.problems().is_empty());
}

#[test]
fn secrets_are_kept_neither_in_an_answer_nor_in_a_message() {
    let info = r#"{"apiVersion":"provider.refloat.dev/v1","status":"Success","providerInfo":{"a":["x hunter2"]}}"#;
    assert_eq!(asked(&format!("echo '{info}'"), &["hunter2"]).0.unwrap(), None);
    assert!(asked(&format!("echo '{info}'"), &["another"]).0.unwrap().is_some());
    let refused = r#"{"apiVersion":"provider.refloat.dev/v1","status":"Failure","message":"no hunter2"}"#;
    let error = asked(&format!("echo '{refused}'"), &["hunter2"]).0.unwrap_err();
    assert!(!crate::VolumeError::from(error).problem().message.contains("hunter2"));
    // Where nobody can tell what is secret, nothing is kept.
    let folder = tempfile::tempdir().unwrap();
    let providers = program(folder.path(), &format!("echo '{info}'"));
    let (boot_id, record) = (BootId::new("b2").unwrap(), record(&[]));
    let request = ProviderRequest {
        call: ProviderCall::Reconnect,
        root: Path::new("/r"),
        boot_id: &boot_id,
        record: &record,
        secrets: None,
    };
    assert_eq!(providers.ask(&providers.list()[0], &request).unwrap(), None);
}

/// A provider at a socket, whose connections are answered by this.
fn socket(folder: &Path, answer: impl Fn(std::os::unix::net::UnixStream) + Send + 'static) -> Providers {
    let listener = UnixListener::bind(folder.join("one.sock")).unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
    let manifest = json!({
        "kind": "Provider", "apiVersions": [API_VERSION], "socket": "one.sock", "plugins": ["*"], "deadlineSeconds": 1,
    });
    std::fs::write(folder.join("one.json"), manifest.to_string()).unwrap();
    Providers::new(Some(folder.to_owned()))
}

#[test]
fn a_socket_is_asked_likewise() {
    let folder = tempfile::tempdir().unwrap();
    let providers = socket(folder.path(), |mut stream| {
        let mut request = String::new();
        stream.read_to_string(&mut request).unwrap();
        let request: Value = serde_json::from_str(&request).unwrap();
        let answer = json!({"apiVersion": API_VERSION, "status": "Success", "providerInfo": {"call": request["call"]}});
        stream.write_all(answer.to_string().as_bytes()).unwrap();
    });
    let info = ask(&providers, ProviderCall::Check, &record(&[]), &Secrets::default()).unwrap().unwrap();
    assert_eq!(info.get(), r#"{"call":"check"}"#);
}

#[test]
fn a_socket_that_does_not_do_its_part_is_told() {
    let silent = |stream: std::os::unix::net::UnixStream| std::mem::forget(stream);
    let much = |mut stream: std::os::unix::net::UnixStream| while stream.write_all(&[b'x'; 8192]).is_ok() {};
    let closed = drop;
    for (answer, expected) in [
        (Box::new(silent) as Box<dyn Fn(std::os::unix::net::UnixStream) + Send>, "ProviderTimeout"),
        (Box::new(much), "ProviderFailed"),
        (Box::new(closed), "ProviderFailed"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let providers = socket(folder.path(), answer);
        assert_eq!(code(ask(&providers, ProviderCall::SetUp, &record(&[]), &Secrets::default())), expected);
    }
    // One that takes no connections.
    let folder = tempfile::tempdir().unwrap();
    let providers = socket(folder.path(), |_| std::thread::sleep(Duration::from_secs(30)));
    let waiting: Vec<_> = std::iter::from_fn(|| {
        let address = rustix::net::SocketAddrUnix::new(folder.path().join("one.sock")).unwrap();
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        let one = rustix::net::socket_with(family, kind, flags, None).unwrap();
        rustix::net::connect(&one, &address).ok().map(|()| one)
    })
    .take(10_000)
    .collect();
    assert!(!waiting.is_empty());
    let begun = Instant::now();
    assert_eq!(code(ask(&providers, ProviderCall::SetUp, &record(&[]), &Secrets::default())), "ProviderTimeout");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_is_not_there_is_missing_and_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("one");
    let manifest = |more: &str| {
        let text = format!(r#"{{"kind":"Provider","apiVersions":["{API_VERSION}"],"plugins":["*"],{more}}}"#);
        std::fs::write(folder.path().join("one.json"), text).unwrap();
    };
    manifest(r#""exec":["./one"]"#);
    let providers = Providers::new(Some(folder.path().to_owned()));
    assert_eq!(code(ask(&providers, ProviderCall::SetUp, &record(&[]), &Secrets::default())), "ProviderMissing");
    assert!(providers.load().is_empty());
    std::fs::write(&at, "").unwrap();
    assert_eq!(providers.load(), BTreeSet::from(["one".to_owned()]));
    // It is another one, and does not rest.
    assert!(providers.resting().is_empty());
    manifest(r#""socket":"nowhere""#);
    assert_eq!(providers.load().len(), 1);
    assert_eq!(code(ask(&providers, ProviderCall::SetUp, &record(&[]), &Secrets::default())), "ProviderMissing");
    std::fs::remove_file(folder.path().join("one.json")).unwrap();
    assert_eq!(providers.load().len(), 1);
    assert!(providers.list().is_empty() && providers.problems().is_empty());
}

#[test]
fn rests_grow_to_two_minutes() {
    let rests: Vec<_> = (0..10).map(|failures| rest(failures).as_secs()).collect();
    assert_eq!(rests, [1, 1, 2, 4, 8, 16, 32, 64, 120, 120]);
}
