use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use refloat_record::FsGroupChangePolicy;

use super::*;

/// A volume's folder.
struct Volume {
    _temp: tempfile::TempDir,
    path: PathBuf,
}

/// Something done to a volume behind the writer's back.
type Break = fn(&Volume);

/// Where temporary folders are on memory and on a disk that is synced, if this machine has both.
fn places() -> Vec<PathBuf> {
    [std::env::temp_dir(), "/dev/shm".into(), "/var/tmp".into()]
        .into_iter()
        .filter(|place| tempfile::tempdir_in(place).is_ok())
        .collect()
}

fn files_in(path: &Path) -> usize {
    let entries = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path());
    entries.map(|p| if p.is_dir() { files_in(&p) } else { 1 }).sum()
}

fn is_durable(place: &Path) -> bool {
    !beneath::is_in_memory(File::open(place).unwrap()).unwrap()
}

impl Volume {
    fn new() -> Self {
        Self::at(&std::env::temp_dir())
    }

    fn at(place: &Path) -> Self {
        let temp = tempfile::tempdir_in(place).unwrap();
        let path = temp.path().join("v");
        std::fs::create_dir(&path).unwrap();
        Self { _temp: temp, path }
    }

    fn open(&self) -> OwnedFd {
        File::open(&self.path).unwrap().into()
    }

