//! `refloat node` and flexVolumes: what drivers, which are real programs, are asked to make, and what becomes of it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::clean_flex::{SAY, calls, drivers, install, is_mounted};
use crate::life::{Manager, wait};
use crate::node::{Node, Ran, files};
use crate::{Test, Verdict, pod};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("node_flex_sets_up_and_undoes", lives),
    ("node_flex_a_restart_asks_nobody", restart),
    ("node_flex_two_pods_share_one_device", devices),
    ("node_flex_two_pods_that_call_their_volumes_the_same", same_name),
    ("node_flex_a_mount_that_it_leaves_to_the_kubelet", left_to_the_kubelet),
    ("node_flex_secrets_stay_secret", secrets),
    ("node_flex_faults_are_told_and_hold_up_nobody", faults),
    ("node_flex_a_driver_that_hangs_is_killed_and_begun_anew", hangs),
    ("node_flex_killed_while_its_driver_mounts", killed),
    ("node_flex_a_late_driver_is_used_at_once", late),
    ("node_flex_the_group_and_drivers_that_mount_nothing", group),
    ("node_flex_after_a_reboot", reboot),
    ("node_flex_specs_that_cannot_be", specs),
];

/// Mounts over memory, without a device. The last option of `mount` is written down, one file a call.
const TMPFS: &str = r#"case $1 in
init) echo '{"status": "Success", "capabilities": {"attach": false}}';;
mount) printf %s "$3" > "$2.options"; mv "$2.options" "$0.options"
  mount -t tmpfs flex "$2" || { say Failure 'cannot mount'; exit 1; }
  echo "of the driver" > "$2/file"
  echo '{"status": "Success", "providerInfo": {"handle": "h1", "parts": [1, 2]}}';;
unmount) umount "$2" || { say Failure 'not mounted'; exit 1; }; say Success;;
*) say 'Not supported'; exit 1;; esac"#;

/// Mounts the loop device of the option `device` at the global path, and leaves the rest to the kubelet.
pub(crate) const LOOP: &str = r#"option() { printf %s "$1" | sed -n "s/.*\"$2\":\"\([^\"]*\)\".*/\1/p"; }
case $1 in
init) say Success;;
waitforattach) printf '{"status": "Success", "device": "%s"}\n' "$(option "$3" device)";;
mountdevice) mount -t ext4 "$3" "$2" >/dev/null 2>&1 || { say Failure 'cannot mount'; exit 1; }
  echo '{"status": "Success", "providerInfo": {"lun": 7}}';;
unmountdevice) umount "$2" || { say Failure 'not mounted'; exit 1; }; say Success;;
*) say 'Not supported'; exit 1;; esac"#;

pub(crate) fn flex(name: &str, driver: &str, more: &str) -> String {
    format!("  - {{name: {name}, flexVolume: {{driver: acme/{driver}{more}}}}}\n")
}

/// A pod with this uid and name.
pub(crate) fn with_uid(uid: &str, volumes: &str) -> String {
    pod(uid, "[]", volumes).replace(&format!("{{name: {uid}, "), &format!("{{name: {uid}, uid: {uid}, "))
}

/// One run of the manager.
pub(crate) fn once(node: &Node) -> Result<Ran> {
    let (folder, pods) = (drivers(node), node.pods());
    let (folder, pods) = (folder.to_str().context("no text")?, pods.to_str().context("no text")?);
    node.run(&[
        "node",
        "--once",
        "-o",
        "json",
        "--workers",
        "1",
        "--manifests",
        pods,
        "--flex-volume-plugin-dir",
        folder,
    ])
}

pub(crate) fn path(node: &Node, uid: &str, driver: &str, name: &str) -> PathBuf {
    node.root.join(format!("pods/{uid}/volumes/acme~{driver}/{name}"))
}

fn global(node: &Node, driver: &str, name: &str) -> PathBuf {
    node.root.join(format!("plugins/kubernetes.io/flexvolume/acme/{driver}/mounts/{name}"))
}

/// The options of the last `mount` of this driver.
fn options(node: &Node, driver: &str) -> Result<Value> {
    let text = std::fs::read_to_string(drivers(node).join(format!("acme~{driver}/{driver}.options")))?;
    Ok(serde_json::from_str(&text)?)
}

