//! `refloat clean` beside a kubelet: folders and mounts as a kubelet leaves them, and what is done to them.
//!
//! No file of a user may be lost in any of these, whatever the command says: each test looks at its files at the end.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::hung::{Fuse, skipped};
use crate::node::{Node, Ran, mount_tmpfs};
use crate::{Test, Verdict, pod, tool};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("clean_b01_a_sub_path_of_the_same_disk", sub_path_of_the_same_disk),
    ("clean_b02_mounts_inside_an_empty_dir", inside_an_empty_dir),
    ("clean_b04_empty_mounted_and_filled_folders", three_kinds_of_orphans),
    ("clean_b06_nobody_to_ask", nobody_to_ask),
    ("clean_b05_wanted_pods_keep_all", wanted_pods_keep_all),
    ("clean_b07_a_device_under_its_second_user", second_user),
    ("clean_b19_files_that_are_known_and_not", known_files),
    ("clean_names_files_in_folders_whose_name_is_no_text", names_that_are_no_text),
    ("clean_b26_layers", layers),
    ("clean_b42_a_root_behind_a_symlink", root_behind_a_symlink),
    ("clean_needs_a_pod_to_be_gone_for_a_while", grace),
    ("clean_does_what_is_named_and_no_more", targets),
    ("clean_removes_payloads_by_their_shape", payloads),
    ("clean_deletes_ephemeral_content_when_told", ephemeral),
    ("clean_stops_at_a_symlink", stops_at_a_symlink),
    ("clean_goes_on_after_a_volume_that_fails", goes_on),
    ("clean_with_records", with_records),
    ("clean_b23_a_fuse_daemon_that_was_killed", fuse_killed),
    ("clean_b22_a_fuse_daemon_that_is_stopped", fuse_stopped),
    ("clean_b03_a_busy_mount_stays", busy),
    ("clean_keeps_what_another_namespace_has", held),
    ("clean_b25_a_source_that_was_deleted", deleted_source),
    ("clean_b28_block_volumes", block_volumes),
    ("clean_b15_flex_volumes", flex_volumes),
    ("clean_tells_what_was_assumed_gone_and_is_not_here", not_here),
    ("clean_tells_of_a_damaged_record", damaged_record),
    ("clean_follows_no_symlink_in_the_place_of_a_pods_folder", symlink_for_a_pod),
    ("release_empties_the_node", release),
    ("wait_ends_when_it_is_so", wait_for),
];

/// Where things are.
pub(crate) struct Tree<'n> {
    node: &'n Node,
}

impl Tree<'_> {
    pub(crate) fn volume(&self, uid: &str, plugin: &str, name: &str) -> Result<PathBuf> {
        let path = self.node.root.join(format!("pods/{uid}/volumes/kubernetes.io~{plugin}/{name}"));
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    fn sub_path(&self, uid: &str, spec: &str) -> Result<PathBuf> {
        let path = self.node.root.join(format!("pods/{uid}/volume-subpaths/{spec}/c/0"));
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    pub(crate) fn has(&self, rel: &str) -> bool {
        std::fs::symlink_metadata(self.node.root.join(rel)).is_ok()
    }
}

pub(crate) fn tree(node: &Node) -> Tree<'_> {
    Tree { node }
}

/// A folder of the host with a file in it.
pub(crate) fn source(node: &Node, name: &str) -> Result<PathBuf> {
    let folder = node.host().join(name);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("keep.txt"), "keep")?;
    Ok(folder)
}

pub(crate) fn kept(folder: &Path) -> Result<()> {
    let text = std::fs::read_to_string(folder.join("keep.txt"));
    let text = text.with_context(|| format!("a file is lost in {}", folder.display()))?;
    ensure!(text == "keep", "a file in {} says {text:?}", folder.display());
    Ok(())
}

pub(crate) fn bind(from: &Path, to: &Path) -> Result<()> {
    tool("mount", &["--bind".as_ref(), from.as_ref(), to.as_ref()])
}

/// `clean` with the manifest folder as the source of pods, and no time of grace.
pub(crate) fn clean(node: &Node, more: &[&str]) -> Result<Ran> {
    let pods = node.pods();
    let pods = pods.to_str().context("a folder's name is not UTF-8")?;
    node.run(&[&["clean", "-o", "json", "--manifests", pods, "--grace", "0s"], more].concat())
}

pub(crate) fn steps(plan: &Value) -> Vec<(String, String, String)> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let all = plan["steps"].as_array().into_iter().flatten();
    all.map(|s| (text(&s["action"]), text(&s["path"]), text(&s["result"]))).collect()
}

/// The codes of what is kept at or below a path.
pub(crate) fn codes(plan: &Value, path: &Path) -> Vec<String> {
    let all = plan["kept"].as_array().into_iter().flatten();
    let here = all.filter(|k| k["path"].as_str().is_some_and(|p| Path::new(p).starts_with(path)));
    here.map(|k| k["code"].as_str().unwrap_or_default().to_owned()).collect()
}

pub(crate) fn all_done(ran: &Ran) -> Result<()> {
    let plan = ran.json()?;
    ensure!(steps(&plan).iter().all(|(.., result)| result == "Done"), "{plan:#}");
    Ok(())
}

/// What is on the node, to see that a dry run changes nothing.
fn picture(node: &Node) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    Ok((node.mounts()?, crate::node::files(&node.root)?))
}

/// B01: the bind shows a folder of the very file system that the root is on, and there is no `volumes`.
fn sub_path_of_the_same_disk(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    bind(&data, &tree(node).sub_path("u1", "v")?)?;
    let before = picture(node)?;
    let dry = clean(node, &[])?.expect(0)?.json()?;
    ensure!(dry["kind"] == "CleanPlan" && dry["steps"][0]["action"] == "UnmountSubPath", "{dry:#}");
    ensure!(dry["steps"][0]["result"] == "Planned" && dry["kept"] == serde_json::json!([]), "{dry:#}");
    ensure!(picture(node)? == before, "a dry run changed something");
    kept(&data)?;
    all_done(&clean(node, &["--yes"])?.expect(0)?)?;
    ensure!(node.mounts()?.is_empty() && !tree(node).has("pods/u1"));
    kept(&data)?;
    let again = clean(node, &["--yes"])?.expect(0)?.json()?;
    ensure!(steps(&again).is_empty(), "{again:#}");
    kept(&data)?;
    Ok(Verdict::Passed)
}

