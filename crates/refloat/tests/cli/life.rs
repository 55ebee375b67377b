//! The manager's life: set-up, update, restart, tear-down, signals, reboots.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use refloat_record::{BootId, Record, Store};

pub(crate) use crate::kit::{Manager, wait};
use crate::node::{Node, files};
use crate::{Test, Verdict, config_map, path_of, pod, secret, tool, volume};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("the_tree_is_the_kubelets", layout),
    ("a_start_without_trouble_warns_of_nothing", quiet),
    ("the_manager_follows_the_manifests", follows),
    ("signals_leave_every_volume_mounted", signals),
    ("a_killed_manager_goes_on", killed),
    ("two_managers_cannot_run", two_managers),
    ("after_a_reboot_what_is_wanted_comes_back", reboot_wanted),
    ("after_a_reboot_what_is_not_wanted_goes", reboot_gone),
    ("the_older_mount_calls_do_as_well", old_calls),
    ("the_demo_leaves_nothing_behind", demo),
    ("an_idle_manager_uses_no_processor", idle),
];

const VOLUMES: &str = "  - {name: a, emptyDir: {}}\n  - {name: m, emptyDir: {medium: Memory}}\n  \
                       - {name: b, configMap: {name: c}}\n  - {name: c, secret: {secretName: s}}\n";

fn set_up(node: &Node) -> Result<()> {
    node.apply("c.yaml", &config_map("c", "one"))?;
    node.apply("s.yaml", &secret("s", "one"))?;
    node.apply("p.yaml", &pod("web", "[{name: a, mountPath: /a, subPath: x}]", VOLUMES))
}

fn mounted(node: &Node) -> Result<usize> {
    let scan = node.scan()?.json()?;
    Ok(scan["volumes"].as_array().into_iter().flatten().filter(|v| v["state"] == "Mounted").count())
}

fn mode(path: &Path) -> Result<u32> {
    let meta = std::fs::symlink_metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    Ok(meta.permissions().mode() & 0o7777)
}

fn layout(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    node.once()?.expect(0)?;
    let scan = node.scan()?.json()?;
    let uid = volume(&scan, "web", "a")?["pod"]["uid"].as_str().context("no uid")?.to_owned();
    let folder = node.root.join("pods").join(&uid);
    for (path, expected) in [
        ("", 0o750),
        ("volumes", 0o750),
        ("volumes/kubernetes.io~empty-dir", 0o750),
        ("volumes/kubernetes.io~empty-dir/a", 0o777),
        ("volumes/kubernetes.io~empty-dir/m", 0o777),
        ("volumes/kubernetes.io~configmap/b", 0o777),
        ("volumes/kubernetes.io~secret/c", 0o777),
        ("volume-subpaths/a/main", 0o750),
        ("plugins/kubernetes.io~empty-dir/a", 0o750),
        ("plugins/kubernetes.io~empty-dir/wrapped_c", 0o750),
    ] {
        let found = mode(&folder.join(path))?;
        // A payload volume's sticky and setgid bits differ with fsGroup; there is none here.
        ensure!(found & 0o777 == expected, "{path} has the mode {found:o}, not {expected:o}");
    }
    for marker in ["a", "m", "wrapped_b", "wrapped_c"] {
        let path = folder.join("plugins/kubernetes.io~empty-dir").join(marker).join("ready");
        ensure!(std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_file()), "there is no {}", path.display());
    }
    let b = folder.join("volumes/kubernetes.io~configmap/b");
    ensure!(std::fs::read_link(b.join("key"))? == Path::new("..data/key"));
    let data = std::fs::read_link(b.join("..data"))?;
    ensure!(data.to_string_lossy().starts_with("..20"), "{}", data.display());
    ensure!(mode(&b.join("..data/key"))? == 0o644 || mode(&b.join(data).join("key"))? == 0o644);
    for file in files(&node.state)?.iter().filter(|f| f.components().count() == 2) {
        ensure!(mode(&node.state.join(file))? == 0o600, "{} has another mode than 0600", file.display());
        ensure!(mode(node.state.join(file).parent().expect("a folder"))? == 0o700);
    }
    Ok(Verdict::Passed)
}

