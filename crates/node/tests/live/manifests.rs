//! The manifest folder: updates, and when it cannot be read.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::stage::{Stage, assert_all_mounted, pod, wait_for};

refloat_test_support::tests![
    a_config_map_update_is_seen_whole,
    a_missing_folder_takes_nothing_away,
    a_broken_manifest_keeps_its_pods,
    a_pod_that_moves_to_a_file_that_cannot_be_read_keeps_its_data,
    a_manifest_that_is_being_written_keeps_its_pods,
    a_manifest_that_is_cut_takes_nothing_away,
    bad_manifests_stop_nothing_else,
    an_edit_through_a_symlink_is_noticed,
];

fn config(value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: cm, namespace: default}}\ndata: {{a: {value}, b: {value}}}\n"
    )
}

const CONFIG: &str = "  - {name: config, configMap: {name: cm}}\n";
const CONFIG_PATH: &str = "pods/u1/volumes/kubernetes.io~configmap/config";

fn a_config_map_update_is_seen_whole() {
    let stage = Stage::new();
    stage.manifest("cm.yaml", &config("v0"));
    stage.manifest("pod.yaml", &pod("u1", CONFIG));
    let manager = stage.run();
    let folder = stage.root(CONFIG_PATH);
    wait_for("the content", || std::fs::read(folder.join("b")).is_ok_and(|b| b == b"v0"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // A reader that holds the folder open sees one state of all its files.
                let Ok(data) = std::fs::read_link(folder.join("..data")) else { panic!("..data was away") };
                let read = |name: &str| std::fs::read(folder.join(&data).join(name));
                if let (Ok(a), Ok(b)) = (read("a"), read("b")) {
                    assert_eq!(a, b);
                }
            }
        });
        for version in 1..=5 {
            let value = format!("v{version}");
            stage.manifest("cm.yaml", &config(&value));
            wait_for("the update", || std::fs::read(folder.join("a")).is_ok_and(|a| a == value.as_bytes()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    manager.stop();
}

/// B06, B43: what cannot be asked takes nothing away.
fn a_missing_folder_takes_nothing_away() {
    let stage = Stage::new();
    stage.manifest("cm.yaml", &config("v0"));
    stage.manifest("pod.yaml", &pod("u1", &format!("{CONFIG}  - {{name: mem, emptyDir: {{medium: Memory}}}}\n")));
    stage.settle_well();
    let folder = &stage.options.manifests;
    let away = stage.path("away");
    std::fs::rename(folder, &away).unwrap();
    for file in [false, true] {
        if file {
            std::fs::write(folder, "no folder").unwrap();
        }
        let outcome = stage.settle();
        assert_eq!(outcome.actual.volumes.len(), 2);
        assert!(outcome.desired.incomplete.is_some());
        assert!(stage.is_mounted("pods/u1/volumes/kubernetes.io~empty-dir/mem"));
        assert!(stage.root(CONFIG_PATH).join("a").exists());
    }
    std::fs::remove_file(folder).unwrap();
    // A running manager notices when it comes back, without a pod in it.
    let manager = stage.run();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(stage.is_mounted("pods/u1/volumes/kubernetes.io~empty-dir/mem"));
    std::fs::remove_file(away.join("pod.yaml")).unwrap();
    std::fs::rename(&away, folder).unwrap();
    wait_for("the end of the pod", || stage.files("pods").is_empty());
    manager.stop();
    stage.assert_clean();
}

fn a_broken_manifest_keeps_its_pods() {
    let stage = Stage::new();
    let text = pod("u1", "  - {name: mem, emptyDir: {medium: Memory}}\n");
    stage.manifest("pod.yaml", &text);
    stage.manifest("pod2.yaml", &text.replace("u1", "u2"));
    stage.settle_well();
    stage.remove_manifest("pod2.yaml");
    let name = text.lines().find(|line| line.contains("metadata")).unwrap();
    // What cannot be read at all may hold any pod; what says which pod it is may be that one.
    for (broken, other_stays) in [
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: [\n".to_owned(), true),
        (format!("apiVersion: v1\nkind: Pod\n{name}\nspec: []\n"), false),
    ] {
        stage.manifest("pod.yaml", &broken);
        let outcome = stage.settle();
        let problem = outcome.desired.problems.iter().find(|p| p.code == "ManifestBroken").unwrap();
        assert!(problem.message.contains("pod.yaml"), "{problem:?}");
        assert!(stage.is_mounted("pods/u1/volumes/kubernetes.io~empty-dir/mem"));
        assert_eq!(stage.root("pods/u2").exists(), other_stays, "{broken}: {:#?}", outcome.plan.report);
    }
    stage.manifest("pod.yaml", &text);
    assert_all_mounted(&stage.settle_well(), 1);
}

/// B06: the new file is empty, or what only looks like a file, and the old one is gone or became such.
fn a_pod_that_moves_to_a_file_that_cannot_be_read_keeps_its_data() {
    type Make = fn(&std::path::Path);
    let stage = Stage::new();
    let text = pod("u1", "  - {name: data, emptyDir: {}}\n");
    stage.manifest("pod.yaml", &text);
    stage.settle_well();
    let file = stage.root("pods/u1/volumes/kubernetes.io~empty-dir/data/file");
    std::fs::write(&file, "precious").unwrap();
    let folder = &stage.options.manifests;
    let kinds: [(&str, Make); 5] = [
        ("empty", |path| std::fs::write(path, "").unwrap()),
        ("cut before the name", |path| std::fs::write(path, "apiVersion: v1\nkind: Pod\nmetadata:\n  na").unwrap()),
        ("a link to nowhere", |path| std::os::unix::fs::symlink("nowhere", path).unwrap()),
        ("a folder", |path| std::fs::create_dir(path).unwrap()),
        ("a FIFO", |path| {
            let fifo = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, path, fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        }),
    ];
    for name in ["all.yaml", "pod.yaml"] {
        for (kind, make) in kinds {
            stage.remove_manifest("pod.yaml");
            let path = folder.join(name);
            make(&path);
            let outcome = stage.settle();
            assert_eq!(std::fs::read(&file).unwrap(), b"precious", "{name} is {kind}");
            assert!(outcome.desired.problems.iter().any(|p| p.code == "ManifestBroken" && p.message.contains(name)));
            if path.is_dir() { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) }.unwrap();
            stage.manifest("pod.yaml", &text);
        }
    }
    // The folder is covered by an empty file system, as one that is not mounted yet is empty: that says nothing.
    stage.settle_well();
    stage.tmpfs(folder, c"");
    let outcome = stage.settle();
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    assert!(
        outcome.desired.problems.iter().any(|p| p.code == "ManifestFolderReplaced"),
        "{:?}",
        outcome.desired.problems
    );
    stage.unmount(folder);
    stage.remove_manifest("pod.yaml");
    stage.settle_well();
    stage.assert_clean();
}

/// A file written in place is empty for a moment, and another file may wake the manager just then.
fn a_manifest_that_is_being_written_keeps_its_pods() {
    let stage = Stage::new();
    let text = pod("u1", "  - {name: data, emptyDir: {}}\n");
    stage.manifest("pod.yaml", &text);
    let manager = stage.run();
    let data = stage.root("pods/u1/volumes/kubernetes.io~empty-dir/data");
    wait_for("the volume", || data.is_dir());
    std::fs::write(data.join("file"), "precious").unwrap();
    stage.manifest("pod.yaml", "");
    stage.manifest("pod2.yaml", &text.replace("u1", "u2"));
    wait_for("the other pod", || stage.root("pods/u2/volumes/kubernetes.io~empty-dir/data").is_dir());
    stage.manifest("pod.yaml", &text);
    manager.stop();
    let outcome = stage.settle_well();
    assert_all_mounted(&outcome, 2);
    assert_eq!(std::fs::read(data.join("file")).unwrap(), b"precious");
    // A file without a document is another thing than an empty file.
    stage.manifest("pod.yaml", "# no pods\n");
    stage.remove_manifest("pod2.yaml");
    stage.settle_well();
    stage.assert_clean();
}

/// Written in place and in parts, each of which is well-formed: cut between two documents, and between two volumes.
fn a_manifest_that_is_cut_takes_nothing_away() {
    use std::io::Write;
    let stage = Stage::new();
    let one = pod("u1", "  - {name: data, emptyDir: {}}\n");
    let two = pod("u2", "  - {name: first, emptyDir: {}}\n  - {name: second, emptyDir: {}}\n");
    let whole = format!("{one}---\n{two}");
    stage.manifest("pods.yaml", &whole);
    stage.settle_well();
    let folder = |pod: &str, name: &str| stage.root(&format!("pods/{pod}/volumes/kubernetes.io~empty-dir/{name}"));
    let all = [("u1", "data"), ("u2", "first"), ("u2", "second")].map(|(pod, name)| folder(pod, name).join("file"));
    for file in &all {
        std::fs::write(file, "precious").unwrap();
    }
    let there = || all.iter().all(|file| std::fs::read(file).is_ok_and(|data| data == b"precious"));
    let records = stage.records();
    let manager = stage.run();
    let path = stage.options.manifests.join("pods.yaml");
    for cut in [one.len(), whole.len() - "  - {name: second, emptyDir: {}}\n".len()] {
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&whole.as_bytes()[..cut]).unwrap();
        // Something else wakes the manager just then.
        stage.manifest("other.yaml", &format!("# {cut}\n"));
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(there(), "cut at {cut}");
        file.write_all(&whole.as_bytes()[cut..]).unwrap();
        drop(file);
        std::thread::sleep(std::time::Duration::from_millis(1500));
        assert!(there(), "cut at {cut}");
    }
    assert_eq!(stage.records(), records);
    // What stays as it is written is believed.
    stage.manifest("pods.yaml", &one);
    wait_for("the end of the other pod", || !stage.root("pods/u2").exists());
    manager.stop();
    assert_all_mounted(&stage.settle_well(), 1);
    assert_eq!(std::fs::read(&all[0]).unwrap(), b"precious");
}

fn bad_manifests_stop_nothing_else() {
    let stage = Stage::new();
    let long = "v".repeat(253);
    for (uid, volumes) in [
        ("u1", "  - {name: a, teleport: {to: mars}}\n".to_owned()),
        ("u2", "  - {name: a, configMap: {name: missing}}\n".to_owned()),
        ("u3", "  - {name: a, persistentVolumeClaim: {claimName: missing}}\n".to_owned()),
        ("u4", "  - {name: ../../../escape, emptyDir: {}}\n".to_owned()),
        ("u5", "  - {name: .., emptyDir: {}}\n".to_owned()),
        ("u6", "  - {name: ok, emptyDir: {}}\n".to_owned()),
        ("u7", format!("  - {{name: {long}, emptyDir: {{}}}}\n")),
    ] {
        stage.manifest(&format!("{uid}.yaml"), &pod(uid, &volumes));
    }
    stage.manifest("evil.yaml", &pod("..", "  - {name: a, emptyDir: {}}\n"));
    let outcome = stage.settle();
    assert_all_mounted(&outcome, 2);
    assert!(stage.root("pods/u6/volumes/kubernetes.io~empty-dir/ok").is_dir());
    assert!(stage.root("pods/u7/volumes/kubernetes.io~empty-dir").join(&long).is_dir());
    assert!(!stage.root("escape").exists() && !stage.path("volumes").exists());
    let waiting: usize = outcome.desired.pods.values().map(|p| p.waiting.len()).sum();
    assert_eq!(waiting, 3, "{:#?}", outcome.desired.pods.values().map(|p| &p.waiting).collect::<Vec<_>>());
    for file in ["u4.yaml", "u5.yaml", "evil.yaml"] {
        let told = |p: &refloat_volume::Problem| p.code == "ManifestBroken" && p.message.contains(file);
        assert!(outcome.desired.problems.iter().any(told), "{file}: {:#?}", outcome.desired.problems);
    }
}

/// As a mounted configMap shows its files.
fn an_edit_through_a_symlink_is_noticed() {
    let stage = Stage::new();
    let folder = &stage.options.manifests;
    let version = |name: &str, text: &str| {
        std::fs::create_dir(folder.join(name)).unwrap();
        std::fs::write(folder.join(name).join("pod.yaml"), text).unwrap();
        let _ = std::fs::remove_file(folder.join("..tmp"));
        std::os::unix::fs::symlink(name, folder.join("..tmp")).unwrap();
        std::fs::rename(folder.join("..tmp"), folder.join("..data")).unwrap();
    };
    version("..1", &pod("u1", "  - {name: a, emptyDir: {}}\n"));
    std::os::unix::fs::symlink("..data/pod.yaml", folder.join("pod.yaml")).unwrap();
    let elsewhere = stage.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("x.yaml"), pod("u2", "  - {name: a, emptyDir: {}}\n")).unwrap();
    std::os::unix::fs::symlink(elsewhere.join("x.yaml"), folder.join("x.yaml")).unwrap();
    let manager = stage.run();
    let there =
        |uid: &str, name: &str| stage.root(&format!("pods/{uid}/volumes/kubernetes.io~empty-dir/{name}")).exists();
    wait_for("both pods", || there("u1", "a") && there("u2", "a"));
    version("..2", &pod("u1", "  - {name: b, emptyDir: {}}\n"));
    wait_for("the swap of ..data", || there("u1", "b") && !there("u1", "a"));
    std::fs::write(elsewhere.join("x.yaml"), pod("u2", "  - {name: b, emptyDir: {}}\n")).unwrap();
    wait_for("the edit elsewhere", || there("u2", "b"));
    manager.stop();
}
