//! What a scenario of the kill sweep is: a node, what the manager does on it, and what must hold after a kill.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use serde_json::Value;

use super::point::Point;
use super::{clean, csi, flex, glusterfs, plugins, san, tracer};
use crate::node::{self, Node};
use crate::process::{find_tool, is_real_root};

/// A scenario on one node, in the mount namespace of this process.
pub(super) trait Scenario {
    /// Brings the node to where the phase starts.
    fn prepare(&mut self, phase: &str) -> Result<()>;

    /// The node.
    fn node(&self) -> &Node;

    /// What the manager is told. It ends by itself.
    fn arguments(&self) -> Result<Vec<String>> {
        let pods = self.node().pods();
        let pods = pods.to_str().context("a folder's name is not UTF-8")?;
        Ok(["node", "--once", "-o", "json", "--workers", "1", "--manifests", pods].map(str::to_owned).to_vec())
    }

    /// The manager's run that is killed.
    fn command(&self) -> Result<Command> {
        let mut command = tracer::command(self.node().binary());
        let arguments = self.arguments()?;
        self.node().configure(&mut command, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        Ok(command)
    }

    /// Names of the calls that count too, if they are made on a socket: what the manager says to others and hears.
    fn socket_calls(&self) -> &'static [&'static str] {
        &[]
    }

    /// Another process to kill, by its name in [`Kind::others`].
    fn other(&self, name: &str) -> Option<Pid> {
        let _ = name;
        None
    }

    /// Checks how the run ended in which another process was killed at this point, and starts that again.
    fn after_other(&mut self, point: &Point, status: ExitStatus) -> Result<()> {
        ensure!(matches!(status.code(), Some(0 | 1 | 3)), "at {point} the manager ended with {status}");
        Ok(())
    }

    /// Starts again with the same pods, and checks that everything is there, once, with its data.
    fn check_restart(&mut self, phase: &str) -> Result<()>;

    /// Starts again without pods, and checks that nothing is left.
    fn check_no_pods(&mut self) -> Result<()> {
        self.node().no_pods()?;
        self.node().once()?.expect(0).context("the restart without pods")?;
        self.check_nothing_left()
    }

    /// Checks that nothing is left on the node or elsewhere.
    fn check_nothing_left(&self) -> Result<()> {
        check_nothing_left(self.node())
    }
}

/// What is known of a scenario before there is a node.
pub(super) struct Kind {
    /// What the manager does when it is killed. No two scenarios have a phase of the same name.
    pub(super) phases: &'static [&'static str],
    /// The processes that are killed besides the manager.
    pub(super) others: &'static [&'static str],
    /// How many kill points `--part` tries.
    pub(super) part: usize,
    /// Makes what all nodes share, in this folder; it is called once. Answers why the scenario cannot run here, if it cannot.
    pub(super) shared: fn(&Path) -> Result<Option<String>>,
    /// Makes a node, with the binary and the folder of what is shared.
    pub(super) new: fn(&Path, &Path) -> Result<Box<dyn Scenario>>,
}

/// Every scenario.
pub(super) const ALL: &[Kind] = &[plugins::KIND, csi::KIND, clean::KIND, flex::KIND, glusterfs::KIND, san::KIND];

/// The scenario that has a phase.
pub(super) fn of_phase(phase: &str) -> Result<&'static Kind> {
    ALL.iter().find(|kind| kind.phases.contains(&phase)).with_context(|| format!("there is no phase {phase:?}"))
}

/// Which of the pods' files must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    /// None was written yet.
    None,
    /// Those in persistent volumes: the pods were gone in between.
    Persistent,
    /// All.
    All,
}

/// The path of a volume, from a scan.
pub(super) fn volume_path(scan: &Value, pod: &str, volume: &str) -> Result<PathBuf> {
    let volumes = scan["volumes"].as_array().context("a scan without volumes")?;
    let found = volumes.iter().find(|v| v["pod"]["name"] == pod && v["volume"] == volume);
    let path = found.and_then(|v| v["path"].as_str());
    Ok(path.with_context(|| format!("the scan has no path for {pod}/{volume}"))?.into())
}

