//! emptyDir: folder, memory, huge pages.

use std::fs;

use refloat_test_support::{Outcome, skip};
use serde_json::{Value, json};

use crate::node::{Life, Node, bind, code, gid, group, kernels, mode, mount_tmpfs, owner, there, unmount};

refloat_test_support::tests![
    disk_follows_the_kubelets_layout,
    disk_keeps_its_data,
    disk_keeps_its_data_over_a_reboot,
    a_marker_without_a_folder_is_dropped,
    memory_is_a_tmpfs_with_its_limit,
    memory_is_finished_where_it_stopped,
    memory_is_mounted_anew_after_a_reboot,
    memory_does_not_hide_a_stray_file,
    a_mount_by_hand_is_refused,
    huge_pages,
    huge_pages_of_a_size_that_is_not_there,
    data_mounted_inside_survives,
    data_in_a_busy_mount_survives,
    a_dead_fuse_mount_inside_is_unmounted,
    without_a_record_no_file_is_deleted,
];

fn disk() -> Value {
    json!({ "name": "cache", "emptyDir": {} })
}

fn memory() -> Value {
    json!({ "name": "cache", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } })
}

fn disk_follows_the_kubelets_layout() {
    for (_, kernel) in kernels() {
        let node = Node::new(kernel);
        let mut life = Life::inline(&node, "u1", &disk());
        life.set_up().unwrap();
        // Section 1.1, 1.3: names, modes and owners.
        for (path, expected) in [
            ("", 0o750),
            ("volumes", 0o750),
            ("volumes/kubernetes.io~empty-dir", 0o750),
            ("volumes/kubernetes.io~empty-dir/cache", 0o777),
            ("plugins", 0o750),
            ("plugins/kubernetes.io~empty-dir", 0o750),
            ("plugins/kubernetes.io~empty-dir/cache", 0o750),
            ("plugins/kubernetes.io~empty-dir/cache/ready", 0o644),
        ] {
            let path = node.pod_path("u1", path);
            assert_eq!((mode(&path), owner(&path)), (expected, owner(node.dir.path())), "{}", path.display());
        }
        assert_eq!(fs::read(life.marker()).unwrap(), b"");
        assert_eq!(life.record.as_ref().unwrap().mount, None);

        let mut grouped = Life::inline(&node, "u2", &disk());
        grouped.fs_group = Some(group());
        grouped.set_up().unwrap();
        assert_eq!((mode(&grouped.path()), owner(&grouped.path()).1), (0o2777, gid()));
    }
}

fn disk_keeps_its_data() {
    let node = Node::new(kernels()[0].1);
    let mut life = Life::inline(&node, "u1", &disk());
    life.set_up().unwrap();
    fs::write(life.path().join("a"), "data").unwrap();
    life.set_up().unwrap();
    // A crash before the marker: SetUp runs again over a folder that is there.
    fs::remove_file(life.marker()).unwrap();
    life.set_up().unwrap();
    assert_eq!(fs::read(life.path().join("a")).unwrap(), b"data");
    assert!(there(&life.marker()));
    life.tear_down().unwrap();
    assert!(!there(&life.path()) && !there(&life.marker()));
    life.tear_down().unwrap();
    assert_eq!(node.leftovers(), Vec::<std::path::PathBuf>::new());
}

fn disk_keeps_its_data_over_a_reboot() {
    let node = Node::new(kernels()[0].1);
    let mut life = Life::inline(&node, "u1", &disk());
    life.set_up().unwrap();
    fs::write(life.path().join("a"), "data").unwrap();
    life.reboot();
    life.set_up().unwrap();
    assert_eq!(fs::read(life.path().join("a")).unwrap(), b"data");
}

fn a_marker_without_a_folder_is_dropped() {
    let node = Node::new(kernels()[0].1);
    let mut life = Life::inline(&node, "u1", &disk());
    life.set_up().unwrap();
    fs::remove_dir(life.path()).unwrap();
    life.set_up().unwrap();
    assert_eq!(mode(&life.path()), 0o777);
    assert!(there(&life.marker()));
}

