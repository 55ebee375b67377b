//! Sources of pods on a node that something else runs: a kubelet, an API server and a container runtime that answer as
//! told, and real cgroups.
//!
//! No volume may go unless all agree, and none of them failed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use refloat_test_pod_sources::{Https, Mood, Reply, RuntimeServer, State, pod, pod_list};
use serde_json::Value;

use crate::node::{Node, Ran, mount_tmpfs};
use crate::{Test, Verdict};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("sources_a_kubelet_says_which_pods_are_gone", kubelet_says),
    ("sources_b06_a_kubelet_that_fails_takes_nothing_away", failing_kubelet),
    ("sources_b05_pods_that_leave_and_pods_that_ended", leaving_and_ended),
    ("sources_b06_an_api_server_alone_takes_nothing_away", api_server),
    ("sources_a_runtime_keeps_what_runs", runtime_keeps),
    ("sources_are_found_where_the_root_is_the_usual_one", found),
    ("sources_of_a_saved_node_are_refused", saved_node),
];

pub(crate) const HERE: &str = "7d0a1f1e-2b3c-4d5e-8f90-a1b2c3d4e5f6";
const GONE: &str = "11111111-2b3c-4d5e-8f90-a1b2c3d4e5f6";
const STATIC: &str = "0b1d9c3e4f5a6b7c8d9e0f1a2b3c4d5e";

/// A pod's folder with a secret in memory, as a kubelet mounts it.
fn with_volume(root: &Path, uid: &str) -> Result<PathBuf> {
    let path = root.join(format!("pods/{uid}/volumes/kubernetes.io~secret/token"));
    std::fs::create_dir_all(&path)?;
    mount_tmpfs(&path, "64k")?;
    Ok(path)
}

/// The flags for a kubelet.
pub(crate) fn flags(server: &Https) -> Vec<String> {
    let file = |name| server.file(name).display().to_string();
    [
        "--sources",
        "none",
        "--kubelet",
        &server.url(),
        "--kubelet-ca",
        &file("ca.crt"),
        "--kubelet-token-file",
        &file("token"),
    ]
    .map(str::to_owned)
    .into()
}

fn run(node: &Node, args: &[&str], flags: &[String]) -> Result<Ran> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    node.run(&[args, &flags].concat())
}

fn clean(node: &Node, flags: &[String]) -> Result<Ran> {
    run(node, &["clean", "-o", "json", "--grace", "0s", "--yes"], flags)
}

/// What a scan says of a pod's one volume.
fn of_pod<'a>(scan: &'a Value, uid: &str) -> Result<&'a Value> {
    let mut volumes = scan["volumes"].as_array().into_iter().flatten();
    volumes.find(|v| v["pod"]["uid"] == uid).with_context(|| format!("no volume of {uid} in {scan:#}"))
}

fn wanted(scan: &Value, uid: &str) -> Result<(String, String)> {
    let volume = of_pod(scan, uid)?;
    let text = |field: &str| volume[field].as_str().unwrap_or_default().to_owned();
    Ok((text("wanted"), text("wantedBy")))
}

fn is_mounted(node: &Node, path: &Path) -> Result<bool> {
    Ok(node.mounts()?.iter().any(|mount| mount == path))
}

