//! Makes a node with many volumes of mixed kinds: real mounts, the kubelet's layout, true records.

use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result};
use refloat_mount::{BindOptions, Kernel, NewMount};
use refloat_record::{
    BootId, OuterSpecName, PluginName, PodCheckpoint, PodRef, PodSource, PodUid, PodVolume, Record, RecordedMount,
    RelPath, SpecName, Store, Verbatim, VolumeMode,
};
use refloat_volume::layout;
use serde_json::{Value, json};

use crate::node::dir;

/// Volumes of each pod, in turn: three with a mount of their own, one bind, one plain folder.
const KINDS: [(&str, &str); 5] = [
    ("scratch", "kubernetes.io/empty-dir"),
    ("fast", "kubernetes.io/empty-dir"),
    ("token", "kubernetes.io/secret"),
    ("access", "kubernetes.io/projected"),
    ("data", "kubernetes.io/local-volume"),
];

/// Makes the pods and volumes, and their records in `state`.
pub(super) fn build(root: &Path, state: &Path, host: &Path, volumes: usize) -> Result<()> {
    let kernel = Kernel::detect();
    let boot_id = refloat_node::evidence::boot_id()?;
    let store = Store::open(state)?;
    let mut records = Vec::new();
    for number in 0..volumes {
        let (pod_number, kind) = (number / KINDS.len(), number % KINDS.len());
        let pod = PodRef {
            uid: PodUid::new(format!("{pod_number:08x}-0000-4000-8000-00000000beac"))?,
            namespace: "bench".into(),
            name: format!("pod-{pod_number}"),
        };
        if kind == 0 {
            records.push(Record::PodCheckpoint(checkpoint(&pod)));
        }
        let made = Made { root, host, kernel, boot_id: &boot_id };
        records.push(Record::PodVolume(made.volume(&pod, kind)?));
    }
    for result in store.put_all(&records) {
        result?;
    }
    Ok(())
}

struct Made<'a> {
    root: &'a Path,
    host: &'a Path,
    kernel: Kernel,
    boot_id: &'a BootId,
}

impl Made<'_> {
    fn volume(&self, pod: &PodRef, kind: usize) -> Result<PodVolume> {
        let (name, plugin) = KINDS[kind];
        let plugin = PluginName::new(plugin)?;
        let outer = OuterSpecName::new(name)?;
        let local = plugin.as_str() == "kubernetes.io/local-volume";
        let spec_name = SpecName::new(if local { format!("pv-{}", pod.name) } else { name.into() })?;
        let path = layout::volume_path(&pod.uid, &plugin, &spec_name);
        let folder = path.below(self.root);
        std::fs::create_dir_all(&folder)?;
        // Each local volume is a folder of its own, as on a real node.
        let disk = self.host.join(&pod.name);
        let mount = match kind {
            0 => None,
            4 => {
                std::fs::create_dir_all(&disk)?;
                let source = dir(&disk)?;
                Some(NewMount::bind(self.kernel, source.as_fd(), &disk, &BindOptions::default())?)
            }
            _ => Some(NewMount::tmpfs(self.kernel, &[])?),
        };
        let mount = mount.map(|mount| attach(mount, &folder)).transpose()?;
        if !local {
            let wrapped = if plugin.as_str() == "kubernetes.io/empty-dir" { "" } else { "wrapped_" };
            let marker = layout::marker_dir(&pod.uid, &format!("{wrapped}{name}"))?.below(self.root);
            std::fs::create_dir_all(&marker)?;
            std::fs::write(marker.join("ready"), "")?;
        }
        let (volume, persistent_volume) = objects(kind, pod, &disk);
        let unique_name = if local {
            layout::unique_name_of_device(&plugin, spec_name.as_str())?
        } else {
            layout::unique_name_of_pod(pod, &plugin, &spec_name)
        };
        Ok(PodVolume {
            pod: pod.clone(),
            volume_names: vec![outer],
            spec_name,
            plugin,
            unique_name,
            mode: VolumeMode::Filesystem,
            read_only: false,
            mount_options: vec![],
            fs_group: None,
            selinux_label: None,
            volume: Verbatim::from_value(&volume),
            persistent_volume: persistent_volume.as_ref().map(Verbatim::from_value),
            claim: None,
            path: Some(RelPath::new(path.as_str())?),
            host_path: None,
            device_mount_path: None,
            mount,
            block: None,
            sub_paths: vec![],
            confirmed: false,
            boot_id: self.boot_id.clone(),
            provider_info: None,
            providers: refloat_record::ProviderAnswers::new(),
            lost: vec![],
        })
    }
}

fn attach(mount: NewMount, folder: &Path) -> Result<RecordedMount> {
    let (fs_type, source, root) = mount.announced();
    let before = mount.id();
    let after = mount.attach(&dir(folder)?).context("cannot mount")?;
    Ok(RecordedMount { id: before.or(after).map(|id| id.0), fs_type, source, root })
}

/// The pod's entry and the `PersistentVolume` of a volume.
fn objects(kind: usize, pod: &PodRef, host: &Path) -> (Value, Option<Value>) {
    let name = KINDS[kind].0;
    let volume = match kind {
        0 => json!({ "name": name, "emptyDir": {} }),
        1 => json!({ "name": name, "emptyDir": { "medium": "Memory" } }),
        2 => json!({ "name": name, "secret": { "secretName": "token", "defaultMode": 420 } }),
        3 => json!({ "name": name, "projected": { "defaultMode": 420, "sources": [
            { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
            { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
        ] } }),
        _ => json!({ "name": name, "persistentVolumeClaim": { "claimName": pod.name } }),
    };
    let persistent = (kind == 4).then(|| {
        json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": format!("pv-{}", pod.name) },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                "local": { "path": host }, "claimRef": { "namespace": pod.namespace, "name": pod.name } } })
    });
    (volume, persistent)
}

fn checkpoint(pod: &PodRef) -> PodCheckpoint {
    let volumes: Vec<_> = (0..KINDS.len()).map(|kind| objects(kind, pod, Path::new("/")).0).collect();
    let object = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": pod.namespace, "name": pod.name, "uid": pod.uid },
        "spec": { "containers": [{ "name": "main", "image": "example.org/main:1" }], "volumes": volumes } });
    PodCheckpoint {
        pod: pod.clone(),
        source: PodSource::Manifest { folder: "/etc/pods".into(), folder_id: None, file: format!("{}.yaml", pod.name) },
        object: Verbatim::from_value(&object),
    }
}