/// B02: a tmpfs inside, two layers of a bind, and one below that.
fn inside_an_empty_dir(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    std::fs::create_dir(data.join("deep"))?;
    let inner = source(node, "y")?;
    let e = tree(node).volume("u1", "empty-dir", "e")?;
    std::fs::write(e.join("a"), "its own")?;
    std::fs::create_dir(e.join("n"))?;
    bind(&data, &e.join("n"))?;
    bind(&data, &e.join("n"))?;
    bind(&inner, &e.join("n/deep"))?;
    // No command is given that would go into what is mounted there: `rm` takes a bind of its own file system for a folder.
    let dry = clean(node, &[])?.expect(3)?.json()?;
    ensure!(codes(&dry, &e) == ["EphemeralData"] && dry["kept"][0]["command"].is_null(), "{dry:#}");
    // Without being told, the pod's own file stays, and what is mounted inside does not.
    let plan = clean(node, &["--yes"])?.expect(3)?.json()?;
    ensure!(codes(&plan, &e) == ["EphemeralData"], "{plan:#}");
    ensure!(node.mounts()?.is_empty(), "{:?}", node.mounts()?);
    ensure!(std::fs::read_to_string(e.join("a"))? == "its own");
    kept(&data)?;
    kept(&inner)?;
    // The same with all three mounts there, told to delete.
    bind(&data, &e.join("n"))?;
    bind(&data, &e.join("n"))?;
    bind(&inner, &e.join("n/deep"))?;
    let dry = clean(node, &["--delete-ephemeral"])?.expect(0)?.json()?;
    let order: Vec<_> = steps(&dry).into_iter().map(|(action, ..)| action).collect();
    ensure!(order[..3] == ["Unmount", "Unmount", "Unmount"] && order.contains(&"DeleteContent".into()), "{dry:#}");
    ensure!(dry["steps"][0]["path"].as_str().is_some_and(|p| p.ends_with("n/deep")), "{dry:#}");
    all_done(&clean(node, &["--yes", "--delete-ephemeral"])?.expect(0)?)?;
    ensure!(node.mounts()?.is_empty() && !tree(node).has("pods/u1"));
    kept(&data)?;
    kept(&inner)?;
    Ok(Verdict::Passed)
}

/// B04, with a file system that is mounted twice: globally and for the pod.
fn three_kinds_of_orphans(node: &mut Node) -> Result<Verdict> {
    let t = tree(node);
    t.volume("u1", "nfs", "v")?;
    let global = node.root.join("plugins/kubernetes.io/rbd/mounts/rbd-image-x");
    std::fs::create_dir_all(&global)?;
    mount_tmpfs(&global, "64k")?;
    std::fs::write(global.join("keep.txt"), "keep")?;
    let elsewhere = node.host().join("elsewhere");
    std::fs::create_dir(&elsewhere)?;
    let mounted = t.volume("u2", "rbd", "pv")?;
    bind(&global, &mounted)?;
    let data = t.volume("u3", "nfs", "v")?;
    std::fs::write(data.join("ibdata1"), "a database")?;
    let before = picture(node)?;
    let dry = clean(node, &[])?.expect(3)?.json()?;
    ensure!(picture(node)? == before, "a dry run changed something");
    ensure!(codes(&dry, &data) == ["DataKept"], "{dry:#}");
    let command = dry["kept"][0]["command"].as_str().unwrap_or_default();
    ensure!(command.contains(data.to_str().unwrap_or("?")) && dry["kept"][0]["bytes"] == 10, "{dry:#}");
    let ran = clean(node, &["--yes"])?.expect(3)?;
    all_done(&ran)?;
    let places: Vec<_> = steps(&ran.json()?)
        .into_iter()
        .filter(|(action, ..)| action.starts_with("Unmount"))
        .map(|(_, path, _)| path)
        .collect();
    ensure!(places == [mounted.to_str().unwrap_or("?"), global.to_str().unwrap_or("?")], "{places:?}");
    ensure!(node.mounts()?.is_empty() && !t.has("pods/u1") && !t.has("pods/u2"), "{:?}", picture(node)?);
    ensure!(std::fs::read_to_string(data.join("ibdata1"))? == "a database");
    Ok(Verdict::Passed)
}

/// B06: no source of pods, and one that cannot be read whole.
fn nobody_to_ask(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    bind(&data, &tree(node).volume("u1", "nfs", "v")?)?;
    bind(&data, &tree(node).volume("u2", "nfs", "v")?)?;
    let before = picture(node)?;
    for _ in 0..2 {
        let plan = node.run(&["clean", "--yes", "-o", "json", "--grace", "0s"])?.expect(3)?.json()?;
        ensure!(
            steps(&plan).is_empty() && codes(&plan, &node.root.join("pods")) == ["NotKnown", "NotKnown"],
            "{plan:#}"
        );
        ensure!(picture(node)? == before);
    }
    node.apply("broken.yaml", "kind: [")?;
    let plan = clean(node, &["--yes"])?.expect(3)?.json()?;
    ensure!(steps(&plan).is_empty() && picture(node)? == before, "{plan:#}");
    // By the operator's word, for this pod and no other.
    let ran = node.run(&["clean", "--yes", "-o", "json", "--assume-gone", "u1"])?.expect(3)?;
    all_done(&ran)?;
    ensure!(!tree(node).has("pods/u1") && node.mounts()?.len() == 1);
    kept(&data)?;
    Ok(Verdict::Passed)
}

