//! `refloat agent` beside a tree that somebody else makes.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::node::{Node, mount_tmpfs};
use crate::{Test, Verdict, pod};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("agent_records_what_appears_and_forgets_what_goes", comes_and_goes),
    ("agent_keeps_what_a_torn_file_told", torn),
    ("agent_takes_nothing_from_a_whole_record", whole),
    ("agent_warns_of_mounts_inside_empty_dirs", nested),
    ("agent_is_the_only_one", single),
    ("agent_forgets_nothing_when_the_root_is_covered", covered),
    ("agent_cleans_what_no_pod_wants", cleans),
    ("agent_tells_thousands_of_orphans_once", orphans),
    ("agent_needs_somebody_to_ask_before_it_cleans", asks),
    ("agent_sleeps_and_stays_small", idle),
];

/// A running agent; killed when dropped.
struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    fn start(node: &Node, more: &[&str]) -> Result<Self> {
        let log = node.folder().join("agent.log");
        let args = [&["agent", "-v", "--rest", "50ms"], more].concat();
        let mut command = node.refloat(&args);
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log)?;
        let child = command.stdout(Stdio::null()).stderr(file).spawn().context("cannot start the agent")?;
        let agent = Self { child, log };
        agent.wait_for_line("the agent runs")?;
        Ok(agent)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn wait_for_line(&self, part: &str) -> Result<()> {
        until(|| Ok(self.text().lines().any(|line| line.contains(part))))
            .with_context(|| format!("no line with {part:?} in\n{}", self.text()))
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in order.
    fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.code() == Some(0), "the agent ended with {status}\n{}", self.text());
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while !is()? {
        ensure!(Instant::now() < end, "it did not come to be so");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The records of volumes and devices, by name.
fn records(node: &Node) -> Result<Vec<Value>> {
    let listed = node.run(&["record", "list", "-o", "json"])?.expect(0)?.json()?;
    let mut all = vec![];
    for entry in listed["records"].as_array().context("no records")? {
        let file = entry["file"].as_str().context("a record without a file")?;
        all.push(node.run(&["record", "show", file, "-o", "json"])?.expect(0)?.json()?);
    }
    Ok(all)
}

fn record_of<'r>(records: &'r [Value], name: &str) -> Option<&'r Value> {
    records.iter().find(|record| record["specName"] == *name)
}

/// How many record files there are.
fn count(node: &Node) -> usize {
    let folders = ["volumes", "devices"];
    let names =
        folders.iter().flat_map(|kind| std::fs::read_dir(node.state.join(kind)).into_iter().flatten().flatten());
    names.filter(|entry| entry.file_name().to_string_lossy().ends_with(".json")).count()
}

/// A folder of a volume and the marker beside it.
fn volume(node: &Node, pod: &str, plugin: &str, name: &str) -> Result<PathBuf> {
    let path = node.root.join("pods").join(pod).join("volumes").join(plugin).join(name);
    std::fs::create_dir_all(&path)?;
    let marker = if plugin == "kubernetes.io~empty-dir" { name.to_owned() } else { format!("wrapped_{name}") };
    let folder = node.root.join("pods").join(pod).join("plugins/kubernetes.io~empty-dir").join(marker);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("ready"), "")?;
    Ok(path)
}

/// Removes a folder in which nothing is mounted.
fn remove(path: &Path) -> Result<()> {
    let status = std::process::Command::new("rm").args(["-r", "--one-file-system", "--"]).arg(path).status()?;
    ensure!(status.success(), "{} cannot be removed", path.display());
    Ok(())
}

