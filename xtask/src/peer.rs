//! The peer: the programs of `bench/peer`, which make kubelet roots with real mounts and run the kubelet's own
//! reconstruction on them.

pub(crate) mod check;
mod compare;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::process::{find_tool, is_real_root, run, workspace};

/// The peer's programs, built.
#[derive(Debug)]
pub(crate) struct Peer {
    bin: PathBuf,
}

/// Which programs are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Programs {
    /// `make-tree` alone: built in seconds, without a network.
    Tree,
    /// The floor and the kubelet too: the kubelet's packages are fetched and built, which takes minutes at first.
    All,
}

impl Peer {
    /// Builds the programs. The inner error says why they cannot be had or run here.
    ///
    /// They go to `peer` in the build folder, or to the folder that `PEER_OUT` names. Go builds only what changed.
    pub(crate) fn build(programs: Programs, build_folder: &Path) -> Result<Result<Self, String>> {
        if !is_real_root() {
            return Ok(Err("it needs root (loop devices)".into()));
        }
        let tools: &[&str] = if programs == Programs::All { &["go", "cc", "mkfs.ext4"] } else { &["go", "mkfs.ext4"] };
        if let Some(tool) = tools.iter().find(|tool| find_tool(tool).is_none()) {
            return Ok(Err(format!("there is no {tool}")));
        }
        let source = workspace().join("bench/peer");
        let out = std::env::var_os("PEER_OUT").map_or_else(|| build_folder.join("peer"), PathBuf::from);
        let bin = std::path::absolute(out.join("bin")).context("cannot tell where the peer's programs go")?;
        std::fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
        // In the module's folder Go says so if it is too old for it and cannot get a newer one.
        let version = Command::new("go").arg("version").current_dir(&source).output().context("cannot run go")?;
        if !version.status.success() {
            return Ok(Err(String::from_utf8_lossy(&version.stderr).trim().to_owned()));
        }
        let packages = if programs == Programs::All { "./cmd/..." } else { "./cmd/make-tree" };
        let mut go = Command::new("go");
        go.args(["build", "-trimpath", "-buildvcs=false", "-o"]).arg(format!("{}/", bin.display())).arg(packages);
        run(go.current_dir(&source).stdin(Stdio::null()))?;
        if programs == Programs::All {
            let mut cc = Command::new("cc");
            cc.args(["-O2", "-Wall", "-o"]).arg(bin.join("probe")).arg("probe/probe.c");
            run(cc.current_dir(&source).stdin(Stdio::null()))?;
        }
        Ok(Ok(Self { bin }))
    }

    /// One of the programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

/// A kubelet root made by `make-tree`. It has its mounts only while a command runs in it.
#[derive(Debug)]
pub(crate) struct Tree {
    base: tempfile::TempDir,
}

impl Tree {
    /// A folder for a tree.
    pub(crate) fn new() -> Result<Self> {
        let base = tempfile::Builder::new().prefix("refloat-peer-").tempdir();
        Ok(Self { base: base.context("cannot make a folder for a tree")? })
    }

    /// The folder with the tree, the truth and what commands write there.
    pub(crate) fn base(&self) -> &Path {
        self.base.path()
    }

    /// The kubelet root.
    pub(crate) fn root(&self) -> PathBuf {
        self.base().join("fs/kubelet")
    }

    /// Makes the tree with these flags of `make-tree`, runs a command in its mount namespace, and answers what that
    /// printed. The command's standard error goes to ours. One of these exit codes is expected.
    pub(crate) fn run(&self, peer: &Peer, flags: &[&str], command: &Command, codes: &[i32]) -> Result<Vec<u8>> {
        let mut make = Command::new(peer.program("make-tree"));
        make.arg("-base").arg(self.base()).args(flags).arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => make.env(name, value),
                None => make.env_remove(name),
            };
        }
        let output = make.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run make-tree")?;
        ensure!(
            output.status.code().is_some_and(|code| codes.contains(&code)),
            "{make:?} ended with {}",
            output.status
        );
        // Its first line is make-tree's own.
        let line = output.stdout.iter().position(|&b| b == b'\n').context("make-tree said nothing")?;
        Ok(output.stdout[line + 1..].to_vec())
    }
}