/// B05: neither what is wanted, nor what is wanted and said to be gone.
fn wanted_pods_keep_all(node: &mut Node) -> Result<Verdict> {
    node.apply(
        "web.yaml",
        &pod("web", "[]", "  - {name: m, emptyDir: {medium: Memory}}\n  - {name: d, emptyDir: {}}\n"),
    )?;
    node.once()?.expect(0)?;
    let scan = node.scan()?.json()?;
    let uid = scan["volumes"][0]["pod"]["uid"].as_str().context("no uid")?.to_owned();
    for name in ["m", "d"] {
        std::fs::write(crate::path_of(&scan, "web", name)?.join("keep.txt"), "keep")?;
    }
    let before = picture(node)?;
    let plan = clean(node, &["--yes", "--delete-ephemeral"])?.expect(0)?.json()?;
    ensure!(steps(&plan).is_empty(), "{plan:#}");
    let plan = clean(node, &["--yes", "--delete-ephemeral", "--assume-gone", &uid])?.expect(3)?.json()?;
    ensure!(steps(&plan).is_empty() && plan["kept"][0]["code"] == "StillWanted", "{plan:#}");
    ensure!(picture(node)? == before);
    for name in ["m", "d"] {
        kept(&crate::path_of(&scan, "web", name)?)?;
    }
    Ok(Verdict::Passed)
}

/// B07: a bind of one device in a pod that is gone and in one of which nobody can tell.
fn second_user(node: &mut Node) -> Result<Verdict> {
    let t = tree(node);
    let global = node.root.join("plugins/kubernetes.io/local-volume/mounts/pv");
    std::fs::create_dir_all(&global)?;
    mount_tmpfs(&global, "64k")?;
    std::fs::write(global.join("keep.txt"), "keep")?;
    for uid in ["u1", "u2"] {
        bind(&global, &t.volume(uid, "local-volume", "pv")?)?;
    }
    let ran = node.run(&["clean", "--yes", "-o", "json", "--assume-gone", "u1"])?.expect(3)?;
    all_done(&ran)?;
    let left = node.mounts()?;
    ensure!(left.len() == 2 && left.contains(&global) && !t.has("pods/u1"), "{left:?}");
    kept(&global)?;
    all_done(&node.run(&["clean", "--yes", "-o", "json", "--assume-gone", "u2"])?.expect(0)?)?;
    ensure!(node.mounts()?.is_empty() && !t.has("pods/u2"));
    Ok(Verdict::Passed)
}

/// B19, and what a kubelet has in a pod's folder besides volumes.
fn known_files(node: &mut Node) -> Result<Verdict> {
    let t = tree(node);
    let vol_data = r#"{"attachmentID":"csi-1","driverName":"no.such.driver","nodeName":"n","specVolID":"pv1","volumeHandle":"h1","volumeLifecycleMode":"Persistent"}"#;
    for (uid, stray) in [("u1", false), ("u2", true)] {
        let csi = t.volume(uid, "csi", "pv1")?;
        std::fs::write(csi.join("vol_data.json"), vol_data)?;
        let pod = node.root.join("pods").join(uid);
        std::fs::write(pod.join("etc-hosts"), "# Kubernetes-managed hosts file.\n127.0.0.1 localhost\n")?;
        std::fs::create_dir_all(pod.join("containers/main"))?;
        std::fs::write(pod.join("containers/main/0a1b2c3d"), "")?;
        if stray {
            std::fs::write(csi.join("x"), "somebody's")?;
            std::fs::write(pod.join("containers/main/ffffffff"), "why it ended")?;
        }
    }
    let plan = clean(node, &["--yes"])?.expect(3)?.json()?;
    ensure!(codes(&plan, &node.root.join("pods/u1")) == ["DriverMissing"], "{plan:#}");
    let ran = clean(node, &["--yes", "--without-driver"])?.expect(3)?;
    all_done(&ran)?;
    ensure!(!t.has("pods/u1"), "{:#}", ran.json()?);
    let x = node.root.join("pods/u2/volumes/kubernetes.io~csi/pv1/x");
    ensure!(std::fs::read_to_string(x)? == "somebody's" && t.has("pods/u2/containers/main/ffffffff"));
    Ok(Verdict::Passed)
}

/// No volume is called so, and what is in such a folder is somebody's all the same.
fn names_that_are_no_text(node: &mut Node) -> Result<Verdict> {
    let bad = OsStr::from_bytes(b"scr\xffatch");
    let at = |uid: &str, plugin: &OsStr, name: &OsStr| {
        node.root.join("pods").join(uid).join("volumes").join(plugin).join(name)
    };
    let empty_dir = OsStr::new("kubernetes.io~empty-dir");
    let places = [
        ("u1", at("u1", empty_dir, bad).join("deep/file")),
        ("u2", at("u2", bad, "v".as_ref()).join("file")),
        ("u3", at("u3", empty_dir, bad)),
        // Another program's file, of a volume that is gone.
        ("u4", at("u4", "kubernetes.io~nfs".as_ref(), "gone~pv.json".as_ref())),
        // Beside a volume.
        ("u5", at("u5", empty_dir, bad).join("file")),
    ];
    for (_, file) in &places {
        std::fs::create_dir_all(file.parent().context("no folder")?)?;
        std::fs::write(file, "keep")?;
    }
    tree(node).volume("u5", "empty-dir", "other")?;
    // One with nothing in it.
    std::fs::create_dir_all(at("u6", empty_dir, bad))?;
    let before = picture(node)?;
    let scan = node.scan()?.expect(3)?.json()?;
    ensure!(picture(node)? == before);
    for (uid, kind) in [
        ("u1", Some("PodDirWithData")),
        ("u2", Some("PodDirWithData")),
        ("u3", Some("PodDirWithData")),
        ("u4", Some("PodDirWithData")),
        ("u5", None),
        ("u6", Some("EmptyPodDir")),
    ] {
        let folder = node.root.join("pods").join(uid).display().to_string();
        let found = scan["leftovers"].as_array().into_iter().flatten().find(|l| l["path"] == folder.as_str());
        ensure!(found.map(|found| found["kind"].as_str()) == kind.map(Some), "{uid}: {found:#?}");
    }
    let names = scan["problems"].as_array().into_iter().flatten().filter(|p| p["code"] == "UnreadableName").count();
    ensure!(names == 5, "{:#}", scan["problems"]);
    for args in [&[][..], &["--yes"], &["--yes", "--delete-ephemeral"]] {
        let plan = clean(node, args)?.expect(3)?.json()?;
        for (uid, file) in &places {
            let shown = file.to_string_lossy().replace(char::REPLACEMENT_CHARACTER, r"\xff");
            let one = plan["kept"].as_array().into_iter().flatten().find(|k| k["path"] == shown.as_str());
            let one = one.with_context(|| format!("{uid}: {shown} is not in {plan:#}"))?;
            ensure!(one["code"] == "DataKept" && one["bytes"] == 4, "{one:#}");
            ensure!(std::fs::read_to_string(file)? == "keep");
        }
    }
    ensure!(!tree(node).has("pods/u6"), "what is empty is left");
    Ok(Verdict::Passed)
}

