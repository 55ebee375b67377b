//! configMap, secret, downwardAPI, projected: written, updated, repaired, undone; and fsGroup beside mounts.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use refloat_volume::{Payload, PayloadFile, apply_fs_group, clear_payload, write_payload};
use serde_json::{Value, json};

use crate::node::{Life, Node, bind, code, gid, group, kernels, mode, mount_tmpfs, owner, there, unmount};

refloat_test_support::tests![
    the_tree_is_the_kubelets,
    an_update_is_seen_through_the_same_mount,
    unchanged_content_is_not_touched,
    what_somebody_broke_is_repaired,
    the_group_owns_everything,
    a_reboot_takes_the_mount_and_it_is_made_anew,
    without_content_nothing_is_emptied,
    a_mount_by_hand_is_refused,
    a_stray_file_is_not_hidden,
    without_a_record_no_file_of_a_folder_is_deleted,
    what_is_mounted_inside_survives,
    a_symlink_in_place_of_the_folder_is_not_followed,
    a_full_file_system_keeps_the_old_content,
    content_with_a_mount_in_it_is_not_deleted_through_it,
    the_group_crosses_no_mount,
];

fn volumes() -> [(&'static str, bool, Value); 4] {
    [
        ("configmap", false, json!({ "name": "v", "configMap": { "name": "c" } })),
        ("secret", true, json!({ "name": "v", "secret": { "secretName": "s" } })),
        ("downward-api", true, json!({ "name": "v", "downwardAPI": {} })),
        ("projected", true, json!({ "name": "v", "projected": { "sources": [] } })),
    ]
}

fn payload(files: &[(&str, &str)]) -> Payload {
    let mut payload = Payload::default();
    for (path, data) in files {
        payload.insert(path, PayloadFile { data: data.as_bytes().to_vec(), mode: 0o640 }).unwrap();
    }
    payload
}

fn life<'n>(node: &'n Node, volume: &Value, files: &[(&str, &str)]) -> Life<'n> {
    let mut life = Life::inline(node, "u1", volume);
    life.content = Some(payload(files));
    life
}

fn marker(node: &Node) -> PathBuf {
    node.pod_path("u1", "plugins/kubernetes.io~empty-dir/wrapped_v/ready")
}

fn read(life: &Life<'_>, path: &str) -> String {
    fs::read_to_string(life.path().join(path)).unwrap()
}

/// Runs a body for each of the four on both kinds of kernel.
fn for_each(body: impl Fn(&str, &Node, bool, &Value)) {
    for (calls, kernel) in kernels() {
        for (name, memory, volume) in volumes() {
            body(&format!("{name} on {calls} calls"), &Node::new(kernel), memory, &volume);
        }
    }
}

fn the_tree_is_the_kubelets() {
    for (calls, kernel) in kernels() {
        for (name, memory, volume) in volumes() {
            let shown = format!("{name} on {calls} calls");
            let node = Node::new(kernel);
            let mut life = life(&node, &volume, &[("key", "value"), ("d/e", "x")]);
            life.set_up().unwrap();
            assert_eq!(life.path(), node.pod_path("u1", &format!("volumes/kubernetes.io~{name}/v")));
            let folder = format!("volumes/kubernetes.io~{name}");
            for (path, expected) in [
                ("volumes", 0o750),
                (folder.as_str(), 0o750),
                ("plugins/kubernetes.io~empty-dir", 0o750),
                ("plugins/kubernetes.io~empty-dir/wrapped_v", 0o750),
                ("plugins/kubernetes.io~empty-dir/wrapped_v/ready", 0o644),
            ] {
                assert_eq!(mode(&node.pod_path("u1", path)), expected, "{shown}: {path}");
            }
            assert_eq!(mode(&life.path()), if memory { 0o1777 } else { 0o777 }, "{shown}");
            assert_eq!(mode(&life.path().join("..data/key")), 0o640, "{shown}");
            assert_eq!(mode(&life.path().join("..data/d")), 0o755, "{shown}");
            assert_eq!(fs::read_link(life.path().join("key")).unwrap(), Path::new("..data/key"));
            assert_eq!((read(&life, "key"), read(&life, "d/e")), ("value".into(), "x".into()));
            let table = node.table();
            let found = table.at(&life.path()).map(|m| (m.fs_type().into_owned(), m.source().into_owned()));
            assert_eq!(found, memory.then(|| ("tmpfs".to_owned(), "tmpfs".to_owned())), "{shown}");
            assert_eq!(life.record.as_ref().unwrap().mount.is_some(), memory, "{shown}");
            life.tear_down().unwrap();
            assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{shown}");
            life.tear_down().unwrap();
        }
    }
}

