//! Global mount paths: which plugin's device a path below `plugins/` is, and what the plugin itself put into the path.
//!
//! # Source
//! `makeGlobalPDPath` and its like in `pkg/volume/<plugin>` of Kubernetes v1.36, and of the versions that still had the
//! plugins that are gone now.

use refloat_record::{PluginName, PodUid, VolumeMode};

/// A global mount path, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalPath<'p> {
    /// The plugin whose device is mounted there.
    pub plugin: PluginName,
    /// What the plugin made of the volume: the rest of the path, below the folder of all its devices.
    pub rest: &'p str,
    /// `Filesystem`: something is mounted there. `Block`: a CSI driver's staging place, or a global map path, in which a
    /// file of each pod has the device bound over it.
    pub mode: VolumeMode,
}

/// The global map path, and the pod, that a path relative to the node root is: `<global map path>/<pod uid>`, of the
/// plugins whose map path is called after the device and not after the `PersistentVolume`.
///
/// # Source
/// `GetGlobalMapPath` of the plugins in `pkg/volume`, of Kubernetes v1.36 and of those that still had them.
pub fn map_file(rel: &str) -> Option<(GlobalPath<'_>, &str)> {
    let (folder, pod) = rel.rsplit_once('/')?;
    PodUid::new(pod).ok()?;
    let path = global_path(folder)?;
    (path.mode == VolumeMode::Block && path.plugin.as_str() != super::CSI).then_some((path, pod))
}

/// Takes a path relative to the node root apart; none if it is no device's.
pub fn global_path(rel: &str) -> Option<GlobalPath<'_>> {
    let below = rel.strip_prefix("plugins/")?;
    if below.split('/').any(str::is_empty) {
        return None;
    }
    let mut mode = VolumeMode::Filesystem;
    let (plugin, rest) = match below.split_once('/') {
        None => (below == "kubernetes.io~quobyte").then_some(("kubernetes.io/quobyte".into(), ""))?,
        Some(("kubernetes.io~storageos", rest)) => {
            ("kubernetes.io/storageos".into(), one(rest.strip_prefix("mounts/")?)?)
        }
        Some(("kubernetes.io", rest)) => {
            if rest.split('/').nth(1) == Some(super::VOLUME_DEVICES) {
                mode = VolumeMode::Block;
                block(rest)?
            } else {
                in_tree(rest)?
            }
        }
        Some(_) => return None,
    };
    Some(GlobalPath { plugin: PluginName::new(plugin).ok()?, rest, mode })
}

/// Below `plugins/kubernetes.io/`.
fn in_tree(below: &str) -> Option<(String, &str)> {
    let (folder, rest) = below.split_once('/')?;
    let rest = match folder {
        "csi" => return Some(("kubernetes.io/csi".into(), csi(rest)?)),
        "flexvolume" => return flex(rest),
        "iscsi" => {
            let (interface, name) = rest.split_once('/')?;
            one(name)?;
            interface.starts_with("iface-").then_some(rest)?
        }
        "fc" => one(rest)?,
        // The oldest place is `rbd/rbd`.
        "rbd" => one(rest.strip_prefix("mounts/").or_else(|| rest.strip_prefix("rbd/"))?)?,
        // Their names are paths.
        "aws-ebs" | "vsphere-volume" => rest.strip_prefix("mounts/")?,
        _ => one(rest.strip_prefix("mounts/")?)?,
    };
    Some((format!("kubernetes.io/{folder}"), rest))
}

/// `<plugin>/volumeDevices/…` below `plugins/kubernetes.io/`.
fn block(below: &str) -> Option<(String, &str)> {
    let (plugin, of_plugin) = below.split_once('/')?;
    let rest = of_plugin.strip_prefix(super::VOLUME_DEVICES)?.strip_prefix('/')?;
    let last = rest.rsplit('/').next()?;
    let rest = match plugin {
        // What its pods have is found by the `PersistentVolume`'s name.
        "csi" => rest.strip_prefix("staging/").and_then(one).map(|_| of_plugin)?,
        "iscsi" => {
            let (interface, name) = rest.split_once('/')?;
            one(name)?;
            interface.starts_with("iface-").then_some(rest)?
        }
        // The volume id as it is, but for one of two slashes: `vol-1`, `aws:/<zone>/vol-1`.
        "aws-ebs" => last.starts_with("vol-").then_some(rest)?,
        "vsphere-volume" => last.strip_suffix(".vmdk").map(|_| rest)?,
        _ => one(rest)?,
    };
    Some((format!("kubernetes.io/{plugin}"), rest))
}

/// `<driver>/<hash>/globalmount`, or `pv/<pv>/globalmount` of old kubelets.
fn csi(rest: &str) -> Option<&str> {
    let (above, last) = rest.rsplit_once('/')?;
    let (driver, name) = above.split_once('/')?;
    one(name)?;
    (last == "globalmount").then_some(above).filter(|_| !driver.is_empty())
}

/// `<vendor>/<driver>/mounts/<spec>`; a driver may have no vendor.
fn flex(rest: &str) -> Option<(String, &str)> {
    let (driver, spec) = rest.split_once("/mounts/")?;
    (driver.split('/').count() <= 2).then_some(())?;
    Some((driver.to_owned(), one(spec)?))
}