fn comes_and_goes(node: &mut Node) -> Result<Verdict> {
    let agent = Agent::start(node, &[])?;
    let secret = volume(node, "u1", "kubernetes.io~secret", "s")?;
    mount_tmpfs(&secret, "1m")?;
    let scratch = volume(node, "u1", "kubernetes.io~empty-dir", "scratch")?;
    std::fs::write(scratch.join("file"), "the pod's")?;
    // Its folder may have been seen, and recorded, before it was mounted.
    until(|| {
        let known = records(node)?;
        let mounted = |record: &Value| record["mount"]["fsType"] == "tmpfs" && record["pod"]["uid"] == "u1";
        Ok(known.len() == 2 && record_of(&known, "s").is_some_and(mounted))
    })
    .with_context(|| agent.text())?;
    let scan = node.run(&["scan", "-o", "json"])?.expect(0)?.json()?;
    for volume in scan["volumes"].as_array().context("no volumes")? {
        ensure!(volume["record"] == "Ok" && volume["state"] == "Mounted", "{volume:#}");
        ensure!(volume["reconstruction"] == "Partial", "nobody told its whole spec: {volume:#}");
    }
    // Mounted anew meanwhile.
    unmount(&secret, UnmountFlags::empty())?;
    mount_tmpfs(&secret, "2m")?;
    until(|| Ok(node.run(&["scan", "-o", "json"])?.json()?["summary"]["problems"] == json!({})))
        .with_context(|| agent.text())?;
    agent.wait_for_line("the record of a volume was brought up to date")?;
    // The secret goes; the emptyDir's content stays, and its record with it.
    unmount(&secret, UnmountFlags::empty())?;
    std::fs::remove_dir(&secret)?;
    agent.wait_for_line("gone, and its record with it")?;
    until(|| Ok(count(node) == 1))?;
    agent.stop()?;
    ensure!(std::fs::read_to_string(scratch.join("file"))? == "the pod's", "the agent changed a file");
    // What happens while it is away is seen when it is back.
    remove(&node.root.join("pods/u1"))?;
    let agent = Agent::start(node, &[])?;
    until(|| Ok(count(node) == 0))?;
    agent.stop()?;
    Ok(Verdict::Passed)
}

/// A CSI volume as a kubelet has it.
fn csi(node: &Node) -> Result<(PathBuf, PathBuf)> {
    let folder = node.root.join("pods/u1/volumes/kubernetes.io~csi/pv");
    let mount = folder.join("mount");
    std::fs::create_dir_all(&mount)?;
    let data = json!({
        "attachmentID": "csi-1", "driverName": "d.test", "nodeName": "n", "specVolID": "pv", "volumeHandle": "h-1",
        "volumeLifecycleMode": "Persistent",
    });
    std::fs::write(folder.join("vol_data.json"), data.to_string())?;
    mount_tmpfs(&mount, "1m")?;
    Ok((folder, mount))
}

fn torn(node: &mut Node) -> Result<Verdict> {
    let agent = Agent::start(node, &[])?;
    let (folder, mount) = csi(node)?;
    // Its files may have been seen, and recorded, before it was mounted.
    until(|| Ok(record_of(&records(node)?, "pv").is_some_and(|record| record["mount"]["fsType"] == "tmpfs")))?;
    let before = records(node)?;
    ensure!(before[0]["uniqueName"] == "kubernetes.io/csi/d.test^h-1", "{:#}", before[0]);
    for (n, content) in [Some("{\"driv"), None].into_iter().enumerate() {
        match content {
            Some(content) => std::fs::write(folder.join("vol_data.json"), content)?,
            None => std::fs::remove_file(folder.join("vol_data.json"))?,
        }
        // So that it looks again.
        volume(node, "u2", "kubernetes.io~empty-dir", &format!("wake{n}"))?;
        until(|| Ok(count(node) == 2 + n))?;
        ensure!(record_of(&records(node)?, "pv") == Some(&before[0]), "the record changed: {:#?}", records(node)?);
    }
    let scan = node.run(&["scan", "-o", "json"])?.json()?;
    let volumes = scan["volumes"].as_array().context("no volumes")?;
    let of_csi = volumes.iter().find(|v| v["specName"] == "pv").context("no volume")?;
    ensure!(of_csi["uniqueName"] == "kubernetes.io/csi/d.test^h-1" && of_csi["state"] == "Mounted", "{of_csi:#}");
    unmount(&mount, UnmountFlags::empty())?;
    remove(&node.root.join("pods/u1"))?;
    until(|| Ok(count(node) == 2))?;
    agent.stop()?;
    Ok(Verdict::Passed)
}

fn whole(node: &mut Node) -> Result<Verdict> {
    node.apply(
        "pod.yaml",
        &pod("web", "[]", "  - {name: mem, emptyDir: {medium: Memory, sizeLimit: 1Mi}}\n  - {name: d, emptyDir: {}}\n"),
    )?;
    node.once()?.expect(0)?;
    let before = records(node)?;
    ensure!(before.iter().filter(|record| record["specName"].is_string()).count() == 2, "{before:#?}");
    let agent = Agent::start(node, &[])?;
    volume(node, "u2", "kubernetes.io~empty-dir", "more")?;
    agent.wait_for_line("recorded")?;
    let after = records(node)?;
    for record in &before {
        ensure!(after.contains(record), "{record:#} is not there any more: {after:#?}");
    }
    agent.stop()?;
    Ok(Verdict::Passed)
}

