//! subPath mounts: cases B01, B20, B25, symlinks and races.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use refloat_record::{PodVolume, RecordedMount};
use refloat_volume::{SubPathSpec, VolumeError, sub_path};
use serde_json::json;

use crate::node::{Life, Node, bind, code, gid, group, kernels, mode, mount_tmpfs, owner, there, unmount};

refloat_test_support::tests![
    targets_follow_the_kubelets_layout,
    what_is_mounted_is_kept,
    a_crash_before_attaching_is_finished,
    missing_folders_are_made,
    symlinks_inside_are_followed_and_those_outside_refused,
    a_symlink_swapped_in_leads_nowhere,
    read_only,
    subpaths_of_a_host_path,
    the_source_survives_without_a_record,
    a_deleted_source_is_unmounted,
    each_layer_comes_off,
    files_in_a_target_are_kept,
    a_record_leads_nowhere_else,
];

/// The volume's subPath mounts, as an executor keeps them.
fn set_up(life: &mut Life<'_>, sub_paths: &[SubPathSpec]) -> Result<usize, VolumeError> {
    set_up_with(life, sub_paths, false)
}

fn set_up_with(life: &mut Life<'_>, sub_paths: &[SubPathSpec], crash: bool) -> Result<usize, VolumeError> {
    let mut calls = 0;
    let record = life.record.clone().unwrap();
    let mut kept: Option<Vec<Option<RecordedMount>>> = None;
    let answer = sub_path::set_up(&life.node.host, &record, sub_paths, &mut |mounts| {
        calls += 1;
        kept = Some(mounts);
        if crash {
            return Err(VolumeError::Refused(refloat_volume::Problem::new("Crash", "cut off here", "")));
        }
        Ok(())
    });
    if let Some(kept) = kept {
        let mut entries = sub_path::plan(&record.pod.uid, &record.spec_name, sub_paths).unwrap();
        for (entry, mount) in entries.iter_mut().zip(kept) {
            entry.mount = mount;
        }
        life.record.as_mut().unwrap().sub_paths = entries;
    }
    answer.map(|()| calls)
}

fn spec(index: u32, path: &str) -> SubPathSpec {
    SubPathSpec { container: "c".into(), index, sub_path: path.into(), read_only: false }
}

fn tear_down(life: &Life<'_>) -> Result<(), VolumeError> {
    sub_path::tear_down(&life.node.host, life.record.as_ref().unwrap())
}

fn target(node: &Node, index: u32) -> PathBuf {
    node.pod_path("u1", &format!("volume-subpaths/v/c/{index}"))
}

fn empty_dir(node: &Node) -> Life<'_> {
    let mut life = Life::inline(node, "u1", &json!({ "name": "v", "emptyDir": {} }));
    life.set_up().unwrap();
    life
}

fn memory(node: &Node) -> Life<'_> {
    let mut life =
        Life::inline(node, "u1", &json!({ "name": "v", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }));
    life.set_up().unwrap();
    life
}

fn targets_follow_the_kubelets_layout() {
    for (name, kernel) in kernels() {
        for make in [empty_dir as fn(&Node) -> Life<'_>, memory] {
            let node = Node::new(kernel);
            let mut life = make(&node);
            fs::create_dir_all(life.path().join("dir/below")).unwrap();
            fs::write(life.path().join("dir/file"), "data").unwrap();
            let specs = [spec(0, "dir/below"), spec(3, "dir/file"), spec(4, ".")];
            assert_eq!(set_up(&mut life, &specs).unwrap(), 1, "{name}");
            for (path, expected) in
                [("", 0o750), ("volume-subpaths", 0o750), ("volume-subpaths/v", 0o750), ("volume-subpaths/v/c", 0o750)]
            {
                assert_eq!(mode(&node.pod_path("u1", path)), expected, "{name}: {path}");
            }
            assert_eq!(fs::read(target(&node, 3)).unwrap(), b"data", "{name}");
            assert_eq!(fs::read(target(&node, 4).join("dir/file")).unwrap(), b"data", "{name}");
            fs::write(target(&node, 0).join("new"), "x").unwrap();
            assert!(there(&life.path().join("dir/below/new")), "{name}");
            for index in [0, 3, 4] {
                unmount(&target(&node, index));
            }
            assert_eq!((mode(&target(&node, 0)), mode(&target(&node, 3))), (0o750, 0o640), "{name}");
            assert_eq!(set_up(&mut life, &specs).unwrap(), 1, "{name}");
            tear_down(&life).unwrap();
            assert!(!there(&node.pod_path("u1", "volume-subpaths")), "{name}");
            assert!(there(&node.pod_path("u1", "")) && there(&life.path().join("dir/file")), "{name}");
            tear_down(&life).unwrap();
            life.tear_down().unwrap();
        }
    }
}

