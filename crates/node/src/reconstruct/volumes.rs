//! One pod's use of one volume: brings together what record, folder and mount table say of it, and concludes.

mod find;
mod with_record;
mod without_record;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use refloat_mount::Mount;
use refloat_record::{PluginName, PodUid, VolumeMode};
use refloat_volume::{Plugin, Presence, Problem, layout};

use super::Context;
use super::notes::Notes;
use crate::{ActualVolume, ReconstructionResult, SubPathSeen, VolumeState};

pub(super) use find::{AllFound, Found, find, stale};

/// What was concluded on the way; becomes an [`ActualVolume`].
struct Conclusion {
    state: VolumeState,
    reason: Cow<'static, str>,
    ours: bool,
    conflict: Option<String>,
    reconstruction: ReconstructionResult,
    evidence: Notes,
    problems: Vec<Problem>,
    stray_files: bool,
    /// Whether another program has a file about it that can be used.
    kept: bool,
}

/// Concludes what one volume is.
pub(super) fn conclude(context: &Context<'_>, found: &Found<'_>) -> ActualVolume {
    match found.record {
        Some(record) => with_record::conclude(context, found, record),
        None => without_record::conclude(context, found),
    }
}

/// Volume and pod, as a person names them.
struct Who<'a> {
    pod: &'a PodUid,
    pod_name: Option<&'a (String, String)>,
    name: &'a str,
}

impl std::fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pod, pod_name, name } = self;
        match pod_name {
            Some((namespace, pod_name)) => write!(f, "volume {name:?} of pod {namespace}/{pod_name} ({pod})"),
            None => write!(f, "volume {name:?} of pod {pod}"),
        }
    }
}

/// Why a block volume of a plugin without block volumes is left alone.
fn cannot_block(plugin: &PluginName) -> String {
    format!("it is a block volume, and this version's {plugin} cannot undo one")
}

fn unknown_plugin(who: &Who<'_>, plugin: &PluginName) -> Problem {
    Problem::new(
        "UnknownPlugin",
        format!("{who}: this program has no plugin {plugin}"),
        "Use a version that has it, or unmount the volume by hand.",
    )
}

impl Conclusion {
    /// Not understood: kept, shown, never acted on.
    fn fail(&mut self, why: String) {
        self.state = VolumeState::Unknown;
        self.reason = why.clone().into();
        self.reconstruction = ReconstructionResult::Failed;
        self.conflict = Some(why.clone());
        self.problems.push(Problem::new(
            "NotUnderstood",
            why,
            "Look at the record and the folder; correct or remove what is wrong.",
        ));
    }

    /// What stands where the folder should be, and what else is in it.
    fn look_at_folder(
        &mut self,
        who: &Who<'_>,
        found: &Found<'_>,
        plugin: Option<&dyn Plugin>,
        path: Option<PathBuf>,
        stack: &[Mount<'_>],
    ) {
        let shown = path.map_or_else(|| found.name.to_owned(), |p| p.display().to_string());
        if let Some(folder) = found.folder
            && !folder.is_dir
            && found.mode == VolumeMode::Filesystem
        {
            self.fail(format!("{who}: {shown} is no folder but a file, symlink or the like"));
            return;
        }
        // Of a CSI volume, only what its driver did not put there was looked for.
        let record_mounts = found.record.is_none_or(|r| r.mount.is_some() || found.plugin == layout::CSI_FOLDER);
        if record_mounts && stack.is_empty() && found.folder.is_some_and(|f| f.empty == Some(false)) {
            self.stray_files = true;
            let files = format!("{shown} holds files, and nothing is mounted there");
            // An emptyDir on the disk, a configMap and the like are such files. Without a record these may be just that.
            let is_content = plugin.is_some_and(|p| p.capabilities().presence == Presence::Marker);
            if found.record.is_some() || !is_content {
                self.problems.push(Problem::new(
                    "StrayFiles",
                    format!("{who}: {files}"),
                    "They are kept, and neither deleted nor hidden by a mount. Look at them, and move them away if they are of \
                     use to nobody.",
                ));
            }
            if found.record.is_some() && self.conflict.is_none() {
                self.conflict = Some(files);
            }
        }
        if stack.len() > 1 {
            self.problems.push(Problem::new(
                "StackedMount",
                format!("{who}: {} mounts lie over one another at {shown}", stack.len()),
                "TearDown takes off those of the volume's own origin one after another.",
            ));
        }
        if let Some(nested) = found.nested.first() {
            self.evidence
                .add(|| format!("mount table: {} mount(s) inside it, {} first", found.nested.len(), nested.display()));
            self.problems.push(Problem::new(
                "NestedMount",
                format!("{who}: something is mounted inside it, at {}", nested.display()),
                "It is unmounted before the volume is torn down; its data is not touched.",
            ));
        }
    }
}

fn unrecorded_sub_path(container: &str, index: u32, path: &Path) -> SubPathSeen {
    SubPathSeen {
        path: path.to_path_buf(),
        container: container.to_owned(),
        index: Some(index),
        sub_path: None,
        mounted: true,
        ours: false,
    }
}
