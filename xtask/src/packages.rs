//! The Debian packages that some tests need.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::find_tool;

/// A tool, the package that has it, and what cannot be tested without it.
const TOOLS: &[(&str, &str, &str)] = &[
    ("mkfs.ext4", "e2fsprogs", "local volumes on block devices"),
    ("blkid", "util-linux", "local volumes on block devices"),
    ("losetup", "mount", "local volumes on block devices"),
    ("mkfs.xfs", "xfsprogs", "csi-sanity, and the growth of mounted volumes"),
    ("bindfs", "bindfs", "dead FUSE mounts"),
    ("glusterd", "glusterfs-server", "GlusterFS volumes"),
    ("mount.glusterfs", "glusterfs-client", "GlusterFS volumes"),
    ("containerd", "containerd", "what needs a real node"),
    ("runc", "runc", "what needs a real node"),
    ("etcd", "etcd-server", "what needs a real node"),
    ("busybox", "busybox-static", "what needs a real node"),
    ("qemu-system-x86_64", "qemu-system-x86", "what needs a virtual machine"),
    ("chromium", "chromium", "the page of `scan -o html` in a browser"),
];

/// How long one `apt-get` may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Installs what is missing, as root and where a package archive can be reached. Answers what is still missing:
/// the tool, and what cannot be tested without it.
pub(crate) fn install_missing() -> Vec<(&'static str, &'static str)> {
    let missing = || TOOLS.iter().filter(|(tool, ..)| find_tool(tool).is_none());
    let packages: Vec<_> = missing().map(|(_, package, _)| *package).collect();
    if !packages.is_empty() && rustix::process::geteuid().is_root() && find_tool("apt-get").is_some() {
        eprintln!("installing {}", packages.join(", "));
        // A failed update does no harm if the packages are in the lists already.
        apt_get(&["update", "--quiet=2"]);
        for package in packages {
            apt_get(&["install", "--yes", "--quiet=2", "--no-install-recommends", package]);
        }
    }
    missing().map(|(tool, _, what)| (*tool, *what)).collect()
}

fn apt_get(args: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).stdout(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(100)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}
