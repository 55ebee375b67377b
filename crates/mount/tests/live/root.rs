//! The node root: opening, making and listing.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use refloat_mount::{EntryKind, NodeRoot, PathError};

use crate::Test;
use crate::scene::Scene;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("root::given_in_any_spelling", spellings),
    ("root::missing_or_no_folder", missing),
    ("root::paths_that_leave_it", escapes),
    ("root::symlinks_are_never_followed", symlinks),
    ("root::mounts_are_not_crossed", mounts),
    ("root::modes_are_exact", modes),
    ("root::files_as_targets", files),
    ("root::listing", listing),
];

fn spellings(scene: &Scene) {
    let real = scene.root.path().to_owned();
    std::os::unix::fs::symlink("root", scene.base.join("link")).expect("symlink");
    std::os::unix::fs::symlink(&scene.base, scene.base.join("up")).expect("symlink");
    std::fs::create_dir(real.join("pods")).expect("make it");
    let base = scene.base.display();
    for given in [
        format!("{base}/root/"),
        format!("{base}//root"),
        format!("{base}/link"),
        format!("{base}/link///"),
        format!("{base}/up/link"),
        format!("{base}/./root/../root"),
    ] {
        let root = NodeRoot::open(Path::new(&given)).expect("it opens");
        assert_eq!(root.path(), real, "{given}");
        assert_eq!(root.given_path(), Path::new(&given));
        assert_eq!(root.list(Path::new(".")).expect("list").expect("there").len(), 1);
    }
    // Itself a mount, and a bind: each mount below shows as the table spells it.
    std::fs::create_dir(scene.base.join("bound")).expect("make it");
    rustix::mount::mount_bind_recursive(&real, scene.base.join("bound")).expect("bind");
    let root = NodeRoot::open(&scene.base.join("bound")).expect("it opens");
    std::fs::create_dir(root.path().join("m")).expect("make it");
    rustix::mount::mount_bind(scene.outside(), root.path().join("m")).expect("bind");
    assert!(scene.table().at(&root.path().join("m")).is_some());
    root.unmount(Path::new("m"), None, refloat_mount::UnmountHow::Ordinary, &mut scene.reader()).expect("unmount");
    assert!(root.open_dir(Path::new("pods")).expect("open").is_some());
}

fn missing(scene: &Scene) {
    let error = NodeRoot::open(&scene.base.join("no-such")).expect_err("an error, not an empty root");
    assert!(matches!(error, PathError::Io { .. }) && error.to_string().contains("no-such"), "{error}");
    let error = NodeRoot::open(&scene.outside().join("keep.txt")).expect_err("no folder");
    assert!(matches!(error, PathError::NotAFolder { .. }), "{error}");
    assert!(scene.root.open_dir(Path::new("a/b")).expect("no error").is_none());
    assert!(scene.root.list(Path::new("a")).expect("no error").is_none());
}

fn escapes(scene: &Scene) {
    for path in ["", "..", "a/..", "../outside", "/etc", "a/../../outside", "a/.."] {
        let path = Path::new(path);
        let escapes = |error: PathError| assert!(matches!(error, PathError::Escapes { .. }), "{error}");
        escapes(scene.root.open_dir(path).expect_err("refused"));
        escapes(scene.root.make_dirs(path, 0o750).expect_err("refused"));
        escapes(scene.root.make_file(path, 0o640).expect_err("refused"));
        escapes(scene.root.list(path).expect_err("refused"));
        assert!(scene.root.remove_tree(path, &scene.table()).is_err());
        assert!(scene.root.remove_dir(path).is_err());
        assert!(scene.root.remove_file(path).is_err());
    }
    {
        let path = ".";
        assert!(scene.root.remove_tree(Path::new(path), &scene.table()).is_err(), "the root itself is never removed");
        assert!(scene.root.remove_dir(Path::new(path)).is_err());
        assert!(scene.unmount(path, None).is_err());
    }
    scene.assert_kept();
}

fn symlinks(scene: &Scene) {
    std::fs::create_dir(scene.path("real")).expect("make it");
    std::os::unix::fs::symlink(scene.outside(), scene.path("real/out")).expect("symlink");
    std::os::unix::fs::symlink("/proc/self/cwd", scene.path("magic")).expect("symlink");
    for path in ["real/out", "real/out/sub", "magic"] {
        let wanted = if path == "magic" { scene.path("magic") } else { scene.path("real/out") };
        for error in [
            scene.root.open_dir(Path::new(path)).map(drop).expect_err("refused"),
            scene.root.open_dir_in_mount(Path::new(path)).map(drop).expect_err("refused"),
            scene.root.make_dirs(Path::new(path), 0o755).map(drop).expect_err("refused"),
            scene.root.list(Path::new(path)).map(drop).expect_err("refused"),
        ] {
            match error {
                PathError::Symlink { link, path: whole, .. } => {
                    assert_eq!(link, wanted);
                    assert_eq!(whole, scene.path(path));
                }
                other => panic!("{path}: {other}"),
            }
        }
    }
    let error = scene.root.make_file(Path::new("real/out"), 0o640).expect_err("refused");
    assert!(matches!(error, PathError::Symlink { .. }), "{error}");
    assert_eq!(std::fs::read_dir(scene.outside()).expect("list").count(), 1);
    std::fs::write(scene.path("file"), "").expect("write");
    match scene.root.make_dirs(Path::new("file/sub"), 0o755).expect_err("refused") {
        PathError::NotAFolder { part, .. } => assert_eq!(part, scene.path("file")),
        other => panic!("{other}"),
    }
}

