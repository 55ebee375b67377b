//! Nodes that are not as they should be: symlinks and mounts where none belong, full and read-only disks, no privilege.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::life::{Manager, nothing_left};
use crate::node::{Node, dir, files, mount_tmpfs};
use crate::{Test, Verdict, is_real_root, path_of, pod, secret, tool, volume};
use refloat_mount::{Kernel, NewMount};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("a_symlink_in_a_pods_folder_is_not_followed", planted_in_pod),
    ("a_symlink_in_a_sub_path_is_not_followed", planted_in_sub_path),
    ("a_symlink_in_the_state_folder_is_not_followed", planted_in_state),
    ("a_read_only_root_is_said", read_only_root),
    ("a_full_state_folder_starts_nothing", full_state),
    ("a_state_folder_without_inodes_starts_nothing", no_inodes),
    ("a_full_root_leaves_nothing_half_done", full_root),
    ("a_state_folder_that_is_deleted_is_made_again", deleted_state),
    ("without_privilege_it_says_so", no_privilege),
    ("the_root_may_be_a_symlink", root_symlink),
    ("the_root_may_be_a_mount", root_mount),
    ("doctor_names_a_root_that_doubles", root_doubles),
    ("a_mount_by_hand_over_a_volume_is_not_touched", mounted_over),
    ("a_volume_unmounted_by_hand_comes_back", unmounted),
    ("a_bind_inside_an_empty_dir_keeps_its_data", bind_inside),
    ("a_file_where_a_folder_should_be_is_said", file_for_folder),
];

const VOLUMES: &str = "  - {name: a, emptyDir: {}}\n  - {name: c, secret: {secretName: s}}\n";

fn set_up(node: &Node) -> Result<()> {
    node.apply("s.yaml", &secret("s", "one"))?;
    node.apply("p.yaml", &pod("web", "[]", VOLUMES))
}

fn up(node: &Node) -> Result<serde_json::Value> {
    set_up(node)?;
    node.once()?.expect(0)?;
    node.scan()?.expect(0)?.json()
}

/// Something of the host's that must stay as it is.
fn victim(node: &Node) -> Result<PathBuf> {
    let folder = node.host().join("victim");
    std::fs::create_dir(&folder)?;
    std::fs::write(folder.join("file"), "the host's")?;
    Ok(folder)
}

fn unharmed(victim: &Path) -> Result<()> {
    ensure!(files(victim)? == [PathBuf::from("file")], "{:?}", files(victim)?);
    ensure!(std::fs::read_to_string(victim.join("file"))? == "the host's");
    Ok(())
}

fn planted_in_pod(node: &mut Node) -> Result<Verdict> {
    let victim = victim(node)?;
    let scan = up(node)?;
    let a = path_of(&scan, "web", "a")?;
    node.delete_all()?;
    node.once()?.expect(0)?;
    // For a volume's folder, for the folder of a plugin's volumes, and for the pod's own.
    for depth in 0..4 {
        let planted = a.ancestors().nth(depth).context("a path so short")?;
        std::fs::create_dir_all(planted.parent().context("no parent")?)?;
        symlink(&victim, planted)?;
        set_up(node)?;
        let ran = node.once()?;
        // A link in the place of the volume's own folder may be replaced; one above it may not even be passed.
        ensure!(ran.code == 3 || depth == 0, "{}: {ran:?}", planted.display());
        unharmed(&victim)?;
        node.scan()?;
        node.delete_all()?;
        node.once()?;
        unharmed(&victim)?;
        ensure!(node.mounts()?.is_empty(), "{:?}", node.mounts()?);
        if std::fs::symlink_metadata(planted).is_ok_and(|m| m.is_symlink()) {
            std::fs::remove_file(planted)?;
        }
        node.once()?.expect(0)?;
    }
    Ok(Verdict::Passed)
}

