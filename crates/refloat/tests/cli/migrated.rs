//! Disks whose plugin gave way to a CSI driver: by both of their names, and as kubelets left them that still had the plugin.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use refloat_test_csi_driver::{Options, Process, Program};
use serde_json::{Value, json};

use crate::clean::{all_done, bind, clean, kept, steps};
use crate::node::{Node, Ran};
use crate::{Test, Verdict, is_real_root, tool};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("migrated_volumes_answer_to_both_names", both_names),
    ("migrated_folders_of_a_plugin_that_is_gone_are_cleaned", old_folders),
];

const GCE: &str = "pd.csi.storage.gke.io";
const AWS: &str = "ebs.csi.aws.com";

/// Why no file system can be made here.
fn cannot() -> Option<String> {
    let mkfs = Command::new("mkfs.ext4").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !mkfs.is_ok_and(|status| status.success()) {
        return Some("mkfs.ext4 cannot be run".into());
    }
    if !is_real_root() {
        return Some("only root has block devices".into());
    }
    std::fs::File::open("/dev/loop-control").err().map(|error| format!("no loop device can be had: {error}"))
}

/// A node whose manager has ended, and a driver.
struct World<'n> {
    node: &'n Node,
    _driver: Process,
}

impl Drop for World<'_> {
    /// The mounts go before the driver detaches the loop devices that are mounted.
    fn drop(&mut self) {
        for point in self.node.mounts().unwrap_or_default().iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl<'n> World<'n> {
    fn new(node: &'n Node, driver: &str) -> Result<Self> {
        let registry = node.root.join("plugins_registry");
        std::fs::create_dir_all(&registry)?;
        // Of a driver before it, which was killed.
        for left in std::fs::read_dir(&registry)? {
            std::fs::remove_file(left?.path())?;
        }
        let mut options = Options::new(driver, node.folder().join(driver));
        options.registration = Some(registry.join(format!("{driver}-reg.sock")));
        Ok(Self { node, _driver: Process::start(Program::This, options)? })
    }

    fn staged(&self) -> Result<Option<PathBuf>> {
        Ok(self.node.mounts()?.into_iter().find(|point| point.ends_with("globalmount")))
    }
}

fn pod(uid: &str, source: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: pod-{uid}, namespace: test, uid: {uid}}}\nspec:\n  containers:\n  - \
         {{name: c, image: i}}\n  volumes:\n  - {{name: data, {source}}}\n"
    )
}

fn explain(node: &Node, target: &str) -> Result<Ran> {
    let pods = node.pods();
    node.run(&["explain", target, "-o", "json", "--manifests", pods.to_str().context("not UTF-8")?])
}

fn forget_records(node: &Node, kinds: &[&str]) -> Result<()> {
    for kind in kinds {
        for entry in std::fs::read_dir(node.state.join(kind))? {
            std::fs::remove_file(entry?.path())?;
        }
    }
    Ok(())
}

fn both_names(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    let gce = "gcePersistentDisk: {pdName: pd-1, fsType: ext4}";
    let aws = "awsElasticBlockStore: {volumeID: 'aws://us-east-1a/vol-1', fsType: ext4}";
    let gce_names = [
        "kubernetes.io/gce-pd/pd-1",
        "kubernetes.io/csi/pd.csi.storage.gke.io^projects/UNSPECIFIED/zones/UNSPECIFIED/disks/pd-1",
    ];
    let aws_names = [
        "kubernetes.io/aws-ebs/aws://us-east-1a/vol-1",
        "kubernetes.io/aws-ebs/vol-1",
        "kubernetes.io/csi/ebs.csi.aws.com^vol-1",
    ];
    for (driver, source, spec, names) in [
        (GCE, gce, "pd.csi.storage.gke.io-pd-1", gce_names.as_slice()),
        (AWS, aws, "ebs.csi.aws.com-vol-1", aws_names.as_slice()),
    ] {
        let others = if driver == GCE { aws_names.as_slice() } else { &gce_names };
        for name in names {
            by_name(node, driver, source, spec, name, others)?;
        }
        let own: Vec<String> = ["data", spec].iter().map(|name| format!("u1/{name}")).collect();
        for name in own {
            by_name(node, driver, source, spec, &name, others)?;
        }
    }
    Ok(Verdict::Passed)
}

