//! `refloat agent` beside a real kubelet.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use refloat_test_support::real_node::{Delete, RealNode, real_pod, tail};
use serde_json::{Value, json};

use crate::Test;
use crate::world::{csi_claim, local_claim, objects, records, records_of, start_agent, start_driver, text};

pub(crate) const TESTS: &[(&str, Test)] =
    &[("agent_records_a_pods_volumes_whole", whole), ("agent_cleans_while_the_kubelet_is_away", away)];

const TERM: i32 = 15;

fn whole(node: &mut RealNode) -> Result<()> {
    objects(node)?;
    start_driver(node)?;
    csi_claim(node, "data")?;
    local_claim(node, "disk")?;
    start_agent(node, &[])?;
    let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let volumes = [
        json!({"name": "scratch", "emptyDir": {"sizeLimit": "5Mi"}}),
        json!({"name": "mem", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "cm", "configMap": {"name": "cm"}}),
        json!({"name": "sec", "secret": {"secretName": "sec"}}),
        claim("data"),
        claim("disk"),
    ];
    let sub_path = json!({"name": "scratch", "mountPath": "/sub", "subPath": "sub"});
    node.create(&real_pod("web", &volumes, &[sub_path]))?;
    let uid = node.wait_running("web")?;
    let mut last = vec![];
    let all = node.wait_for(Duration::from_secs(20), |node| {
        last = records_of(node, &uid)?;
        Ok(last.len() == volumes.len())
    })?;
    ensure!(all, "there are other records than there should be: {last:#?}\n{}", tail(&node.log("agent")));
    // As the API server has them, which fills in what was left out.
    let pod = node.get("Pod", "web")?.context("the pod is gone")?;
    let entries = pod["spec"]["volumes"].as_array().context("a pod without volumes")?;
    for record in &last {
        let name = record["volumeNames"][0].as_str().unwrap_or_default();
        ensure!(record["pod"]["name"] == "web" && record["pod"]["namespace"] == "default", "{record:#}");
        ensure!(record["lost"].is_null(), "something is lost: {record:#}");
        let entry = entries.iter().find(|volume| volume["name"] == name);
        ensure!(Some(&record["volume"]) == entry, "the pod's entry is not verbatim: {record:#}");
        let bound = matches!(name, "data" | "disk");
        ensure!(record["persistentVolume"].is_object() == bound, "{record:#}");
        ensure!(record["claim"]["name"] == if bound { json!(name) } else { json!(null) }, "{record:#}");
        ensure!(
            record["subPaths"].as_array().is_some_and(|all| all.len() == usize::from(name == "scratch")),
            "{record:#}"
        );
    }
    let devices: Vec<_> = records(node)?.into_iter().filter(|record| record["kind"] == "DeviceMount").collect();
    // A local volume that is a folder has none.
    ensure!(devices.len() == 1, "the staged volume: {devices:#?}");
    ensure!(devices.iter().all(|device| device["persistentVolume"].is_object()), "{devices:#?}");
    let scan = node.refloat(crate::refloat(), &["scan", "-o", "json"])?.expect(&[0])?.json()?;
    for volume in scan["volumes"].as_array().into_iter().flatten() {
        ensure!(volume["reconstruction"] == "Full" && volume["state"] == "Mounted", "{volume:#}");
    }

    // A volume that changes is followed: at the latest by the next agent.
    let recorded = devices[0]["persistentVolume"]["metadata"]["name"].as_str().context("a volume without a name")?;
    let address = format!("/api/v1/persistentvolumes/{recorded}");
    let (_, mut volume) = node.request("GET", &address, None)?;
    volume["metadata"]["labels"] = json!({"grown": "yes"});
    let (status, answer) = node.request("PUT", &address, Some(&volume))?;
    ensure!(status == 200, "{answer:#}");
    ensure!(node.end("agent", Some(TERM))? == 0, "the agent did not end well:\n{}", tail(&node.log("agent")));
    start_agent(node, &[])?;
    let mut last = vec![];
    let followed = node.wait_for(Duration::from_secs(20), |node| {
        last = records(node)?;
        let labelled = |r: &&Value| r["persistentVolume"]["metadata"]["labels"]["grown"] == "yes";
        Ok(last.iter().filter(labelled).count() == 2)
    })?;
    ensure!(followed, "volume and device are not followed: {last:#?}\n{}", tail(&node.log("agent")));

    // The kubelet tears down as it always does, and the records go.
    node.delete("Pod", "web", Delete::InOrder)?;
    let gone = node.wait_for(Duration::from_secs(60), |node| Ok(records(node)?.is_empty()))?;
    ensure!(gone, "records are left: {:#?}\n{}", records(node)?, tail(&node.log("agent")));
    ensure!(node.end("agent", Some(TERM))? == 0, "the agent did not end well:\n{}", tail(&node.log("agent")));
    Ok(())
}

