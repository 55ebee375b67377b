//! The store on real file systems without room: none for a byte, none for a file.

// Tests look at their own files, which do not hang.
#![allow(clippy::disallowed_methods)]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use refloat_record::{PodCheckpoint, PodRef, PodSource, PodUid, Record, Store, Verbatim};
use rustix::mount::{MountFlags, UnmountFlags};

refloat_test_support::tests![without_room_for_a_byte, without_room_for_a_file, a_store_cannot_be_made_without_room,];

fn main() -> ExitCode {
    refloat_test_support::in_one_namespace(&[TESTS])
}

/// A file system of its own, until it is dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn new(options: &std::ffi::CStr) -> Self {
        let dir = tempfile::tempdir_in(refloat_test_support::base()).unwrap();
        rustix::mount::mount("small", dir.path(), "tmpfs", MountFlags::empty(), options).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all room for bytes, to the last.
    fn fill(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        let file = File::create(&path).unwrap();
        let (mut size, mut offset) = (1 << 16, 0);
        while size > 0 {
            match file.write_at(&vec![1; size], offset) {
                Ok(written) if written > 0 => offset += written as u64,
                _ => size /= 2,
            }
        }
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), UnmountFlags::DETACH);
    }
}

fn record(uid: &str, size: usize) -> Record {
    let name = "n".repeat(size);
    Record::PodCheckpoint(PodCheckpoint {
        pod: PodRef { uid: PodUid::new(uid).unwrap(), namespace: "n".into(), name },
        source: PodSource::Manifest { folder: "/m".into(), folder_id: None, file: "f".into() },
        object: Verbatim::from_text("{}".into()).unwrap(),
    })
}

fn files(state: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(state.join("pods")).unwrap();
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

/// What is there stays, what fails leaves nothing and says where, and what is done afterwards works.
fn check(state: &Path, store: &Store, full: std::io::ErrorKind) -> Vec<Record> {
    let old = record("old", 10);
    // A new one, and a new content of an old one: alone and together.
    let (new, changed) = (record("new", 6_000), record("old", 7_000));
    let mut results = vec![store.put(&new), store.put(&changed)];
    results.extend(store.put_all(&[new.clone(), changed.clone()]));
    for result in results {
        let error = result.expect_err("there is no room");
        assert_eq!(error.source.kind(), full, "{error:?}");
        assert!(error.to_string().contains(&state.join("pods").display().to_string()), "{error}");
    }
    assert_eq!(files(state).len(), 1, "{:?}", files(state));
    let there = Store::read(state).unwrap();
    assert_eq!((there.records, there.unreadable), (vec![old], vec![]));
    vec![new, changed]
}

fn without_room_for_a_byte() {
    let small = Small::new(c"size=64k");
    let state = small.path().join("state");
    let store = Store::open(&state).unwrap();
    store.load().unwrap();
    store.put(&record("old", 10)).unwrap();
    let filler = small.fill("filler");
    let later = check(&state, &store, std::io::ErrorKind::StorageFull);
    // A removal needs no room.
    store.remove(&record("old", 10).key()).unwrap();
    assert_eq!(Store::read(&state).unwrap().records, []);
    // A start on the full disk reads what there is.
    drop(store);
    small.fill("what the removal left");
    let store = Store::open(&state).unwrap();
    store.load().unwrap();
    std::fs::remove_file(&filler).unwrap();
    assert!(store.put_all(&later).iter().all(Result::is_ok));
    assert_eq!(Store::read(&state).unwrap().records.len(), 2);
}

fn without_room_for_a_file() {
    // The root, the state folder, its six names, and one record.
    let small = Small::new(c"nr_inodes=16");
    let state = small.path().join("state");
    let store = Store::open(&state).unwrap();
    store.load().unwrap();
    store.put(&record("old", 10)).unwrap();
    let mut taken = vec![];
    for n in 0.. {
        let path = small.path().join(format!("taken-{n}"));
        if File::create(&path).is_err() {
            break;
        }
        taken.push(path);
    }
    assert!(!taken.is_empty());
    let later = check(&state, &store, std::io::ErrorKind::StorageFull);
    for path in taken {
        std::fs::remove_file(path).unwrap();
    }
    assert!(store.put_all(&later).iter().all(Result::is_ok));
    assert_eq!(Store::read(&state).unwrap().records.len(), 2);
}

fn a_store_cannot_be_made_without_room() {
    // The file system's own root takes one.
    for inodes in [c"nr_inodes=2", c"nr_inodes=3", c"nr_inodes=5"] {
        let small = Small::new(inodes);
        let state = small.path().join("state");
        let error = Store::open(&state).expect_err("there is no room");
        assert!(error.to_string().contains(&small.path().display().to_string()), "{error}");
        rustix::mount::mount_remount(small.path(), MountFlags::empty(), c"nr_inodes=20").unwrap();
        let store = Store::open(&state).unwrap();
        store.put(&record("new", 10)).unwrap();
        assert_eq!(store.load().unwrap().records.len(), 1);
    }
}