/// Makes an ext4 file system in a new file of this size, with further options of mkfs.ext4.
pub(super) fn make_ext4(path: &Path, size: u64, options: &[&OsStr]) -> Result<()> {
    File::create(path)?.set_len(size)?;
    let mut mkfs = Command::new("mkfs.ext4");
    let status = mkfs.args(["-q", "-F"]).args(options).arg(path).stdin(Stdio::null()).status();
    ensure!(status.context("cannot run mkfs.ext4")?.success(), "mkfs.ext4 failed");
    Ok(())
}

/// Makes the file system that each run copies to its disks, or says why there can be none.
pub(super) fn make_disk(path: &Path, size: u64) -> Result<Option<String>> {
    if !is_real_root() || find_tool("mkfs.ext4").is_none() {
        return Ok(Some("disks need root and mkfs.ext4".into()));
    }
    make_ext4(path, size, &[]).map(|()| None)
}

/// A folder of programs that play a part on this node, before all others in its `PATH`.
pub(super) fn tools_of(node: &mut Node) -> Result<PathBuf> {
    let tools = node.folder().join("tools");
    std::fs::create_dir(&tools)?;
    let path = std::env::var("PATH").unwrap_or_default();
    node.env.push(("PATH".into(), format!("{}:{path}", tools.display())));
    Ok(tools)
}

/// Checks that a scan has these volumes (`pod/volume`, sorted) and no others, each wanted, recorded and mounted once.
pub(super) fn check_volumes(node: &Node, scan: &Value, expected: &[String]) -> Result<()> {
    let mut names = Vec::new();
    for v in scan["volumes"].as_array().context("a scan without volumes")? {
        let name = format!("{}/{}", v["pod"]["name"].as_str().unwrap_or("?"), v["volume"].as_str().unwrap_or("?"));
        ensure!(v["state"] == "Mounted" && v["wanted"] == "Yes" && v["record"] == "Ok", "{name} is {v}");
        ensure!(v["mount"].is_null() || v["mount"]["stack"] == 1, "{name} is mounted more than once: {v}");
        for sub in v["subPaths"].as_array().context("subPaths is no list")? {
            ensure!(sub["mounted"] == true, "a subPath of {name} is not mounted: {v}");
        }
        names.push(name);
    }
    names.sort();
    ensure!(names == expected, "there are other volumes than there should be:\n{names:?}\n{expected:?}");
    // Every mount point once, asked of the kernel and not of the program.
    let mut mounts = node.mounts()?;
    let all = mounts.len();
    mounts.dedup();
    ensure!(all == mounts.len(), "something is mounted twice: {:?}", node.mounts()?);
    Ok(())
}

/// Checks that nothing is left on a node: no mount, folder or record.
pub(super) fn check_nothing_left(node: &Node) -> Result<()> {
    let mounts = node.mounts()?;
    ensure!(mounts.is_empty(), "mounts are left: {mounts:?}");
    let pods = node::files(&node.root.join("pods"))?;
    ensure!(pods.is_empty(), "folders of pods are left: {pods:?}");
    let plugins = node.root.join("plugins");
    if std::fs::symlink_metadata(&plugins).is_ok() {
        let global = node::files(&plugins)?;
        let left: Vec<_> = global.iter().filter(|p| p.components().count() > 3).collect();
        ensure!(left.is_empty(), "global folders are left: {left:?}");
    }
    let records = node::files(&node.state)?;
    let left: Vec<_> = records.iter().filter(|p| p.components().count() > 1).collect();
    ensure!(left.is_empty(), "record files are left: {left:?}");
    let scan = node.scan()?.expect(0).context("the scan of the empty node")?.json()?;
    for list in ["volumes", "devices", "leftovers"] {
        ensure!(scan[list].as_array().is_some_and(Vec::is_empty), "the scan finds {list}: {}", scan[list]);
    }
    Ok(())
}
