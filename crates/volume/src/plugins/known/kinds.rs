//! The table: what each of these plugins is called, where it mounts, and what paths and mounts tell of its volumes.

use refloat_record::VolumeMode;
use serde_json::{Value, json};

use super::Instead::{self, Csi, Later, Other};
use super::names;
use super::told::{Seen, Told};
use crate::{Presence, SpecSource};

/// A field of a volume's source, as a path in a pod's entry and in a `PersistentVolume`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) inline: &'static str,
    pub(super) persistent: &'static str,
}

impl Field {
    /// The field's own name.
    pub(super) fn name(&self) -> &'static str {
        self.inline.rsplit_once('.').map_or(self.inline, |(_, name)| name)
    }
}

/// One plugin.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each is one independent yes or no
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The source's field in a spec.
    pub(super) source: &'static str,
    /// All fields of that source.
    pub(super) fields: &'static [Field],
    pub(super) supports: fn(&SpecSource) -> bool,
    pub(super) instead: Instead,
    pub(super) attachable: bool,
    pub(super) device_mountable: bool,
    /// Whether it mounts at a global path first.
    pub(super) has_devices: bool,
    /// What undoing its devices needs and is not there.
    pub(super) device_needs: Option<&'static str>,
    pub(super) presence: Presence,
    /// No `PersistentVolume` can have such a source.
    pub(super) inline_only: bool,
    /// The spec name, by the name of the volume's folder.
    pub(super) spec_name: fn(&str) -> Option<&str>,
    /// Tells fields. One that is known to be absent is null.
    pub(super) tell: fn(&Seen<'_>) -> Told,
    /// The plugin's own name for the volume, from what it put into its global path.
    pub(super) device_name: fn(&str) -> Option<String>,
}

macro_rules! fields {
    ($source:literal: $($field:literal)*) => {
        &[$(Field { inline: concat!($source, ".", $field), persistent: concat!("spec.", $source, ".", $field) }),*]
    };
}

macro_rules! has {
    ($field:ident) => {
        |source| match source {
            SpecSource::Inline { volume } => volume.typed.$field.is_some(),
            SpecSource::Persistent { persistent_volume, .. } => {
                persistent_volume.typed.spec.as_ref().is_some_and(|spec| spec.$field.is_some())
            }
        }
    };
}

macro_rules! has_inline {
    ($field:ident) => {
        |source| matches!(source, SpecSource::Inline { volume } if volume.typed.$field.is_some())
    };
}

fn nothing(_: &Seen<'_>) -> Told {
    Told::new()
}

fn no_name(_: &str) -> Option<String> {
    None
}

#[allow(clippy::unnecessary_wraps)] // as its like
fn as_it_is(rest: &str) -> Option<String> {
    Some(rest.to_owned())
}

