//! What `scan`, `explain` and a dry run of `clean` say beside a real kubelet.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use refloat_test_support::real_node::{Delete, RealNode, real_pod};
use serde_json::{Value, json};

use crate::{Test, refloat};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("scan_agrees_with_the_kubelet", agrees),
    ("what_a_killed_kubelet_leaves_is_told_and_kept", orphan),
    ("what_is_attached_is_left", attached),
];

/// The volumes of the pod `web` and what they are to be found as: the plugin, and whether something is mounted.
const VOLUMES: &[(&str, &str, bool)] = &[
    ("cm", "kubernetes.io/configmap", false),
    ("mem", "kubernetes.io/empty-dir", true),
    ("proj", "kubernetes.io/projected", true),
    ("scratch", "kubernetes.io/empty-dir", false),
    ("sec", "kubernetes.io/secret", true),
];

/// A pod with a volume of each of these kinds and a hostPath. In its plain emptyDir a folder of the host is bound.
struct Web {
    uid: String,
    host: PathBuf,
    bound: PathBuf,
}

fn web(node: &mut RealNode) -> Result<Web> {
    let meta = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    let mut config_map = meta("ConfigMap", "cm");
    config_map["data"] = json!({"key": "value"});
    let mut secret = meta("Secret", "sec");
    secret["stringData"] = json!({"password": "hidden"});
    node.create(&config_map)?;
    node.create(&secret)?;
    let host = node.dir().join("host");
    std::fs::create_dir(node.from_outside(&host))?;
    std::fs::write(node.from_outside(&host).join("canary"), "the host's")?;
    let projected = json!({"sources": [
        {"configMap": {"name": "cm"}},
        {"secret": {"name": "sec"}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]});
    let volumes = [
        json!({"name": "scratch", "emptyDir": {}}),
        json!({"name": "mem", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "cm", "configMap": {"name": "cm"}}),
        json!({"name": "sec", "secret": {"secretName": "sec"}}),
        json!({"name": "proj", "projected": projected}),
        json!({"name": "host", "hostPath": {"path": host, "type": "Directory"}}),
    ];
    node.create(&real_pod("web", &volumes, &[]))?;
    let uid = node.wait_running("web")?;
    let scratch = node.root().join("pods").join(&uid).join("volumes/kubernetes.io~empty-dir/scratch");
    let bound = scratch.join("inside");
    std::fs::create_dir(node.from_outside(&bound))?;
    std::fs::write(node.from_outside(&scratch).join("own"), "the pod's")?;
    let (from, to) = (text(&host)?.to_owned(), text(&bound)?.to_owned());
    node.run(&["mount", "--bind", &from, &to])?.expect(&[0])?;
    Ok(Web { uid, host, bound })
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path is not UTF-8")
}

fn list<'v>(value: &'v Value, name: &str) -> Result<&'v Vec<Value>> {
    value[name].as_array().with_context(|| format!("no list {name} in {value:#}"))
}

/// How many volumes of each plugin the kubelet thinks it has set up, by its own metrics.
fn kubelets_count(node: &mut RealNode) -> Result<BTreeMap<String, usize>> {
    let (code, metrics) = node.ask_kubelet("/metrics")?;
    ensure!(code == 200, "the kubelet says {code} {metrics}");
    let mut count = BTreeMap::new();
    for line in metrics.as_str().context("metrics are text")?.lines() {
        let Some(rest) = line.strip_prefix("volume_manager_total_volumes{plugin_name=\"") else { continue };
        let Some((plugin, rest)) = rest.split_once("\",state=\"actual_state_of_world\"} ") else { continue };
        count.insert(plugin.to_owned(), rest.trim().parse()?);
    }
    Ok(count)
}

