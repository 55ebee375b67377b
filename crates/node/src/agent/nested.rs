//! Mounts inside emptyDirs: the kubelet deletes their content with the volume's, since its recursive removal crosses mounts.
//!
//! # Source
//! `teardownDefault` in `pkg/volume/emptydir/empty_dir.go`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use refloat_mount::MountTable;

use crate::Actual;

const EMPTY_DIR: &str = "kubernetes.io/empty-dir";

/// What was told of them.
#[derive(Debug, Default)]
pub(super) struct Nested {
    known: BTreeMap<PathBuf, String>,
}

impl Nested {
    /// What to tell: of each mount once when it has appeared, and once when it has gone.
    pub(super) fn changes(&mut self, fresh: &Actual, table: &MountTable) -> Vec<String> {
        let mut now = BTreeMap::new();
        for volume in fresh.volumes.iter().filter(|v| v.key.plugin.as_str() == EMPTY_DIR) {
            let Some(path) = &volume.path else { continue };
            for mount in table.under(path) {
                let what = format!("{} of pod {}", volume.key.spec_name, volume.key.pod);
                now.insert(mount.point().to_path_buf(), what);
            }
        }
        let mut lines = vec![];
        for (path, what) in now.iter().filter(|(path, _)| !self.known.contains_key(*path)) {
            lines.push(format!(
                "{} is mounted inside the emptyDir {what}: when that pod goes, the kubelet deletes what lies in this mount; \
                 unmount it before",
                path.display()
            ));
        }
        for (path, what) in self.known.iter().filter(|(path, _)| !now.contains_key(*path)) {
            lines.push(format!("{} is not mounted inside the emptyDir {what} any more", path.display()));
        }
        self.known = now;
        lines
    }
}
