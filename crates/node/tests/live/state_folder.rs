//! The state folder: damaged records, no room, two managers.

use std::path::PathBuf;

use refloat_node::{Manager, ManagerError, RecordState};
use refloat_record::{OpenError, Record, Store};

use crate::stage::{PATIENCE, Stage, assert_all_mounted, local, pod, volume, wait_for};

refloat_test_support::tests![
    a_damaged_record_is_set_aside_and_its_volume_kept,
    a_damaged_record_of_a_gone_pod_leaves_no_mount,
    a_full_state_folder_starts_nothing,
    two_managers_cannot_run,
    a_state_folder_that_is_taken_away_is_made_again,
    a_state_folder_that_is_moved_away_and_back_is_taken_as_it_is,
    a_state_folder_that_another_manager_took_ends_this_one,
    a_state_folder_that_cannot_be_made_again_stops_everything,
];

const LOCAL: &str = "  - {name: l, persistentVolumeClaim: {claimName: pv}}\n";
const LOCAL_PATH: &str = "pods/u1/volumes/kubernetes.io~local-volume/pv";

fn damaged(how: impl Fn(&str) -> String) -> Stage {
    let stage = Stage::new();
    stage.manifest("pv.yaml", &local("pv", &stage.host("data")));
    stage.manifest("pod.yaml", &pod("u1", LOCAL));
    stage.manifest("pod2.yaml", &pod("u2", "  - {name: mem, emptyDir: {medium: Memory}}\n"));
    stage.settle_well();
    let file = stage.record_file("volumes", "local");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, how(&text)).unwrap();
    stage
}

fn a_damaged_record_is_set_aside_and_its_volume_kept() {
    for how in [
        |_: &str| String::new(),
        |text: &str| text[..text.len() / 2].to_owned(),
        |text: &str| text.replace("default", "defauIt"),
        |text: &str| text.replace("volume.refloat.dev/v1", "volume.refloat.dev/v7"),
    ] {
        let stage = damaged(how);
        let id = || stage.table().at(&stage.root(LOCAL_PATH)).unwrap().id();
        let before = id();
        let outcome = stage.settle();
        assert_eq!(id(), before);
        assert_eq!(volume(&outcome, "mem").record_state, RecordState::Ok);
        // What is mounted is what the pod wants, so a new record is true.
        assert_eq!(volume(&outcome, "pv").record_state, RecordState::Ok, "{:#?}", outcome.plan.report);
        let aside = std::fs::read_dir(stage.options.state_dir.join("set-aside")).unwrap().count();
        assert_eq!(aside, 1);
        assert_all_mounted(&stage.settle_well(), 2);
    }
}

fn a_damaged_record_of_a_gone_pod_leaves_no_mount() {
    let stage = damaged(|_| "{}".into());
    stage.remove_manifest("pod.yaml");
    let outcome = stage.settle();
    assert_eq!(outcome.failures, []);
    assert!(!stage.is_mounted(LOCAL_PATH) && !stage.root("pods/u1").exists(), "{:#?}", outcome.plan.report);
    assert!(stage.path("host/data/keep.txt").exists());
    assert_eq!(stage.mounts().len(), 1);
}

/// B13.
fn a_full_state_folder_starts_nothing() {
    let stage = Stage::new();
    stage.tmpfs(&stage.options.state_dir, c"size=256k");
    stage.manifest("pod.yaml", &pod("u1", "  - {name: a, emptyDir: {}}\n"));
    stage.settle_well();
    let filler = stage.options.state_dir.join("filler");
    let mut size = 1 << 20;
    let file = std::fs::File::create(&filler).unwrap();
    let mut offset = 0;
    while size > 0 {
        match std::os::unix::fs::FileExt::write_at(&file, &vec![1; size], offset) {
            Ok(written) if written > 0 => offset += written as u64,
            _ => size /= 2,
        }
    }
    drop(file);
    let text = pod("u2", "  - {name: mem, emptyDir: {medium: Memory}}\n  - {name: d, emptyDir: {}}\n");
    stage.manifest("pod2.yaml", &text);
    let volumes = |name: &str| stage.root("pods").join(name);
    let outcome = stage.settle();
    assert!(!outcome.failures.is_empty());
    for failure in &outcome.failures {
        assert_eq!(failure.code, "DiskFull", "{failure:?}");
    }
    assert!(!volumes("u2").exists());
    assert_eq!(stage.mounts(), Vec::<PathBuf>::new());
    assert_eq!(volume(&outcome, "a").record_state, RecordState::Ok);
    let temporary = |folder: &str| {
        let entries = std::fs::read_dir(stage.options.state_dir.join(folder)).unwrap();
        entries.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with('.')).count()
    };
    assert_eq!(temporary("volumes") + temporary("pods"), 0);
    // It is retried by itself when there is room.
    let manager = stage.run();
    std::thread::sleep(std::time::Duration::from_millis(100));
    std::fs::remove_file(&filler).unwrap();
    wait_for("the volumes", || stage.is_mounted("pods/u2/volumes/kubernetes.io~empty-dir/mem"));
    manager.stop();
    assert_all_mounted(&stage.settle_well(), 3);
}

fn two_managers_cannot_run() {
    let stage = Stage::new();
    let first = Manager::start(stage.options.clone()).unwrap();
    match Manager::start(stage.options.clone()) {
        Err(ManagerError::Store(OpenError::Locked { pid, .. })) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{other:?}"),
    }
    drop(first);
    assert!(Manager::start(stage.options.clone()).is_ok());
}

const MEM: &str = "  - {name: mem, emptyDir: {medium: Memory}}\n";
const MEM_PATH: &str = "pods/u1/volumes/kubernetes.io~empty-dir/mem";

