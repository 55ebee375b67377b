//! Tests of the store on a real file system.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use crate::samples::{checkpoint, device, volume};

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn path_of(state: &Path, record: &Record) -> PathBuf {
    state.join(record.kind().folder()).join(codec::file_name(&record.key()))
}

fn sorted(mut records: Vec<Record>) -> Vec<Record> {
    records.sort_by_key(Record::key);
    records
}

#[test]
fn what_is_put_is_loaded_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("a/state");
    let records = vec![volume("u1", "data", "1"), checkpoint("u1", "2"), device("pv", "3"), volume("u1", "data2", "4")];
    let store = Store::open(&state).unwrap();
    assert_eq!(store.load().unwrap().records, []);
    store.put(&records[0]).unwrap();
    assert!(store.put_all(&records[1..]).iter().all(Result::is_ok));
    drop(store);
    let store = Store::open(&state).unwrap();
    let loaded = store.load().unwrap();
    assert_eq!((loaded.records, loaded.unreadable), (sorted(records.clone()), vec![]));

    let newer = volume("u1", "data", "1 changed");
    store.put(&newer).unwrap();
    store.remove(&records[1].key()).unwrap();
    store.remove(&records[1].key()).unwrap();
    let expected = sorted(vec![newer, records[2].clone(), records[3].clone()]);
    assert_eq!(Store::read(&state).unwrap().records, expected);
    assert_eq!(files(&state.join("volumes")).len(), 2, "no temporary file stays");

    let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    for folder in ["", "devices", "volumes", "pods", "set-aside"] {
        assert_eq!(mode(&state.join(folder)), 0o700, "{folder}");
    }
    for record in expected {
        assert_eq!(mode(&path_of(&state, &record)), 0o600);
    }
}

#[test]
fn a_child_of_a_killed_manager_keeps_the_store_for_moments_only() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    // As a child does between its fork and its exec.
    let held = std::fs::File::open(dir.path().join("lock")).unwrap();
    held.lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(held);
        });
        Store::open(dir.path()).unwrap();
    });
}

#[test]
fn two_managers_cannot_have_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let first = Store::open(dir.path()).unwrap();
    let error = Store::open(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Locked { pid: Some(pid), .. } if pid == std::process::id()), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())));
    first.put(&volume("u1", "v", "")).unwrap();
    assert_eq!(Store::read(dir.path()).unwrap().records.len(), 1, "reading needs no lock");
    drop(first);
    Store::open(dir.path()).unwrap();
}

#[test]
fn a_missing_state_folder_reads_as_empty_and_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("none");
    let loaded = Store::read(&state).unwrap();
    assert!(loaded.records.is_empty() && loaded.unreadable.is_empty());
    assert!(Store::verify(&state).unwrap().is_empty() && Store::set_aside(&state).unwrap().is_empty());
    assert!(files(dir.path()).is_empty());
}

#[test]
fn a_file_for_a_state_folder_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::write(&state, "").unwrap();
    for error in [Store::open(&state).unwrap_err(), Store::read(&state).unwrap_err()] {
        assert_eq!(error.to_string(), format!("cannot open the state folder {}", state.display()));
    }
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("volumes"), "").unwrap();
    let error = Store::open(&state).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot open the folder {}", state.join("volumes").display()));
    assert_eq!(std::fs::read(state.join("volumes")).unwrap(), b"");
}