/// B26: layers of one origin come off; one of another origin is nobody's to take.
fn layers(node: &mut Node) -> Result<Verdict> {
    let (data, other) = (source(node, "x")?, source(node, "y")?);
    let t = tree(node);
    let same = t.volume("u1", "nfs", "v")?;
    for _ in 0..3 {
        bind(&data, &same)?;
    }
    let mixed = t.volume("u2", "nfs", "v")?;
    bind(&data, &mixed)?;
    bind(&other, &mixed)?;
    let ran = clean(node, &["--yes"])?.expect(3)?;
    all_done(&ran)?;
    ensure!(!t.has("pods/u1") && codes(&ran.json()?, &mixed) == ["Conflict"], "{ran:?}");
    kept(&data)?;
    kept(&other)?;
    let at = node.mounts()?.into_iter().filter(|m| *m == mixed).count();
    ensure!(at == 2, "what lies under another's mount was taken");
    Ok(Verdict::Passed)
}

/// B42.
fn root_behind_a_symlink(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    bind(&data, &tree(node).volume("u1", "nfs", "v")?)?;
    let link = node.folder().join("link");
    symlink(&node.root, &link)?;
    let real = std::mem::replace(&mut node.root, link);
    let target = node.root.join("pods/u1/volumes/kubernetes.io~nfs/v");
    let dry = clean(node, &[target.to_str().context("no text")?])?.expect(0)?.json()?;
    ensure!(steps(&dry).iter().any(|(action, ..)| action == "Unmount"), "{dry:#}");
    all_done(&clean(node, &["--yes"])?.expect(0)?)?;
    node.root = real;
    ensure!(node.mounts()?.is_empty() && !tree(node).has("pods/u1"));
    kept(&data)?;
    let wrong = node.run(&["clean", "--root-dir", "/nowhere/at/all"]);
    ensure!(wrong?.code != 0);
    Ok(Verdict::Passed)
}

fn grace(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    bind(&data, &tree(node).volume("u1", "nfs", "v")?)?;
    let pods = node.pods();
    let pods = pods.to_str().context("no text")?;
    let plan = node.run(&["clean", "--yes", "-o", "json", "--manifests", pods])?.expect(3)?.json()?;
    ensure!(steps(&plan).is_empty() && plan["kept"][0]["code"] == "TooRecent", "{plan:#}");
    ensure!(node.mounts()?.len() == 1);
    std::thread::sleep(Duration::from_millis(2100));
    all_done(&node.run(&["clean", "--yes", "-o", "json", "--manifests", pods, "--grace", "1s"])?.expect(0)?)?;
    kept(&data)?;
    node.run(&["clean", "--grace", "soon"])?.expect(2)?;
    Ok(Verdict::Passed)
}

fn targets(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    let t = tree(node);
    for (uid, name) in [("u1", "a"), ("u1", "b"), ("u2", "a")] {
        bind(&data, &t.volume(uid, "nfs", name)?)?;
    }
    let path = node.root.join("pods/u1/volumes/kubernetes.io~nfs/a");
    all_done(&clean(node, &["--yes", path.to_str().context("no text")?])?.expect(0)?)?;
    ensure!(!t.has("pods/u1/volumes/kubernetes.io~nfs/a") && node.mounts()?.len() == 2);
    all_done(&clean(node, &["--yes", "u1"])?.expect(0)?)?;
    ensure!(!t.has("pods/u1") && node.mounts()?.len() == 1);
    clean(node, &["--yes", "u9"])?.expect(1)?;
    ensure!(node.mounts()?.len() == 1);
    kept(&data)?;
    Ok(Verdict::Passed)
}

/// What a kubelet's atomic writer makes, with and without a file of somebody else.
fn payloads(node: &mut Node) -> Result<Verdict> {
    let t = tree(node);
    for (uid, stray) in [("u1", false), ("u2", true)] {
        let folder = t.volume(uid, "configmap", "c")?;
        let stamped = "..2024_01_01_00_00_00.123456789";
        std::fs::create_dir_all(folder.join(stamped).join("sub"))?;
        std::fs::write(folder.join(stamped).join("key"), "value")?;
        std::fs::write(folder.join(stamped).join("sub/key"), "value")?;
        symlink(stamped, folder.join("..data"))?;
        symlink("..data/key", folder.join("key"))?;
        symlink("..data/sub", folder.join("sub"))?;
        let marker = node.root.join(format!("pods/{uid}/plugins/kubernetes.io~empty-dir/wrapped_c"));
        std::fs::create_dir_all(&marker)?;
        std::fs::write(marker.join("ready"), "")?;
        if stray {
            std::fs::write(folder.join("keep.txt"), "keep")?;
        }
    }
    let secret = t.volume("u3", "secret", "s")?;
    mount_tmpfs(&secret, "64k")?;
    std::fs::write(secret.join("key"), "value")?;
    let ran = clean(node, &["--yes"])?.expect(3)?;
    all_done(&ran)?;
    ensure!(!t.has("pods/u1") && !t.has("pods/u3"), "{:#}", ran.json()?);
    kept(&node.root.join("pods/u2/volumes/kubernetes.io~configmap/c"))?;
    Ok(Verdict::Passed)
}

