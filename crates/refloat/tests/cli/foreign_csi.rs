//! CSI volumes without a record whose `vol_data.json` says something else than what is seen: told, and left alone.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::node::Node;
use crate::{Test, Verdict, clean, tool};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("a_file_that_its_mount_contradicts_is_not_believed", mounts),
    ("a_file_that_contradicts_itself_is_not_believed", hashes),
    ("a_file_beside_a_stage_that_it_is_not_of_is_told", stages),
    ("a_driver_that_can_be_none_is_never_a_path", drivers),
];

const DRIVER: &str = "acme.example";

fn sha256(parts: &[&str]) -> String {
    let hash = Sha256::digest(parts.concat());
    hash.iter().flat_map(|byte| [byte >> 4, byte & 15]).filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

fn mount(source: &str, at: &Path) -> Result<()> {
    std::fs::create_dir_all(at)?;
    tool(
        "mount",
        &[OsStr::new("-t"), "tmpfs".as_ref(), "-o".as_ref(), "size=64k".as_ref(), source.as_ref(), at.as_ref()],
    )
}

fn stage_of(node: &Node, driver: &str, handle: &str) -> PathBuf {
    node.root.join(format!("plugins/kubernetes.io/csi/{driver}/{}/globalmount", sha256(&[handle])))
}

/// Stages a volume, with this file beside it.
fn stage(node: &Node, handle: &str, data: &Value) -> Result<PathBuf> {
    let path = stage_of(node, DRIVER, handle);
    mount(&format!("/dev/{handle}"), &path)?;
    std::fs::write(path.with_file_name("vol_data.json"), data.to_string())?;
    Ok(path)
}

fn said(driver: &str, handle: &str) -> Value {
    json!({ "driverName": driver, "volumeHandle": handle })
}

/// A pod's volume, with this file, bound from there; a mount of its own if from nowhere.
fn publish(node: &Node, pod: &str, name: &str, data: &Value, from: Option<&Path>) -> Result<PathBuf> {
    let folder = node.root.join(format!("pods/{pod}/volumes/kubernetes.io~csi/{name}"));
    let path = folder.join("mount");
    std::fs::create_dir_all(&path)?;
    std::fs::write(folder.join("vol_data.json"), data.to_string())?;
    match from {
        Some(from) => tool("mount", &["--bind".as_ref(), from.as_os_str(), path.as_os_str()])?,
        None => mount("/dev/own", &path)?,
    }
    Ok(path)
}

fn of_pod(handle: &str, name: &str) -> Value {
    json!({ "driverName": DRIVER, "volumeHandle": handle, "specVolID": name, "volumeLifecycleMode": "Persistent" })
}

fn with(mut data: Value, field: &str, value: &str) -> Value {
    data[field] = value.into();
    data
}

fn entry<'a>(scan: &'a Value, list: &str, path: &Path) -> Result<&'a Value> {
    let mut all = scan[list].as_array().into_iter().flatten();
    let found = all.find(|entry| entry["path"].as_str() == path.to_str());
    found.with_context(|| format!("{} is not in {list} of {scan:#}", path.display()))
}

fn problem<'a>(entry: &'a Value, code: &str) -> Option<&'a str> {
    let mut all = entry["problems"].as_array().into_iter().flatten();
    all.find(|problem| problem["code"] == code)?["message"].as_str()
}

/// That it is shown as contradicted, with all of these words, and as nobody's that is known.
fn contradicted(found: &Value, words: &[&str]) -> Result<()> {
    let message = problem(found, "ForeignRecordContradicts").with_context(|| format!("{found:#}"))?;
    ensure!(words.iter().all(|word| message.contains(word)), "{words:?} in {message}");
    ensure!(problem(found, "EvidenceConflict").is_none(), "it is told twice: {found:#}");
    ensure!(found["reconstruction"] == "Partial" && found["record"] == "Foreign", "{found:#}");
    ensure!(found["state"] == "Mounted" && found["uniqueName"].is_null(), "{found:#}");
    let (volume, lost) = (&found["spec"]["persistentVolume"], &found["lost"]);
    ensure!(volume["spec"]["csi"] == json!({}), "{found:#}");
    for field in ["spec.csi.driver", "spec.csi.volumeHandle"] {
        ensure!(lost.as_array().into_iter().flatten().any(|lost| lost == field), "{found:#}");
    }
    Ok(())
}

/// That nothing is said against it.
fn believed(found: &Value, handle: &str) -> Result<()> {
    let unique = format!("kubernetes.io/csi/{DRIVER}^{handle}");
    ensure!(found["uniqueName"] == unique.as_str() && found["problems"] == json!([]), "{found:#}");
    ensure!(found["spec"]["persistentVolume"]["spec"]["csi"] == said_in_spec(handle), "{found:#}");
    Ok(())
}