    fn write(&self, payload: &Payload) -> WriteOutcome {
        write(self.open().as_fd(), &self.path, payload, None).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(&self.path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Everything about every entry, for "nothing was touched".
    fn times(&self) -> Vec<(PathBuf, i64, i64, u64)> {
        fn walk(path: &Path, all: &mut Vec<(PathBuf, i64, i64, u64)>) {
            let meta = std::fs::symlink_metadata(path).unwrap();
            all.push((path.to_owned(), meta.ctime(), meta.ctime_nsec(), meta.ino()));
            if meta.is_dir() {
                for entry in std::fs::read_dir(path).unwrap() {
                    walk(&entry.unwrap().path(), all);
                }
            }
        }
        let mut all = Vec::new();
        walk(&self.path, &mut all);
        all.sort();
        all
    }

    /// Whether the volume shows exactly this payload, in the kubelet's layout, and nothing else.
    fn check(&self, payload: &Payload) {
        let names = self.names();
        let content: Vec<_> = names.iter().filter(|n| is_timestamped(&CString::new(n.as_str()).unwrap())).collect();
        assert_eq!(content.len(), 1, "{names:?}");
        let data = std::fs::read_link(self.path("..data")).unwrap();
        assert_eq!(data, Path::new(content[0]));
        let mut tops: Vec<_> = payload.files.keys().map(|p| p.split('/').next().unwrap().to_owned()).collect();
        tops.dedup();
        let mut expected = vec!["..data".to_owned(), content[0].clone()];
        for top in &tops {
            assert_eq!(std::fs::read_link(self.path(top)).unwrap(), Path::new("..data").join(top));
        }
        expected.extend(tops);
        expected.sort();
        assert_eq!(names, expected);
        for (path, file) in &payload.files {
            assert_eq!(std::fs::read(self.path(path)).unwrap(), file.data, "{path}");
            let meta = std::fs::metadata(self.path(path)).unwrap();
            assert!(meta.is_file());
            assert_eq!(meta.mode() & 0o7777, file.mode, "{path}");
        }
        assert_eq!(files_in(&self.path(content[0])), payload.files.len());
        assert_eq!(std::fs::metadata(self.path("..data")).unwrap().mode() & 0o7777, 0o755);
    }
}

fn payload(files: &[(&str, &str)]) -> Payload {
    let files = files
        .iter()
        .map(|(path, data)| (path.to_string(), PayloadFile { data: data.as_bytes().to_vec(), mode: 0o644 }));
    Payload { files: files.collect(), ..Payload::default() }
}

fn names_of(step: &VolumeError) -> &'static str {
    match step {
        VolumeError::Io { doing, .. } => doing,
        other => panic!("{other:?}"),
    }
}

#[test]
fn writes_the_kubelets_layout_with_exact_modes_whatever_the_umask() {
    // The umask is the whole process's; a strict one harms no other test.
    rustix::process::umask(Mode::from_raw_mode(0o077));
    for place in places() {
        let volume = Volume::at(&place);
        let mut content = payload(&[("a", "1"), ("dir/b", "2"), ("dir/sub/c", ""), ("binary", "\0\u{1}")]);
        content.files.get_mut("a").unwrap().mode = 0o400;
        content.files.get_mut("binary").unwrap().mode = 0o777;
        assert_eq!(volume.write(&content), WriteOutcome::Written);
        volume.check(&content);
        assert_eq!(std::fs::metadata(volume.path("dir/sub")).unwrap().mode() & 0o7777, 0o755);

        let before = volume.times();
        assert_eq!(volume.write(&content), WriteOutcome::Unchanged);
        assert_eq!(volume.times(), before, "unchanged content is not touched");
    }
}

#[test]
fn an_empty_payload_is_an_empty_folder_of_content() {
    let volume = Volume::new();
    assert_eq!(volume.write(&payload(&[])), WriteOutcome::Written);
    volume.check(&payload(&[]));
    volume.write(&payload(&[("a", "1")]));
    volume.check(&payload(&[("a", "1")]));
    volume.write(&payload(&[]));
    volume.check(&payload(&[]));
    assert_eq!(volume.write(&payload(&[])), WriteOutcome::Unchanged);
}

#[test]
fn a_file_may_become_a_folder_and_back() {
    let volume = Volume::new();
    for content in [
        payload(&[("foo", "1")]),
        payload(&[("foo/bar", "2")]),
        payload(&[("foo/bar/x", "3")]),
        payload(&[("foo", "4")]),
    ] {
        assert_eq!(volume.write(&content), WriteOutcome::Written);
        volume.check(&content);
    }
}

#[test]
fn every_difference_is_seen() {
    let content = payload(&[("a", "1"), ("d/b", "2")]);
    let break_it: [(&str, Break); 11] = [
        ("byte", |v| std::fs::write(v.path("a"), "x").unwrap()),
        ("length", |v| std::fs::write(v.path("d/b"), "22").unwrap()),
        ("mode", |v| std::fs::set_permissions(v.path("a"), std::fs::Permissions::from_mode(0o666)).unwrap()),
        ("folder's mode", |v| std::fs::set_permissions(v.path("d"), std::fs::Permissions::from_mode(0o700)).unwrap()),
        ("missing file", |v| std::fs::remove_file(v.path("..data/d/b")).unwrap()),
        ("one file more", |v| std::fs::write(v.path("..data/d/c"), "").unwrap()),
        ("missing link", |v| std::fs::remove_file(v.path("a")).unwrap()),
        ("wrong link", |v| {
            std::fs::remove_file(v.path("d")).unwrap();
            symlink("/etc", v.path("d")).unwrap();
        }),
        ("missing ..data", |v| std::fs::remove_file(v.path("..data")).unwrap()),
        ("..data to elsewhere", |v| {
            std::fs::remove_file(v.path("..data")).unwrap();
            symlink("/etc", v.path("..data")).unwrap();
        }),
        ("file is a symlink", |v| {
            std::fs::remove_file(v.path("..data/a")).unwrap();
            std::fs::write(v.path.parent().unwrap().join("evil"), "1").unwrap();
            symlink(v.path.parent().unwrap().join("evil"), v.path("..data/a")).unwrap();
        }),
    ];
    for (what, break_it) in break_it {
        let volume = Volume::new();
        volume.write(&content);
        break_it(&volume);
        assert_eq!(volume.write(&content), WriteOutcome::Written, "{what}");
        volume.check(&content);
        assert_eq!(volume.write(&content), WriteOutcome::Unchanged, "{what}");
    }
}

/// Case B41: the kubelet was killed while it wrote, and afterwards saw nothing to do.
#[test]
fn case_b41_an_interrupted_writer_is_made_good() {
    let old = "..2024_01_01_00_00_00.1";
    let leave: [(&str, Break); 6] = [
        ("no links", |_| {}),
        ("only a", |v| symlink("..data/a", v.path("a")).unwrap()),
        ("a link to nowhere", |v| {
            symlink("..data/a", v.path("a")).unwrap();
            symlink("..data/gone", v.path("gone")).unwrap();
        }),
        ("..data_tmp", |v| symlink("..2024_01_01_00_00_00.9", v.path("..data_tmp")).unwrap()),
        ("two folders", |v| {
            std::fs::create_dir_all(v.path("..2024_01_01_00_00_01.2/x/y")).unwrap();
            std::fs::write(v.path("..2024_01_01_00_00_01.2/x/y/z"), "torn").unwrap();
        }),
        ("no ..data", |v| std::fs::remove_file(v.path("..data")).unwrap()),
    ];
    for (what, leave) in leave {
        for changed in [false, true] {
            let volume = Volume::new();
            std::fs::create_dir(volume.path(old)).unwrap();
            for name in ["a", "b"] {
                std::fs::write(volume.path(old).join(name), name).unwrap();
                std::fs::set_permissions(volume.path(old).join(name), std::fs::Permissions::from_mode(0o644)).unwrap();
            }
            std::fs::set_permissions(volume.path(old), std::fs::Permissions::from_mode(0o755)).unwrap();
            symlink(old, volume.path("..data")).unwrap();
            leave(&volume);
            let content = payload(&[("a", if changed { "new" } else { "a" }), ("b", "b")]);
            assert_eq!(volume.write(&content), WriteOutcome::Written, "{what}");
            volume.check(&content);
            let kept = std::fs::read_link(volume.path("..data")).unwrap() == Path::new(old);
            assert_eq!(kept, !changed && what != "no ..data", "{what}: right content is kept");
        }
    }
}

#[test]
fn what_is_not_ours_is_left_alone_and_never_followed() {
    let volume = Volume::new();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("keep"), "").unwrap();
    std::fs::create_dir(volume.path("nested")).unwrap();
    std::fs::write(volume.path("file"), "mine").unwrap();
    symlink(outside.path(), volume.path("link")).unwrap();
    // Looks like a folder of content, but is a link to one that is somebody else's.
    symlink(outside.path(), volume.path("..2024_01_01_00_00_00.7")).unwrap();
    std::fs::create_dir(volume.path("..strange")).unwrap();
    let foreign = ["..2024_01_01_00_00_00.7", "..strange", "file", "link", "nested"];