fn agrees(node: &mut RealNode) -> Result<()> {
    let web = web(node)?;
    let scan = node.refloat(refloat(), &["scan", "-o", "json"])?.expect(&[3])?.json()?;
    let volumes = list(&scan, "volumes")?;
    let mut found: Vec<(&str, &str, bool)> = vec![];
    for volume in volumes {
        ensure!(volume["pod"]["uid"] == *web.uid, "another pod's: {volume:#}");
        let (Some(name), Some(plugin)) = (volume["specName"].as_str(), volume["plugin"].as_str()) else {
            anyhow::bail!("a volume without names: {volume:#}")
        };
        let path = Path::new(volume["path"].as_str().context("a volume without a path")?);
        let mounted = node.mounts_under(path)?.iter().filter(|point| *point == path).count();
        ensure!(volume["mounted"] == (mounted > 0), "the kernel has it {mounted} times: {volume:#}");
        ensure!(mounted == 0 || volume["mount"]["stack"] == mounted, "the kernel has it {mounted} times: {volume:#}");
        ensure!(volume["record"] == "Missing", "nobody wrote a record: {volume:#}");
        ensure!(volume["uniqueName"] == format!("{plugin}/{}-{name}", web.uid), "the unique name: {volume:#}");
        ensure!(volume["state"] == "Mounted", "the kubelet has set it up: {volume:#}");
        let told: Vec<&str> = list(volume, "problems")?.iter().filter_map(|p| p["code"].as_str()).collect();
        ensure!(!told.contains(&"StrayFiles"), "files in a plain folder are the volume: {volume:#}");
        found.push((name, plugin, mounted > 0));
    }
    found.sort_unstable();
    ensure!(found == VOLUMES, "there are other volumes than there should be: {found:?}");
    // The kubelet counts a hostPath too, which leaves nothing that could be seen without a record.
    let mut kubelets = kubelets_count(node)?;
    ensure!(kubelets.remove("kubernetes.io/host-path") == Some(1), "the kubelet has {kubelets:?}");
    let mut ours = BTreeMap::new();
    for (_, plugin, _) in &found {
        *ours.entry((*plugin).to_owned()).or_insert(0) += 1;
    }
    ensure!(ours == kubelets, "scan has {ours:?}, the kubelet {kubelets:?}");
    let nested = list(&scan, "volumes")?.iter().filter(|v| v["specName"] == "scratch");
    let mut problems = nested.filter_map(|v| v["problems"].as_array()).flatten();
    let bound = text(&web.bound)?;
    let told = problems.any(|p| p["code"] == "NestedMount" && p["message"].as_str().is_some_and(|m| m.contains(bound)));
    ensure!(told, "the bind inside the emptyDir is not told: {scan:#}");
    Ok(())
}

fn orphan(node: &mut RealNode) -> Result<()> {
    let web = web(node)?;
    node.kill_kubelet()?;
    node.delete("Pod", "web", Delete::AtOnce)?;
    ensure!(node.get("Pod", "web")?.is_none(), "the pod is still there");
    let root = node.root();
    let before = node.mounts_under(&root)?;
    let scan = node.refloat(refloat(), &["scan", "-o", "json"])?.expect(&[3])?.json()?;
    ensure!(list(&scan, "volumes")?.len() == VOLUMES.len(), "{scan:#}");
    ensure!(list(&scan, "volumes")?.iter().all(|v| v["wanted"] == "Unknown"), "nobody was asked: {scan:#}");

    let told = node.refloat(refloat(), &["explain", &web.uid])?.expect(&[0, 3])?.stdout;
    for (name, plugin, _) in VOLUMES {
        ensure!(told.contains(name) && told.contains(plugin), "explain does not say what {name} is:\n{told}");
    }

    // Nobody says that the pod is gone: everything stays.
    let plan = node.refloat(refloat(), &["clean", "-o", "json"])?.expect(&[3])?.json()?;
    ensure!(list(&plan, "steps")?.is_empty(), "steps by nobody's word: {plan:#}");
    ensure!(list(&plan, "kept")?.iter().any(|kept| kept["code"] == "NotKnown"), "{plan:#}");

    // The operator says it. The container runs on all the same, and keeps what it has.
    let args = ["clean", &web.uid, "--assume-gone", &web.uid, "--grace", "0s", "-o", "json"];
    let volume = |folder: &str, name: &str| {
        root.join("pods").join(&web.uid).join("volumes").join(format!("kubernetes.io~{folder}")).join(name)
    };
    let plan = node.refloat(refloat(), &args)?.expect(&[3])?.json()?;
    for (folder, name) in [("secret", "sec"), ("projected", "proj")] {
        let path = volume(folder, name);
        let held = |kept: &Value| kept["path"] == *text(&path).unwrap_or_default() && kept["code"] == "Held";
        let Some(kept) = list(&plan, "kept")?.iter().find(|kept| held(kept)) else {
            bail!("{} is not kept for its container: {plan:#}", path.display());
        };
        let reason = kept["reason"].as_str().unwrap_or_default();
        ensure!(reason.contains("(sleep)") && reason.contains(&web.uid), "it does not say who holds it: {reason}");
    }

    // Once that has ended, what holds nobody's data goes, and the emptyDirs stay.
    node.run(&["pkill", "-KILL", "-x", "sleep"])?.expect(&[0])?;
    let free = node.wait_for(Duration::from_secs(20), |node| {
        let plan = node.refloat(refloat(), &args)?.expect(&[3])?.json()?;
        Ok(!list(&plan, "kept")?.iter().any(|kept| kept["code"] == "Held"))
    })?;
    ensure!(free, "it is held though nothing runs: {}", node.refloat(refloat(), &args)?.stdout);
    let plan = node.refloat(refloat(), &args)?.expect(&[3])?.json()?;
    let steps = list(&plan, "steps")?;
    for (folder, name) in [("secret", "sec"), ("projected", "proj")] {
        let path = volume(folder, name);
        let unmounts = |step: &Value| step["action"] == "Unmount" && step["path"] == *text(&path).unwrap_or_default();
        ensure!(steps.iter().any(unmounts), "{} is not unmounted: {plan:#}", path.display());
    }
    for name in ["scratch", "mem"] {
        let path = volume("empty-dir", name);
        let is_it = |kept: &Value| kept["path"] == *text(&path).unwrap_or_default() && kept["code"] == "EphemeralData";
        ensure!(list(&plan, "kept")?.iter().any(is_it), "{} is not kept: {plan:#}", path.display());
    }
    ensure!(node.mounts_under(&root)? == before, "looking changed the mounts");
    let canary = std::fs::read_to_string(node.from_outside(&web.host).join("canary"))?;
    ensure!(canary == "the host's", "the host's file is {canary:?}");
    Ok(())
}

