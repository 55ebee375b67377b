//! A mount namespace of one's own.

use std::io;

use rustix::mount::MountPropagationFlags;

use crate::sys;

/// Why no private namespace could be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing}: {hint}")]
pub struct NamespaceError {
    /// What was being done.
    pub doing: &'static str,
    /// What to do about it.
    pub hint: String,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl NamespaceError {
    fn new(doing: &'static str, hint: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { doing, hint: hint.into(), source: source.into() }
    }
}

/// Moves this process into a mount namespace of its own in which nothing propagates out; where it has no
/// privilege, into a user namespace first, in which it is root. Only while the process has a single thread.
/// Returns whether a user namespace was needed.
///
/// # Errors
/// With more than one thread (only the calling one would move), and where neither way is permitted: the message says
/// what would permit it.
pub fn enter_private_namespace() -> Result<bool, NamespaceError> {
    let threads = std::fs::read_dir("/proc/self/task")
        .map_err(|error| NamespaceError::new("count this process's threads", "is /proc mounted?", error))?
        .count();
    if threads != 1 {
        let error = io::Error::new(io::ErrorKind::InvalidInput, format!("this process has {threads} threads"));
        return Err(NamespaceError::new(
            "enter a private mount namespace",
            "it must be done before any thread is started",
            error,
        ));
    }
    // Asked beforehand: afterwards they are the ones of the new namespace.
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let user = match sys::unshare_mounts(false) {
        Ok(()) => false,
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            enter_user_namespace(uid, gid)?;
            true
        }
        Err(error) => {
            return Err(NamespaceError::new(
                "enter a private mount namespace",
                "does the kernel have mount namespaces?",
                error,
            ));
        }
    };
    // Receives nothing either, so that what a test or a demonstration sees is its own.
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(|errno| {
        NamespaceError::new("make the mounts of the new namespace private", "is / a mount point here?", errno)
    })?;
    Ok(user)
}

fn enter_user_namespace(uid: u32, gid: u32) -> Result<(), NamespaceError> {
    const DOING: &str = "enter a user namespace";
    sys::unshare_mounts(true).map_err(|error| {
        let hint = "run as root, or let users have namespaces (sysctl user.max_user_namespaces, \
                    kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)";
        NamespaceError::new(DOING, hint, error)
    })?;
    let write = |file: &'static str, text: String| {
        std::fs::write(file, text)
            .map_err(|error| NamespaceError::new("map this user to root of the new user namespace", file, error))
    };
    // Without privilege a group map may be written only after setgroups was given up (Linux 3.19).
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    write("/proc/self/gid_map", format!("0 {gid} 1"))
}