/// Volumes that are being set up look half done to the rounds meanwhile; that is nobody's trouble.
fn quiet(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let ran = node.once()?.expect(0)?;
    ensure!(!ran.stderr.contains("WARN"), "{}", ran.stderr);
    Ok(Verdict::Passed)
}

fn follows(node: &mut Node) -> Result<Verdict> {
    let manager = Manager::start(node)?;
    set_up(node)?;
    wait("the volumes being there", || Ok(mounted(node)? == 4))?;
    let scan = node.scan()?.json()?;
    let key = path_of(&scan, "web", "b")?.join("key");
    node.apply("c.yaml", &config_map("c", "two"))?;
    wait("the update", || Ok(std::fs::read_to_string(&key)? == "two"))?;
    node.delete("p.yaml")?;
    wait("the volumes going", || Ok(node.mounts()?.is_empty() && files(&node.root.join("pods"))?.is_empty()))?;
    drop(manager);
    Ok(Verdict::Passed)
}

fn signals(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let mut before = None;
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let manager = Manager::start(node)?;
        wait("the volumes being there", || Ok(mounted(node)? == 4))?;
        let code = manager.stop(signal)?;
        ensure!(code == Some(0), "{signal:?}: {code:?}");
        ensure!(mounted(node)? == 4, "the volumes did not stay");
        let ids: Vec<_> = node.scan()?.expect(0)?.json()?["volumes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|v| v["mount"]["id"].clone())
            .collect();
        ensure!(before.get_or_insert(ids.clone()) == &ids, "a restart touched what was mounted");
    }
    Ok(Verdict::Passed)
}

fn killed(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let manager = Manager::start(node)?;
    wait("the volumes being there", || Ok(mounted(node)? == 4))?;
    let scan = node.scan()?.json()?;
    std::fs::write(path_of(&scan, "web", "m")?.join("file"), "data")?;
    manager.stop(rustix::process::Signal::KILL)?;
    let kept = scan["volumes"].clone();
    node.once()?.expect(0)?;
    let scan = node.scan()?.expect(0)?.json()?;
    ensure!(scan["volumes"] == kept, "a restart changed something:\n{kept:#}\n{:#}", scan["volumes"]);
    ensure!(std::fs::read_to_string(path_of(&scan, "web", "m")?.join("file"))? == "data");
    Ok(Verdict::Passed)
}

fn two_managers(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let manager = Manager::start(node)?;
    wait("the volumes being there", || Ok(mounted(node)? == 4))?;
    let ran = node.once()?.expect(1)?;
    let pid = manager.id().to_string();
    ensure!(ran.stderr.contains(&pid) && ran.stderr.contains("hint: "), "{ran:?}");
    // Looking is always possible.
    node.scan()?.expect(0)?;
    node.run(&["record", "list"])?.expect(0)?;
    drop(manager);
    node.once()?.expect(0)?;
    Ok(Verdict::Passed)
}

/// Makes it look as after a reboot: nothing is mounted, and the records are of another boot.
fn reboot(node: &Node) -> Result<()> {
    for point in node.mounts()?.iter().rev() {
        tool("umount", &[point.as_os_str()])?;
    }
    let store = Store::open(&node.state)?;
    for mut record in store.load()?.records {
        let other = BootId::new("00000000-0000-4000-8000-000000000000")?;
        match &mut record {
            Record::DeviceMount(r) => r.boot_id = other,
            Record::PodVolume(r) => r.boot_id = other,
            Record::PodCheckpoint(_) | Record::Driver(_) => continue,
        }
        store.put(&record)?;
    }
    Ok(())
}

fn reboot_wanted(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    node.once()?.expect(0)?;
    let scan = node.scan()?.json()?;
    std::fs::write(path_of(&scan, "web", "a")?.join("file"), "on the disk")?;
    reboot(node)?;
    let scan = node.scan()?.expect(3)?.json()?;
    ensure!(volume(&scan, "web", "c")?["state"] != "Mounted", "{scan:#}");
    node.once()?.expect(0)?;
    let scan = node.scan()?.expect(0)?.json()?;
    ensure!(mounted(node)? == 4, "{scan:#}");
    ensure!(volume(&scan, "web", "c")?["mount"]["stack"] == 1, "{scan:#}");
    ensure!(std::fs::read_to_string(path_of(&scan, "web", "a")?.join("file"))? == "on the disk");
    ensure!(std::fs::read_to_string(path_of(&scan, "web", "c")?.join("key"))? == "one");
    Ok(Verdict::Passed)
}