fn ephemeral(node: &mut Node) -> Result<Verdict> {
    let t = tree(node);
    let disk = t.volume("u1", "empty-dir", "d")?;
    std::fs::create_dir(disk.join("folder"))?;
    std::fs::write(disk.join("folder/file"), vec![0; 1000])?;
    let outside = source(node, "x")?;
    symlink(&outside, disk.join("link"))?;
    let memory = t.volume("u2", "empty-dir", "m")?;
    mount_tmpfs(&memory, "64k")?;
    std::fs::write(memory.join("keep.txt"), "keep")?;
    // Of another kind: the flag is not about it.
    let nfs = t.volume("u3", "nfs", "v")?;
    std::fs::write(nfs.join("keep.txt"), "keep")?;
    let plan = clean(node, &["--yes"])?.expect(3)?.json()?;
    ensure!(codes(&plan, &disk) == ["EphemeralData"] && codes(&plan, &memory) == ["EphemeralData"], "{plan:#}");
    let of_disk = plan["kept"].as_array().into_iter().flatten().find(|k| k["bytes"] == 1000);
    ensure!(of_disk.is_some_and(|k| k["entries"] == 3), "{plan:#}");
    kept(&memory)?;
    ensure!(disk.join("folder/file").try_exists()?);
    all_done(&clean(node, &["--yes", "--delete-ephemeral"])?.expect(3)?)?;
    ensure!(!t.has("pods/u1") && !t.has("pods/u2") && node.mounts()?.is_empty());
    kept(&nfs)?;
    kept(&outside)?;
    Ok(Verdict::Passed)
}

/// Files come to light when a mount over them is taken off: they stay, and so does their volume. The others go.
fn goes_on(node: &mut Node) -> Result<Verdict> {
    let t = tree(node);
    let data = source(node, "x")?;
    // Under an emptyDir in memory, under a bind over a volume's folder, and under one inside it.
    let memory = t.volume("u1", "empty-dir", "m")?;
    std::fs::write(memory.join("keep.txt"), "keep")?;
    mount_tmpfs(&memory, "64k")?;
    let over = t.volume("u2", "nfs", "o")?;
    std::fs::write(over.join("keep.txt"), "keep")?;
    bind(&data, &over)?;
    let disk = t.volume("u3", "empty-dir", "d")?;
    std::fs::create_dir(disk.join("inside"))?;
    std::fs::write(disk.join("inside/hidden"), "the pod's")?;
    bind(&data, &disk.join("inside"))?;
    let bound = t.volume("u4", "empty-dir", "b")?;
    std::fs::write(bound.join("keep.txt"), "keep")?;
    bind(&data, &bound)?;
    for uid in ["u0", "u5", "u6"] {
        mount_tmpfs(&t.volume(uid, "secret", "s")?, "64k")?;
    }
    let ran = clean(node, &["--yes", "--delete-ephemeral", "--workers", "1"])?.expect(1)?;
    let plan = ran.json()?;
    ensure!(plan["stopped"].is_null(), "{plan:#}");
    ensure!(ran.stderr.contains("failed, and all else was done"), "{}", ran.stderr);
    let gone: Vec<bool> = (0..7).map(|n| !t.has(&format!("pods/u{n}"))).collect();
    ensure!(gone == [true, false, false, true, false, true, true], "{gone:?} {plan:#}");
    let failed: BTreeSet<String> =
        steps(&plan).into_iter().filter(|(.., result)| result == "Failed").map(|(_, path, _)| path).collect();
    ensure!([&memory, &over].iter().all(|path| failed.contains(path.to_str().unwrap_or("?"))), "{plan:#}");
    for folder in [&memory, &over, &data] {
        kept(folder)?;
    }
    Ok(Verdict::Passed)
}

/// A symlink where a folder of the kubelet's would be leads nowhere.
fn stops_at_a_symlink(node: &mut Node) -> Result<Verdict> {
    let outside = source(node, "x")?;
    std::fs::create_dir_all(outside.join("kubernetes.io~empty-dir/e"))?;
    std::fs::write(outside.join("kubernetes.io~empty-dir/e/keep.txt"), "keep")?;
    std::fs::create_dir_all(node.root.join("pods/u1"))?;
    symlink(&outside, node.root.join("pods/u1/volumes"))?;
    std::fs::create_dir_all(node.root.join("pods/u2/volumes/kubernetes.io~empty-dir"))?;
    symlink(&outside, node.root.join("pods/u2/volumes/kubernetes.io~empty-dir/e"))?;
    let ran = clean(node, &["--yes", "--delete-ephemeral"])?;
    ensure!(ran.code != 0, "{ran:?}");
    kept(&outside)?;
    kept(&outside.join("kubernetes.io~empty-dir/e"))?;
    Ok(Verdict::Passed)
}

/// Volumes that Refloat made, whose manager does not run any more.
fn with_records(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    node.apply("settings.yaml", &crate::config_map("settings", "one"))?;
    let volumes = format!(
        "  - {{name: c, configMap: {{name: settings}}}}\n  - {{name: m, emptyDir: {{medium: Memory}}}}\n  - {{name: d, emptyDir: \
         {{}}}}\n  - {{name: h, hostPath: {{path: {}}}}}\n",
        data.display()
    );
    node.apply("web.yaml", &pod("web", "[{name: h, mountPath: /h, subPath: sub}]", &volumes))?;
    node.once()?.expect(0)?;
    ensure!(!node.mounts()?.is_empty());
    node.delete("web.yaml")?;
    let ran = clean(node, &["--yes", "--delete-ephemeral"])?.expect(0)?;
    all_done(&ran)?;
    crate::life::nothing_left(node)?;
    kept(&data)?;
    Ok(Verdict::Passed)
}