fn what_is_mounted_is_kept() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let mut life = empty_dir(&node);
        fs::create_dir(life.path().join("a")).unwrap();
        set_up(&mut life, &[spec(0, "a")]).unwrap();
        let before = node.mounts();
        let calls = set_up(&mut life, &[spec(0, "a")]).unwrap();
        assert_eq!((node.mounts(), calls), (before, 0), "{name}");
        // One more; and the record of the first one was lost.
        life.record.as_mut().unwrap().sub_paths.clear();
        assert_eq!(set_up(&mut life, &[spec(0, "a"), spec(1, "a")]).unwrap(), 1, "{name}");
        assert_eq!(node.mounts(), before + 1, "{name}");
        // Something else there is not touched.
        mount_tmpfs("somebody", &target(&node, 0));
        assert_eq!(code(set_up(&mut life, &[spec(0, "a")])), "OtherMount", "{name}");
        unmount(&target(&node, 0));
        tear_down(&life).unwrap();
    }
}

fn a_crash_before_attaching_is_finished() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let mut life = empty_dir(&node);
        fs::create_dir(life.path().join("a")).unwrap();
        set_up_with(&mut life, &[spec(0, "a")], true).unwrap_err();
        assert!(!there(&target(&node, 0)), "{name}: nothing is seen before the record is durable");
        assert_eq!(set_up(&mut life, &[spec(0, "a")]).unwrap(), 1, "{name}");
        assert_eq!(node.table().stack(&target(&node, 0)).len(), 1, "{name}");
        tear_down(&life).unwrap();
    }
}

fn missing_folders_are_made() {
    let node = Node::new(kernels()[0].1);
    let mut life = Life::inline(&node, "u1", &json!({ "name": "v", "emptyDir": {} }));
    life.fs_group = Some(group());
    life.set_up().unwrap();
    set_up(&mut life, &[spec(0, "one//./two")]).unwrap();
    for part in ["one", "one/two"] {
        let path = life.path().join(part);
        assert_eq!((mode(&path), owner(&path).1), (0o2777, gid()), "as the volume's root: {part}");
    }
    // Nothing is made in a volume that is read-only or that its plugin writes.
    let record = life.record.clone().unwrap();
    let configmap = refloat_record::PluginName::new("kubernetes.io/configmap").unwrap();
    for record in [PodVolume { read_only: true, ..record.clone() }, PodVolume { plugin: configmap, ..record.clone() }] {
        life.record = Some(record);
        assert_eq!(code(set_up(&mut life, &[spec(1, "missing")])), "SubPathMissing");
        assert!(!there(&life.path().join("missing")));
    }
    life.record = Some(record);
    fs::write(life.path().join("file"), "").unwrap();
    assert_eq!(code(set_up(&mut life, &[spec(1, "file/below")])), "SubPathMissing");
    tear_down(&life).unwrap();
}

