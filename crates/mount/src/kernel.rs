//! What the running kernel can do, asked once, and the switch that forces the older ways.

use std::io;
use std::os::fd::AsFd;

use linux_raw_sys::general as raw;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::mount::{FsOpenFlags, OpenTreeFlags};

use crate::sys;

/// Set and not empty: use nothing beyond `mount(2)` and mountinfo.
const FORCE_OLD: &str = "REFLOAT_FORCE_OLD_MOUNT_API";

/// The mount calls to use. Made once at start and handed around; cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    features: KernelFeatures,
}

/// What the kernel has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is one independent yes or no
pub struct KernelFeatures {
    /// `fsopen`, `fsmount`, `move_mount`, `open_tree` (Linux 5.2).
    pub new_mount_calls: bool,
    /// `mount_setattr` (Linux 5.12).
    pub mount_setattr: bool,
    /// `listmount` and `statmount` with every field that the table needs (Linux 6.15; source and options came
    /// after 6.8).
    pub listmount: bool,
    /// Unique mount ids by `statx` (Linux 6.8).
    pub unique_mount_id: bool,
    /// `openat2` (Linux 5.6). Without it Refloat does not act: there is no safe way to walk.
    pub openat2: bool,
}

impl Kernel {
    /// Asks the kernel by trying each call harmlessly. Everything beyond plain `mount(2)` and mountinfo is left
    /// unused if the environment variable `REFLOAT_FORCE_OLD_MOUNT_API` is set and not empty.
    pub fn detect() -> Self {
        if std::env::var_os(FORCE_OLD).is_some_and(|value| !value.is_empty()) {
            return Self::with_features(KernelFeatures { openat2: has_openat2(), ..KernelFeatures::default() });
        }
        Self::with_features(KernelFeatures {
            new_mount_calls: has_new_mount_calls(),
            mount_setattr: has_mount_setattr(),
            listmount: has_listmount(),
            unique_mount_id: has_unique_mount_id(),
            openat2: has_openat2(),
        })
    }

    /// A kernel with just these features, for tests of the older ways.
    pub fn with_features(features: KernelFeatures) -> Self {
        Self { features }
    }

    /// What it has.
    pub fn features(self) -> KernelFeatures {
        self.features
    }
}

fn has_openat2() -> bool {
    rustix::fs::openat2(
        CWD,
        "/",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
    .is_ok()
}

/// `open_tree` without a clone only opens; `fsopen` with a flag that does not exist makes nothing (and, unlike an unknown
/// type, lets the kernel load no module). A filter that forbids the calls (ENOSYS, or EPERM from older filters) shows in
/// the first.
fn has_new_mount_calls() -> bool {
    let tree = rustix::mount::open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLOEXEC);
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::from_bits_retain(1 << 31));
    tree.is_ok() && context.err() != Some(rustix::io::Errno::NOSYS)
}

/// Changing nothing is answered with success, or with EPERM where this process may not mount at all.
fn has_mount_setattr() -> bool {
    let Ok(root) = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { return false };
    match sys::mount_setattr(root.as_fd(), false, sys::MountAttr::default()) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() != Some(libc::ENOSYS),
    }
}

fn has_listmount() -> bool {
    fn supported() -> io::Result<u64> {
        let mut id = [0_u64];
        sys::listmount(0, &mut id)?;
        let mut buffer = sys::StatMountBuffer::default();
        let answer = buffer.statmount(id[0], u64::from(raw::STATMOUNT_SUPPORTED_MASK))?;
        let told = answer.mask & u64::from(raw::STATMOUNT_SUPPORTED_MASK) != 0;
        Ok(if told { answer.supported_mask } else { 0 })
    }
    supported().is_ok_and(|mask| mask & sys::STATMOUNT_TABLE == sys::STATMOUNT_TABLE)
}

fn has_unique_mount_id() -> bool {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .is_ok_and(|root| unique_mount_id(root.as_fd()).is_some())
}

/// The unique id of the mount that a descriptor is in, without asking its file system. `None` on kernels that
/// have no such id.
pub(crate) fn unique_mount_id(fd: impl AsFd) -> Option<crate::UniqueMountId> {
    let wanted = StatxFlags::from_bits_retain(raw::STATX_MNT_ID_UNIQUE);
    let answer = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    if answer.stx_mask & raw::STATX_MNT_ID_UNIQUE == 0 {
        return None;
    }
    std::num::NonZeroU64::new(answer.stx_mnt_id).map(crate::UniqueMountId)
}

/// The short id of the mount that a descriptor is in, without asking its file system.
pub(crate) fn short_mount_id(fd: impl AsFd) -> io::Result<u32> {
    use std::os::fd::AsRawFd;
    let fd = fd.as_fd();
    if let Ok(answer) = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID)
        && answer.stx_mask & raw::STATX_MNT_ID != 0
    {
        return u32::try_from(answer.stx_mnt_id).map_err(io::Error::other);
    }
    // Linux before 5.8.
    let text = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
        .ok_or_else(|| io::Error::other("the kernel does not tell the mount of a descriptor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ids_name_the_same_mount() {
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("the root opens");
        let short = short_mount_id(&root).expect("a short id");
        let Some(id) = unique_mount_id(&root) else { return eprintln!("skipped: no unique mount ids") };
        let mut buffer = sys::StatMountBuffer::default();
        let Ok(answer) = buffer.statmount(id.0.get(), sys::STATMOUNT_TABLE) else {
            return eprintln!("skipped: no statmount");
        };
        assert_eq!(answer.mnt_id_old, short);
    }

    #[test]
    fn detecting_changes_nothing_and_repeats() {
        assert_eq!(Kernel::detect(), Kernel::detect());
    }
}
