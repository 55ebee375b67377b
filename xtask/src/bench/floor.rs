//! The floor of a reconstruction: the same reads, plainly, on one thread, with nothing concluded.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Reads and parses the mount table once, lists the pods' folders once, reads each record file once.
pub(super) fn run(root: &Path, state: Option<&Path>) -> Result<Value> {
    let text = std::fs::read("/proc/self/mountinfo").context("cannot read mountinfo")?;
    let mounts: Vec<Vec<&[u8]>> =
        text.split(|&b| b == b'\n').filter(|l| !l.is_empty()).map(|l| l.split(|&b| b == b' ').collect()).collect();
    let mut volumes = Vec::new();
    for pod in list(&root.join("pods"))? {
        for (name, is_dir) in list(&pod.0)? {
            let last = name.file_name();
            if !is_dir || last == Some(OsStr::new("containers")) {
                continue;
            }
            let deep = last == Some(OsStr::new("volume-subpaths")) || last == Some(OsStr::new("plugins"));
            for (plugin, _) in list(&name)? {
                for (volume, _) in list(&plugin)? {
                    if deep {
                        volumes.extend(list(&volume)?.into_iter().map(|(path, _)| path));
                    } else {
                        volumes.push(volume);
                    }
                }
            }
        }
    }
    let mut records = Vec::new();
    if let Some(state) = state {
        for (folder, is_dir) in list(state)? {
            if is_dir {
                for (file, _) in list(&folder)? {
                    records.push(std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
                }
            }
        }
    }
    Ok(json!({ "mounts": mounts.len(), "volumes": volumes.len(), "records": records.len() }))
}

fn list(folder: &Path) -> Result<Vec<(std::path::PathBuf, bool)>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    entries.map(|e| e.and_then(|e| Ok((e.path(), e.file_type()?.is_dir())))).map(|e| Ok(e?)).collect()
}