fn nested(node: &mut Node) -> Result<Verdict> {
    let agent = Agent::start(node, &[])?;
    let scratch = volume(node, "u1", "kubernetes.io~empty-dir", "scratch")?;
    let inside = scratch.join("inside");
    std::fs::create_dir(&inside)?;
    mount_tmpfs(&inside, "1m")?;
    let shown = inside.display().to_string();
    agent.wait_for_line(&format!("{shown} is mounted inside the emptyDir scratch of pod u1"))?;
    volume(node, "u1", "kubernetes.io~empty-dir", "more")?;
    until(|| Ok(count(node) == 2))?;
    unmount(&inside, UnmountFlags::empty())?;
    agent.wait_for_line("is not mounted inside the emptyDir scratch of pod u1 any more")?;
    let told = agent.text().lines().filter(|line| line.contains("is mounted inside")).count();
    ensure!(told == 1, "it was told {told} times\n{}", agent.text());
    agent.stop()?;
    Ok(Verdict::Passed)
}

fn single(node: &mut Node) -> Result<Verdict> {
    let agent = Agent::start(node, &[])?;
    let other = node.run(&["agent"])?.expect(1)?;
    ensure!(other.stderr.contains("only one agent or manager may use a state folder"), "{}", other.stderr);
    agent.stop()?;
    Ok(Verdict::Passed)
}

fn covered(node: &mut Node) -> Result<Verdict> {
    let agent = Agent::start(node, &[])?;
    let secret = volume(node, "u1", "kubernetes.io~secret", "s")?;
    mount_tmpfs(&secret, "1m")?;
    until(|| Ok(count(node) == 1))?;
    mount_tmpfs(&node.root, "1m")?;
    agent.wait_for_line("is covered by another mount")?;
    ensure!(count(node) == 1, "a record is gone");
    unmount(&node.root, UnmountFlags::empty())?;
    // A symlink in a pod's folder leads nowhere.
    symlink("/", node.root.join("pods/u1/volumes/kubernetes.io~nfs"))?;
    volume(node, "u2", "kubernetes.io~empty-dir", "more")?;
    until(|| Ok(count(node) == 2))?;
    agent.stop()?;
    Ok(Verdict::Passed)
}

fn cleans(node: &mut Node) -> Result<Verdict> {
    node.apply(
        "wanted.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: test, uid: u2}\nspec:\n  containers:\n  - {name: main, \
         image: example.org/main}\n  volumes:\n  - {name: mem, emptyDir: {medium: Memory}}\n",
    )?;
    let wanted = volume(node, "u2", "kubernetes.io~empty-dir", "mem")?;
    mount_tmpfs(&wanted, "1m")?;
    let secret = volume(node, "u1", "kubernetes.io~secret", "s")?;
    mount_tmpfs(&secret, "1m")?;
    let scratch = volume(node, "u1", "kubernetes.io~empty-dir", "scratch")?;
    std::fs::write(scratch.join("own"), "the pod's")?;
    let inside = scratch.join("inside");
    std::fs::create_dir(&inside)?;
    mount_tmpfs(&inside, "1m")?;
    let only_dirs = volume(node, "u3", "kubernetes.io~empty-dir", "empty")?;
    let pods = node.pods();
    let agent = Agent::start(node, &["--clean", "--grace", "0s", "--manifests", pods.to_str().context("not UTF-8")?])?;
    until(|| Ok(node.mounts()? == [wanted.clone()])).with_context(|| agent.text())?;
    until(|| Ok(std::fs::symlink_metadata(&only_dirs).is_err())).with_context(|| agent.text())?;
    agent.wait_for_line("orphaned: no pod wants what is left of it")?;
    agent.wait_for_line("EphemeralData")?;
    let own = std::fs::read_to_string(scratch.join("own"))?;
    ensure!(own == "the pod's", "the emptyDir's file is {own:?}");
    // What stays wakes nobody.
    until(|| Ok(count(node) == 2)).with_context(|| agent.text())?;
    std::thread::sleep(Duration::from_secs(5));
    let before = status(agent.pid(), "voluntary_ctxt_switches")?;
    std::thread::sleep(Duration::from_secs(3));
    let woken = status(agent.pid(), "voluntary_ctxt_switches")? - before;
    ensure!(woken == 0, "it woke up {woken} times in 3 s of idleness\n{}", agent.text());
    let lines = agent.text().lines().filter(|line| line.contains("EphemeralData")).count();
    ensure!(lines == 1, "what stays was told {lines} times\n{}", agent.text());
    agent.stop()?;
    Ok(Verdict::Passed)
}

