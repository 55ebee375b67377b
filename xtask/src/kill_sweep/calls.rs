//! The system calls that are counted: which there are, when one changes something, and what a report says about it.

use nix::libc;
use nix::unistd::Pid;

/// When a call counts.
#[derive(Debug, Clone, Copy)]
enum When {
    Always,
    /// If the flags in this argument may make or empty a file.
    MakesFile(usize),
    /// The same, with the flags in the first word of the structure that this argument points to.
    MakesFileBy(usize),
    /// If the second argument is one of the commands that lock.
    Locks,
    /// If the flags in this argument do not make a thread.
    MakesProcess(usize),
    /// The same, with the flags in the first word of the structure that this argument points to.
    MakesProcessBy(usize),
    /// Unless it is a message to whoever started the program, or only wakes a thread of it.
    NotMessage,
    /// Unless the thread's counted call before was one too: how often a loop looks is a matter of time.
    NotRepeated,
    /// Only if it was asked for, and the first argument is a socket.
    Socket,
}

/// A system call that can count.
#[derive(Debug)]
pub(crate) struct Call {
    /// Its name.
    pub(crate) name: &'static str,
    number: libc::c_long,
    /// What each argument is: `f` a file descriptor, `p` a path, `_` something that a report leaves out.
    arguments: &'static str,
    when: When,
}

const fn call(name: &'static str, number: libc::c_long, arguments: &'static str, when: When) -> Call {
    Call { name, number, arguments, when }
}

/// Calls of every architecture. Those that have no number in `libc` yet have the same one everywhere.
const CALLS: &[Call] = &[
    call("openat", libc::SYS_openat, "fp", When::MakesFile(2)),
    call("openat2", libc::SYS_openat2, "fp", When::MakesFileBy(2)),
    call("mkdirat", libc::SYS_mkdirat, "fp", When::Always),
    call("mknodat", libc::SYS_mknodat, "fp", When::Always),
    call("write", libc::SYS_write, "f", When::NotMessage),
    call("writev", libc::SYS_writev, "f", When::NotMessage),
    call("pwrite64", libc::SYS_pwrite64, "f", When::Always),
    call("pwritev", libc::SYS_pwritev, "f", When::Always),
    call("pwritev2", libc::SYS_pwritev2, "f", When::Always),
    call("ftruncate", libc::SYS_ftruncate, "f", When::Always),
    call("truncate", libc::SYS_truncate, "p", When::Always),
    call("fallocate", libc::SYS_fallocate, "f", When::Always),
    call("copy_file_range", libc::SYS_copy_file_range, "f_f", When::Always),
    call("sendfile", libc::SYS_sendfile, "ff", When::Always),
    call("splice", libc::SYS_splice, "f_f", When::Always),
    call("fdatasync", libc::SYS_fdatasync, "f", When::Always),
    call("fsync", libc::SYS_fsync, "f", When::Always),
    call("syncfs", libc::SYS_syncfs, "f", When::Always),
    call("renameat2", libc::SYS_renameat2, "fpfp", When::Always),
    call("renameat", libc::SYS_renameat, "fpfp", When::Always),
    call("unlinkat", libc::SYS_unlinkat, "fp", When::Always),
    call("symlinkat", libc::SYS_symlinkat, "pfp", When::Always),
    call("linkat", libc::SYS_linkat, "fpfp", When::Always),
    call("fchmod", libc::SYS_fchmod, "f", When::Always),
    call("fchmodat", libc::SYS_fchmodat, "fp", When::Always),
    call("fchmodat2", 452, "fp", When::Always),
    call("fchown", libc::SYS_fchown, "f", When::Always),
    call("fchownat", libc::SYS_fchownat, "fp", When::Always),
    call("utimensat", libc::SYS_utimensat, "fp", When::Always),
    call("setxattr", libc::SYS_setxattr, "pp", When::Always),
    call("lsetxattr", libc::SYS_lsetxattr, "pp", When::Always),
    call("fsetxattr", libc::SYS_fsetxattr, "fp", When::Always),
    call("removexattr", libc::SYS_removexattr, "pp", When::Always),
    call("lremovexattr", libc::SYS_lremovexattr, "pp", When::Always),
    call("fremovexattr", libc::SYS_fremovexattr, "fp", When::Always),
    call("mount", libc::SYS_mount, "_p", When::Always),
    call("umount2", libc::SYS_umount2, "p", When::Always),
    call("fsopen", libc::SYS_fsopen, "p", When::Always),
    call("fsconfig", libc::SYS_fsconfig, "f", When::Always),
    call("fsmount", libc::SYS_fsmount, "f", When::Always),
    call("fspick", libc::SYS_fspick, "fp", When::Always),
    call("move_mount", libc::SYS_move_mount, "fpfp", When::Always),
    call("open_tree", libc::SYS_open_tree, "fp", When::Always),
    call("open_tree_attr", 467, "fp", When::Always),
    call("mount_setattr", libc::SYS_mount_setattr, "fp", When::Always),
    call("ioctl", libc::SYS_ioctl, "f", When::Always),
    call("flock", libc::SYS_flock, "f", When::Always),
    call("fcntl", libc::SYS_fcntl, "f", When::Locks),
    call("bind", libc::SYS_bind, "f", When::Always),
    call("clone", libc::SYS_clone, "", When::MakesProcess(0)),
    call("clone3", libc::SYS_clone3, "", When::MakesProcessBy(0)),
    call("wait4", libc::SYS_wait4, "", When::NotRepeated),
    call("waitid", libc::SYS_waitid, "", When::NotRepeated),
    call("kill", libc::SYS_kill, "", When::Always),
    call("pidfd_send_signal", libc::SYS_pidfd_send_signal, "f", When::Always),
    call("connect", libc::SYS_connect, "f", When::Socket),
    call("sendto", libc::SYS_sendto, "f", When::Socket),
    call("sendmsg", libc::SYS_sendmsg, "f", When::Socket),
    call("recvfrom", libc::SYS_recvfrom, "f", When::Socket),
    call("recvmsg", libc::SYS_recvmsg, "f", When::Socket),
    call("read", libc::SYS_read, "f", When::Socket),
    call("readv", libc::SYS_readv, "f", When::Socket),
];

