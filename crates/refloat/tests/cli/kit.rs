//! What the binary's test programs share beside the node: its manager as a process, manifests, what a scan printed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::node::Node;

/// A pod of the namespace `test`.
pub(crate) fn pod(name: &str, mounts: &str, volumes: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  containers:\n  - name: main\n    \
         image: example.org/main\n    volumeMounts: {mounts}\n  volumes:\n{volumes}"
    )
}

/// A volume in what a scan printed.
pub(crate) fn volume<'a>(scan: &'a Value, pod: &str, name: &str) -> Result<&'a Value> {
    let mut volumes = scan["volumes"].as_array().into_iter().flatten();
    let found = volumes.find(|v| v["pod"]["name"] == pod && v["volume"] == name);
    found.ok_or_else(|| anyhow!("there is no volume {pod}/{name} in {scan:#}"))
}

/// The path of a volume.
pub(crate) fn path_of(scan: &Value, pod: &str, name: &str) -> Result<PathBuf> {
    let path = volume(scan, pod, name)?["path"].as_str();
    Ok(path.ok_or_else(|| anyhow!("{pod}/{name} has no path"))?.into())
}

/// Runs another program; an error if it fails.
pub(crate) fn tool(program: &str, args: &[&std::ffi::OsStr]) -> Result<()> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A manager that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Manager(Child);

impl Manager {
    /// Starts it with the manifest folder.
    pub(crate) fn start(node: &Node) -> Result<Self> {
        Self::start_with(node, &[])
    }

    /// The same with further arguments.
    pub(crate) fn start_with(node: &Node, more: &[&str]) -> Result<Self> {
        let pods = node.pods().display().to_string();
        let mut command = node.refloat(&[&["node", "--manifests", &pods], more].concat());
        Ok(Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal, and waits for its end. Answers the exit code.
    pub(crate) fn stop(mut self, signal: Signal) -> Result<Option<i32>> {
        rustix::process::kill_process(Pid::from_child(&self.0), signal)?;
        Ok(self.0.wait()?.code())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something is so.
pub(crate) fn wait(what: &str, is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_for(Duration::from_secs(15), what, is_so)
}

/// The same with another patience.
pub(crate) fn wait_for(patience: Duration, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(start.elapsed() < patience, "{what} did not happen within {} seconds", patience.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
