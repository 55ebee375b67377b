//! `blkid`, `mkfs` and `fsck` that hang or print what nobody can read.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use refloat_test_support::{Outcome, Skip, assert_readable, wait_within};
use refloat_volume::DeviceOutcome;
use serde_json::{Value, json};

use crate::life::Loop;
use crate::node::{Life, Node, kernels, there};

refloat_test_support::tests![a_tool_that_prints_garbage, a_tool_that_hangs_is_killed_with_its_children];

/// The tools, each the machine's own one unless a file beside it says otherwise of the device that it is called for.
pub const TOOLS: [(&str, &str); 3] = [("blkid", SCRIPT), ("mkfs.ext4", SCRIPT), ("fsck", SCRIPT)];

const SCRIPT: &str = r#"#!/bin/sh
for device; do :; done
says=$0.${device##*/}
if [ -e "$says.garbage" ]; then
    yes "$(printf 'TYPE=\033[2J\a\r\302')" | head -c 300000
    yes "$(printf 'lost+found/\033[31m\a')" | head -c 300000 >&2
    exit 4
fi
if [ -e "$says.hang" ]; then
    sleep 1000 &
    echo $! >>"$says.hang"
    wait
fi
PATH=${PATH#*:} exec "${0##*/}" "$@"
"#;

/// Lets a tool do something else with a device until this is dropped.
struct Does(PathBuf);

impl Does {
    fn new(tool: &str, device: &Loop, what: &str) -> Self {
        let device = device.0.file_name().unwrap().to_string_lossy();
        let path = std::env::var_os("PATH").unwrap();
        let file = std::env::split_paths(&path).next().unwrap().join(format!("{tool}.{device}.{what}"));
        fs::write(&file, "").unwrap();
        Self(file)
    }
}

impl Drop for Does {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn pv(device: &Loop) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv1" },
        "spec": { "local": { "path": device.0 }, "accessModes": ["ReadWriteOnce"] } })
}

/// A node with a disk, on which there is a file system already if the tool is one for such a disk.
fn with_disk(tool: &str) -> Result<(Node, Loop, Value), Skip> {
    let node = Node::new(kernels()[0].1);
    let device = Loop::for_file_system(&node, "image", 16 << 20)?;
    let pv = pv(&device);
    if tool == "fsck" {
        let mut life = Life::claim(&node, "u0", &pv);
        life.mount_device().unwrap();
        life.unmount_device().unwrap();
    }
    Ok((node, device, pv))
}

fn global(node: &Node) -> PathBuf {
    node.host.root.path().join("plugins/kubernetes.io/local-volume/mounts/pv1")
}

fn a_tool_that_prints_garbage() -> Outcome {
    for (tool, code) in [("blkid", "ToolFailed"), ("mkfs.ext4", "ToolFailed"), ("fsck", "FileSystemErrors")] {
        let (node, device, pv) = with_disk(tool)?;
        let mut life = Life::claim(&node, "u1", &pv);
        let does = Does::new(tool, &device, "garbage");
        let problem = life.mount_device().unwrap_err().problem();
        assert_eq!(problem.code, code, "{tool}: {problem:?}");
        assert!(problem.message.contains(tool.split('.').next().unwrap()), "{problem:?}");
        assert_readable(&problem.message);
        drop(does);
        assert_eq!(life.mount_device().unwrap(), DeviceOutcome::Mounted, "{tool}");
        life.unmount_device().unwrap();
        assert!(!there(&global(&node)), "{tool}");
    }
    Ok(())
}

fn a_tool_that_hangs_is_killed_with_its_children() -> Outcome {
    for tool in ["blkid", "mkfs.ext4", "fsck"] {
        let (mut node, device, pv) = with_disk(tool)?;
        // mkfs and fsck may take ten times as long.
        node.host.tool_deadline = Duration::from_millis(if tool == "blkid" { 2000 } else { 200 });
        let does = Does::new(tool, &device, "hang");
        let (problem, record) = {
            let mut life = Life::claim(&node, "u1", &pv);
            (life.mount_device().unwrap_err().problem(), life.device)
        };
        assert_eq!(problem.code, "ToolTimeout", "{tool}: {problem:?}");
        assert!(problem.message.contains(tool) && problem.message.contains("was killed"), "{problem:?}");
        let child = fs::read_to_string(&does.0).unwrap();
        assert!(!child.trim().is_empty(), "{tool} began");
        let runs = |id: &str| fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep"));
        wait_within(Duration::from_secs(20), &format!("the end of the child of {tool}"), || {
            !child.split_whitespace().any(runs)
        });
        drop(does);
        node.host.tool_deadline = Duration::from_secs(20);
        let mut life = Life::claim(&node, "u1", &pv);
        life.device = record;
        assert_eq!(life.mount_device().unwrap(), DeviceOutcome::Mounted, "{tool}");
        life.unmount_device().unwrap();
        assert!(!there(&global(&node)), "{tool}");
    }
    Ok(())
}
