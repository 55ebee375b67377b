//! `UnmountLeftover`: what is mounted inside first, then each layer of the mount that was seen, then its empty folder.

use refloat_mount::{RemoveError, Standing};
use refloat_record::{RecordedMount, RelPath, SpecName};
use refloat_volume::{Problem, VolumeError, layout, sub_path, unmount_nested, unmount_own_layers};

use super::{Executor, Success};
use crate::reconstruct;

pub(super) fn run(
    executor: &Executor,
    path: &RelPath,
    expected: Option<&RecordedMount>,
    folder: bool,
) -> Result<Success, VolumeError> {
    let host = &executor.host;
    if path.as_path().starts_with(layout::PLUGINS) {
        // As for devices with a record: the kernel lets a bind of the device be.
        let users = reconstruct::references(&*executor.table()?, host.root.path(), &host.absolute(path));
        if let Some(user) = users.first() {
            return Err(VolumeError::Refused(Problem::new(
                "DeviceInUse",
                format!("the file system is mounted at {} too", user.display()),
                "It is unmounted when nothing else has it mounted.",
            )));
        }
    }
    unmount_nested(host, path)?;
    if let Some(expected) = expected {
        unmount_own_layers(host, path, Some(expected))?;
    }
    executor.check_unmounted(path)?;
    if let Some((pod, spec)) = sub_path_of(path) {
        sub_path::tear_down_of(host, &pod, &spec)?;
    } else if folder {
        let removed = match host.root.look(path.as_path()).map_err(VolumeError::Path)? {
            Standing::Dir => host.root.remove_dir(path.as_path()).map(drop),
            // What a file was mounted over.
            Standing::EmptyFile => host.root.remove_empty_file(path.as_path()),
            _ => Ok(()),
        };
        match removed {
            Ok(()) | Err(RemoveError::NotEmpty { .. }) => {}
            Err(error) => return Err(VolumeError::Remove(error)),
        }
    }
    Ok(Success::Done)
}

/// The pod and volume of a subPath's target.
fn sub_path_of(path: &RelPath) -> Option<(refloat_record::PodUid, SpecName)> {
    let parts: Vec<&str> = path.as_str().split('/').collect();
    match parts.as_slice() {
        [layout::PODS, pod, layout::VOLUME_SUBPATHS, spec, _, _] => {
            Some((refloat_record::PodUid::new(*pod).ok()?, SpecName::new(*spec).ok()?))
        }
        _ => None,
    }
}
