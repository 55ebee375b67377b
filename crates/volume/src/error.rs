//! What can be wrong with a volume, for programs (`code`) and people (`message`, `hint`).

use refloat_mount::{MountError, PathError, RemoveError, UnmountError};
use serde::Serialize;

/// Something that needs attention. Printed by `scan`, `explain`, `doctor` and the logs alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// A stable word in CamelCase, for scripts. See `docs/problems.md`.
    pub code: &'static str,
    /// What is the matter: what was being done, to which volume of which pod, at which path, what the system said.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

impl Problem {
    /// Makes a problem.
    pub fn new(code: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: hint.into() }
    }
}

/// Why a volume spec cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No plugin knows this type of volume.
    #[error("volume {volume:?} has the type {type_name:?}, which this node has no plugin for")]
    UnknownType {
        /// The pod's name for the volume.
        volume: String,
        /// The type's field name (`nfs`), or "none".
        type_name: String,
    },
    /// A field is missing or has a value that cannot be used.
    #[error("volume {volume:?}: {field} {why}")]
    Field {
        /// The pod's name for the volume, or the `PersistentVolume`'s.
        volume: String,
        /// The field's path.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// A name is none.
    #[error("volume {volume:?}: {source}")]
    Name {
        /// The pod's name for the volume.
        volume: String,
        /// What is wrong.
        source: refloat_record::NameError,
    },
}

/// Why an operation on a volume failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The record could not be written, so nothing was started.
    #[error("the record could not be written, so nothing was started")]
    Record(#[source] refloat_record::WriteError),
    /// A path could not be used.
    #[error("cannot use a path of the volume")]
    Path(#[source] PathError),
    /// A mount could not be made.
    #[error("cannot mount")]
    Mount(#[source] MountError),
    /// A mount could not be undone.
    #[error("cannot unmount")]
    Unmount(#[source] UnmountError),
    /// Something could not be removed.
    #[error("cannot remove")]
    Remove(#[source] RemoveError),
    /// The mount table could not be read.
    #[error("cannot read the mount table")]
    Table(#[source] refloat_mount::TableError),
    /// A tool failed.
    #[error("a tool failed")]
    Tool(#[source] crate::ToolError),
    /// The system said no.
    #[error("cannot {doing} {}", .path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which path.
        path: std::path::PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The world is not as this volume needs it; a person has to look. Carries a stable code and a hint.
    #[error("{}", .0.message)]
    Refused(Problem),
}

impl VolumeError {
    /// What to show a person.
    pub fn problem(&self) -> Problem {
        todo!()
    }
}
