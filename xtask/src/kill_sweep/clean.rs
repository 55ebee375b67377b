//! What pods that are gone left on a kubelet's tree; `clean --yes`, `release --yes` and the agent are killed, and run again.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::scenario::{Kind, Scenario};
use crate::node::{self, Node};

/// The scenario.
pub(super) const KIND: Kind = Kind {
    phases: &["clean", "release", "agent", "agent-clean"],
    others: &[],
    part: 28,
    shared: |_| Ok(None),
    new: |binary, _| Ok(Box::new(Clean::new(binary)?)),
};

const DATA: &str = "the host's\n";

struct Clean {
    node: Node,
    phase: String,
}

impl Clean {
    fn new(binary: &Path) -> Result<Self> {
        let node = Node::new(binary)?;
        for name in ["plain", "device"] {
            let folder = node.host().join(name);
            std::fs::create_dir(&folder)?;
            std::fs::create_dir(folder.join("inside"))?;
            std::fs::write(folder.join("inside/data"), DATA)?;
            std::fs::write(folder.join("data"), DATA)?;
        }
        Ok(Self { node, phase: String::new() })
    }

    fn agent_clean(pods: &str) -> Vec<&str> {
        let how = ["--workers", "1", "--delete-ephemeral", "--grace", "0s", "--manifests", pods];
        [&["agent", "--once", "--clean"][..], &how[..]].concat()
    }

    /// Runs the agent to its end, with everything cleaned, and answers what a clean-up would still do.
    fn agent_to_the_end(&self) -> Result<serde_json::Value> {
        let pods = self.node.pods();
        let pods = pods.to_str().context("a folder's name is not UTF-8")?;
        self.node.run(&Self::agent_clean(pods))?.expect(0)?;
        self.check_data()?;
        let how = ["clean", "-o", "json", "--delete-ephemeral", "--grace", "0s", "--manifests", pods];
        self.node.run(&how)?.expect(0)?.json()
    }

    /// Every volume that is understood has a good record.
    fn check_recorded(&self) -> Result<()> {
        self.node.run(&["agent", "--once"])?.expect(0)?;
        self.check_data()?;
        self.node.run(&["record", "verify"])?.expect(0)?;
        let scan = self.node.run(&["scan", "-o", "json"])?.json()?;
        let volumes = scan["volumes"].as_array().context("a scan without volumes")?;
        ensure!(volumes.len() >= 6, "volumes are gone: {scan:#}");
        for volume in volumes {
            ensure!(volume["record"] == "Ok" || volume["uniqueName"].is_null(), "no record of {volume:#}");
        }
        Ok(())
    }

    fn folder_of(&self, rel: &str) -> Result<PathBuf> {
        let path = self.node.root.join(rel);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Everything that a pod can leave, each of it once.
    fn build(&self) -> Result<()> {
        // With records: made by a manager that is not there any more.
        self.node.apply(
            "pod.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: test}\nspec:\n  containers:\n  - {name: main, image: \
             example.org/main}\n  volumes:\n  - {name: m, emptyDir: {medium: Memory}}\n  - {name: d, emptyDir: {}}\n",
        )?;
        self.node.once()?.expect(0)?;
        if self.phase != "release" {
            self.node.no_pods()?;
        }
        let (plain, device) = (self.node.host().join("plain"), self.node.host().join("device"));
        let bind = |from: &Path, to: &Path| rustix::mount::mount_bind(from, to).context("cannot bind");
        bind(&plain, &self.folder_of("pods/u1/volume-subpaths/v/c/0")?)?;
        let stacked = self.folder_of("pods/u1/volumes/kubernetes.io~nfs/v")?;
        bind(&plain, &stacked)?;
        bind(&plain, &stacked)?;
        bind(&device, &stacked.join("inside"))?;
        let scratch = self.folder_of("pods/u1/volumes/kubernetes.io~empty-dir/e")?;
        std::fs::write(scratch.join("own"), "the pod's")?;
        std::fs::create_dir(scratch.join("n"))?;
        bind(&plain, &scratch.join("n"))?;
        let global = self.folder_of("plugins/kubernetes.io/local-volume/mounts/pv")?;
        bind(&device, &global)?;
        bind(&global, &self.folder_of("pods/u2/volumes/kubernetes.io~local-volume/pv")?)?;
        let payload = self.folder_of("pods/u2/volumes/kubernetes.io~configmap/c")?;
        let stamped = "..2024_01_01_00_00_00.1";
        std::fs::create_dir(payload.join(stamped))?;
        std::fs::write(payload.join(stamped).join("key"), "value")?;
        symlink(stamped, payload.join("..data"))?;
        symlink("..data/key", payload.join("key"))?;
        std::fs::write(self.node.root.join("pods/u2/etc-hosts"), "# Kubernetes-managed hosts file.\n")?;
        Ok(())
    }

    fn check_data(&self) -> Result<()> {
        for file in ["plain/data", "plain/inside/data", "device/data", "device/inside/data"] {
            let text = std::fs::read_to_string(self.node.host().join(file)).context("the host lost a file")?;
            ensure!(text == DATA, "the host's {file} is {text:?}");
        }
        Ok(())
    }

    /// Runs it once more, to its end.
    fn again(&self) -> Result<serde_json::Value> {
        if self.phase.starts_with("agent") {
            return self.agent_to_the_end();
        }
        let arguments = self.arguments()?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ran = self.node.run(&arguments)?.expect(0)?;
        self.check_data()?;
        ran.json()
    }
}

impl Scenario for Clean {
    fn prepare(&mut self, phase: &str) -> Result<()> {
        phase.clone_into(&mut self.phase);
        self.build()
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn arguments(&self) -> Result<Vec<String>> {
        let pods = self.node.pods();
        let pods = pods.to_str().context("a folder's name is not UTF-8")?;
        let words = match self.phase.as_str() {
            "agent" => Some(vec!["agent", "--once"]),
            "agent-clean" => Some(Self::agent_clean(pods)),
            _ => None,
        };
        if let Some(words) = words {
            return Ok(words.into_iter().map(str::to_owned).collect());
        }
        let mut all = vec![
            self.phase.as_str(),
            "--yes",
            "-o",
            "json",
            "--workers",
            "1",
            "--delete-ephemeral",
            "--manifests",
            pods,
        ];
        match self.phase.as_str() {
            "release" => all.push("--including-running"),
            _ => all.extend(["--grace", "0s"]),
        }
        Ok(all.into_iter().map(str::to_owned).collect())
    }

    fn check_restart(&mut self, _: &str) -> Result<()> {
        self.check_data().context("right after the kill")?;
        if self.phase == "agent" {
            self.check_recorded()?;
        }
        let plan = self.again()?;
        ensure!(self.node.mounts()?.is_empty(), "mounts are left: {:?}\n{plan:#}", self.node.mounts()?);
        let pods = node::files(&self.node.root.join("pods"))?;
        ensure!(pods.is_empty(), "folders of pods are left: {pods:?}\n{plan:#}");
        let records = node::files(&self.node.state)?;
        let left: Vec<_> = records.iter().filter(|p| p.components().count() > 1).collect();
        ensure!(left.is_empty(), "record files are left: {left:?}\n{plan:#}");
        Ok(())
    }

    fn check_no_pods(&mut self) -> Result<()> {
        let plan = self.again()?;
        ensure!(plan["steps"] == serde_json::json!([]), "there is still something to do: {plan:#}");
        Ok(())
    }
}