/// The kubelet would delete through the bind; the agent unmounts it, and everything else of the pod.
fn away(node: &mut RealNode) -> Result<()> {
    objects(node)?;
    start_driver(node)?;
    csi_claim(node, "data")?;
    let volumes = [
        json!({"name": "scratch", "emptyDir": {}}),
        json!({"name": "mem", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "sec", "secret": {"secretName": "sec"}}),
        json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}}),
    ];
    node.create(&real_pod("web", &volumes, &[]))?;
    let uid = node.wait_running("web")?;
    let host = node.dir().join("host");
    let inside = node.root().join("pods").join(&uid).join("volumes/kubernetes.io~empty-dir/scratch/inside");
    for folder in [&host, &inside] {
        std::fs::create_dir(node.from_outside(folder))?;
    }
    std::fs::write(node.from_outside(&host.join("canary")), "alive")?;
    let (from, to) = (text(&host)?.to_owned(), text(&inside)?.to_owned());
    node.run(&["mount", "--bind", &from, &to])?.expect(&[0])?;

    node.kill_kubelet()?;
    node.delete("Pod", "web", Delete::AtOnce)?;
    // The API server and the cgroups are asked; nobody else is there.
    let kubeconfig = text(&node.dir().join("kubeconfig"))?.to_owned();
    let sources = ["--kubeconfig", kubeconfig.as_str(), "--node-name", "n1"];
    let args = ["agent", "-v", "--color", "never", "--rest", "200ms", "--clean", "--grace", "1s", "--delete-ephemeral"];
    node.launch("agent", crate::refloat(), &[&args[..], &sources[..]].concat())?;
    // As long as the containers run the pod is wanted.
    std::thread::sleep(Duration::from_secs(6));
    let mounts = node.mounts_under(&node.root().join("pods"))?;
    ensure!(mounts.len() == 4, "a running pod lost a mount: {mounts:#?}\n{}", node.log("agent"));

    let socket = text(&node.dir().join("containerd.sock"))?.to_owned();
    let script = "for t in $(ctr -a \"$0\" -n k8s.io tasks ls -q); do ctr -a \"$0\" -n k8s.io tasks kill -s 9 $t; done";
    node.run(&["sh", "-c", script, &socket])?.expect(&[0])?;
    let folder = node.root().join("pods").join(&uid);
    let gone = node.wait_for(Duration::from_secs(90), |node| {
        Ok(std::fs::symlink_metadata(node.from_outside(&folder)).is_err() && records(node)?.is_empty())
    })?;
    ensure!(gone, "the pod is not cleaned:\n{}", tail(&node.log("agent")));
    let canary = std::fs::read_to_string(node.from_outside(&host.join("canary")))?;
    ensure!(canary == "alive", "the host's file is {canary:?}");
    let left = node.mounts_under(&node.root())?;
    ensure!(left.iter().all(|point| *point == node.root()), "mounts are left: {left:#?}");
    for reason in ["OrphanedVolumesFound", "OrphanedVolumesCleaned"] {
        let told = node.wait_for(Duration::from_secs(10), |node| {
            let (_, events) = node.request("GET", "/api/v1/namespaces/default/events", None)?;
            let mut events = events["items"].as_array().into_iter().flatten();
            let is_it = |e: &Value| e["reason"] == reason && e["related"]["uid"] == *uid;
            Ok(events.any(|e| is_it(e) && e["involvedObject"]["name"] == "n1"))
        })?;
        ensure!(told, "there is no event {reason}:\n{}", tail(&node.log("agent")));
    }
    // Back again, the kubelet finds nothing to do.
    node.start_kubelet()?;
    let ready = node.wait_for(Duration::from_secs(30), |node| Ok(node.ask_kubelet("/pods")?.0 == 200))?;
    ensure!(ready, "the kubelet does not come back");
    ensure!(node.end("agent", Some(TERM))? == 0, "the agent did not end well:\n{}", tail(&node.log("agent")));
    Ok(())
}
