//! Both sources of the table give the same answer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use refloat_mount::{Kernel, MountTable, TableReader, mountinfo};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
};

use crate::scene::{Scene, device};
use crate::{Test, old};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("table::both_sources_agree_on_this_machine", |_| agree()),
    ("table::both_sources_agree_on_odd_names", odd_names),
    ("table::both_sources_agree_on_options_and_propagation", options),
    ("table::both_sources_agree_on_stacks_and_hidden_mounts", stacks),
    ("table::a_deleted_source_is_still_mounted", deleted),
    ("table::only_news_is_read_and_nothing_is_missed", incremental),
    ("table::what_is_doubted_is_asked_anew", doubted),
    ("table::any_changes_leave_what_a_new_reading_gives", any_changes),
    ("table::thousands_agree", thousands),
    ("table::a_table_that_changes_is_no_error", changing),
];

fn lines(table: &MountTable) -> Vec<String> {
    table
        .iter()
        .map(|mount| {
            let mut line = Vec::new();
            mountinfo::print(mount, &mut line);
            let hidden = if mount.hidden() { " (hidden)" } else { "" };
            format!("{}{hidden}", OsStr::from_bytes(&line).display())
        })
        .collect()
}

/// Compares the two sources, and the text with what is printed of it.
fn agree() {
    let text = std::fs::read("/proc/thread-self/mountinfo").expect("mountinfo");
    let (from_text, bad) = MountTable::from_mountinfo(&text);
    assert!(bad.is_empty(), "{bad:?}");
    let mut printed = Vec::new();
    for mount in from_text.iter() {
        mountinfo::print(mount, &mut printed);
        printed.push(b'\n');
    }
    assert_eq!(OsStr::from_bytes(&printed), OsStr::from_bytes(&text), "parse and print give the same text");
    let read = TableReader::new(old()).read().expect("the old way");
    assert_eq!(lines(&read), lines(&from_text));
    if !Kernel::detect().features().listmount {
        return eprintln!("skipped the comparison: this kernel has no listmount");
    }
    let listed = TableReader::new(Kernel::detect()).read().expect("the new way");
    pretty_eq(&lines(&listed), &lines(&from_text));
    assert!(listed.iter().all(|mount| mount.id().is_some()));
    for mount in listed.iter() {
        let id = mount.id().expect("it has one");
        assert_eq!(listed.by_id(id).map(refloat_mount::Mount::short_id), Some(mount.short_id()));
        assert_eq!(
            listed.at(mount.point()).map(refloat_mount::Mount::short_id),
            from_text.at(mount.point()).map(refloat_mount::Mount::short_id),
            "{}",
            mount.point().display()
        );
    }
}

/// Shows the differing lines only.
fn pretty_eq(left: &[String], right: &[String]) {
    let differ: Vec<_> = left.iter().zip(right).filter(|(a, b)| a != b).take(20).collect();
    assert!(differ.is_empty() && left.len() == right.len(), "{} and {} lines: {differ:#?}", left.len(), right.len());
}

const ODD: &[&[u8]] = &[
    b"with space",
    b"tab\there",
    b"new\nline",
    b"back\\slash",
    b"literal\\040",
    b"literal\\134040",
    b"hash#",
    b"x (deleted)",
    b"\xff\xfe not utf-8",
    "ünïcode".as_bytes(),
    b"comma,equals=",
    b"colon:",
    b"-",
    b"\x01\x7f",
];

