//! The kubelet's own file in a volume's global folder: it is written before the mount, which hides it.
//!
//! # Source
//! `persistISCSI` of `pkg/volume/iscsi`.

use std::path::Path;

use refloat_record::RelPath;

use super::target::{Portal, Target};
use crate::foreign::{self, ForeignForm};
use crate::{Host, VolumeError};

/// What it is called.
pub(super) const NAME: &str = "iscsi.json";

/// What the file says of this target, if it is there and about it: the kubelet has logged in to that.
pub(super) fn look(host: &Host, folder: &RelPath, target: &Target) -> Result<Option<Target>, VolumeError> {
    let Some(dir) = host.root.open_dir(folder.as_path()).map_err(VolumeError::Path)? else { return Ok(None) };
    let path = folder.as_path().join(NAME);
    let Some(record) = foreign::look_for(dir, Path::new(NAME), path, ForeignForm::Iscsi) else { return Ok(None) };
    let Ok(says) = record.says else { return Ok(None) };
    let text = |field: &str| says.fields.get(field).and_then(|value| value.as_str());
    let more = says.fields.get("portals").and_then(|value| value.as_array()).into_iter().flatten();
    let all = text("targetPortal").into_iter().chain(more.filter_map(|value| value.as_str()));
    let portals: Vec<Portal> = all.filter_map(Portal::parse).collect();
    let is_about = text("iqn") == Some(&target.iqn)
        && portals.first().is_some_and(|first| first.is(&target.portals[0]))
        && says.fields.get("lun").is_none_or(|lun| lun.as_i64() == Some(target.lun.into()));
    Ok(is_about.then(|| Target { portals, ..target.clone() }))
}

/// Takes it away. The caller has looked.
pub(super) fn remove(host: &Host, folder: &RelPath) -> Result<(), VolumeError> {
    host.root.remove_file(&folder.as_path().join(NAME)).map_err(VolumeError::Remove)
}