    volume.write(&payload(&[("a", "1")]));
    volume.write(&payload(&[("b", "1")]));
    clear(volume.open().as_fd(), &volume.path).unwrap();
    assert_eq!(volume.names(), foreign);
    assert_eq!(std::fs::read_to_string(volume.path("file")).unwrap(), "mine");
    assert!(outside.path().join("keep").is_file());
    clear(volume.open().as_fd(), &volume.path).unwrap();
}

#[test]
fn what_is_not_ours_and_in_the_way_is_an_error_that_names_it() {
    for name in ["a", "..data", "..data_tmp"] {
        let volume = Volume::new();
        std::fs::create_dir(volume.path(name)).unwrap();
        let error = write(volume.open().as_fd(), &volume.path, &payload(&[("a", "1")]), None).unwrap_err();
        let problem = error.problem();
        assert_eq!(problem.code, "ForeignEntry");
        assert!(problem.message.contains(&*volume.path(name).to_string_lossy()), "{problem:?}");
        assert!(volume.path(name).is_dir());
    }
}

#[test]
fn folders_that_others_are_mounted_at_are_made_and_kept() {
    let volume = Volume::new();
    let mut content = payload(&[("a", "1")]);
    content.mount_points = ["m/n".to_owned(), "m/o".to_owned()].into();
    assert_eq!(volume.write(&content), WriteOutcome::Written);
    for name in ["m", "m/n", "m/o"] {
        let meta = std::fs::symlink_metadata(volume.path(name)).unwrap();
        assert!(meta.is_dir() && meta.mode() & 0o7777 == 0o755, "{name}");
    }
    let before = volume.times();
    assert_eq!(volume.write(&content), WriteOutcome::Unchanged);
    assert_eq!(volume.times(), before);
    std::fs::remove_dir(volume.path("m/o")).unwrap();
    content.files.get_mut("a").unwrap().data = b"2".to_vec();
    volume.write(&content);
    assert_eq!(std::fs::read_to_string(volume.path("a")).unwrap(), "2");
    assert!(volume.path("m/o").is_dir() && volume.path("m/n").is_dir());
    // A symlink in its place leads nowhere.
    let outside = tempfile::tempdir().unwrap();
    std::fs::remove_dir(volume.path("m/n")).unwrap();
    symlink(outside.path(), volume.path("m/n")).unwrap();
    let error = write(volume.open().as_fd(), &volume.path, &content, None).unwrap_err();
    assert_eq!(error.problem().code, "ForeignEntry");
}

