//! What can be wrong with a volume, for programs (`code`) and people (`message`, `hint`).

use std::error::Error;
use std::fmt::Write;

use refloat_mount::{MountError, PathError, RemoveError, UnmountError};
use rustix::io::Errno;
use serde::Serialize;

/// Something that needs attention. Printed by `scan`, `explain`, `doctor` and the logs alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// A stable word in CamelCase, for scripts. See `docs/problems.md`.
    pub code: &'static str,
    /// What is the matter: what was being done, to which volume of which pod, at which path, what the system said.
    pub message: String,
    /// What to do about it, as a sentence.
    pub hint: String,
}

impl Problem {
    /// Makes a problem. The hint is shown as a sentence: with a capital and a full stop, wherever it was written.
    pub fn new(code: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: sentence(hint.into()) }
    }
}

fn sentence(mut text: String) -> String {
    if let Some(first) = text.chars().next().filter(|c| c.is_lowercase()) {
        text.replace_range(..first.len_utf8(), &first.to_uppercase().to_string());
    }
    if text.chars().last().is_some_and(|last| !['.', '!', '?'].contains(&last)) {
        text.push('.');
    }
    text
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
    /// The type is known, and its volumes are undone, but never set up.
    #[error("volume {volume:?} {why}")]
    NotSetUp {
        /// The pod's name for the volume.
        volume: String,
        /// Why, and what to use instead.
        why: String,
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
    /// Files of the volume could not be given to the pod's fsGroup; all others were.
    #[error("cannot give {failed} of the volume's files to the group {gid}, the first of them {}", .path.display())]
    FsGroup {
        /// The group.
        gid: u32,
        /// How many files.
        failed: usize,
        /// The first of them.
        path: std::path::PathBuf,
        /// What the system said to that one.
        #[source]
        source: std::io::Error,
    },
    /// A CSI driver could not be asked, or did not do it.
    #[error(transparent)]
    Driver(#[from] refloat_csi::CallError),
    /// A flexVolume driver could not be asked, or did not do it.
    #[error(transparent)]
    FlexDriver(#[from] crate::plugins::flex_volume::CallError),
    /// A provider outside this program could not be asked, or did not do it.
    #[error(transparent)]
    Provider(#[from] crate::provider::ProviderError),
    /// The world is not as this volume needs it; a person has to look. Carries a stable code and a hint.
    #[error("{}", .0.message)]
    Refused(Problem),
}

impl VolumeError {
    /// What to show a person: the whole chain of causes as one message, a code that is stable, and what to do.
    ///
    /// What the system said, where it says something that a person can act on (disk full, read-only, not permitted),
    /// decides the code before what was being done does.
    pub fn problem(&self) -> Problem {
        if let Self::Refused(problem) = self {
            return problem.clone();
        }
        let (code, hint) = self.system_says().unwrap_or_else(|| self.own_words());
        Problem::new(code, error_chain(self), hint)
    }

    /// Code and hint by what the system said.
    fn system_says(&self) -> Option<(&'static str, &'static str)> {
        // A tool that is not there, and the refusals of the mount crate, have better words of their own.
        if matches!(self, Self::Tool(_) | Self::FlexDriver(_) | Self::Provider(_)) {
            return None;
        }
        match system_error(self)? {
            Errno::NOSPC | Errno::DQUOT => Some((
                "DiskFull",
                "Free space or inodes on the file system that the path is on; the operation is retried.",
            )),
            Errno::ROFS => Some((
                "ReadOnlyFileSystem",
                "The file system that the path is on is read-only: look for errors of its device in the kernel log, \
                 repair it and remount it read-write.",
            )),
            Errno::ACCESS | Errno::PERM => Some((
                "NotPermitted",
                "Run as root with CAP_SYS_ADMIN, CAP_CHOWN and CAP_DAC_OVERRIDE; look for a security module (SELinux, \
                 AppArmor) or an immutable file (lsattr) that forbids it.",
            )),
            Errno::NODEV if matches!(self, Self::Mount(_)) => Some((
                "UnknownFileSystem",
                "The kernel does not know this file system type: load its module (modprobe) or install it.",
            )),
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => Some((
                "OutOfResources",
                "The process or the machine is out of open files or memory; raise the limit or free some. The \
                 operation is retried.",
            )),
            Errno::IO | Errno::NOTCONN | Errno::STALE | Errno::HOSTDOWN | Errno::TIMEDOUT => Some((
                "DeviceOrServerFailed",
                "The device, server or FUSE daemon behind the path does not answer as it should: look into the kernel \
                 log.",
            )),
            _ => None,
        }
    }

    /// Code and hint by what was being done.
    fn own_words(&self) -> (&'static str, &'static str) {
        match self {
            Self::Record(_) => (
                "RecordNotWritten",
                "Nothing is started without its record. Make the state folder writable; the operation is retried.",
            ),
            Self::Mount(error) => match Errno::from_io_error(&error.source) {
                Some(Errno::NOENT | Errno::NOTBLK | Errno::NXIO) => (
                    "MountSourceMissing",
                    "What is to be mounted is not there: check the device or path of the volume.",
                ),
                Some(Errno::BUSY) => (
                    "MountBusy",
                    "The device or the mount point is in use by another mount: look for it with `findmnt`.",
                ),
                Some(Errno::INVAL) => (
                    "MountRefused",
                    "The kernel refuses this mount: check file system type and mount options, and whether the device \
                     has that file system.",
                ),
                _ => ("MountFailed", "Look into the kernel log for what the mount call met."),
            },
            Self::Unmount(UnmountError::Busy { .. }) => (
                "UnmountBusy",
                "Something still uses the mount: `fuser -vm PATH` or `lsof +f -- PATH` tell what. It is retried.",
            ),
            Self::Unmount(UnmountError::Hangs(_)) => (
                "UnmountHangs",
                "Look at the server, device or FUSE daemon behind it. It goes on by itself when that answers, and nothing \
                 else waits for it.",
            ),
            Self::Unmount(UnmountError::OtherMount { .. }) => (
                "OtherMount",
                "Somebody else mounted there. Neither that mount nor what lies under it is touched: unmount it by hand \
                 if it is not needed.",
            ),
            Self::Unmount(UnmountError::StillMounted { .. }) => (
                "StillMounted",
                "The unmount was answered with success but did not happen; it is retried. Look for something that mounts \
                 it again.",
            ),
            Self::Path(error) | Self::Unmount(UnmountError::Path(error)) | Self::Remove(RemoveError::Path(error)) => {
                path_words(error)
            }
            Self::Unmount(UnmountError::Table(_)) | Self::Table(_) => {
                ("MountTableUnreadable", "Check that /proc is mounted; nothing is unmounted without the table.")
            }
            Self::Unmount(_) => ("UnmountFailed", "Look into the kernel log; it is retried."),
            Self::Remove(RemoveError::Mounts { .. }) => (
                "MountsInside",
                "Nothing is deleted through a mount. Unmount what is mounted inside; it is then removed.",
            ),
            Self::Remove(RemoveError::NotEmpty { .. }) => (
                "DataKept",
                "The folder has files that this program did not write, so they are kept: save or delete them, then remove \
                 the folder.",
            ),
            Self::Remove(RemoveError::Unexpected { .. }) => (
                "PathTaken",
                "Something else stands where this program's own file belongs, and is not touched. Look what it is, and move \
                 it away.",
            ),
            Self::Remove(_) => ("RemoveFailed", "Look at the path's owner, attributes and file system."),
            // The latter if a folder of the PATH cannot be looked into.
            Self::Tool(crate::ToolError::Start { source, .. })
                if matches!(source.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied) =>
            {
                ("ToolMissing", "Install the tool, or put it into the PATH of this program.")
            }
            Self::Tool(crate::ToolError::Deadline { .. }) => {
                ("ToolTimeout", "The tool was killed. Look for a device or server that does not answer; it is retried.")
            }
            Self::Tool(_) => ("ToolFailed", "Run the tool by hand with the same arguments to see what it meets."),
            // chown(2): the id has no place in this user namespace.
            Self::FsGroup { source, .. } | Self::Io { doing: "give the pod's fsGroup the folder", source, .. }
                if Errno::from_io_error(source) == Some(Errno::INVAL) =>
            {
                ("GroupNotMapped", GROUP_NOT_MAPPED)
            }
            Self::FsGroup { .. } => (
                "FsGroupFailed",
                "The other files have the group. Check that the file system can change owners; it is retried.",
            ),
            Self::Io { source, .. } => match Errno::from_io_error(source) {
                Some(Errno::NOENT) => (
                    "PathMissing",
                    "Something that the volume needs is not there, or was removed meanwhile. It is retried.",
                ),
                Some(Errno::LOOP) => (
                    "PathHasSymlink",
                    "A symlink stands where none is followed. Find out who put it there, and remove it.",
                ),
                Some(Errno::XDEV) => (
                    "PathHasMount",
                    "A mount point is on the way and is not crossed. Unmount it if it does not belong there.",
                ),
                _ => ("SystemError", "Look at the path named in the message and into the kernel log. It is retried."),
            },
            Self::Driver(error) => driver_words(error),
            Self::FlexDriver(error) => error.words(),
            Self::Provider(error) => error.words(),
            Self::Refused(_) => ("Refused", "See the message."),
        }
    }
}

/// Code and hint for what a driver did, or did not.
fn driver_words(error: &refloat_csi::CallError) -> (&'static str, &'static str) {
    use refloat_csi::{CallErrorKind, Outcome};
    match (&error.kind, error.outcome) {
        (CallErrorKind::NotRegistered | CallErrorKind::NotConnected { .. }, _) => (
            "DriverMissing",
            "Look whether the driver's pod runs on this node. The volume is kept as it is, and it goes on as soon as the \
             driver is back.",
        ),
        (CallErrorKind::OtherDriver { .. }, _) => (
            "OtherDriver",
            "The driver was renamed, or another one took its socket. Run a driver of the recorded name on this node: only \
             it knows the volume.",
        ),
        (CallErrorKind::Deadline(_), _) => (
            "DriverTimeout",
            "The driver may still be at it. Look into its log; it is asked again, with growing pauses. Other drivers' \
             volumes do not wait for it.",
        ),
        (_, Outcome::Final) => {
            ("DriverRefused", "Look into the driver's log for why; it is asked again, with growing pauses.")
        }
        _ => (
            "DriverFailed",
            "The driver may have done a part of it, so the volume is uncertain until the driver has answered again; it is \
             asked with growing pauses. Look into its log.",
        ),
    }
}

const GROUP_NOT_MAPPED: &str = "This process runs in a user namespace that does not have the pod's fsGroup. Run it as the \
                                machine's root, or use a group that the namespace maps.";

fn path_words(error: &PathError) -> (&'static str, &'static str) {
    match error {
        PathError::Escapes { .. } => (
            "PathEscapes",
            "A name in a spec or record would leave the node root. Nothing is done with it; correct it.",
        ),
        PathError::Symlink { .. } => {
            ("PathHasSymlink", "A symlink stands where none is followed. Find out who put it there, and remove it.")
        }
        PathError::Mount { .. } => {
            ("PathHasMount", "A mount point is on the way and is not crossed. Unmount it if it does not belong there.")
        }
        PathError::NotAFolder { .. } => {
            ("NotAFolder", "Something else stands where a folder is needed. Look what it is, and move it away.")
        }
        _ => ("PathUnusable", "Look at the path named in the message."),
    }
}

/// The error and its causes, outermost first.
fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The first error of the system in the chain.
fn system_error(error: &(dyn Error + 'static)) -> Option<Errno> {
    chain(error).find_map(|e| Errno::from_io_error(e.downcast_ref()?))
}

/// An error with all its causes as one line: `cannot mount: cannot attach /x: permission denied`.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in chain(error).skip(1) {
        // Writing into a String cannot fail.
        let _ = write!(text, ": {cause}");
    }
    text
}

#[cfg(test)]
mod tests;