/// Explained and cleaned by this name, and by none of another disk.
fn by_name(node: &Node, driver: &str, source: &str, spec: &str, name: &str, others: &[&str]) -> Result<()> {
    let world = World::new(node, driver)?;
    node.apply("u1.yaml", &pod("u1", source))?;
    node.once()?.expect(0)?;
    let target = node.root.join(format!("pods/u1/volumes/kubernetes.io~csi/{spec}/mount"));
    ensure!(node.mounts()?.contains(&target), "{:?}", node.mounts()?);
    let told = explain(node, name)?.expect(0)?.json()?;
    let subjects: Vec<_> =
        told["subjects"].as_array().into_iter().flatten().map(|s| s["subject"].to_string()).collect();
    ensure!(subjects.iter().any(|s| s.contains("volume data of pod test/pod-u1")), "{name}: {subjects:?}");
    node.run(&["record", "show", name])?.expect(0)?;
    for other in others {
        explain(node, other)?.expect(1)?;
        node.run(&["record", "show", other])?.expect(1)?;
    }
    node.delete("u1.yaml")?;
    for other in others {
        clean(node, &["--yes", other])?.expect(1)?;
        ensure!(node.mounts()?.contains(&target), "{other}");
    }
    if name.starts_with("u1/") {
        all_done(&clean(node, &["--yes", name])?.expect(0)?)?;
        ensure!(!node.mounts()?.contains(&target));
        all_done(&clean(node, &["--yes"])?.expect(0)?)?;
    } else {
        all_done(&clean(node, &["--yes", name])?.expect(0)?)?;
        ensure!(!node.mounts()?.contains(&target), "{name}: {:?}", node.mounts()?);
        assumed(&world, source, name)?;
    }
    ensure!(node.mounts()?.is_empty(), "{name}: {:?}", node.mounts()?);
    Ok(())
}

/// What is staged for nobody goes by the operator's word, which names it in either form.
fn assumed(world: &World<'_>, source: &str, name: &str) -> Result<()> {
    let node = world.node;
    all_done(&clean(node, &["--yes"])?.expect(0)?)?;
    node.apply("u1.yaml", &pod("u1", source))?;
    node.once()?.expect(0)?;
    let staged = world.staged()?.context("nothing is staged")?;
    // A pod that nobody knows any more, and whose folder is gone: only the stage is left.
    let target = node.mounts()?.into_iter().find(|point| point.starts_with(node.root.join("pods")));
    let target = target.context("nothing is published")?;
    rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty())?;
    let folder = target.parent().context("no folder")?;
    std::fs::remove_dir(&target)?;
    std::fs::remove_file(folder.join("vol_data.json"))?;
    let pods = node.root.join("pods");
    for folder in folder.ancestors().take_while(|folder| **folder != *pods) {
        std::fs::remove_dir(folder)?;
    }
    forget_records(node, &["devices", "volumes", "pods"])?;
    node.delete("u1.yaml")?;
    let ask = |more: &[&str]| node.run(&[&["clean", "--yes", "-o", "json"], more].concat());
    let plan = ask(&["--assume-gone", "kubernetes.io/gce-pd/another"])?.json()?;
    ensure!(steps(&plan).is_empty() && node.mounts()?.contains(&staged), "{plan:#}");
    let plan = ask(&["--assume-gone", name])?.expect(0)?.json()?;
    ensure!(!node.mounts()?.contains(&staged), "{name}: {plan:#}");
    Ok(())
}