/// B15: mounts of a driver that Kubernetes runs as a program, and that is gone. What it would have to do is nobody else's,
/// unless the operator says so.
fn flex_volumes(node: &mut Node) -> Result<Verdict> {
    let (data, disk) = (source(node, "x")?, source(node, "disk")?);
    let inline = node.root.join("pods/u1/volumes/acme~nfs/v");
    let on_device = node.root.join("pods/u1/volumes/acme~disk/w");
    let global = node.root.join("plugins/kubernetes.io/flexvolume/acme/disk/mounts/w");
    for (from, to) in [(&data, &inline), (&disk, &global), (&disk, &on_device)] {
        std::fs::create_dir_all(to)?;
        bind(from, to)?;
    }
    let told = clean(node, &["--yes"])?.expect(3)?.json()?;
    ensure!(node.mounts()?.len() == 3, "{told:#}");
    ensure!(codes(&told, &inline) == ["DriverMissing"] && codes(&told, &on_device) == ["DriverMissing"], "{told:#}");
    ensure!(codes(&told, &global) == ["InUse"], "{told:#}");
    let told = clean(node, &["--yes", "--without-driver"])?.expect(3)?.json()?;
    ensure!(codes(&told, &global) == ["NotUnstaged"], "{told:#}");
    ensure!(node.mounts()?.is_empty() && !tree(node).has("pods/u1"), "{told:#}");
    kept(&data)?;
    kept(&disk)?;
    Ok(Verdict::Passed)
}

fn release(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    node.apply("web.yaml", &pod("web", "[]", "  - {name: m, emptyDir: {medium: Memory}}\n"))?;
    node.once()?.expect(0)?;
    bind(&data, &tree(node).volume("u1", "nfs", "v")?)?;
    let pods = node.pods();
    let pods = pods.to_str().context("no text")?;
    let dry = node.run(&["release", "-o", "json", "--manifests", pods])?.expect(3)?.json()?;
    ensure!(dry["left"].as_array().is_some_and(|left| left.len() == 2) && node.mounts()?.len() == 2, "{dry:#}");
    let some = node.run(&["release", "--yes", "-o", "json", "--manifests", pods])?.expect(3)?.json()?;
    ensure!(some["left"].as_array().is_some_and(|left| left.len() == 1), "{some:#}");
    ensure!(node.mounts()?.len() == 1 && !tree(node).has("pods/u1"));
    let all =
        node.run(&["release", "--yes", "--including-running", "-o", "json", "--manifests", pods])?.expect(0)?.json()?;
    ensure!(all["left"] == serde_json::json!([]) && node.mounts()?.is_empty(), "{all:#}");
    kept(&data)?;
    Ok(Verdict::Passed)
}

fn wait_for(node: &mut Node) -> Result<Verdict> {
    node.run(&["wait", "--for=empty", "--timeout", "1s"])?.expect(0)?;
    let data = source(node, "x")?;
    let volume = tree(node).volume("u1", "nfs", "v")?;
    bind(&data, &volume)?;
    let begun = Instant::now();
    node.run(&["wait", "--for=empty", "--timeout", "300ms"])?.expect(1)?;
    ensure!(begun.elapsed() >= Duration::from_millis(300));
    let mut waiting = node.refloat(&["wait", "--for=empty", "--timeout", "60s"]).spawn()?;
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    rustix::mount::unmount(&volume, rustix::mount::UnmountFlags::empty())?;
    let status = waiting.wait()?;
    ensure!(status.success() && begun.elapsed() < Duration::from_secs(3), "{status} after {:?}", begun.elapsed());
    node.run(&["wait", "--for=nothing"])?.expect(2)?;
    Ok(Verdict::Passed)
}

/// How long a clean-up may take that a dead file system must not hold up.
const IN_TIME: Duration = Duration::from_secs(30);

/// B23: the daemon was killed; nobody waits, and a plain unmount does.
fn fuse_killed(node: &mut Node) -> Result<Verdict> {
    let Some(mut fuse) = Fuse::new(node)? else { return Ok(skipped()) };
    let data = source(node, "x")?;
    let t = tree(node);
    bind(&fuse.point, &t.volume("u1", "nfs", "v")?)?;
    bind(&data, &t.volume("u2", "nfs", "v")?)?;
    fuse.daemon.kill()?;
    fuse.daemon.wait()?;
    let begun = Instant::now();
    all_done(&clean(node, &["--yes"])?.expect(0)?)?;
    ensure!(begun.elapsed() < IN_TIME, "it took {:?}", begun.elapsed());
    ensure!(!t.has("pods/u1") && !t.has("pods/u2") && node.mounts()?.is_empty());
    kept(&data)?;
    Ok(Verdict::Passed)
}

/// B22: the daemon is stopped and somebody has a file of it open, so that the mount is busy and nobody answers.
fn fuse_stopped(node: &mut Node) -> Result<Verdict> {
    let Some(fuse) = Fuse::new(node)? else { return Ok(skipped()) };
    let data = source(node, "x")?;
    let t = tree(node);
    let hung = t.volume("u1", "nfs", "v")?;
    // No other place shows it: forcing would be felt there.
    tool("mount", &["--move".as_ref(), fuse.point.as_ref(), hung.as_ref()])?;
    std::fs::write(hung.join("file"), "x")?;
    let open = std::fs::File::open(hung.join("file"))?;
    bind(&data, &t.volume("u2", "nfs", "v")?)?;
    fuse.signal(rustix::process::Signal::STOP)?;
    let begun = Instant::now();
    let plan = clean(node, &["--yes"])?.expect(1)?.json()?;
    ensure!(begun.elapsed() < IN_TIME, "it took {:?}", begun.elapsed());
    ensure!(!t.has("pods/u2") && node.mounts()? == [hung.clone()], "{plan:#}");
    ensure!(steps(&plan).iter().any(|(.., result)| result == "Failed"), "{plan:#}");
    let begun = Instant::now();
    let plan = clean(node, &["--yes", "--force"])?.expect(0)?.json()?;
    ensure!(begun.elapsed() < IN_TIME, "it took {:?}", begun.elapsed());
    ensure!(steps(&plan).iter().any(|(.., result)| result == "Forced"), "{plan:#}");
    ensure!(!t.has("pods/u1") && node.mounts()?.is_empty(), "{plan:#}");
    kept(&data)?;
    drop(open);
    drop(fuse);
    Ok(Verdict::Passed)
}

