//! `refloat clean` and `release` of flexVolumes, through drivers that are real programs: shell scripts that mount and unmount.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::clean::{all_done, bind, clean, codes, kept, source, steps, tree};
use crate::life::Manager;
use crate::node::{Node, Ran};
use crate::{Test, Verdict};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("clean_flex_asks_the_driver", asks),
    ("clean_flex_not_supported_is_a_plain_unmount", not_supported),
    ("clean_flex_mounted_twice_is_asked_twice", twice),
    ("clean_flex_faults_are_told_and_hold_up_nobody", faults),
    ("clean_flex_a_driver_that_hangs_is_killed_with_its_children", hangs),
    ("clean_flex_a_refusal_for_what_is_not_there_is_believed", refuses_nothing),
    ("clean_flex_without_its_driver", without_driver),
    ("clean_flex_files_that_no_mount_holds_stay", files),
    ("release_flex", release),
    ("node_flex_waits_for_a_driver_and_not_for_ever", manager),
];

/// A script's way to say something.
pub(crate) const SAY: &str = "say() { printf '{\"status\": \"%s\", \"message\": \"%s\"}\\n' \"$1\" \"$2\"; }\n";
/// Unmounts, as the kubelet's own examples do.
const GOOD: &str = "case $1 in unmount|unmountdevice) umount \"$2\" || { say Failure \"not mounted\"; exit 1; }; say Success;; \
                    *) say 'Not supported';; esac";

/// The folder of drivers.
pub(crate) fn drivers(node: &Node) -> PathBuf {
    node.folder().join("drivers")
}