fn memory_is_a_tmpfs_with_its_limit() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let mut life = Life::inline(&node, "u1", &memory());
        life.fs_group = Some(group());
        life.set_up().unwrap();
        {
            let table = node.table();
            let found = table.at(&life.path()).expect("mounted");
            assert_eq!((&*found.fs_type(), &*found.source()), ("tmpfs", "tmpfs"), "{name}");
            assert!(found.fs_options().contains("size=8192k"), "{name}: {}", found.fs_options());
        }
        assert_eq!((mode(&life.path()), owner(&life.path()).1), (0o3777, gid()), "{name}");
        assert!(there(&life.marker()));
        fs::write(life.path().join("a"), "data").unwrap();
        life.set_up().unwrap();
        assert_eq!(node.table().stack(&life.path()).len(), 1, "{name}: no second layer");
        assert_eq!(fs::read(life.path().join("a")).unwrap(), b"data");
        life.tear_down().unwrap();
        assert_eq!(node.leftovers(), Vec::<std::path::PathBuf>::new(), "{name}");

        // The pod's limit is one too, if it is the smaller.
        for (pod, limit, size) in [("u3", 4 << 20, "size=4096k"), ("u4", 16 << 20, "size=8192k")] {
            let mut life = Life::inline(&node, pod, &memory());
            life.resources.memory_limit = Some(limit);
            life.set_up().unwrap();
            assert!(node.table().at(&life.path()).unwrap().fs_options().contains(size), "{name}: {size}");
            // What is mounted stays as it is.
            life.resources.memory_limit = Some(1 << 20);
            life.set_up().unwrap();
            assert!(node.table().at(&life.path()).unwrap().fs_options().contains(size), "{name}: {size}");
            life.tear_down().unwrap();
        }

        // Without a limit, the node's memory is one.
        let mut life = Life::inline(&node, "u2", &json!({ "name": "m", "emptyDir": { "medium": "Memory" } }));
        life.set_up().unwrap();
        assert!(node.table().at(&life.path()).unwrap().fs_options().contains("size="), "{name}");
        life.tear_down().unwrap();
    }
}

fn memory_is_finished_where_it_stopped() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let mut life = Life::inline(&node, "u1", &memory());
        life.set_up().unwrap();
        fs::write(life.path().join("a"), "data").unwrap();
        fs::remove_file(life.marker()).unwrap();
        life.set_up().unwrap();
        assert!(there(&life.marker()), "{name}");
        assert_eq!(node.table().stack(&life.path()).len(), 1, "{name}");
        assert_eq!(fs::read(life.path().join("a")).unwrap(), b"data", "{name}");
        // Unmounted by hand: it is made anew, empty as its data is gone, and the stale marker speaks of nothing.
        unmount(&life.path());
        life.set_up().unwrap();
        assert_eq!(node.table().stack(&life.path()).len(), 1, "{name}");
    }
}

fn memory_is_mounted_anew_after_a_reboot() {
    for (name, kernel) in kernels() {
        let node = Node::new(kernel);
        let mut life = Life::inline(&node, "u1", &memory());
        life.set_up().unwrap();
        life.reboot();
        assert!(there(&life.marker()), "{name}: the marker outlives the mount");
        life.set_up().unwrap();
        assert_eq!(&*node.table().at(&life.path()).expect("mounted").fs_type(), "tmpfs", "{name}");
        // Gone after another reboot: torn down without the mount.
        life.reboot();
        life.tear_down().unwrap();
        assert_eq!(node.leftovers(), Vec::<std::path::PathBuf>::new(), "{name}");
    }
}

