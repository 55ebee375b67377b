//! Removal crosses nothing and follows nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use refloat_mount::{MountTable, PathError, RemoveError};
use rustix::mount::UnmountFlags;

use crate::Test;
use crate::scene::Scene;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("remove::a_tree_with_everything_in_it", tree),
    ("remove::a_deep_tree_with_few_descriptors", deep),
    ("remove::a_mount_in_it_stops_it_beforehand", known_mount),
    ("remove::a_mount_that_the_table_did_not_show_stops_it_there", unknown_mount),
    ("remove::a_symlink_swapped_in_redirects_nothing", symlink_race),
    ("remove::a_mount_that_appears_meanwhile_keeps_its_data", mount_race),
    ("remove::entries_that_vanish_meanwhile_are_fine", vanishing),
    ("remove::single_folders_and_files", single),
    ("remove::empty_folders_upwards", upwards),
];

fn tree(scene: &Scene) {
    for folder in ["v/a/b/c", "v/empty", "v/.hidden", "v/locked/inner"] {
        std::fs::create_dir_all(scene.path(folder)).expect("make it");
    }
    std::fs::write(scene.path("v/a/file"), "x").expect("write");
    std::fs::write(scene.path("v/locked/inner/file"), "x").expect("write");
    std::os::unix::fs::symlink(scene.outside(), scene.path("v/a/out")).expect("symlink");
    std::os::unix::fs::symlink(scene.outside().join("keep.txt"), scene.path("v/a/b/out")).expect("symlink");
    rustix::fs::mknodat(rustix::fs::CWD, scene.path("v/pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("pipe");
    for folder in ["v/locked/inner", "v/locked"] {
        std::fs::set_permissions(scene.path(folder), PermissionsExt::from_mode(0o000)).expect("chmod");
    }
    scene.root.remove_tree(Path::new("v"), &scene.table()).expect("removed");
    assert!(scene.root.list(Path::new("v")).expect("list").is_none());
    scene.assert_kept();
    scene.root.remove_tree(Path::new("v"), &scene.table()).expect("not there is done");
    scene.root.remove_tree(Path::new("no/such/parent"), &scene.table()).expect("not there is done");
    std::fs::write(scene.path("file"), "x").expect("write");
    scene.root.remove_tree(Path::new("file"), &scene.table()).expect("a file");
    std::os::unix::fs::symlink(scene.outside(), scene.path("link")).expect("symlink");
    scene.root.remove_tree(Path::new("link"), &scene.table()).expect("a symlink is removed, not followed");
    assert_eq!(scene.root.list(Path::new(".")).expect("list").expect("there"), []);
    scene.assert_kept();
}

fn deep(scene: &Scene) {
    const DEPTH: usize = 3000;
    // Deeper than a path can be long: made and entered step by step.
    let mut at =
        rustix::fs::open(scene.root.path(), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).expect("open");
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&at, "down", 0o755.into()).expect("make it");
        rustix::fs::mkdirat(&at, "beside", 0o755.into())
            .or_else(|e| if e == rustix::io::Errno::EXIST { Ok(()) } else { Err(e) })
            .expect("make it");
        at = rustix::fs::openat(&at, "down", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).expect("open");
    }
    drop(at);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").expect("list").count() as u64;
    let tight = rustix::process::Rlimit { current: Some(open + 60), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, tight).expect("set the limit");
    let removed = scene.root.remove_tree(Path::new("down"), &scene.table());
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("set the limit back");
    removed.expect("removed");
    assert_eq!(scene.root.list(Path::new(".")).expect("list").expect("there").len(), 1);
}

fn known_mount(scene: &Scene) {
    std::fs::create_dir_all(scene.path("v/first")).expect("make it");
    std::fs::write(scene.path("v/first/file"), "x").expect("write");
    // A bind of the same device: no device number tells it.
    scene.bind(&scene.outside(), "v/z/mount");
    match scene.root.remove_tree(Path::new("v"), &scene.table()).expect_err("refused") {
        RemoveError::Mounts { mounts, .. } => assert_eq!(mounts, [scene.path("v/z/mount")]),
        other => panic!("{other}"),
    }
    assert!(scene.path("v/first/file").is_file(), "nothing was removed");
    let at_it = scene.root.remove_tree(Path::new("v/z/mount"), &scene.table());
    assert!(matches!(at_it, Err(RemoveError::Mounts { .. })));
    let inside = scene.root.remove_tree(Path::new("v/z/mount/keep.txt"), &scene.table());
    assert!(matches!(inside, Err(RemoveError::Path(PathError::Mount { .. }))), "{inside:?}");
    // One that another hides counts too.
    scene.tmpfs("w/a/mount", "hidden");
    scene.tmpfs("w/a", "over it");
    let hidden = scene.root.remove_tree(Path::new("w/a/mount"), &scene.table());
    assert!(matches!(hidden, Err(RemoveError::Mounts { .. })), "{hidden:?}");
    scene.assert_kept();
}

