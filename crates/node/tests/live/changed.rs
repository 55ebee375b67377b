//! Specs that change under what is mounted.

use refloat_node::VolumeState;
use refloat_test_support::Outcome;

use crate::stage::{Stage, local, pod, volume};

refloat_test_support::tests![
    a_changed_volume_is_told_and_stays,
    a_changed_volume_is_followed_by_a_new_pod,
    a_changed_empty_dir_keeps_its_data,
    a_changed_memory_limit_changes_no_volume,
    a_changed_device_waits_for_its_last_user,
    options_that_a_crash_left_away_are_set_at_the_next_start,
];

const CLAIM: &str = "  - {name: l, persistentVolumeClaim: {claimName: pv}}\n";

fn of_pod(uid: &str) -> String {
    format!("pods/{uid}/volumes/kubernetes.io~local-volume/pv")
}

fn codes(outcome: &refloat_node::manager::Outcome, name: &str) -> Vec<&'static str> {
    volume(outcome, name).problems.iter().map(|p| p.code).collect()
}

fn a_changed_volume_is_told_and_stays() {
    let stage = Stage::new();
    let (a, b) = (stage.host("a"), stage.host("b"));
    std::fs::write(a.join("a.txt"), "a").unwrap();
    stage.manifest("pv.yaml", &local("pv", &a));
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    stage.settle_well();
    let id = || stage.table().at(&stage.root(&of_pod("u1"))).unwrap().id();
    let before = (id(), stage.records());
    stage.manifest("pv.yaml", &local("pv", &b));
    // Also after a restart: the record still tells what is mounted, not what is wished for.
    for _ in 0..2 {
        let outcome = stage.settle_well();
        assert_eq!(codes(&outcome, "pv"), ["SpecChanged"]);
        let problem = &volume(&outcome, "pv").problems[0];
        assert!(problem.message.contains("spec.local.path") && problem.message.contains("u1"), "{problem:?}");
        assert_eq!(volume(&outcome, "pv").state, VolumeState::Mounted);
        assert_eq!((id(), stage.records()), before);
        assert!(stage.root(&of_pod("u1")).join("a.txt").exists());
    }
    stage.manifest("pv.yaml", &local("pv", &a));
    assert!(codes(&stage.settle_well(), "pv").is_empty());
    // What changes nothing about the mount is written down without a word.
    stage.manifest("pv.yaml", &local("pv", &a).replace("{name: pv}\nspec", "{name: pv, labels: {tier: gold}}\nspec"));
    assert!(codes(&stage.settle_well(), "pv").is_empty());
    assert_ne!(stage.records(), before.1);
    stage.manifest("pv.yaml", &local("pv", &b));
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert!(a.join("a.txt").exists());
}

fn a_changed_volume_is_followed_by_a_new_pod() {
    let stage = Stage::new();
    let (a, b) = (stage.host("a"), stage.host("b"));
    std::fs::write(b.join("b.txt"), "b").unwrap();
    stage.manifest("pv.yaml", &local("pv", &a));
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    stage.settle_well();
    stage.manifest("pv.yaml", &local("pv", &b));
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    assert!(codes(&stage.settle_well(), "pv").is_empty());
    assert!(stage.root(&of_pod("u1")).join("b.txt").exists());
}