/// Case B33.
fn memory_does_not_hide_a_stray_file() {
    let node = Node::new(kernels()[0].1);
    let mut life = Life::inline(&node, "u1", &memory());
    life.set_up().unwrap();
    life.reboot();
    fs::write(life.path().join("stray"), "data").unwrap();
    assert_eq!(code(life.set_up()), "DataBelowMount");
    assert_eq!(fs::read(life.path().join("stray")).unwrap(), b"data");
    assert!(node.table().at(&life.path()).is_none());
    fs::remove_file(life.path().join("stray")).unwrap();
    life.set_up().unwrap();
}

fn a_mount_by_hand_is_refused() {
    for volume in [disk(), memory()] {
        let node = Node::new(kernels()[0].1);
        let mut life = Life::inline(&node, "u1", &volume);
        life.set_up().unwrap();
        mount_tmpfs("somebody", &life.path());
        let layers = node.table().stack(&life.path()).len();
        fs::write(life.path().join("theirs"), "data").unwrap();
        assert_eq!(code(life.set_up()), "OtherMount");
        assert_eq!(code(life.tear_down()), "OtherMount");
        assert_eq!(node.table().stack(&life.path()).len(), layers);
        assert_eq!(fs::read(life.path().join("theirs")).unwrap(), b"data");
    }
}

fn huge_pages() -> Outcome {
    let node = Node::new(kernels()[0].1);
    let mut life = Life::inline(&node, "u1", &json!({ "name": "h", "emptyDir": { "medium": "HugePages-2Mi" } }));
    assert_eq!(code(life.set_up()), "HugePagesNotRequested");
    assert_eq!(node.leftovers(), Vec::<std::path::PathBuf>::new());
    life.resources.huge_page_sizes = [2 << 20, 1 << 30].into();
    match life.set_up() {
        Err(error) if error.problem().code == "UnknownFileSystem" => return skip("the kernel has no hugetlbfs"),
        Err(error) if error.problem().code == "NotPermitted" => return skip("hugetlbfs needs the machine's own root"),
        Err(error) if error.problem().code == "HugePagesUnsupported" => return skip(error.problem().message),
        answer => answer.unwrap(),
    }
    {
        let table = node.table();
        let found = table.at(&life.path()).unwrap();
        assert_eq!((&*found.fs_type(), &*found.source()), ("hugetlbfs", "nodev"));
        assert!(found.fs_options().contains("pagesize=2M"), "{}", found.fs_options());
    }
    life.set_up().unwrap();
    assert_eq!(node.table().stack(&life.path()).len(), 1);
    life.tear_down().unwrap();
    assert_eq!(node.leftovers(), Vec::<std::path::PathBuf>::new());

    // Without a size, the pod's requests name it, if they name one.
    let mut life = Life::inline(&node, "u2", &json!({ "name": "h", "emptyDir": { "medium": "HugePages" } }));
    life.resources.huge_page_sizes = [2 << 20, 1 << 30].into();
    assert_eq!(code(life.set_up()), "HugePagesNotRequested");
    life.resources.huge_page_sizes = [2 << 20].into();
    life.set_up().unwrap();
    assert!(node.table().at(&life.path()).unwrap().fs_options().contains("pagesize=2M"));
    // It is as it was set up, whatever the pod says by now.
    life.resources.huge_page_sizes.clear();
    life.set_up().unwrap();
    life.tear_down().unwrap();
    Ok(())
}

fn huge_pages_of_a_size_that_is_not_there() {
    let node = Node::new(kernels()[0].1);
    let mut life = Life::inline(&node, "u1", &json!({ "name": "h", "emptyDir": { "medium": "HugePages-3Mi" } }));
    life.resources.huge_page_sizes = [3 << 20].into();
    assert_eq!(code(life.set_up()), "HugePagesUnsupported");
    assert!(life.record.is_none() && !there(&life.path()), "nothing was begun");
}