/// A loop device with a file system and a file in it.
fn disk(node: &mut Node, name: &str) -> Result<PathBuf> {
    let image = node.folder().join(name);
    let content = node.folder().join("content");
    std::fs::create_dir_all(&content)?;
    std::fs::write(content.join("keep.txt"), "keep")?;
    std::fs::File::create(&image)?.set_len(8 << 20)?;
    tool("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), "-d".as_ref(), content.as_os_str(), image.as_os_str()])?;
    node.attach_loop(&image)
}

fn mount(device: &Path, at: &Path) -> Result<()> {
    std::fs::create_dir_all(at)?;
    tool("mount", &["-t".as_ref(), "ext4".as_ref(), device.as_os_str(), at.as_os_str()])
}

/// One disk of each plugin, as a kubelet leaves them that still had it: global mount, and a bind in the pod's folder.
fn old_folders(node: &mut Node) -> Result<Verdict> {
    if let Some(why) = cannot() {
        return Ok(Verdict::Skipped(why));
    }
    let kinds = [
        ("gce-pd", "mounts/pd-1", "pd-1", json!({ "gcePersistentDisk": { "pdName": "pd-1" } }), GCE),
        (
            "aws-ebs",
            "mounts/aws/us-east-1a/vol-1",
            "aws://us-east-1a/vol-1",
            json!({ "awsElasticBlockStore": { "volumeID": "aws://us-east-1a/vol-1" } }),
            AWS,
        ),
    ];
    for (plugin, global, id, spec, driver) in kinds {
        let device = disk(node, plugin)?;
        let global = node.root.join(format!("plugins/kubernetes.io/{plugin}/{global}"));
        let folder = node.root.join(format!("pods/u1/volumes/kubernetes.io~{plugin}/data"));
        for by in [format!("kubernetes.io/{plugin}/{id}"), folder.display().to_string()] {
            mount(&device, &global)?;
            std::fs::create_dir_all(&folder)?;
            bind(&global, &folder)?;
            let scan = node.scan()?.json()?;
            let volume = only(&scan, "volumes")?;
            ensure!(volume["uniqueName"] == format!("kubernetes.io/{plugin}/{id}"), "{volume:#}");
            let mut told = volume["spec"]["volume"].clone();
            told.as_object_mut().context("no spec")?.remove("name");
            ensure!(told == spec && volume["mounted"] == true && volume["reconstruction"] == "Partial", "{volume:#}");
            let staged = only(&scan, "devices")?;
            ensure!(staged["path"] == json!(global) && staged["uniqueName"] == volume["uniqueName"], "{staged:#}");
            // By the name that its driver has for it too.
            let handle = if driver == GCE { "projects/p/zones/z-1-a/disks/pd-1" } else { "vol-1" };
            for name in [format!("kubernetes.io/csi/{driver}^{handle}"), by.clone()] {
                let told = explain(node, &name)?.json()?;
                ensure!(!told["subjects"].as_array().context("no subjects")?.is_empty(), "{name}: {told:#}");
            }
            node.no_pods()?;
            all_done(&clean(node, &["--yes", &by])?.expect(0)?)?;
            ensure!(!node.mounts()?.contains(&folder) && !is_there(&folder), "{:?}", node.mounts()?);
            all_done(&clean(node, &["--yes"])?.expect(0)?)?;
            ensure!(node.mounts()?.is_empty() && !is_there(&global), "{:?}", node.mounts()?);
            // The data is on the disk still.
            let look = node.folder().join("look");
            mount(&device, &look)?;
            kept(&look)?;
            rustix::mount::unmount(&look, rustix::mount::UnmountFlags::empty())?;
        }
    }
    Ok(Verdict::Passed)
}

fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

fn only<'s>(scan: &'s Value, list: &str) -> Result<&'s Value> {
    let all = scan[list].as_array().context("no list")?;
    ensure!(all.len() == 1, "{list}: {all:#?}");
    Ok(&all[0])
}
