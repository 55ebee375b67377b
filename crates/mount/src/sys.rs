//! The system calls that rustix does not have: `listmount`, `statmount`, `mount_setattr`, safe doors to `unshare` and `fork`,
//! and the loop device's ioctls. The only module with `unsafe`.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use linux_raw_sys::general as raw;
use linux_raw_sys::loop_device as raw_loop;

/// Everything that the table needs of a mount.
pub(crate) const STATMOUNT_TABLE: u64 = (raw::STATMOUNT_SB_BASIC
    | raw::STATMOUNT_MNT_BASIC
    | raw::STATMOUNT_PROPAGATE_FROM
    | raw::STATMOUNT_MNT_ROOT
    | raw::STATMOUNT_MNT_POINT
    | raw::STATMOUNT_FS_TYPE
    | raw::STATMOUNT_MNT_OPTS
    | raw::STATMOUNT_FS_SUBTYPE
    | raw::STATMOUNT_SB_SOURCE) as u64;

/// The bytes of `struct statmount` before its strings.
const STATMOUNT_HEAD: usize = 512;
/// `struct statmount` in the kernel's own header ends its fixed part at 512 bytes, whatever fields it gains.
const _: () = assert!(size_of::<raw::statmount>() == STATMOUNT_HEAD);
const _: () = assert!(size_of::<raw::mnt_id_req>() == raw::MNT_ID_REQ_SIZE_VER1 as usize);
const _: () = assert!(size_of::<raw::mount_attr>() == raw::MOUNT_ATTR_SIZE_VER0 as usize);
const _: () = assert!(size_of::<raw_loop::loop_info64>() == 232);
const _: () = assert!(size_of::<raw_loop::loop_config>() == 304);

/// Turns the C library's answer into a result.
fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// One page of the unique ids of all mounts below this process's root, ascending, from the first after `last`.
/// Answers how many were written.
pub(crate) fn listmount(last: u64, ids: &mut [u64]) -> io::Result<usize> {
    let request = raw::mnt_id_req {
        size: size_of::<raw::mnt_id_req>() as u32,
        spare: 0,
        // LSMT_ROOT is -1 as a signed 64-bit number.
        mnt_id: u64::MAX,
        param: last,
        mnt_ns_id: 0,
    };
    // SAFETY: the request outlives the call and says its own size; the kernel writes at most `ids.len()` numbers.
    check(unsafe {
        libc::syscall(
            libc::c_long::from(raw::__NR_listmount),
            std::ptr::from_ref(&request),
            ids.as_mut_ptr(),
            ids.len(),
            0_u32,
        )
    })
}

/// A buffer for the answers of `statmount`; it grows as needed and is used again.
#[derive(Debug)]
pub(crate) struct StatMountBuffer {
    /// Numbers of 64 bits, so that the answer is aligned.
    words: Vec<u64>,
}

impl Default for StatMountBuffer {
    fn default() -> Self {
        Self { words: vec![0; 512] }
    }
}

/// What `statmount` answered: the numbers, and the strings by their offsets.
#[derive(Clone, Copy)]
pub(crate) struct StatMount<'b> {
    head: &'b raw::statmount,
    /// All strings; offsets count from its start.
    strings: &'b [u8],
}

impl std::ops::Deref for StatMount<'_> {
    type Target = raw::statmount;
    fn deref(&self) -> &raw::statmount {
        self.head
    }
}

impl<'b> StatMount<'b> {
    /// The string at this offset if the kernel filled the field, else none.
    pub(crate) fn text(self, field: u32, offset: u32) -> Option<&'b [u8]> {
        if self.head.mask & u64::from(field) == 0 {
            return None;
        }
        let rest = self.strings.get(offset as usize..)?;
        let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
        rest.get(..end)
    }
}