fn planted_in_sub_path(node: &mut Node) -> Result<Verdict> {
    let victim = victim(node)?;
    let scan = up(node)?;
    let a = path_of(&scan, "web", "a")?;
    symlink(&victim, a.join("link"))?;
    std::fs::create_dir(a.join("dir"))?;
    symlink(&victim, a.join("dir/link"))?;
    for sub_path in ["link", "link/new", "dir/link", "dir/link/deeper"] {
        node.apply("p.yaml", &pod("web", &format!("[{{name: a, mountPath: /a, subPath: {sub_path}}}]"), VOLUMES))?;
        let ran = node.once()?.expect(3)?;
        ensure!(ran.stdout.contains("symlink") || ran.stdout.contains("symbolic"), "{sub_path}: {}", ran.stdout);
        unharmed(&victim)?;
        let below = node.mounts()?;
        ensure!(!below.iter().any(|m| m.to_string_lossy().contains("volume-subpaths")), "{sub_path}: {below:?}");
    }
    node.delete_all()?;
    node.once()?.expect(0)?;
    unharmed(&victim)?;
    nothing_left(node)?;
    Ok(Verdict::Passed)
}

fn planted_in_state(node: &mut Node) -> Result<Verdict> {
    let victim = victim(node)?;
    up(node)?;
    let record = files(&node.state)?.into_iter().find(|f| f.components().count() == 2).context("no record")?;
    // A record that is a link.
    let copy = node.host().join("copy");
    std::fs::rename(node.state.join(&record), &copy)?;
    symlink(&copy, node.state.join(&record))?;
    node.run(&["record", "verify"])?.expect(3)?;
    let bytes = std::fs::read(&copy)?;
    let ran = node.once()?;
    ensure!(ran.code == 0 || ran.code == 3, "{ran:?}");
    ensure!(std::fs::read(&copy)? == bytes, "a link was written through");
    // A folder of records that is a link.
    let folder = node.state.join(record.parent().context("no folder")?);
    std::fs::rename(&folder, node.host().join("records"))?;
    symlink(&victim, &folder)?;
    let mounts = node.mounts()?;
    let ran = node.once()?.expect(1)?;
    ensure!(ran.stderr.contains(&folder.display().to_string()), "{ran:?}");
    unharmed(&victim)?;
    ensure!(node.mounts()? == mounts, "something was done without records");
    Ok(Verdict::Passed)
}

fn read_only_root(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    tool("mount", &["--bind".as_ref(), node.root.as_ref(), node.root.as_ref()])?;
    tool("mount", &["-o".as_ref(), "remount,bind,ro".as_ref(), node.root.as_ref()])?;
    let ran = node.once()?.expect(3)?;
    ensure!(ran.stdout.contains("ead-only"), "{}", ran.stdout);
    ensure!(node.mounts()?.is_empty());
    tool("mount", &["-o".as_ref(), "remount,bind,rw".as_ref(), node.root.as_ref()])?;
    node.once()?.expect(0)?;
    node.scan()?.expect(0)?;
    Ok(Verdict::Passed)
}

fn full_state(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    mount_tmpfs(&node.state, "64k")?;
    let fill = node.state.join("fill");
    let mut size = 64 << 10;
    while size > 0 {
        // Until not a byte more fits.
        let mut all = std::fs::read(&fill).unwrap_or_default();
        all.resize(all.len() + size, 1);
        if std::fs::write(&fill, &all).is_err() {
            size /= 2;
        }
    }
    let ran = node.once()?;
    ensure!(ran.code == 3 || ran.code == 1, "{ran:?}");
    let text = format!("{}{}", ran.stdout, ran.stderr);
    ensure!(text.contains("No space left") && text.contains(&node.state.display().to_string()), "{text}");
    ensure!(node.mounts()?.is_empty(), "mounted without a record: {:?}", node.mounts()?);
    std::fs::remove_file(&fill)?;
    node.once()?.expect(0)?;
    node.scan()?.expect(0)?;
    Ok(Verdict::Passed)
}

/// A tmpfs over a folder, with room for so many files.
fn few_inodes(at: &Path, count: u32) -> Result<()> {
    let count = count.to_string();
    let mount = NewMount::tmpfs(Kernel::detect(), &[("mode", Some("0755")), ("nr_inodes", Some(&count))])?;
    mount.attach(&dir(at)?)?;
    Ok(())
}

/// Takes every inode that is left.
fn take_all(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut taken = vec![];
    while std::fs::write(folder.join(format!("taken-{}", taken.len())), "").is_ok() {
        taken.push(folder.join(format!("taken-{}", taken.len())));
    }
    ensure!(!taken.is_empty(), "{} was full before", folder.display());
    Ok(taken)
}