/// Case B02 (a) and (c).
fn data_mounted_inside_survives() {
    for (name, kernel) in kernels() {
        for volume in [disk(), memory()] {
            let node = Node::new(kernel);
            let mut life = Life::inline(&node, "u1", &volume);
            life.set_up().unwrap();
            let theirs = node.host_dir("theirs");
            fs::write(theirs.join("b"), "data").unwrap();
            fs::write(life.path().join("a"), "own").unwrap();
            let inside = life.path().join("n");
            fs::create_dir(&inside).unwrap();
            // The same device; a mount in it; and all of it covered by another layer, in which there is one more.
            bind(&theirs, &inside);
            fs::create_dir(inside.join("deeper")).unwrap();
            mount_tmpfs("deeper", &inside.join("deeper"));
            bind(&theirs, &inside);
            mount_tmpfs("another", &inside.join("deeper"));
            assert_eq!(node.table().under(&life.path()).count(), 4, "{name}");
            life.tear_down().unwrap();
            assert_eq!(fs::read(theirs.join("b")).unwrap(), b"data", "{name}");
            assert!(!there(&life.path()), "{name}");
            assert_eq!(node.leftovers(), Vec::<std::path::PathBuf>::new(), "{name}");
        }
    }
}

fn data_in_a_busy_mount_survives() {
    let node = Node::new(kernels()[0].1);
    let mut life = Life::inline(&node, "u1", &disk());
    life.set_up().unwrap();
    let theirs = node.host_dir("theirs");
    fs::write(theirs.join("b"), "data").unwrap();
    fs::write(life.path().join("a"), "own").unwrap();
    let inside = life.path().join("n");
    fs::create_dir(&inside).unwrap();
    bind(&theirs, &inside);
    let open = fs::File::open(inside.join("b")).unwrap();
    let error = life.tear_down().unwrap_err().problem();
    assert_eq!(error.code, "UnmountBusy");
    assert!(error.message.contains(inside.to_str().unwrap()), "{}", error.message);
    assert_eq!(fs::read(theirs.join("b")).unwrap(), b"data");
    assert_eq!(fs::read(life.path().join("a")).unwrap(), b"own", "nothing was deleted");
    drop(open);
    life.tear_down().unwrap();
    assert_eq!(fs::read(theirs.join("b")).unwrap(), b"data");
}

/// Case B02 (b).
fn a_dead_fuse_mount_inside_is_unmounted() -> Outcome {
    let node = Node::new(kernels()[0].1);
    let mut life = Life::inline(&node, "u1", &disk());
    life.set_up().unwrap();
    let theirs = node.host_dir("theirs");
    fs::write(theirs.join("b"), "data").unwrap();
    let inside = life.path().join("n");
    fs::create_dir(&inside).unwrap();
    let Ok(mut daemon) = std::process::Command::new("bindfs").arg("-f").arg(&theirs).arg(&inside).spawn() else {
        return skip("bindfs is not installed");
    };
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while node.table().at(&inside).is_none() {
        if daemon.try_wait().unwrap().is_some() || std::time::Instant::now() > patience {
            let _ = daemon.kill();
            let _ = daemon.wait();
            return skip("bindfs cannot mount here (no /dev/fuse?)");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert_eq!(fs::metadata(&inside).unwrap_err().raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    life.tear_down().unwrap();
    assert_eq!(fs::read(theirs.join("b")).unwrap(), b"data");
    assert_eq!(node.leftovers(), Vec::<std::path::PathBuf>::new());
    Ok(())
}

fn without_a_record_no_file_is_deleted() {
    let node = Node::new(kernels()[0].1);
    for volume in [disk(), memory()] {
        let mut life = Life::inline(&node, "u1", &volume);
        life.set_up().unwrap();
        life.record = None;
        life.tear_down().unwrap();
        assert_eq!(node.leftovers(), Vec::<std::path::PathBuf>::new(), "an empty one goes");
    }
    let mut life = Life::inline(&node, "u2", &disk());
    life.set_up().unwrap();
    fs::write(life.path().join("a"), "own").unwrap();
    life.record = None;
    assert_eq!(code(life.tear_down()), "DataKept");
    assert_eq!(fs::read(life.path().join("a")).unwrap(), b"own");
}