fn odd_names(scene: &Scene) {
    for name in ODD {
        let name = OsStr::from_bytes(name);
        let folder = scene.root.path().join(name);
        std::fs::create_dir(&folder).expect("make it");
        let source = std::fs::create_dir(scene.outside().join(name)).map(|()| scene.outside().join(name));
        rustix::mount::mount(name, &folder, "tmpfs", MountFlags::empty(), None).expect("mount with an odd source");
        let bound = scene.root.path().join("bound");
        std::fs::create_dir_all(bound.join(name)).expect("make it");
        rustix::mount::mount_bind(source.expect("make the source"), bound.join(name)).expect("bind");
    }
    // An empty source, and none.
    for (at, source) in [("empty-source", c""), ("none-source", c"none")] {
        std::fs::create_dir(scene.path(at)).expect("make it");
        rustix::mount::mount(source, scene.path(at), "tmpfs", MountFlags::empty(), None).expect("mount");
    }
    // A source that was never given is another thing than an empty one.
    if scene.kernel.features().new_mount_calls {
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).expect("open");
        rustix::mount::fsconfig_create(&context).expect("create");
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        let mount = rustix::mount::fsmount(&context, flags, MountAttrFlags::empty()).expect("mount");
        std::fs::create_dir(scene.path("no-source")).expect("make it");
        let to = scene.path("no-source");
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&mount, "", rustix::fs::CWD, &to, flags).expect("attach");
    }
    agree();
    let table = scene.table();
    for name in ODD {
        let name = OsStr::from_bytes(name);
        let mount = table.at(&scene.root.path().join(name)).expect("found by its path");
        assert_eq!(&*mount.source_bytes(), name.as_bytes());
        let bound = table.at(&scene.root.path().join("bound").join(name)).expect("found by its path");
        assert_eq!(bound.root(), Path::new("/outside").join(name));
        let same = table.same_root(device(&scene.base), &Path::new("/outside").join(name));
        assert_eq!(same.len(), 1);
    }
    assert_eq!(table.at(&scene.path("empty-source")).expect("there").source(), "");
}

fn options(scene: &Scene) {
    let all = [
        ("ro", MountFlags::RDONLY),
        ("nosuid", MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV),
        ("noexec", MountFlags::NOEXEC),
        ("noatime", MountFlags::NOATIME),
        ("nodiratime", MountFlags::NODIRATIME),
        ("strictatime", MountFlags::STRICTATIME),
        ("sync", MountFlags::SYNCHRONOUS),
        ("dirsync", MountFlags::DIRSYNC),
        ("lazytime", MountFlags::LAZYTIME),
        ("nosymfollow", MountFlags::NOSYMFOLLOW),
        ("several", MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NOATIME),
    ];
    for (name, flags) in all {
        std::fs::create_dir(scene.path(name)).expect("make it");
        rustix::mount::mount(name, scene.path(name), "tmpfs", flags, Some(c"size=1m,mode=0700")).expect("mount");
    }
    for (name, kind) in [
        ("shared", MountPropagationFlags::SHARED),
        ("unbindable", MountPropagationFlags::UNBINDABLE),
        ("private", MountPropagationFlags::PRIVATE),
    ] {
        scene.tmpfs(name, name);
        rustix::mount::mount_change(scene.path(name), kind).expect("change the propagation");
    }
    scene.bind(&scene.path("shared"), "slave");
    rustix::mount::mount_change(scene.path("slave"), MountPropagationFlags::DOWNSTREAM).expect("make it slave");
    scene.bind(&scene.path("slave"), "both");
    rustix::mount::mount_change(scene.path("both"), MountPropagationFlags::SHARED).expect("make it shared too");
    agree();
    let table = scene.table();
    assert!(table.at(&scene.path("ro")).expect("there").read_only());
    assert!(!table.at(&scene.path("noexec")).expect("there").read_only());
    assert!(table.at(&scene.path("shared")).expect("there").shared());
    assert!(table.at(&scene.path("both")).expect("there").shared());
    assert!(!table.at(&scene.path("slave")).expect("there").shared());
    assert!(table.at(&scene.path("noexec")).expect("there").options().contains("noexec"));
}

fn stacks(scene: &Scene) {
    scene.tmpfs("a", "one");
    scene.tmpfs("a/b", "hidden");
    scene.tmpfs("a", "two");
    scene.tmpfs("a/b", "visible");
    scene.tmpfs("a", "three");
    scene.tmpfs("a-b", "no relative");
    scene.bind(&scene.outside(), "bound");
    scene.bind(&scene.path("bound"), "bound again");
    agree();
    let table = scene.table();
    let stack = table.stack(&scene.path("a"));
    assert_eq!(stack.iter().map(|m| m.source()).collect::<Vec<_>>(), ["one", "two", "three"]);
    assert!(stack.iter().all(|mount| !mount.hidden()));
    assert_eq!(table.at(&scene.path("a")).expect("there").source(), "three");
    assert!(table.at(&scene.path("a/b")).is_none(), "no path leads there");
    assert_eq!(table.stack(&scene.path("a/b")).len(), 2);
    assert_eq!(table.covering(&scene.path("a/b/c")).expect("there").source(), "three");
    let under: Vec<_> = table.under(&scene.path("a")).map(|m| (m.source().into_owned(), m.hidden())).collect();
    assert_eq!(under, [("hidden".to_owned(), true), ("visible".to_owned(), true)]);
    assert_eq!(table.same_root(device(&scene.base), Path::new("/outside")).len(), 2);
    rustix::mount::unmount(scene.path("a"), UnmountFlags::empty()).expect("take the third off");
    let table = scene.table();
    assert_eq!(table.at(&scene.path("a/b")).expect("visible again").source(), "visible");
    assert_eq!(table.stack(&scene.path("a/b"))[0].source(), "hidden");
}