/// B11: every kind of damage is set aside as it is, told with its key, and stops no other record.
#[test]
fn damaged_files_are_set_aside_intact() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path();
    let store = Store::open(state).unwrap();
    let good = volume("u1", "good", "");
    let bad: Vec<_> = (0..6).map(|i| volume("u1", &format!("bad{i}"), "x")).collect();
    assert!(store.put_all(&bad).into_iter().all(|r| r.is_ok()));
    store.put(&good).unwrap();
    let text = |i: usize| std::fs::read_to_string(path_of(state, &bad[i])).unwrap();
    let contents = [
        String::new(),
        text(1)[..40].to_owned(),
        text(2).replace("\"x\"", "\"y\""),
        text(3).replace("refloat.dev/v1", "refloat.dev/v9").replace("crc32c", "other"),
        "{\"kind\":\"Secret\"}".to_owned(),
        "\0".repeat(300),
    ];
    for (record, content) in bad.iter().zip(&contents) {
        std::fs::write(path_of(state, record), content).unwrap();
    }
    // A record under the name of another one, and one in another kind's folder.
    let stray = volume("u1", "stray", "");
    std::fs::write(path_of(state, &volume("u1", "other", "")), codec::encode(&stray)).unwrap();
    std::fs::write(state.join("pods").join(codec::file_name(&stray.key())), codec::encode(&stray)).unwrap();
    let before = Store::read(state).unwrap();
    assert!(before.unreadable.iter().all(|u| !u.set_aside));
    assert_eq!(before.unreadable.len(), 8);
    assert_eq!(files(&state.join("set-aside")).len(), 0, "reading changes nothing");

    let loaded = store.load().unwrap();
    assert_eq!(loaded.records, std::slice::from_ref(&good));
    assert_eq!(loaded.unreadable.len(), 8);
    let words: Vec<_> =
        Store::set_aside(state).unwrap().into_iter().map(|s| (s.reason.unwrap(), s.name, s.key)).collect();
    let expected = ["torn", "torn", "checksum", "newer", "malformed", "torn"];
    for ((record, content), word) in bad.iter().zip(&contents).zip(expected) {
        let name = codec::file_name(&record.key());
        let told = loaded.unreadable.iter().find(|u| u.name == name).unwrap();
        assert!(told.set_aside && told.key == Some(record.key()), "{told:?}");
        assert_eq!(std::fs::read_to_string(&told.path).unwrap(), *content);
        assert!(words.contains(&(word.into(), name, Some(record.key()))), "{words:?}");
    }
    let strays: Vec<_> =
        loaded.unreadable.iter().filter(|u| matches!(u.reason, UnreadableReason::WrongKind { .. })).collect();
    assert_eq!(strays.len(), 2);

    // Their places are free again.
    assert!(store.put_all(&bad).into_iter().all(|r| r.is_ok()));
    assert_eq!(store.load().unwrap().records.len(), 7);
    assert_eq!(Store::set_aside(state).unwrap().len(), 8);
}

/// Nothing planted in the state folder is followed, opened or waited for.
#[test]
fn what_is_no_regular_file_is_never_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (state, outside) = (dir.path().join("state"), dir.path().join("outside"));
    std::fs::create_dir(&outside).unwrap();
    let record = volume("u1", "v", "");
    let keep = outside.join("keep.json");
    std::fs::write(&keep, codec::encode(&record)).unwrap();
    let store = Store::open(&state).unwrap();
    let at = |name: &str| state.join("volumes").join(name);
    symlink(&keep, path_of(&state, &record)).unwrap();
    symlink(&keep, at(".tmp-0-0")).unwrap();
    std::fs::create_dir(at("folder.json")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo.json"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket.json")).unwrap();
    let loaded = store.load().unwrap();
    assert!(loaded.records.is_empty());
    let kinds: Vec<_> = loaded.unreadable.iter().map(|u| u.reason.to_string()).collect();
    for what in ["a symlink", "a folder", "a FIFO", "a socket"] {
        assert!(kinds.iter().any(|k| k.ends_with(what)), "{what}: {kinds:?}");
    }
    let link = loaded.unreadable.iter().find(|u| u.key == Some(record.key())).unwrap();
    assert_eq!(std::fs::read_link(&link.path).unwrap(), keep, "the link itself was set aside");

    // A link that comes later is replaced, not written through.
    symlink(&keep, path_of(&state, &record)).unwrap();
    let before = std::fs::read(&keep).unwrap();
    store.put(&volume("u1", "v", "new")).unwrap();
    store.remove(&record.key()).unwrap();
    assert_eq!(std::fs::read(&keep).unwrap(), before);
    drop(store);

    // Nor are links in place of the folders and the lock.
    for name in ["volumes", "set-aside", "lock"] {
        let path = state.join(name);
        let away = dir.path().join(format!("{name}-away"));
        std::fs::rename(&path, &away).unwrap();
        symlink(&outside, &path).unwrap();
        assert!(Store::open(&state).is_err(), "{name}");
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&away, &path).unwrap();
    }
    assert_eq!(files(&outside), ["keep.json"]);

    // The way to the state folder is the operator's own.
    symlink(&state, dir.path().join("link")).unwrap();
    Store::open(&dir.path().join("link")).unwrap().put(&record).unwrap();
    assert_eq!(Store::read(&state).unwrap().records, [record]);
}