fn reboot_gone(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    node.once()?.expect(0)?;
    reboot(node)?;
    node.delete_all()?;
    node.once()?.expect(0)?;
    nothing_left(node)?;
    Ok(Verdict::Passed)
}

/// That no mount, folder or record is left.
pub(crate) fn nothing_left(node: &Node) -> Result<()> {
    ensure!(node.mounts()?.is_empty(), "{:?}", node.mounts()?);
    ensure!(files(&node.root.join("pods"))?.is_empty(), "{:?}", files(&node.root.join("pods"))?);
    let records: Vec<_> = files(&node.state)?.into_iter().filter(|f| f.components().count() > 1).collect();
    ensure!(records.is_empty(), "{records:?}");
    Ok(())
}

fn old_calls(node: &mut Node) -> Result<Verdict> {
    node.env.push(("REFLOAT_FORCE_OLD_MOUNT_API".into(), "1".into()));
    set_up(node)?;
    node.once()?.expect(0)?;
    let scan = node.scan()?.expect(0)?.json()?;
    ensure!(mounted(node)? == 4, "{scan:#}");
    node.apply("s.yaml", &secret("s", "two"))?;
    node.once()?.expect(0)?;
    ensure!(std::fs::read_to_string(path_of(&scan, "web", "c")?.join("key"))? == "two");
    node.delete_all()?;
    node.once()?.expect(0)?;
    nothing_left(node)?;
    Ok(Verdict::Passed)
}

/// Told to its end, and interrupted at several moments.
fn demo(node: &mut Node) -> Result<Verdict> {
    let temp = node.host();
    for (pause, code) in [(None, 0), (Some(20), 1), (Some(60), 1), (Some(120), 1)] {
        let mut command = node.refloat(&["demo"]);
        let child = command.env("TMPDIR", &temp).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(pause) = pause {
            std::thread::sleep(Duration::from_millis(pause));
            rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)?;
        }
        let output = child.wait_with_output()?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // An interrupt may come before the demo listens (then the signal ends it) or after its end.
        let fine = output.status.code() == Some(code) || pause.is_some() && output.status.code() != Some(3);
        ensure!(fine, "{pause:?}: {}\n{text}", output.status);
        ensure!(files(&temp)?.is_empty(), "{pause:?}: left {:?}\n{text}", files(&temp)?);
        // The kernel shows the file inside its file system only. Somebody else's demo ends soon.
        wait("the demo's loop device going", || {
            let mut devices = std::fs::read_dir("/sys/block")?.flatten();
            let backing = |e: std::fs::DirEntry| std::fs::read_to_string(e.path().join("loop/backing_file"));
            Ok(!devices.any(|e| backing(e).is_ok_and(|file| file.contains("demo-disk.img"))))
        })?;
    }
    Ok(Verdict::Passed)
}

fn idle(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let manager = Manager::start(node)?;
    wait("the volumes being there", || Ok(mounted(node)? == 4))?;
    let ticks = || -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", manager.id()))?;
        let (_, fields) = stat.rsplit_once(')').context("an odd stat")?;
        let fields: Vec<_> = fields.split_ascii_whitespace().collect();
        Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
    };
    let switches = || -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", manager.id()))?;
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:")).context("an odd status")?;
        Ok(line.trim().parse()?)
    };
    std::thread::sleep(Duration::from_millis(700));
    let before = (ticks()?, switches()?);
    std::thread::sleep(Duration::from_secs(2));
    let after = (ticks()?, switches()?);
    ensure!(before.0 == after.0 && after.1 - before.1 <= 2, "an idle manager ran: {before:?} {after:?}");
    Ok(Verdict::Passed)
}