fn one(name: &str) -> Option<&str> {
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plugins_global_paths_are_known() {
        for (path, plugin, rest) in [
            ("kubernetes.io/gce-pd/mounts/pd-1", "kubernetes.io/gce-pd", "pd-1"),
            ("kubernetes.io/aws-ebs/mounts/vol-1", "kubernetes.io/aws-ebs", "vol-1"),
            ("kubernetes.io/aws-ebs/mounts/aws/eu-1a/vol-1", "kubernetes.io/aws-ebs", "aws/eu-1a/vol-1"),
            (
                "kubernetes.io/vsphere-volume/mounts/[ds 1] vm/d.vmdk",
                "kubernetes.io/vsphere-volume",
                "[ds 1] vm/d.vmdk",
            ),
            ("kubernetes.io/rbd/mounts/p-image-i", "kubernetes.io/rbd", "p-image-i"),
            ("kubernetes.io/rbd/rbd/p-image-i", "kubernetes.io/rbd", "p-image-i"),
            (
                "kubernetes.io/iscsi/iface-default/10.0.0.5:3260-iqn.x-lun-0",
                "kubernetes.io/iscsi",
                "iface-default/10.0.0.5:3260-iqn.x-lun-0",
            ),
            ("kubernetes.io/fc/50060e801049cfd1-lun-0", "kubernetes.io/fc", "50060e801049cfd1-lun-0"),
            ("kubernetes.io/local-volume/mounts/pv", "kubernetes.io/local-volume", "pv"),
            ("kubernetes.io/csi/d/0a/globalmount", "kubernetes.io/csi", "d/0a"),
            ("kubernetes.io/csi/pv/pv-1/globalmount", "kubernetes.io/csi", "pv/pv-1"),
            ("kubernetes.io/csi/volumeDevices/staging/pv", "kubernetes.io/csi", "volumeDevices/staging/pv"),
            ("kubernetes.io/flexvolume/acme/nfs/mounts/v", "acme/nfs", "v"),
            ("kubernetes.io/flexvolume/lone/mounts/v", "lone", "v"),
            ("kubernetes.io~storageos/mounts/pv.ns.vol", "kubernetes.io/storageos", "pv.ns.vol"),
            ("kubernetes.io~quobyte", "kubernetes.io/quobyte", ""),
        ] {
            let path = format!("plugins/{path}");
            let found = global_path(&path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!((found.plugin.as_str(), found.rest), (plugin, rest), "{path}");
        }
    }

    #[test]
    fn every_plugins_map_paths_are_known() {
        for (path, plugin, rest) in [
            ("gce-pd/volumeDevices/pd-1", "gce-pd", "pd-1"),
            ("aws-ebs/volumeDevices/vol-1", "aws-ebs", "vol-1"),
            ("aws-ebs/volumeDevices/aws:/eu-1a/vol-1", "aws-ebs", "aws:/eu-1a/vol-1"),
            ("azure-disk/volumeDevices/disk-1", "azure-disk", "disk-1"),
            ("cinder/volumeDevices/8f3c", "cinder", "8f3c"),
            ("vsphere-volume/volumeDevices/[ds 1] vm/d.vmdk", "vsphere-volume", "[ds 1] vm/d.vmdk"),
            ("rbd/volumeDevices/p-image-i", "rbd", "p-image-i"),
            ("fc/volumeDevices/50060e801049cfd1-lun-0", "fc", "50060e801049cfd1-lun-0"),
            ("iscsi/volumeDevices/iface-default/h:3260-iqn.x-lun-0", "iscsi", "iface-default/h:3260-iqn.x-lun-0"),
        ] {
            let path = format!("plugins/kubernetes.io/{path}");
            let found = global_path(&path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!((found.plugin.as_str(), found.rest), (&*format!("kubernetes.io/{plugin}"), rest), "{path}");
            assert_eq!(found.mode, VolumeMode::Block, "{path}");
            assert_eq!(map_file(&path), None, "{path}");
            let file = format!("{path}/9c1914c1");
            assert_eq!(map_file(&file), Some((found, "9c1914c1")), "{file}");
        }
        // Those of these two name the `PersistentVolume`.
        for path in ["kubernetes.io/csi/volumeDevices/pv/dev/u", "kubernetes.io~local-volume/volumeDevices/pv/u"] {
            assert_eq!(map_file(&format!("plugins/{path}")), None, "{path}");
        }
    }

    #[test]
    fn other_paths_are_no_devices() {
        for path in [
            "plugins",
            "plugins/x",
            "plugins/kubernetes.io",
            "plugins/kubernetes.io/gce-pd/mounts",
            "plugins/kubernetes.io/gce-pd/mounts/",
            "plugins/kubernetes.io/gce-pd/mounts/pd/inside",
            "plugins/kubernetes.io/csi/volumeDevices/x/globalmount",
            "plugins/kubernetes.io/csi/d/0a/globalmount/inside",
            "plugins/kubernetes.io/fc/volumeDevices",
            "plugins/kubernetes.io/fc/volumeDevices/a/u",
            "plugins/kubernetes.io/iscsi/volumeDevices/x",
            "plugins/kubernetes.io/iscsi/volumeDevices/iface-x",
            "plugins/kubernetes.io/aws-ebs/volumeDevices/aws:/eu-1a",
            "plugins/kubernetes.io/csi/volumeDevices/pv",
            "plugins/kubernetes.io/csi/volumeDevices/publish/pv",
            "plugins/kubernetes.io/flexvolume/a/b/c/mounts/v",
            "pods/u/volumes",
        ] {
            assert_eq!(global_path(path), None, "{path}");
        }
    }
}