fn told<const N: usize>(fields: [(&str, Value); N]) -> Told {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A volume that is mounted in the pod's folder alone.
const MOUNT: Kind = Kind {
    name: "",
    source: "",
    fields: &[],
    supports: |_| false,
    instead: Later,
    attachable: false,
    device_mountable: false,
    has_devices: false,
    device_needs: None,
    presence: Presence::Mount,
    inline_only: false,
    spec_name: |folder| Some(folder),
    tell: nothing,
    device_name: no_name,
};

/// A disk that a controller attaches, mounted at a global path, whose last part is its name.
const DISK: Kind = Kind { attachable: true, device_mountable: true, has_devices: true, device_name: as_it_is, ..MOUNT };

/// What paths and mounts tell of an NFS volume. It is set up by a module of its own.
pub(super) static NFS: Kind = Kind {
    name: "kubernetes.io/nfs",
    source: "nfs",
    fields: fields!("nfs": "server" "path" "readOnly"),
    supports: has!(nfs),
    tell: |seen| {
        let source = seen.whole_source().unwrap_or_default();
        names::nfs(&source)
            .map_or_else(Told::new, |(server, path)| told([("server", server.into()), ("path", path.into())]))
    },
    ..MOUNT
};

/// The same of a `GlusterFS` volume.
pub(super) static GLUSTERFS: Kind = Kind {
    name: "kubernetes.io/glusterfs",
    source: "glusterfs",
    fields: fields!("glusterfs": "endpoints" "endpointsNamespace" "path" "readOnly"),
    supports: has!(glusterfs),
    tell: |seen| {
        let source = seen.whole_source().unwrap_or_default();
        names::glusterfs(&source).map_or_else(Told::new, |(_, volume)| told([("path", volume.into())]))
    },
    ..MOUNT
};

/// The same of a Fibre Channel volume.
pub(super) static FC: Kind = Kind {
    name: "kubernetes.io/fc",
    source: "fc",
    fields: fields!("fc": "targetWWNs" "lun" "wwids" "fsType" "readOnly"),
    supports: has!(fc),
    tell: |seen| match seen.global.and_then(names::fc) {
        Some(names::Fc::Targets { wwns, lun }) => {
            told([("targetWWNs", wwns.into()), ("lun", lun.into()), ("wwids", Value::Null)])
        }
        Some(names::Fc::Wwids(wwids)) => {
            told([("wwids", wwids.into()), ("targetWWNs", Value::Null), ("lun", Value::Null)])
        }
        None => Told::new(),
    },
    device_name: |rest| names::fc(rest).map(|volume| volume.volume_name()),
    ..DISK
};

/// The same of an iSCSI volume.
pub(super) static ISCSI: Kind = Kind {
    name: "kubernetes.io/iscsi",
    source: "iscsi",
    fields: fields!("iscsi": "targetPortal" "iqn" "lun" "iscsiInterface" "initiatorName" "portals" "fsType" "readOnly"
        "chapAuthDiscovery" "chapAuthSession" "secretRef"),
    supports: has!(iscsi),
    tell: |seen| {
        let Some(volume) = seen.global.and_then(names::iscsi) else { return Told::new() };
        let mut told =
            told([("targetPortal", volume.portal.into()), ("iqn", volume.iqn.into()), ("lun", volume.lun.into())]);
        if let Some(interface) = volume.interface {
            told.insert("iscsiInterface".into(), interface.into());
            // With one, the interface would have been made for this volume.
            told.insert("initiatorName".into(), Value::Null);
        }
        told
    },
    device_name: |rest| {
        let volume = names::iscsi(rest)?;
        Some(format!("{}:{}:{}", volume.portal, volume.iqn, volume.lun))
    },
    ..DISK
};

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "kubernetes.io/git-repo",
        source: "gitRepo",
        fields: fields!("gitRepo": "repository" "revision" "directory"),
        supports: has_inline!(git_repo),
        instead: Other("is a gitRepo volume, which Kubernetes refuses: clone into an emptyDir with an init container"),
        presence: Presence::Marker,
        inline_only: true,
        ..MOUNT
    },
    Kind {
        name: "kubernetes.io/image",
        source: "image",
        fields: fields!("image": "reference" "pullPolicy"),
        supports: has_inline!(image),
        instead: Other("is an image volume, which the container runtime mounts and which needs no volume manager"),
        presence: Presence::Record,
        inline_only: true,
        ..MOUNT
    },
    Kind {
        name: "kubernetes.io/gce-pd",
        source: "gcePersistentDisk",
        fields: fields!("gcePersistentDisk": "pdName" "fsType" "partition" "readOnly"),
        supports: has!(gce_persistent_disk),
        instead: Csi("pd.csi.storage.gke.io"),
        tell: |seen| seen.global.map_or_else(Told::new, |disk| told([("pdName", disk.into())])),
        ..DISK
    },
    Kind {
        name: "kubernetes.io/aws-ebs",
        source: "awsElasticBlockStore",
        fields: fields!("awsElasticBlockStore": "volumeID" "fsType" "partition" "readOnly"),
        supports: has!(aws_elastic_block_store),
        instead: Csi("ebs.csi.aws.com"),
        tell: |seen| seen.global.and_then(names::aws).map_or_else(Told::new, |id| told([("volumeID", id.into())])),
        device_name: names::aws,
        ..DISK
    },
    Kind {
        name: "kubernetes.io/azure-disk",
        source: "azureDisk",
        // The global path has a checksum of the URI, and `m` for a managed disk; that of a block volume has the name.
        fields: fields!("azureDisk": "diskName" "diskURI" "kind" "cachingMode" "fsType" "readOnly"),
        supports: has!(azure_disk),
        instead: Csi("disk.csi.azure.com"),
        tell: |seen| match seen.global {
            Some(name) if seen.found.mode == VolumeMode::Block => told([("diskName", name.into())]),
            Some(name) if name.starts_with('m') => told([("kind", "Managed".into())]),
            _ => Told::new(),
        },
        device_name: no_name,
        ..DISK
    },
    Kind {
        name: "kubernetes.io/azure-file",
        source: "azureFile",
        fields: fields!("azureFile": "shareName" "secretName" "secretNamespace" "readOnly"),
        supports: has!(azure_file),
        instead: Csi("file.csi.azure.com"),
        tell: |seen| {
            let source = seen.whole_source().unwrap_or_default();
            names::azure_file(&source).map_or_else(Told::new, |share| told([("shareName", share.into())]))
        },
        ..MOUNT
    },
    Kind {
        name: "kubernetes.io/cinder",
        source: "cinder",
        fields: fields!("cinder": "volumeID" "fsType" "readOnly" "secretRef"),
        supports: has!(cinder),
        instead: Csi("cinder.csi.openstack.org"),
        tell: |seen| seen.global.map_or_else(Told::new, |id| told([("volumeID", id.into())])),
        ..DISK
    },
    Kind {
        name: "kubernetes.io/vsphere-volume",
        source: "vsphereVolume",
        fields: fields!("vsphereVolume": "volumePath" "fsType" "storagePolicyID" "storagePolicyName"),
        supports: has!(vsphere_volume),
        instead: Csi("csi.vsphere.vmware.com"),
        tell: |seen| seen.global.map_or_else(Told::new, |path| told([("volumePath", path.into())])),
        ..DISK
    },
    Kind {
        name: "kubernetes.io/rbd",
        source: "rbd",
        fields: fields!("rbd": "monitors" "image" "pool" "user" "keyring" "secretRef" "fsType" "readOnly"),
        supports: has!(rbd),
        instead: Csi("rbd.csi.ceph.com"),
        device_needs: Some("its image has to be unmapped with the rbd tool, which this version does not do"),
        tell: |seen| match seen.global.and_then(names::rbd) {
            Some((pool, image)) => told([("pool", pool.into()), ("image", image.into())]),
            None => Told::new(),
        },
        device_name: |rest| names::rbd(rest).map(|(pool, image)| format!("{pool}:{image}")),
        ..DISK
    },
    Kind {
        name: "kubernetes.io/cephfs",
        source: "cephfs",
        fields: fields!("cephfs": "monitors" "path" "user" "secretFile" "secretRef" "readOnly"),
        supports: has!(cephfs),
        instead: Csi("cephfs.csi.ceph.com"),
        tell: |seen| {
            let source = seen.whole_source().unwrap_or_default();
            let Some((monitors, path)) = names::cephfs(&source) else { return Told::new() };
            let mut told = told([("monitors", json!(monitors)), ("path", path.into())]);
            let options = seen.mount.map(refloat_mount::Mount::fs_options).unwrap_or_default();
            if let Some(user) = names::ceph_user(&options) {
                told.insert("user".into(), user.into());
            }
            told
        },
        ..MOUNT
    },
    Kind {
        name: "kubernetes.io/portworx-volume",
        source: "portworxVolume",
        fields: fields!("portworxVolume": "volumeID" "fsType" "readOnly"),
        supports: has!(portworx_volume),
        instead: Csi("pxd.portworx.com"),
        ..MOUNT
    },
    Kind {
        name: "kubernetes.io/quobyte",
        source: "quobyte",
        fields: fields!("quobyte": "registry" "volume" "user" "group" "tenant" "readOnly"),
        supports: has!(quobyte),
        instead: Csi("csi.quobyte.com"),
        has_devices: true,
        ..MOUNT
    },
    Kind {
        name: "kubernetes.io/scaleio",
        source: "scaleIO",
        fields: fields!("scaleIO": "gateway" "system" "protectionDomain" "storagePool" "storageMode" "volumeName" "secretRef"
            "sslEnabled" "fsType" "readOnly"),
        supports: has!(scale_io),
        instead: Csi("csi-vxflexos.dellemc.com"),
        ..MOUNT
    },
    Kind {
        name: "kubernetes.io/storageos",
        source: "storageos",
        fields: fields!("storageos": "volumeName" "volumeNamespace" "fsType" "secretRef" "readOnly"),
        supports: has!(storageos),
        instead: Csi("csi.storageos.com"),
        has_devices: true,
        // Its folder is called as its device.
        spec_name: |folder| names::storageos(folder).map(|told| told.0),
        tell: |seen| match seen.global.and_then(names::storageos) {
            Some((_, namespace, volume)) => {
                told([("volumeNamespace", namespace.into()), ("volumeName", volume.into())])
            }
            None => Told::new(),
        },
        ..MOUNT
    },
    Kind {
        name: "kubernetes.io/flocker",
        source: "flocker",
        fields: fields!("flocker": "datasetName" "datasetUUID"),
        supports: has!(flocker),
        instead: Other("is of a type that Kubernetes no longer has, and no CSI driver took its place"),
        // Its agent mounts each dataset at `/flocker/<uuid>`, and the pod's folder is a bind of that.
        tell: |seen| {
            let datasets = seen.same_root().filter_map(|mount| {
                let uuid = mount.point().strip_prefix("/flocker").ok()?.to_str()?;
                (!uuid.is_empty() && !uuid.contains('/')).then(|| uuid.to_owned())
            });
            let mut datasets: Vec<_> = datasets.collect();
            datasets.dedup();
            match <[String; 1]>::try_from(datasets) {
                Ok([uuid]) => told([("datasetUUID", uuid.into())]),
                Err(_) => Told::new(),
            }
        },
        ..MOUNT
    },
    Kind {
        name: "kubernetes.io/photon-pd",
        source: "photonPersistentDisk",
        fields: fields!("photonPersistentDisk": "pdID" "fsType"),
        supports: has!(photon_persistent_disk),
        instead: Other("is of a type that Kubernetes no longer has, and no CSI driver took its place"),
        tell: |seen| seen.global.map_or_else(Told::new, |id| told([("pdID", id.into())])),
        ..DISK
    },
];
