//! Set up, restart, tear down.

use std::os::unix::fs::symlink;

use refloat_node::VolumeState;

use crate::stage::{Stage, assert_all_mounted, local, pod, volume};

refloat_test_support::tests![
    all_kinds_live_and_go,
    a_reboot_sets_up_what_is_wanted,
    a_reboot_removes_what_is_not_wanted,
    two_names_of_one_claim_are_one_volume,
    a_pod_that_is_being_deleted_keeps_its_volumes,
    the_root_may_be_a_symlink,
    a_volume_taken_out_of_its_pod_goes_alone,
    one_worker_does_it_all,
    a_failing_volume_leaves_nothing_behind,
    a_read_only_root_is_told_and_tried_again,
];

const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm, namespace: default}\ndata: {a: one}\n";
const SECRET: &str =
    "apiVersion: v1\nkind: Secret\nmetadata: {name: se, namespace: default}\nstringData: {p: hidden}\n";

fn all_kinds(stage: &Stage) {
    stage.manifest("pv.yaml", &local("pv", &stage.host("data")));
    stage.manifest("cm.yaml", CONFIG);
    stage.manifest("se.yaml", SECRET);
    let text = format!(
        r"apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: default, uid: u1, labels: {{app: web}}}}
spec:
  containers:
  - name: c
    image: i
    volumeMounts:
    - {{name: logs, mountPath: /logs, subPath: keep.txt}}
    - {{name: disk, mountPath: /x, subPath: part}}
  volumes:
  - {{name: disk, emptyDir: {{}}}}
  - {{name: mem, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}
  - {{name: config, configMap: {{name: cm}}}}
  - {{name: secret, secret: {{secretName: se}}}}
  - {{name: down, downwardAPI: {{items: [{{path: name, fieldRef: {{fieldPath: metadata.name}}}}]}}}}
  - {{name: all, projected: {{sources: [{{configMap: {{name: cm}}}}, {{secret: {{name: se}}}}]}}}}
  - {{name: logs, hostPath: {{path: {}, type: Directory}}}}
  - {{name: claim, persistentVolumeClaim: {{claimName: pv}}}}
",
        stage.host("logs").display()
    );
    stage.manifest("web.yaml", &text);
}

fn all_kinds_live_and_go() {
    let stage = Stage::new();
    all_kinds(&stage);
    let first = stage.settle_well();
    assert_all_mounted(&first, 8);
    let mounts = stage.mounts();
    // mem, secret, down, all, claim, and two subPaths.
    assert_eq!(mounts.len(), 7, "{mounts:?}");
    std::fs::write(stage.root("pods/u1/volumes/kubernetes.io~empty-dir/disk/own"), "pod's").unwrap();

    let second = stage.settle_well();
    assert_all_mounted(&second, 8);
    let ids = |o: &refloat_node::manager::Outcome| {
        o.actual.volumes.iter().map(|v| v.mount.as_ref().map(|m| (m.id, m.stack))).collect::<Vec<_>>()
    };
    assert_eq!(ids(&first), ids(&second));
    assert_eq!(stage.mounts(), mounts);

    stage.remove_manifest("web.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert!(stage.path("host/data/keep.txt").exists() && stage.path("host/logs/keep.txt").exists());
}

/// Other boot id, folders and records there, nothing mounted.
fn a_reboot_sets_up_what_is_wanted() {
    let stage = Stage::new();
    all_kinds(&stage);
    stage.settle_well();
    let own = stage.root("pods/u1/volumes/kubernetes.io~empty-dir/disk/own");
    std::fs::write(&own, "pod's").unwrap();
    stage.reboot();
    assert_all_mounted(&stage.settle_well(), 8);
    assert_eq!(stage.mounts().len(), 7);
    assert!(own.exists());
    let this = refloat_node::evidence::boot_id().unwrap();
    for record in stage.records() {
        if let refloat_record::Record::PodVolume(volume) = record {
            assert_eq!(volume.boot_id, this);
        }
    }
}

fn a_reboot_removes_what_is_not_wanted() {
    let stage = Stage::new();
    all_kinds(&stage);
    stage.settle_well();
    stage.reboot();
    stage.remove_manifest("web.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert!(stage.path("host/data/keep.txt").exists() && stage.path("host/logs/keep.txt").exists());
}

/// B18.
fn two_names_of_one_claim_are_one_volume() {
    let stage = Stage::new();
    stage.manifest("pv.yaml", &local("pv", &stage.host("data")));
    let claim = |name: &str| format!("  - {{name: {name}, persistentVolumeClaim: {{claimName: pv}}}}\n");
    stage.manifest("pod.yaml", &pod("u1", &(claim("a") + &claim("b"))));
    for _ in 0..2 {
        let outcome = stage.settle_well();
        assert_all_mounted(&outcome, 1);
        let names: Vec<_> =
            outcome.actual.volumes[0].outer_names.iter().map(refloat_record::OuterSpecName::as_str).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(stage.mounts().len(), 1);
    }
}

/// B05: the manifest is there, so the pod is.
fn a_pod_that_is_being_deleted_keeps_its_volumes() {
    let stage = Stage::new();
    let text = pod("u1", "  - {name: mem, emptyDir: {medium: Memory}}\n");
    stage.manifest("pod.yaml", &text);
    stage.settle_well();
    let file = stage.root("pods/u1/volumes/kubernetes.io~empty-dir/mem/f");
    std::fs::write(&file, "x").unwrap();
    let dying = text.replace("uid: u1", "uid: u1, deletionTimestamp: \"2026-01-01T00:00:00Z\"");
    stage.manifest("pod.yaml", &dying);
    assert_all_mounted(&stage.settle_well(), 1);
    assert!(file.exists());
}

/// B42.
fn the_root_may_be_a_symlink() {
    let mut stage = Stage::new();
    let link = stage.path("link");
    symlink(stage.path("kubelet"), &link).unwrap();
    stage.manifest("pod.yaml", &pod("u1", "  - {name: mem, emptyDir: {medium: Memory}}\n"));
    let real = std::mem::replace(&mut stage.options.root_dir, link.join(".").join(""));
    assert_all_mounted(&stage.settle_well(), 1);
    stage.options.root_dir = real;
    assert_all_mounted(&stage.settle_well(), 1);
    stage.remove_manifest("pod.yaml");
    stage.options.root_dir = link;
    stage.settle_well();
    stage.assert_clean();
}

fn a_volume_taken_out_of_its_pod_goes_alone() {
    let stage = Stage::new();
    let volume = |name: &str| format!("  - {{name: {name}, emptyDir: {{medium: Memory}}}}\n");
    stage.manifest("pod.yaml", &pod("u1", &(volume("a") + &volume("b"))));
    stage.settle_well();
    stage.manifest("pod.yaml", &pod("u1", &volume("b")));
    assert_all_mounted(&stage.settle_well(), 1);
    assert!(!stage.root("pods/u1/volumes/kubernetes.io~empty-dir/a").exists());
    assert!(stage.is_mounted("pods/u1/volumes/kubernetes.io~empty-dir/b"));
}

fn one_worker_does_it_all() {
    let mut stage = Stage::new();
    stage.options.workers = 1;
    all_kinds(&stage);
    assert_all_mounted(&stage.settle_well(), 8);
    stage.remove_manifest("web.yaml");
    stage.settle_well();
    stage.assert_clean();
}

fn a_failing_volume_leaves_nothing_behind() {
    let stage = Stage::new();
    let gone = stage.path("host/gone");
    let volumes = format!(
        "  - {{name: h, hostPath: {{path: {}, type: Directory}}}}\n  - {{name: ok, emptyDir: {{}}}}\n",
        gone.display()
    );
    stage.manifest("pv.yaml", &local("pv", &gone));
    stage.manifest("pod.yaml", &pod("u1", &(volumes + "  - {name: l, persistentVolumeClaim: {claimName: pv}}\n")));
    let outcome = stage.settle();
    assert_eq!(outcome.failures.len(), 2, "{:#?}", outcome.failures);
    for failure in &outcome.failures {
        assert!(failure.message.contains("gone"), "{failure:?}");
    }
    assert_all_mounted(&outcome, 1);
    assert_eq!(volume(&outcome, "ok").state, VolumeState::Mounted);
    // The pod's checkpoint and the record of the volume that is well.
    assert_eq!(stage.records().len(), 2);
    assert_eq!(stage.files("plugins"), Vec::<std::path::PathBuf>::new());
    std::fs::create_dir(&gone).unwrap();
    assert_all_mounted(&stage.settle_well(), 3);
}

fn a_read_only_root_is_told_and_tried_again() {
    let stage = Stage::new();
    let root = stage.path("kubelet");
    stage.tmpfs(&root, c"size=1m");
    let read_only = |yes: bool| {
        let flags = if yes { rustix::mount::MountFlags::RDONLY } else { rustix::mount::MountFlags::empty() };
        rustix::mount::mount_remount(&root, flags, "").unwrap();
    };
    read_only(true);
    stage.manifest("pod.yaml", &pod("u1", "  - {name: d, emptyDir: {}}\n"));
    let outcome = stage.settle();
    assert_eq!(outcome.failures.len(), 1, "{:#?}", outcome.failures);
    assert_eq!(outcome.failures[0].code, "ReadOnlyFileSystem");
    read_only(false);
    assert_all_mounted(&stage.settle_well(), 1);
}