/// Calls that newer architectures do without.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[Call] = &[
    call("open", libc::SYS_open, "p", When::MakesFile(1)),
    call("creat", libc::SYS_creat, "p", When::Always),
    call("mkdir", libc::SYS_mkdir, "p", When::Always),
    call("mknod", libc::SYS_mknod, "p", When::Always),
    call("rename", libc::SYS_rename, "pp", When::Always),
    call("unlink", libc::SYS_unlink, "p", When::Always),
    call("rmdir", libc::SYS_rmdir, "p", When::Always),
    call("symlink", libc::SYS_symlink, "pp", When::Always),
    call("link", libc::SYS_link, "pp", When::Always),
    call("chmod", libc::SYS_chmod, "p", When::Always),
    call("chown", libc::SYS_chown, "p", When::Always),
    call("lchown", libc::SYS_lchown, "p", When::Always),
    call("fork", libc::SYS_fork, "", When::Always),
    call("vfork", libc::SYS_vfork, "", When::Always),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[Call] = &[];

/// A call that a thread is about to make.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entered {
    /// The thread.
    pub(super) thread: Pid,
    /// The process that it belongs to.
    pub(super) process: Pid,
    /// The call's number.
    pub(super) number: u64,
    /// Its arguments.
    pub(super) arguments: [u64; 6],
}

impl Entered {
    /// The counted call that it is, if it is one. `previous`: the thread's counted call before; `sockets`: names of the
    /// calls that count on a socket.
    pub(super) fn counted(&self, previous: Option<&Call>, sockets: &[&str]) -> Option<&'static Call> {
        let call = CALLS.iter().chain(OLD_CALLS).find(|c| u64::try_from(c.number) == Ok(self.number))?;
        let counts = match call.when {
            When::Always => true,
            When::MakesFile(argument) => makes_file(self.arguments[argument]),
            When::MakesFileBy(argument) => makes_file(self.word(self.arguments[argument])),
            When::Locks => matches!(
                i32::try_from(self.arguments[1]),
                Ok(libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW)
            ),
            When::MakesProcess(argument) => !makes_thread(self.arguments[argument]),
            When::MakesProcessBy(argument) => !makes_thread(self.word(self.arguments[argument])),
            When::NotMessage => !matches!(self.arguments[0], 1 | 2) && !self.link(0).starts_with("anon_inode:"),
            When::NotRepeated => !previous.is_some_and(|p| matches!(p.when, When::NotRepeated)),
            When::Socket => sockets.contains(&call.name) && self.link(0).starts_with("socket:"),
        };
        counts.then_some(call)
    }

    /// The call as a report shows it: `unlinkat(/run/state, "a.json")`.
    pub(super) fn describe(&self, call: &Call) -> String {
        let shown: Vec<_> = call
            .arguments
            .bytes()
            .enumerate()
            .filter_map(|(i, kind)| match kind {
                // The lower half is the descriptor; AT_FDCWD is a negative number.
                b'f' if (self.arguments[i] as u32).cast_signed() == libc::AT_FDCWD => None,
                b'f' => Some(self.link(i)),
                b'p' => Some(format!("{:?}", self.text(self.arguments[i]))),
                _ => None,
            })
            .collect();
        format!("{}({})", call.name, shown.join(", "))
    }

    /// What the file descriptor in an argument is.
    fn link(&self, argument: usize) -> String {
        let fd = self.arguments[argument] as u32;
        let link = std::fs::read_link(format!("/proc/{}/fd/{fd}", self.process));
        link.map_or_else(|_| fd.to_string(), |link| link.to_string_lossy().into_owned())
    }

    /// The word at an address of the process; 0 where there is none, which the call itself then stumbles over.
    fn word(&self, address: u64) -> u64 {
        let address = std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or_default());
        nix::sys::ptrace::read(self.thread, address).map_or(0, i64::cast_unsigned)
    }

    /// The text at an address of the process, up to 256 bytes of it.
    fn text(&self, address: u64) -> String {
        let words = (0..32).map(|i| self.word(address.wrapping_add(i * 8)));
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).take_while(|&b| b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn makes_file(flags: u64) -> bool {
    // O_TMPFILE has the bit of O_DIRECTORY too.
    let any = libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY);
    flags & u64::from(any.cast_unsigned()) != 0
}

fn makes_thread(flags: u64) -> bool {
    flags & u64::from(libc::CLONE_THREAD.cast_unsigned()) != 0
}