fn unknown_mount(scene: &Scene) {
    let empty = MountTable::default();
    scene.bind(&scene.outside(), "v/a/mount");
    match scene.root.remove_tree(Path::new("v"), &empty).expect_err("stopped") {
        RemoveError::Mounts { mounts, .. } => assert_eq!(mounts, [scene.path("v/a/mount")]),
        other => panic!("{other}"),
    }
    std::fs::create_dir(scene.path("w")).expect("make it");
    std::fs::write(scene.path("w/file"), "").expect("write");
    rustix::mount::mount_bind(scene.outside().join("keep.txt"), scene.path("w/file")).expect("bind a file");
    match scene.root.remove_tree(Path::new("w"), &empty).expect_err("stopped") {
        RemoveError::Mounts { mounts, .. } => assert_eq!(mounts, [scene.path("w/file")]),
        other => panic!("{other}"),
    }
    match scene.root.remove_tree(Path::new("w/file"), &empty).expect_err("stopped") {
        RemoveError::Mounts { mounts, .. } => assert_eq!(mounts, [scene.path("w/file")]),
        other => panic!("{other}"),
    }
    scene.assert_kept();
}

/// What stands outside and must never lose a file.
fn outside_with_files(scene: &Scene) -> PathBuf {
    let outside = scene.outside();
    for index in 0..20 {
        std::fs::create_dir_all(outside.join(format!("d{index}"))).expect("make it");
        std::fs::write(outside.join(format!("d{index}/keep")), "kept").expect("write");
    }
    outside
}

fn assert_files_outside(outside: &Path) {
    for index in 0..20 {
        let kept = std::fs::read(outside.join(format!("d{index}/keep")));
        assert_eq!(kept.expect("nothing outside is deleted"), b"kept");
    }
}

fn symlink_race(scene: &Scene) {
    let outside = outside_with_files(scene);
    let aside = scene.path("aside");
    std::fs::create_dir(&aside).expect("make it");
    let stop = AtomicBool::new(false);
    let table = scene.table();
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0_u32;
            let victim = scene.path("v/swap");
            // Also when the removal is quick: at least some thousands of times.
            while !stop.load(Ordering::Relaxed) || swaps < 3000 {
                if std::fs::rename(&victim, aside.join("held")).is_ok() {
                    let _ = std::os::unix::fs::symlink(&outside, &victim);
                    std::thread::yield_now();
                    let _ = std::fs::remove_file(&victim);
                    let _ = std::fs::rename(aside.join("held"), &victim);
                }
                let _ = std::fs::create_dir_all(victim.join("d1"));
                let _ = std::fs::write(victim.join("d1/keep"), "inside");
                swaps += 1;
            }
        });
        for _ in 0..400 {
            let _ = std::fs::create_dir_all(scene.path("v/swap/d2/d3"));
            // It may fail (somebody keeps filling it), it may not escape.
            let _ = scene.root.remove_tree(Path::new("v"), &table);
            assert_files_outside(&outside);
        }
        stop.store(true, Ordering::Relaxed);
        swapper.join().expect("the swapper ends");
    });
    scene.root.remove_tree(Path::new("v"), &scene.table()).expect("in peace it goes");
    assert_files_outside(&outside);
    scene.assert_kept();
}