fn deleted(scene: &Scene) {
    let source = scene.outside().join("x");
    std::fs::create_dir(&source).expect("make it");
    scene.bind(&source, "volume");
    std::fs::remove_dir(&source).expect("remove the source");
    std::fs::write(scene.outside().join("f"), "").expect("write");
    std::fs::write(scene.path("file"), "").expect("write");
    rustix::mount::mount_bind(scene.outside().join("f"), scene.path("file")).expect("bind a file");
    std::fs::remove_file(scene.outside().join("f")).expect("remove the source");
    agree();
    let table = scene.table();
    let mount = table.at(&scene.path("volume")).expect("it is mounted, whatever a stat says");
    assert!(mount.root_deleted());
    assert_eq!(mount.root(), Path::new("/outside/x//deleted"));
    assert_eq!(mount.root_path(), Path::new("/outside/x"));
    assert!(table.at(&scene.path("file")).expect("there").root_deleted());
    scene.unmount("volume", mount.id()).expect("it can be unmounted");
    scene.unmount("file", None).expect("it can be unmounted");
    assert_eq!(scene.mounts_at("volume") + scene.mounts_at("file"), 0);
}

fn incremental(scene: &Scene) {
    let mut reader = scene.reader();
    let first = reader.read().expect("read");
    scene.tmpfs("one", "one");
    scene.tmpfs("two", "two");
    let second = reader.read().expect("read");
    assert_eq!(second.len(), first.len() + 2);
    scene.tmpfs("two", "over");
    rustix::mount::unmount(scene.path("one"), UnmountFlags::empty()).expect("unmount");
    let third = reader.read().expect("read");
    assert_eq!(lines(&third), lines(&scene.table()));
    // A move keeps the id: only reading anew shows it.
    std::fs::create_dir(scene.path("moved")).expect("make it");
    rustix::mount::mount_move(scene.path("two"), scene.path("moved")).expect("move");
    let anew = reader.read_anew().expect("read");
    assert_eq!(lines(&anew), lines(&scene.table()));
    assert_eq!(anew.at(&scene.path("moved")).expect("there").source(), "over");
}

/// Another program mounts and sets the options afterwards.
fn doubted(scene: &Scene) {
    let mut reader = scene.reader();
    let paths = ["one", "two"].map(|name| scene.path(name));
    for name in ["one", "two"] {
        scene.tmpfs(name, name);
    }
    reader.read().expect("read");
    for path in &paths {
        rustix::mount::mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "").expect("remount");
    }
    reader.doubt(&scene.path("elsewhere"));
    reader.doubt(&scene.path("./one/"));
    let is_read_only = |table: &MountTable, path: &Path| table.at(path).expect("mounted").options().starts_with("ro");
    let table = reader.read().expect("read");
    assert!(is_read_only(&table, &paths[0]));
    // Where only news is read, the other one keeps what was read of it.
    assert_eq!(is_read_only(&table, &paths[1]), !scene.kernel.features().listmount);
    reader.doubt(&paths[0]);
    assert_eq!(lines(&reader.read().expect("read")), lines(&table), "nothing new");
    reader.doubt(&paths[1]);
    rustix::mount::unmount(&paths[1], UnmountFlags::empty()).expect("unmount");
    let table = reader.read().expect("read");
    assert!(table.at(&paths[1]).is_none() && is_read_only(&table, &paths[0]));
    pretty_eq(&lines(&table), &lines(&reader.read_anew().expect("read")));
}