fn mounts(scene: &Scene) {
    scene.bind(&scene.outside(), "a/mount");
    std::fs::create_dir(scene.outside().join("sub")).expect("make it");
    for path in ["a/mount", "a/mount/sub"] {
        for error in [
            scene.root.open_dir(Path::new(path)).map(drop).expect_err("refused"),
            scene.root.make_dirs(Path::new(path), 0o755).map(drop).expect_err("refused"),
            scene.root.list(Path::new(path)).map(drop).expect_err("refused"),
        ] {
            match error {
                PathError::Mount { mount, .. } => assert_eq!(mount, scene.path("a/mount")),
                other => panic!("{path}: {other}"),
            }
        }
    }
    let dir = scene.root.open_dir_in_mount(Path::new("a/mount")).expect("this one may").expect("there");
    assert_eq!(dir.entries().expect("list").len(), 2);
    let error = scene.root.open_dir_in_mount(Path::new("a/mount/sub")).expect_err("only the last may be a mount");
    assert!(matches!(error, PathError::Mount { .. }), "{error}");
    let a = scene.root.open_dir(Path::new("a")).expect("open").expect("there");
    assert!(matches!(a.open_dir(Path::new("mount")), Err(PathError::Mount { .. })));
}

fn modes(scene: &Scene) {
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let made = scene.root.make_dirs(Path::new("a/b/c"), 0o2777);
    let file = scene.root.make_file(Path::new("f/g"), 0o666);
    rustix::process::umask(umask);
    let of = |rel: &str| std::fs::symlink_metadata(scene.path(rel)).expect("stat").permissions().mode() & 0o7777;
    assert_eq!(made.expect("made").path(), scene.path("a/b/c"));
    assert_eq!([of("a"), of("a/b"), of("a/b/c")], [0o2777; 3]);
    file.expect("made");
    assert_eq!((of("f"), of("f/g")), (0o750, 0o666));
    let again = scene.root.make_dirs(Path::new("a/b/d"), 0o700).expect("made");
    assert_eq!((of("a"), of("a/b/d")), (0o2777, 0o700), "folders that exist keep their mode");
    again.set_mode(0o751).expect("set");
    assert_eq!(of("a/b/d"), 0o751);
}

fn files(scene: &Scene) {
    let first = scene.root.make_file(Path::new("a/file"), 0o640).expect("made");
    std::fs::write(scene.path("a/file"), "content").expect("write");
    scene.root.make_file(Path::new("a/file"), 0o600).expect("existing is fine");
    assert_eq!(std::fs::read(scene.path("a/file")).expect("read"), b"content");
    assert_eq!(std::fs::metadata(first.path()).expect("stat").mode() & 0o7777, 0o640);
    std::fs::create_dir(scene.path("folder")).expect("make it");
    let error = scene.root.make_file(Path::new("folder"), 0o640).expect_err("a folder stands there");
    assert!(matches!(error, PathError::Io { .. }), "{error}");
    rustix::fs::mknodat(rustix::fs::CWD, scene.path("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("pipe");
    scene.root.make_file(Path::new("pipe"), 0o640).expect_err("no regular file, and it does not hang");
}

fn listing(scene: &Scene) {
    for name in ["b", "a", "c"] {
        std::fs::create_dir(scene.path(name)).expect("make it");
    }
    std::fs::write(scene.path("file"), "").expect("write");
    std::os::unix::fs::symlink("nowhere", scene.path("link")).expect("symlink");
    let _socket = std::os::unix::net::UnixListener::bind(scene.path("socket")).expect("socket");
    scene.tmpfs("c", "mounted: its folder is listed, it is not touched");
    let entries = scene.root.list(Path::new(".")).expect("list").expect("there");
    let found: Vec<_> = entries.iter().map(|e| (e.name.to_str().expect("text"), e.kind)).collect();
    let wanted = [
        ("a", EntryKind::Dir),
        ("b", EntryKind::Dir),
        ("c", EntryKind::Dir),
        ("file", EntryKind::File),
        ("link", EntryKind::Symlink),
        ("socket", EntryKind::Socket),
    ];
    assert_eq!(found, wanted);
    let a = scene.root.open_dir(Path::new("a")).expect("open").expect("there");
    assert!(a.is_empty().expect("list"));
    for index in 0..5000 {
        std::fs::write(scene.path(&format!("a/{index:08}-with-a-long-name-so-that-several-reads-are-needed")), "")
            .expect("write");
    }
    assert!(!a.is_empty().expect("list"));
    assert_eq!(a.entries().expect("list").len(), 5000);
    assert_eq!(a.entries().expect("list again").len(), 5000);
}
