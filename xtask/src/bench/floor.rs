//! The floor of a reconstruction: the same reads, plainly, on one thread, with nothing concluded.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The kubelet's file about a CSI volume.
const VOL_DATA: &str = "vol_data.json";

/// Reads and parses the mount table once, lists the pods' folders once, reads each record file once; without
/// records, each of the kubelet's files about CSI volumes.
pub(super) fn run(root: &Path, state: Option<&Path>) -> Result<Value> {
    let text = std::fs::read("/proc/self/mountinfo").context("cannot read mountinfo")?;
    let mounts: Vec<Vec<&[u8]>> =
        text.split(|&b| b == b'\n').filter(|l| !l.is_empty()).map(|l| l.split(|&b| b == b' ').collect()).collect();
    let (mut volumes, mut foreign) = (Vec::new(), Vec::new());
    for pod in list(&root.join("pods"))? {
        for (name, is_dir) in list(&pod.0)? {
            let last = name.file_name();
            if !is_dir || last == Some(OsStr::new("containers")) {
                continue;
            }
            let csi = |plugin: &Path| plugin.file_name() == Some(OsStr::new("kubernetes.io~csi"));
            let deep = last == Some(OsStr::new("volume-subpaths")) || last == Some(OsStr::new("plugins"));
            for (plugin, _) in list(&name)? {
                for (volume, _) in list(&plugin)? {
                    if state.is_none() && csi(&plugin) {
                        foreign.push(read(&volume.join(VOL_DATA))?);
                    }
                    if deep {
                        volumes.extend(list(&volume)?.into_iter().map(|(path, _)| path));
                    } else {
                        volumes.push(volume);
                    }
                }
            }
        }
    }
    let drivers = root.join("plugins/kubernetes.io/csi");
    if std::fs::metadata(&drivers).is_ok() {
        for (driver, _) in list(&drivers)? {
            for (stage, _) in list(&driver)? {
                volumes.extend(list(&stage)?.into_iter().map(|(path, _)| path));
                if state.is_none() {
                    foreign.push(read(&stage.join(VOL_DATA))?);
                }
            }
        }
    }
    let mut records = Vec::new();
    if let Some(state) = state {
        for (folder, is_dir) in list(state)? {
            if is_dir {
                for (file, _) in list(&folder)? {
                    records.push(read(&file)?);
                }
            }
        }
    }
    Ok(json!({ "mounts": mounts.len(), "volumes": volumes.len(), "records": records.len(), "foreign": foreign.len() }))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

fn list(folder: &Path) -> Result<Vec<(std::path::PathBuf, bool)>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    entries.map(|e| e.and_then(|e| Ok((e.path(), e.file_type()?.is_dir())))).map(|e| Ok(e?)).collect()
}