/// A pod with two volumes, and the records of it.
fn with_pod() -> (Stage, Vec<Record>) {
    let stage = Stage::new();
    stage.manifest("pv.yaml", &local("pv", &stage.host("data")));
    stage.manifest("pod.yaml", &pod("u1", &(LOCAL.to_owned() + MEM)));
    stage.settle_well();
    let records = stage.records();
    assert_eq!(records.len(), 3);
    (stage, records)
}

fn is_locked(stage: &Stage) -> bool {
    matches!(Store::open(&stage.options.state_dir), Err(OpenError::Locked { pid, .. }) if pid == Some(std::process::id()))
}

/// However it goes: the records that the manager knows are written again, under a lock, nothing is mounted anew, and what
/// comes and goes afterwards is recorded.
fn a_state_folder_that_is_taken_away_is_made_again() {
    type TakeAway = fn(&Stage);
    let ways: [(&str, TakeAway); 6] = [
        ("deleted", |stage| std::fs::remove_dir_all(&stage.options.state_dir).unwrap()),
        ("its lock deleted", |stage| std::fs::remove_file(stage.options.state_dir.join("lock")).unwrap()),
        ("its volumes deleted", |stage| std::fs::remove_dir_all(stage.options.state_dir.join("volumes")).unwrap()),
        ("all in it deleted", |stage| {
            for entry in std::fs::read_dir(&stage.options.state_dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
            }
        }),
        ("moved", |stage| std::fs::rename(&stage.options.state_dir, stage.path("elsewhere")).unwrap()),
        ("covered", |stage| stage.tmpfs(&stage.options.state_dir, c"")),
    ];
    for (how, take_away) in ways {
        let (stage, records) = with_pod();
        let id = || stage.table().at(&stage.root(MEM_PATH)).map(refloat_mount::Mount::id);
        let before = id();
        let manager = stage.run();
        wait_for("the lock", || is_locked(&stage));
        take_away(&stage);
        // Reading makes nothing.
        let is_back = || Store::read(&stage.options.state_dir).is_ok_and(|there| there.records == records);
        wait_for(how, || is_back() && stage.options.state_dir.join("lock").exists());
        assert!(is_locked(&stage), "{how}");
        stage.manifest("pod2.yaml", &pod("u2", MEM));
        wait_for(how, || stage.records().len() == 5);
        assert_eq!(id(), before, "{how}");
        stage.remove_manifest("pod.yaml");
        stage.remove_manifest("pod2.yaml");
        wait_for(how, || stage.records().is_empty());
        manager.stop();
        stage.settle_well();
        stage.assert_clean();
    }
}

/// What was removed meanwhile comes back as evidence, and is undone once more; what was made meanwhile is not lost.
fn a_state_folder_that_is_moved_away_and_back_is_taken_as_it_is() {
    let (stage, _) = with_pod();
    let (folder, elsewhere) = (&stage.options.state_dir, stage.path("elsewhere"));
    let manager = stage.run();
    wait_for("the lock", || is_locked(&stage));
    std::fs::rename(folder, &elsewhere).unwrap();
    wait_for("another one", || Store::read(folder).is_ok_and(|there| there.records.len() == 3));
    stage.remove_manifest("pod.yaml");
    stage.manifest("pod2.yaml", &pod("u2", MEM));
    wait_for("the change", || stage.records().len() == 2);
    std::fs::rename(folder, stage.path("second")).unwrap();
    std::fs::rename(&elsewhere, folder).unwrap();
    wait_for("the second pod's records only", || {
        let of_u2 = |r: &Record| format!("{r:?}").contains("pod-u2");
        Store::read(folder).is_ok_and(|there| there.records.len() == 2 && there.records.iter().all(of_u2))
    });
    manager.stop();
    assert_all_mounted(&stage.settle_well(), 1);
    assert!(stage.path("host/data/keep.txt").exists());
}

fn a_state_folder_that_another_manager_took_ends_this_one() {
    let (stage, _) = with_pod();
    let mut manager = Manager::start(stage.options.clone()).unwrap();
    manager.run_once(PATIENCE).unwrap();
    std::fs::remove_dir_all(&stage.options.state_dir).unwrap();
    let other = Store::open(&stage.options.state_dir).unwrap();
    match manager.run_once(PATIENCE) {
        Err(ManagerError::StoreTaken(OpenError::Locked { pid, .. })) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{:?}", other.map(|o| o.failures)),
    }
    assert!(stage.is_mounted(MEM_PATH) && stage.is_mounted(LOCAL_PATH));
    drop(other);
}

fn a_state_folder_that_cannot_be_made_again_stops_everything() {
    let (stage, records) = with_pod();
    let folder = &stage.options.state_dir;
    let mut manager = Manager::start(stage.options.clone()).unwrap();
    manager.run_once(PATIENCE).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::write(folder, "a file").unwrap();
    stage.remove_manifest("pod.yaml");
    stage.manifest("pod2.yaml", &pod("u2", MEM));
    let outcome = manager.run_once(PATIENCE).unwrap();
    let [problem] = outcome.failures.as_slice() else { panic!("{:?}", outcome.failures) };
    assert_eq!(problem.code, "StateFolderGone");
    assert!(problem.message.contains(&*folder.to_string_lossy()), "{problem:?}");
    assert!(stage.is_mounted(MEM_PATH) && !stage.root("pods/u2").exists());
    std::fs::remove_file(folder).unwrap();
    wait_for("the end of the trouble", || manager.run_once(PATIENCE).unwrap().failures.is_empty());
    assert!(!stage.root("pods/u1").exists() && stage.is_mounted("pods/u2/volumes/kubernetes.io~empty-dir/mem"));
    assert_ne!(stage.records(), records);
}