/// Records of this kind, as they are in the state folder.
pub(crate) fn records(node: &Node, kind: &str) -> Result<Vec<Value>> {
    let all = texts(&node.state)?.into_iter().filter_map(|(_, text)| serde_json::from_str::<Value>(&text).ok());
    Ok(all.filter(|record| record["kind"] == kind).collect())
}

/// Every file below a folder, as text.
fn texts(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let paths = files(folder)?.into_iter().map(|path| folder.join(path)).filter(|path| path.is_file());
    paths.map(|path| Ok((path.clone(), String::from_utf8_lossy(&std::fs::read(&path)?).into_owned()))).collect()
}

fn is_there(path: impl AsRef<Path>) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Nothing of any pod or device is left.
pub(crate) fn clean(node: &Node) -> Result<()> {
    ensure!(node.mounts()?.is_empty(), "{:?}", node.mounts()?);
    for kind in ["PodVolume", "DeviceMount"] {
        let left = records(node, kind)?;
        ensure!(left.is_empty(), "{left:#?}");
    }
    let left: Vec<_> = files(&node.root)?.into_iter().filter(|path| path.components().count() > 1).collect();
    ensure!(left.iter().all(|path| !path.starts_with("pods") && !path.ends_with("mounts")), "{left:?}");
    Ok(())
}

fn lives(node: &mut Node) -> Result<Verdict> {
    install(node, "mem", TMPFS)?;
    let more = ", fsType: ext9, readOnly: true, options: {share: a, kubernetes.io/fsType: own}";
    let all = flex("v", "mem", more) + "  - {name: w, persistentVolumeClaim: {claimName: pv}}\n";
    node.apply("pv.yaml", &persistent("pv", "mem", ""))?;
    node.apply("p.yaml", &with_uid("u1", &all))?;
    once(node)?.expect(0)?;
    let (v, w) = (path(node, "u1", "mem", "v"), path(node, "u1", "mem", "pv"));
    ensure!(std::fs::read_to_string(v.join("file"))? == "of the driver\n" && is_mounted(node, &w)?);
    let called = calls(node)?;
    let short: Vec<&str> = called.iter().map(|call| call.split(" {").next().unwrap_or_default()).collect();
    let expected = ["mem init".to_owned(), format!("mem mount {}", v.display()), format!("mem mount {}", w.display())];
    ensure!(short.len() == 3 && expected.iter().all(|call| short.contains(&call.as_str())), "{called:?}");
    let told = |of: &Path| -> Result<Value> {
        let call = called.iter().find(|call| call.contains(&format!("{} {{", of.display()))).context("no call")?;
        Ok(serde_json::from_str(&call[call.find('{').context("no options")?..])?)
    };
    let expected = json!({
        "kubernetes.io/fsType": "own", "kubernetes.io/readwrite": "ro", "kubernetes.io/pvOrVolumeName": "v",
        "kubernetes.io/pod.name": "u1", "kubernetes.io/pod.namespace": "test", "kubernetes.io/pod.uid": "u1",
        "kubernetes.io/serviceAccount.name": "", "share": "a",
    });
    ensure!(told(&v)? == expected, "{:#}", told(&v)?);
    let of_pv = told(&w)?;
    ensure!(of_pv["kubernetes.io/readwrite"] == "rw" && of_pv["kubernetes.io/pvOrVolumeName"] == "pv", "{of_pv:#}");
    for record in records(node, "PodVolume")? {
        let info = &record["spec"]["providerInfo"];
        let info = if info.is_null() { &record["providerInfo"] } else { info };
        ensure!(info["answered"] == json!({ "handle": "h1", "parts": [1, 2] }), "{record:#}");
    }
    ensure!(records(node, "PodVolume")?.len() == 2 && records(node, "DeviceMount")?.is_empty());
    let scan = node.scan()?.json()?;
    ensure!(crate::volume(&scan, "u1", "v")?["state"] == "Mounted", "{scan:#}");

    // What is there is not asked for again, and what vanished is, with what the driver said.
    once(node)?.expect(0)?;
    ensure!(calls(node)?.is_empty());
    crate::tool("umount", &[v.as_os_str()])?;
    once(node)?.expect(0)?;
    let info: Value =
        serde_json::from_str(options(node, "mem")?["refloat.dev/provider-info"].as_str().context("none")?)?;
    ensure!(info == json!({ "handle": "h1", "parts": [1, 2] }), "{info:#}");
    calls(node)?;
    node.delete("p.yaml")?;
    once(node)?.expect(0)?;
    let expected = [format!("mem unmount {}", v.display()), format!("mem unmount {}", w.display())];
    let called = calls(node)?;
    ensure!(called.len() == 2 && expected.iter().all(|call| called.contains(call)), "{called:?}");
    clean(node)?;
    Ok(Verdict::Passed)
}