fn mount_race(scene: &Scene) {
    let outside = outside_with_files(scene);
    let stop = AtomicBool::new(false);
    // The table was read before: the race is what it is about.
    let table = scene.table();
    std::thread::scope(|scope| {
        let mounter = scope.spawn(|| {
            let place = scene.path("v/m");
            let mut mounted = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                let _ = std::fs::create_dir_all(&place);
                if rustix::mount::mount_bind(&outside, &place).is_ok() {
                    mounted += 1;
                    std::thread::yield_now();
                    let _ = rustix::mount::unmount(&place, UnmountFlags::DETACH);
                }
            }
            mounted
        });
        let mut stopped = 0;
        for _ in 0..500 {
            let _ = std::fs::create_dir_all(scene.path("v/m/d1"));
            if let Err(RemoveError::Mounts { .. }) = scene.root.remove_tree(Path::new("v"), &table) {
                stopped += 1;
            }
            assert_files_outside(&outside);
        }
        stop.store(true, Ordering::Relaxed);
        let times = mounter.join().expect("the mounter ends");
        println!("mounted {times} times, removal stopped by it {stopped} times");
        assert!(times > 0);
    });
    assert_files_outside(&outside);
    scene.assert_kept();
}

fn vanishing(scene: &Scene) {
    for round in 0..20 {
        for index in 0..200 {
            std::fs::create_dir_all(scene.path(&format!("v/{index}/a"))).expect("make it");
            std::fs::write(scene.path(&format!("v/{index}/f")), "").expect("write");
        }
        let table = scene.table();
        std::thread::scope(|scope| {
            let two = [
                scope.spawn(|| scene.root.remove_tree(Path::new("v"), &table)),
                scope.spawn(|| scene.root.remove_tree(Path::new("v"), &table)),
            ];
            for each in two {
                each.join().expect("no panic").unwrap_or_else(|error| panic!("round {round}: {error}: {error:?}"));
            }
        });
        assert!(scene.root.list(Path::new("v")).expect("list").is_none());
    }
}

fn single(scene: &Scene) {
    std::fs::create_dir_all(scene.path("a/b")).expect("make it");
    assert!(!scene.root.remove_dir(Path::new("a")).expect("not empty is no error"));
    assert!(scene.root.remove_dir(Path::new("a/b")).expect("empty"));
    assert!(scene.root.remove_dir(Path::new("a/b")).expect("gone is gone"));
    assert!(scene.root.remove_dir(Path::new("x/y/z")).expect("gone is gone"));
    std::fs::write(scene.path("f"), "").expect("write");
    let error = scene.root.remove_dir(Path::new("f")).expect_err("no folder");
    assert!(matches!(error, RemoveError::Path(PathError::NotAFolder { .. })), "{error:?}");
    std::os::unix::fs::symlink(scene.outside(), scene.path("l")).expect("symlink");
    let error = scene.root.remove_dir(Path::new("l")).expect_err("a symlink");
    assert!(matches!(error, RemoveError::Path(PathError::Symlink { .. })), "{error:?}");
    scene.tmpfs("m", "mounted");
    assert!(matches!(scene.root.remove_dir(Path::new("m")), Err(RemoveError::Mounts { .. })));
    scene.root.remove_file(Path::new("f")).expect("removed");
    scene.root.remove_file(Path::new("f")).expect("gone is gone");
    scene.root.remove_file(Path::new("l")).expect("the symlink goes");
    scene.root.remove_file(Path::new("a")).expect_err("a folder is no file");
    scene.assert_kept();
}

fn upwards(scene: &Scene) {
    std::fs::create_dir_all(scene.path("pods/u/volumes/p/v")).expect("make it");
    std::fs::create_dir_all(scene.path("pods/u/other")).expect("make it");
    scene.root.remove_empty_dirs_up(Path::new("pods/u/volumes/p/v"), Path::new("pods")).expect("removed");
    assert!(!scene.path("pods/u/volumes").is_dir() && scene.path("pods/u/other").is_dir());
    scene.root.remove_empty_dirs_up(Path::new("pods/u/other"), Path::new("pods")).expect("removed");
    assert!(scene.path("pods").is_dir() && !scene.path("pods/u").is_dir(), "up to but without");
    scene.root.remove_empty_dirs_up(Path::new("pods/gone/deep"), Path::new("pods")).expect("what is gone is done");
    assert!(scene.path("pods").is_dir());
    scene.root.remove_empty_dirs_up(Path::new("pods"), Path::new("elsewhere")).expect("not below: nothing");
    assert!(scene.path("pods").is_dir());
    scene.root.remove_empty_dirs_up(Path::new("pods"), Path::new("")).expect("removed");
    assert!(!scene.path("pods").is_dir() && scene.root.path().is_dir());
}