fn an_update_is_seen_through_the_same_mount() {
    for_each(|shown, node, memory, volume| {
        let mut life = life(node, volume, &[("a", "old"), ("gone", "old"), ("x", "old")]);
        life.set_up().unwrap();
        let id = node.table().at(&life.path()).map(refloat_mount::Mount::short_id);
        // What a container has open is this folder.
        let pod_sees = fs::File::open(life.path()).unwrap();
        life.content = Some(payload(&[("a", "new"), ("x/y", "new")]));
        life.set_up().unwrap();
        let seen = |path: &str| {
            rustix::fs::openat(&pod_sees, path, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())
                .map(|fd| std::io::read_to_string(fs::File::from(fd)).unwrap())
        };
        assert_eq!((seen("a"), seen("x/y")), (Ok("new".into()), Ok("new".into())), "{shown}");
        assert_eq!(seen("gone"), Err(rustix::io::Errno::NOENT), "{shown}");
        assert!(!there(&life.path().join("gone")), "{shown}");
        assert_eq!(node.table().at(&life.path()).map(refloat_mount::Mount::short_id), id, "{shown}: not mounted anew");
        assert_eq!(id.is_some(), memory);
        drop(pod_sees);
        life.tear_down().unwrap();
    });
}

fn unchanged_content_is_not_touched() {
    for_each(|shown, node, _, volume| {
        let mut life = life(node, volume, &[("a", "1")]);
        life.fs_group = Some(group());
        life.set_up().unwrap();
        let data = fs::read_link(life.path().join("..data")).unwrap();
        let changed = |path: &Path| {
            use std::os::unix::fs::MetadataExt;
            let meta = path.symlink_metadata().unwrap();
            (meta.ctime(), meta.ctime_nsec(), meta.ino())
        };
        let all = || [changed(&life.path()), changed(&life.path().join("a")), changed(&life.path().join("..data/a"))];
        let before = all();
        let mut again = Life::inline(node, "u1", volume);
        again.content.clone_from(&life.content);
        again.fs_group = life.fs_group;
        again.record.clone_from(&life.record);
        again.set_up().unwrap();
        assert_eq!(all(), before, "{shown}");
        assert_eq!(fs::read_link(life.path().join("..data")).unwrap(), data, "{shown}");
    });
}

/// Case B41, through SetUp.
fn what_somebody_broke_is_repaired() {
    for_each(|shown, node, _, volume| {
        let mut life = life(node, volume, &[("a", "1"), ("b", "2")]);
        life.set_up().unwrap();
        fs::remove_file(life.path().join("a")).unwrap();
        fs::write(life.path().join("..data/b"), "changed").unwrap();
        fs::create_dir(life.path().join("..2024_01_01_00_00_00.1")).unwrap();
        fs::remove_file(marker(node)).unwrap();
        life.set_up().unwrap();
        assert_eq!((read(&life, "a"), read(&life, "b")), ("1".into(), "2".into()), "{shown}");
        assert!(!there(&life.path().join("..2024_01_01_00_00_00.1")), "{shown}");
        assert!(there(&marker(node)), "{shown}");
        assert!(node.table().stack(&life.path()).len() <= 1, "{shown}");
    });
}

fn the_group_owns_everything() {
    for_each(|shown, node, memory, volume| {
        let mut life = life(node, volume, &[("a", "1"), ("d/b", "2")]);
        life.fs_group = Some(group());
        life.set_up().unwrap();
        let root = if memory { 0o3777 } else { 0o2777 };
        for (path, expected) in [("", root), ("..data/a", 0o640), ("..data/d", 0o2755), ("..data/d/b", 0o640)] {
            let path = life.path().join(path);
            assert_eq!((mode(&path), owner(&path).1), (expected, gid()), "{shown}: {}", path.display());
        }
    });
}

