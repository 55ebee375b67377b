//! New mounts: detached, filled, announced, attached.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use refloat_mount::{BindOptions, Mount, NewMount, NodeRoot, mount_by_helper};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::Test;
use crate::scene::Scene;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("new_mount::tmpfs_with_options", tmpfs),
    ("new_mount::is_filled_before_it_is_seen", filled),
    ("new_mount::an_unknown_option_is_an_error_that_says_so", unknown_option),
    ("new_mount::announced_is_what_the_table_shows", announced),
    ("new_mount::read_only_bind", read_only),
    ("new_mount::options_of_a_bind", bind_options),
    ("new_mount::recursive_bind", recursive),
    ("new_mount::a_file", file),
    ("new_mount::propagation", propagation),
    ("new_mount::a_target_that_is_mounted_meanwhile_is_refused", taken),
    ("new_mount::a_target_that_is_replaced_meanwhile_is_refused", replaced),
    ("new_mount::dropped_leaves_nothing", dropped),
    ("new_mount::by_a_helper", helper),
    ("new_mount::a_helper_that_fails_says_why", helper_fails),
];

fn shows(mount: Mount<'_>) -> (String, String, String) {
    (mount.fs_type().into_owned(), mount.source().into_owned(), mount.root().to_string_lossy().into_owned())
}

fn attach(scene: &Scene, mount: NewMount, rel: &str) {
    let (announced, before) = (mount.announced(), mount.id());
    let target = scene.root.make_dirs(Path::new(rel), 0o750).expect("make the target");
    let id = mount.attach(&target).expect("attach");
    assert_eq!(before, id.filter(|_| before.is_some()), "the id is the same before and after");
    assert_eq!(id.is_some(), scene.kernel.features().unique_mount_id);
    let table = scene.table();
    let stack = table.stack(&scene.path(rel));
    assert_eq!(stack.len(), 1);
    assert_eq!(shows(stack[0]), announced);
    if scene.kernel.features().listmount {
        assert_eq!(stack[0].id(), id);
    }
}

fn tmpfs(scene: &Scene) {
    let mount = NewMount::tmpfs(scene.kernel, &[("size", Some("1048576")), ("mode", Some("0750")), ("noexec", None)]);
    attach(scene, mount.expect("make it"), "mem");
    let table = scene.table();
    let mount = table.at(&scene.path("mem")).expect("it is there");
    assert!(mount.fs_options().contains("size=1024k"), "{}", mount.fs_options());
    assert!(mount.fs_options().contains("mode=750"), "{}", mount.fs_options());
    assert!(mount.options().contains("noexec"));
    assert!(!mount.read_only());
    let full = std::fs::write(scene.path("mem/large"), vec![1; 2 << 20]).expect_err("the limit holds");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let read_only = NewMount::file_system(scene.kernel, "tmpfs", "", &["ro,nosuid".to_owned(), "size=4k".to_owned()]);
    attach(scene, read_only.expect("make it"), "ro");
    let table = scene.table();
    let mount = table.at(&scene.path("ro")).expect("it is there");
    assert!(mount.read_only() && mount.options().contains("nosuid") && mount.fs_options().starts_with("ro"));
}

fn filled(scene: &Scene) {
    let mount = NewMount::tmpfs(scene.kernel, &[]).expect("make it");
    let Some(root) = mount.root() else {
        assert!(!scene.kernel.features().new_mount_calls);
        return;
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, "secret", flags, Mode::from_raw_mode(0o400)).expect("create");
    rustix::io::write(&file, b"content").expect("write");
    drop(file);
    attach(scene, mount, "mem");
    assert_eq!(std::fs::read(scene.path("mem/secret")).expect("read"), b"content");
}

fn unknown_option(scene: &Scene) {
    let made = NewMount::tmpfs(scene.kernel, &[("no-such-option", Some("1"))]);
    let error = match made {
        Ok(mount) => {
            let target = scene.root.make_dirs(Path::new("t"), 0o750).expect("make the target");
            mount.attach(&target).expect_err("refused when mounted")
        }
        Err(error) => error,
    };
    assert!(error.to_string().contains("no-such-option"), "{error}");
    assert_eq!(scene.mounts_at("t"), 0);
    let error = NewMount::file_system(scene.kernel, "no-such-type", "x", &[]).map(drop);
    assert_eq!(error.is_err(), scene.kernel.features().new_mount_calls);
}