fn said_in_spec(handle: &str) -> Value {
    json!({ "driver": DRIVER, "volumeHandle": handle })
}

fn scan(node: &Node) -> Result<Value> {
    node.run(&["scan", "-o", "json"])?.expect(3)?.json()
}

fn mounts(node: &mut Node) -> Result<Verdict> {
    let one = stage(node, "h-1", &said(DRIVER, "h-1"))?;
    let two = stage(node, "h-2", &said(DRIVER, "h-2"))?;
    // As they should be; a name with what no folder can be called; a volume that is not staged.
    let good = publish(node, "u1", "pv-1", &of_pod("h-1", "pv-1"), Some(&one))?;
    let slash = publish(node, "u1", "aws:~~z~v", &of_pod("h-2", "aws://z/v"), Some(&two))?;
    let lone = publish(node, "u1", "pv-3", &of_pod("h-3", "pv-3"), None)?;
    // The handle of another staged volume; another driver; a volume that is staged from elsewhere; another volume's file.
    let handle = publish(node, "u2", "pv-1", &of_pod("h-2", "pv-1"), Some(&one))?;
    let driver = publish(node, "u3", "pv-1", &with(of_pod("h-1", "pv-1"), "driverName", "other.example"), Some(&one))?;
    let source = publish(node, "u4", "pv-1", &of_pod("h-1", "pv-1"), None)?;
    let name = publish(node, "u5", "pv-1", &of_pod("h-5", "pv-5"), None)?;
    // Its name alone is wrong: the mount confirms the rest.
    let only_name = publish(node, "u6", "pv-1", &of_pod("h-1", "pv-5"), Some(&one))?;
    let seen = scan(node)?;
    for (path, handle) in [(&good, "h-1"), (&slash, "h-2"), (&lone, "h-3")] {
        believed(entry(&seen, "volumes", path)?, handle)?;
    }
    ensure!(entry(&seen, "volumes", &slash)?["spec"]["persistentVolume"]["metadata"]["name"] == "aws://z/v");
    let staged = |path: &Path| path.display().to_string();
    contradicted(entry(&seen, "volumes", &handle)?, &["h-2", DRIVER, &staged(&one)])?;
    contradicted(entry(&seen, "volumes", &driver)?, &["other.example", "h-1", &staged(&one)])?;
    contradicted(entry(&seen, "volumes", &source)?, &["h-1", &staged(&one), "/dev/h-1", "/dev/own"])?;
    contradicted(entry(&seen, "volumes", &name)?, &["pv-5", "h-5", "pv-1"])?;
    let found = entry(&seen, "volumes", &only_name)?;
    ensure!(found["uniqueName"] == format!("kubernetes.io/csi/{DRIVER}^h-1"), "{found:#}");
    ensure!(found["spec"]["persistentVolume"]["metadata"]["name"] == "pv-1", "{found:#}");
    let message = problem(found, "ForeignRecordContradicts").context("the name is believed")?;
    ensure!(message.contains("pv-5") && message.contains("pv-1"), "{message}");
    // Both devices count as used: by the mount table, and by what the file says.
    let users = |path: &Path| -> Result<Value> { Ok(entry(&seen, "devices", path)?["users"].clone()) };
    ensure!(users(&one)? == json!(["u1", "u2", "u3", "u4", "u6"]), "{:#}", users(&one)?);
    ensure!(users(&two)? == json!(["u1", "u2"]), "{:#}", users(&two)?);
    let told = node.run(&["explain", &staged(&handle)])?.stdout;
    ensure!(told.contains("contradiction: vol_data.json") && told.contains("Hands off"), "{told}");
    // All pods are gone. What is in doubt stays with its device, even if no driver need be asked.
    let plan = clean::clean(node, &["--yes", "--without-driver"])?.expect(3)?.json()?;
    for path in [&handle, &driver, &source, &name] {
        ensure!(clean::codes(&plan, path) == ["Conflict"], "{}: {plan:#}", path.display());
    }
    let left = node.mounts()?;
    for path in [&one, &two, &handle, &driver, &source, &name] {
        ensure!(left.contains(path), "{} was unmounted", path.display());
    }
    for path in [&good, &slash, &lone, &only_name] {
        ensure!(!left.contains(path), "{} is left", path.display());
    }
    Ok(Verdict::Passed)
}