/// A `PersistentVolume` of this name, and a claim bound to it.
pub(crate) fn persistent(name: &str, driver: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  capacity: {{storage: 1Gi}}\n  \
         accessModes: [ReadWriteOnce]\n  claimRef: {{namespace: test, name: {name}}}\n  \
         flexVolume: {{driver: acme/{driver}{more}}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\n\
         metadata: {{name: {name}, namespace: test}}\nspec:\n  accessModes: [ReadWriteOnce]\n  volumeName: {name}\n  \
         resources: {{requests: {{storage: 1Gi}}}}\n"
    )
}

/// With a record, with a damaged one and with none, and without any driver to ask.
fn restart(node: &mut Node) -> Result<Verdict> {
    install(node, "mem", TMPFS)?;
    node.apply("p.yaml", &with_uid("u1", &flex("v", "mem", "")))?;
    once(node)?.expect(0)?;
    let v = path(node, "u1", "mem", "v");
    let inode = std::fs::metadata(v.join("file"))?.ino();
    calls(node)?;
    let record = || -> Result<PathBuf> {
        let all = texts(&node.state)?.into_iter();
        let mut of_volume = all.filter(|(_, text)| text.contains("\"PodVolume\"")).map(|(path, _)| path);
        of_volume.next().context("there is no record")
    };
    let away = node.folder().join("away");
    for how in ["whole", "damaged", "absent"] {
        let file = record()?;
        match how {
            "damaged" => std::fs::write(&file, "{\"torn")?,
            "absent" => std::fs::remove_file(&file)?,
            _ => {
                std::fs::rename(drivers(node), &away)?;
                once(node)?.expect(0)?;
                std::fs::rename(&away, drivers(node))?;
            }
        }
        let ran = once(node)?;
        ensure!(is_mounted(node, &v)? && std::fs::metadata(v.join("file"))?.ino() == inode, "{how}: {ran:?}");
        let called = calls(node)?;
        ensure!(called.iter().all(|call| call == "mem init"), "{how}: {called:?}");
        record().with_context(|| format!("{how}: {ran:?}"))?;
    }
    node.delete("p.yaml")?;
    once(node)?.expect(0)?;
    ensure!(calls(node)? == [format!("mem unmount {}", v.display())]);
    clean(node)?;
    Ok(Verdict::Passed)
}

