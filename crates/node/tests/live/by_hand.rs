//! What people do to a node: mounting, unmounting, files and symlinks in the way.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use refloat_node::{LeftoverKind, ReconstructionResult, VolumeState};

use crate::stage::{Stage, assert_all_mounted, local, pod, volume, wait_for};

refloat_test_support::tests![
    a_volume_unmounted_by_hand_is_set_up_again,
    what_is_mounted_over_a_volume_is_left_alone,
    data_mounted_inside_an_empty_dir_survives_the_pod,
    a_bind_of_the_same_disk_without_a_record_is_unmounted_not_deleted,
    a_file_where_a_folder_should_be_stops_that_pod_only,
    a_symlink_in_a_pods_folder_is_not_followed,
    files_written_while_nothing_was_mounted_are_kept,
    data_of_a_pod_that_nobody_knows_is_kept,
    layers_of_the_same_volume_come_off_together,
    sub_paths_that_were_away_during_a_restart_come_to_rest,
];

const MEMORY: &str = "  - {name: mem, emptyDir: {medium: Memory}}\n";
const MEMORY_PATH: &str = "pods/u1/volumes/kubernetes.io~empty-dir/mem";

fn a_volume_unmounted_by_hand_is_set_up_again() {
    let stage = Stage::new();
    stage.manifest("pod.yaml", &pod("u1", MEMORY));
    let manager = stage.run();
    wait_for("the first mount", || stage.is_mounted(MEMORY_PATH));
    let file = stage.root(MEMORY_PATH).join("file");
    wait_for("the marker", || stage.root("pods/u1/plugins/kubernetes.io~empty-dir/mem/ready").exists());
    std::fs::write(&file, "in the first one").unwrap();
    // The marker is set a moment before the operation ends; it may still hold the mount.
    wait_for("unmounting", || {
        rustix::mount::unmount(stage.root(MEMORY_PATH), rustix::mount::UnmountFlags::empty()).is_ok()
    });
    wait_for("the second mount", || stage.is_mounted(MEMORY_PATH) && !file.exists());
    manager.stop();
    assert_all_mounted(&stage.settle_well(), 1);
}

fn what_is_mounted_over_a_volume_is_left_alone() {
    let stage = Stage::new();
    stage.manifest("pod.yaml", &pod("u1", MEMORY));
    stage.settle_well();
    let over = stage.root(MEMORY_PATH);
    stage.tmpfs(&over, c"size=64k");
    std::fs::write(over.join("precious"), "somebody's").unwrap();
    // Wanted or not: neither it nor what lies under it is touched.
    for wanted in [true, false] {
        if !wanted {
            stage.remove_manifest("pod.yaml");
        }
        let outcome = stage.settle();
        let found = volume(&outcome, "mem");
        assert!(found.conflict.is_some());
        assert_eq!(found.problems[0].code, "Conflict");
        assert_eq!(found.mount.as_ref().unwrap().stack, 2);
        assert!(over.join("precious").exists());
    }
    stage.unmount(&over);
    stage.settle_well();
    stage.assert_clean();
}

