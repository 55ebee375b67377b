//! The one question that safety hangs on: may this be unmounted?
//!
//! The answer is as good as the evidence: it says what records, mount table and the sources of pods said when they were
//! last read. A process may take a mount into use right afterwards; the kernel then answers that it is busy, and
//! whoever executes the unmount looks into the table once more right before.

use std::collections::{HashMap, HashSet};

use refloat_record::{PodUid, RelPath, UniqueVolumeName};

use super::changed::device_changed;
use crate::{Actual, ActualDevice, ActualVolume, Desired, DesiredVolume, ReconstructionResult, Wanted};

/// Why something may not be unmounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Held {
    /// A pod wants it.
    #[error("wanted by {by}")]
    Wanted {
        /// Who says so.
        by: String,
    },
    /// Nobody can tell whether a pod wants it.
    #[error("not known whether it is wanted: {why}")]
    Unknown {
        /// Why.
        why: String,
    },
    /// The evidence contradicts itself.
    #[error("{why}")]
    Conflict {
        /// What contradicts what.
        why: String,
    },
    /// It was not understood.
    #[error("it is not understood, so nothing is done to it")]
    NotUnderstood,
    /// Files that nobody's record knows are in it.
    #[error("it holds files that no record knows; they are kept")]
    StrayFiles,
    /// Pods use it.
    #[error("used by pod {}", .pods.iter().map(PodUid::as_str).collect::<Vec<_>>().join(", "))]
    Used {
        /// Which.
        pods: Vec<PodUid>,
    },
    /// Somebody else has the same file system mounted.
    #[error("the same file system is also mounted at {}", .at.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "))]
    OtherReferences {
        /// Where.
        at: Vec<std::path::PathBuf>,
    },
}

impl Held {
    /// Whether something is wrong (hands off), or it is simply in use.
    pub fn is_hands_off(&self) -> bool {
        match self {
            Self::Wanted { .. } | Self::Unknown { .. } | Self::Used { .. } => false,
            Self::Conflict { .. } | Self::NotUnderstood | Self::StrayFiles | Self::OtherReferences { .. } => true,
        }
    }
}

/// Answers whether volumes, devices and what is left of pods may be unmounted.
#[derive(Debug)]
pub struct MayUnmount<'a> {
    desired: &'a Desired,
    /// Devices that wanted volumes are to have, by name and by path.
    names: HashSet<&'a UniqueVolumeName>,
    paths: HashSet<&'a RelPath>,
    /// Devices that volumes on the node have, by name and by path.
    used_names: HashSet<&'a UniqueVolumeName>,
    used_paths: HashSet<&'a RelPath>,
    /// Pods that have a volume on the node.
    pods: HashSet<&'a PodUid>,
    /// A wanted pod with a volume that could be any, with the reason.
    unresolved: Option<String>,
}

impl<'a> MayUnmount<'a> {
    /// For this state of the world.
    pub fn new(desired: &'a Desired, actual: &'a Actual) -> Self {
        let devices: HashMap<_, _> = actual.devices.iter().filter_map(|d| Some((d.unique_name.as_ref()?, d))).collect();
        // A pod that came after the device's spec changed wants another device than the one that is mounted.
        let other = |v: &DesiredVolume| devices.get(&v.unique_name).is_some_and(|d| device_changed(v, d).is_some());
        let wanted = || desired.pods.values().flat_map(|pod| &pod.volumes).filter(|v| !other(v));
        let unresolved = desired.pods.values().find_map(|pod| {
            let waiting = pod.waiting.iter().find(|w| w.key.is_none())?;
            Some(format!(
                "volume {:?} of pod {}/{} could not be resolved and might be on it",
                waiting.outer_name, pod.pod.namespace, pod.pod.name
            ))
        });
        Self {
            desired,
            names: wanted().map(|v| &v.unique_name).collect(),
            paths: wanted().filter_map(|v| v.device_mount_path.as_ref()).collect(),
            used_names: actual.volumes.iter().filter_map(|v| v.unique_name.as_ref()).collect(),
            used_paths: actual.volumes.iter().filter_map(|v| v.record.as_ref()?.device_mount_path.as_ref()).collect(),
            pods: actual.volumes.iter().map(|v| &v.key.pod).collect(),
            unresolved,
        }
    }

    /// Whether a pod's volume may be torn down.
    pub fn volume(&self, volume: &ActualVolume) -> Result<(), Held> {
        not_wanted(self.desired.wanted_volume(&volume.key))?;
        if volume.reconstruction == ReconstructionResult::Failed || volume.record.is_none() {
            return Err(Held::NotUnderstood);
        }
        if let Some(why) = &volume.conflict {
            return Err(Held::Conflict { why: why.clone() });
        }
        if volume.stray_files {
            return Err(Held::StrayFiles);
        }
        Ok(())
    }

    /// Whether a device may be unmounted: no pod uses it, wants it, or might want it.
    pub fn device(&self, device: &ActualDevice) -> Result<(), Held> {
        let Some(record) = &device.record else { return Err(Held::NotUnderstood) };
        if let Some(why) = &device.conflict {
            return Err(Held::Conflict { why: why.clone() });
        }
        let path = &record.device_mount_path;
        if self.names.contains(&record.unique_name) || self.paths.contains(path) {
            return Err(Held::Wanted { by: self.desired.source.clone() });
        }
        if let Some(why) = self.desired.unread().or_else(|| self.unresolved.clone()) {
            return Err(Held::Unknown { why });
        }
        if let Some(others) = self.desired.others.as_ref() {
            // Who runs these pods may have mounted it for one that has no volume yet.
            if let Some(why) = others.might_want_a_device() {
                return Err(Held::Unknown { why });
            }
        }
        let waiting = self.desired.pods.values().flat_map(|p| &p.waiting);
        for waiting in waiting {
            let might_be = match (&waiting.unique_name, &waiting.key) {
                (Some(name), _) => *name == record.unique_name,
                // One that has no unique name yet, of the same plugin, may be on this device.
                (None, Some(key)) => key.plugin == device.plugin,
                (None, None) => false,
            };
            if might_be {
                return Err(Held::Unknown { why: format!("volume {:?} waits and might be on it", waiting.outer_name) });
            }
        }
        if !device.users.is_empty() {
            return Err(Held::Used { pods: device.users.clone() });
        }
        if self.used_names.contains(&record.unique_name) || self.used_paths.contains(path) {
            return Err(Held::Used { pods: vec![] });
        }
        if !device.other_references.is_empty() {
            return Err(Held::OtherReferences { at: device.other_references.clone() });
        }
        Ok(())
    }

    /// Whether what is left of a pod may be removed: it is surely gone, and has no volume any more.
    pub fn pod(&self, pod: &PodUid) -> Result<(), Held> {
        not_wanted(self.desired.wanted(pod))?;
        if self.pods.contains(pod) {
            return Err(Held::Used { pods: vec![pod.clone()] });
        }
        Ok(())
    }
}

fn not_wanted(wanted: Wanted) -> Result<(), Held> {
    match wanted {
        Wanted::No { .. } => Ok(()),
        Wanted::Yes { by } => Err(Held::Wanted { by }),
        Wanted::Unknown { why } => Err(Held::Unknown { why }),
    }
}
