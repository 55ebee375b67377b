//! NFS volumes on the kernel's own server, with the kernel's own client and Debian's `mount.nfs`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use refloat_test_support::Verdict;
use rustix::process::Signal;

use crate::Test;
use crate::kit::{Manager, path_of, pod, volume, wait, wait_for};
use crate::node::Node;
use crate::services::{NfsServer, remove_tree, start_nfs_server};
use crate::shared::{MEMORY, at_once, nothing_waits, wait_for_nothing};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("nfs::an_export_lives_and_goes", life),
    ("nfs::a_silent_server_holds_up_nothing_and_comes_back", silent),
    ("nfs::an_ended_server_holds_up_no_restart_without_a_record", ended),
    ("nfs::a_lost_servers_mount_is_forced_for_a_gone_pod", forced),
    ("nfs::a_mount_in_use_of_a_lost_server_goes_lazily_where_allowed", lazily),
    ("nfs::a_server_that_is_not_there_is_told_and_tried_again", unreachable),
    ("nfs::an_export_that_is_withdrawn_is_unmounted", withdrawn),
];

/// The versions of the protocol, as a mount option.
const VERSIONS: [&str; 2] = ["nfsvers=4.1", "nfsvers=3"];
const CLAIM: &str = "  - {name: v, persistentVolumeClaim: {claimName: claim}}\n";

/// A `PersistentVolume` of the export, and its claim. The client asks again after a second; it never gives up.
fn persistent(server: &NfsServer, version: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv}}\nspec:\n  capacity: {{storage: 1Mi}}\n  \
         accessModes: [ReadWriteMany]\n  nfs: {{server: 127.0.0.1, path: {}}}\n  mountOptions: [hard, {version}, timeo=10]\n  \
         claimRef: {{namespace: test, name: claim}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\n\
         metadata: {{name: claim, namespace: test}}\nspec:\n  volumeName: pv\n  accessModes: [ReadWriteMany]\n  \
         resources: {{requests: {{storage: 1Mi}}}}\n",
        server.export().display()
    )
}

/// The export mounted for the pod `web`, by a manager that has ended. Answers where.
fn mounted(node: &Node, server: &NfsServer, version: &str) -> Result<PathBuf> {
    node.apply("pv.yaml", &persistent(server, version))?;
    node.apply("web.yaml", &pod("web", "[]", CLAIM))?;
    node.once()?.expect(0)?;
    path_of(&node.scan()?.json()?, "web", "v")
}

/// Somebody who reads a file, and waits for the server.
struct Reader(Child);