#[test]
fn bad_paths_are_refused_before_anything_is_written() {
    for (bad, code) in [("../x", "ContentPathInvalid"), ("..x", "ContentPathInvalid"), ("a/b", "ContentPathConflict")] {
        let volume = Volume::new();
        let content = payload(&[("a", "1"), (bad, "2")]);
        let error = write(volume.open().as_fd(), &volume.path, &content, None).unwrap_err();
        assert_eq!(error.problem().code, code);
        assert!(volume.names().is_empty());
    }
}

#[test]
fn the_group_gets_what_the_kubelet_gives_it() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: changing owners needs root");
        return;
    }
    let volume = Volume::new();
    std::fs::set_permissions(&volume.path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut content = payload(&[("a", "1"), ("d/b", "2")]);
    content.files.get_mut("a").unwrap().mode = 0o600;
    let group = |gid| Some(FsGroup { gid, policy: FsGroupChangePolicy::OnRootMismatch });
    let seen = |name: &str| {
        let meta = std::fs::symlink_metadata(volume.path(name)).unwrap();
        (meta.uid(), meta.gid(), meta.mode() & 0o7777)
    };
    for gid in [2000, 3000] {
        let outcome = write(volume.open().as_fd(), &volume.path, &content, group(gid)).unwrap();
        assert_eq!(outcome, WriteOutcome::Written);
        assert_eq!(seen(""), (0, gid, 0o2777));
        assert_eq!(seen("..data/a"), (0, gid, 0o640));
        assert_eq!(seen("..data/d"), (0, gid, 0o2755));
        assert_eq!(seen("..data/d/b"), (0, gid, 0o644));
        for link in ["..data", "a", "d"] {
            assert_eq!(seen(link).1, gid, "{link}");
        }
        let before = volume.times();
        let outcome = write(volume.open().as_fd(), &volume.path, &content, group(gid)).unwrap();
        assert_eq!((outcome, volume.times()), (WriteOutcome::Unchanged, before));
    }
}

/// Ends a writer at each step, and looks what the next one makes of it.
#[test]
fn killed_after_any_step_the_next_run_makes_it_right() {
    let versions = [
        payload(&[]),
        payload(&[("a", "old"), ("x/1", "old"), ("gone", "old")]),
        payload(&[("a", "new"), ("x", "new"), ("b/c", "new")]),
    ];
    for place in places() {
        let mut points = 0;
        let durable = is_durable(&place);
        let all = [(None, 1), (Some(1), 2), (None, 0), (Some(2), 1), (Some(1), 0), (Some(2), 2)];
        // Syncs of a real disk take their time: there the one update that has every kind of step.
        let (updates, afterwards) = if durable { (&all[1..2], 1..2) } else { (&all[..], 0..3) };
        for &(from, to) in updates {
            for then in afterwards.clone() {
                for kill_at in 0.. {
                    let volume = Volume::at(&place);
                    if let Some(from) = from {
                        volume.write(&versions[from]);
                    }
                    let mut left = kill_at;
                    let mut step = |_: &'static str| {
                        if left == 0 {
                            return Err(Errno::CANCELED);
                        }
                        left -= 1;
                        Ok(())
                    };
                    let ended = write_by_steps(volume.open().as_fd(), &volume.path, &versions[to], None, &mut step);
                    // What a reader sees after the kill is one version whole, whichever.
                    if let Ok(data) = File::open(volume.path("..data")) {
                        drop(data);
                        let shown = [from, Some(to)].into_iter().flatten().find(|v| {
                            versions[*v].files.iter().all(|(path, file)| {
                                std::fs::read(volume.path("..data").join(path)).is_ok_and(|d| d == file.data)
                            })
                        });
                        assert!(shown.is_some(), "{from:?} -> {to} killed at {kill_at}");
                    } else {
                        assert_eq!(from, None, "{to} killed at {kill_at}: the old content is gone");
                    }
                    volume.write(&versions[then]);
                    volume.check(&versions[then]);
                    assert_eq!(volume.write(&versions[then]), WriteOutcome::Unchanged);
                    match ended {
                        Ok(_) => break,
                        Err(error) => points += usize::from(!names_of(&error).is_empty()),
                    }
                }
            }
        }
        println!("{}: {points} kills", place.display());
        assert!(points > 30);
    }
}