fn hashes(node: &mut Node) -> Result<Verdict> {
    let attached = |handle: &str, of: &str| {
        let data = with(of_pod(handle, "pv"), "nodeName", "n");
        with(data, "attachmentID", &format!("csi-{}", sha256(&[of, DRIVER, "n"])))
    };
    let good = publish(node, "u1", "pv", &attached("h-1", "h-1"), None)?;
    let bad = publish(node, "u2", "pv", &attached("h-1", "h-2"), None)?;
    // A staged one is confirmed.
    let staged = stage(node, "h-1", &said(DRIVER, "h-1"))?;
    let confirmed = publish(node, "u3", "pv", &attached("h-1", "h-2"), Some(&staged))?;
    let inline = |pod: &str, of: &str| {
        let handle = format!("csi-{}", sha256(&[of, "in"]));
        let data = with(of_pod(&handle, "in"), "volumeLifecycleMode", "Ephemeral");
        publish(node, pod, "in", &data, None)
    };
    let own = inline("u4", "u4")?;
    let others = inline("u5", "u4")?;
    // Nothing is known to be staged at all.
    tool("umount", &[staged.as_os_str()])?;
    let seen = scan(node)?;
    believed(entry(&seen, "volumes", &good)?, "h-1")?;
    contradicted(entry(&seen, "volumes", &bad)?, &["h-1", "attachment", &sha256(&["h-2", DRIVER, "n"])])?;
    contradicted(entry(&seen, "volumes", &confirmed)?, &["h-1"])?;
    let found = entry(&seen, "volumes", &own)?;
    ensure!(found["problems"] == json!([]) && found["spec"]["volume"]["csi"]["driver"] == DRIVER, "{found:#}");
    let found = entry(&seen, "volumes", &others)?;
    ensure!(problem(found, "ForeignRecordContradicts").is_some_and(|message| message.contains("in")), "{found:#}");
    ensure!(found["reconstruction"] == "Partial" && found["spec"]["volume"]["csi"] == json!({}), "{found:#}");
    ensure!(found["lost"].to_string().contains("csi.driver"), "{found:#}");
    tool("mount", &["--bind".as_ref(), confirmed.as_os_str(), staged.as_os_str()])?;
    let seen = scan(node)?;
    let found = entry(&seen, "volumes", &confirmed)?;
    ensure!(found["uniqueName"] == format!("kubernetes.io/csi/{DRIVER}^h-1"), "{found:#}");
    ensure!(problem(found, "ForeignRecordContradicts").is_some(), "{found:#}");
    Ok(Verdict::Passed)
}

fn stages(node: &mut Node) -> Result<Verdict> {
    let good = stage(node, "h-1", &said(DRIVER, "h-1"))?;
    let handle = stage(node, "h-2", &said(DRIVER, "h-9"))?;
    let driver = stage(node, "h-3", &said("other.example", "h-3"))?;
    let empty = stage(node, "h-4", &json!({}))?;
    let seen = scan(node)?;
    ensure!(entry(&seen, "devices", &good)?["problems"] == json!([]), "{seen:#}");
    for (path, words) in [(&handle, [DRIVER, "h-9"]), (&driver, ["other.example", "h-3"])] {
        let found = entry(&seen, "devices", path)?;
        let message = problem(found, "ForeignRecordContradicts").with_context(|| format!("{found:#}"))?;
        ensure!(words.iter().all(|word| message.contains(word)), "{message}");
        ensure!(message.contains(path.to_str().context("no text")?), "{message}");
        ensure!(found["uniqueName"].is_null(), "{found:#}");
    }
    let found = entry(&seen, "devices", &empty)?;
    ensure!(problem(found, "VolDataDamaged").is_some() && found["record"] == "Damaged", "{found:#}");
    // Nothing is done to what is not known.
    node.once()?.expect(3)?;
    ensure!([&handle, &driver, &empty].iter().all(|path| node.mounts().is_ok_and(|all| all.contains(path))));
    Ok(Verdict::Passed)
}

fn drivers(node: &mut Node) -> Result<Verdict> {
    // What a path made of it would meet.
    let outside = node.root.join("etc").join(sha256(&["h"])).join("globalmount");
    mount("/dev/trap", &outside)?;
    let long = "d".repeat(64);
    for (number, driver) in ["../../../etc", "..", "a/b", "", "pv", &long].into_iter().enumerate() {
        let (pod, data) = (format!("u{number}"), with(of_pod("h", "pv"), "driverName", driver));
        let path = publish(node, &pod, "pv", &data, Some(&outside))?;
        let seen = scan(node)?;
        let found = entry(&seen, "volumes", &path)?;
        ensure!(found["record"] == "Damaged" && problem(found, "VolDataDamaged").is_some(), "{driver:?}: {found:#}");
        ensure!(found["uniqueName"].is_null() && found["devicePath"].is_null(), "{driver:?}: {found:#}");
        ensure!(found["reconstruction"] == "UnmountOnly" && found["spec"] == Value::Null, "{driver:?}: {found:#}");
        let text = seen.to_string();
        ensure!(driver.len() < 3 || !text.contains(&format!("{driver}^")), "{driver:?}: {text}");
    }
    node.once()?.expect(3)?;
    ensure!(node.mounts()? == [outside], "{:?}", node.mounts()?);
    Ok(Verdict::Passed)
}