/// Mounts and unmounts in no particular order: a reader that followed them all has what a new one has.
fn any_changes(scene: &Scene) {
    let places = ["a", "a/b", "a/b/c", "a-b", "d", "d/e", "d/e/f", "g"];
    let mut reader = scene.reader();
    // Reads single places, and the whole only if it has to.
    let mut near = scene.reader();
    near.read().expect("read");
    // A fixed sequence without an obvious pattern.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for step in 0..400 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let path = scene.path(places[(state >> 8) as usize % places.len()]);
        match state % 5 {
            0 | 1 => {
                std::fs::create_dir_all(&path).expect("make the folder");
                rustix::mount::mount("any", &path, "tmpfs", MountFlags::empty(), None).expect("mount");
            }
            2 => {
                std::fs::create_dir_all(&path).expect("make the folder");
                rustix::mount::mount_bind(scene.outside(), &path).expect("bind");
            }
            3 => drop(rustix::mount::unmount(&path, UnmountFlags::empty())),
            _ => drop(rustix::mount::unmount(&path, UnmountFlags::DETACH)),
        }
        let followed = reader.read().expect("read");
        let fresh = scene.table();
        pretty_eq(&lines(&followed), &lines(&fresh));
        for place in places {
            let path = scene.path(place);
            let ids = |table: &MountTable| table.stack(&path).iter().map(|m| m.short_id()).collect::<Vec<_>>();
            assert_eq!(ids(&followed), ids(&fresh), "step {step}: {place}");
            assert_eq!(
                followed.covering(&path).map(refloat_mount::Mount::short_id),
                fresh.covering(&path).map(refloat_mount::Mount::short_id)
            );
            let seen = near.read_at(&path, true).expect("read");
            let over = near.read_at(&path, false).expect("read");
            let shown = |mount: Option<refloat_mount::Mount<'_>>| mount.map(|m| (m.short_id(), m.hidden()));
            let under = |table: &MountTable| table.under(&path).map(|m| shown(Some(m))).collect::<Vec<_>>();
            assert_eq!(ids(&seen), ids(&fresh), "step {step}: at {place}");
            assert_eq!(ids(&over), ids(&fresh), "step {step}: at {place}");
            assert_eq!(under(&seen), under(&fresh), "step {step}: below {place}");
            assert_eq!(shown(seen.at(&path)), shown(fresh.at(&path)), "step {step}: on top at {place}");
            assert_eq!(shown(seen.covering(&path)), shown(fresh.covering(&path)), "step {step}: over {place}");
            assert_eq!(shown(over.covering(&path)), shown(fresh.covering(&path)), "step {step}: over {place}");
        }
    }
}

fn thousands(scene: &Scene) {
    for index in 0..3000 {
        let rel = format!("pods/{}/volumes/v{index}", index % 100);
        std::fs::create_dir_all(scene.path(&rel)).expect("make the folder");
        rustix::mount::mount_bind(scene.outside(), scene.path(&rel)).expect("bind");
    }
    agree();
    let table = scene.table();
    assert_eq!(table.under(&scene.path("pods")).len(), 3000);
    assert_eq!(table.under(&scene.path("pods/7")).len(), 30);
    assert_eq!(table.same_root(device(&scene.base), Path::new("/outside")).len(), 3000);
    assert_eq!(table.of_device(device(&scene.base)).len(), 3001);
    rustix::mount::unmount(&scene.base, UnmountFlags::DETACH).expect("all at once");
    assert!(scene.table().under(&scene.base).next().is_none());
    rustix::mount::mount("scene", &scene.base, "tmpfs", MountFlags::empty(), None).expect("for the clean-up");
}

/// A mount that is there throughout is in every reading, however much comes and goes.
fn changing(scene: &Scene) {
    scene.tmpfs("steady", "steady");
    for index in 0..200 {
        scene.tmpfs(&format!("s{index}"), "steady too");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                scene.tmpfs("restless", "restless");
                rustix::mount::unmount(scene.path("restless"), UnmountFlags::empty()).expect("unmount");
            }
        });
        let mut reader = scene.reader();
        for _ in 0..300 {
            let table = reader.read().expect("a changing table is no error");
            assert!(table.at(&scene.path("steady")).is_some());
            assert!((0..200).all(|index| table.at(&scene.path(&format!("s{index}"))).is_some()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(scene.mounts_at("restless"), 0);
}
