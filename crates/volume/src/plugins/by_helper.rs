//! Volumes that a mount helper of this machine (`mount.nfs`, `mount.glusterfs`) mounts in the pod's folder.
//!
//! The helper mounts where everybody sees it, so what the mount will be is recorded before it runs, as far as that is known, and
//! what it became, with its id, afterwards. A crash in between is made up for by what was known. The helper is killed at its
//! deadline with its children.

use std::ffi::OsStr;

use refloat_csi::Secrets;
use refloat_record::{RecordedMount, RelPath, Verbatim};

use super::known;
use crate::tear_down::{origin_of, other_mount};
use crate::{Problem, SetUp, ToolError, VolumeError, run_tool};

/// What is to be mounted, and by what.
pub(super) struct ByHelper<'a> {
    pub(super) helper: &'static str,
    /// As the helper is told it.
    pub(super) source: String,
    pub(super) options: &'a [String],
    /// The mount as far as it is known beforehand.
    pub(super) announced: RecordedMount,
    pub(super) provider_info: Verbatim,
}

impl ByHelper<'_> {
    /// SetUp. `before` is done when the record is durable, and before the helper runs.
    pub(super) fn set_up(
        self,
        step: &SetUp<'_>,
        before: impl FnOnce() -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let path = step.path.ok_or_else(known::no_folder)?;
        if step.mounted {
            // A crash may have left it with what was known beforehand.
            return match step.record.and_then(|record| record.mount.as_ref()) {
                Some(mount) if mount.id.is_none() => self.found(step, path),
                _ => step.announce(None, Some(self.provider_info)).map(drop),
            };
        }
        let table = step.host.mount_table().map_err(VolumeError::Table)?;
        let absolute = step.host.absolute(path);
        if let Some(top) = table.at(&absolute) {
            return Err(VolumeError::Refused(other_mount(&absolute, top)));
        }
        super::refuse_hidden_data(step.host, path)?;
        let announced = step.announce_found(self.announced.clone(), Some(self.provider_info.clone()))?;
        drop(announced.make_volume_dir(0o750)?);
        before()?;
        let options = self.options.join(",");
        let mut args = vec![OsStr::new(&self.source), absolute.as_os_str()];
        if !options.is_empty() {
            args.extend([OsStr::new("-o"), OsStr::new(&options)]);
        }
        let secrets = Secrets::of_options(self.options);
        let ran = run_tool(self.helper, &args, step.host.tool_deadline);
        // It may have repeated its options.
        ran.and_then(|output| output.success_without(self.helper, &secrets)).map_err(VolumeError::Tool)?;
        self.found(step, path)
    }

    /// Writes down what the helper made.
    fn found(self, step: &SetUp<'_>, path: &RelPath) -> Result<(), VolumeError> {
        let absolute = step.host.absolute(path);
        let table = step.host.mount_table().map_err(VolumeError::Table)?;
        let Some(top) = table.at(&absolute) else {
            return Err(VolumeError::Refused(Problem::new(
                "NotMountedAfterwards",
                format!(
                    "{} said that {} is mounted, and nothing is at {}",
                    self.helper,
                    self.source,
                    absolute.display()
                ),
                "Look for a setting that makes it mount in the background (nfsmount.conf), and for something that unmounts it. \
                 It is tried again.",
            )));
        };
        step.announce_found(origin_of(top), Some(self.provider_info)).map(drop)
    }
}

/// The error of a helper with more of what it wrote elsewhere.
pub(super) fn with_more(error: VolumeError, more: &str) -> VolumeError {
    match error {
        VolumeError::Tool(ToolError::Failed { program, code, stderr }) if !more.is_empty() => {
            VolumeError::Tool(ToolError::Failed { program, code, stderr: format!("{stderr}: {more}") })
        }
        other => other,
    }
}
