//! `scan` and `explain`: they print what interface and documents promise, and change nothing.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::node::{Node, files};
use crate::{Test, Verdict, config_map, is_real_root, pod, secret, tool, volume};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("scan_has_the_fields_of_the_interface", fields),
    ("scan_has_the_fields_of_a_device", device),
    ("scan_asks_nobody_but_checkpoints", checkpoints),
    ("explain_knows_every_kind_of_target", explain),
    ("looking_changes_nothing", changes_nothing),
];

/// The fields of the interface, as its document lists them.
const OBJECT: &[&str] = &["apiVersion", "kind", "node", "volumes", "devices", "leftovers", "problems", "summary"];
const NODE: &[&str] = &["rootDir", "stateDir", "bootID", "scannedAt"];
const VOLUME: &[&str] = &[
    "pod",
    "volume",
    "specName",
    "plugin",
    "uniqueName",
    "mode",
    "path",
    "devicePath",
    "subPaths",
    "mounted",
    "mount",
    "state",
    "record",
    "reconstruction",
    "wanted",
    "wantedBy",
    "spec",
    "problems",
];
const MOUNT: &[&str] = &["id", "fsType", "source", "root", "options", "stack"];
const DEVICE: &[&str] = &[
    "uniqueName",
    "plugin",
    "path",
    "device",
    "mounted",
    "mount",
    "record",
    "users",
    "wanted",
    "wantedBy",
    "problems",
];
const LEFTOVER: &[&str] = &["path", "kind", "problems"];
const PROBLEM: &[&str] = &["code", "message", "hint"];

fn has(value: &Value, fields: &[&str]) -> Result<()> {
    for field in fields {
        ensure!(value.get(field).is_some(), "there is no field {field} in {value:#}");
    }
    Ok(())
}

fn set_up(node: &Node) -> Result<()> {
    node.apply("c.yaml", &config_map("c", "one"))?;
    node.apply("s.yaml", &secret("s", "hidden-from-all"))?;
    node.apply(
        "p.yaml",
        &pod(
            "web",
            "[{name: a, mountPath: /a, subPath: x}]",
            "  - {name: a, emptyDir: {}}\n  - {name: b, configMap: {name: c}}\n  - {name: c, secret: {secretName: s}}\n",
        ),
    )?;
    node.once()?.expect(0)?;
    Ok(())
}

fn fields(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    std::fs::create_dir_all(node.root.join("pods/0000-left-over/volumes"))?;
    let scan = node.scan()?.expect(3)?.json()?;
    has(&scan, OBJECT)?;
    ensure!(scan["apiVersion"] == "refloat.dev/v1" && scan["kind"] == "NodeVolumes");
    has(&scan["node"], NODE)?;
    let volumes = scan["volumes"].as_array().expect("a list");
    ensure!(volumes.len() == 3, "{scan:#}");
    for v in volumes {
        has(v, VOLUME)?;
        has(&v["pod"], &["uid", "namespace", "name"])?;
        ensure!(v["subPaths"].is_array() && v["problems"].is_array(), "a list is never null: {v:#}");
        ensure!(v["state"] == "Mounted" && v["record"] == "Ok" && v["reconstruction"] == "Full", "{v:#}");
        ensure!(v["wanted"] == "Yes" && v["wantedBy"].is_string() && v["mode"] == "Filesystem", "{v:#}");
        ensure!(v["mounted"] == !v["mount"].is_null(), "{v:#}");
    }
    let c = volume(&scan, "web", "c")?;
    has(&c["mount"], MOUNT)?;
    ensure!(c["mount"]["fsType"] == "tmpfs" && c["mount"]["stack"] == 1, "{c:#}");
    let options: Vec<&str> = c["mount"]["options"].as_str().unwrap_or_default().split(',').collect();
    ensure!(options.first() == Some(&"rw") && options.iter().filter(|o| **o == "rw").count() == 1, "{options:?}");
    ensure!(c["spec"]["volume"]["secret"]["secretName"] == "s", "{c:#}");
    ensure!(volume(&scan, "web", "a")?["subPaths"][0]["mounted"] == true, "{scan:#}");
    let leftovers = scan["leftovers"].as_array().expect("a list");
    ensure!(leftovers.len() == 1 && leftovers[0]["kind"] == "EmptyPodDir", "{scan:#}");
    has(&leftovers[0], LEFTOVER)?;
    ensure!(scan["devices"].is_array(), "a list is never null");
    for problem in scan["problems"].as_array().expect("a list") {
        has(problem, PROBLEM)?;
    }
    let summary = &scan["summary"];
    ensure!(summary["state"]["Mounted"] == 3 && summary["reconstruction"]["Full"] == 3, "{summary}");
    ensure!(summary["problems"].is_object(), "{summary}");
    let names: Vec<_> = volumes.iter().map(|v| v["volume"].as_str()).collect();
    ensure!(names.is_sorted(), "the volumes are not sorted: {names:?}");
    let yaml = node.run(&["scan", "-o", "yaml"])?;
    ensure!(yaml.stdout.contains("kind: NodeVolumes"), "{yaml:?}");
    // Neither the output nor a record ever holds a secret.
    ensure!(!scan.to_string().contains("hidden-from-all"), "{scan:#}");
    for file in files(&node.state)? {
        let text = std::fs::read_to_string(node.state.join(file)).unwrap_or_default();
        ensure!(!text.contains("hidden-from-all") && !text.contains("aGlkZGVuLWZyb20tYWxs"), "{text}");
    }
    Ok(Verdict::Passed)
}

