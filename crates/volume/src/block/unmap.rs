//! Undoing a block volume, object by object.

use std::path::{Path, PathBuf};

use refloat_mount::{Standing, UnmountError};
use refloat_record::RelPath;

use super::{bound, loops, no_link, path_taken, temporary_of};
use crate::tear_down::other_mount;
use crate::{Problem, TearDown, VolumeError, layout};

/// Undoes [`super::map()`]: the loop device, the bind mount, its file and the symlink, each on its own; what is not there
/// is done. Then the folders that this leaves empty.
///
/// `map_path` is where the layout has the bind mount, for a record that does not say.
///
/// # Safety of the node
/// Only a loop device with our mark is detached; without a record of ours also another one, if it is the only one over
/// the very node that is bound there (a kubelet made it). Only layers of the recorded mount are unmounted, without a
/// record only those of a block device; only an empty file and only a symlink are removed. Something else in the
/// symlink's place does not keep the device: it is reported at the end.
pub fn unmap(step: &TearDown<'_>, map_path: Option<&RelPath>) -> Result<(), VolumeError> {
    let (host, record) = (step.host, step.record);
    let link = record.path.as_ref().ok_or_else(no_link)?;
    if let Some(map_path) = record.block.as_ref().map(|block| &block.map_path).or(map_path) {
        let kept = release(step, map_path)?;
        unbind(step, map_path, &kept)?;
        host.root.remove_empty_file(map_path.as_path()).map_err(VolumeError::Remove)?;
        if let Some(folder) = map_path.as_path().parent() {
            host.root.remove_empty_dirs_up(folder, Path::new(layout::PLUGINS)).map_err(VolumeError::Remove)?;
        }
    }
    match host.root.look(link.as_path()).map_err(VolumeError::Path)? {
        Standing::Nothing => {}
        Standing::Symlink(_) => host.root.remove_symlink(link.as_path()).map_err(VolumeError::Remove)?,
        found => return Err(VolumeError::Refused(path_taken(&host.absolute(link), &found, "the volume's symlink"))),
    }
    let Some(folder) = link.as_path().parent() else { return Ok(()) };
    host.root.remove_symlink(&folder.join(temporary_of(link))).map_err(VolumeError::Remove)?;
    let pod = layout::pod_path(&record.pod.uid);
    host.root.remove_empty_dirs_up(folder, pod.as_path()).map_err(VolumeError::Remove)
}

/// Detaches our loop devices; answers those of others that stay.
fn release(step: &TearDown<'_>, map_path: &RelPath) -> Result<Vec<PathBuf>, VolumeError> {
    let found = loops::find(step.host, map_path)?;
    found.detach_ours()?;
    if !step.trusted {
        found.detach_only_other()?;
    }
    Ok(found.others)
}

/// Unmounts what the record says is bound at the map path. `kept` are loop devices of others, which hold it.
fn unbind(step: &TearDown<'_>, map_path: &RelPath, kept: &[PathBuf]) -> Result<(), VolumeError> {
    let (host, record) = (step.host, step.record);
    let absolute = host.absolute(map_path);
    let table = host.mount_table().map_err(VolumeError::Table)?;
    let Some(top) = table.at(&absolute) else { return Ok(()) };
    let recorded = record.block.as_ref().and_then(|block| block.mount.as_ref());
    let expected = host.announced_mount(recorded, &record.boot_id);
    if (step.trusted && expected.is_none()) || (!step.trusted && bound(host, map_path)?.is_none()) {
        return Err(VolumeError::Refused(other_mount(&absolute, top)));
    }
    match crate::unmount_own_layers(host, map_path, expected.as_ref()) {
        Err(VolumeError::Unmount(UnmountError::Busy { .. })) if !kept.is_empty() => {
            let names: Vec<String> = kept.iter().map(|device| device.display().to_string()).collect();
            Err(VolumeError::Refused(Problem::new(
                "LoopDeviceForeign",
                format!("{} is held by {}, which somebody else attached to it", absolute.display(), names.join(", ")),
                "detach it with `losetup -d` if nobody needs it; the rest is tried again",
            )))
        }
        answer => answer,
    }
}
