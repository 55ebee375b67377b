//! Tear-down of everything on a node: `refloat release`, the kubelet's own clean-up, and the floor, each on a tree of its own.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::super::median;
use super::{by_make_tree, timed};
use crate::peer::{Peer, Tree};

/// Who tears everything down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Who {
    /// Each mount unmounted, and each folder removed, with nothing asked
    Floor,
    /// `refloat release`
    Refloat,
    /// The kubelet's volume manager
    Kubelet,
}

impl Who {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The driver of the tree's CSI volumes.
const DRIVER: &str = "csi.peer.example";

/// How long each takes with this many volumes, in ms; the median of so many trees.
pub(super) fn all(peer: &Peer, refloat: &Path, volumes: usize, rounds: usize, kubelet_rounds: usize) -> Result<Value> {
    let of = |who: Who, rounds: usize| -> Result<Value> {
        let times = (0..rounds).map(|_| in_tree(peer, refloat, volumes, who)).collect::<Result<Vec<f64>>>()?;
        Ok(if times.is_empty() { Value::Null } else { median(times).into() })
    };
    Ok(json!({ "volumes": volumes, "floor": of(Who::Floor, rounds)?, "release": of(Who::Refloat, rounds)?,
        "kubelet": of(Who::Kubelet, kubelet_rounds)? }))
}

fn in_tree(peer: &Peer, refloat: &Path, volumes: usize, who: Who) -> Result<f64> {
    eprintln!("tear-down of {volumes} volumes: {}", who.name());
    let tree = Tree::new()?;
    let mut command = by_make_tree(peer, refloat, &tree);
    command.args(["--tear-down", &who.name()]);
    let pods = (volumes / 10).max(1).to_string();
    let printed = tree.run(peer, &["-pods", &pods], &command, &[0])?;
    serde_json::from_slice::<f64>(&printed).context("cannot read what was measured")
}

/// Measures in a tree that is mounted.
pub(super) fn inside(root: &Path, refloat: &Path, programs: &Path, who: Who) -> Result<f64> {
    let time = match who {
        Who::Floor => {
            let mut command = Command::new(programs.join("probe"));
            command.arg(root).arg("cleanup");
            timed(command, &[0])?.0
        }
        Who::Refloat => {
            let _driver = Driver::start(programs, root)?;
            let mut command = Command::new(refloat);
            command.args([
                "release",
                "--yes",
                "--including-running",
                "--delete-ephemeral",
                "--timeout",
                "10m",
                "-o",
                "json",
            ]);
            command.arg("--root-dir").arg(root).arg("--state-dir").arg(root.with_file_name("state")).env_clear();
            timed(command, &[0])?.0
        }
        Who::Kubelet => {
            let mut command = Command::new(programs.join("kubelet-reconstruct"));
            command.args(["-v=2", "-cleanup", "-root"]).arg(root).stderr(Stdio::null());
            let (_, printed) = timed(command, &[0])?;
            let text = String::from_utf8(printed).context("the kubelet's phases are text")?;
            let mut phases = text.lines().map(serde_json::from_str::<Value>);
            let cleanup = phases.find(|phase| phase.as_ref().is_ok_and(|phase| phase["phase"] == "cleanup"));
            let cleanup = cleanup.context("the kubelet did not clean up")??;
            return cleanup["wall_ms"].as_f64().context("the kubelet did not say how long it took");
        }
    };
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let below = format!(" {}/", root.display());
    let left = table.lines().filter(|line| line.contains(&below)).count();
    ensure!(left == 0, "{left} mounts are left");
    Ok(time)
}

/// A CSI node service that unmounts and does nothing else, in a process of its own.
struct Driver(Child);

impl Driver {
    fn start(programs: &Path, root: &Path) -> Result<Self> {
        let folder = root.join("plugins").join(DRIVER);
        std::fs::create_dir_all(&folder)?;
        let socket = folder.join("csi.sock");
        let mut command = Command::new(programs.join("kubelet-reconstruct"));
        command.arg("-serve-csi").arg(&socket).stdin(Stdio::null()).stderr(Stdio::null());
        let driver = Self(command.spawn().context("cannot start the CSI driver")?);
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            ensure!(start.elapsed() < Duration::from_secs(10), "the CSI driver does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(driver)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