fn device(node: &mut Node) -> Result<Verdict> {
    if !is_real_root() {
        return Ok(Verdict::Skipped("block devices need root".into()));
    }
    if tool("mkfs.ext4", &["-V".as_ref()]).is_err() {
        return Ok(Verdict::Skipped("there is no mkfs.ext4".into()));
    }
    let image = node.folder().join("disk.img");
    std::fs::File::create(&image)?.set_len(16 << 20)?;
    let disk = node.attach_loop(&image)?;
    let claim = format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv}}\nspec:\n  capacity: {{storage: 16Mi}}\n  \
         accessModes: [ReadWriteOnce]\n  local: {{path: {}, fsType: ext4}}\n  claimRef: {{namespace: test, name: data}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data, namespace: test}}\nspec:\n  \
         accessModes: [ReadWriteOnce]\n  volumeName: pv\n  resources: {{requests: {{storage: 16Mi}}}}\n",
        disk.display()
    );
    node.apply("claim.yaml", &claim)?;
    let volumes = "  - {name: d, persistentVolumeClaim: {claimName: data}}\n";
    node.apply("one.yaml", &pod("one", "[]", volumes))?;
    node.apply("two.yaml", &pod("two", "[]", volumes))?;
    node.once()?.expect(0)?;
    let scan = node.scan()?.expect(0)?.json()?;
    let devices = scan["devices"].as_array().expect("a list");
    ensure!(devices.len() == 1, "{scan:#}");
    let device = &devices[0];
    has(device, DEVICE)?;
    has(&device["mount"], MOUNT)?;
    ensure!(device["uniqueName"] == "kubernetes.io/local-volume/pv" && device["record"] == "Ok", "{device:#}");
    ensure!(device["users"].as_array().is_some_and(|u| u.len() == 2), "{device:#}");
    ensure!(device["path"].as_str().is_some_and(|p| p.ends_with("plugins/kubernetes.io/local-volume/mounts/pv")));
    let one = volume(&scan, "one", "d")?;
    ensure!(one["specName"] == "pv" && one["devicePath"] == device["path"], "{one:#}");
    ensure!(one["spec"]["persistentVolume"]["metadata"]["name"] == "pv", "{one:#}");
    for name in ["kubernetes.io/local-volume/pv", device["device"].as_str().unwrap_or_default()] {
        node.run(&["explain", name])?.expect(0)?;
    }
    ensure!(device["wanted"] == "Yes", "{device:#}");
    // While a manifest is broken nobody can tell whether a pod in it wants the device: it stays, and the file is named.
    let broken = node.pods().join("broken.yaml");
    let other = "apiVersion: v1\nkind: Pod\nmetadata: {name: other, namespace: test}\nspec: []\n";
    node.apply("broken.yaml", other)?;
    node.remove("one.yaml")?;
    node.delete("two.yaml")?;
    node.once()?.expect(3)?;
    let scan = node.scan()?.expect(3)?.json()?;
    let device = &scan["devices"][0];
    ensure!(device["users"] == serde_json::json!([]) && device["mounted"] == true, "{scan:#}");
    let file = broken.to_str().context("no text")?;
    ensure!(device["wanted"] == "Unknown", "{device:#}");
    ensure!(device["wantedBy"].as_str().is_some_and(|by| by.contains(file)), "{device:#}");
    let pods = node.pods().display().to_string();
    let explained = node.run(&["explain", "kubernetes.io/local-volume/pv", "--manifests", &pods])?;
    ensure!(explained.stdout.replace('\n', " ").contains("broken.yaml"), "{explained:?}");
    node.delete("broken.yaml")?;
    node.once()?.expect(0)?;
    ensure!(node.mounts()?.is_empty());
    Ok(Verdict::Passed)
}

