//! Whether the root that was opened is still what its path leads to.

use std::path::{Path, PathBuf};

use super::{NodeRoot, path_of};
use crate::kernel::short_mount_id;
use crate::{Mount, MountTable};

/// Where the opened root is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootPlace {
    /// At its path.
    Here,
    /// Its path leads into another mount, which lies over it or over a folder above.
    Covered {
        /// That mount, in words.
        by: String,
        /// Whether the same folder is seen there: the root, or a folder above it, was bound onto itself.
        same_folder: bool,
    },
    /// It was renamed, removed, or its mount was taken off.
    Moved {
        /// Where it is, as the kernel spells it.
        to: PathBuf,
    },
}

impl NodeRoot {
    /// Asks where the root is, by the table and without opening its path: what lies there now may not answer.
    pub fn place(&self, table: &MountTable) -> std::io::Result<RootPlace> {
        let now = path_of(&self.fd)?;
        let ours = table.by_short_id(short_mount_id(&self.fd)?);
        let Some(ours) = ours.filter(|_| now == self.path) else { return Ok(RootPlace::Moved { to: now }) };
        let Some(seen) = table.covering(&self.path) else { return Ok(RootPlace::Moved { to: now }) };
        if seen.short_id() == ours.short_id() {
            return Ok(RootPlace::Here);
        }
        let same_folder = seen.device() == ours.device() && self.inside(seen) == self.inside(ours);
        let by = format!("{} '{}' at {}", seen.fs_type(), seen.source(), seen.point().display());
        Ok(RootPlace::Covered { by, same_folder })
    }

    /// The root as a path inside the file system of a mount that it lies in.
    fn inside(&self, mount: Mount<'_>) -> Option<PathBuf> {
        let rest = self.path.strip_prefix(mount.point()).ok()?;
        Some(if rest == Path::new("") { mount.root().to_path_buf() } else { mount.root().join(rest) })
    }
}
