//! A node with an agent, a CSI driver and claims, for tests beside a real kubelet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use refloat_test_csi_driver::Options;
use refloat_test_support::real_node::{RealNode, tail};
use serde_json::{Value, json};

use crate::refloat;

/// The driver's name.
pub(crate) const DRIVER: &str = "real.csi.test";

/// A path as text.
pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path is not UTF-8")
}

/// The flags that name kubelet and API server as sources of pods.
pub(crate) fn sources(node: &RealNode) -> Result<Vec<String>> {
    let pki = node.dir().join("pki");
    let file = |name: &str| -> Result<String> { Ok(text(&pki.join(name))?.to_owned()) };
    Ok(vec![
        "--kubelet".into(),
        "https://127.0.0.1:10250".into(),
        "--kubelet-ca".into(),
        file("ca.crt")?,
        "--kubelet-certificate".into(),
        file("admin.crt")?,
        "--kubelet-key".into(),
        file("admin.key")?,
        "--kubeconfig".into(),
        text(&node.dir().join("kubeconfig"))?.to_owned(),
        "--node-name".into(),
        refloat_test_support::real_node::NODE_NAME.into(),
    ])
}

/// Starts the agent, under the name `agent`.
pub(crate) fn start_agent(node: &mut RealNode, more: &[&str]) -> Result<()> {
    let sources = sources(node)?;
    let mut args = vec!["agent", "-v", "--color", "never", "--rest", "200ms"];
    args.extend(more);
    args.extend(sources.iter().map(String::as_str));
    let started = |node: &RealNode| node.log("agent").matches("the agent runs").count();
    let before = started(node);
    node.launch("agent", refloat(), &args)?;
    let up = node.wait_for(Duration::from_secs(20), |node| Ok(started(node) > before))?;
    ensure!(up, "the agent does not start:\n{}", tail(&node.log("agent")));
    Ok(())
}

/// Starts the CSI driver, where the kubelet finds it, and waits until that has registered it.
pub(crate) fn start_driver(node: &mut RealNode) -> Result<()> {
    let folder = node.dir().join("csi");
    std::fs::create_dir(node.from_outside(&folder))?;
    let own = node.root().join("plugins").join(DRIVER);
    std::fs::create_dir_all(node.from_outside(&own))?;
    let mut options = Options::new(DRIVER, &folder);
    // The kubelet's client names a socket's path, escaped, as the authority of its requests, which Rust's HTTP/2 server takes
    // for none: a percent sign may stand in an authority before an `@` alone.
    options.endpoint = own.join("csi@node.sock");
    options.registration = Some(node.root().join("plugins_registry").join(format!("{DRIVER}@reg.sock")));
    options.node_id = "n1".into();
    let object = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": false, "podInfoOnMount": false, "volumeLifecycleModes": ["Persistent"]},
    });
    let (code, why) = node.request("POST", "/apis/storage.k8s.io/v1/csidrivers", Some(&object))?;
    ensure!(code == 201, "no CSIDriver: {code} {why}");
    let program = std::env::current_exe()?;
    let mut words = vec!["env".to_owned(), format!("{}=1", refloat_test_csi_driver::AS_DRIVER), text(&program)?.into()];
    for word in options.to_args() {
        words.push(word.into_string().ok().context("an argument is not UTF-8")?);
    }
    node.launch_words("driver", &words)?;
    let registered = node.wait_for(Duration::from_secs(30), |node| {
        let (_, csi_node) = node.request("GET", "/apis/storage.k8s.io/v1/csinodes/n1", None)?;
        Ok(csi_node["spec"]["drivers"].as_array().is_some_and(|all| all.iter().any(|d| d["name"] == DRIVER)))
    })?;
    ensure!(registered, "the kubelet does not register the driver:\n{}", tail(&node.log("driver")));
    Ok(())
}

/// A claim of this name, bound to a volume of the driver.
pub(crate) fn csi_claim(node: &mut RealNode, name: &str) -> Result<()> {
    let source = json!({"csi": {"driver": DRIVER, "volumeHandle": format!("handle-{name}"), "fsType": "ext4"}});
    claim(node, name, &source)
}

/// A claim of this name, bound to a folder of the node. Answers the folder.
pub(crate) fn local_claim(node: &mut RealNode, name: &str) -> Result<PathBuf> {
    let folder = node.dir().join("local").join(name);
    std::fs::create_dir_all(node.from_outside(&folder))?;
    let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}]);
    let affinity = json!({"required": {"nodeSelectorTerms": terms}});
    claim(node, name, &json!({"local": {"path": folder}, "nodeAffinity": affinity}))?;
    Ok(folder)
}

fn claim(node: &mut RealNode, name: &str, source: &Value) -> Result<()> {
    let size = json!({"storage": "16Mi"});
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"], "capacity": size, "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
    });
    for (field, value) in source.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let pv = format!("pv-{name}");
    node.create(
        &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": pv.clone()}, "spec": spec}),
    )?;
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": size}, "storageClassName": "", "volumeName": pv,
    });
    node.create(
        &json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}),
    )?;
    node.bind(name)
}

/// The configMap `cm` and the secret `sec`.
pub(crate) fn objects(node: &mut RealNode) -> Result<()> {
    node.create(
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}, "data": {"key": "value"}}),
    )?;
    node.create(
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sec"}, "stringData": {"key": "hidden"}}),
    )?;
    Ok(())
}

/// All records of volumes and devices, as they are printed.
pub(crate) fn records(node: &mut RealNode) -> Result<Vec<Value>> {
    let mut all = vec![];
    for kind in ["volumes", "devices"] {
        let folder = node.from_outside(&node.dir().join("refloat").join(kind));
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
                continue;
            }
            // One that goes meanwhile is gone.
            let Ok(text) = std::fs::read(&path) else { continue };
            all.push(serde_json::from_slice(&text).with_context(|| format!("{} is no record", path.display()))?);
        }
    }
    Ok(all)
}

/// The records of one pod's volumes.
pub(crate) fn records_of(node: &mut RealNode, uid: &str) -> Result<Vec<Value>> {
    Ok(records(node)?.into_iter().filter(|record| record["pod"]["uid"] == *uid).collect())
}
