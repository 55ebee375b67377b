//! Global mount paths: which plugin's device a path below `plugins/` is, and what the plugin itself put into the path.
//!
//! # Source
//! `makeGlobalPDPath` and its like in `pkg/volume/<plugin>` of Kubernetes v1.36, and of the versions that still had the
//! plugins that are gone now.

use refloat_record::PluginName;

/// A global mount path, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalPath<'p> {
    /// The plugin whose device is mounted there.
    pub plugin: PluginName,
    /// What the plugin made of the volume: the rest of the path, below the folder of all its devices.
    pub rest: &'p str,
}

/// Takes a path relative to the node root apart; none if it is no device's.
pub fn global_path(rel: &str) -> Option<GlobalPath<'_>> {
    let below = rel.strip_prefix("plugins/")?;
    if below.split('/').any(str::is_empty) {
        return None;
    }
    let (plugin, rest) = match below.split_once('/') {
        None => (below == "kubernetes.io~quobyte").then_some(("kubernetes.io/quobyte".into(), ""))?,
        Some(("kubernetes.io~storageos", rest)) => {
            ("kubernetes.io/storageos".into(), one(rest.strip_prefix("mounts/")?)?)
        }
        Some(("kubernetes.io", rest)) => in_tree(rest)?,
        Some(_) => return None,
    };
    Some(GlobalPath { plugin: PluginName::new(plugin).ok()?, rest })
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
        "fc" => one(rest).filter(|name| *name != super::VOLUME_DEVICES)?,
        // The oldest place is `rbd/rbd`.
        "rbd" => one(rest.strip_prefix("mounts/").or_else(|| rest.strip_prefix("rbd/"))?)?,
        // Their names are paths.
        "aws-ebs" | "vsphere-volume" => rest.strip_prefix("mounts/")?,
        _ => one(rest.strip_prefix("mounts/")?)?,
    };
    Some((format!("kubernetes.io/{folder}"), rest))
}

/// `<driver>/<hash>/globalmount`, `pv/<pv>/globalmount` of old kubelets, or `volumeDevices/staging/<pv>`.
fn csi(rest: &str) -> Option<&str> {
    if let Some(name) = rest.strip_prefix("volumeDevices/staging/") {
        return one(name).map(|_| rest);
    }
    let (above, last) = rest.rsplit_once('/')?;
    let (driver, name) = above.split_once('/')?;
    one(name)?;
    (last == "globalmount" && driver != super::VOLUME_DEVICES).then_some(above)
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
            "plugins/kubernetes.io/fc/volumeDevices/a",
            "plugins/kubernetes.io/iscsi/volumeDevices/x",
            "plugins/kubernetes.io/flexvolume/a/b/c/mounts/v",
            "pods/u/volumes",
        ] {
            assert_eq!(global_path(path), None, "{path}");
        }
    }
}
