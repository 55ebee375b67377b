//! `refloat node` and flexVolumes that grow, and what drivers get back of their own words in calls without options.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::clean_flex::{calls, drivers, install, is_mounted};
use crate::node::Node;
use crate::node_flex::{clean, flex, once, path, persistent, records, with_uid};
use crate::{Test, Verdict};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("node_flex_grows_by_its_driver", by_driver),
    ("node_flex_grows_by_its_file_systems_tool", by_tool),
    ("node_flex_a_driver_that_cannot_grow_it_yet", not_yet),
    ("node_flex_what_a_driver_said_comes_back_when_it_undoes", comes_back),
];

const CLAIM: &str = "  - {name: w, persistentVolumeClaim: {claimName: pv}}\n";

/// Mounts over memory at the device's path, and notes how it is told to grow.
const GROWS: &str = r#"case $1 in
init) echo '{"status": "Success"}';;
waitforattach) echo '{"status": "Success", "device": "/dev/of-mine"}';;
mountdevice) mount -t tmpfs -o size=1m flex "$2"; echo '{"status": "Success", "providerInfo": {"lun": 7}}';;
unmountdevice) umount "$2"; say Success;;
expandvolume|expandfs) [ ! -e "$0.refuse" ] || { say Failure 'no space left on the shelf'; exit 1; }; say Success;;
*) say 'Not supported'; exit 1;; esac"#;

fn grow(node: &Node, driver: &str, more: &str, size: &str) -> Result<()> {
    node.apply(
        "pv.yaml",
        &persistent("pv", driver, more).replace("capacity: {storage: 1Gi}", &format!("capacity: {{storage: {size}}}")),
    )
}

/// What is recorded as the size, of each pod's volume and of the device.
fn sizes(node: &Node) -> Result<Vec<String>> {
    let all = [records(node, "PodVolume")?, records(node, "DeviceMount")?].concat();
    let size = |record: &Value| record["persistentVolume"]["spec"]["capacity"]["storage"].as_str().map(str::to_owned);
    all.iter().map(|record| size(record).context("a record without a size")).collect()
}