impl StatMountBuffer {
    /// Asks for the fields in `mask` of one mount. `ENOENT` if it is gone (or not below this process's root).
    pub(crate) fn statmount(&mut self, id: u64, mask: u64) -> io::Result<StatMount<'_>> {
        let request = raw::mnt_id_req {
            size: size_of::<raw::mnt_id_req>() as u32,
            spare: 0,
            mnt_id: id,
            param: mask,
            mnt_ns_id: 0,
        };
        loop {
            let bytes = self.words.len() * size_of::<u64>();
            // SAFETY: the request outlives the call and says its own size; the kernel writes at most `bytes` bytes.
            let answer = check(unsafe {
                libc::syscall(
                    libc::c_long::from(raw::__NR_statmount),
                    std::ptr::from_ref(&request),
                    self.words.as_mut_ptr(),
                    bytes,
                    0_u32,
                )
            });
            match answer {
                Ok(_) => break,
                Err(error) if error.raw_os_error() == Some(libc::EOVERFLOW) && bytes < (1 << 26) => {
                    self.words.resize(self.words.len() * 4, 0);
                }
                Err(error) => return Err(error),
            }
        }
        let start = self.words.as_ptr();
        // SAFETY: the buffer is never shorter than 4096 bytes, is aligned for 64-bit numbers (the structure's
        // strictest field), initialised, and the structure is plain numbers, valid for any bits. It is borrowed as
        // long as the answer is.
        let head = unsafe { &*start.cast::<raw::statmount>() };
        // SAFETY: the buffer reaches from its start to its length in bytes, all initialised; the strings follow the
        // head.
        let strings = unsafe {
            std::slice::from_raw_parts(
                start.cast::<u8>().add(STATMOUNT_HEAD),
                self.words.len() * size_of::<u64>() - STATMOUNT_HEAD,
            )
        };
        // `size` is the length of what was written; nothing beyond it is looked at.
        let written = (head.size as usize).saturating_sub(STATMOUNT_HEAD).min(strings.len());
        Ok(StatMount { head, strings: &strings[..written] })
    }
}

/// What to change at a mount.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MountAttr {
    /// `MOUNT_ATTR_*` to set.
    pub(crate) set: u64,
    /// `MOUNT_ATTR_*` to clear.
    pub(crate) clear: u64,
    /// One of `MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED`, or 0 to leave it.
    pub(crate) propagation: u64,
}

