//! A FUSE daemon that does not answer, under the binary.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};

use crate::life::{Manager, wait};
use crate::node::Node;
use crate::{Test, Verdict, pod, tool, volume};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("scan_answers_at_once_over_a_dead_server", scan),
    ("a_stopped_daemon_is_named_in_every_layout", named),
    ("usage_is_told_and_a_silent_file_system_named", usage),
    ("a_stop_does_not_wait_for_a_dead_server", stop),
];

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

/// Whether this kernel tells which process serves which FUSE file system.
fn is_told(fuse: &Fuse) -> Result<bool> {
    for entry in std::fs::read_dir(format!("/proc/{}/fdinfo", fuse.daemon.id()))? {
        if std::fs::read_to_string(entry?.path())?.contains("fuse_connection") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// B21: under each kind of layout that a file system may lie in.
fn named(node: &mut Node) -> Result<Verdict> {
    let Some(fuse) = Fuse::new(node)? else { return Ok(skipped()) };
    if !is_told(&fuse)? {
        return Ok(Verdict::Skipped("this kernel does not tell who serves a FUSE file system".into()));
    }
    let places = [
        "pods/u1/volumes/kubernetes.io~nfs/v",
        "pods/u1/volumes/kubernetes.io~glusterfs/v",
        "pods/u1/volumes/kubernetes.io~csi/v/mount",
        "pods/u1/volumes/acme~fuse/v",
        "pods/u1/volumes/kubernetes.io~empty-dir/e/inside",
        "pods/u2/volume-subpaths/v/main/0",
        "pods/u3/elsewhere",
        "plugins/kubernetes.io/csi/acme.example/0a/globalmount",
        "plugins/kubernetes.io~quobyte",
    ];
    for place in places {
        let point = node.root.join(place);
        std::fs::create_dir_all(&point)?;
        tool("mount", &["--bind".as_ref(), fuse.point.as_ref(), point.as_ref()])?;
    }
    let healthy = node.root.join("pods/u1/volumes/kubernetes.io~nfs/healthy");
    std::fs::create_dir_all(&healthy)?;
    tool("mount", &["-t".as_ref(), "tmpfs".as_ref(), "srv:/e".as_ref(), healthy.as_ref()])?;
    let named = |text: &str| text.contains("FileSystemHangs");
    ensure!(!named(&node.run(&["scan", "-o", "json"])?.stdout), "a daemon that answers is said to hang");
    fuse.signal(Signal::STOP)?;
    let daemon = format!("process {} (bindfs), is stopped", fuse.daemon.id());
    let id = |path: &Path| -> Result<String> {
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        let path = path.to_str().context("not UTF-8")?;
        let line = table.lines().find(|line| line.split(' ').nth(4) == Some(path)).context("not mounted")?;
        Ok(line.split(' ').next().unwrap_or_default().to_owned())
    };
    let begun = Instant::now();
    let seen = node.run(&["scan", "-o", "json"])?;
    ensure!(begun.elapsed() < AT_ONCE, "scan took {:?}", begun.elapsed());
    let scan = seen.json()?;
    for place in places {
        let point = node.root.join(place);
        // The emptyDir is named for what is inside it.
        let shown = point.to_str().context("not UTF-8")?;
        let entries = ["volumes", "devices", "leftovers"];
        let mut all = entries.iter().flat_map(|list| scan[*list].as_array().into_iter().flatten());
        let found = all.find(|entry| {
            entry["path"].as_str().is_some_and(|path| Path::new(shown).starts_with(path))
                && named(&entry["problems"].to_string())
        });
        let found = found.with_context(|| format!("nothing hangs at {place}: {scan:#}"))?;
        ensure!(found["problems"].to_string().contains(&daemon), "{found:#}");
        for target in [shown.to_owned(), id(&point)?] {
            let begun = Instant::now();
            let told = node.run(&["explain", &target])?;
            ensure!(begun.elapsed() < AT_ONCE, "explain {target} took {:?}", begun.elapsed());
            ensure!(told.stdout.contains(&daemon), "{target}: {}", told.stdout);
        }
    }
    for target in ["u1", "u1/v"] {
        let told = node.run(&["explain", target])?.stdout;
        ensure!(told.contains(&daemon), "{target}: {told}");
    }
    let mut volumes = scan["volumes"].as_array().into_iter().flatten();
    let other = volumes.find(|v| v["path"].as_str() == healthy.to_str()).context("the healthy one is lost")?;
    ensure!(!named(&other.to_string()), "{other:#}");
    drop(fuse);
    Ok(Verdict::Passed)
}

fn usage(node: &mut Node) -> Result<Verdict> {
    let Some(fuse) = Fuse::new(node)? else { return Ok(skipped()) };
    std::fs::create_dir_all(&node.root)?;
    let at = |name: &str| node.root.join("pods/u1/volumes/kubernetes.io~nfs").join(name);
    for name in ["small", "hung"] {
        std::fs::create_dir_all(at(name))?;
    }
    let size = "size=1m,nr_inodes=100";
    tool(
        "mount",
        &["-t".as_ref(), "tmpfs".as_ref(), "-o".as_ref(), size.as_ref(), "srv:/e".as_ref(), at("small").as_ref()],
    )?;
    std::fs::write(at("small").join("file"), vec![1; 512 << 10])?;
    tool("mount", &["--bind".as_ref(), fuse.point.as_ref(), at("hung").as_ref()])?;
    let ask = |node: &Node| -> Result<serde_json::Value> {
        let begun = Instant::now();
        let ran = node.run(&["scan", "--usage", "-o", "json"])?;
        ensure!(begun.elapsed() < AT_ONCE, "it took {:?}", begun.elapsed());
        ran.json()
    };
    let of = |scan: &serde_json::Value, name: &str| -> Result<serde_json::Value> {
        let mut volumes = scan["volumes"].as_array().into_iter().flatten();
        volumes.find(|v| v["specName"] == name).cloned().with_context(|| format!("no {name} in {scan:#}"))
    };
    let scan = ask(node)?;
    let small = of(&scan, "small")?;
    let told = &small["usage"];
    ensure!(told["totalBytes"] == 1 << 20 && told["usedBytes"] == 512 << 10, "{small:#}");
    ensure!(told["availableBytes"] == 512 << 10 && told["inodes"] == 100 && told["inodesUsed"] == 2, "{small:#}");
    ensure!(of(&scan, "hung")?["usage"]["totalBytes"].is_u64(), "{scan:#}");
    ensure!(!scan.to_string().contains("FileSystemHangs"), "{scan:#}");
    // Without the flag nobody is asked.
    ensure!(of(&node.run(&["scan", "-o", "json"])?.json()?, "small")?.get("usage").is_none());
    fuse.signal(Signal::STOP)?;
    let scan = ask(node)?;
    ensure!(of(&scan, "small")?["usage"] == *told, "{scan:#}");
    let hung = of(&scan, "hung")?;
    ensure!(hung["problems"].to_string().contains("FileSystemHangs") && hung.get("usage").is_none(), "{hung:#}");
    let table = node.run(&["scan", "--usage"])?.stdout;
    ensure!(table.contains("512Ki") && table.contains("1Mi") && table.contains("USED"), "{table}");
    fuse.signal(Signal::CONT)?;
    ensure!(of(&ask(node)?, "hung")?["usage"]["totalBytes"].is_u64());
    let ran = node.run(&["scan", "--usage", "--mountinfo", "/proc/self/mountinfo"])?;
    ensure!(ran.code == 2, "another node's file systems cannot be asked: {ran:?}");
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
