use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use super::*;

const GROUP: FsGroup = FsGroup { gid: 4711, policy: FsGroupChangePolicy::Always };

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: changing owners needs root");
    }
    root
}

fn open(path: &Path) -> OwnedFd {
    std::fs::File::open(path).unwrap().into()
}

fn make(path: &Path, mode: u32) {
    std::fs::write(path, "x").unwrap();
    chmod(path, mode);
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn seen(path: &Path) -> (u32, u32) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    (meta.gid(), meta.mode() & 0o7777)
}

#[test]
fn files_folders_and_links_get_what_the_kubelet_gives() {
    if !is_root() {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    make(&outside.path().join("f"), 0o600);
    for (read_only, file, exec, folder) in [(false, 0o660, 0o4771, 0o2770), (true, 0o640, 0o4751, 0o2750)] {
        let volume = tempfile::tempdir().unwrap();
        let root = volume.path();
        std::fs::create_dir(root.join("d")).unwrap();
        chmod(&root.join("d"), 0o700);
        make(&root.join("d/f"), 0o600);
        make(&root.join("suid"), 0o4711);
        symlink(outside.path(), root.join("out")).unwrap();
        symlink(outside.path().join("f"), root.join("d/out")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();

        apply(open(root).as_fd(), root, GROUP, read_only).unwrap();
        assert_eq!(seen(&root.join("d/f")), (4711, file));
        assert_eq!(seen(&root.join("pipe")), (4711, file));
        assert_eq!(seen(&root.join("suid")), (4711, exec));
        assert_eq!(seen(&root.join("d")), (4711, folder));
        assert_eq!(seen(root), (4711, folder));
        assert_eq!(seen(&root.join("out")).0, 4711);
        assert_eq!(seen(&root.join("d/out")).0, 4711);
        assert_eq!(seen(&outside.path().join("f")), (0, 0o600));
        assert_eq!(seen(outside.path()).0, 0);
    }
}

#[test]
fn on_root_mismatch_looks_at_group_bits_and_setgid() {
    if !is_root() {
        return;
    }
    let group = FsGroup { policy: FsGroupChangePolicy::OnRootMismatch, ..GROUP };
    let volume = tempfile::tempdir().unwrap();
    let (root, file) = (volume.path(), volume.path().join("f"));
    for (gid, mode, read_only, changes) in [
        (4711, 0o2770, false, false),
        (4711, 0o2777, false, false),
        (4711, 0o2750, true, false),
        (4711, 0o2750, false, true),
        (4711, 0o770, false, true),
        (0, 0o2770, false, true),
    ] {
        make(&file, 0o600);
        chown(&file, None, Some(0)).unwrap();
        chown(root, None, Some(gid)).unwrap();
        chmod(root, mode);
        apply(open(root).as_fd(), root, group, read_only).unwrap();
        assert_eq!(seen(&file).0 == 4711, changes, "{gid} {mode:o} {read_only}");
        // The other policy does not look.
        apply(open(root).as_fd(), root, GROUP, read_only).unwrap();
        assert_eq!(seen(&file).0, 4711);
    }
}

#[test]
fn a_file_that_cannot_be_changed_is_told_and_the_root_is_not_marked_as_done() {
    if !is_root() {
        return;
    }
    // The kernel lets nobody change the owner of a file in /proc; a folder there is a tree with such files.
    let root = Path::new("/proc/self/fdinfo");
    let error = apply(open(root).as_fd(), root, GROUP, false).unwrap_err();
    let VolumeError::FsGroup { failed, path, .. } = &error else { panic!("{error:?}") };
    assert!(*failed > 0 && path.starts_with(root), "{error:?}");
    assert_ne!(seen(root).0, 4711);
}

#[test]
fn a_second_run_changes_nothing() {
    if !is_root() {
        return;
    }
    let volume = tempfile::tempdir().unwrap();
    make(&volume.path().join("f"), 0o4600);
    apply(open(volume.path()).as_fd(), volume.path(), GROUP, false).unwrap();
    let times = |p: &Path| std::fs::metadata(p).map(|m| (m.ctime(), m.ctime_nsec())).unwrap();
    let before = (times(volume.path()), times(&volume.path().join("f")));
    apply(open(volume.path()).as_fd(), volume.path(), GROUP, false).unwrap();
    assert_eq!(before, (times(volume.path()), times(&volume.path().join("f"))));
}