fn kubelet_says(node: &mut Node) -> Result<Verdict> {
    let (here, gone, fixed) =
        (with_volume(&node.root, HERE)?, with_volume(&node.root, GONE)?, with_volume(&node.root, STATIC)?);
    let server = Https::start(|_| Reply::Answer(200, pod_list(&[pod(HERE, "shop", "web", "n1")])));
    let flags = flags(&server);
    let scan = run(node, &["scan", "-o", "json"], &flags)?.expect(3)?.json()?;
    let name = format!("kubelet at {}", server.url());
    ensure!(wanted(&scan, HERE)? == ("Yes".into(), name.clone()), "{scan:#}");
    ensure!(wanted(&scan, GONE)? == ("No".into(), name.clone()), "{scan:#}");
    ensure!(of_pod(&scan, HERE)?["pod"]["name"] == "web", "{scan:#}");
    let source = &scan["sources"][0];
    ensure!(source["name"] == name.as_str() && source["kind"] == "Kubelet", "{source:#}");
    ensure!(source["state"] == "Answered" && source["pods"] == 1, "{source:#}");
    let table = run(node, &["scan"], &flags)?;
    ensure!(table.stdout.contains(&format!("Asked which pods are here: {name} (1 pod)")), "{table:?}");
    let told = run(node, &["explain", "shop/web"], &flags)?;
    ensure!(told.stdout.contains(&format!("{name} has the pod.")), "{told:?}");
    let told = run(node, &["explain", GONE], &flags)?;
    ensure!(told.stdout.contains(&format!("{name} does not have the pod.")), "{told:?}");
    ensure!(!table.stdout.contains("the-token") && !told.stdout.contains("the-token"));

    let young = run(node, &["clean", "-o", "json", "--yes"], &flags)?.expect(3)?.json()?;
    ensure!(young["steps"].as_array().is_some_and(Vec::is_empty), "its folder is new: {young:#}");
    let plan = clean(node, &flags)?.expect(0)?.json()?;
    ensure!(plan["sources"][0]["name"] == name.as_str(), "{plan:#}");
    ensure!(is_mounted(node, &here)?, "{plan:#}");
    ensure!(!is_mounted(node, &gone)? && !is_mounted(node, &fixed)?, "{plan:#}");
    Ok(Verdict::Passed)
}

fn failing_kubelet(node: &mut Node) -> Result<Verdict> {
    let volume = with_volume(&node.root, GONE)?;
    let whole = pod_list(&[pod(HERE, "shop", "web", "n1")]);
    let replies = [
        ("401", Reply::Answer(401, "Unauthorized".into()), "token or a client certificate"),
        ("403", Reply::Answer(403, "Forbidden".into()), "nodes/pods"),
        ("cut", Reply::Answer(200, whole[..whole.len() - 2].into()), "not to be relied on"),
        ("torn", Reply::Torn(whole.clone()), "reading the answer"),
        ("empty", Reply::Answer(200, String::new()), "not to be relied on"),
        ("hangs", Reply::Hang, "did not answer"),
    ];
    for (name, reply, says) in replies {
        let server = Https::start(move |_| reply.clone());
        let mut flags = flags(&server);
        flags.extend(["--source-timeout".into(), "700ms".into()]);
        stays(node, &volume, &flags, says).with_context(|| name)?;
    }
    let (server, other) = (Https::start(move |_| Reply::Answer(200, whole.clone())), Https::start(|_| Reply::Hang));
    let mut flags = flags(&server);
    flags[5] = other.file("ca.crt").display().to_string();
    stays(node, &volume, &flags, "--kubelet-ca").context("another CA")?;
    ensure!(server.asked().is_empty(), "the token went to one that is not trusted");
    // One that lists nothing from the API server may not have heard from it yet.
    let server = Https::start(|_| Reply::Answer(200, pod_list(&[])));
    let flags = self::flags(&server);
    clean(node, &flags)?.expect(3)?;
    ensure!(is_mounted(node, &volume)?);
    Ok(Verdict::Passed)
}

/// With such a source the volume stays, whatever is asked, and scan and clean say why.
fn stays(node: &Node, volume: &Path, flags: &[String], says: &str) -> Result<()> {
    let start = Instant::now();
    let scan = run(node, &["scan", "-o", "json"], flags)?.expect(3)?.json()?;
    ensure!(start.elapsed() < Duration::from_secs(30), "it took {:?}", start.elapsed());
    ensure!(wanted(&scan, GONE)?.0 == "Unknown", "{scan:#}");
    ensure!(scan["sources"][0]["state"] == "Failed", "{scan:#}");
    let problem = &scan["problems"][0];
    ensure!(problem["code"] == "SourceFailed", "{scan:#}");
    let text =
        format!("{} {}", problem["message"].as_str().unwrap_or_default(), problem["hint"].as_str().unwrap_or_default());
    ensure!(text.contains(says) && !text.contains("the-token"), "{text}");
    let plan = clean(node, flags)?.expect(3)?.json()?;
    ensure!(plan["steps"].as_array().is_some_and(Vec::is_empty), "{plan:#}");
    ensure!(plan["kept"][0]["code"] == "NotKnown", "{plan:#}");
    run(node, &["release", "-o", "json", "--yes"], flags)?.expect(3)?;
    ensure!(is_mounted(node, volume)?);
    Ok(())
}