fn a_changed_empty_dir_keeps_its_data() {
    let stage = Stage::new();
    for (before, after) in
        [("{}", "{medium: Memory}"), ("{medium: Memory}", "{}"), ("{sizeLimit: 1Mi}", "{sizeLimit: 2Mi}")]
    {
        stage.manifest("u1.yaml", &pod("u1", &format!("  - {{name: e, emptyDir: {before}}}\n")));
        stage.settle_well();
        let file = stage.root("pods/u1/volumes/kubernetes.io~empty-dir/e/file");
        std::fs::write(&file, "precious").unwrap();
        stage.manifest("u1.yaml", &pod("u1", &format!("  - {{name: e, emptyDir: {after}}}\n")));
        assert_eq!(codes(&stage.settle_well(), "e"), ["SpecChanged"], "{before} {after}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        stage.remove_manifest("u1.yaml");
        stage.settle_well();
        stage.assert_clean();
    }
}

/// The size of a tmpfs depends on the pod's limit, and what is mounted on neither.
fn a_changed_memory_limit_changes_no_volume() {
    let stage = Stage::new();
    let limited = |limit: &str| {
        let limits = format!("image: i, resources: {{limits: {{memory: {limit}}}}}");
        pod("u1", "  - {name: e, emptyDir: {medium: Memory}}\n").replace("image: i", &limits)
    };
    let folder = "pods/u1/volumes/kubernetes.io~empty-dir/e";
    let is_sized = |size: &str| {
        let table = stage.table();
        let options = table.at(&stage.root(folder)).unwrap().fs_options().into_owned();
        assert!(options.contains(size), "{options}");
    };
    stage.manifest("u1.yaml", &limited("4Mi"));
    stage.settle_well();
    is_sized("size=4096k");
    std::fs::write(stage.root(folder).join("file"), "precious").unwrap();
    for limit in ["8Mi", "0"] {
        stage.manifest("u1.yaml", &limited(limit));
        assert!(codes(&stage.settle_well(), "e").is_empty(), "{limit}");
        is_sized("size=4096k");
    }
    // A limit that is none is told, and changes nothing either.
    stage.manifest("u1.yaml", &limited("much"));
    let outcome = stage.settle();
    let report = format!("{:?}", outcome.plan.report);
    assert!(report.contains("the quantity of memory of container"), "{report}");
    is_sized("size=4096k");
    assert_eq!(std::fs::read_to_string(stage.root(folder).join("file")).unwrap(), "precious");
}

fn a_changed_device_waits_for_its_last_user() -> Outcome {
    let mut stage = Stage::new();
    let (one, other) = (stage.disk("one.img")?, stage.disk("other.img")?);
    let global = stage.root("plugins/kubernetes.io/local-volume/mounts/pv");
    let mounted = |stage: &Stage| stage.table().at(&global).map(|m| m.source().into_owned());
    let name = |device: &std::path::Path| Some(device.to_string_lossy().into_owned());
    stage.manifest("pv.yaml", &local("pv", &one));
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    stage.settle_well();
    stage.manifest("pv.yaml", &local("pv", &other));
    stage.manifest("u2.yaml", &pod("u2", CLAIM));
    let outcome = stage.settle_well();
    let problems = &outcome.actual.devices[0].problems;
    assert_eq!(problems.iter().map(|p| p.code).collect::<Vec<_>>(), ["SpecChanged"], "{problems:#?}");
    assert_eq!(mounted(&stage), name(&one));
    // The new pod gets neither the old device nor anything else in its place.
    assert!(stage.is_mounted(&of_pod("u1")) && !stage.is_mounted(&of_pod("u2")), "{:#?}", outcome.plan.report);
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    assert_eq!(mounted(&stage), name(&other));
    assert!(stage.is_mounted(&of_pod("u2")));
    // From a device to a folder and back.
    let folder = stage.host("folder");
    for path in [&folder, &one] {
        stage.remove_manifest("u2.yaml");
        stage.settle_well();
        stage.manifest("pv.yaml", &local("pv", path));
        stage.manifest("u2.yaml", &pod("u2", CLAIM));
        stage.settle_well();
    }
    assert_eq!(mounted(&stage), name(&one));
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    stage.assert_clean();
    Ok(())
}

/// As a crash leaves it on a kernel without `mount_setattr`, between the bind and the call that sets its options: whether
/// the mount's id was recorded or not, the next start sets them, on the same mount.
fn options_that_a_crash_left_away_are_set_at_the_next_start() {
    for id_known in [true, false] {
        let stage = Stage::new();
        let volume =
            local("pv", &stage.host("data")).replace("  local: {path", "  mountOptions: [noexec]\n  local: {path");
        stage.manifest("pv.yaml", &volume);
        let claim = "  - {name: l, persistentVolumeClaim: {claimName: pv, readOnly: true}}\n";
        stage.manifest("pod.yaml", &pod("u1", claim));
        stage.settle_well();
        let path = stage.root("pods/u1/volumes/kubernetes.io~local-volume/pv");
        let seen = || {
            let table = stage.table();
            let mount = table.at(&path).unwrap();
            let has = |name: &str| mount.options().split(',').any(|option| option == name);
            (mount.id(), has("ro"), has("noexec"))
        };
        let (id, ..) = seen();
        assert_eq!(seen(), (id, true, true));
        rustix::mount::mount_remount(&path, rustix::mount::MountFlags::BIND, c"").unwrap();
        assert_eq!(seen(), (id, false, false));
        if !id_known {
            let store = refloat_record::Store::open(&stage.options.state_dir).unwrap();
            for record in store.load().unwrap().records {
                if let refloat_record::Record::PodVolume(mut record) = record {
                    record.mount.as_mut().unwrap().id = None;
                    store.put(&refloat_record::Record::PodVolume(record)).unwrap();
                }
            }
        }
        stage.settle_well();
        assert_eq!(seen(), (id, true, true), "{id_known}");
        // The source stays writable.
        std::fs::write(stage.path("host/data/more"), "").unwrap();
        assert!(std::fs::write(path.join("more"), "").is_err());
    }
}