/// On a disk every file, every folder and the entry of the folder of content are synced before `..data` is switched.
#[test]
fn everything_is_synced_before_the_switch_on_a_disk_only() {
    for place in places() {
        let volume = Volume::at(&place);
        let mut steps = Vec::new();
        let mut step = |name: &'static str| {
            steps.push(name);
            Ok(())
        };
        let content = payload(&[("a", "1"), ("d/b", "2")]);
        write_by_steps(volume.open().as_fd(), &volume.path, &content, None, &mut step).unwrap();
        let switch = steps.iter().position(|s| *s == "switch the link").unwrap();
        let synced = steps[..switch].iter().filter(|s| s.starts_with("sync")).count();
        let durable = is_durable(&place);
        println!("{}: durable {durable}", place.display());
        // a, b, d, the folder of content; the volume's folder
        assert_eq!(synced, if durable { 5 } else { 0 });
        assert_eq!(steps.last() == Some(&"sync the volume's folder"), durable);
    }
}

#[test]
fn a_reader_never_sees_a_mixture_or_a_torn_file() {
    let volume = Volume::new();
    let version = |n: usize| {
        let text = format!("{n};").repeat(1000 + n % 7);
        payload(&[("a", &text), ("d/b", &text), (["x", "y"][n % 2], &text)])
    };
    let whole = |text: &str| {
        text.split(';').next().is_some_and(|n| text == format!("{n};").repeat(1000 + n.parse::<usize>().unwrap() % 7))
    };
    volume.write(&version(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut compared = 0;
            while !done.load(Ordering::Relaxed) {
                // One by one through the links: each is whole and always there.
                for name in ["a", "d/b"] {
                    if let Ok(text) = std::fs::read_to_string(volume.path(name)) {
                        assert!(whole(&text), "{name} is torn");
                    }
                }
                assert!(std::fs::symlink_metadata(volume.path("a")).is_ok());
                // All from one folder: the same version.
                let Ok(data) = std::fs::read_link(volume.path("..data")) else { panic!("..data is missing") };
                let read = |name: &str| std::fs::read_to_string(volume.path.join(&data).join(name));
                if let (Ok(a), Ok(b)) = (read("a"), read("d/b")) {
                    assert!(a == b, "two versions in one folder");
                    compared += 1;
                }
            }
            compared
        });
        for n in 1..400 {
            volume.write(&version(n));
        }
        done.store(true, Ordering::Relaxed);
        let compared = reader.join().unwrap();
        assert!(compared > 10, "{compared}");
    });
    volume.check(&version(399));
}

#[test]
fn a_full_disk_leaves_the_old_content_and_no_remains() {
    // RLIMIT_FSIZE would signal the process; a write into a folder without room is simulated at the step before it.
    let volume = Volume::new();
    let (old, new) = (payload(&[("a", "old")]), payload(&[("a", "new")]));
    volume.write(&old);
    let mut full = true;
    let mut step = |name: &'static str| {
        if name == "write a file" && std::mem::take(&mut full) { Err(Errno::NOSPC) } else { Ok(()) }
    };
    let error = write_by_steps(volume.open().as_fd(), &volume.path, &new, None, &mut step).unwrap_err();
    assert_eq!(error.problem().code, "DiskFull");
    volume.check(&old);
}

#[test]
fn names_of_folders_of_content() {
    for good in [c"..2024_01_01_00_00_00.1", c"..2024_12_31_23_59_59.1234567890aZ"] {
        assert!(is_timestamped(good));
    }
    assert!(is_timestamped(&new_name().unwrap()));
    for bad in [
        c"..data",
        c"..2024_01_01_00_00_00.",
        c"..2024_01_01_00_00_00",
        c".2024_01_01_00_00_00.1",
        c"..2024_01_01_00_00_00.1/x",
        c"..2024_01_01_00_00_0x.1",
    ] {
        assert!(!is_timestamped(bad), "{bad:?}");
    }
}

mod any {
    use proptest::prelude::*;

    use super::*;

    /// Few names, so that they meet: as files, as folders, as remains.
    fn path() -> impl Strategy<Value = String> {
        proptest::collection::vec(prop_oneof!["[abc]", Just("..x".to_owned())], 1..4).prop_map(|p| p.join("/"))
    }