fn symlinks_inside_are_followed_and_those_outside_refused() {
    let node = Node::new(kernels()[0].1);
    let mut life = empty_dir(&node);
    // As the atomic writer lays a configMap out.
    fs::create_dir(life.path().join("..2026")).unwrap();
    fs::write(life.path().join("..2026/key"), "value").unwrap();
    symlink("..2026", life.path().join("..data")).unwrap();
    symlink("..data/key", life.path().join("key")).unwrap();
    set_up(&mut life, &[spec(0, "key")]).unwrap();
    assert_eq!(fs::read(target(&node, 0)).unwrap(), b"value");

    let outside = node.host_dir("outside");
    fs::write(outside.join("secret"), "host").unwrap();
    symlink(&outside, life.path().join("absolute")).unwrap();
    symlink("../../../../../../host/outside", life.path().join("relative")).unwrap();
    symlink("loop", life.path().join("loop")).unwrap();
    symlink("/proc/self/root", life.path().join("magic")).unwrap();
    for path in ["absolute", "absolute/secret", "absolute/new", "relative", "relative/new", "loop", "loop/new", "magic"]
    {
        assert_eq!(code(set_up(&mut life, &[spec(1, path)])), "SubPathEscapes", "{path}");
        assert!(!there(&target(&node, 1)), "{path}");
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing was made outside");
    // A symlink without a target is not followed when a folder is made.
    symlink("nowhere", life.path().join("dangling")).unwrap();
    set_up(&mut life, &[spec(1, "dangling")]).unwrap_err();
    for bad in ["", "/etc", "..", "a/../..", "a/.."] {
        assert_eq!(code(set_up(&mut life, &[spec(1, bad)])), "BadSpec", "{bad:?}");
    }
    let mut bad = spec(1, "key");
    bad.container = "../../../x".into();
    assert_eq!(code(set_up(&mut life, &[bad])), "BadSpec");
    tear_down(&life).unwrap();
}

/// A container swaps a folder for a symlink to the host while its subPath is mounted, again and again.
fn a_symlink_swapped_in_leads_nowhere() {
    let node = Node::new(kernels()[0].1);
    let mut life = empty_dir(&node);
    let outside = node.host_dir("outside");
    fs::create_dir_all(outside.join("b")).unwrap();
    let (one, two) = (life.path().join("a"), life.path().join("evil"));
    fs::create_dir_all(one.join("b")).unwrap();
    symlink(&outside, &two).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            while !stop.load(Ordering::Relaxed) {
                let _ = renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE);
            }
        });
        let (mut mounted, mut refused) = (0, 0);
        for round in 0..400 {
            // Every other one has to be made.
            let path = if round % 2 == 0 { "a/b".to_owned() } else { format!("a/new{round}") };
            match set_up(&mut life, &[spec(0, &path)]) {
                Ok(_) => {
                    mounted += 1;
                    let table = node.table();
                    let root = table.at(&target(&node, 0)).unwrap().root().to_path_buf();
                    assert!(!root.components().any(|part| part.as_os_str() == "outside"), "{}", root.display());
                }
                Err(error) => {
                    refused += 1;
                    assert!(
                        ["SubPathEscapes", "PathHasMount", "SystemError", "PathHasSymlink"]
                            .contains(&error.problem().code),
                        "{error:?}"
                    );
                }
            }
            tear_down(&life).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        eprintln!("{mounted} mounted, {refused} refused");
    });
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing was made outside");
}

fn read_only() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let mut life = empty_dir(&node);
        fs::create_dir(life.path().join("a")).unwrap();
        let mut second = spec(1, "a");
        second.read_only = true;
        set_up(&mut life, &[spec(0, "a"), second]).unwrap();
        fs::write(target(&node, 0).join("x"), "").unwrap();
        assert!(fs::write(target(&node, 1).join("y"), "").is_err(), "{name}");
        tear_down(&life).unwrap();
        life.record.as_mut().unwrap().read_only = true;
        set_up(&mut life, &[spec(0, "a")]).unwrap();
        assert!(fs::write(target(&node, 0).join("y"), "").is_err(), "{name}: the volume is read-only");
        tear_down(&life).unwrap();
    }
}

/// Case B20.
fn subpaths_of_a_host_path() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let logs = node.host_dir("logs");
        fs::create_dir(logs.join("app")).unwrap();
        fs::write(logs.join("app/log"), "data").unwrap();
        let mut life = Life::inline(&node, "u1", &json!({ "name": "v", "hostPath": { "path": logs } }));
        life.set_up().unwrap();
        set_up(&mut life, &[spec(0, "app"), spec(1, "new")]).unwrap();
        assert_eq!(fs::read(target(&node, 0).join("log")).unwrap(), b"data", "{name}");
        assert!(logs.join("new").is_dir());
        // Without the record of the mounts, table and folders lead there.
        life.record.as_mut().unwrap().sub_paths.clear();
        tear_down(&life).unwrap();
        life.tear_down().unwrap();
        assert_eq!(fs::read(logs.join("app/log")).unwrap(), b"data", "{name}");
        assert!(!there(&node.pod_path("u1", "volume-subpaths")), "{name}");
    }
}