/// Waits until the running manager has done it by itself.
fn wait_until(what: &str, mut so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    while !so()? {
        ensure!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn is_up(node: &Node, count: usize) -> Result<bool> {
    let scan = node.scan()?;
    Ok(scan.code == 0 && scan.json()?["volumes"].as_array().is_some_and(|v| v.len() == count))
}

fn no_inodes(node: &mut Node) -> Result<Verdict> {
    few_inodes(&node.state, 30)?;
    node.once()?.expect(0)?;
    set_up(node)?;
    let taken = take_all(&node.state)?;
    let ran = node.once()?.expect(3)?;
    let text = format!("{}{}", ran.stdout, ran.stderr);
    ensure!(text.contains("No space left") && text.contains(&node.state.display().to_string()), "{text}");
    ensure!(node.mounts()?.is_empty(), "mounted without a record: {:?}", node.mounts()?);
    node.run(&["record", "verify"])?.expect(0)?;
    ensure!(files(&node.state)?.iter().filter(|f| f.components().count() == 2).count() == 0, "a part of a record");
    let _manager = Manager::start(node)?;
    std::thread::sleep(Duration::from_millis(300));
    ensure!(node.mounts()?.is_empty());
    for path in taken {
        std::fs::remove_file(path)?;
    }
    wait_until("the volumes", || is_up(node, 2))?;
    Ok(Verdict::Passed)
}

fn full_root(node: &mut Node) -> Result<Verdict> {
    few_inodes(&node.root, 40)?;
    set_up(node)?;
    node.once()?.expect(0)?;
    let mounts = node.mounts()?;
    let taken = take_all(&node.root)?;
    node.apply("q.yaml", &pod("second", "[]", VOLUMES))?;
    let ran = node.once()?.expect(3)?;
    let text = format!("{}{}", ran.stdout, ran.stderr);
    ensure!(text.contains("DiskFull") && text.contains(&node.root.join("pods").display().to_string()), "{text}");
    ensure!(node.mounts()? == mounts, "{:?}", node.mounts()?);
    // A volume that could not be begun has no record; those of the other pod have theirs.
    let records = files(&node.state)?.into_iter().filter(|f| f.starts_with("volumes") && f.components().count() == 2);
    ensure!(records.count() == 2, "{:?}", files(&node.state)?);
    // The other pod's volumes go, full or not.
    node.delete("p.yaml")?;
    let manager = Manager::start(node)?;
    wait_until("the first pod's end", || Ok(!node.mounts()?.iter().any(|m| mounts.contains(m))))?;
    for path in taken {
        std::fs::remove_file(path)?;
    }
    wait_until("the second pod", || is_up(node, 2))?;
    drop(manager);
    node.delete_all()?;
    node.once()?.expect(0)?;
    ensure!(node.mounts()?.is_empty());
    Ok(Verdict::Passed)
}

fn deleted_state(node: &mut Node) -> Result<Verdict> {
    up(node)?;
    let before = files(&node.state)?;
    let _manager = Manager::start(node)?;
    wait_until("the lock", || Ok(node.once()?.code == 1))?;
    // It may fail at the very end: the manager is quick to make files again.
    Command::new("rm").arg("-rf").arg(&node.state).stderr(std::process::Stdio::null()).status()?;
    wait_until("the records", || Ok(files(&node.state).is_ok_and(|now| now == before)))?;
    let ran = node.once()?.expect(1)?;
    ensure!(ran.stderr.contains("in use by another manager, process"), "{ran:?}");
    node.delete_all()?;
    wait_until("the pod's end", || Ok(node.mounts()?.is_empty()))?;
    Ok(Verdict::Passed)
}

fn no_privilege(node: &mut Node) -> Result<Verdict> {
    if !is_real_root() {
        return Ok(Verdict::Skipped("it takes root to give up root".into()));
    }
    if tool("setpriv", &["--version".as_ref()]).is_err() {
        return Ok(Verdict::Skipped("there is no setpriv".into()));
    }
    set_up(node)?;
    let copy = node.folder().join("refloat");
    std::fs::copy(node.binary(), &copy)?;
    for path in [&node.root, &node.state] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534))?;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&copy);
    let pods = node.pods().display().to_string();
    node.configure(&mut command, &["node", "--once", "--manifests", &pods]);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // The emptyDir needs no privilege and is there; the secret's volume is a mount, and says what it lacks.
    ensure!(output.status.code() == Some(3), "{output:?}");
    ensure!(text.contains("NotPermitted") && text.contains("CAP_SYS_ADMIN"), "{text}");
    ensure!(node.mounts()?.is_empty());
    let scan = node.scan()?.json()?;
    ensure!(volume(&scan, "web", "a")?["state"] == "Mounted", "{scan:#}");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&copy);
    node.configure(&mut command, &["doctor"]);
    let output = command.output()?;
    ensure!(output.status.code() == Some(3), "{output:?}");
    ensure!(String::from_utf8_lossy(&output.stdout).contains("CAP_SYS_ADMIN"), "{output:?}");
    Ok(Verdict::Passed)
}