/// Installs the driver `acme/<name>`, which writes down how it is called.
pub(crate) fn install(node: &Node, name: &str, body: &str) -> Result<()> {
    let folder = drivers(node).join(format!("acme~{name}"));
    std::fs::create_dir_all(&folder)?;
    let program = folder.join(name);
    let log = node.folder().join("calls");
    std::fs::write(&program, format!("#!/bin/sh\necho \"{name} $@\" >> {}\n{SAY}{body}\n", log.display()))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// How drivers were called, since the last time.
pub(crate) fn calls(node: &Node) -> Result<Vec<String>> {
    let log = node.folder().join("calls");
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    std::fs::write(&log, "")?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn run(node: &Node, more: &[&str]) -> Result<Ran> {
    let folder = drivers(node);
    clean(node, &[&["--flex-volume-plugin-dir", folder.to_str().context("no text")?], more].concat())
}

fn volume(node: &Node, driver: &str) -> Result<PathBuf> {
    let path = node.root.join(format!("pods/u1/volumes/acme~{driver}/v"));
    std::fs::create_dir_all(&path)?;
    Ok(path)
}

fn global(node: &Node, driver: &str) -> Result<PathBuf> {
    let path = node.root.join(format!("plugins/kubernetes.io/flexvolume/acme/{driver}/mounts/v"));
    std::fs::create_dir_all(&path)?;
    Ok(path)
}

/// What the driver left, and a volume of the same node that it has nothing to do with.
fn left_by(node: &Node, driver: &str) -> Result<(PathBuf, PathBuf)> {
    let (data, other) = (source(node, "x")?, source(node, "other")?);
    let path = volume(node, driver)?;
    bind(&data, &path)?;
    let beside = tree(node).volume("u9", "nfs", "v")?;
    bind(&other, &beside)?;
    Ok((path, data))
}

pub(crate) fn is_mounted(node: &Node, path: &Path) -> Result<bool> {
    Ok(node.mounts()?.iter().any(|m| m == path))
}

fn not_there(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn failure(plan: &Value) -> String {
    let failed = steps(plan).into_iter().find(|(.., result)| result == "Failed");
    let all = plan["steps"].as_array().into_iter().flatten();
    let texts: Vec<String> = all.filter(|s| s["result"] == "Failed").map(ToString::to_string).collect();
    if failed.is_some() { texts.join("\n") } else { String::new() }
}

fn asks(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    let (path, device) = (volume(node, "disk")?, global(node, "disk")?);
    bind(&data, &device)?;
    bind(&data, &path)?;
    install(node, "disk", GOOD)?;
    let dry = run(node, &[])?.expect(0)?.json()?;
    ensure!(calls(node)?.is_empty() && node.mounts()?.len() == 2, "a dry run asks nobody: {dry:#}");
    let actions: Vec<String> = steps(&dry).into_iter().map(|(action, ..)| action).collect();
    ensure!(actions.contains(&"TearDown".into()) && actions.contains(&"UnmountDevice".into()), "{dry:#}");
    ensure!(dry.to_string().contains("by its driver acme/disk"), "{dry:#}");
    all_done(&run(node, &["--yes"])?.expect(0)?)?;
    let expected = [format!("disk unmount {}", path.display()), format!("disk unmountdevice {}", device.display())];
    let calls = calls(node)?;
    ensure!(calls == expected, "{calls:?}");
    ensure!(
        node.mounts()?.is_empty()
            && !tree(node).has("pods/u1")
            && !tree(node).has("plugins/kubernetes.io/flexvolume/acme/disk/mounts/v")
    );
    kept(&data)?;
    Ok(Verdict::Passed)
}

fn not_supported(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    let (path, device) = (volume(node, "disk")?, global(node, "disk")?);
    bind(&data, &device)?;
    bind(&data, &path)?;
    // Whatever its exit code.
    install(node, "disk", "say 'Not supported'; exit 1")?;
    all_done(&run(node, &["--yes"])?.expect(0)?)?;
    ensure!(calls(node)?.len() == 2 && node.mounts()?.is_empty() && !tree(node).has("pods/u1"));
    kept(&data)?;
    Ok(Verdict::Passed)
}

fn twice(node: &mut Node) -> Result<Verdict> {
    let (path, data) = left_by(node, "disk")?;
    bind(&data, &path)?;
    install(node, "disk", GOOD)?;
    all_done(&run(node, &["--yes"])?.expect(0)?)?;
    ensure!(calls(node)?.len() == 2 && node.mounts()?.is_empty());
    kept(&data)?;
    Ok(Verdict::Passed)
}

fn faults(node: &mut Node) -> Result<Verdict> {
    let much = "head -c 5000000 /dev/zero | tr '\\\\0' x; echo secretword >&2".replace("\\\\0", "\\0");
    let long = "m=$(head -c 5000 /dev/zero | tr '\\0' y); say Failure \"$m\"";
    for (body, word, tries) in [
        ("say Success", "answered unmount with Success, but", 1),
        ("echo secretword; exit 0", "no JSON object", 1),
        (much.as_str(), "64 KiB or more", 1),
        ("exit 0", "nothing (exit code 0)", 1),
        ("umount \"$2\" >/dev/null 2>&1; mount --bind . \"$2\"; exit 7", "exit code 7", 1),
        ("say Success; exit 3", "exit code 3", 1),
        ("say Failure 'the disk is busy'", "the disk is busy", 5),
        (long, "yyy…", 5),
        ("kill -9 $$", "ended by a signal", 1),
    ] {
        let (path, data) = left_by(node, "bad")?;
        install(node, "bad", body)?;
        let plan = run(node, &["--yes"])?.expect(1)?.json()?;
        let told = failure(&plan);
        ensure!(told.contains(word) && told.contains("acme/bad"), "{body}: {plan:#}");
        ensure!(!plan.to_string().contains("secretword") && told.len() < 5000, "{body}: {plan:#}");
        ensure!(is_mounted(node, &path)? && calls(node)?.len() == tries, "{body}: {plan:#}");
        ensure!(!tree(node).has("pods/u9"), "others proceed: {body}: {plan:#}");
        kept(&data)?;
        // A driver that is whole finishes it.
        install(node, "bad", GOOD)?;
        all_done(&run(node, &["--yes"])?.expect(0)?)?;
        ensure!(node.mounts()?.is_empty() && !tree(node).has("pods/u1"));
        kept(&data)?;
        calls(node)?;
    }
    Ok(Verdict::Passed)
}

fn hangs(node: &mut Node) -> Result<Verdict> {
    let (path, data) = left_by(node, "slow")?;
    let pids = node.folder().join("pids");
    install(node, "slow", &format!("sleep 1000 & echo $$ $! > {}; wait", pids.display()))?;
    let begun = Instant::now();
    let ran = run(node, &["--yes", "--timeout", "4s"])?;
    ensure!(begun.elapsed() < Duration::from_secs(15) && [1, 3].contains(&ran.code), "{:?}: {ran:?}", begun.elapsed());
    let plan = ran.json()?;
    ensure!(failure(&plan).contains("acme/slow"), "{plan:#}");
    ensure!(is_mounted(node, &path)?, "{plan:#}");
    for pid in std::fs::read_to_string(&pids)?.split_whitespace() {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let dead = stat.is_empty() || stat.rsplit(')').next().is_some_and(|s| s.trim_start().starts_with(['Z', 'X']));
        ensure!(dead, "process {pid} of the driver runs on: {stat}");
    }
    install(node, "slow", GOOD)?;
    all_done(&run(node, &["--yes"])?.expect(0)?)?;
    kept(&data)?;
    Ok(Verdict::Passed)
}

/// As after a reboot: the folder is there, the mount is not, and the script's `umount` fails for ever.
fn refuses_nothing(node: &mut Node) -> Result<Verdict> {
    volume(node, "disk")?;
    install(node, "disk", GOOD)?;
    all_done(&run(node, &["--yes"])?.expect(0)?)?;
    ensure!(calls(node)?.len() == 5 && !tree(node).has("pods/u1"));
    Ok(Verdict::Passed)
}

fn without_driver(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    let (path, device) = (volume(node, "disk")?, global(node, "disk")?);
    bind(&data, &device)?;
    bind(&data, &path)?;
    install(node, "disk", GOOD)?;
    // One that cannot be run is none.
    let program = drivers(node).join("acme~disk/disk");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o644))?;
    for _ in 0..2 {
        let plan = run(node, &["--yes"])?.expect(3)?.json()?;
        ensure!(codes(&plan, &path) == ["DriverMissing"] && node.mounts()?.len() == 2, "{plan:#}");
        let mut words = String::new();
        write!(words, "{plan}")?;
        ensure!(words.contains("acme/disk cannot be reached; --without-driver unmounts it all the same"), "{plan:#}");
        // And so is one that is not there.
        std::fs::rename(&program, node.folder().join("away")).or_else(not_there)?;
    }
    let plan = run(node, &["--yes", "--without-driver"])?.expect(3)?.json()?;
    ensure!(codes(&plan, &device) == ["NotUnstaged"], "{plan:#}");
    ensure!(node.mounts()?.is_empty() && !tree(node).has("pods/u1"), "{plan:#}");
    kept(&data)?;
    all_done(&run(node, &["--yes"])?.expect(0)?)?;
    Ok(Verdict::Passed)
}

/// A driver may delete what is in the folder that it is told; with nothing mounted there, that would be a pod's own files.
fn files(node: &mut Node) -> Result<Verdict> {
    let path = volume(node, "disk")?;
    std::fs::write(path.join("keep.txt"), "keep")?;
    install(node, "disk", "rm -rf \"$2\"; say Success")?;
    let plan = run(node, &["--yes"])?.expect(3)?.json()?;
    ensure!(codes(&plan, &path) == ["DataKept"] && calls(node)?.is_empty(), "{plan:#}");
    kept(&path)?;
    Ok(Verdict::Passed)
}

fn release(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    let (path, device) = (volume(node, "disk")?, global(node, "disk")?);
    bind(&data, &device)?;
    bind(&data, &path)?;
    install(node, "disk", "say Success")?;
    let (folder, pods) = (drivers(node), node.pods());
    let (folder, pods) = (folder.to_str().context("no text")?, pods.to_str().context("no text")?);
    let flags = ["--flex-volume-plugin-dir", folder, "--manifests", pods];
    let run = |more: &[&str]| node.run(&[&["release", "--yes", "-o", "json"], &flags[..], more].concat());
    let left = run(&[])?.expect(3)?.json()?;
    ensure!(left["left"].as_array().is_some_and(|left| left.len() == 2) && node.mounts()?.len() == 2, "{left:#}");
    node.run(&[&["wait", "--for=empty", "--timeout", "1s"], &flags[..]].concat())?.expect(1)?;
    install(node, "disk", GOOD)?;
    let all = run(&[])?.expect(0)?.json()?;
    ensure!(all["left"] == serde_json::json!([]) && node.mounts()?.is_empty(), "{all:#}");
    node.run(&[&["wait", "--for=empty", "--timeout", "1s"], &flags[..]].concat())?.expect(0)?;
    kept(&data)?;
    Ok(Verdict::Passed)
}

/// B15: the manager asks a driver that appears late, and without one it takes the mount off after the driver's turn.
fn manager(node: &mut Node) -> Result<Verdict> {
    let (data, other) = (source(node, "x")?, source(node, "other")?);
    let (late, gone) = (volume(node, "late")?, volume(node, "gone")?);
    bind(&data, &late)?;
    bind(&other, &gone)?;
    node.apply("none.yaml", "# no pods\n")?;
    let once = node.once()?.expect(3)?.json()?;
    ensure!(once.to_string().contains("DriverMissing") && node.mounts()?.len() == 2, "{once:#}");
    let folder = drivers(node);
    let begun = Instant::now();
    let running = Manager::start_with(node, &["--flex-volume-plugin-dir", folder.to_str().context("no text")?])?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(node.mounts()?.len() == 2, "unmounted before the driver's turn");
    install(node, "late", GOOD)?;
    crate::life::wait("the late driver's turn", || Ok(!is_mounted(node, &late)?))?;
    ensure!(calls(node)? == [format!("late unmount {}", late.display())] && is_mounted(node, &gone)?);
    while is_mounted(node, &gone)? {
        ensure!(begun.elapsed() < Duration::from_secs(120), "it stays for ever");
        std::thread::sleep(Duration::from_millis(200));
    }
    ensure!(begun.elapsed() > Duration::from_secs(55), "{:?}", begun.elapsed());
    crate::life::wait("the pod's folder", || Ok(!tree(node).has("pods/u1")))?;
    ensure!(running.stop(rustix::process::Signal::TERM)? == Some(0));
    kept(&data)?;
    kept(&other)?;
    Ok(Verdict::Passed)
}