#[test]
fn a_file_larger_than_any_record_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let file = std::fs::File::create(dir.path().join("pods/big.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    let loaded = store.load().unwrap();
    assert_eq!(loaded.unreadable[0].reason, UnreadableReason::TooLarge { bytes: 1 << 40 });
    assert_eq!(std::fs::metadata(&loaded.unreadable[0].path).unwrap().len(), 1 << 40);
}

#[test]
fn leftover_temporary_files_are_removed_by_load_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let temp = dir.path().join("volumes/.tmp-1-1");
    std::fs::write(&temp, "half").unwrap();
    assert!(Store::read(dir.path()).unwrap().unreadable.is_empty());
    assert_eq!(files(&dir.path().join("volumes")), [".tmp-1-1"]);
    assert!(store.load().unwrap().unreadable.is_empty());
    assert!(files(&dir.path().join("volumes")).is_empty());
}

#[test]
fn fields_of_a_later_release_survive_an_update() {
    let dir = tempfile::tempdir().unwrap();
    let record = volume("u1", "v", "old");
    Store::open(dir.path()).unwrap().put(&record).unwrap();
    let path = path_of(dir.path(), &record);
    let text = std::fs::read_to_string(&path).unwrap();
    let body = format!("{},\"later\":[1]", &text[..text.find(",\"checksum\"").unwrap()]);
    let later = format!("{body},\"checksum\":\"crc32c:{:08x}\"}}\n", crc32c::crc32c(body.as_bytes()));
    for loads in [true, false] {
        std::fs::write(&path, &later).unwrap();
        let store = Store::open(dir.path()).unwrap();
        if loads {
            assert!(store.load().unwrap().unreadable.is_empty());
        }
        store.put(&volume("u1", "v", "new")).unwrap();
        store.put(&volume("u1", "v", "newer")).unwrap();
        let stored = codec::decode_stored(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(stored.record, volume("u1", "v", "newer"));
        assert_eq!(stored.extra.iter().map(|(n, v)| (n, v.get())).collect::<Vec<_>>(), [("later", "[1]")]);
        // They belonged to the record that was removed.
        store.remove(&record.key()).unwrap();
        store.put(&record).unwrap();
        assert!(codec::decode_stored(&std::fs::read(&path).unwrap()).unwrap().extra.is_empty());
    }
}

#[test]
fn a_store_that_was_not_loaded_overwrites_no_damaged_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let record = volume("u1", "v", "");
    std::fs::write(path_of(dir.path(), &record), "damaged").unwrap();
    store.put(&record).unwrap();
    let aside = Store::set_aside(dir.path()).unwrap();
    assert_eq!(std::fs::read(&aside[0].path).unwrap(), b"damaged");
    assert_eq!(store.load().unwrap().records, [record]);
}

#[test]
fn many_threads_write_many_records() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.load().unwrap();
    std::thread::scope(|scope| {
        for t in 0..16 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..20 {
                    store.put(&volume(&format!("u{t}"), &format!("v{i}"), "1")).unwrap();
                    store.put(&checkpoint("one", &format!("{t} {i}"))).unwrap();
                    if i % 4 == 0 {
                        store.remove(&volume(&format!("u{t}"), &format!("v{i}"), "1").key()).unwrap();
                    }
                }
            });
        }
    });
    let loaded = Store::read(dir.path()).unwrap();
    assert_eq!((loaded.records.len(), loaded.unreadable), (16 * 15 + 1, vec![]));
    assert!(loaded.records.is_sorted_by_key(Record::key));
    assert_eq!(files(&dir.path().join("pods")).len(), 1);
}