    fn any_payload() -> impl Strategy<Value = Payload> {
        let file = ("[xy]{0,3}", prop_oneof![Just(0o644), Just(0o400), Just(0o777)])
            .prop_map(|(data, mode)| PayloadFile { data: data.into_bytes(), mode });
        proptest::collection::btree_map(path(), file, 0..5).prop_map(|files| Payload { files, ..Payload::default() })
    }

    /// Something that may stand in a volume's folder: remains of our own, and what is somebody else's.
    #[derive(Debug, Clone)]
    enum Debris {
        Link(&'static str, &'static str),
        Folder(&'static str),
        File(&'static str),
    }

    fn debris() -> impl Strategy<Value = Debris> {
        let name = proptest::sample::select(vec![
            "a",
            "b",
            "z",
            "..data",
            "..data_tmp",
            "..2024_01_01_00_00_00.1",
            "..2024_01_01_00_00_00.2",
            "..other",
        ]);
        let target = proptest::sample::select(vec![
            "..data/a",
            "..data/z",
            "..data",
            "..2024_01_01_00_00_00.1",
            "..2024_01_01_00_00_00.2",
            "/etc",
            ".",
            "..",
            "gone",
        ]);
        prop_oneof![
            3 => (name.clone(), target).prop_map(|(n, t)| Debris::Link(n, t)),
            1 => name.clone().prop_map(Debris::Folder),
            1 => name.prop_map(Debris::File),
        ]
    }

    fn show(volume: &Volume, payload: &Payload) -> bool {
        payload.files.iter().all(|(path, file)| std::fs::read(volume.path(path)).is_ok_and(|data| data == file.data))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Whatever is there: the content is right afterwards and a second call has nothing to do, or something that is
        /// not ours is in the way and is named; and what is not ours is never changed.
        #[test]
        fn remains_never_hurt(before in any_payload(), things in proptest::collection::vec(debris(), 0..6), after in any_payload()) {
            let place = if tempfile::tempdir_in("/dev/shm").is_ok() { "/dev/shm".into() } else { std::env::temp_dir() };
            let volume = Volume::at(&place);
            let _ = write(volume.open().as_fd(), &volume.path, &before, None);
            let mut foreign = Vec::new();
            for thing in &things {
                let (name, made) = match thing {
                    Debris::Link(name, target) => (name, symlink(target, volume.path(name)).is_ok()),
                    Debris::Folder(name) => (name, std::fs::create_dir(volume.path(name)).is_ok()),
                    Debris::File(name) => (name, !volume.path(name).is_symlink() && File::create_new(volume.path(name)).is_ok()),
                };
                // A folder with a timestamp's name can only be a remain; every other file and folder is somebody's.
                if made && !matches!(thing, Debris::Link(..)) && (!name.starts_with("..2024") || matches!(thing, Debris::File(_))) {
                    foreign.push(volume.path(name));
                }
            }
            match write(volume.open().as_fd(), &volume.path, &after, None) {
                Ok(_) => {
                    prop_assert!(show(&volume, &after), "{:?}", volume.names());
                    let again = write(volume.open().as_fd(), &volume.path, &after, None);
                    prop_assert_eq!(again.unwrap(), WriteOutcome::Unchanged);
                    let content = volume.names().into_iter().filter(|n| {
                        is_timestamped(&CString::new(n.as_str()).unwrap()) && volume.path(n).symlink_metadata().unwrap().is_dir()
                    });
                    prop_assert_eq!(content.count(), 1);
                }
                Err(VolumeError::Refused(problem)) => {
                    let named = foreign.iter().any(|path| problem.message.contains(&*path.to_string_lossy()));
                    let bad_paths = after.check().is_err();
                    prop_assert!(bad_paths || (problem.code == "ForeignEntry" && named), "{problem:?}");
                }
                Err(error) => prop_assert!(false, "{error:?}"),
            }
            for path in &foreign {
                prop_assert!(path.symlink_metadata().is_ok_and(|m| !m.is_symlink()), "{} is gone", path.display());
            }
            let _ = clear(volume.open().as_fd(), &volume.path);
            for path in &foreign {
                prop_assert!(path.symlink_metadata().is_ok(), "{} is gone", path.display());
            }
        }
    }
}
