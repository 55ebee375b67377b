//! The guarded unmount.

use std::num::NonZeroU64;
use std::path::Path;

use refloat_mount::{PathError, UniqueMountId, UnmountError, UnmountHow};
use rustix::mount::UnmountFlags;

use crate::Test;
use crate::scene::Scene;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("unmount::layer_by_layer", layers),
    ("unmount::nothing_there_is_done", nothing),
    ("unmount::only_the_expected_one", expected),
    ("unmount::a_busy_one_stays", busy),
    ("unmount::a_hidden_one_is_not_mistaken", hidden),
    ("unmount::inside_another_mount", nested),
    ("unmount::a_symlink_on_the_way_is_not_followed", symlink),
    ("unmount::a_stale_reader_is_no_danger", stale_reader),
    ("unmount::a_moved_one_is_found", moved),
    ("unmount::odd_names", odd_names),
];

fn layers(scene: &Scene) {
    for source in ["one", "two", "three"] {
        scene.tmpfs("v", source);
    }
    for left in [2, 1, 0] {
        let id = scene.table().at(&scene.path("v")).expect("there").id();
        scene.unmount("v", id).expect("the topmost goes");
        assert_eq!(scene.mounts_at("v"), left);
    }
    scene.unmount("v", None).expect("none is done");
    assert!(scene.path("v").is_dir());
}

fn nothing(scene: &Scene) {
    scene.unmount("no/such/folder", None).expect("done");
    std::fs::create_dir(scene.path("plain")).expect("make it");
    scene.unmount("plain", None).expect("done");
    let id = NonZeroU64::new(1 << 60).map(UniqueMountId);
    scene.unmount("plain", id).expect("gone is done");
    assert!(matches!(scene.unmount("../outside", None), Err(UnmountError::Path(PathError::Escapes { .. }))));
    assert!(matches!(scene.unmount("", None), Err(UnmountError::Path(PathError::Escapes { .. }))));
}

fn expected(scene: &Scene) {
    scene.tmpfs("v", "ours");
    let ours = scene.table().at(&scene.path("v")).expect("there").id();
    scene.tmpfs("v", "somebody else's");
    if ours.is_none() {
        return println!("without ids the topmost is taken");
    }
    let error = scene.unmount("v", ours).expect_err("not on top");
    assert!(matches!(&error, UnmountError::OtherMount { found, .. } if found.contains("somebody else's")), "{error}");
    assert_eq!(scene.mounts_at("v"), 2);
    let error = scene.unmount("v", NonZeroU64::new(1 << 60).map(UniqueMountId)).expect_err("another");
    assert!(matches!(error, UnmountError::OtherMount { .. }), "{error}");
    scene.unmount("v", None).expect("the topmost");
    scene.unmount("v", ours).expect("now it is on top");
    assert_eq!(scene.mounts_at("v"), 0);
}

fn busy(scene: &Scene) {
    scene.tmpfs("v", "busy");
    let open = std::fs::File::create(scene.path("v/file")).expect("create");
    let error = scene.unmount("v", None).expect_err("busy");
    assert!(matches!(error, UnmountError::Busy { .. }), "{error}");
    assert_eq!(scene.mounts_at("v"), 1);
    let lazy = scene.root.unmount(Path::new("v"), None, UnmountHow::Lazy, &mut scene.reader());
    lazy.expect("out of sight");
    assert_eq!(scene.mounts_at("v"), 0);
    drop(open);
    scene.tmpfs("w", "outer");
    scene.tmpfs("w/inner", "inner");
    assert!(matches!(scene.unmount("w", None), Err(UnmountError::Busy { .. })), "something is mounted inside");
}

fn hidden(scene: &Scene) {
    scene.tmpfs("a/v", "hidden");
    let id = scene.table().at(&scene.path("a/v")).expect("there").id();
    scene.tmpfs("a", "over the folder");
    std::fs::create_dir(scene.path("a/v")).expect("the same name again");
    let error = scene.unmount("a/v", id).expect_err("it exists, and no path leads to it");
    assert!(matches!(&error, UnmountError::OtherMount { found, .. } if found.contains("hidden")), "{error}");
    scene.unmount("a", None).expect("take the cover off");
    scene.unmount("a/v", id).expect("now it goes");
    assert_eq!(scene.mounts_at("a/v"), 0);
}