/// Case B01: a bind of the same device, no `volumes/` folder, no record.
fn the_source_survives_without_a_record() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let data = node.host_dir("x");
        fs::write(data.join("keep.txt"), "data").unwrap();
        fs::create_dir_all(target(&node, 0)).unwrap();
        bind(&data, &target(&node, 0));
        let mut life = Life::inline(&node, "u1", &json!({ "name": "v", "emptyDir": {} }));
        life.record = Some(life.new_record());
        let open = fs::File::open(target(&node, 0).join("keep.txt")).unwrap();
        assert_eq!(code(tear_down(&life)), "UnmountBusy", "{name}");
        assert_eq!(fs::read(data.join("keep.txt")).unwrap(), b"data", "{name}");
        drop(open);
        for _ in 0..2 {
            tear_down(&life).unwrap();
            assert_eq!(fs::read(data.join("keep.txt")).unwrap(), b"data", "{name}");
            assert!(!there(&node.pod_path("u1", "volume-subpaths")), "{name}");
        }
    }
}

/// Case B25: folder and file.
fn a_deleted_source_is_unmounted() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let mut life = empty_dir(&node);
        fs::create_dir(life.path().join("d")).unwrap();
        fs::write(life.path().join("f"), "x").unwrap();
        fs::create_dir(life.path().join("x (deleted)")).unwrap();
        set_up(&mut life, &[spec(0, "d"), spec(1, "f"), spec(2, "x (deleted)")]).unwrap();
        fs::remove_dir(life.path().join("d")).unwrap();
        fs::remove_file(life.path().join("f")).unwrap();
        assert!(node.table().at(&target(&node, 0)).unwrap().root().to_str().unwrap().ends_with("//deleted"));
        tear_down(&life).unwrap();
        assert!(!there(&node.pod_path("u1", "volume-subpaths")), "{name}");
        assert!(there(&life.path().join("x (deleted)")));
        life.tear_down().unwrap();
    }
}

fn each_layer_comes_off() {
    let node = Node::new(kernels()[0].1);
    let mut life = empty_dir(&node);
    fs::create_dir_all(life.path().join("a/b")).unwrap();
    fs::write(life.path().join("a/keep"), "data").unwrap();
    set_up(&mut life, &[spec(0, "a")]).unwrap();
    bind(&life.path().join("a"), &target(&node, 0));
    mount_tmpfs("inside", &target(&node, 0).join("b"));
    bind(&life.path().join("a"), &target(&node, 0));
    tear_down(&life).unwrap();
    assert_eq!(fs::read(life.path().join("a/keep")).unwrap(), b"data");
    assert!(!there(&node.pod_path("u1", "volume-subpaths")));
}

fn files_in_a_target_are_kept() {
    let node = Node::new(kernels()[0].1);
    let mut life = empty_dir(&node);
    fs::create_dir(life.path().join("a")).unwrap();
    set_up(&mut life, &[spec(0, "a")]).unwrap();
    unmount(&target(&node, 0));
    fs::write(target(&node, 0).join("stray"), "data").unwrap();
    assert_eq!(code(tear_down(&life)), "DataKept");
    assert_eq!(fs::read(target(&node, 0).join("stray")).unwrap(), b"data");
    fs::remove_file(target(&node, 0).join("stray")).unwrap();
    fs::write(target(&node, 1), "a file with content").unwrap();
    assert_eq!(code(tear_down(&life)), "DataKept");
    fs::write(target(&node, 1), "").unwrap();
    tear_down(&life).unwrap();
    assert!(!there(&node.pod_path("u1", "volume-subpaths")));
}

fn a_record_leads_nowhere_else() {
    let node = Node::new(kernels()[0].1);
    let mut life = empty_dir(&node);
    fs::create_dir(life.path().join("a")).unwrap();
    set_up(&mut life, &[spec(0, "a")]).unwrap();
    let other = refloat_record::RelPath::new("pods/u2/volume-subpaths/v/c/0").unwrap();
    life.record.as_mut().unwrap().sub_paths[0].path = other;
    assert_eq!(code(tear_down(&life)), "BadRecord");
    // A symlink planted in the pod's folder is not followed.
    let mut life = empty_dir(&node);
    let outside: &Path = &node.host_dir("outside");
    fs::create_dir_all(outside.join("v/c/0")).unwrap();
    unmount(&target(&node, 0));
    fs::rename(node.pod_path("u1", "volume-subpaths"), node.dir.path().join("away")).unwrap();
    symlink(outside, node.pod_path("u1", "volume-subpaths")).unwrap();
    assert_eq!(code(tear_down(&life)), "PathHasSymlink");
    assert_eq!(code(set_up(&mut life, &[spec(0, "a")])), "PathHasSymlink");
    assert!(there(&outside.join("v/c/0")));
}
