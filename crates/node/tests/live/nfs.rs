//! NFS volumes, with a mount helper that binds folders of this machine (`refloat_test_support::MOUNT_NFS`): the mounts are
//! real, the server is not. Where it must not answer, the folder is a FUSE file system whose daemon is stopped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use refloat_node::manager::Outcome as Settled;
use refloat_node::{RecordState, VolumeState};
use refloat_record::{PodVolume, Record};
use refloat_test_support::{Outcome, Skip, assert_readable};
use rustix::process::{Pid, Signal};

use crate::stage::{Stage, assert_all_mounted, pod, volume, wait_for};

refloat_test_support::tests![
    an_export_lives_and_goes,
    two_pods_share_one_export,
    read_only_is_read_only,
    a_restart_asks_nobody,
    a_lost_record_is_written_anew,
    another_export_is_not_adopted,
    a_lost_record_of_a_gone_pod_leaves_no_mount,
    a_crash_before_the_mount_was_found,
    after_a_reboot,
    a_helper_that_hangs_is_killed_with_its_children,
    a_helper_that_hangs_delays_no_other,
    a_helper_that_prints_garbage,
    what_looks_secret_in_its_options_is_not_shown,
    a_helper_that_refuses_leaves_nothing,
    options_that_a_helper_sets_late_are_seen,
    a_helper_that_lies_or_complains,
    what_was_there_before_is_kept,
    a_mount_over_it_or_in_its_place_is_not_touched,
    sub_paths_of_an_export,
    a_dead_server_delays_no_restart_and_is_forced_for_a_gone_pod,
];

const SERVER: &str = "files.example";
const OF_U1: &str = "pods/u1/volumes/kubernetes.io~nfs/v";

/// A folder that the helper mounts: a tmpfs with the source that the mount table would show.
struct Export {
    path: PathBuf,
}