fn by_driver(node: &mut Node) -> Result<Verdict> {
    install(node, "mem", GROWS)?;
    grow(node, "mem", "", "1Gi")?;
    for uid in ["u1", "u2"] {
        node.apply(&format!("{uid}.yaml"), &with_uid(uid, CLAIM))?;
    }
    once(node)?.expect(0)?;
    calls(node)?;
    grow(node, "mem", "", "2Gi")?;
    once(node)?.expect(0)?;
    let called = calls(node)?;
    let device = node.root.join("plugins/kubernetes.io/flexvolume/acme/mem/mounts/pv");
    let ends = format!("{} 2147483648 1073741824", device.display());
    // Once, for both of its pods.
    let grown: Vec<&String> = called.iter().filter(|call| call.starts_with("mem expand")).collect();
    ensure!(grown.len() == 2 && grown[0].starts_with("mem expandvolume {"), "{called:?}");
    ensure!(grown[0].ends_with(&format!("}} {ends}")), "{called:?}");
    ensure!(
        grown[1].starts_with("mem expandfs {") && grown[1].ends_with(&format!("}} /dev/of-mine {ends}")),
        "{called:?}"
    );
    ensure!(
        grown[0].contains(r#""kubernetes.io/pvOrVolumeName":"pv""#) && grown[0].contains("provider-info"),
        "{called:?}"
    );
    ensure!(
        !called.iter().any(|call| call.starts_with("mem mount") || call.starts_with("mem unmount")),
        "nothing is mounted anew: {called:?}"
    );
    ensure!(sizes(node)? == ["2Gi"; 3], "{:?}", sizes(node)?);
    once(node)?.expect(0)?;
    ensure!(calls(node)?.is_empty());
    // It is never made smaller.
    grow(node, "mem", "", "1Gi")?;
    once(node)?.expect(0)?;
    ensure!(!calls(node)?.iter().any(|call| call.contains("expand")));
    node.delete_all()?;
    once(node)?.expect(0)?;
    clean(node)?;
    Ok(Verdict::Passed)
}

fn not_yet(node: &mut Node) -> Result<Verdict> {
    install(node, "mem", GROWS)?;
    let refuse = drivers(node).join("acme~mem/mem.refuse");
    grow(node, "mem", "", "1Gi")?;
    node.apply("u1.yaml", &with_uid("u1", CLAIM))?;
    once(node)?.expect(0)?;
    std::fs::write(&refuse, "")?;
    grow(node, "mem", "", "2Gi")?;
    let ran = once(node)?.expect(3)?;
    ensure!(ran.stdout.contains("no space left on the shelf") && ran.stdout.contains("DriverRefused"), "{ran:?}");
    ensure!(is_mounted(node, &path(node, "u1", "mem", "pv"))? && sizes(node)? == ["1Gi"; 2], "{:?}", sizes(node)?);
    std::fs::remove_file(refuse)?;
    once(node)?.expect(0)?;
    ensure!(sizes(node)? == ["2Gi"; 2], "{:?}", sizes(node)?);
    // One that says that its file systems need nothing is not asked to grow them.
    let own = GROWS
        .replace(r#"{"status": "Success"}'"#, r#"{"status": "Success", "capabilities": {"requiresFSResize": false}}'"#);
    install(node, "mem", &own)?;
    calls(node)?;
    grow(node, "mem", "", "3Gi")?;
    once(node)?.expect(0)?;
    let called = calls(node)?;
    ensure!(called.iter().filter(|call| call.contains("expand")).count() == 1, "{called:?}");
    // And a read-only one is left alone.
    node.delete_all()?;
    once(node)?.expect(0)?;
    grow(node, "mem", ", readOnly: true", "3Gi")?;
    node.apply("u1.yaml", &with_uid("u1", CLAIM))?;
    once(node)?.expect(0)?;
    calls(node)?;
    grow(node, "mem", ", readOnly: true", "4Gi")?;
    once(node)?.expect(0)?;
    ensure!(calls(node)?.is_empty() && sizes(node)? == ["4Gi"; 2], "{:?}", sizes(node)?);
    node.delete_all()?;
    once(node)?.expect(0)?;
    clean(node)?;
    Ok(Verdict::Passed)
}

/// The driver has neither call: the device has grown by itself, and its file system fills it, while it is mounted. An xfs, since
/// a mounted ext4 takes a capability to grow that a container may lack.
fn by_tool(node: &mut Node) -> Result<Verdict> {
    if !crate::is_real_root() || std::fs::metadata("/dev/loop-control").is_err() {
        return Ok(Verdict::Skipped("loop devices need root in the machine's own user namespace".into()));
    }
    let image: PathBuf = node.host().join("disk");
    std::fs::File::create(&image)?.set_len(320 << 20)?;
    if crate::tool("mkfs.xfs", &["-q".as_ref(), image.as_os_str()]).is_err() {
        return Ok(Verdict::Skipped("no xfs can be made (xfsprogs)".into()));
    }
    let device = node.attach_loop(&image)?;
    install(node, "disk", &crate::node_flex::LOOP.replace("mount -t ext4", "mount -t xfs"))?;
    let more = format!(", options: {{device: {}}}", device.display());
    grow(node, "disk", &more, "320Mi")?;
    node.apply("u1.yaml", &with_uid("u1", CLAIM))?;
    once(node)?.expect(0)?;
    let shown = path(node, "u1", "disk", "pv");
    std::fs::write(shown.join("kept"), "by the pod")?;
    let blocks = |path: &Path| -> Result<u64> { Ok(rustix::fs::statvfs(path)?.f_blocks) };
    let before = blocks(&shown)?;
    std::fs::OpenOptions::new().write(true).open(&image)?.set_len(480 << 20)?;
    crate::tool("losetup", &["--set-capacity".as_ref(), device.as_os_str()])?;
    grow(node, "disk", &more, "480Mi")?;
    once(node)?.expect(0)?;
    let now = blocks(&shown)?;
    ensure!(now > before + before / 4, "{now} of {before}");
    ensure!(std::fs::read_to_string(shown.join("kept"))? == "by the pod" && sizes(node)? == ["480Mi"; 2]);
    node.delete_all()?;
    once(node)?.expect(0)?;
    clean(node)?;
    Ok(Verdict::Passed)
}

/// `unmount` and `unmountdevice` have a path alone, so it is a variable.
fn comes_back(node: &mut Node) -> Result<Verdict> {
    let notes = r#"echo "$1 $REFLOAT_PROVIDER_INFO" >> "$0.told""#;
    install(
        node,
        "mem",
        &format!(
            "{notes}\n{}",
            GROWS.replace(
                "*) say",
                r#"mount) mount -t tmpfs flex "$2"; echo '{"status": "Success", "providerInfo": {"of": "pod"}}';;
unmount) umount "$2"; say Success;;
*) say"#
            )
        ),
    )?;
    node.apply("p.yaml", &with_uid("u1", &flex("v", "mem", "")))?;
    once(node)?.expect(0)?;
    node.delete("p.yaml")?;
    once(node)?.expect(0)?;
    let told = std::fs::read_to_string(drivers(node).join("acme~mem/mem.told"))?;
    let lines: Vec<&str> = told.lines().collect();
    for expected in [r#"mount {"lun":7}"#, r#"unmount {"of":"pod"}"#, r#"unmountdevice {"lun":7}"#, "mountdevice "] {
        ensure!(lines.contains(&expected), "{expected}: {told}");
    }
    // More than a record should hold is not kept.
    install(
        node,
        "big",
        r#"case $1 in init) echo '{"status": "Success", "capabilities": {"attach": false}}';;
mount) mount -t tmpfs flex "$2"; printf '{"status": "Success", "providerInfo": {"a": "%s"}}' "$(head -c 20000 /dev/zero | tr '\0' x)";;
unmount) umount "$2"; say Success;; *) say 'Not supported';; esac"#,
    )?;
    node.apply("p.yaml", &with_uid("u1", &flex("v", "big", "")))?;
    let ran = once(node)?.expect(0)?;
    ensure!((ran.stdout + &ran.stderr).contains("ProviderInfoDropped"));
    ensure!(records(node, "PodVolume")?[0]["providerInfo"].get("answered").is_none());
    node.delete("p.yaml")?;
    once(node)?.expect(0)?;
    clean(node)?;
    Ok(Verdict::Passed)
}