fn whole_life(node: &mut Node) -> Result<()> {
    let scan = up(node)?;
    node.once()?.expect(0)?;
    ensure!(volume(&scan, "web", "c")?["mount"]["stack"] == 1, "{scan:#}");
    let uid = volume(&scan, "web", "c")?["pod"]["uid"].as_str().context("no uid")?.to_owned();
    // Both spellings of the root are understood.
    let given = node.root.join("pods").join(uid).join("volumes/kubernetes.io~secret/c");
    node.run(&["explain", given.to_str().context("not UTF-8")?])?.expect(0)?;
    node.delete_all()?;
    node.once()?.expect(0)?;
    let scan = node.scan()?.expect(0)?.json()?;
    ensure!(scan["volumes"].as_array().is_some_and(Vec::is_empty), "{scan:#}");
    Ok(())
}

fn root_symlink(node: &mut Node) -> Result<Verdict> {
    let real = node.folder().join("elsewhere");
    std::fs::rename(&node.root, &real)?;
    symlink(&real, &node.root)?;
    whole_life(node)?;
    node.root = node.root.join("");
    whole_life(node)?;
    ensure!(files(&real.join("pods"))?.is_empty());
    Ok(Verdict::Passed)
}

fn root_mount(node: &mut Node) -> Result<Verdict> {
    mount_tmpfs(&node.root, "8m")?;
    whole_life(node)?;
    nothing_left(node)?;
    // Bound onto itself, as the kubelet does where the root is not shared.
    tool("mount", &["--bind".as_ref(), node.root.as_ref(), node.root.as_ref()])?;
    whole_life(node)?;
    nothing_left(node)?;
    Ok(Verdict::Passed)
}

/// B27.
fn root_doubles(node: &mut Node) -> Result<Verdict> {
    let check = |node: &Node| -> Result<serde_json::Value> {
        let report = node.run(&["doctor", "-o", "json"])?.json()?;
        let checks = report["checks"].as_array().context("no list")?.clone();
        checks.into_iter().find(|c| c["name"] == "mount-copies").context("no such check")
    };
    let bind = |how: &str| tool("mount", &[how.as_ref(), node.root.as_ref(), node.root.as_ref()]);
    bind("--bind")?;
    tool("mount", &["--make-shared".as_ref(), node.root.as_ref()])?;
    let first = up(node)?;
    ensure!(check(node)?["status"] == "Ok", "{}", check(node)?);
    for _ in 0..4 {
        bind("--rbind")?;
    }
    let found = check(node)?;
    ensure!(found["status"] == "Limited", "{found}");
    ensure!(
        found["hint"].as_str().is_some_and(|h| h.contains("umount") && h.contains(&node.root.display().to_string()))
    );
    // Each volume once and as before, and the doubling once.
    let ran = node.scan()?.expect(3)?.json()?;
    ensure!(ran["volumes"].as_array().map(Vec::len) == first["volumes"].as_array().map(Vec::len), "{ran:#}");
    ensure!(ran["summary"]["problems"] == serde_json::json!({"MountsDoubled": 1}), "{:#}", ran["summary"]);
    ensure!(ran["leftovers"].as_array().is_some_and(Vec::is_empty), "{ran:#}");
    Ok(Verdict::Passed)
}