impl Export {
    fn new(stage: &Stage, name: &str) -> Self {
        let path = stage.path("host").join(name);
        std::fs::create_dir_all(&path).unwrap();
        let export = Self { path };
        rustix::mount::mount(export.source(), &export.path, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        std::fs::write(export.path.join("keep.txt"), "the server's").unwrap();
        export
    }

    fn source(&self) -> String {
        format!("{SERVER}:{}", self.path.display())
    }

    fn beside(&self, what: &str) -> PathBuf {
        PathBuf::from(format!("{}.{what}", self.path.display()))
    }

    /// What the helper was told, call by call.
    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.beside("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// What the helper does instead of mounting.
    fn how(&self, how: &str) {
        std::fs::write(self.beside("how"), how).unwrap();
    }

    /// Ends the helpers that hang, with their children.
    fn kill_helpers(&self) {
        for id in running(self) {
            let _ = rustix::process::kill_process(Pid::from_raw(id).unwrap(), Signal::KILL);
        }
    }

    fn volume(&self) -> String {
        format!("  - {{name: v, nfs: {{server: {SERVER}, path: {}}}}}\n", self.path.display())
    }

    /// A `PersistentVolume` of this name and a claim bound to it.
    fn persistent(&self, name: &str, more: &str) -> String {
        let nfs = format!("nfs: {{server: {SERVER}, path: {}}}{more}", self.path.display());
        let local = crate::stage::local(name, Path::new("/none"));
        assert!(local.contains("local: {path: /none}"));
        local.replace("local: {path: /none}", &nfs)
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.kill_helpers();
    }
}

fn record(stage: &Stage) -> PodVolume {
    let mut volumes = stage.records().into_iter().filter_map(|record| match record {
        Record::PodVolume(volume) => Some(volume),
        _ => None,
    });
    let one = volumes.next().unwrap();
    assert!(volumes.next().is_none());
    one
}

fn only_failure(settled: &Settled) -> (&'static str, &str) {
    let [failure] = settled.failures.as_slice() else { panic!("{:#?}", settled.failures) };
    (failure.code, &failure.message)
}

fn an_export_lives_and_goes() {
    let stage = Stage::new();
    let export = Export::new(&stage, "export");
    stage.manifest("u1.yaml", &pod("u1", &export.volume()));
    assert_all_mounted(&stage.settle_well(), 1);
    let target = stage.root(OF_U1);
    assert_eq!(export.calls(), [format!("{} {}", export.source(), target.display())]);
    assert_eq!(std::fs::read_to_string(target.join("keep.txt")).unwrap(), "the server's");
    std::fs::write(target.join("written"), "by the pod").unwrap();
    let recorded = record(&stage);
    let info = recorded.provider_info.unwrap().parse::<serde_json::Value>().unwrap();
    assert_eq!(info, serde_json::json!({ "server": SERVER, "path": export.path }));
    let mount = recorded.mount.unwrap();
    assert_eq!((mount.fs_type.as_str(), mount.source, mount.root.as_str()), ("tmpfs", export.source(), "/"));
    assert_eq!(mount.id, stage.table().at(&target).unwrap().id().map(|id| id.0));

    assert_all_mounted(&stage.settle_well(), 1);
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert_eq!(export.calls().len(), 1);
    assert_eq!(std::fs::read_to_string(export.path.join("written")).unwrap(), "by the pod");
}

fn two_pods_share_one_export() {
    let stage = Stage::new();
    let export = Export::new(&stage, "export");
    stage.manifest("pv.yaml", &export.persistent("pv", "\n  mountOptions: [nfsvers=4.1, \"hard,timeo=50\"]"));
    let claim = "  - {name: data, persistentVolumeClaim: {claimName: pv}}\n";
    for uid in ["u1", "u2"] {
        stage.manifest(&format!("{uid}.yaml"), &pod(uid, claim));
    }
    let outcome = stage.settle_well();
    assert_all_mounted(&outcome, 2);
    let path = |uid: &str| stage.root(&format!("pods/{uid}/volumes/kubernetes.io~nfs/pv"));
    let unique: Vec<_> = outcome.actual.volumes.iter().map(|v| v.unique_name.as_ref().unwrap().to_string()).collect();
    assert_eq!(unique, ["kubernetes.io/nfs/u1-pv", "kubernetes.io/nfs/u2-pv"]);
    let mut calls = export.calls();
    calls.sort();
    let call = |uid| format!("{} {} -o nfsvers=4.1,hard,timeo=50", export.source(), path(uid).display());
    assert_eq!(calls, [call("u1"), call("u2")]);
    std::fs::write(path("u1").join("shared"), "by u1").unwrap();
    let seconds = stage.table().at(&path("u2")).unwrap().id();

    stage.remove_manifest("u1.yaml");
    assert_all_mounted(&stage.settle_well(), 1);
    assert!(!stage.root("pods/u1").exists());
    assert_eq!(stage.table().at(&path("u2")).unwrap().id(), seconds);
    assert_eq!(std::fs::read_to_string(path("u2").join("shared")).unwrap(), "by u1");
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert_eq!((export.calls().len(), export.path.join("shared").exists()), (2, true));
}

fn read_only_is_read_only() {
    for (name, volume, more) in [
        ("the claim's", "persistentVolumeClaim: {claimName: pv, readOnly: true}", "\n  mountOptions: [soft]"),
        ("the option's", "persistentVolumeClaim: {claimName: pv}", "\n  mountOptions: [soft, ro]"),
        ("the pod's own", "nfs: {readOnly: true, server: files.example, path: PATH}", ""),
    ] {
        let stage = Stage::new();
        let export = Export::new(&stage, "export");
        stage.manifest("pv.yaml", &export.persistent("pv", more));
        let volume = volume.replace("PATH", &export.path.display().to_string());
        stage.manifest("u1.yaml", &pod("u1", &format!("  - {{name: v, {volume}}}\n")));
        assert_all_mounted(&stage.settle_well(), 1);
        let [path] = stage.mounts().try_into().unwrap();
        let call = export.calls().remove(0);
        assert!(call.ends_with(if more.is_empty() { " -o ro" } else { " -o soft,ro" }), "{name}: {call}");
        let refused = std::fs::write(path.join("written"), "").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{name}");
        stage.remove_manifest("u1.yaml");
        stage.settle_well();
        stage.assert_clean();
    }
}

/// The record is there: what is mounted is known from it, and undone, while the helper would hang.
fn a_restart_asks_nobody() {
    let stage = Stage::new();
    let export = Export::new(&stage, "export");
    stage.manifest("u1.yaml", &pod("u1", &export.volume()));
    let first = stage.settle_well();
    export.how("hang");
    let begun = Instant::now();
    let second = stage.settle_well();
    assert_eq!(volume(&first, "v").mount, volume(&second, "v").mount);
    assert_eq!(volume(&second, "v").record_state, RecordState::Ok);
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    assert_eq!(export.calls().len(), 1);
}

/// Takes the record away, or makes it unreadable.
fn lose_record(stage: &Stage, damaged: bool) {
    let file = stage.record_file("volumes", "u1");
    if damaged { std::fs::write(file, "{").unwrap() } else { std::fs::remove_file(file).unwrap() }
}

fn a_lost_record_is_written_anew() {
    for (damaged, persistent) in [(true, false), (false, false), (true, true), (false, true)] {
        let shown = format!("damaged: {damaged}, PersistentVolume: {persistent}");
        let stage = Stage::new();
        let export = Export::new(&stage, "export");
        stage.manifest("pv.yaml", &export.persistent("v", "\n  mountOptions: [hard]"));
        let claim = "  - {name: data, persistentVolumeClaim: {claimName: v}}\n".to_owned();
        stage.manifest("u1.yaml", &pod("u1", &if persistent { claim } else { export.volume() }));
        let mount = volume(&stage.settle_well(), "v").mount.clone();
        let before = record(&stage);
        lose_record(&stage, damaged);
        export.how("hang");
        stage.settle();
        assert_eq!(record(&stage), before, "{shown}");
        let settled = stage.settle();
        let seen = volume(&settled, "v");
        let ids = [&seen.mount, &mount].map(|mount| mount.as_ref().and_then(|m| m.id));
        assert_eq!((ids[0], seen.state, export.calls().len()), (ids[1], VolumeState::Mounted, 1), "{shown}");
        stage.remove_manifest("u1.yaml");
        stage.settle();
        assert_eq!((stage.mounts(), stage.root("pods/u1").exists()), (vec![], false), "{shown}");
    }
}

/// What is mounted there is of another server than the pod wants: it is kept, and not taken for what it is not.
fn another_export_is_not_adopted() {
    let stage = Stage::new();
    let (export, other) = (Export::new(&stage, "export"), Export::new(&stage, "other"));
    stage.manifest("pv.yaml", &export.persistent("v", ""));
    stage.manifest("u1.yaml", &pod("u1", "  - {name: data, persistentVolumeClaim: {claimName: v}}\n"));
    stage.settle_well();
    lose_record(&stage, false);
    stage.manifest("pv.yaml", &other.persistent("v", ""));
    let settled = stage.settle();
    let seen = volume(&settled, "v");
    assert_eq!((seen.record_state, seen.state), (RecordState::Missing, VolumeState::Mounted), "{seen:#?}");
    assert_eq!(&*stage.table().at(&stage.root(OF_U1)).unwrap().source(), export.source());
    assert!(other.calls().is_empty());
}

fn a_lost_record_of_a_gone_pod_leaves_no_mount() {
    for damaged in [true, false] {
        let stage = Stage::new();
        let export = Export::new(&stage, "export");
        stage.manifest("u1.yaml", &pod("u1", &export.volume()));
        stage.settle_well();
        lose_record(&stage, damaged);
        stage.remove_manifest("u1.yaml");
        stage.settle();
        assert_eq!((stage.mounts(), stage.root("pods/u1").exists()), (vec![], false), "damaged: {damaged}");
        assert!(export.path.join("keep.txt").exists());
    }
}

/// The helper mounted, and the manager died before it looked: the record has the source alone.
fn a_crash_before_the_mount_was_found() {
    for wanted in [true, false] {
        let stage = Stage::new();
        let export = Export::new(&stage, "export");
        stage.manifest("u1.yaml", &pod("u1", &export.volume()));
        stage.settle_well();
        let mut recorded = record(&stage);
        let mount = recorded.mount.as_mut().unwrap();
        (mount.id, mount.fs_type, mount.root) = (None, String::new(), String::new());
        refloat_record::Store::open(&stage.options.state_dir).unwrap().put(&Record::PodVolume(recorded)).unwrap();
        export.how("hang");
        if wanted {
            assert_all_mounted(&stage.settle_well(), 1);
        }
        stage.remove_manifest("u1.yaml");
        stage.settle_well();
        stage.assert_clean();
        assert!(export.path.join("keep.txt").exists());
    }
}

/// B33: also with a file that was written into the folder while nothing was mounted there.
fn after_a_reboot() {
    for (wanted, written) in [(true, false), (false, false), (true, true), (false, true)] {
        let stage = Stage::new();
        let export = Export::new(&stage, "export");
        stage.manifest("u1.yaml", &pod("u1", &export.volume()));
        stage.settle_well();
        stage.reboot();
        let stray = stage.root(OF_U1).join("stray");
        if written {
            std::fs::write(&stray, "on the root disk").unwrap();
            if !wanted {
                stage.remove_manifest("u1.yaml");
            }
            let settled = stage.settle();
            assert_ne!(volume(&settled, "v").state, VolumeState::Mounted);
            assert_eq!((export.calls().len(), std::fs::read(&stray).unwrap()), (1, b"on the root disk".to_vec()));
            std::fs::remove_file(&stray).unwrap();
        }
        if wanted {
            assert_all_mounted(&stage.settle_well(), 1);
            assert_eq!(export.calls().len(), 2);
        }
        if wanted || !written {
            stage.remove_manifest("u1.yaml");
        }
        stage.settle_well();
        stage.assert_clean();
    }
}

/// Processes that the helper told of, of which some still run.
fn running(export: &Export) -> Vec<i32> {
    let text = std::fs::read_to_string(export.beside("processes")).unwrap_or_default();
    let ids = text.split_whitespace().filter_map(|id| id.parse::<i32>().ok());
    // By name too, since a number may be another's by now.
    let runs = |id: &i32| std::fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep"));
    ids.filter(runs).collect()
}

fn a_helper_that_hangs_is_killed_with_its_children() {
    let mut stage = Stage::new();
    let export = Export::new(&stage, "export");
    stage.options.operation_deadline = Duration::from_secs(2);
    export.how("hang");
    stage.manifest("u1.yaml", &pod("u1", &export.volume()));
    let settled = stage.settle();
    let (code, message) = only_failure(&settled);
    assert_eq!(code, "ToolTimeout", "{message}");
    for part in ["mount.nfs", "was killed", "volume \"v\" of pod default/pod-u1 (u1)", OF_U1] {
        assert!(message.contains(part), "{part}: {message}");
    }
    wait_for("the end of the helper and its child", || running(&export).is_empty());
    // Nothing of it is left, and it is tried again when the server answers.
    assert_eq!(stage.records().iter().filter(|r| matches!(r, Record::PodVolume(_))).count(), 0);
    assert!(!stage.root(OF_U1).exists());
    export.how("");
    assert_all_mounted(&stage.settle_well(), 1);
}

/// B21: more of them than there are workers.
fn a_helper_that_hangs_delays_no_other() {
    let mut stage = Stage::new();
    stage.options.workers = 2;
    let export = Export::new(&stage, "export");
    export.how("hang");
    for n in 0..4 {
        stage.manifest(&format!("n{n}.yaml"), &pod(&format!("n{n}"), &export.volume()));
    }
    let manager = stage.run();
    wait_for("the helpers", || export.calls().len() >= 2);
    let begun = Instant::now();
    stage.manifest("u2.yaml", &pod("u2", "  - {name: mem, emptyDir: {medium: Memory}}\n"));
    wait_for("the other pod", || stage.is_mounted("pods/u2/volumes/kubernetes.io~empty-dir/mem"));
    stage.remove_manifest("u2.yaml");
    wait_for("its end", || !stage.root("pods/u2").exists());
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    export.kill_helpers();
    export.how("");
    for n in 0..4 {
        let path = format!("pods/n{n}/volumes/kubernetes.io~nfs/v");
        wait_for("the volumes", || stage.is_mounted(&path));
    }
    manager.stop();
}

fn a_helper_that_prints_garbage() {
    let stage = Stage::new();
    let export = Export::new(&stage, "export");
    export.how("garbage");
    stage.manifest("u1.yaml", &pod("u1", &export.volume()));
    let settled = stage.settle();
    let (code, message) = only_failure(&settled);
    assert_eq!(code, "ToolFailed");
    assert!(message.contains("mount.nfs failed (exit code 32)"), "{message}");
    assert_readable(message);
    assert!(!stage.root(OF_U1).exists());
}

/// The helper repeats its options; the record has them, as the `PersistentVolume` has.
fn what_looks_secret_in_its_options_is_not_shown() {
    let stage = Stage::new();
    let export = Export::new(&stage, "export");
    export.how("talk");
    stage.manifest("pv.yaml", &export.persistent("pv", "\n  mountOptions: [vers=4.2, \"password=hunter2,sec=sys\"]"));
    stage.manifest("u1.yaml", &pod("u1", "  - {name: v, persistentVolumeClaim: {claimName: pv}}\n"));
    let settled = stage.settle();
    let (code, message) = only_failure(&settled);
    assert_eq!(code, "ToolFailed");
    assert!(message.contains("vers=4.2") && message.contains("***") && !message.contains("hunter2"), "{message}");
}

fn a_helper_that_refuses_leaves_nothing() {
    let stage = Stage::new();
    let export = Export::new(&stage, "export");
    export.how("refuse");
    stage.manifest("u1.yaml", &pod("u1", &export.volume()));
    let settled = stage.settle();
    let (code, message) = only_failure(&settled);
    assert_eq!(code, "ToolFailed");
    assert!(message.contains("access denied by server"), "{message}");
    assert!(!stage.root(OF_U1).exists() && stage.mounts().is_empty());
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.assert_clean();
}

/// The table is read while the helper has mounted and not yet made it read-only.
fn options_that_a_helper_sets_late_are_seen() {
    let stage = Stage::new();
    let export = Export::new(&stage, "export");
    export.how("late");
    stage.manifest("u1.yaml", &pod("u1", &export.volume().replace("}}", ", readOnly: true}}")));
    for n in 0..3 {
        stage.manifest(&format!("n{n}.yaml"), &pod(&format!("n{n}"), "  - {name: mem, emptyDir: {medium: Memory}}\n"));
    }
    let settled = stage.settle_well();
    let options = &volume(&settled, "v").mount.as_ref().unwrap().options;
    assert!(options.starts_with("ro"), "{options}");
}

fn a_helper_that_lies_or_complains() {
    for (how, told) in [("lie", "NotMountedAfterwards"), ("complain", "ToolFailed")] {
        let stage = Stage::new();
        let export = Export::new(&stage, "export");
        export.how(how);
        stage.manifest("u1.yaml", &pod("u1", &export.volume()));
        assert_eq!(only_failure(&stage.settle()).0, told);
        assert_eq!(stage.mounts(), Vec::<PathBuf>::new());
        export.how("");
        assert_all_mounted(&stage.settle_well(), 1);
        stage.remove_manifest("u1.yaml");
        stage.settle_well();
        stage.assert_clean();
    }
}

fn what_was_there_before_is_kept() {
    let stage = Stage::new();
    let export = Export::new(&stage, "export");
    let target = stage.root(OF_U1);
    std::fs::create_dir_all(&target).unwrap();
    std::fs::write(target.join("written"), "while nothing was mounted").unwrap();
    stage.manifest("u1.yaml", &pod("u1", &export.volume()));
    stage.settle();
    assert_eq!((export.calls(), stage.mounts()), (vec![], vec![]));
    std::fs::remove_file(target.join("written")).unwrap();
    stage.tmpfs(&target, c"");
    let seen = stage.settle();
    assert_ne!(volume(&seen, "v").record_state, RecordState::Ok);
    assert_eq!((export.calls(), stage.table().stack(&target).len()), (vec![], 1));
    stage.unmount(&target);
    assert_all_mounted(&stage.settle_well(), 1);
}

fn a_mount_over_it_or_in_its_place_is_not_touched() {
    for over in [true, false] {
        let stage = Stage::new();
        let export = Export::new(&stage, "export");
        let target = stage.root(OF_U1);
        stage.manifest("u1.yaml", &pod("u1", &export.volume()));
        stage.settle_well();
        if !over {
            stage.unmount(&target);
        }
        stage.tmpfs(&target, c"");
        let layers = if over { 2 } else { 1 };
        for wanted in [true, false] {
            if !wanted {
                stage.remove_manifest("u1.yaml");
            }
            let settled = stage.settle();
            let seen = volume(&settled, "v");
            assert!(seen.problems.iter().any(|p| p.code == "Conflict"), "over: {over}: {:?}", seen.problems);
            assert_eq!((stage.table().stack(&target).len(), export.calls().len()), (layers, 1), "over: {over}");
        }
        stage.unmount(&target);
        stage.settle_well();
        stage.assert_clean();
    }
}

/// B25, with the folder of a subPath that was removed on the server.
fn sub_paths_of_an_export() {
    let stage = Stage::new();
    let export = Export::new(&stage, "export");
    let container = "- {name: c, image: i, volumeMounts: [{name: v, mountPath: /d, subPath: a/b}]}";
    stage.manifest("u1.yaml", &pod("u1", &export.volume()).replace("- {name: c, image: i}", container));
    assert_all_mounted(&stage.settle_well(), 1);
    std::fs::write(stage.root("pods/u1/volume-subpaths/v/c/0/file"), "x").unwrap();
    assert!(export.path.join("a/b/file").exists());
    assert_all_mounted(&stage.settle_well(), 1);
    std::fs::remove_dir_all(export.path.join("a")).unwrap();
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert!(export.path.join("keep.txt").exists());
}

/// The daemon behind a FUSE mount, which the helper left running, and somebody who waits for it.
struct Daemon {
    id: Pid,
    reader: Option<Child>,
}

impl Daemon {
    fn of(export: &Export) -> Self {
        let is_its = |id: &i32| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words.next().is_some_and(|word| word.ends_with(b"bindfs"))
                && words.any(|word| word == export.path.as_os_str().as_encoded_bytes())
        };
        let ids = std::fs::read_dir("/proc").unwrap();
        let id = ids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).find(is_its);
        Self { id: Pid::from_raw(id.expect("a daemon")).unwrap(), reader: None }
    }