fn a_reboot_takes_the_mount_and_it_is_made_anew() {
    for_each(|shown, node, memory, volume| {
        let mut life = life(node, volume, &[("a", "1")]);
        life.set_up().unwrap();
        life.reboot();
        assert_eq!(there(&life.path().join("a")), !memory, "{shown}");
        assert!(there(&marker(node)), "{shown}: the marker outlives the mount");
        life.set_up().unwrap();
        assert_eq!(read(&life, "a"), "1", "{shown}");
        assert_eq!(node.table().stack(&life.path()).len(), usize::from(memory), "{shown}");
        // Gone after another one: torn down without the mount.
        life.reboot();
        life.tear_down().unwrap();
        assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{shown}");
    });
}

fn without_content_nothing_is_emptied() {
    for_each(|shown, node, _, volume| {
        let mut life = life(node, volume, &[("a", "1")]);
        life.set_up().unwrap();
        life.content = None;
        assert_eq!(code(life.set_up()), "ContentMissing", "{shown}");
        assert_eq!(read(&life, "a"), "1", "{shown}");
    });
}

fn a_mount_by_hand_is_refused() {
    for_each(|shown, node, memory, volume| {
        let mut life = life(node, volume, &[("a", "1")]);
        life.set_up().unwrap();
        mount_tmpfs("somebody", &life.path());
        fs::write(life.path().join("theirs"), "data").unwrap();
        assert_eq!(code(life.set_up()), "OtherMount", "{shown}");
        assert_eq!(code(life.tear_down()), "OtherMount", "{shown}");
        assert!(there(&marker(node)), "{shown}: nothing was undone");
        assert_eq!(fs::read_dir(life.path()).unwrap().count(), 1, "{shown}: nothing was written there");
        unmount(&life.path());
        assert_eq!(read(&life, "a"), "1", "{shown}");
        assert_eq!(node.table().stack(&life.path()).len(), usize::from(memory), "{shown}");
        life.tear_down().unwrap();
        assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{shown}");
    });
}

fn a_stray_file_is_not_hidden() {
    for_each(|shown, node, memory, volume| {
        let mut life = life(node, volume, &[("a", "1")]);
        life.set_up().unwrap();
        life.reboot();
        fs::write(life.path().join("stray"), "data").unwrap();
        if memory {
            assert_eq!(code(life.set_up()), "DataBelowMount", "{shown}");
            assert!(node.table().at(&life.path()).is_none(), "{shown}");
        } else {
            life.set_up().unwrap();
        }
        assert_eq!(read(&life, "stray"), "data", "{shown}");
    });
}

fn without_a_record_no_file_of_a_folder_is_deleted() {
    for_each(|shown, node, memory, volume| {
        let mut life = life(node, volume, &[("a", "1")]);
        life.set_up().unwrap();
        life.record = None;
        if memory {
            // Its files are the mount's, and go with it.
            life.tear_down().unwrap();
            assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{shown}");
        } else {
            assert_eq!(code(life.tear_down()), "DataKept", "{shown}");
            assert_eq!(read(&life, "a"), "1", "{shown}");
        }
    });
}

fn what_is_mounted_inside_survives() {
    for_each(|shown, node, _, volume| {
        let theirs = node.host_dir("theirs");
        fs::write(theirs.join("b"), "data").unwrap();
        let mut life = life(node, volume, &[("a", "1")]);
        life.set_up().unwrap();
        fs::create_dir(life.path().join("nested")).unwrap();
        bind(&theirs, &life.path().join("nested"));
        // An update leaves it alone, undoing unmounts it first.
        life.content = Some(payload(&[("a", "2")]));
        life.set_up().unwrap();
        assert!(there(&life.path().join("nested/b")), "{shown}");
        life.tear_down().unwrap();
        assert_eq!(node.leftovers(), Vec::<PathBuf>::new(), "{shown}");
        assert_eq!(fs::read_to_string(theirs.join("b")).unwrap(), "data", "{shown}");
    });
}

fn a_symlink_in_place_of_the_folder_is_not_followed() {
    for_each(|shown, node, _, volume| {
        let theirs = node.host_dir("theirs");
        let mut life = life(node, volume, &[("a", "1")]);
        fs::create_dir_all(life.path().parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&theirs, life.path()).unwrap();
        assert_eq!(code(life.set_up()), "PathHasSymlink", "{shown}");
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0, "{shown}");
        assert!(!there(&marker(node)), "{shown}");
    });
}