impl Reader {
    /// Of a server that does not answer any more.
    fn start(file: &Path) -> Result<Self> {
        let reader = Self(Command::new("cat").arg(file).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
        let at = format!("/proc/{}/wchan", reader.0.id());
        wait("the reader's wait", || Ok(std::fs::read_to_string(&at)?.contains("rpc_wait")))?;
        Ok(reader)
    }

    /// What it read, once it has ended.
    fn read(mut self) -> Result<String> {
        wait("the reader's end", || Ok(self.0.try_wait()?.is_some()))?;
        Ok(std::io::read_to_string(self.0.stdout.take().context("no output")?)?)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_mounted(node: &Node, path: &Path) -> Result<bool> {
    Ok(node.mounts()?.iter().any(|point| point == path))
}

/// The pods are deleted, and everything goes.
fn end(node: &Node) -> Result<()> {
    node.delete_all()?;
    node.once()?.expect(0)?;
    nothing_is_left(node)
}

fn nothing_is_left(node: &Node) -> Result<()> {
    wait_for_nothing(node, "kubernetes.io/nfs", Duration::from_secs(15))
}

fn life(node: &mut Node) -> Result<Verdict> {
    let server = start_nfs_server()?;
    for (version, fs_type) in VERSIONS.into_iter().zip(["nfs4", "nfs"]) {
        let path = mounted(node, &server, version)?;
        let seen = node.scan()?.expect(0)?.json()?;
        let seen = volume(&seen, "web", "v")?.clone();
        ensure!(seen["state"] == "Mounted" && seen["mount"]["fsType"] == fs_type, "{version}: {seen:#}");
        let source = format!("127.0.0.1:{}", server.export().display());
        ensure!(seen["mount"]["source"] == source, "{version}: {seen:#}");
        std::fs::write(path.join("written"), "by the pod")?;
        ensure!(std::fs::read_to_string(server.export().join("written"))? == "by the pod");

        // Killed, and started again: the very same mount.
        let manager = Manager::start(node)?;
        node.apply("other.yaml", &pod("other", "[]", MEMORY))?;
        wait("the other pod", || Ok(node.mounts()?.len() == 2))?;
        manager.stop(Signal::KILL)?;
        node.once()?.expect(0)?;
        let again = node.scan()?.expect(0)?.json()?;
        ensure!(volume(&again, "web", "v")?["mount"] == seen["mount"], "{version}: {again:#}");

        end(node)?;
        ensure!(std::fs::read_to_string(server.export().join("written"))? == "by the pod", "{version}");
    }
    Ok(Verdict::Passed)
}

/// B21, B22: kubernetes/kubernetes#101622. What is sent to the server is lost; then it is heard again.
fn silent(node: &mut Node) -> Result<Verdict> {
    let server = start_nfs_server()?;
    for version in VERSIONS {
        let path = mounted(node, &server, version)?;
        std::fs::write(server.export().join("asked"), "the answer")?;
        let silence = server.silence()?;
        let reader = Reader::start(&path.join("asked"))?;
        nothing_waits(node, 1).context(version)?;
        drop(silence);
        ensure!(reader.read()? == "the answer", "{version}");
        end(node)?;
    }
    Ok(Verdict::Passed)
}

/// The server refuses connections, and the volume's record is lost: what is mounted is known from the table.
fn ended(node: &mut Node) -> Result<Verdict> {
    let server = start_nfs_server()?;
    for version in VERSIONS {
        let path = mounted(node, &server, version)?;
        std::fs::write(server.export().join("asked"), "the answer")?;
        server.stop()?;
        let reader = Reader::start(&path.join("asked"))?;
        remove_tree(&node.state.join("volumes"))?;
        at_once("a restart", || node.once())?;
        let scan = at_once("a scan", || node.scan())?.json()?;
        let seen = volume(&scan, "web", "v")?;
        ensure!(seen["state"] == "Mounted" && seen["record"] == "Ok", "{version}: {seen:#}");
        server.start()?;
        ensure!(reader.read()? == "the answer", "{version}");
        end(node)?;
    }
    Ok(Verdict::Passed)
}

/// The pod is gone, and its mount is kept busy by who waits for the server: that wait ends with an error, the mount goes.
fn forced(node: &mut Node) -> Result<Verdict> {
    let server = start_nfs_server()?;
    for version in VERSIONS {
        let path = mounted(node, &server, version)?;
        std::fs::write(server.export().join("asked"), "the answer")?;
        let silence = server.silence()?;
        let reader = Reader::start(&path.join("asked"))?;
        node.apply("other.yaml", &pod("other", "[]", MEMORY))?;
        let manager = Manager::start_with(node, &["--operation-deadline", "4"])?;
        wait("the other pod", || Ok(node.mounts()?.len() == 2))?;
        node.remove("web.yaml")?;
        wait("the mount's end", || Ok(!is_mounted(node, &path)?))?;
        ensure!(reader.read()?.is_empty(), "{version}: it was answered");
        // The client of 4.1 takes leave of the server, and gives up after a minute and a half; until then the unmount has not ended.
        let silence = Some(silence).filter(|_| !version.contains('4'));
        wait_for(Duration::from_secs(40), "the folder's end", || Ok(!path.try_exists()?))?;
        drop((manager, silence));
        end(node)?;
        ensure!(server.export().join("asked").try_exists()?, "{version}");
    }
    Ok(Verdict::Passed)
}

/// Somebody stands in the mount, and does not go by himself.
fn lazily(node: &mut Node) -> Result<Verdict> {
    let server = start_nfs_server()?;
    for version in VERSIONS {
        let path = mounted(node, &server, version)?;
        std::fs::write(server.export().join("kept"), "the server's")?;
        let mut user = Command::new("sleep").arg("1000").current_dir(&path).stdin(Stdio::null()).spawn()?;
        let silence = server.silence()?;
        node.remove("web.yaml")?;
        let manager = Manager::start_with(node, &["--operation-deadline", "4"])?;
        // Long enough for a forced unmount, which does not do.
        std::thread::sleep(Duration::from_secs(12));
        ensure!(is_mounted(node, &path)?, "{version}: it was taken out of sight, and nobody allowed that");
        at_once("a stop", || manager.stop(Signal::TERM))?;
        let manager = Manager::start_with(node, &["--operation-deadline", "4", "--lazy-unmount"])?;
        wait("the mount's end", || Ok(!is_mounted(node, &path)?))?;
        wait("the folder's end", || Ok(!path.try_exists()?))?;
        user.kill()?;
        user.wait()?;
        drop((manager, silence));
        end(node)?;
        ensure!(server.export().join("kept").try_exists()?, "{version}");
    }
    Ok(Verdict::Passed)
}

/// The helper waits for the server; nothing else does, and nothing is left of what it was to make.
fn unreachable(node: &mut Node) -> Result<Verdict> {
    let server = start_nfs_server()?;
    let silence = server.silence()?;
    node.apply("pv.yaml", &persistent(&server, VERSIONS[0]))?;
    node.apply("web.yaml", &pod("web", "[]", CLAIM))?;
    node.apply("other.yaml", &pod("other", "[]", MEMORY))?;
    let manager = Manager::start_with(node, &["--operation-deadline", "4"])?;
    at_once("the other pod", || wait("the other pod", || Ok(node.mounts()?.len() == 1)))?;
    // Longer than the helper has.
    std::thread::sleep(Duration::from_secs(5));
    let scan = at_once("a scan", || node.scan())?.json()?;
    ensure!(volume(&scan, "web", "v")?["state"] != "Mounted", "{scan:#}");
    drop(silence);
    wait("the mount", || Ok(node.mounts()?.len() == 2))?;
    node.delete_all()?;
    nothing_is_left(node)?;
    manager.stop(Signal::TERM)?;
    Ok(Verdict::Passed)
}

/// The server is there, and does not know the export any more.
fn withdrawn(node: &mut Node) -> Result<Verdict> {
    let server = start_nfs_server()?;
    for version in VERSIONS {
        let path = mounted(node, &server, version)?;
        server.withdraw()?;
        let error = std::fs::read_dir(&path).and_then(|mut all| all.next().transpose()).err();
        ensure!(error.is_some(), "{version}: the export can still be read");
        at_once("a scan", || node.scan())?;
        node.delete_all()?;
        at_once("the end", || node.once()?.expect(0))?;
        nothing_is_left(node)?;
        server.show()?;
    }
    Ok(Verdict::Passed)
}