    fn stop(&self) {
        rustix::process::kill_process(self.id, Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", self.id.as_raw_nonzero());
        wait_for("the daemon's stop", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
    }

    fn read(&mut self, file: &Path) {
        let reader = Command::new("cat").arg(file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let at = format!("/proc/{}/wchan", reader.id());
        self.reader = Some(reader);
        wait_for("the reader's wait", || std::fs::read_to_string(&at).is_ok_and(|at| at.contains("request_wait")));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.id, Signal::KILL);
        if let Some(reader) = &mut self.reader {
            let _ = reader.kill();
            let _ = reader.wait();
        }
    }
}

/// B21, B22: kubernetes/kubernetes#101622.
fn a_dead_server_delays_no_restart_and_is_forced_for_a_gone_pod() -> Outcome {
    if Command::new("bindfs").arg("--version").output().is_err() || !Path::new("/dev/fuse").exists() {
        return Err(Skip("there is no bindfs, or no FUSE".into()));
    }
    let mut stage = Stage::new();
    stage.options.operation_deadline = Duration::from_secs(2);
    let export = Export::new(&stage, "export");
    let other = Export::new(&stage, "other");
    export.how("fuse");
    stage.manifest("u1.yaml", &pod("u1", &export.volume()));
    stage.manifest("u2.yaml", &pod("u2", &other.volume()));
    assert_all_mounted(&stage.settle_well(), 2);
    let mut daemon = Daemon::of(&export);
    std::fs::write(export.path.join("asked"), "never answered").unwrap();
    daemon.stop();
    daemon.read(&stage.root(OF_U1).join("asked"));

    // A restart, with and without the record.
    for lost in [false, true] {
        if lost {
            std::fs::remove_file(stage.record_file("volumes", "u1")).unwrap();
        }
        let begun = Instant::now();
        let settled = stage.settle();
        assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
        assert!(settled.actual.volumes.iter().all(|v| v.state == VolumeState::Mounted), "{:#?}", settled.plan.report);
    }
    // A volume of the same server beside it.
    stage.remove_manifest("u2.yaml");
    let manager = stage.run();
    wait_for("the end of the other pod", || !stage.root("pods/u2").exists());
    assert!(stage.is_mounted(OF_U1));
    stage.remove_manifest("u1.yaml");
    wait_for("the end of the pod", || !stage.root("pods/u1").exists());
    manager.stop();
    stage.assert_clean();
    drop(daemon);
    assert!(export.path.join("asked").exists());
    Ok(())
}
