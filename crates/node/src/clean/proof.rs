//! What is still mounted, attached or staged under a node root: the proof that it was released.

use std::path::PathBuf;

use refloat_mount::MountTable;
use refloat_volume::{Host, layout};

use crate::{Actual, RecordState};

/// Something that is left.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Left {
    /// `Mount`, `LoopDevice`, `StagedVolume` or `Attachment`.
    pub kind: &'static str,
    /// Where it is, or the device.
    pub path: PathBuf,
    /// What it is.
    pub what: String,
}

/// Every mount below the root, every loop device with a backing file below it, and every device that is or may be staged.
/// The root itself may be a mount: it stays.
pub fn what_is_left(host: &Host, table: &MountTable, actual: &Actual) -> Vec<Left> {
    let root = host.root.path();
    let mut left: Vec<Left> = table
        .under(root)
        .map(|m| Left { kind: "Mount", path: m.point().to_path_buf(), what: format!("{} {}", m.fs_type(), m.source()) })
        .collect();
    for device in &actual.devices {
        // A driver that was not asked to unstage it may hold it without a mount: a record or a kubelet's file says so for as
        // long as it is there, whatever boot it is of.
        let may_be_held = device.plugin.as_str() == layout::CSI && device.record_state != RecordState::Missing;
        // One that is mounted is among the mounts.
        if device.mount.is_none() && (may_be_held || device.state != crate::VolumeState::NotMounted) {
            let name = device.unique_name.as_ref().map_or_else(|| device.plugin.to_string(), ToString::to_string);
            left.push(Left { kind: "StagedVolume", path: device.path.clone(), what: name });
        }
    }
    match refloat_mount::loopdev::all() {
        Ok(loops) => {
            for one in loops.into_iter().filter(|one| one.backing.starts_with(root)) {
                let what = one.backing.display().to_string();
                left.push(Left { kind: "LoopDevice", path: one.path, what });
            }
        }
        Err(error) => left.push(Left {
            kind: "LoopDevice",
            path: "/sys/block".into(),
            what: format!("the loop devices cannot be listed: {error}"),
        }),
    }
    left.sort_unstable();
    left
}
