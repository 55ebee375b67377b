//! `scan` with a FUSE file system among the volumes whose daemon answers, and with the same one while it is stopped.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::super::median;
use super::{by_make_tree, scan, timed};
use crate::peer::{Peer, Tree};
use crate::process::find_tool;

/// The volume, in a folder of a pod that is the tree's no other volume's.
const VOLUME: &str = "pods/11111111-2222-4333-8444-555555555555/volumes/kubernetes.io~nfs/hung";

/// How long `scan` takes with so many volumes beside it, in ms, both ways; a word if there is no FUSE file system to be had.
pub(super) fn in_tree(peer: &Peer, refloat: &Path, volumes: usize, rounds: usize) -> Result<Value> {
    if find_tool("bindfs").is_none() {
        println!("skipped: scan beside a file system that hangs: there is no bindfs");
        return Ok(Value::Null);
    }
    eprintln!("{volumes} volumes and one that hangs");
    let tree = Tree::new()?;
    let mut command = by_make_tree(peer, refloat, &tree);
    command.args(["--hung", "--rounds", &rounds.to_string()]);
    let printed = tree.run(peer, &["-pods", &(volumes / 10).max(1).to_string()], &command, &[0])?;
    serde_json::from_slice(&printed).context("cannot read what was measured")
}

/// Measures in a tree that is mounted.
pub(super) fn inside(root: &Path, refloat: &Path, rounds: usize) -> Result<Value> {
    let daemon = Daemon::start(root)?;
    let (mut answers, mut hangs, mut volumes) = (Vec::new(), Vec::new(), Value::Null);
    // In turn, so that what else the machine does meets both alike; the first of both only brings all into memory.
    for round in 0..=rounds {
        for (times, stopped) in [(&mut answers, false), (&mut hangs, true)] {
            daemon.signal(if stopped { Signal::STOP } else { Signal::CONT })?;
            let (time, printed) = timed(scan(refloat, root), &[0, 3])?;
            if round > 0 {
                times.push(time);
            }
            let seen: Value = serde_json::from_slice(&printed).context("cannot read what scan printed")?;
            volumes = seen["summary"]["volumes"].clone();
            let all = seen["volumes"].as_array().context("scan printed no volumes")?;
            ensure!(
                all.iter().any(|v| v["path"].as_str().is_some_and(|p| p.ends_with(VOLUME))),
                "scan does not see it"
            );
        }
    }
    Ok(json!({ "volumes": volumes, "answers": median(answers), "hangs": median(hangs) }))
}

/// The daemon of the volume's file system; killed, and its mount taken away, when this is dropped.
struct Daemon {
    child: Child,
    target: std::path::PathBuf,
}

impl Daemon {
    fn start(root: &Path) -> Result<Self> {
        let (source, target) = (root.join("hung-source"), root.join(VOLUME));
        for folder in [&source, &target] {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let mut command = Command::new("bindfs");
        command.arg("-f").arg(&source).arg(&target).stdin(Stdio::null()).stdout(Stdio::null());
        let daemon = Self { child: command.spawn().context("cannot run bindfs")?, target };
        let end = Instant::now() + Duration::from_secs(10);
        while !mounted(&daemon.target)? {
            ensure!(Instant::now() < end, "bindfs mounts nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("cannot signal the FUSE daemon")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = rustix::mount::unmount(&self.target, rustix::mount::UnmountFlags::DETACH);
    }
}

fn mounted(target: &Path) -> Result<bool> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == target)))
}
