use std::io;
use std::path::PathBuf;

use super::*;
use crate::ToolError;

fn os(errno: Errno) -> io::Error {
    errno.into()
}

fn path() -> PathBuf {
    "/r/pods/u".into()
}

/// One error of every kind, with the code that scripts rely on.
fn table() -> Vec<(VolumeError, &'static str)> {
    let io_error = |e| VolumeError::Io { doing: "open", path: path(), source: os(e) };
    let mount = |e| VolumeError::Mount(MountError { doing: "attach", path: path(), detail: None, source: os(e) });
    vec![
        (io_error(Errno::NOSPC), "DiskFull"),
        (io_error(Errno::DQUOT), "DiskFull"),
        (io_error(Errno::ROFS), "ReadOnlyFileSystem"),
        (io_error(Errno::ACCESS), "NotPermitted"),
        (io_error(Errno::PERM), "NotPermitted"),
        (io_error(Errno::NOENT), "PathMissing"),
        (io_error(Errno::LOOP), "PathHasSymlink"),
        (io_error(Errno::XDEV), "PathHasMount"),
        (io_error(Errno::MFILE), "OutOfResources"),
        (io_error(Errno::STALE), "DeviceOrServerFailed"),
        (io_error(Errno::INVAL), "SystemError"),
        (mount(Errno::NODEV), "UnknownFileSystem"),
        (mount(Errno::NOENT), "MountSourceMissing"),
        (mount(Errno::BUSY), "MountBusy"),
        (mount(Errno::INVAL), "MountRefused"),
        (mount(Errno::PERM), "NotPermitted"),
        (mount(Errno::NOTDIR), "MountFailed"),
        (VolumeError::Path(PathError::Escapes { path: path() }), "PathEscapes"),
        (VolumeError::Path(PathError::Symlink { doing: "open", path: path(), link: path() }), "PathHasSymlink"),
        (VolumeError::Path(PathError::Mount { doing: "open", path: path(), mount: path() }), "PathHasMount"),
        (VolumeError::Path(PathError::NotAFolder { doing: "open", path: path(), part: path() }), "NotAFolder"),
        (
            VolumeError::Path(PathError::Io { doing: "make", path: path(), source: os(Errno::ROFS) }),
            "ReadOnlyFileSystem",
        ),
        (VolumeError::Unmount(UnmountError::Busy { path: path() }), "UnmountBusy"),
        (VolumeError::Unmount(UnmountError::OtherMount { path: path(), found: "x".into() }), "OtherMount"),
        (VolumeError::Unmount(UnmountError::StillMounted { path: path() }), "StillMounted"),
        (VolumeError::Unmount(UnmountError::Io { path: path(), source: os(Errno::INVAL) }), "UnmountFailed"),
        (VolumeError::Remove(RemoveError::Mounts { path: path(), mounts: vec![path()] }), "MountsInside"),
        (VolumeError::Remove(RemoveError::NotEmpty { path: path() }), "DataKept"),
        (VolumeError::Remove(RemoveError::Io { path: path(), source: os(Errno::NOTDIR) }), "RemoveFailed"),
        (
            VolumeError::Table(refloat_mount::TableError { call: "listmount", source: os(Errno::INVAL) }),
            "MountTableUnreadable",
        ),
        (VolumeError::Tool(ToolError::Start { program: "mkfs".into(), source: os(Errno::NOENT) }), "ToolMissing"),
        (
            VolumeError::Tool(ToolError::Deadline { program: "mkfs".into(), deadline: std::time::Duration::ZERO }),
            "ToolTimeout",
        ),
        (
            VolumeError::Tool(ToolError::Failed { program: "mkfs".into(), code: None, stderr: String::new() }),
            "ToolFailed",
        ),
        (VolumeError::FsGroup { gid: 1, failed: 2, path: path(), source: os(Errno::NOTSUP) }, "FsGroupFailed"),
        (VolumeError::FsGroup { gid: 1, failed: 2, path: path(), source: os(Errno::INVAL) }, "GroupNotMapped"),
        (
            VolumeError::Record(refloat_record::WriteError {
                doing: "write",
                name: "r".into(),
                folder: path(),
                source: os(Errno::NOTDIR),
            }),
            "RecordNotWritten",
        ),
        (VolumeError::Refused(Problem::new("MyCode", "m", "h")), "MyCode"),
    ]
}

#[test]
fn codes_are_stable_and_every_problem_has_a_hint() {
    for (error, code) in table() {
        let problem = error.problem();
        assert_eq!(problem.code, code, "{error:?}");
        assert!(!problem.hint.is_empty() && !problem.message.is_empty(), "{error:?}");
        assert!(!problem.hint.starts_with(char::is_lowercase) && problem.hint.ends_with('.'), "{error:?}");
    }
}

#[test]
fn every_code_is_in_the_list_for_people() {
    let list = include_str!("../../../../docs/problems.md");
    let other = ["PathUnusable"];
    for code in table().iter().map(|(_, code)| *code).filter(|c| *c != "MyCode").chain(other) {
        assert!(list.contains(&format!("| `{code}` |")), "docs/problems.md lacks {code}");
    }
}

#[test]
fn the_message_is_the_whole_chain_and_says_nothing_twice() {
    let source = os(Errno::NOSPC);
    let said = source.to_string();
    let error = VolumeError::Path(PathError::Io { doing: "make", path: path(), source });
    assert_eq!(error.problem().message, format!("cannot use a path of the volume: cannot make /r/pods/u: {said}"));
    assert_eq!(error.problem().message.matches(&said).count(), 1);
}

#[test]
fn hints_are_sentences() {
    for (given, shown) in [
        ("look at it", "Look at it."),
        ("Look at it.", "Look at it."),
        ("`refloat doctor` tells", "`refloat doctor` tells."),
        ("", ""),
        ("ändere es", "Ändere es."),
    ] {
        assert_eq!(Problem::new("Code", "m", given).hint, shown);
    }
}