fn leaving_and_ended(node: &mut Node) -> Result<Verdict> {
    let [leaving, ended, just] = [HERE, GONE, "22222222-2b3c-4d5e-8f90-a1b2c3d4e5f6"];
    let volumes = [with_volume(&node.root, leaving)?, with_volume(&node.root, ended)?, with_volume(&node.root, just)?];
    let now = jiff::Timestamp::now();
    let server = Https::start(move |_| {
        let end = |uid: &str, name: &str, at: &str| {
            format!(
                r#"{{"metadata":{{"uid":"{uid}","name":"{name}"}},"status":{{"phase":"Succeeded","containerStatuses":
                    [{{"state":{{"terminated":{{"finishedAt":"{at}"}}}}}}]}}}}"#
            )
        };
        let leaves =
            format!(r#"{{"metadata":{{"uid":"{leaving}","name":"a","deletionTimestamp":"2020-01-02T03:04:05Z"}}}}"#);
        let pods = [leaves, end(ended, "b", "2020-01-02T03:04:05Z"), end(just, "c", &now.to_string())];
        Reply::Answer(200, pod_list(&pods))
    });
    let flags = flags(&server);
    let plan = run(node, &["clean", "-o", "json", "--yes"], &flags)?.expect(3)?.json()?;
    let mounted: Vec<bool> = volumes.iter().map(|v| is_mounted(node, v)).collect::<Result<_>>()?;
    ensure!(mounted == [true, false, true], "{mounted:?} {plan:#}");
    let scan = run(node, &["scan", "-o", "json"], &flags)?.json()?;
    ensure!(wanted(&scan, leaving)?.1.contains("it is being deleted"), "{scan:#}");
    Ok(Verdict::Passed)
}