/// B02.
fn data_mounted_inside_an_empty_dir_survives_the_pod() {
    let stage = Stage::new();
    let theirs = stage.host("theirs");
    stage.manifest("pod.yaml", &pod("u1", "  - {name: e, emptyDir: {}}\n"));
    stage.settle_well();
    let volume = stage.root("pods/u1/volumes/kubernetes.io~empty-dir/e");
    std::fs::write(volume.join("a"), "the pod's").unwrap();
    let nested = volume.join("n");
    std::fs::create_dir(&nested).unwrap();
    // Twice over one another, and one below.
    stage.bind(&theirs, &nested);
    stage.bind(&theirs, &nested);
    std::fs::create_dir(nested.join("deep")).unwrap();
    stage.bind(&theirs, &nested.join("deep"));
    stage.remove_manifest("pod.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert!(theirs.join("keep.txt").exists());
}

/// B01.
fn a_bind_of_the_same_disk_without_a_record_is_unmounted_not_deleted() {
    let stage = Stage::new();
    let data = stage.host("x");
    let file = stage.root("pods/u1/volume-subpaths/v/c/1");
    let folder = stage.root("pods/u1/volume-subpaths/v/c/0");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(&file, "").unwrap();
    stage.bind(&data, &folder);
    stage.bind(&data.join("keep.txt"), &file);
    stage.settle_well();
    stage.assert_clean();
    assert!(data.join("keep.txt").exists());
}

fn a_file_where_a_folder_should_be_stops_that_pod_only() {
    let stage = Stage::new();
    std::fs::create_dir_all(stage.root("pods/u1/volumes")).unwrap();
    let file = stage.root("pods/u1/volumes/kubernetes.io~empty-dir");
    std::fs::write(&file, "a file").unwrap();
    stage.manifest("pod.yaml", &pod("u1", MEMORY));
    stage.manifest("pod2.yaml", &pod("u2", MEMORY));
    let outcome = stage.settle();
    assert_eq!(outcome.failures.len(), 1, "{:#?}", outcome.failures);
    assert!(outcome.actual.problems.iter().any(|p| p.code == "NotAFolder"), "{:?}", outcome.actual.problems);
    assert_all_mounted(&outcome, 1);
    assert!(stage.is_mounted("pods/u2/volumes/kubernetes.io~empty-dir/mem"));
    std::fs::remove_file(&file).unwrap();
    assert_all_mounted(&stage.settle_well(), 2);
    // And in the volume's own place.
    stage.remove_manifest("pod.yaml");
    stage.settle_well();
    std::fs::create_dir_all(stage.root("pods/u1/volumes/kubernetes.io~empty-dir")).unwrap();
    std::fs::write(stage.root(MEMORY_PATH), "a file").unwrap();
    let outcome = stage.settle();
    let found = outcome.actual.volumes.iter().find(|v| v.key.pod.as_str() == "u1").unwrap();
    assert_eq!(found.reconstruction, ReconstructionResult::Failed);
    assert!(stage.root(MEMORY_PATH).is_file());
}

fn a_symlink_in_a_pods_folder_is_not_followed() {
    let stage = Stage::new();
    let outside = stage.host("outside");
    std::fs::create_dir_all(stage.root("pods/u1/volumes")).unwrap();
    let link = stage.root("pods/u1/volumes/kubernetes.io~empty-dir");
    symlink(&outside, &link).unwrap();
    symlink(&outside, stage.root("pods/u3")).unwrap();
    stage.manifest("pod.yaml", &pod("u1", MEMORY));
    let outcome = stage.settle();
    assert_eq!(outcome.failures[0].code, "PathHasSymlink", "{:#?}", outcome.failures);
    assert!(outcome.actual.problems.iter().any(|p| p.code == "SymlinkInTheWay"), "{:?}", outcome.actual.problems);
    stage.remove_manifest("pod.yaml");
    stage.settle();
    let entries: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(entries, ["keep.txt"]);
    assert_eq!(stage.mounts(), Vec::<PathBuf>::new());
}

/// B33.
fn files_written_while_nothing_was_mounted_are_kept() {
    let stage = Stage::new();
    let data = stage.host("data");
    stage.manifest("pv.yaml", &local("pv", &data));
    stage.manifest("pod.yaml", &pod("u1", "  - {name: l, persistentVolumeClaim: {claimName: pv}}\n"));
    stage.settle_well();
    stage.reboot();
    let stray = stage.root("pods/u1/volumes/kubernetes.io~local-volume/pv/stray");
    std::fs::write(&stray, "written in between").unwrap();
    for wanted in [true, false] {
        if !wanted {
            stage.remove_manifest("pod.yaml");
        }
        let outcome = stage.settle();
        let found = volume(&outcome, "pv");
        assert_eq!(found.state, VolumeState::NotMounted);
        assert_eq!(found.problems[0].code, "StrayFiles");
        assert!(stray.exists() && stage.mounts().is_empty());
    }
    std::fs::remove_file(stray).unwrap();
    stage.settle_well();
    stage.assert_clean();
    assert!(data.join("keep.txt").exists());
}

/// B04: U1 is removed, U3's data is kept and shown.
fn data_of_a_pod_that_nobody_knows_is_kept() {
    let stage = Stage::new();
    std::fs::create_dir_all(stage.root("pods/u1/volumes/kubernetes.io~nfs/v")).unwrap();
    std::fs::create_dir_all(stage.root("pods/u3/volumes/kubernetes.io~nfs/v")).unwrap();
    let data = stage.root("pods/u3/volumes/kubernetes.io~nfs/v/ibdata1");
    std::fs::write(&data, "a database").unwrap();
    std::fs::create_dir_all(stage.root("pods/u4/etc")).unwrap();
    std::fs::write(stage.root("pods/u4/etc/f"), "x").unwrap();
    let outcome = stage.settle_well();
    assert!(!stage.root("pods/u1").exists());
    assert!(data.exists() && stage.root("pods/u4/etc/f").exists());
    assert!(volume(&outcome, "v").stray_files);
    assert_eq!(outcome.actual.leftovers.len(), 1);
    assert_eq!(outcome.actual.leftovers[0].kind, LeftoverKind::PodDirWithData);
}

/// B26.
fn layers_of_the_same_volume_come_off_together() {
    let stage = Stage::new();
    let data = stage.host("data");
    stage.manifest("pv.yaml", &local("pv", &data));
    stage.manifest("pod.yaml", &pod("u1", "  - {name: l, persistentVolumeClaim: {claimName: pv}}\n"));
    stage.settle_well();
    let point = stage.root("pods/u1/volumes/kubernetes.io~local-volume/pv");
    stage.bind(&data, &point);
    stage.bind(&data, &point);
    let outcome = stage.settle();
    assert_eq!(volume(&outcome, "pv").mount.as_ref().unwrap().stack, 3);
    assert_eq!(stage.mounts().len(), 3);
    stage.remove_manifest("pod.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert!(data.join("keep.txt").exists());
}

/// The folder of the subPaths is moved away, mounts and all, while something else stands in its place, and comes back.
fn sub_paths_that_were_away_during_a_restart_come_to_rest() {
    let stage = Stage::new();
    let text = pod("u1", "  - {name: e, emptyDir: {}}\n  - {name: m, emptyDir: {medium: Memory}}\n").replace(
        "image: i}",
        "image: i, volumeMounts: [{name: e, mountPath: /e, subPath: a}, {name: m, mountPath: /m, subPath: b}]}",
    );
    stage.manifest("pod.yaml", &text);
    stage.settle_well();
    let (place, away) = (stage.root("pods/u1/volume-subpaths"), stage.path("away"));
    let mounted = |name: &str| stage.table().at(&place.join(name)).and_then(refloat_mount::Mount::id);
    let before = (mounted("e/c/0"), mounted("m/c/1"));
    assert!(before.0.is_some() && before.1.is_some(), "{:?}", stage.mounts());
    std::fs::write(place.join("e/c/0/file"), "precious").unwrap();
    std::fs::rename(&place, &away).unwrap();
    std::fs::write(&place, "a file").unwrap();
    assert!(!stage.settle().failures.is_empty());
    std::fs::remove_file(&place).unwrap();
    std::fs::rename(&away, &place).unwrap();
    let outcome = stage.settle_well();
    assert_all_mounted(&outcome, 2);
    assert_eq!((mounted("e/c/0"), mounted("m/c/1")), before, "what the pod has was exchanged");
    assert_eq!(std::fs::read(place.join("e/c/0/file")).unwrap(), b"precious");
    stage.remove_manifest("pod.yaml");
    stage.settle_well();
    stage.assert_clean();
}