fn announced(scene: &Scene) {
    let inside = scene.outside().join("a b/c#\\d");
    std::fs::create_dir_all(&inside).expect("make it");
    attach(scene, scene.new_bind(&inside, &BindOptions::default()), "bind");
    // A bind of a bind, and of a folder in one.
    attach(scene, scene.new_bind(&scene.path("bind"), &BindOptions::default()), "bind2");
    std::fs::create_dir_all(inside.join("deep/er")).expect("make it");
    attach(scene, scene.new_bind(&scene.path("bind2/deep/er"), &BindOptions::default()), "bind3");
    let table = scene.table();
    assert!(table.at(&scene.path("bind3")).expect("there").root().ends_with("outside/a b/c#\\d/deep/er"));
    // Of a mount's own root.
    scene.tmpfs("mem", "some source");
    attach(scene, scene.new_bind(&scene.path("mem"), &BindOptions::default()), "bind4");
}

fn writable(path: &Path) -> bool {
    match std::fs::write(path.join("probe"), "x") {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => false,
        Err(error) => panic!("{error}"),
    }
}

fn read_only(scene: &Scene) {
    let options = BindOptions { read_only: true, ..BindOptions::default() };
    attach(scene, scene.new_bind(&scene.outside(), &options), "ro");
    attach(scene, scene.new_bind(&scene.outside(), &BindOptions::default()), "rw");
    assert!(!writable(&scene.path("ro")));
    assert!(writable(&scene.path("rw")) && writable(&scene.outside()), "the source keeps its own");
    let table = scene.table();
    assert!(table.at(&scene.path("ro")).expect("there").read_only());
    assert!(!table.at(&scene.path("rw")).expect("there").read_only());
    // A source with options of its own keeps them.
    std::fs::create_dir(scene.path("strict")).expect("make it");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("strict", scene.path("strict"), "tmpfs", flags, None).expect("mount");
    attach(scene, scene.new_bind(&scene.path("strict"), &options), "strict-ro");
    let table = scene.table();
    let mount = table.at(&scene.path("strict-ro")).expect("there");
    assert!(mount.options().starts_with("ro,nosuid,nodev,noexec"), "{}", mount.options());
}

fn bind_options(scene: &Scene) {
    std::fs::create_dir(scene.path("strict")).expect("make it");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    rustix::mount::mount("strict", scene.path("strict"), "tmpfs", flags, None).expect("mount");
    for (n, (source, options, read_only, expected)) in [
        ("../outside", &["noexec", "nosuid"][..], false, "rw,nosuid,noexec,relatime"),
        ("../outside", &["nodev,noatime"], true, "ro,nodev,noatime"),
        ("../outside", &["ro", "rw"], false, "rw,relatime"),
        ("../outside", &["ro", "rw"], true, "ro,relatime"),
        ("../outside", &["noatime", "relatime", "nodiratime"], false, "rw,nodiratime,relatime"),
        ("../outside", &["strictatime"], false, "rw"),
        // What is not named stays.
        ("strict", &["noexec"], false, "rw,nosuid,nodev,noexec,noatime"),
        ("strict", &["suid", "relatime"], false, "rw,nodev,relatime"),
        // A file system's own change nothing, and are told.
        ("../outside", &["discard", "size=1M", "bind", "x-a", "nodev"], false, "rw,nodev,relatime"),
    ]
    .into_iter()
    .enumerate()
    {
        let options = options.iter().map(|&o| o.to_owned()).collect();
        let options = BindOptions { read_only, options, ..BindOptions::default() };
        let told: &[&str] = if n == 8 { &["discard", "size=1M"] } else { &[] };
        assert_eq!(options.ignored(), told, "{n}");
        assert_eq!(options.is_read_only(), expected.starts_with("ro"), "{n}");
        let name = format!("bind{n}");
        attach(scene, scene.new_bind(&scene.path(source), &options), &name);
        let table = scene.table();
        assert_eq!(table.at(&scene.path(&name)).expect("there").options(), expected, "{n}");
    }
}

fn recursive(scene: &Scene) {
    scene.tmpfs("src", "src");
    scene.tmpfs("src/inner", "inner");
    attach(scene, scene.new_bind(&scene.path("src"), &BindOptions::default()), "flat");
    assert_eq!(scene.table().under(&scene.path("flat")).len(), 0);
    let options = BindOptions { recursive: true, read_only: true, ..BindOptions::default() };
    attach(scene, scene.new_bind(&scene.path("src"), &options), "deep");
    assert_eq!(scene.table().under(&scene.path("deep")).len(), 1);
    assert!(!writable(&scene.path("deep")) && !writable(&scene.path("deep/inner")));
    assert!(writable(&scene.path("src/inner")));
}

fn file(scene: &Scene) {
    let source = scene.outside().join("keep.txt");
    let mount = scene.new_bind(&source, &BindOptions::default());
    let announced = mount.announced();
    let target = scene.root.make_file(Path::new("sub/file"), 0o640).expect("make the target");
    mount.attach(&target).expect("attach");
    assert_eq!(std::fs::read(scene.path("sub/file")).expect("read"), b"kept");
    let table = scene.table();
    assert_eq!(shows(table.at(&scene.path("sub/file")).expect("there")), announced);
    scene.unmount("sub/file", None).expect("unmount");
    assert_eq!(std::fs::read(scene.path("sub/file")).expect("read"), b"");
    scene.assert_kept();
}

