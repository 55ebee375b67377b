//! tmpfs for volumes in memory.

use refloat_mount::NewMount;

use crate::{Host, VolumeError};

/// A tmpfs that is never swapped where the kernel can promise that: secrets and memory volumes must not reach a disk.
/// `size` is in bytes; without one the kernel's default, half of the memory, holds.
///
/// # Source
/// `noswap` is known to tmpfs since Linux 6.4 (`tmpfs(5)`), and refused to a mount of a user namespace.
pub fn new_tmpfs(host: &Host, size: Option<u64>, mode: u32) -> Result<NewMount, VolumeError> {
    let size = size.map(|bytes| bytes.to_string());
    let mode = format!("{mode:04o}");
    let mut options: Vec<(&str, Option<&str>)> = vec![("mode", Some(&mode))];
    if let Some(size) = &size {
        options.push(("size", Some(size)));
    }
    let plain = options.clone();
    options.push(("noswap", None));
    if host.kernel.features().new_mount_calls {
        // The mount is made here and now, so the kernel itself says whether it knows the option.
        if let Ok(mount) = NewMount::tmpfs(host.kernel, &options) {
            return Ok(mount);
        }
    } else if knows_noswap(&rustix::system::uname().release().to_string_lossy()) && !in_user_namespace() {
        return NewMount::tmpfs(host.kernel, &options).map_err(VolumeError::Mount);
    }
    NewMount::tmpfs(host.kernel, &plain).map_err(VolumeError::Mount)
}

/// Whether a kernel of this release (`6.4.0-generic`) knows `noswap`.
fn knows_noswap(release: &str) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (6, 4)
}

/// Whether this process lives in a user namespace of its own: then not every user id is mapped.
fn in_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().nth(2).is_none_or(|count| count != "4294967295"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn release_numbers() {
        for (release, known) in [
            ("6.4.0-rc1", true),
            ("6.18", true),
            ("6.3.9", false),
            ("5.15.0-101-generic", false),
            ("10.0", true),
            ("", false),
        ] {
            assert_eq!(super::knows_noswap(release), known, "{release:?}");
        }
    }
}
