//! `--mountinfo`: a node that is not this one, from its unpacked root and its saved mount table.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::node::Node;
use crate::{Test, Verdict, config_map, is_real_root, pod, secret, tool};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("a_saved_node_gives_the_answer_of_the_live_one", as_live),
    ("a_saved_node_is_read_without_its_mounts_and_privileges", elsewhere),
    ("a_saved_node_is_explained_by_its_own_paths", explained),
    ("a_saved_mount_table_that_is_none_is_refused", refused),
    ("a_saved_mount_table_of_another_root_is_told", other_root),
];

const UID: &str = "11111111-2222-4333-8444-555555555555";

/// Packs and unpacks a folder as `tar --one-file-system` does, which goes into no mount.
pub(crate) fn unpack(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir(to)?;
    let archive = to.with_extension("tar");
    let (from, to, file) = (from.as_os_str(), to.as_os_str(), archive.as_os_str());
    tool("tar", &["--one-file-system".as_ref(), "-cf".as_ref(), file, "-C".as_ref(), from, ".".as_ref()])?;
    tool("tar", &["-xpf".as_ref(), file, "-C".as_ref(), to])
}

fn as_live(node: &mut Node) -> Result<Verdict> {
    let disk = node.host().join("disk");
    std::fs::create_dir(&disk)?;
    node.apply("objects.yaml", &format!("{}---\n{}", config_map("c", "one"), secret("s", "two")))?;
    node.apply(
        "web.yaml",
        &pod(
            "web",
            "[{name: a, mountPath: /a, subPath: x}]",
            "  - {name: a, emptyDir: {}}\n  - {name: b, configMap: {name: c}}\n  - {name: c, secret: {secretName: s}}\n  \
             - {name: d, emptyDir: {medium: Memory}}\n",
        ),
    )?;
    node.once()?.expect(0)?;
    std::fs::create_dir_all(node.root.join("pods/0000-left-over/volumes"))?;
    let (root, state) = (node.root.clone(), node.state.clone());
    let file = node.folder().join("mountinfo");
    std::fs::write(&file, std::fs::read("/proc/self/mountinfo")?)?;
    let (unpacked, records) = (node.folder().join("unpacked"), node.folder().join("records"));
    unpack(&root, &unpacked)?;
    unpack(&state, &records)?;
    // With records and without; a live scan of this boot, and what was saved of it.
    for (live_state, saved_state) in [(state, records), (node.folder().join("none"), node.folder().join("none"))] {
        (node.root, node.state, node.more) = (root.clone(), live_state, vec![]);
        let live = node.run(&["scan", "-o", "json"])?.expect(3)?.json()?;
        (node.root, node.state) = (unpacked.clone(), saved_state);
        let text = |path: &Path| path.to_str().map(ToOwned::to_owned).context("not UTF-8");
        node.more = vec!["--mountinfo".into(), text(&file)?, "--original-root".into(), text(&root)?];
        let saved = node.run(&["scan", "-o", "json"])?.expect(3)?.json()?;
        ensure!(saved["node"]["bootID"].is_null() && saved["node"]["mountinfo"] == text(&file)?, "{:#}", saved["node"]);
        ensure!(saved["node"]["rootDir"] == text(&root)?, "{:#}", saved["node"]);
        ensure!(saved["volumes"].as_array().map(Vec::len) == Some(4), "{saved:#}");
        // mountinfo has no unique mount ids.
        let (live, saved) = (without_ids(live), without_ids(saved));
        for part in ["volumes", "devices", "leftovers", "problems", "summary"] {
            ensure!(live[part] == saved[part], "{part}: live {:#}\nsaved {:#}", live[part], saved[part]);
        }
    }
    Ok(Verdict::Passed)
}

pub(crate) fn without_ids(mut scan: Value) -> Value {
    for list in ["volumes", "devices"] {
        for entry in scan[list].as_array_mut().into_iter().flatten() {
            if let Some(mount) = entry["mount"].as_object_mut() {
                mount.remove("id");
            }
        }
    }
    scan
}

/// A node that never was on this machine: folders, and a mount table of its own.
fn foreign(node: &Node, root: &str) -> Result<PathBuf> {
    let pod = node.root.join("pods").join(UID);
    std::fs::create_dir_all(pod.join("volumes/kubernetes.io~secret/keys"))?;
    std::fs::create_dir_all(pod.join("volumes/kubernetes.io~empty-dir/scratch"))?;
    std::fs::create_dir_all(pod.join("volumes/kubernetes.io~local-volume/pv-a"))?;
    let marker = pod.join("plugins/kubernetes.io~empty-dir/wrapped_keys");
    std::fs::create_dir_all(&marker)?;
    std::fs::write(marker.join("ready"), "")?;
    let file = node.folder().join("mountinfo");
    std::fs::write(
        &file,
        format!(
            "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
             90 22 0:51 / {root}/pods/{UID}/volumes/kubernetes.io~secret/keys rw,relatime shared:40 - tmpfs tmpfs rw,size=1024k\n\
             91 22 8:17 /vol1 {root}/pods/{UID}/volumes/kubernetes.io~local-volume/pv-a rw,relatime shared:41 - xfs /dev/sdb1 rw\n"
        ),
    )?;
    Ok(file)
}

fn found<'a>(scan: &'a Value, name: &str) -> Result<&'a Value> {
    let mut volumes = scan["volumes"].as_array().into_iter().flatten();
    volumes.find(|v| v["specName"] == name).with_context(|| format!("there is no {name} in {scan:#}"))
}

