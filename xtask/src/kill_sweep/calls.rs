//! The state-changing system calls, and how often a reference run makes each.

use std::collections::BTreeMap;

/// Calls that change something outside the process. A `?` in front: not every architecture or strace knows it.
pub(super) const CALLS: &[&str] = &[
    "openat",
    "openat2",
    "?open",
    "?creat",
    "mkdirat",
    "?mkdir",
    "mknodat",
    "write",
    "pwrite64",
    "writev",
    "pwritev2",
    "ftruncate",
    "fallocate",
    "copy_file_range",
    "sendfile",
    "fdatasync",
    "fsync",
    "syncfs",
    "renameat",
    "renameat2",
    "?rename",
    "unlinkat",
    "?unlink",
    "?rmdir",
    "symlinkat",
    "linkat",
    "fchmod",
    "fchmodat",
    "?fchmodat2",
    "?chmod",
    "fchown",
    "fchownat",
    "?chown",
    "setxattr",
    "fsetxattr",
    "removexattr",
    "utimensat",
    "mount",
    "umount2",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "move_mount",
    "open_tree",
    "?open_tree_attr",
    "mount_setattr",
    "ioctl",
    "flock",
    "fcntl",
    "clone",
    "?clone3",
    "?vfork",
    "wait4",
    "waitid",
];

/// The kill points of a reference run.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Call and number, in the order of the calls.
    pub(super) points: Vec<(String, usize)>,
    /// State-changing calls that have the number of an earlier one of another thread, which is killed first.
    pub(super) outrun: usize,
}

/// Counts the calls of a trace (`strace -f -o`), thread by thread as strace does when it kills.
pub(super) fn count(trace: &str) -> Counted {
    let mut numbers: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut seen: BTreeMap<(&str, usize), bool> = BTreeMap::new();
    let mut counted = Counted::default();
    for line in trace.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        // The second half of a call that another thread's line interrupted, signals, and exits.
        let Some((name, rest)) = call.split_once('(').filter(|_| call.starts_with(|c: char| c.is_ascii_lowercase()))
        else {
            continue;
        };
        let number = numbers.entry((thread, name)).or_default();
        *number += 1;
        if !changes_something(name, rest) {
            continue;
        }
        if seen.insert((name, *number), true).is_some() {
            counted.outrun += 1;
        } else {
            counted.points.push((name.to_owned(), *number));
        }
    }
    counted
}

/// Whether this call changes something. Those that only look share their name with some that do.
fn changes_something(name: &str, rest: &str) -> bool {
    match name {
        "openat" | "openat2" | "open" => {
            rest.contains("O_CREAT") || rest.contains("O_TRUNC") || rest.contains("O_TMPFILE")
        }
        "fcntl" => rest.contains("F_SETLK") || rest.contains("F_OFD_SETLK"),
        // Threads are no processes.
        "clone" | "clone3" => !rest.contains("CLONE_THREAD"),
        // Calls that this strace has no name for, which it shows whatever it is asked for: on x86-64 0x1c9 and 0x1ca are
        // statmount and listmount, which only look.
        name if name.starts_with("syscall_") => false,
        // Messages for whoever reads them.
        "write" | "writev" => !rest.starts_with("1,") && !rest.starts_with("2,"),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_thread() {
        let trace = "10 openat(AT_FDCWD, \"/a\", O_RDONLY) = 3\n\
                     10 openat(3, \"b\", O_WRONLY|O_CREAT, 0600) = 4\n\
                     11 fsync(4 <unfinished ...>\n\
                     10 write(1, \"x\", 1) = 1\n\
                     10 syscall_0x1ca(0x7f, 0x1, 0) = 1\n\
                     11 <... fsync resumed>) = 0\n\
                     10 fsync(3) = 0\n\
                     10 fsync(3) = 0\n\
                     10 +++ exited with 0 +++\n";
        let counted = count(trace);
        assert_eq!(counted.points, [("openat".into(), 2), ("fsync".into(), 1), ("fsync".into(), 2)]);
        assert_eq!(counted.outrun, 1);
    }
}