/// B03: a process has its working folder in a global mount.
fn busy(node: &mut Node) -> Result<Verdict> {
    let t = tree(node);
    let (data, device) = (source(node, "x")?, source(node, "y")?);
    let global = node.root.join("plugins/kubernetes.io/local-volume/mounts/pv");
    std::fs::create_dir_all(&global)?;
    bind(&device, &global)?;
    bind(&global, &t.volume("u1", "local-volume", "pv")?)?;
    bind(&data, &t.sub_path("u2", "h")?)?;
    let mut inside = std::process::Command::new("sleep").arg("60").current_dir(&global).spawn()?;
    let ran = clean(node, &["--yes"]);
    let left = node.mounts();
    inside.kill()?;
    inside.wait()?;
    let plan = ran?.expect(1)?.json()?;
    ensure!(left? == [global.clone()], "{plan:#}");
    let failed: Vec<_> = steps(&plan).into_iter().filter(|(.., result)| result == "Failed").collect();
    ensure!(failed.len() == 1 && failed[0].1 == global.to_str().unwrap_or("?"), "{plan:#}");
    ensure!(!t.has("pods/u1") && !t.has("pods/u2"));
    kept(&device)?;
    all_done(&clean(node, &["--yes"])?.expect(0)?)?;
    ensure!(node.mounts()?.is_empty());
    kept(&device)?;
    kept(&data)?;
    Ok(Verdict::Passed)
}

/// A container goes on with a mount that was taken off on the node, and its device stays busy.
fn held(node: &mut Node) -> Result<Verdict> {
    let t = tree(node);
    let (data, other) = (source(node, "x")?, source(node, "y")?);
    let volume = t.volume("u1", "nfs", "a")?;
    mount_tmpfs(&volume, "1m")?;
    std::fs::write(volume.join("keep.txt"), "keep")?;
    bind(&other, &t.sub_path("u2", "v")?)?;
    let mut container = Container::start(&["--propagation", "private"])?;
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| -> Result<()> {
        let plan = clean(node, &["--yes"])?.expect(3)?.json()?;
        ensure!(codes(&plan, &volume) == ["Held"], "{plan:#}");
        let reason = plan["kept"].to_string();
        ensure!(reason.contains(&format!("process {} (sleep)", container.0.id())), "{reason}");
        kept(&volume)?;
        // Nothing of `u2` goes either, whose mount that process has too.
        ensure!(node.mounts()?.len() == 2, "{:?}", node.mounts()?);
        let told = node.run(&["explain", volume.to_str().context("no text")?])?;
        ensure!(told.stdout.contains("holder: process"), "{}{}", told.stdout, told.stderr);
        Ok(())
    }));
    container.end()?;
    found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    all_done(&clean(node, &["--yes"])?.expect(0)?)?;
    ensure!(node.mounts()?.is_empty());
    kept(&other)?;
    kept(&data)?;
    Ok(Verdict::Passed)
}

/// A process in a mount namespace of its own, with a copy of every mount.
struct Container(std::process::Child);

impl Container {
    fn start(options: &[&str]) -> Result<Self> {
        let ours = std::fs::read_link("/proc/self/ns/mnt")?;
        let mut command = std::process::Command::new("unshare");
        let child = command.arg("--mount").args(options).args(["--", "sleep", "60"]).spawn()?;
        let container = Self(child);
        let end = Instant::now() + Duration::from_secs(10);
        let comm = || std::fs::read_to_string(format!("/proc/{}/comm", container.0.id())).unwrap_or_default();
        while comm().trim() != "sleep" {
            ensure!(Instant::now() < end, "unshare did not start sleep");
            std::thread::sleep(Duration::from_millis(10));
        }
        ensure!(std::fs::read_link(format!("/proc/{}/ns/mnt", container.0.id()))? != ours, "it is in our namespace");
        Ok(container)
    }