/// `mount_setattr` on the mount that this descriptor stands for.
pub(crate) fn mount_setattr(mount: impl AsFd, recursive: bool, attr: MountAttr) -> io::Result<()> {
    let request =
        raw::mount_attr { attr_set: attr.set, attr_clr: attr.clear, propagation: attr.propagation, userns_fd: 0 };
    let flags = raw::AT_EMPTY_PATH | if recursive { raw::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a constant that ends in NUL; the request outlives the call and its size is given.
    check(unsafe {
        libc::syscall(
            libc::c_long::from(raw::__NR_mount_setattr),
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(&request),
            size_of::<raw::mount_attr>(),
        )
    })
    .map(drop)
}

/// Moves this process into new namespaces: a mount namespace, and a user namespace first where `user` is set.
/// The caller has made sure that there is one thread only.
pub(crate) fn unshare_mounts(user: bool) -> io::Result<()> {
    let flags = libc::CLONE_NEWNS | if user { libc::CLONE_NEWUSER } else { 0 };
    // SAFETY: no memory is touched, and descriptors stay shared (no CLONE_FILES).
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// A call that may never come back, for a child process to make.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChildCall<'a> {
    /// `umount2` with these flags.
    Unmount(&'a CStr, i32),
    /// `statfs`, whose answer is thrown away.
    StatFs(&'a CStr),
    /// `write(2)` to the descriptor that is kept.
    Write(&'a [u8]),
}

/// Starts a child process that makes the call and exits with its errno (0 if it worked). All descriptors but `keep` are
/// closed in it, so that one that hangs holds no lock and no pipe. Answers its process id.
pub(crate) fn call_in_child(keep: impl AsFd, call: ChildCall<'_>) -> io::Result<i32> {
    let keep = keep.as_fd().as_raw_fd();
    // SAFETY: the child makes system calls and nothing else: it allocates nothing and takes no lock, which another thread
    // may hold at the moment of the fork. The texts were made before, and are its own copies.
    unsafe {
        let child = libc::fork();
        if child != 0 {
            return check(child.into()).map(|_| child);
        }
        let below = keep == 0 || libc::syscall(libc::SYS_close_range, 0, keep - 1, 0) == 0;
        let above = libc::syscall(libc::SYS_close_range, keep + 1, libc::c_int::MAX, 0) == 0;
        if !below || !above {
            // Linux before 5.9. More descriptors than this are usual for nobody.
            for fd in (0..4096).filter(|fd| *fd != keep) {
                libc::close(fd);
            }
        }
        let answer = match call {
            ChildCall::Unmount(path, flags) => libc::umount2(path.as_ptr(), flags),
            ChildCall::StatFs(path) => {
                let mut buffer = std::mem::MaybeUninit::<libc::statfs>::uninit();
                libc::statfs(path.as_ptr(), buffer.as_mut_ptr())
            }
            ChildCall::Write(text) => {
                let written = libc::write(keep, text.as_ptr().cast(), text.len());
                // Files of the kernel take all or nothing.
                if written >= 0 && written.cast_unsigned() != text.len() {
                    libc::_exit(libc::EIO);
                }
                if written < 0 { -1 } else { 0 }
            }
        };
        libc::_exit(if answer == 0 { 0 } else { *libc::__errno_location() })
    }
}

/// An ioctl's number in the type that this C library wants.
#[allow(clippy::cast_lossless, clippy::cast_possible_wrap)] // the type differs between C libraries
fn request(number: u32) -> libc::Ioctl {
    number as libc::Ioctl
}

/// Asks the loop control device for the number of a free loop device.
pub(crate) fn loop_get_free(control: impl AsFd) -> io::Result<usize> {
    // SAFETY: this ioctl takes no argument.
    check(unsafe { libc::ioctl(control.as_fd().as_raw_fd(), request(raw_loop::LOOP_CTL_GET_FREE)) }.into())
}

/// Sets a loop device up in one step.
pub(crate) fn loop_configure(device: impl AsFd, config: &raw_loop::loop_config) -> io::Result<()> {
    // SAFETY: the kernel reads one `loop_config`, which outlives the call.
    check(
        unsafe {
            libc::ioctl(device.as_fd().as_raw_fd(), request(raw_loop::LOOP_CONFIGURE), std::ptr::from_ref(config))
        }
        .into(),
    )
    .map(drop)
}

/// A loop device's settings with nothing set.
pub(crate) fn loop_config_empty() -> raw_loop::loop_config {
    // SAFETY: plain numbers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}

/// What a loop device is attached to. `ENXIO` if to nothing.
pub(crate) fn loop_status(device: impl AsFd) -> io::Result<raw_loop::loop_info64> {
    let mut info = loop_config_empty().info;
    // SAFETY: the kernel writes one `loop_info64`, which outlives the call.
    check(
        unsafe {
            libc::ioctl(device.as_fd().as_raw_fd(), request(raw_loop::LOOP_GET_STATUS64), std::ptr::from_mut(&mut info))
        }
        .into(),
    )?;
    Ok(info)
}

/// Detaches a loop device.
pub(crate) fn loop_clear(device: impl AsFd) -> io::Result<()> {
    // SAFETY: this ioctl's argument is not used.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), request(raw_loop::LOOP_CLR_FD), 0) }.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// The offsets of include/uapi/linux/mount.h, counted by hand.
    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(offset_of!(raw::statmount, mask), 8);
        assert_eq!(offset_of!(raw::statmount, sb_magic), 24);
        assert_eq!(offset_of!(raw::statmount, fs_type), 36);
        assert_eq!(offset_of!(raw::statmount, mnt_id), 40);
        assert_eq!(offset_of!(raw::statmount, mnt_id_old), 56);
        assert_eq!(offset_of!(raw::statmount, mnt_attr), 64);
        assert_eq!(offset_of!(raw::statmount, mnt_root), 104);
        assert_eq!(offset_of!(raw::statmount, mnt_ns_id), 112);
        assert_eq!(offset_of!(raw::statmount, fs_subtype), 120);
        assert_eq!(offset_of!(raw::statmount, supported_mask), 144);
        assert_eq!(offset_of!(raw::statmount, str_), STATMOUNT_HEAD);
        assert_eq!(offset_of!(raw::mnt_id_req, mnt_id), 8);
        assert_eq!(offset_of!(raw::mnt_id_req, mnt_ns_id), 24);
        assert_eq!(offset_of!(raw_loop::loop_config, info), 8);
        assert_eq!(offset_of!(raw_loop::loop_info64, lo_file_name), 56);
    }

    #[test]
    fn the_root_mount_answers() {
        let mut ids = [0_u64; 4];
        match listmount(0, &mut ids) {
            Ok(count) => assert!(count > 0),
            Err(error) => return eprintln!("skipped the_root_mount_answers: no listmount: {error}"),
        }
        let mut buffer = StatMountBuffer::default();
        let answer = buffer.statmount(ids[0], STATMOUNT_TABLE).expect("the first mount is there");
        assert_eq!(answer.mnt_id, ids[0]);
        let point = answer.text(raw::STATMOUNT_MNT_POINT, answer.mnt_point).expect("it has a mount point");
        assert_eq!(point.first(), Some(&b'/'));
        assert!(answer.text(raw::STATMOUNT_MNT_UIDMAP, 0).is_none(), "a field that was not asked for is not there");
    }

    #[test]
    fn a_gone_mount_is_enoent() {
        let mut buffer = StatMountBuffer::default();
        let error = buffer.statmount(u64::MAX - 7, STATMOUNT_TABLE).err().expect("no such id");
        assert!(matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOSYS)), "{error}");
    }
}
