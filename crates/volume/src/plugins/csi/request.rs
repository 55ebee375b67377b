//! What a driver is asked with: access modes, capabilities, paths.

use refloat_csi::{Access, AccessMode, NodeCapabilities, VolumeCapability};
use refloat_record::{FsGroup, RelPath, VolumeMode};

use super::inputs::{DriverInputs, FsGroupPolicy};
use super::source::Source;
use crate::{Host, Problem, SpecError, VolumeError, VolumeSpec};

/// The access modes of the spec. An inline volume is one pod's.
fn access_modes(spec: &VolumeSpec) -> Vec<&str> {
    let Some(volume) = spec.persistent_volume() else { return vec!["ReadWriteOnce"] };
    let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
    modes.unwrap_or_default().iter().map(String::as_str).collect()
}

/// # Source
/// `asCSIAccessModeV1` and `asSingleNodeMultiWriterCapableCSIAccessModeV1` of the kubelet's CSI client; the first mode
/// counts, and none is `ReadWriteOnce`.
fn access_mode(modes: &[&str], capabilities: NodeCapabilities) -> AccessMode {
    let multi_writer = capabilities.single_node_multi_writer;
    match modes.first().copied().unwrap_or("ReadWriteOnce") {
        "ReadWriteOnce" if multi_writer => AccessMode::SingleNodeMultiWriter,
        "ReadWriteOncePod" if multi_writer => AccessMode::SingleNodeSingleWriter,
        "ReadWriteOnce" | "ReadWriteOncePod" => AccessMode::SingleNodeWriter,
        "ReadOnlyMany" => AccessMode::MultiNodeReaderOnly,
        "ReadWriteMany" => AccessMode::MultiNodeMultiWriter,
        _ => AccessMode::Unknown,
    }
}

/// The capability that stage, publish and expand are asked with.
pub(super) fn capability(
    spec: &VolumeSpec,
    source: Source<'_>,
    capabilities: NodeCapabilities,
    fs_group: Option<FsGroup>,
    selinux_label: Option<&str>,
) -> VolumeCapability {
    let mode = access_mode(&access_modes(spec), capabilities);
    let access = match spec.mode {
        VolumeMode::Block => Access::Block,
        VolumeMode::Filesystem => {
            let mut mount_flags = spec.mount_options.clone();
            // The quotes keep the label's commas from being taken for the end of an option.
            mount_flags.extend(selinux_label.map(|label| format!("context=\"{label}\"")));
            let group = fs_group.filter(|_| capabilities.mount_group);
            Access::Mount {
                fs_type: source.fs_type().to_owned(),
                mount_flags,
                volume_mount_group: group.map(|group| group.gid.to_string()).unwrap_or_default(),
            }
        }
    };
    VolumeCapability { access, mode }
}

/// The group that Refloat itself gives the files to, after the driver has published them.
///
/// # Source
/// `supportsFSGroup` of `pkg/volume/csi/csi_mounter.go`.
pub(super) fn own_fs_group(
    spec: &VolumeSpec,
    source: Source<'_>,
    capabilities: NodeCapabilities,
    inputs: &DriverInputs,
    fs_group: Option<FsGroup>,
) -> Option<FsGroup> {
    let group = fs_group.filter(|_| !capabilities.mount_group && !spec.read_only)?;
    let for_one_node = || access_modes(spec).iter().any(|mode| matches!(*mode, "ReadWriteOnce" | "ReadWriteOncePod"));
    let wanted = match inputs.fs_group_policy {
        FsGroupPolicy::None => false,
        FsGroupPolicy::File => true,
        FsGroupPolicy::ReadWriteOnceWithFsType => !source.fs_type().is_empty() && for_one_node(),
    };
    wanted.then_some(group)
}

/// The label to mount with, if this kernel has labels.
pub(super) fn selinux_label(inputs: &DriverInputs) -> Option<&str> {
    // `is_selinux_enabled(3)`: its file system is there.
    inputs.selinux_label.as_deref().filter(|_| std::fs::File::open("/sys/fs/selinux/enforce").is_ok())
}

/// A path as the driver is to see it: below the root as it was given, since a driver's container has the kubelet's root at
/// that name, wherever a symlink leads on the host.
pub(super) fn path_for_driver(host: &Host, path: &RelPath) -> Result<String, VolumeError> {
    let root = std::path::absolute(host.root.given_path()).unwrap_or_else(|_| host.root.path().to_path_buf());
    path.below(&root).into_os_string().into_string().map_err(|path| {
        VolumeError::Refused(Problem::new(
            "PathNotText",
            format!("the path {} is no text, and a CSI driver can only be told texts", path.display()),
            "Use a node root whose path is UTF-8.",
        ))
    })
}

pub(super) fn spec_refused(error: &SpecError) -> VolumeError {
    VolumeError::Refused(Problem::new("BadSpec", error.to_string(), "Correct the volume's spec."))
}
