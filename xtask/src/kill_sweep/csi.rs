//! Pods with volumes of two CSI drivers, which really mount; the manager is killed, or one of the drivers.
//!
//! One driver stages: two pods on one of its volumes, a volume of one pod with a group, a raw block volume of two pods, an
//! inline volume. The other does not stage. The one that stages has the name of AWS EBS's, and the volume of one pod is a
//! `PersistentVolume` of the plugin that it took the place of, so that what is translated is killed at the same points.

mod check;
mod journal;
mod phases;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use refloat_mount::loopdev;
use refloat_test_csi_driver::{Action, Fault, Options, Process, Program};
use serde_json::Value;

use super::scenario::volume_path;
use crate::node::Node;
use crate::process::{THIS_PROGRAM, find_tool, is_real_root};

pub(super) use phases::KIND;

/// The driver that stages.
const STAGING: &str = "ebs.csi.aws.com";
/// The driver that does not.
const DIRECT: &str = "direct.test";

/// What pods write.
const POD_FILE: &[u8] = b"the pod's\n";
/// Where it is in a raw volume.
const RAW_OFFSET: u64 = 4096;

/// The size of volumes in MiB, and what one grows to.
const SIZE: u64 = 8;
const GROWN: u64 = 12;

/// A volume with a claim of the same name.
struct Volume {
    name: &'static str,
    driver: &'static str,
    mode: &'static str,
    /// More of `spec`, and of its source.
    more: (&'static str, &'static str),
    grows: bool,
    /// Its source is `awsElasticBlockStore`, not `csi`.
    aws: bool,
}

const VOLUMES: [Volume; 4] = [
    Volume {
        name: "shared",
        driver: STAGING,
        mode: "ReadWriteMany",
        more: ("", ", fsType: ext4"),
        grows: false,
        aws: false,
    },
    Volume {
        name: "alone",
        driver: STAGING,
        mode: "ReadWriteOnce",
        more: (", mountOptions: [noatime]", ", fsType: ext4"),
        grows: true,
        aws: true,
    },
    Volume {
        name: "raw",
        driver: STAGING,
        mode: "ReadWriteMany",
        more: (", volumeMode: Block", ""),
        grows: true,
        aws: false,
    },
    Volume {
        name: "direct",
        driver: DIRECT,
        mode: "ReadWriteOnce",
        more: ("", ", fsType: ext4"),
        grows: false,
        aws: false,
    },
];

/// Pods, and the claim that each uses; one has an inline volume instead.
const PODS: [(&str, &str); 7] = [
    ("shared-a", "shared"),
    ("shared-b", "shared"),
    ("alone", "alone"),
    ("raw-a", "raw"),
    ("raw-b", "raw"),
    ("direct", "direct"),
    ("inline", ""),
];

/// Pods that go in the tear-down: one of two users of each shared volume, the only user of others.
const REMOVED: [&str; 5] = ["shared-a", "alone", "raw-a", "direct", "inline"];

/// The scenario on one node.
struct Csi {
    staging: Process,
    direct: Process,
    node: Node,
}

/// Why the drivers cannot do their work here, if they cannot.
fn unable() -> Option<String> {
    if !is_real_root() {
        return Some("the CSI drivers need root".into());
    }
    if find_tool("mkfs.ext4").is_none() || find_tool("losetup").is_none() {
        return Some("the CSI drivers need mkfs.ext4 and losetup".into());
    }
    loopdev::all().err().map(|error| format!("no loop device can be had: {error}"))
}

/// Whether an ext4 that is mounted can be grown here.
///
/// # Source
/// `ext4_ioctl` of Linux: `EXT4_IOC_RESIZE_FS` needs `CAP_SYS_RESOURCE`.
fn can_grow_mounted() -> Result<bool> {
    let effective = rustix::thread::capabilities(None).context("cannot read the capabilities")?.effective;
    Ok(effective.contains(rustix::thread::CapabilitySet::SYS_RESOURCE))
}

impl Csi {
    /// Sets the stage: folders, drivers, manifests of all pods.
    fn new(binary: &Path) -> Result<Self> {
        let node = Node::new(binary)?;
        let registry = node.root.join("plugins_registry");
        std::fs::create_dir(&registry)?;
        let start = |name: &str| {
            let mut options = Options::new(name, node.folder().join(name));
            options.registration = Some(registry.join(format!("{name}-reg.sock")));
            options.create_missing = Some(SIZE << 20);
            options.no_stage = name == DIRECT;
            Process::start(Program::At(THIS_PROGRAM.into()), options).with_context(|| format!("cannot start {name}"))
        };
        let (staging, direct) = (start(STAGING)?, start(DIRECT)?);
        if !can_grow_mounted()? {
            // It is asked all the same, and says that it has grown it. A raw volume really grows everywhere.
            staging.faults().order("NodeExpandVolume", &Fault::always(Action::Lie).of_volume(&handle("alone")))?;
        }
        let csi = Self { staging, direct, node };
        csi.apply_all()?;
        Ok(csi)
    }

