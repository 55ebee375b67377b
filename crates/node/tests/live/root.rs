//! The node root under the manager: covered, moved away, bound onto itself.

use std::path::PathBuf;
use std::process::Command;

use refloat_node::VolumeState;

use crate::stage::{Stage, assert_all_mounted, pod, volume, wait_for};

refloat_test_support::tests![
    a_covered_root_drops_no_record,
    a_root_that_was_moved_away_is_waited_for,
    a_root_bound_onto_itself_shows_no_conflict,
    a_root_that_doubles_is_told_once,
];

const VOLUMES: &str = "  - {name: d, emptyDir: {}}\n  - {name: m, emptyDir: {medium: Memory}}\n";
const DISK: &str = "pods/u1/volumes/kubernetes.io~empty-dir/d";
const MEMORY: &str = "pods/u1/volumes/kubernetes.io~empty-dir/m";

fn mount(args: &[&str]) {
    assert!(Command::new("mount").args(args).status().unwrap().success(), "{args:?}");
}

fn ready(stage: &Stage, name: &str) -> bool {
    stage.root(&format!("pods/u1/plugins/kubernetes.io~empty-dir/{name}/ready")).exists()
}

fn a_covered_root_drops_no_record() {
    let stage = Stage::new();
    stage.manifest("pod.yaml", &pod("u1", VOLUMES));
    let manager = stage.run();
    wait_for("the volumes", || ready(&stage, "d") && ready(&stage, "m"));
    std::fs::write(stage.root(DISK).join("file"), "precious").unwrap();
    wait_for("the records", || stage.records().len() == 3);
    let root = stage.root("");
    stage.tmpfs(&root, c"size=64k");
    stage.remove_manifest("pod.yaml");
    stage.manifest("pod2.yaml", &pod("u2", VOLUMES));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    // Neither the one that is gone nor the one that is new: what lies over the root is somebody else's.
    assert_eq!(stage.records().len(), 3, "{:#?}", stage.records());
    assert_eq!(stage.files(""), Vec::<PathBuf>::new());
    stage.unmount(&root);
    wait_for("the end of the pod and the start of the other", || {
        !stage.root("pods/u1").exists() && stage.is_mounted("pods/u2/volumes/kubernetes.io~empty-dir/m")
    });
    manager.stop();
    assert_all_mounted(&stage.settle_well(), 2);
    stage.remove_manifest("pod2.yaml");
    stage.settle_well();
    stage.assert_clean();
}

fn a_root_that_was_moved_away_is_waited_for() {
    let stage = Stage::new();
    stage.manifest("pod.yaml", &pod("u1", VOLUMES));
    let manager = stage.run();
    wait_for("the volumes", || ready(&stage, "d") && ready(&stage, "m"));
    wait_for("the records", || stage.records().len() == 3);
    let (root, away) = (stage.root(""), stage.path("away"));
    std::fs::rename(&root, &away).unwrap();
    std::fs::create_dir(&root).unwrap();
    stage.remove_manifest("pod.yaml");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(stage.records().len(), 3);
    assert!(away.join(DISK).is_dir() && stage.table().at(&away.join(MEMORY)).is_some());
    assert_eq!(stage.files(""), Vec::<PathBuf>::new());
    std::fs::remove_dir(&root).unwrap();
    std::fs::rename(&away, &root).unwrap();
    wait_for("the end of the pod", || !stage.root("pods/u1").exists() && stage.records().is_empty());
    manager.stop();
    stage.assert_clean();
}

/// B27: by a bind and by a recursive one, private and shared, under a running manager and before a start.
fn a_root_bound_onto_itself_shows_no_conflict() {
    for (how, shared) in [("--rbind", false), ("--rbind", true), ("--bind", true)] {
        let stage = Stage::new();
        let root = stage.root("");
        let path = root.to_str().unwrap();
        mount(&["--bind", path, path]);
        mount(&[if shared { "--make-shared" } else { "--make-private" }, path]);
        stage.manifest("pod.yaml", &pod("u1", VOLUMES));
        let manager = stage.run();
        wait_for("the volumes", || ready(&stage, "d") && ready(&stage, "m"));
        wait_for("the records", || stage.records().len() == 3);
        std::fs::write(stage.root(MEMORY).join("file"), "precious").unwrap();
        mount(&[how, path, path]);
        stage.manifest("pod2.yaml", &pod("u2", VOLUMES));
        let other = "pods/u2/volumes/kubernetes.io~empty-dir/m";
        wait_for("a pod after that", || stage.is_mounted(other));
        manager.stop();
        if how == "--rbind" {
            assert_eq!(std::fs::read_to_string(stage.root(MEMORY).join("file")).unwrap(), "precious");
            let outcome = stage.settle_well();
            assert_eq!(volume(&outcome, "m").state, VolumeState::Mounted);
            assert_eq!(volume(&outcome, "m").conflict, None);
            assert_all_mounted(&outcome, 4);
        }
        stage.remove_manifest("pod.yaml");
        stage.remove_manifest("pod2.yaml");
        stage.settle();
        // What is hidden is not reached, so it keeps its record until the upper root is taken off.
        stage.unmount(&root);
        stage.settle_well();
        stage.unmount(&root);
        stage.assert_clean();
    }
}

/// B27: the table doubles each time; the volumes are shown once each, and the doubling is one problem.
fn a_root_that_doubles_is_told_once() {
    let stage = Stage::new();
    let root = stage.root("");
    let path = root.to_str().unwrap();
    mount(&["--bind", path, path]);
    mount(&["--make-rshared", path]);
    stage.manifest("pod.yaml", &pod("u1", VOLUMES));
    stage.settle_well();
    for _ in 0..5 {
        mount(&["--rbind", path, path]);
    }
    let before = stage.mounts().len();
    assert!(before >= 32, "{before}");
    let outcome = stage.settle_well();
    assert_all_mounted(&outcome, 2);
    assert!(stage.mounts().len() <= before, "the manager added a mount");
    let codes: Vec<_> = outcome.actual.problems.iter().map(|p| p.code).collect();
    assert_eq!(codes, ["MountsDoubled"]);
    assert!(outcome.actual.leftovers.is_empty(), "{:#?}", outcome.actual.leftovers);
    while stage.table().stack(&root).len() > 1 {
        rustix::mount::unmount(&root, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
    stage.remove_manifest("pod.yaml");
    stage.settle();
}