fn propagation(scene: &Scene) {
    scene.tmpfs("shared", "shared");
    rustix::mount::mount_change(scene.path("shared"), MountPropagationFlags::SHARED).expect("share");
    attach(scene, scene.new_bind(&scene.path("shared"), &BindOptions::default()), "private");
    let slave = BindOptions { slave: true, ..BindOptions::default() };
    attach(scene, scene.new_bind(&scene.path("shared"), &slave), "slave");
    scene.tmpfs("shared/later", "later");
    let table = scene.table();
    assert!(table.at(&scene.path("private/later")).is_none());
    assert_eq!(table.at(&scene.path("slave/later")).expect("it came over").source(), "later");
    assert!(!table.at(&scene.path("private")).expect("there").shared());
    assert!(table.at(&scene.path("slave")).expect("there").propagation().starts_with("master:"));
    // Below a shared mount a new one becomes shared, with a group of its own.
    let root = NodeRoot::open(&scene.path("shared")).expect("a root that is a mount");
    let target = root.make_dirs(Path::new("volume"), 0o750).expect("make the target");
    scene.new_bind(&scene.outside(), &BindOptions::default()).attach(&target).expect("attach");
    let table = scene.table();
    assert!(table.at(&scene.path("shared/volume")).expect("there").shared());
    assert!(table.at(&scene.path("slave/volume")).is_some(), "and containers see it");
}

fn taken(scene: &Scene) {
    let mount = scene.new_bind(&scene.outside(), &BindOptions::default());
    let target = scene.root.make_dirs(Path::new("t"), 0o750).expect("make the target");
    scene.tmpfs("t", "somebody else");
    let error = mount.attach(&target).expect_err("refused");
    assert_eq!(error.source.raw_os_error(), Some(libc::EBUSY), "{error}");
    let table = scene.table();
    let stack = table.stack(&scene.path("t"));
    assert_eq!(stack.len(), 1);
    assert_eq!(stack[0].source(), "somebody else");
}

fn replaced(scene: &Scene) {
    let mount = scene.new_bind(&scene.outside(), &BindOptions::default());
    let target = scene.root.make_dirs(Path::new("t"), 0o750).expect("make the target");
    std::fs::rename(scene.path("t"), scene.path("moved")).expect("rename");
    std::os::unix::fs::symlink(scene.outside(), scene.path("t")).expect("plant a symlink");
    let error = mount.attach(&target).expect_err("refused");
    assert_eq!(error.source.raw_os_error(), Some(libc::ESTALE), "{error}");
    assert_eq!(scene.table().under(&scene.base).len(), 0);
}

fn dropped(scene: &Scene) {
    let before = scene.table().len();
    drop(NewMount::tmpfs(scene.kernel, &[]).expect("make it"));
    drop(scene.new_bind(&scene.outside(), &BindOptions::default()));
    assert_eq!(scene.table().len(), before);
}

fn helper(scene: &Scene) {
    let target = scene.root.make_dirs(Path::new("h"), 0o750).expect("make the target");
    let options = ["size=64k".to_owned(), "nosuid".to_owned()];
    match mount_by_helper("tmpfs", "by mount", &target, &options, Duration::from_secs(20)) {
        Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped new_mount::by_a_helper: no mount(8)");
        }
        answer => {
            answer.expect("it mounts");
            assert_eq!(scene.table().at(&scene.path("h")).expect("there").source(), "by mount");
            let again = mount_by_helper("tmpfs", "again", &target, &options, Duration::from_secs(20));
            assert_eq!(again.expect_err("taken").source.raw_os_error(), Some(libc::EBUSY));
        }
    }
}

fn helper_fails(scene: &Scene) {
    let target = scene.root.make_dirs(Path::new("h"), 0o750).expect("make the target");
    match mount_by_helper("no-such-type", "-x", &target, &[], Duration::from_secs(20)) {
        Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => eprintln!("skipped: no mount(8)"),
        answer => {
            let error = answer.expect_err("there is no such type");
            assert!(error.detail.as_deref().is_some_and(|detail| detail.starts_with("mount:")), "{error:?}");
        }
    }
    let late = mount_by_helper("tmpfs", "late", &target, &[], Duration::ZERO);
    if let Err(error) = late {
        assert_eq!(error.source.raw_os_error(), Some(libc::ETIMEDOUT), "{error}");
    }
    let _ = rustix::mount::unmount(target.path(), UnmountFlags::DETACH);
    let _ = target.as_fd();
}