fn checkpoints(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let scan = node.run(&["scan", "-o", "json"])?.expect(0)?.json()?;
    let a = volume(&scan, "web", "a")?;
    ensure!(a["wanted"] == "Yes" && a["wantedBy"] == "checkpoint", "{a:#}");
    // Without a record nobody can say no.
    node.state = node.folder().join("no-state");
    let scan = node.run(&["scan", "-o", "json"])?.json()?;
    let all = scan["volumes"].as_array().expect("a list");
    ensure!(all.len() == 3, "{scan:#}");
    for v in all {
        ensure!(v["wanted"] == "Unknown" && v["wantedBy"].is_null() && v["record"] == "Missing", "{v:#}");
    }
    node.state = node.folder().join("state");
    node.delete("p.yaml")?;
    let scan = node.scan()?.expect(3)?.json()?;
    ensure!(volume(&scan, "web", "a")?["wanted"] == "No", "{scan:#}");
    Ok(Verdict::Passed)
}

fn explain(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    let scan = node.scan()?.json()?;
    let a = volume(&scan, "web", "a")?;
    let text = |field: &Value| field.as_str().expect("a text").to_owned();
    let uid = text(&a["pod"]["uid"]);
    for (target, count) in [
        (uid.clone(), 3),
        ("test/web".into(), 3),
        ("test/web/a".into(), 1),
        (format!("{uid}/c"), 1),
        (text(&a["uniqueName"]), 1),
        (text(&a["path"]), 1),
        (format!("{}/some/file", text(&a["path"])), 1),
        (text(&a["subPaths"][0]["path"]), 1),
    ] {
        let found = node.run(&["explain", &target, "-o", "json"])?.expect(0)?.json()?;
        let subjects = found["subjects"].as_array().expect("a list");
        ensure!(subjects.len() == count, "{target}: {found:#}");
        for subject in subjects {
            ensure!(subject["evidence"].as_array().is_some_and(|e| !e.is_empty()), "{target}: {subject:#}");
            ensure!(subject["next"].as_array().is_some_and(|e| !e.is_empty()), "{target}: {subject:#}");
        }
    }
    let ran = node.run(&["explain", "test/web/a"])?.expect(0)?;
    for part in ["what it is:", "who wants it:", "evidence:", "conclusion:", "what would happen next:", "Mounted"] {
        ensure!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    ensure!(!ran.stdout.contains("not known whether it is wanted"), "the checkpoint wants it: {}", ran.stdout);
    let mut command = node.refloat(&["explain", "volumes"]);
    let inside =
        std::path::Path::new(a["path"].as_str().expect("a path")).ancestors().nth(3).expect("the pod's folder");
    let output = command.current_dir(inside).output()?;
    let told = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && told.contains("volume a of pod test/web"), "a relative path: {output:?}");
    let ran = node.run(&["explain", "test/none"])?.expect(1)?;
    ensure!(ran.stderr.contains("test/none") && ran.stderr.contains("hint: "), "{ran:?}");
    node.delete("p.yaml")?;
    let pods = node.pods().display().to_string();
    let ran = node.run(&["explain", "test/web/c", "--manifests", &pods])?.expect(3)?;
    ensure!(ran.stdout.contains("TearDown") && ran.stdout.contains("No, says"), "{}", ran.stdout);
    Ok(Verdict::Passed)
}

fn changes_nothing(node: &mut Node) -> Result<Verdict> {
    set_up(node)?;
    node.delete("p.yaml")?;
    let broken = node.state.join(files(&node.state)?.iter().find(|f| f.components().count() == 2).expect("a record"));
    std::fs::write(&broken, "{")?;
    let before = (files(node.folder())?, node.mounts()?);
    for args in [&["scan"][..], &["explain", "test/web"], &["record", "list"], &["record", "verify"], &["doctor"]] {
        node.run(args)?;
        node.scan()?;
    }
    ensure!(before == (files(node.folder())?, node.mounts()?), "looking changed the node");
    ensure!(std::fs::read_to_string(&broken)? == "{");
    Ok(Verdict::Passed)
}