fn nested(scene: &Scene) {
    scene.tmpfs("v/n", "outer");
    scene.tmpfs("v/n/in", "inner");
    scene.tmpfs("v/n/in", "inner again");
    let table = scene.table();
    let mut deepest_first: Vec<_> = table.under(&scene.path("v")).map(|m| (m.point().to_owned(), m.id())).collect();
    deepest_first.reverse();
    assert_eq!(deepest_first.len(), 3);
    for (point, id) in deepest_first {
        let rel = point.strip_prefix(scene.root.path()).expect("beneath the root");
        scene.unmount(rel.to_str().expect("text"), id).expect("unmounted");
    }
    assert_eq!(scene.table().under(&scene.path("v")).len(), 0);
}

fn symlink(scene: &Scene) {
    scene.tmpfs("real/v", "ours");
    std::os::unix::fs::symlink("real", scene.path("link")).expect("symlink");
    scene.unmount("link/v", None).expect("nothing is mounted at that path");
    // The folder above is swapped for a symlink to where the same name is mounted, after the table was read.
    std::fs::create_dir(scene.outside().join("v")).expect("make it");
    rustix::mount::mount("outside", scene.outside().join("v"), "tmpfs", rustix::mount::MountFlags::empty(), None)
        .expect("mount");
    let mut reader = scene.reader();
    reader.read().expect("read");
    std::fs::rename(scene.path("real"), scene.path("moved")).expect("rename");
    std::os::unix::fs::symlink(scene.outside(), scene.path("real")).expect("symlink");
    let _ = scene.root.unmount(Path::new("real/v"), None, UnmountHow::Ordinary, &mut reader);
    assert_eq!(scene.table().stack(&scene.outside().join("v")).len(), 1, "what is outside stays mounted");
    assert_eq!(scene.mounts_at("moved/v"), 1);
    rustix::mount::unmount(scene.outside().join("v"), UnmountFlags::empty()).expect("unmount");
}

/// A reader that last looked long ago asks for what is new before anything is undone.
fn stale_reader(scene: &Scene) {
    scene.tmpfs("v", "first");
    let mut reader = scene.reader();
    let id = reader.read().expect("read").at(&scene.path("v")).expect("there").id();
    rustix::mount::unmount(scene.path("v"), UnmountFlags::empty()).expect("by hand");
    scene.tmpfs("v", "by hand");
    if id.is_some() {
        let error = scene.root.unmount(Path::new("v"), id, UnmountHow::Ordinary, &mut reader).expect_err("another");
        assert!(matches!(error, UnmountError::OtherMount { .. }), "{error}");
    }
    scene.root.unmount(Path::new("v"), None, UnmountHow::Ordinary, &mut reader).expect("the one that is there");
    assert_eq!(scene.mounts_at("v"), 0);
}

/// A move keeps the id, so a reader that knew the mount has its old path.
fn moved(scene: &Scene) {
    scene.tmpfs("old/v", "moved");
    let mut reader = scene.reader();
    let id = reader.read().expect("read").at(&scene.path("old/v")).expect("there").id();
    std::fs::rename(scene.path("old"), scene.path("new")).expect("a folder above gets another name");
    let root = &scene.root;
    root.unmount(Path::new("new/v"), id, UnmountHow::Ordinary, &mut reader).expect("unmounted where it is");
    assert_eq!(scene.mounts_at("new/v"), 0);
    scene.tmpfs("new/v", "moved");
    let id = reader.read().expect("read").at(&scene.path("new/v")).expect("there").id();
    std::fs::rename(scene.path("new"), scene.path("newer")).expect("a folder above gets another name");
    root.unmount(Path::new("new/v"), id, UnmountHow::Ordinary, &mut reader).expect("not at this path: done");
    assert_eq!(scene.mounts_at("newer/v"), 1);
}

fn odd_names(scene: &Scene) {
    for name in ["[ds\\040] vm/d.vmdk", "tab\t", "new\nline", "#", "-", "x (deleted)"] {
        scene.tmpfs(name, "odd");
        assert_eq!(scene.mounts_at(name), 1);
        scene.unmount(name, None).expect("unmounted");
        assert_eq!(scene.mounts_at(name), 0);
        assert!(scene.root.remove_dir(Path::new(name)).expect("removed"));
    }
}
