//! Plugins that Kubernetes no longer has, or never let a node set up: what is left of them is found and undone, by `node` and
//! by `clean`, and nothing of them is set up anew.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::clean::clean;
use crate::node::Node;
use crate::{Test, Verdict, pod};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("gone_plugins_are_found_and_undone_by_the_manager", by_manager),
    ("gone_plugins_are_found_and_undone_by_clean", by_clean),
    ("gone_plugins_are_never_set_up", never),
    ("gone_plugins_a_git_repo_with_files_stays", git_repo),
];

/// One of them.
struct Gone {
    plugin: &'static str,
    /// A volume of it, as a pod has it.
    entry: &'static str,
    /// What to use instead, as the error says.
    instead: &'static str,
    /// The source of a mount in the pod's folder.
    source: &'static str,
    /// The global mount that pods' volumes are bound from, below `plugins/kubernetes.io/<plugin>/mounts`.
    global: Option<&'static str>,
    /// What is told of the volume.
    told: Value,
}

fn all() -> Vec<Gone> {
    let gone = |plugin, entry, instead, source, global, told| Gone { plugin, entry, instead, source, global, told };
    vec![
        gone(
            "cephfs",
            "cephfs: {monitors: [\"10.0.0.1:6789\"]}",
            "cephfs.csi.ceph.com",
            "10.0.0.1:6789,10.0.0.2:6789:/a",
            None,
            json!({ "cephfs": { "monitors": ["10.0.0.1:6789", "10.0.0.2:6789"], "path": "/a" } }),
        ),
        gone(
            "azure-file",
            "azureFile: {secretName: s, shareName: sh}",
            "file.csi.azure.com",
            "//acc.file.core.windows.net/sh",
            None,
            json!({ "azureFile": { "shareName": "sh" } }),
        ),
        gone("portworx-volume", "portworxVolume: {volumeID: p}", "pxd.portworx.com", "/dev/pxd/pxd1", None, json!({})),
        gone(
            "azure-disk",
            "azureDisk: {diskName: d, diskURI: u}",
            "disk.csi.azure.com",
            "/dev/sdc",
            Some("m2398"),
            json!({ "azureDisk": { "kind": "Managed" } }),
        ),
        gone(
            "cinder",
            "cinder: {volumeID: c-1}",
            "cinder.csi.openstack.org",
            "/dev/vdb",
            Some("c-1"),
            json!({ "cinder": { "volumeID": "c-1" } }),
        ),
        gone(
            "vsphere-volume",
            "vsphereVolume: {volumePath: \"[ds 1] a.vmdk\"}",
            "csi.vsphere.vmware.com",
            "/dev/sdd",
            Some("[ds 1] a.vmdk"),
            json!({ "vsphereVolume": { "volumePath": "[ds 1] a.vmdk" } }),
        ),
        gone(
            "rbd",
            "rbd: {monitors: [\"10.0.0.1:6789\"], image: img}",
            "rbd.csi.ceph.com",
            "/dev/rbd0",
            Some("pool-image-img"),
            json!({ "rbd": { "pool": "pool", "image": "img" } }),
        ),
    ]
}

fn path(node: &Node, plugin: &str) -> PathBuf {
    node.root.join(format!("pods/u1/volumes/kubernetes.io~{plugin}/v"))
}

fn global(node: &Node, gone: &Gone) -> Option<PathBuf> {
    Some(node.root.join(format!("plugins/kubernetes.io/{}/mounts/{}", gone.plugin, gone.global?)))
}

fn mount(source: &str, at: &Path) -> Result<()> {
    std::fs::create_dir_all(at)?;
    rustix::mount::mount(source, at, "tmpfs", rustix::mount::MountFlags::empty(), None)
        .with_context(|| format!("cannot mount {}", at.display()))
}

/// What a kubelet left of each, of a pod that is gone. No record tells of any.
fn left(node: &Node) -> Result<()> {
    for gone in all() {
        let pod = path(node, gone.plugin);
        match global(node, &gone) {
            None => mount(gone.source, &pod)?,
            Some(global) => {
                mount(gone.source, &global)?;
                std::fs::create_dir_all(&pod)?;
                rustix::mount::mount_bind(&global, &pod)?;
            }
        }
    }
    std::fs::create_dir_all(path(node, "git-repo"))?;
    Ok(())
}

fn is_told(node: &Node) -> Result<()> {
    let scan = node.scan()?.json()?;
    for gone in all() {
        let pod = path(node, gone.plugin);
        let mut volumes = scan["volumes"].as_array().into_iter().flatten();
        let found = volumes.find(|v| v["path"] == pod.to_str().unwrap_or_default());
        let found = found.with_context(|| format!("{} is not found in {scan:#}", gone.plugin))?;
        ensure!(found["plugin"] == format!("kubernetes.io/{}", gone.plugin) && found["mounted"] == true, "{found:#}");
        ensure!(matches!(found["reconstruction"].as_str(), Some("Partial" | "UnmountOnly")), "{found:#}");
        for (field, value) in gone.told.as_object().into_iter().flatten() {
            for (name, value) in value.as_object().into_iter().flatten() {
                ensure!(found["spec"]["volume"][field][name] == *value, "{}: {name}: {found:#}", gone.plugin);
            }
        }
    }
    Ok(())
}