fn elsewhere(node: &mut Node) -> Result<Verdict> {
    let file = foreign(node, "/var/lib/kubelet")?;
    let file = file.to_str().context("not UTF-8")?;
    // This machine's records, which another node's volumes must not be mixed up with, are not read.
    let mut command = Command::new(node.binary());
    command.args(["scan", "-o", "json", "--mountinfo", file, "--root-dir"]).arg(&node.root).stdin(Stdio::null());
    let output = command.env_clear().output()?;
    let scan: Value = serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))?;
    ensure!(scan["node"]["stateDir"].is_null(), "{:#}", scan["node"]);
    let keys = found(&scan, "keys")?;
    ensure!(keys["state"] == "Mounted" && keys["mount"]["fsType"] == "tmpfs", "{keys:#}");
    let path = format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~secret/keys");
    ensure!(keys["path"] == path.as_str(), "the path is the node's own: {keys:#}");
    let local = found(&scan, "pv-a")?;
    ensure!(local["mount"]["source"] == "/dev/sdb1" && local["mount"]["root"] == "/vol1", "{local:#}");
    ensure!(found(&scan, "scratch")?["mounted"] == false);
    if !is_real_root() {
        return Ok(Verdict::Skipped("there is no other user to be".into()));
    }
    // The same as somebody without privilege, who may read the files.
    tool("chmod", &["-R".as_ref(), "a+rX".as_ref(), node.root.as_os_str(), file.as_ref()])?;
    let copy = node.folder().join("refloat");
    std::fs::copy(node.binary(), &copy)?;
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&copy);
    command.args(["scan", "-o", "json", "--mountinfo", file, "--root-dir"]).arg(&node.root);
    let Ok(output) = command.current_dir("/").stdin(Stdio::null()).output() else {
        return Ok(Verdict::Skipped("there is no setpriv".into()));
    };
    let mut other: Value = serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))?;
    other["node"] = scan["node"].clone();
    ensure!(other == scan, "without privilege: {other:#}");
    Ok(Verdict::Passed)
}

fn explained(node: &mut Node) -> Result<Verdict> {
    let file = foreign(node, "/var/lib/kubelet")?;
    node.more = vec!["--mountinfo".into(), file.display().to_string()];
    let unpacked = node.root.join("pods").join(UID).join("volumes/kubernetes.io~secret/keys");
    for target in [
        format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~secret/keys"),
        unpacked.display().to_string(),
        format!("{UID}/keys"),
    ] {
        let ran = node.run(&["explain", &target, "-o", "json"])?;
        let explained = ran.json()?;
        let subjects = explained["subjects"].as_array().context("no subjects")?;
        ensure!(subjects.len() == 1 && subjects[0]["subject"].to_string().contains("keys"), "{target}: {explained:#}");
        ensure!(explained.to_string().contains("tmpfs"), "{explained:#}");
    }
    Ok(Verdict::Passed)
}

fn refused(node: &mut Node) -> Result<Verdict> {
    let file = node.folder().join("saved");
    let name = file.display().to_string();
    let scan = ["scan", "--mountinfo", name.as_str()];
    let ran = node.run(&scan)?.expect(1)?;
    ensure!(ran.stderr.contains("cannot read the saved mount table") && ran.stderr.contains("hint: "), "{ran:?}");
    for (text, part) in [("", "it is empty"), ("/dev/sda1 / ext4 rw,relatime 0 0\n", "line 1 cannot be understood")] {
        std::fs::write(&file, text)?;
        let ran = node.run(&scan)?.expect(1)?;
        ensure!(ran.stdout.is_empty() && ran.stderr.contains(part), "{text:?}: {ran:?}");
    }
    // One bad line loses no other mount, and is told.
    let good = foreign(node, "/var/lib/kubelet")?;
    std::fs::write(&file, [&std::fs::read(good)?[..], b"torn\xff li\n"].concat())?;
    let scan_json = node.run(&["scan", "-o", "json", "--mountinfo", name.as_str()])?.expect(3)?.json()?;
    ensure!(found(&scan_json, "keys")?["mounted"] == true, "{scan_json:#}");
    ensure!(scan_json["summary"]["problems"]["MountTableLine"] == 1, "{scan_json:#}");
    for args in [&["--mountinfo", name.as_str(), "--original-root", "kubelet"][..], &["--original-root", "/a"]] {
        let ran = node.run(&[&["scan"], args].concat())?.expect(2)?;
        ensure!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{ran:?}");
    }
    Ok(Verdict::Passed)
}

fn other_root(node: &mut Node) -> Result<Verdict> {
    let file = foreign(node, "/data/kubelet")?;
    node.more = vec!["--mountinfo".into(), file.display().to_string()];
    let scan = node.run(&["scan", "-o", "json"])?.expect(3)?.json()?;
    let problem = scan["problems"].as_array().into_iter().flatten().find(|p| p["code"] == "OtherRoot");
    let hint =
        problem.and_then(|p| p["hint"].as_str()).with_context(|| format!("no word of the other root: {scan:#}"))?;
    ensure!(hint.contains("--original-root /data/kubelet"), "{hint}");
    node.more.extend(["--original-root".into(), "/data/kubelet/".into()]);
    let scan = node.run(&["scan", "-o", "json"])?.json()?;
    ensure!(found(&scan, "keys")?["mounted"] == true && scan["summary"]["problems"]["OtherRoot"].is_null(), "{scan:#}");
    Ok(Verdict::Passed)
}
