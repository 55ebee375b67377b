//! Mounts that no path shows yet.
//!
//! With the new mount calls a mount is made detached: it has its unique id and can be filled before anybody sees
//! it, and it vanishes with this process. [`NewMount::attach`] makes it visible in one step. On older kernels the
//! same value only remembers what is to be mounted, and `attach` mounts it.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use crate::{Dir, Kernel, UniqueMountId};

/// Why a mount could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}{}", .path.display(), .detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
pub struct MountError {
    /// What was being done.
    pub doing: &'static str,
    /// To which source or target.
    pub path: PathBuf,
    /// The kernel's own log of the failed call, or the helper's output, where there is one.
    pub detail: Option<String>,
    /// What the system said.
    #[source]
    pub source: std::io::Error,
}

/// How a bind mount differs from its source.
#[derive(Debug, Clone, Default)]
pub struct BindOptions {
    /// Read-only from the moment that it is visible.
    pub read_only: bool,
    /// With everything mounted below the source.
    pub recursive: bool,
    /// Mount propagation: make it slave (`HostToContainer`) or leave it private (default).
    pub slave: bool,
}

/// A mount that no path shows yet.
#[derive(Debug)]
pub struct NewMount {}

impl NewMount {
    /// A new tmpfs. `options` are file system options such as `size=1048576`, `mode=0755`, `noswap`; one that the
    /// kernel does not know is an error.
    pub fn tmpfs(kernel: Kernel, options: &[(&str, Option<&str>)]) -> Result<Self, MountError> {
        let _ = (kernel, options);
        todo!()
    }
    /// A new file system of any type known to the kernel (`hugetlbfs`, `ext4`), with the mount options as
    /// Kubernetes gives them: `ro`, `noatime`, … go to the mount, all else to the file system.
    pub fn file_system(kernel: Kernel, fs_type: &str, source: &str, options: &[String]) -> Result<Self, MountError> {
        let _ = (kernel, fs_type, source, options);
        todo!()
    }
    /// A bind of what this descriptor (O_PATH will do) stands for: a folder or a file.
    pub fn bind(
        kernel: Kernel,
        source: BorrowedFd<'_>,
        shown: &Path,
        options: &BindOptions,
    ) -> Result<Self, MountError> {
        let _ = (kernel, source, shown, options);
        todo!()
    }
    /// The unique id, if it exists already.
    pub fn id(&self) -> Option<UniqueMountId> {
        todo!()
    }
    /// The root of the mount, to fill it before anyone sees it; none on older kernels.
    pub fn root(&self) -> Option<BorrowedFd<'_>> {
        todo!()
    }
    /// File system type, source and root as the mount table will show them, where they are known beforehand.
    pub fn announced(&self) -> (String, String, String) {
        todo!()
    }
    /// Makes it visible at a folder or file beneath the node root. Answers its id where the kernel tells it.
    /// Refuses if the target has become a mount point meanwhile (the descriptor was opened before).
    pub fn attach(self, target: &Dir) -> Result<Option<UniqueMountId>, MountError> {
        let _ = target;
        todo!()
    }
}

/// Mounts by a helper program (`mount.TYPE`, by way of `mount(8)`), with a deadline after which the helper's whole
/// process group is killed. The target is given as `/proc/self/fd/N`'s real path, checked before and after.
pub fn mount_by_helper(
    fs_type: &str,
    source: &str,
    target: &Dir,
    options: &[String],
    deadline: std::time::Duration,
) -> Result<(), MountError> {
    let _ = (fs_type, source, target, options, deadline);
    todo!()
}