    fn end(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// B25: a stat of the mount's source says that there is nothing.
fn deleted_source(node: &mut Node) -> Result<Verdict> {
    let folder = node.host().join("gone");
    std::fs::create_dir(&folder)?;
    bind(&folder, &tree(node).sub_path("u1", "v")?)?;
    let file = node.host().join("file");
    std::fs::write(&file, "x")?;
    let target = node.root.join("pods/u1/volume-subpaths/v/c/1");
    std::fs::write(&target, "")?;
    bind(&file, &target)?;
    std::fs::remove_dir(&folder)?;
    std::fs::remove_file(&file)?;
    all_done(&clean(node, &["--yes"])?.expect(0)?)?;
    ensure!(node.mounts()?.is_empty() && !tree(node).has("pods/u1"), "{:?}", picture(node)?);
    Ok(Verdict::Passed)
}

/// B28 and B29: what a kubelet leaves of a local block volume: each of its objects, there or not.
fn block_volumes(node: &mut Node) -> Result<Verdict> {
    if !crate::is_real_root() {
        return Ok(Verdict::Skipped("loop devices need root".into()));
    }
    let image = node.host().join("disk.img");
    std::fs::File::create(&image)?.set_len(1 << 20)?;
    let Ok(device) = node.attach_loop(&image) else {
        return Ok(Verdict::Skipped("no loop device can be had".into()));
    };
    for objects in 0..4 {
        let (linked, bound) = (objects & 1 != 0, objects & 2 != 0);
        if linked {
            let links = node.root.join("pods/u1/volumeDevices/kubernetes.io~local-volume");
            std::fs::create_dir_all(&links)?;
            symlink(&device, links.join("pv"))?;
        }
        let maps = node.root.join("plugins/kubernetes.io~local-volume/volumeDevices/pv");
        let maps = if bound { maps } else { continue };
        std::fs::create_dir_all(&maps)?;
        std::fs::write(maps.join("u1"), "")?;
        bind(&device, &maps.join("u1"))?;
        let ran = clean(node, &["--yes"])?;
        ensure!(ran.code == 0 || ran.code == 3, "{ran:?}");
        ensure!(!tree(node).has("pods/u1/volumeDevices"), "objects {objects}: {ran:?}");
        ensure!(node.mounts()?.is_empty(), "objects {objects}: {:?}\n{ran:?}", node.mounts()?);
    }
    let still = refloat_mount::loopdev::find(&image)?;
    ensure!(still == [device], "the disk of somebody else was detached: {still:?}");
    Ok(Verdict::Passed)
}

fn problem_codes(plan: &Value) -> Vec<&str> {
    plan["problems"].as_array().into_iter().flatten().filter_map(|p| p["code"].as_str()).collect()
}

fn not_here(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    let path = tree(node).volume("u1", "nfs", "v")?;
    bind(&data, &path)?;
    for yes in [&[][..], &["--yes"]] {
        for name in ["u2", "plugins/kubernetes.io/rbd/mounts/x", "default/web"] {
            let args = [&["clean", "-o", "json", "--assume-gone", name], yes].concat();
            let plan = node.run(&args)?.expect(3)?.json()?;
            ensure!(problem_codes(&plan) == ["AssumedNotHere"] && steps(&plan).is_empty(), "{name}: {plan:#}");
            ensure!(plan["problems"][0]["message"].as_str().is_some_and(|text| text.contains(name)), "{plan:#}");
        }
    }
    let ran = node.run(&["clean", "--assume-gone", "u1", "--assume-gone", "u2"])?.expect(3)?;
    ensure!(ran.stdout.contains("AssumedNotHere: --assume-gone u2") && !ran.stdout.contains("gone u1:"), "{ran:?}");
    for wrong in ["", ".", "..", &"u".repeat(256)] {
        for command in ["clean", "release"] {
            let ran = node.run(&[command, "--yes", "--assume-gone", wrong])?.expect(2)?;
            ensure!(ran.stderr.contains("--assume-gone"), "{ran:?}");
        }
    }
    ensure!(node.mounts()? == [path]);
    all_done(&node.run(&["clean", "--yes", "-o", "json", "--assume-gone", "u1"])?.expect(0)?)?;
    kept(&data)?;
    Ok(Verdict::Passed)
}

fn damaged_record(node: &mut Node) -> Result<Verdict> {
    clean(node, &["--yes"])?.expect(0)?;
    let folder = node.state.join("volumes");
    let file = folder.join("bad.json");
    ensure!(folder.is_dir(), "there is no {}", folder.display());
    std::fs::write(&file, "{ torn")?;
    node.scan()?.expect(3)?;
    let pods = node.pods();
    let text = node.run(&["clean", "--manifests", pods.to_str().context("not UTF-8")?])?.expect(3)?;
    ensure!(text.stdout.contains("* RecordDamaged: ") && text.stdout.contains("bad.json"), "{text:?}");
    for args in [&[][..], &["--yes"]] {
        let plan = clean(node, args)?.expect(3)?.json()?;
        ensure!(problem_codes(&plan) == ["RecordDamaged"], "{plan:#}");
    }
    // Whoever writes records sets it aside, intact.
    let mut aside = std::fs::read_dir(node.state.join("set-aside"))?.collect::<std::io::Result<Vec<_>>>()?;
    let aside = aside.pop().context("it is not set aside")?.path();
    ensure!(std::fs::read_to_string(aside)? == "{ torn");
    ensure!(std::fs::symlink_metadata(&file).is_err());
    Ok(Verdict::Passed)
}

/// Whatever a symlink in `pods` leads to is no pod's.
fn symlink_for_a_pod(node: &mut Node) -> Result<Verdict> {
    let data = source(node, "x")?;
    let outside = node.host().join("outside");
    let (secret, volume) =
        (outside.join("volumes/kubernetes.io~empty-dir/e"), outside.join("volumes/kubernetes.io~nfs/v"));
    for folder in [&secret, &volume] {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(secret.join("keep.txt"), "keep")?;
    bind(&data, &volume)?;
    tree(node).volume("u2", "empty-dir", "e")?;
    let (link, dangling) = (node.root.join("pods/u1"), node.root.join("pods/u3"));
    symlink(&outside, &link)?;
    symlink("/nowhere", &dangling)?;
    let scan = node.scan()?.expect(3)?.json()?;
    ensure!(problem_codes(&scan) == ["SymlinkInTheWay", "SymlinkInTheWay"], "{scan:#}");
    let more = ["--delete-ephemeral", "--without-driver", "--force"];
    for args in [&[][..], &["--yes"], &["--yes", "--assume-gone", "u1", "--assume-gone", "u3"]] {
        let plan = clean(node, &[args, &more].concat())?.expect(3)?.json()?;
        let told = problem_codes(&plan).into_iter().filter(|code| *code == "SymlinkInTheWay").count();
        ensure!(told == 2, "{plan:#}");
        let here =
            steps(&plan).into_iter().any(|(_, path, _)| !Path::new(&path).starts_with(node.root.join("pods/u2")));
        ensure!(!here, "{plan:#}");
    }
    ensure!(!tree(node).has("pods/u2"), "the others are cleaned");
    for uid in ["u1", "u3"] {
        let _ = node.run(&["explain", uid])?;
    }
    node.run(&["release", "--yes", "--including-running", "--delete-ephemeral"])?;
    ensure!(std::fs::read_link(&link)? == outside && dangling.symlink_metadata().is_ok());
    ensure!(std::fs::read_dir(&volume)?.count() == 1, "it was unmounted");
    kept(&secret)?;
    kept(&volume)?;
    kept(&data)?;
    tool("umount", &[volume.as_ref()])?;
    Ok(Verdict::Passed)
}
