//! The state folder: damaged records, no room, two managers.

use std::path::PathBuf;

use refloat_node::{Manager, ManagerError, RecordState};
use refloat_record::OpenError;

use crate::stage::{Stage, assert_all_mounted, local, pod, volume, wait_for};

refloat_test_support::tests![
    a_damaged_record_is_set_aside_and_its_volume_kept,
    a_damaged_record_of_a_gone_pod_leaves_no_mount,
    a_full_state_folder_starts_nothing,
    two_managers_cannot_run,
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