/// Of a pod's volumes and devices nothing is left, but for the devices of these.
fn only_devices_are_left(node: &Node, of: &[&str]) -> Result<()> {
    let is_left = |gone: &Gone| of.contains(&gone.plugin);
    let left: Vec<_> = all().iter().filter(|gone| is_left(gone)).filter_map(|gone| global(node, gone)).collect();
    ensure!(node.mounts()?.iter().all(|mount| left.contains(mount)), "{:?}", node.mounts()?);
    ensure!(std::fs::symlink_metadata(node.root.join("pods/u1")).is_err(), "the pod's folder is left");
    for gone in all().iter().filter(|gone| !is_left(gone)) {
        if let Some(global) = global(node, gone) {
            ensure!(std::fs::symlink_metadata(&global).is_err(), "{} is left", global.display());
        }
    }
    Ok(())
}

fn by_manager(node: &mut Node) -> Result<Verdict> {
    left(node)?;
    is_told(node)?;
    // An empty folder of manifests that was not read before says nothing.
    node.apply("other.yaml", &pod("other", "[]", "  - {name: e, emptyDir: {}}\n"))?;
    let ran = node.once()?;
    ensure!(ran.stdout.contains("DeviceNotUndone") && ran.stdout.contains("rbd tool"), "{ran:?}");
    node.delete_all()?;
    node.once()?;
    // An image has to be unmapped, and the global path of an Azure Disk does not tell which disk it is.
    only_devices_are_left(node, &["rbd", "azure-disk"])?;
    Ok(Verdict::Passed)
}

fn by_clean(node: &mut Node) -> Result<Verdict> {
    left(node)?;
    node.apply("other.yaml", &pod("other", "[]", "  - {name: e, hostPath: {path: /}}\n"))?;
    let ran = clean(node, &["--yes"])?;
    only_devices_are_left(node, &["rbd"]).with_context(|| format!("{ran:?}"))?;
    Ok(Verdict::Passed)
}

fn never(node: &mut Node) -> Result<Verdict> {
    let git = ("git-repo", "gitRepo: {repository: \"https://example.org/r\"}", "init container");
    let kinds: Vec<_> = all().iter().map(|gone| (gone.plugin, gone.entry, gone.instead)).chain([git]).collect();
    for (plugin, entry, instead) in kinds {
        node.apply("p.yaml", &pod("p", "[]", &format!("  - {{name: v, {entry}}}\n")))?;
        let ran = node.once()?.expect(3)?;
        ensure!(ran.stdout.contains("TypeNotSetUp") && ran.stdout.contains(instead), "{plugin}: {ran:?}");
        // As a PersistentVolume likewise.
        if plugin != "git-repo" {
            node.apply(
                "p.yaml",
                &format!(
                    "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv}}\nspec:\n  capacity: {{storage: 1Gi}}\n  \
                     accessModes: [ReadWriteOnce]\n  claimRef: {{namespace: test, name: c}}\n  {entry}\n---\n\
                     apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: c, namespace: test}}\nspec:\n  \
                     accessModes: [ReadWriteOnce]\n  volumeName: pv\n  resources: {{requests: {{storage: 1Gi}}}}\n---\n{}",
                    pod("p", "[]", "  - {name: v, persistentVolumeClaim: {claimName: c}}\n")
                ),
            )?;
            let ran = node.once()?.expect(3)?;
            ensure!(ran.stdout.contains("TypeNotSetUp") && ran.stdout.contains(instead), "{plugin}: {ran:?}");
        }
        ensure!(node.mounts()?.is_empty(), "{plugin}: {:?}", node.mounts()?);
    }
    Ok(Verdict::Passed)
}

/// What was cloned is data: only an operator's word deletes it.
fn git_repo(node: &mut Node) -> Result<Verdict> {
    let folder = path(node, "git-repo");
    std::fs::create_dir_all(folder.join("repository"))?;
    std::fs::write(folder.join("repository/README"), "changed by the pod")?;
    node.apply("other.yaml", &pod("other", "[]", "  - {name: e, emptyDir: {}}\n"))?;
    let ran = node.once()?;
    ensure!(std::fs::read(folder.join("repository/README"))? == b"changed by the pod", "{ran:?}");
    ensure!(ran.stdout.contains("git-repo"), "{ran:?}");
    let ran = clean(node, &["--yes"])?;
    ensure!(std::fs::metadata(folder.join("repository/README")).is_ok(), "{ran:?}");
    Ok(Verdict::Passed)
}