/// More than one round of open files, and enough for two threads to read.
#[test]
fn a_thousand_records_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let records: Vec<_> = (0..1000).map(|i| volume(&format!("u{}", i % 7), &format!("v{i}"), "")).collect();
    assert!(store.put_all(&records).iter().all(Result::is_ok));
    std::fs::write(dir.path().join("volumes/zzz.json"), "").unwrap();
    let loaded = store.load().unwrap();
    assert_eq!((loaded.records, loaded.unreadable.len()), (sorted(records), 1));
}

#[test]
fn verify_tells_of_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (good, bad) = (volume("u1", "good", ""), device("bad", ""));
    store.put(&good).unwrap();
    std::fs::write(path_of(dir.path(), &bad), "{").unwrap();
    let verified = Store::verify(dir.path()).unwrap();
    assert_eq!(verified.len(), 2);
    assert_eq!(
        (verified[0].kind, &verified[0].key, verified[0].size),
        (RecordKind::DeviceMount, &Some(bad.key()), Some(1))
    );
    assert!(matches!(verified[0].result, Err(UnreadableReason::Torn { .. })));
    assert_eq!((&verified[1].key, verified[1].result.is_ok()), (&Some(good.key()), true));
    assert_eq!(verified[1].size, Some(codec::encode(&good).len() as u64));
}

#[test]
#[allow(clippy::disallowed_methods)] // its own temporary folder
fn a_store_that_is_not_at_its_path_is_opened_again() {
    type TakeAway = fn(&Path);
    let ways: [(&str, TakeAway); 5] = [
        ("", |state| std::fs::rename(state, state.with_extension("away")).unwrap()),
        ("lock", |state| std::fs::remove_file(state.join("lock")).unwrap()),
        ("volumes", |state| std::fs::remove_dir_all(state.join("volumes")).unwrap()),
        ("set-aside", |state| std::fs::remove_dir(state.join("set-aside")).unwrap()),
        ("replaced lock", |state| {
            std::fs::write(state.join("new"), "").unwrap();
            std::fs::rename(state.join("new"), state.join("lock")).unwrap();
        }),
    ];
    for (how, take_away) in ways {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let store = Store::open(&state).unwrap();
        let (one, two) = (volume("u1", "data", "1"), device("pv", "2"));
        assert!(store.put_all(&[one.clone(), two.clone()]).iter().all(Result::is_ok));
        store.load().unwrap();
        assert!(store.is_at_its_path(), "{how}");
        take_away(&state);
        assert!(!store.is_at_its_path(), "{how}");
        let (again, loaded) = store.open_again().unwrap();
        assert!(again.is_at_its_path(), "{how}");
        let expected = match how {
            "" => vec![],
            "volumes" => vec![two.clone()],
            _ => sorted(vec![one.clone(), two.clone()]),
        };
        assert_eq!(loaded.records, expected, "{how}");
        // The old one's end takes no lock along.
        drop(store);
        assert!(
            matches!(Store::open(&state), Err(OpenError::Locked { pid, .. }) if pid == Some(std::process::id())),
            "{how}"
        );
        again.put(&one).unwrap();
        assert!(Store::read(&state).unwrap().records.contains(&one));
        drop(again);
        Store::open(&state).unwrap();
    }
}

#[test]
#[allow(clippy::disallowed_methods)] // its own temporary folder
fn a_store_that_another_has_taken_is_not_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let store = Store::open(&state).unwrap();
    std::fs::remove_dir_all(&state).unwrap();
    let other = Store::open(&state).unwrap();
    assert!(matches!(store.open_again(), Err(OpenError::Locked { pid: Some(_), .. })));
    drop(other);
    assert!(store.open_again().unwrap().0.is_at_its_path());
}