    fn apply_all(&self) -> Result<()> {
        self.apply_volumes(SIZE)?;
        for (name, claim) in PODS {
            self.node.apply(&format!("pod-{name}.yaml"), &pod(name, claim))?;
        }
        Ok(())
    }

    /// The volumes and claims; those that grow have this size.
    fn apply_volumes(&self, grown: u64) -> Result<()> {
        let mut text = format!(
            "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {STAGING}}}\nspec: {{attachRequired: false, \
             podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral]}}\n---\n"
        );
        for Volume { name, driver, mode, more: (spec, more), grows, aws } in VOLUMES {
            let (size, handle) = (if grows { grown } else { SIZE }, handle(name));
            let source = if aws {
                format!("awsElasticBlockStore: {{volumeID: {handle}{more}}}")
            } else {
                format!("csi: {{driver: {driver}, volumeHandle: {handle}{more}}}")
            };
            let _ = writeln!(
                text,
                "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv-{name}}}\nspec: {{capacity: {{storage: {size}Mi}}, \
                 accessModes: [{mode}], {source}, claimRef: {{namespace: test, \
                 name: {name}}}{spec}}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, \
                 namespace: test}}\nspec: {{volumeName: pv-{name}, accessModes: [{mode}], resources: {{requests: {{storage: \
                 {size}Mi}}}}}}\n---",
            );
        }
        self.node.apply("volumes.yaml", &text)
    }

    fn remove_some(&self) -> Result<()> {
        REMOVED.iter().try_for_each(|name| self.node.remove(&format!("pod-{name}.yaml")))
    }

    fn driver(&mut self, name: &str) -> Option<&mut Process> {
        match name {
            STAGING => Some(&mut self.staging),
            DIRECT => Some(&mut self.direct),
            _ => None,
        }
    }

    /// Starts a driver again, where another socket is its socket from now on if `moved`.
    fn start_again(&mut self, name: &str, moved: bool) -> Result<()> {
        let driver = self.driver(name).with_context(|| format!("there is no driver {name}"))?;
        let change = |options: &mut Options| {
            if moved {
                let other = if options.endpoint.ends_with("csi.sock") { "other.sock" } else { "csi.sock" };
                options.endpoint.set_file_name(other);
            }
        };
        driver.restart(change).with_context(|| format!("cannot start {name} again"))
    }

    /// Writes what pods write.
    fn write_data(&self) -> Result<()> {
        use std::os::unix::fs::FileExt;
        let scan = self.node.scan()?.json()?;
        for (pod, _) in PODS.iter().filter(|(pod, _)| !pod.ends_with("-b")) {
            let (path, offset) = data_of(&scan, pod)?;
            let mut options = std::fs::File::options();
            let opened = options.write(true).create(offset == 0).open(&path);
            let file = opened.with_context(|| format!("cannot write {}", path.display()))?;
            file.write_all_at(POD_FILE, offset)?;
            file.sync_all()?;
        }
        Ok(())
    }
}

/// The file of a pod's data, and where in it they are.
fn data_of(scan: &Value, pod: &str) -> Result<(PathBuf, u64)> {
    let path = volume_path(scan, pod, "data")?;
    Ok(if pod.starts_with("raw") { (path, RAW_OFFSET) } else { (path.join("pod.txt"), 0) })
}

impl Drop for Csi {
    fn drop(&mut self) {
        let _ = self.staging.kill();
        let _ = self.direct.kill();
    }
}

/// As the ids of AWS are spelled, which others are not translated to.
fn handle(volume: &str) -> String {
    format!("vol-{volume}")
}

fn pod(name: &str, claim: &str) -> String {
    let (mut more, mut container) = ("", "volumeMounts: [{name: data, mountPath: /d}]");
    let volume = if claim.is_empty() {
        format!("csi: {{driver: {STAGING}}}")
    } else {
        format!("persistentVolumeClaim: {{claimName: {claim}}}")
    };
    match claim {
        "alone" => more = "  securityContext: {fsGroup: 4321}\n",
        "raw" => container = "volumeDevices: [{name: data, devicePath: /dev/raw}]",
        _ => {}
    }
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: test}}\nspec:\n{more}  containers:\n  - name: main\n    \
         image: example.org/{name}\n    {container}\n  volumes:\n  - {{name: data, {volume}}}\n"
    )
}