/// A real file system without room.
fn a_full_file_system_keeps_the_old_content() {
    let node = Node::new(kernels()[0].1);
    let small = node.host_dir("small");
    rustix::mount::mount("small", &small, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=64k")).unwrap();
    let dir = fs::File::open(&small).unwrap();
    let old = payload(&[("a", "old")]);
    write_payload(dir.as_fd(), &small, &old, None).unwrap();
    let large = "x".repeat(1 << 20);
    let error = write_payload(dir.as_fd(), &small, &payload(&[("a", &large)]), None).unwrap_err();
    assert_eq!(error.problem().code, "DiskFull");
    assert_eq!(fs::read_to_string(small.join("a")).unwrap(), "old");
    assert_eq!(fs::read_dir(&small).unwrap().count(), 3, "..data, a and one folder of content");
    write_payload(dir.as_fd(), &small, &payload(&[("a", "new")]), None).unwrap();
    assert_eq!(fs::read_to_string(small.join("a")).unwrap(), "new");
    clear_payload(dir.as_fd(), &small).unwrap();
    assert_eq!(fs::read_dir(&small).unwrap().count(), 0);
    drop(dir);
    unmount(&small);
}

fn content_with_a_mount_in_it_is_not_deleted_through_it() {
    let node = Node::new(kernels()[0].1);
    let (volume, theirs) = (node.host_dir("v"), node.host_dir("theirs"));
    fs::write(theirs.join("b"), "data").unwrap();
    fs::write(node.dir.path().join("file"), "data").unwrap();
    let dir = fs::File::open(&volume).unwrap();
    write_payload(dir.as_fd(), &volume, &payload(&[("d/x", "1"), ("f", "1")]), None).unwrap();
    let content = volume.join(fs::read_link(volume.join("..data")).unwrap());
    bind(&theirs, &content.join("d"));
    bind(&node.dir.path().join("file"), &content.join("f"));
    // The new content is shown; the old one stays as far as the mounts are in it, and is told.
    let new = payload(&[("d/x", "2"), ("f", "2")]);
    write_payload(dir.as_fd(), &volume, &new, None).unwrap_err();
    assert_eq!(fs::read_to_string(volume.join("f")).unwrap(), "2");
    assert_eq!(fs::read_to_string(theirs.join("b")).unwrap(), "data");
    unmount(&content.join("d"));
    unmount(&content.join("f"));
    write_payload(dir.as_fd(), &volume, &new, None).unwrap();
    assert!(!there(&content));
    assert_eq!(fs::read_to_string(theirs.join("b")).unwrap(), "data");
    assert_eq!(fs::read_to_string(node.dir.path().join("file")).unwrap(), "data");
}

fn the_group_crosses_no_mount() {
    let node = Node::new(kernels()[0].1);
    let (volume, theirs) = (node.host_dir("v"), node.host_dir("theirs"));
    fs::write(theirs.join("b"), "").unwrap();
    let file = node.dir.path().join("file");
    fs::write(&file, "").unwrap();
    fs::create_dir(volume.join("d")).unwrap();
    fs::write(volume.join("f"), "").unwrap();
    fs::write(volume.join("own"), "").unwrap();
    // Binds of the same device: no comparing of devices would tell.
    bind(&theirs, &volume.join("d"));
    bind(&file, &volume.join("f"));
    let before = [mode(&theirs), mode(&theirs.join("b")), mode(&file)];
    let dir = fs::File::open(&volume).unwrap();
    apply_fs_group(dir.as_fd(), &volume, group(), false).unwrap();
    assert_eq!([mode(&theirs), mode(&theirs.join("b")), mode(&file)], before);
    for path in [&theirs, &theirs.join("b"), &file] {
        assert_eq!(owner(path).1, owner(node.dir.path()).1, "{}", path.display());
    }
    assert_eq!((owner(&volume.join("own")).1, owner(&volume).1), (gid(), gid()));
    drop(dir);
    unmount(&volume.join("d"));
    unmount(&volume.join("f"));
}
