//! A FUSE daemon that does not answer, under the binary.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};

use crate::life::{Manager, wait};
use crate::node::Node;
use crate::{Test, Verdict, pod, tool, volume};

pub(crate) const TESTS: &[(&str, Test)] =
    &[("scan_answers_at_once_over_a_dead_server", scan), ("a_stop_does_not_wait_for_a_dead_server", stop)];

/// A command that has nothing to wait for answers in a few milliseconds; one that asks the dead server never does.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A folder that a daemon shows at another place.
pub(crate) struct Fuse {
    pub(crate) daemon: Child,
    behind: PathBuf,
    pub(crate) point: PathBuf,
}

impl Fuse {
    /// None if there is no FUSE to be had.
    pub(crate) fn new(node: &Node) -> Result<Option<Self>> {
        let (behind, point) = (node.host().join("behind"), node.host().join("fuse"));
        std::fs::create_dir(&behind)?;
        std::fs::create_dir(&point)?;
        let spawned = Command::new("bindfs").arg("-f").args([&behind, &point]).stderr(Stdio::null()).spawn();
        let Ok(daemon) = spawned else { return Ok(None) };
        let mut fuse = Self { daemon, behind, point };
        wait("the FUSE mount", || {
            Ok(std::fs::read_to_string("/proc/self/mountinfo")?.contains("fuse") || fuse.daemon.try_wait()?.is_some())
        })?;
        Ok(fuse.daemon.try_wait()?.is_none().then_some(fuse))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        rustix::process::kill_process(Pid::from_child(&self.daemon), signal)?;
        if signal == Signal::STOP {
            let stat = format!("/proc/{}/stat", self.daemon.id());
            wait("the daemon's stop", || Ok(std::fs::read_to_string(&stat)?.contains(") T ")))?;
        }
        Ok(())
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // Whoever waits for it is let go, with an error.
        let _ = self.signal(Signal::CONT);
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn persistent(path: &Path) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv}}\nspec:\n  capacity: {{storage: 1Mi}}\n  \
         accessModes: [ReadWriteOnce]\n  local: {{path: {}}}\n  claimRef: {{namespace: test, name: claim}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: claim, namespace: test}}\nspec:\n  \
         volumeName: pv\n  accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: 1Mi}}}}\n",
        path.display()
    )
}

const CLAIM: &str = "  - {name: v, persistentVolumeClaim: {claimName: claim}}\n";
const MEMORY: &str = "  - {name: m, emptyDir: {medium: Memory}}\n";

pub(crate) fn skipped() -> Verdict {
    Verdict::Skipped("bindfs or FUSE is not to be had".into())
}

/// B21, with a record and without.
fn scan(node: &mut Node) -> Result<Verdict> {
    let Some(fuse) = Fuse::new(node)? else { return Ok(skipped()) };
    node.apply("pv.yaml", &persistent(&fuse.point))?;
    node.apply("web.yaml", &pod("web", "[{name: v, mountPath: /v, subPath: x}]", CLAIM))?;
    node.once()?.expect(0)?;
    let nfs = node.root.join("pods/no-record/volumes/kubernetes.io~nfs/v");
    std::fs::create_dir_all(&nfs)?;
    tool("mount", &["--bind".as_ref(), fuse.point.as_ref(), nfs.as_ref()])?;
    fuse.signal(Signal::STOP)?;
    for args in [&["scan", "-o", "json"][..], &["scan", "-o", "wide"], &["explain", "test/web"], &["doctor"]] {
        let begun = Instant::now();
        let ran = node.run(args)?;
        ensure!(begun.elapsed() < AT_ONCE, "{args:?} took {:?}", begun.elapsed());
        ensure!(ran.code == 0 || ran.code == 3, "{ran:?}");
    }
    let scan = node.scan()?.json()?;
    let seen = volume(&scan, "web", "v")?;
    ensure!(
        seen["state"] == "Mounted" && seen["mount"]["fsType"].as_str().is_some_and(|t| t.contains("fuse")),
        "{seen:#}"
    );
    let all = scan["volumes"].as_array().context("no list")?;
    ensure!(all.iter().any(|v| v["pod"]["uid"] == "no-record" && v["mounted"] == true), "{scan:#}");
    // A restart, the rounds of it, and another pod's volumes.
    node.apply("other.yaml", &pod("other", "[]", MEMORY))?;
    let begun = Instant::now();
    node.once()?;
    ensure!(begun.elapsed() < AT_ONCE, "a restart took {:?}", begun.elapsed());
    ensure!(volume(&node.scan()?.json()?, "other", "m")?["state"] == "Mounted");
    drop(fuse);
    Ok(Verdict::Passed)
}

/// B22: SIGTERM while the unmount of a disk whose blocks are on the dead server waits where no signal reaches it.
fn stop(node: &mut Node) -> Result<Verdict> {
    let Some(fuse) = Fuse::new(node)? else { return Ok(skipped()) };
    let image = fuse.behind.join("disk.img");
    std::fs::File::create(&image)?.set_len(8 << 20)?;
    if tool("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image.as_ref()]).is_err() {
        return Ok(Verdict::Skipped("mkfs.ext4 cannot be run".into()));
    }
    let Ok(device) = node.attach_loop(&fuse.point.join("disk.img")) else {
        return Ok(Verdict::Skipped("no loop device can be had".into()));
    };
    node.apply("pv.yaml", &persistent(&device))?;
    node.apply("web.yaml", &pod("web", "[]", CLAIM))?;
    node.once()?.expect(0)?;
    let scan = node.scan()?.json()?;
    std::fs::write(crate::path_of(&scan, "web", "v")?.join("file"), vec![7; 100_000])?;
    let global = node.root.join("plugins/kubernetes.io/local-volume/mounts/pv");
    fuse.signal(Signal::STOP)?;
    node.delete("web.yaml")?;
    let manager = Manager::start(node)?;
    wait("the unmount", || Ok(!node.mounts()?.contains(&global)))?;
    let begun = Instant::now();
    ensure!(manager.stop(Signal::TERM)? == Some(0));
    ensure!(begun.elapsed() < Duration::from_secs(8), "the stop took {:?}", begun.elapsed());
    let list = node.run(&["record", "list", "-o", "json"])?.expect(0)?.stdout;
    ensure!(list.contains("kubernetes.io/local-volume/pv"), "the device is forgotten: {list}");
    // Another manager can have the state folder: whoever still waits in the kernel holds nothing of it.
    fuse.signal(Signal::CONT)?;
    node.once()?.expect(0)?;
    crate::life::nothing_left(node)?;
    drop(fuse);
    Ok(Verdict::Passed)
}