fn mounted_over(node: &mut Node) -> Result<Verdict> {
    let scan = up(node)?;
    let victim = victim(node)?;
    let c = path_of(&scan, "web", "c")?;
    tool("mount", &["--bind".as_ref(), victim.as_ref(), c.as_ref()])?;
    let scan = node.scan()?.expect(3)?.json()?;
    let seen = volume(&scan, "web", "c")?;
    ensure!(seen["mount"]["stack"] == 2 && !seen["problems"].as_array().expect("a list").is_empty(), "{seen:#}");
    node.once()?.expect(3)?;
    ensure!(volume(&node.scan()?.json()?, "web", "c")?["mount"]["stack"] == 2, "it was touched while wanted");
    node.delete("p.yaml")?;
    node.once()?.expect(3)?;
    unharmed(&victim)?;
    ensure!(std::fs::read_to_string(c.join("file"))? == "the host's", "what was mounted by hand is gone");
    tool("umount", &[c.as_ref()])?;
    node.once()?.expect(0)?;
    unharmed(&victim)?;
    nothing_left(node)?;
    Ok(Verdict::Passed)
}

fn unmounted(node: &mut Node) -> Result<Verdict> {
    let scan = up(node)?;
    let c = path_of(&scan, "web", "c")?;
    tool("umount", &[c.as_ref()])?;
    let scan = node.scan()?.expect(3)?.json()?;
    ensure!(volume(&scan, "web", "c")?["mounted"] == false, "{scan:#}");
    node.once()?.expect(0)?;
    ensure!(std::fs::read_to_string(c.join("key"))? == "one");
    ensure!(volume(&node.scan()?.expect(0)?.json()?, "web", "c")?["mount"]["stack"] == 1);
    // Unmounted, and not wanted any more.
    tool("umount", &[c.as_ref()])?;
    node.delete_all()?;
    node.once()?.expect(0)?;
    nothing_left(node)?;
    Ok(Verdict::Passed)
}

fn bind_inside(node: &mut Node) -> Result<Verdict> {
    let scan = up(node)?;
    let victim = victim(node)?;
    let a = path_of(&scan, "web", "a")?;
    std::fs::write(a.join("own"), "the pod's")?;
    for inside in ["n", "deep/n"] {
        std::fs::create_dir_all(a.join(inside))?;
        tool("mount", &["--bind".as_ref(), victim.as_ref(), a.join(inside).as_ref()])?;
    }
    // Twice at one place.
    tool("mount", &["--bind".as_ref(), victim.as_ref(), a.join("n").as_ref()])?;
    node.scan()?;
    node.delete_all()?;
    let ran = node.once()?;
    unharmed(&victim)?;
    ensure!(ran.code == 0, "{ran:?}");
    nothing_left(node)?;
    unharmed(&victim)?;
    Ok(Verdict::Passed)
}

fn file_for_folder(node: &mut Node) -> Result<Verdict> {
    std::fs::write(node.root.join("pods"), "a file")?;
    set_up(node)?;
    let ran = node.once()?;
    ensure!(ran.code == 3 || ran.code == 1, "{ran:?}");
    ensure!(format!("{}{}", ran.stdout, ran.stderr).contains(&node.root.join("pods").display().to_string()), "{ran:?}");
    ensure!(std::fs::read_to_string(node.root.join("pods"))? == "a file");
    std::fs::remove_file(node.root.join("pods"))?;
    let scan = up(node)?;
    // In the place of one volume: the other is there all the same.
    let a = path_of(&scan, "web", "a")?;
    node.delete_all()?;
    node.once()?.expect(0)?;
    std::fs::create_dir_all(a.parent().context("no parent")?)?;
    std::fs::write(&a, "a file")?;
    set_up(node)?;
    let ran = node.once()?.expect(3)?;
    ensure!(ran.stdout.contains(&a.display().to_string()), "{}", ran.stdout);
    ensure!(std::fs::read_to_string(&a)? == "a file");
    ensure!(volume(&node.scan()?.json()?, "web", "c")?["state"] == "Mounted");
    Ok(Verdict::Passed)
}