/// Case B04: data where nothing is mounted, of pods that nobody knows.
fn orphans(node: &mut Node) -> Result<Verdict> {
    const ORPHANS: usize = 2000;
    let file = |n: usize| node.root.join(format!("pods/o{n}/volumes/kubernetes.io~nfs/v/ibdata1"));
    for n in 0..ORPHANS {
        let file = file(n);
        std::fs::create_dir_all(file.parent().context("a folder")?)?;
        std::fs::write(file, "somebody's")?;
    }
    let pods = node.pods();
    let agent = Agent::start(node, &["--clean", "--grace", "0s", "--manifests", pods.to_str().context("not UTF-8")?])?;
    let told = || agent.text().lines().filter(|line| line.contains("DataKept")).count();
    until(|| Ok(told() >= ORPHANS))?;
    let lines = |agent: &Agent| agent.text().lines().filter(|line| line.contains("pods/o")).count();
    let before = lines(&agent);
    for n in 0..2 {
        volume(node, &format!("u{n}"), "kubernetes.io~empty-dir", "wake")?;
        agent.wait_for_line(&format!("wake of pod u{n}"))?;
        // It cleans two seconds after the last change.
        std::thread::sleep(Duration::from_secs(4));
    }
    let after = lines(&agent);
    ensure!(after == before, "{} more lines were written of orphans that were told", after - before);
    for n in [0, ORPHANS - 1] {
        ensure!(std::fs::read_to_string(file(n))? == "somebody's", "a file is gone");
    }
    agent.stop()?;
    Ok(Verdict::Passed)
}

fn asks(node: &mut Node) -> Result<Verdict> {
    // Cgroups are found by themselves where the root is the usual one, and never say which pods should be here.
    for sources in ["auto", "none", "cgroups"] {
        let ran = node.run(&["agent", "--clean", "--once", "--sources", sources])?.expect(2)?;
        ensure!(ran.stderr.contains("--clean needs somebody who knows which pods are gone"), "{}", ran.stderr);
    }
    let api_server_alone = ["agent", "--clean", "--once", "--node-name", "n1", "--sources", "none"];
    let ran = node.run(&api_server_alone)?.expect(2)?;
    ensure!(ran.stderr.contains("--clean needs somebody who sees what runs on this node"), "{}", ran.stderr);
    node.run(&["agent", "--clean", "--once", "--sources", "cgroups", "--assume-gone", "u1"])?.expect(0)?;
    Ok(Verdict::Passed)
}

/// A number from `/proc/<pid>/status`.
fn status(pid: u32, field: &str) -> Result<u64> {
    let text = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
    let number = line.trim_start_matches(':').split_whitespace().next().context("no number")?;
    Ok(number.parse()?)
}

fn idle(node: &mut Node) -> Result<Verdict> {
    for pod in 0..100 {
        for name in 0..10 {
            volume(node, &format!("u{pod}"), "kubernetes.io~empty-dir", &format!("v{name}"))?;
        }
    }
    let agent = Agent::start(node, &[])?;
    until(|| Ok(count(node) == 1000))?;
    let switches = || status(agent.pid(), "voluntary_ctxt_switches");
    // Until it has come to rest.
    until(|| {
        let before = switches()?;
        std::thread::sleep(Duration::from_secs(1));
        Ok(switches()? == before)
    })?;
    let before = switches()?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(switches()? == before, "it woke up {} times in 3 s of idleness", switches()? - before);
    // What it holds; of an unoptimized program's own pages there are more than a node would have.
    let memory = status(agent.pid(), "RssAnon")?;
    ensure!(memory < 14 * 1024, "it holds {memory} KiB at 1,000 volumes");
    agent.stop()?;
    Ok(Verdict::Passed)
}