/// An API server that has these pods on node n1.
fn cluster(pods: Vec<String>) -> Result<Https> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    Ok(Https::start(move |request| match request.path.split('?').next() {
        Some("/api/v1/nodes/n1") => {
            Reply::Answer(200, format!(r#"{{"kind":"Node","status":{{"nodeInfo":{{"bootID":"{boot}"}}}}}}"#))
        }
        Some("/api/v1/pods") => Reply::Answer(200, pod_list(&pods)),
        _ => Reply::Answer(404, String::new()),
    }))
}

fn api_flags(server: &Https, node_name: &str) -> Vec<String> {
    let kubeconfig = server.kubeconfig().display().to_string();
    ["--sources", "none", "--kubeconfig", &kubeconfig, "--node-name", node_name].map(str::to_owned).into()
}

fn api_server(node: &mut Node) -> Result<Verdict> {
    let (here, gone, fixed) =
        (with_volume(&node.root, HERE)?, with_volume(&node.root, GONE)?, with_volume(&node.root, STATIC)?);
    let server = cluster(vec![pod(HERE, "shop", "web", "n1")])?;
    let mut flags = api_flags(&server, "n1");
    let scan = run(node, &["scan", "-o", "json"], &flags)?.json()?;
    ensure!(wanted(&scan, HERE)?.0 == "Yes", "{scan:#}");
    let (word, why) = wanted(&scan, GONE)?;
    ensure!(word == "Unknown" && why.contains("still run"), "{why}");
    clean(node, &flags)?.expect(3)?;
    ensure!(is_mounted(node, &gone)?, "it was deleted there, and what runs here nobody knows");
    // Another name is another node, whose list is not this one's.
    let other = api_flags(&server, "n2");
    let scan = run(node, &["scan", "-o", "json"], &other)?.expect(3)?.json()?;
    ensure!(scan["problems"][0]["hint"].as_str().is_some_and(|hint| hint.contains("--node-name")), "{scan:#}");
    // With a runtime, in which nothing of it runs, both halves are known; a static pod is not the API server's to tell of.
    let runtime =
        RuntimeServer::start(&node.folder().join("cri.sock"), State::default().with_pod(HERE, "web", true, true));
    flags.extend(["--cri".into(), runtime.socket().display().to_string()]);
    clean(node, &flags)?.expect(3)?;
    ensure!(is_mounted(node, &here)? && is_mounted(node, &fixed)? && !is_mounted(node, &gone)?);
    Ok(Verdict::Passed)
}

fn runtime_keeps(node: &mut Node) -> Result<Verdict> {
    let volume = with_volume(&node.root, GONE)?;
    let kubelet = Https::start(|_| Reply::Answer(200, pod_list(&[pod(HERE, "shop", "web", "n1")])));
    // Its sandbox died and a container runs on; the kubelet has forgotten it, as after a deletion by force.
    let state = State::default().with_pod(GONE, "left", false, true);
    let runtime = RuntimeServer::start(&node.folder().join("cri.sock"), state);
    let mut flags = flags(&kubelet);
    flags.extend(["--cri".into(), runtime.socket().display().to_string(), "--source-timeout".into(), "2s".into()]);
    let scan = run(node, &["scan", "-o", "json"], &flags)?.json()?;
    let (word, by) = wanted(&scan, GONE)?;
    ensure!(word == "Yes" && by.starts_with("container runtime at"), "{by}");
    ensure!(of_pod(&scan, GONE)?["pod"]["name"] == "left", "{scan:#}");
    let plan = run(node, &["clean", "-o", "json", "--grace", "0s", "--yes", "--assume-gone", GONE], &flags)?;
    let plan = plan.expect(3)?.json()?;
    ensure!(plan["kept"][0]["code"] == "StillWanted", "{plan:#}");
    for mood in [Mood::Fails, Mood::Hangs, Mood::Other] {
        runtime.set(State { mood, ..State::default() });
        let plan = clean(node, &flags)?.expect(3)?.json()?;
        ensure!(plan["kept"][0]["code"] == "NotKnown" && is_mounted(node, &volume)?, "{mood:?}: {plan:#}");
    }
    runtime.set(State::default());
    clean(node, &flags)?.expect(0)?;
    ensure!(!is_mounted(node, &volume)?);
    Ok(Verdict::Passed)
}

/// A process in a pod's cgroup in a hierarchy that lets one be made. All is gone when this is dropped.
struct InCgroup {
    process: Child,
    cgroups: Vec<PathBuf>,
}

impl InCgroup {
    fn start(uid: &str) -> Result<Option<Self>> {
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        let mounts = table.lines().filter(|line| line.contains(" - cgroup"));
        for hierarchy in mounts.filter_map(|line| line.split(' ').nth(4)) {
            let parent = Path::new(hierarchy).join(format!("refloat-cli-{}", std::process::id()));
            let process = Command::new("sleep").arg("1000").spawn().context("cannot run sleep")?;
            let mut this = Self { process, cgroups: vec![] };
            let pod = parent.join("kubepods").join(format!("pod{uid}"));
            for cgroup in [parent.clone(), parent.join("kubepods"), pod.clone()] {
                if std::fs::create_dir(&cgroup).is_ok() {
                    this.cgroups.push(cgroup);
                }
            }
            if std::fs::write(pod.join("cgroup.procs"), this.process.id().to_string()).is_ok() {
                return Ok(Some(this));
            }
        }
        Ok(None)
    }
}

impl Drop for InCgroup {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for cgroup in self.cgroups.iter().rev() {
            let end = Instant::now() + Duration::from_secs(2);
            while std::fs::remove_dir(cgroup).is_err() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn found(node: &mut Node) -> Result<Verdict> {
    // In this test's own mount namespace, what distributions use is its own.
    if std::fs::symlink_metadata("/run").is_err() || std::fs::symlink_metadata("/var/lib").is_err() {
        return Ok(Verdict::Skipped("there is no /run or no /var/lib".into()));
    }
    mount_tmpfs(Path::new("/run"), "1m")?;
    mount_tmpfs(Path::new("/var/lib"), "1m")?;
    let usual = Path::new("/var/lib/kubelet");
    std::fs::create_dir_all(usual.join("pods"))?;
    let volume = with_volume(usual, GONE)?;
    node.root = usual.into();
    let state = State::default().with_pod(HERE, "web", true, true);
    std::fs::create_dir_all("/run/containerd")?;
    let runtime = RuntimeServer::start(Path::new("/run/containerd/containerd.sock"), state);
    let names = |scan: &Value| -> Vec<String> {
        let sources = scan["sources"].as_array().into_iter().flatten();
        sources.map(|s| s["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let scan = node.run(&["scan", "-o", "json"])?.json()?;
    ensure!(names(&scan) == ["cgroups", "container runtime at /run/containerd/containerd.sock"], "{scan:#}");
    // Nothing of it runs; whether it is to run nobody knows.
    ensure!(wanted(&scan, GONE)?.0 == "Unknown", "{scan:#}");
    node.run(&["clean", "--grace", "0s", "--yes"])?.expect(3)?;
    ensure!(is_mounted(node, &volume)?);
    ensure!(names(&node.run(&["scan", "-o", "json", "--sources", "none"])?.json()?).is_empty());
    ensure!(names(&node.run(&["scan", "-o", "json", "--sources", "cgroups"])?.json()?) == ["cgroups"]);
    // A folder that is no usual root is not asked about, unless that is said.
    let elsewhere = node.folder().join("elsewhere");
    std::fs::create_dir_all(elsewhere.join("pods"))?;
    node.root.clone_from(&elsewhere);
    ensure!(names(&node.run(&["scan", "-o", "json"])?.json()?).is_empty());
    ensure!(names(&node.run(&["scan", "-o", "json", "--sources", "cri,cgroups"])?.json()?).len() == 2);
    drop(runtime);
    node.run(&["scan", "--sources", "cri"])?.expect(2)?;
    node.run(&["scan", "--sources", "cri,none"])?.expect(2)?;

    // A process in the pod's cgroup keeps it, though a kubelet has forgotten it.
    node.root = usual.into();
    let Some(living) = InCgroup::start(GONE)? else {
        return Ok(Verdict::Skipped("no cgroup can be made here; the rest passed".into()));
    };
    let kubelet = Https::start(|_| Reply::Answer(200, pod_list(&[pod(HERE, "shop", "web", "n1")])));
    let flags = flags(&kubelet)[2..].to_vec();
    let scan = run(node, &["scan", "-o", "json"], &flags)?.json()?;
    ensure!(wanted(&scan, GONE)? == ("Yes".into(), "cgroups".into()), "{scan:#}");
    clean(node, &flags)?.expect(0)?;
    ensure!(is_mounted(node, &volume)?);
    drop(living);
    clean(node, &flags)?.expect(0)?;
    ensure!(!is_mounted(node, &volume)?);
    Ok(Verdict::Passed)
}

fn saved_node(node: &mut Node) -> Result<Verdict> {
    let table = node.folder().join("mountinfo");
    std::fs::copy("/proc/self/mountinfo", &table)?;
    let table = table.display().to_string();
    for flag in [["--kubelet", "https://127.0.0.1:10250"], ["--node-name", "n1"], ["--cri", "/run/x.sock"]] {
        let args = [["scan", "--mountinfo"].as_slice(), &[table.as_str()], &flag].concat();
        let ran = node.run(&args)?.expect(2)?;
        ensure!(ran.stderr.contains(flag[0]), "{ran:?}");
    }
    for wrong in [["--kubelet", "10.0.0.7:10250"], ["--kubeconfig", "/x"], ["--kubelet-token-file", "/x"]] {
        node.run(&["scan", wrong[0], wrong[1]])?.expect(2)?;
    }
    Ok(Verdict::Passed)
}