/// A loop device with a file system.
fn loop_device(node: &mut Node, name: &str) -> Result<Option<PathBuf>> {
    if !crate::is_real_root() || !is_there("/dev/loop-control") {
        return Ok(None);
    }
    let image = node.host().join(name);
    std::fs::File::create(&image)?.set_len(8 << 20)?;
    crate::tool("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image.as_os_str()])?;
    node.attach_loop(&image).map(Some)
}

const NO_LOOP: &str = "loop devices need root in the machine's own user namespace";

fn devices(node: &mut Node) -> Result<Verdict> {
    let Some(device) = loop_device(node, "disk")? else { return Ok(Verdict::Skipped(NO_LOOP.into())) };
    install(node, "disk", LOOP)?;
    let more = format!(", options: {{device: {}}}", device.display());
    node.apply("pv.yaml", &persistent("pv", "disk", &more))?;
    let claim = "  - {name: w, persistentVolumeClaim: {claimName: pv}}\n";
    for uid in ["u1", "u2"] {
        node.apply(&format!("{uid}.yaml"), &with_uid(uid, claim))?;
    }
    once(node)?.expect(0)?;
    let (one, two) = (path(node, "u1", "disk", "pv"), path(node, "u2", "disk", "pv"));
    let device_path = global(node, "disk", "pv");
    std::fs::write(one.join("shared"), "by one")?;
    ensure!(std::fs::read_to_string(two.join("shared"))? == "by one" && is_mounted(node, &device_path)?);
    let called = calls(node)?;
    let count = |command: &str| called.iter().filter(|call| call.starts_with(&format!("disk {command} "))).count();
    ensure!(count("waitforattach") == 1 && count("mountdevice") == 1 && count("mount") == 2, "{called:?}");
    let begin = format!("disk mountdevice {} {} {{", device_path.display(), device.display());
    ensure!(called.iter().any(|call| call.starts_with(&begin)), "{called:?}");
    // What mountdevice said is told to mount.
    ensure!(called.iter().filter(|call| call.contains(r#""refloat.dev/provider-info":"{\"lun\":7}""#)).count() == 2);
    ensure!(records(node, "DeviceMount")?.len() == 1);

    once(node)?.expect(0)?;
    ensure!(calls(node)?.is_empty());
    node.delete("u1.yaml")?;
    once(node)?.expect(0)?;
    let called = calls(node)?;
    ensure!(called == [format!("disk unmount {}", one.display())], "{called:?}");
    ensure!(std::fs::read_to_string(two.join("shared"))? == "by one" && is_mounted(node, &device_path)?);
    node.delete("u2.yaml")?;
    once(node)?.expect(0)?;
    let called = calls(node)?;
    let expected = [format!("disk unmount {}", two.display()), format!("disk unmountdevice {}", device_path.display())];
    ensure!(called == expected, "{called:?}");
    clean(node)?;
    Ok(Verdict::Passed)
}

/// A device has the volume's name alone, as it has at the kubelet: another disk must not be taken for it.
fn same_name(node: &mut Node) -> Result<Verdict> {
    let (Some(one), Some(two)) = (loop_device(node, "one")?, loop_device(node, "two")?) else {
        return Ok(Verdict::Skipped(NO_LOOP.into()));
    };
    install(node, "disk", LOOP)?;
    let volume = |device: &Path| flex("v", "disk", &format!(", options: {{device: {}}}", device.display()));
    node.apply("u1.yaml", &with_uid("u1", &volume(&one)))?;
    once(node)?.expect(0)?;
    node.apply("u2.yaml", &with_uid("u2", &volume(&two)))?;
    let ran = once(node)?.expect(3)?;
    ensure!(
        ran.stdout.contains("SpecChanged")
            && ran.stdout.contains("flexVolume.options.device")
            && !is_mounted(node, &path(node, "u2", "disk", "v"))?,
        "{ran:?}"
    );
    node.delete("u1.yaml")?;
    once(node)?;
    once(node)?.expect(0)?;
    let shown = path(node, "u2", "disk", "v");
    let source = node.scan()?.json()?;
    ensure!(
        is_mounted(node, &shown)?
            && crate::volume(&source, "u2", "v")?.to_string().contains(two.to_str().context("no text")?)
    );
    // Without a device, each pod has its own.
    install(node, "mem", TMPFS)?;
    for uid in ["u3", "u4"] {
        node.apply(&format!("{uid}.yaml"), &with_uid(uid, &flex("v", "mem", &format!(", options: {{of: {uid}}}"))))?;
    }
    once(node)?.expect(0)?;
    std::fs::write(path(node, "u3", "mem", "v").join("mine"), "")?;
    ensure!(!is_there(path(node, "u4", "mem", "v").join("mine")) && is_mounted(node, &path(node, "u4", "mem", "v"))?);
    node.delete_all()?;
    once(node)?.expect(0)?;
    clean(node)?;
    Ok(Verdict::Passed)
}

fn left_to_the_kubelet(node: &mut Node) -> Result<Verdict> {
    // A driver with the default capabilities and nothing but mount: no device is made.
    install(
        node,
        "plain",
        &TMPFS.replace(r#"{"status": "Success", "capabilities": {"attach": false}}"#, r#"{"status": "Success"}"#),
    )?;
    node.apply("u1.yaml", &with_uid("u1", &flex("v", "plain", "")))?;
    once(node)?.expect(0)?;
    ensure!(is_mounted(node, &path(node, "u1", "plain", "v"))? && records(node, "DeviceMount")?.is_empty());
    ensure!(!is_there(global(node, "plain", "v")));
    node.delete("u1.yaml")?;
    once(node)?.expect(0)?;
    clean(node)?;
    // One that supports nothing cannot be set up, and leaves nothing.
    install(node, "none", "case $1 in init) say Success;; *) say 'Not supported';; esac")?;
    node.apply("u1.yaml", &with_uid("u1", &flex("v", "none", "")))?;
    let ran = once(node)?.expect(3)?;
    ensure!(ran.stdout.contains("MountNotSupported"), "{ran:?}");
    node.delete("u1.yaml")?;
    once(node)?.expect(0)?;
    clean(node)?;
    // One with a device that nobody mounts.
    let device = r#"waitforattach) echo '{"status": "Success", "device": "/dev/none"}';;"#;
    install(node, "half", &format!("case $1 in init) say Success;; {device} *) say 'Not supported';; esac"))?;
    node.apply("u1.yaml", &with_uid("u1", &flex("v", "half", "")))?;
    let ran = once(node)?.expect(3)?;
    ensure!(ran.stdout.contains("MountDeviceNotSupported"), "{ran:?}");
    node.delete("u1.yaml")?;
    once(node)?.expect(0)?;
    clean(node)?;
    Ok(Verdict::Passed)
}

fn secrets(node: &mut Node) -> Result<Verdict> {
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: test}\ntype: acme/mem\ndata: {key: \
                  aHVudGVyMi1zZWNyZXQ=, raw: /////w==}\n";
    let volume = flex("v", "mem", ", secretRef: {name: s}");
    // It puts secrets wherever it can.
    let leak = r#"case $1 in init) say Success;; mount) echo hunter2-secret >&2
  if [ -e "$0.refuse" ]; then say Failure "bad hunter2-secret or aHVudGVyMi1zZWNyZXQ= or /////w=="; exit 1; fi
  if [ -e "$0.garbage" ]; then echo hunter2-secret; exit 1; fi
  mount -t tmpfs flex "$2"; printf '%s' "$3" > "$2/options"
  echo '{"status": "Success", "message": "hunter2-secret", "providerInfo": {"a": ["x hunter2-secret y"]}}';;
unmount) umount "$2"; say Success;; *) say 'Not supported';; esac"#;
    install(node, "mem", leak)?;
    node.env = vec![("REFLOAT_LOG".into(), "trace".into())];
    let mut said = String::new();
    node.apply("p.yaml", &with_uid("u1", &volume))?;
    let waits = once(node)?.expect(3)?;
    ensure!(waits.stdout.contains("SecretMissing"), "{waits:?}");
    node.apply("s.yaml", &secret.replace("acme/mem", "Opaque"))?;
    let waits = once(node)?.expect(3)?;
    ensure!(waits.stdout.contains("SecretTypeWrong"), "{waits:?}");
    node.apply("s.yaml", secret)?;
    let program = drivers(node).join("acme~mem/mem");
    for mark in ["refuse", "garbage", ""] {
        let mark = program.with_extension(mark);
        let marked = mark != program;
        if marked {
            std::fs::write(&mark, "")?;
        }
        let ran = once(node)?.expect(if marked { 3 } else { 0 })?;
        ensure!(!marked || ran.stdout.contains("acme/mem"), "{ran:?}");
        said += &(ran.stdout + &ran.stderr);
        if marked {
            std::fs::remove_file(&mark)?;
        }
    }
    let told: Value = serde_json::from_slice(&std::fs::read(path(node, "u1", "mem", "v").join("options"))?)?;
    ensure!(
        told["kubernetes.io/secret/key"] == "aHVudGVyMi1zZWNyZXQ=" && told["kubernetes.io/secret/raw"] == "/////w=="
    );
    said += &node.scan()?.stdout;
    said.extend(texts(&node.state)?.into_iter().map(|(_, text)| text));
    ensure!(said.contains("bad *** or *** or ***"), "the refusal is not shown");
    ensure!(said.contains("ProviderInfoDropped"), "nobody says that it was dropped");
    for secret in ["hunter2", "aHVudGVyMi1zZWNyZXQ", "/////w=="] {
        let at = said.find(secret).map(|at| said[at.saturating_sub(300)..].chars().take(600).collect::<String>());
        ensure!(at.is_none(), "{secret} is shown: {at:?}");
    }
    node.delete("p.yaml")?;
    once(node)?.expect(0)?;
    clean(node)?;
    Ok(Verdict::Passed)
}

/// Each leaves nothing when its pod is gone, and a pod beside it proceeds.
fn faults(node: &mut Node) -> Result<Verdict> {
    let much = "head -c 5000000 /dev/zero | tr '\\0' x";
    for (body, word) in [
        ("echo nothing of use", "no JSON object"),
        (much, "64 KiB or more"),
        ("exit 0", "nothing (exit code 0)"),
        ("say Failure 'the disk is away'; exit 1", "the disk is away"),
        ("say Success; exit 3", "exit code 3"),
        ("kill -9 $$", "ended by a signal"),
    ] {
        let init = "init) echo '{\"status\": \"Success\", \"capabilities\": {\"attach\": false}}';;";
        for (which, script) in [
            ("init", format!("case $1 in init) {body};; *) say Success;; esac")),
            ("mount", format!("case $1 in {init} mount) {body};; *) umount \"$2\" 2>/dev/null; say Success;; esac")),
            (
                "mountdevice",
                format!("case $1 in init) say Success;; mountdevice) {body};; *) say 'Not supported';; esac"),
            ),
        ] {
            install(node, "bad", &script)?;
            install(node, "good", TMPFS)?;
            node.apply("p.yaml", &with_uid("u1", &(flex("v", "bad", "") + &flex("w", "good", ""))))?;
            let ran = once(node)?.expect(3)?;
            ensure!(ran.stdout.contains(word) && ran.stdout.contains(which), "{which}: {body}: {ran:?}");
            ensure!(is_mounted(node, &path(node, "u1", "good", "w"))?, "{which}: {body}: {ran:?}");
            node.delete("p.yaml")?;
            once(node)?.expect(0)?;
            clean(node).with_context(|| format!("{which}: {body}"))?;
        }
    }
    // It answers otherwise than before: what is mounted stays, and a volume of its that is new follows.
    install(node, "bad", TMPFS)?;
    node.apply("p.yaml", &with_uid("u1", &flex("v", "bad", "")))?;
    once(node)?.expect(0)?;
    install(
        node,
        "bad",
        &TMPFS.replace(r#""capabilities": {"attach": false}"#, r#""capabilities": {"attach": true}"#),
    )?;
    node.apply("q.yaml", &with_uid("u2", &flex("v", "bad", "")))?;
    once(node)?.expect(0)?;
    ensure!(is_mounted(node, &path(node, "u1", "bad", "v"))? && is_mounted(node, &path(node, "u2", "bad", "v"))?);
    // It vanishes: what is mounted stays.
    std::fs::remove_file(drivers(node).join("acme~bad/bad"))?;
    once(node)?.expect(0)?;
    ensure!(is_mounted(node, &path(node, "u1", "bad", "v"))?);
    install(node, "bad", TMPFS)?;
    node.delete_all()?;
    once(node)?.expect(0)?;
    clean(node)?;
    Ok(Verdict::Passed)
}

/// It is killed after it has mounted. Nobody knows how far it came, so it begins anew.
fn hangs(node: &mut Node) -> Result<Verdict> {
    let pids = node.folder().join("pids");
    let body = TMPFS.replace(
        "echo \"of the driver\"",
        &format!(
            "[ -e \"$0.well\" ] || {{ sleep 1000 & echo $$ $! > {}; wait; }}; echo \"of the driver\"",
            pids.display()
        ),
    );
    install(node, "slow", &body)?;
    install(node, "good", TMPFS)?;
    node.apply("p.yaml", &with_uid("u1", &(flex("v", "slow", "") + &flex("w", "good", ""))))?;
    node.more = vec!["--operation-deadline".into(), "3".into()];
    let begun = Instant::now();
    let folder = drivers(node);
    let running = Manager::start_with(node, &["--flex-volume-plugin-dir", folder.to_str().context("no text")?])?;
    let (v, w) = (path(node, "u1", "slow", "v"), path(node, "u1", "good", "w"));
    wait("the other driver's volume", || is_mounted(node, &w))?;
    wait("the driver", || Ok(is_there(&pids)))?;
    std::thread::sleep(Duration::from_millis(100));
    let first: Vec<String> = std::fs::read_to_string(&pids)?.split_whitespace().map(str::to_owned).collect();
    std::fs::write(folder.join("acme~slow/slow.well"), "")?;
    wait("its volume", || Ok(is_there(v.join("file"))))?;
    ensure!(begun.elapsed() > Duration::from_secs(2), "it was not waited for");
    for pid in first {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let dead = stat.is_empty() || stat.rsplit(')').next().is_some_and(|s| s.trim_start().starts_with(['Z', 'X']));
        ensure!(dead, "process {pid} of the driver runs on: {stat}");
    }
    wait("its record", || Ok(records(node, "PodVolume")?.len() == 2))?;
    ensure!(node.mounts()?.iter().filter(|mount| **mount == v).count() == 1, "{:?}", node.mounts()?);
    let called = calls(node)?;
    ensure!(called.contains(&format!("slow unmount {}", v.display())), "{called:?}");
    node.delete("p.yaml")?;
    wait("the end", || Ok(node.mounts()?.is_empty()))?;
    ensure!(running.stop(rustix::process::Signal::TERM)? == Some(0));
    Ok(Verdict::Passed)
}

/// The manager dies before, while and after its driver mounts; what it then finds is begun anew, or undone.
fn killed(node: &mut Node) -> Result<Verdict> {
    let body =
        TMPFS.replace("printf %s", "[ -e \"$0.well\" ] || { : > \"$0.before\"; sleep 0.3; }; printf %s").replace(
            "echo \"of the driver\"",
            "[ -e \"$0.well\" ] || { : > \"$0.after\"; sleep 0.3; }; echo \"of the driver\"",
        );
    install(node, "slow", &body)?;
    let folder = drivers(node);
    let mark = |name: &str| folder.join(format!("acme~slow/slow.{name}"));
    let v = path(node, "u1", "slow", "v");
    for moment in ["before", "after"] {
        for wanted in [true, false] {
            node.apply("p.yaml", &with_uid("u1", &flex("v", "slow", "")))?;
            let running =
                Manager::start_with(node, &["--flex-volume-plugin-dir", folder.to_str().context("no text")?])?;
            wait("the driver", || Ok(is_there(mark(moment))))?;
            ensure!(records(node, "PodVolume")?.len() == 1, "the record comes before the driver");
            running.stop(rustix::process::Signal::KILL)?;
            // The driver has a process group of its own, and comes to its end.
            wait("the driver's end", || Ok(is_there(v.join("file"))))?;
            std::fs::write(mark("well"), "")?;
            calls(node)?;
            if !wanted {
                node.delete("p.yaml")?;
            }
            once(node)?.expect(0)?;
            let called = calls(node)?;
            ensure!(called.contains(&format!("slow unmount {}", v.display())), "{moment}: {called:?}");
            ensure!(called.iter().any(|call| call.starts_with("slow mount ")) == wanted, "{moment}: {called:?}");
            ensure!(node.mounts()?.len() == usize::from(wanted), "{moment}: {:?}", node.mounts()?);
            if wanted {
                ensure!(is_there(v.join("file")), "{moment}");
                node.delete("p.yaml")?;
                once(node)?.expect(0)?;
            }
            clean(node)?;
            for name in ["before", "after", "well"] {
                let _ = std::fs::remove_file(mark(name));
            }
        }
    }
    Ok(Verdict::Passed)
}

/// B15. The pauses have grown to seconds when it comes.
fn late(node: &mut Node) -> Result<Verdict> {
    node.apply("p.yaml", &with_uid("u1", &flex("v", "late", "")))?;
    let folder = drivers(node);
    let running = Manager::start_with(node, &["--flex-volume-plugin-dir", folder.to_str().context("no text")?])?;
    std::thread::sleep(Duration::from_secs(8));
    install(node, "late", TMPFS)?;
    let begun = Instant::now();
    let v = path(node, "u1", "late", "v");
    wait("the late driver's volume", || is_mounted(node, &v))?;
    // Failures so far: at 0, 0.5, 1.5, 3.5 and 7.5 s; the next try by the clock would be at 15.5 s.
    ensure!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    node.delete("p.yaml")?;
    wait("the end", || Ok(node.mounts()?.is_empty()))?;
    ensure!(running.stop(rustix::process::Signal::TERM)? == Some(0));
    Ok(Verdict::Passed)
}

fn group(node: &mut Node) -> Result<Verdict> {
    install(node, "mem", TMPFS)?;
    let own = TMPFS.replace(r#"{"attach": false}"#, r#"{"attach": false, "fsGroup": false}"#);
    install(node, "own", &own)?;
    let files = "case $1 in init) echo '{\"status\": \"Success\", \"capabilities\": {\"attach\": false}}';; \
                 mount) echo x > \"$2/data\"; say Success;; unmount) rm -f \"$2/data\"; say Success;; esac";
    install(node, "files", files)?;
    let all = flex("v", "mem", "") + &flex("w", "own", "") + &flex("x", "files", "");
    let text = with_uid("u1", &all).replace("spec:\n", "spec:\n  securityContext: {fsGroup: 4242}\n");
    node.apply("p.yaml", &text)?;
    // That nothing is mounted is told.
    let told = once(node)?.expect(3)?;
    ensure!(told.stdout.contains("NothingMounted"), "{told:?}");
    let gid = |driver: &str, file: &str| -> Result<u32> {
        let name = match driver {
            "mem" => "v",
            "own" => "w",
            _ => "x",
        };
        Ok(std::fs::metadata(path(node, "u1", driver, name).join(file))?.gid())
    };
    if crate::is_real_root() {
        ensure!(gid("mem", "file")? == 4242 && gid("own", "file")? == 0 && gid("files", "data")? == 4242);
        ensure!(std::fs::metadata(path(node, "u1", "mem", "v"))?.permissions().mode() & 0o2000 != 0);
    }
    ensure!(options(node, "own")?["kubernetes.io/mounterArgs.FsGroup"] == "4242");
    calls(node)?;
    let ran = once(node)?.expect(3)?;
    ensure!(calls(node)?.is_empty() && is_there(path(node, "u1", "files", "x").join("data")), "{ran:?}");
    node.delete("p.yaml")?;
    once(node)?.expect(0)?;
    clean(node)?;
    Ok(Verdict::Passed)
}

/// No mount is there any more, and the records are of another boot.
fn reboot(node: &mut Node) -> Result<Verdict> {
    install(node, "mem", TMPFS)?;
    for uid in ["u1", "u2"] {
        node.apply(&format!("{uid}.yaml"), &with_uid(uid, &flex("v", "mem", "")))?;
    }
    once(node)?.expect(0)?;
    for mount in node.mounts()? {
        crate::tool("umount", &[mount.as_os_str()])?;
    }
    for (path, text) in texts(&node.state)? {
        if let Some(at) = text.find("\"bootID\":") {
            let begin = at + text[at + 9..].find('"').context("no boot id")? + 10;
            let end = begin + text[begin..].find('"').context("no end")?;
            let other = "11111111-2222-4333-8444-555555555555";
            std::fs::write(path, format!("{}{other}{}", &text[..begin], &text[end..]))?;
        }
    }
    node.remove("u2.yaml")?;
    Node::settle();
    calls(node)?;
    for _ in 0..8 {
        once(node)?;
    }
    let (one, two) = (path(node, "u1", "mem", "v"), path(node, "u2", "mem", "v"));
    ensure!(is_mounted(node, &one)? && !is_mounted(node, &two)?);
    node.delete_all()?;
    Ok(Verdict::Passed)
}

fn specs(node: &mut Node) -> Result<Verdict> {
    for (driver, word) in
        [("kubernetes.io/mine", "no driver's name"), (".hidden/x", "no driver's name"), ("a~b", "no driver's name")]
    {
        let volume = format!("  - {{name: v, flexVolume: {{driver: \"{driver}\"}}}}\n");
        node.apply("p.yaml", &with_uid("u1", &volume))?;
        let ran = once(node)?.expect(3)?;
        ensure!(ran.stdout.contains(word), "{driver}: {ran:?}");
    }
    ensure!(!SAY.is_empty() && node.mounts()?.is_empty());
    Ok(Verdict::Passed)
}