/// The controller says what is attached to the node: here the test does, in its place.
fn attached(node: &mut RealNode) -> Result<()> {
    let address = "/api/v1/nodes/n1/status";
    let attach = |node: &mut RealNode, all: Value| -> Result<()> {
        // The kubelet writes the status too, and the later one of two is refused.
        for _ in 0..20 {
            let (_, mut status) = node.request("GET", "/api/v1/nodes/n1", None)?;
            status["status"]["volumesAttached"] = all.clone();
            if node.request("PUT", address, Some(&status))?.0 == 200 {
                return Ok(());
            }
        }
        bail!("the node's status cannot be written")
    };
    let kubeconfig = text(&node.dir().join("kubeconfig"))?.to_owned();
    let sources = ["--kubeconfig", kubeconfig.as_str(), "--node-name", "n1"];
    let with = |args: &[&'static str]| [args, &sources[..]].concat();
    let (release, wait) = (with(&["release", "-o", "json"]), with(&["wait", "--for=empty", "--timeout", "1s"]));
    let empty = node.refloat(refloat(), &release)?.expect(&[0])?.json()?;
    ensure!(list(&empty, "left")?.is_empty(), "{empty:#}");
    node.refloat(refloat(), &wait)?.expect(&[0])?;
    let volume = "kubernetes.io/csi/driver^h-1";
    attach(node, json!([{"name": volume, "devicePath": "/dev/sdz"}]))?;
    let told = node.refloat(refloat(), &release)?.expect(&[3])?.json()?;
    ensure!(told["left"] == json!([{"kind": "Attachment", "path": "/dev/sdz", "what": volume}]), "{told:#}");
    let waited = node.refloat(refloat(), &wait)?.expect(&[1])?;
    ensure!(waited.stderr.contains(volume), "{}", waited.stderr);
    attach(node, json!([]))?;
    node.refloat(refloat(), &wait)?.expect(&[0])?;
    // Who cannot be asked proves nothing.
    let away = ["release", "-o", "json", "--kubeconfig", "/nowhere", "--node-name", "n1"];
    let told = node.refloat(refloat(), &away)?.expect(&[3])?.json()?;
    ensure!(told["left"][0]["kind"] == "Attachment", "{told:#}");
    Ok(())
}
