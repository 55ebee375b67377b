//! File systems that do not answer: a FUSE daemon that is stopped, and a disk whose blocks are on one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use refloat_node::VolumeState;
use rustix::process::{Pid, Signal};

use crate::stage::{Stage, local, pod, wait_for};
use refloat_test_support::{Outcome, Skip};

refloat_test_support::tests![
    an_unmount_that_hangs_delays_nothing,
    a_stop_does_not_wait_for_an_unmount_that_hangs,
    a_dead_file_system_is_forced_when_its_pod_is_gone,
    a_dead_file_system_that_others_have_is_taken_out_of_sight_only_when_told,
    a_file_system_that_answers_is_never_forced,
];

const CLAIM: &str = "  - {name: l, persistentVolumeClaim: {claimName: pv}}\n";
const OF_U1: &str = "pods/u1/volumes/kubernetes.io~local-volume/pv";
const GLOBAL: &str = "plugins/kubernetes.io/local-volume/mounts/pv";

/// A folder that a FUSE daemon shows at another place.
struct Fuse {
    daemon: Child,
    point: PathBuf,
    readers: Vec<Child>,
}

impl Fuse {
    fn new(stage: &Stage) -> Result<Self, Skip> {
        let (behind, point) = (stage.host("behind"), stage.path("fuse"));
        std::fs::create_dir(&point).unwrap();
        let daemon = Command::new("bindfs").arg("-f").args([&behind, &point]).stderr(Stdio::null()).spawn();
        let daemon = daemon.map_err(|error| Skip(format!("bindfs cannot be run: {error}")))?;
        let fuse = Self { daemon, point, readers: vec![] };
        let end = Instant::now() + Duration::from_secs(5);
        while stage.table().at(&fuse.point).is_none() {
            if Instant::now() > end {
                return Err(Skip("bindfs mounts nothing here".into()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(fuse)
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.daemon), signal).unwrap();
        if signal == Signal::STOP {
            let stat = format!("/proc/{}/stat", self.daemon.id());
            wait_for("the daemon's stop", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
        }
    }

    /// Somebody who reads a file there that nobody has read before, and waits for an answer.
    fn read(&mut self, file: &Path) {
        let reader = Command::new("cat").arg(file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let stack = format!("/proc/{}/wchan", reader.id());
        self.readers.push(reader);
        wait_for("the reader's wait", || std::fs::read_to_string(&stack).is_ok_and(|at| at.contains("request_wait")));
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // Whoever waits is let go.
        let _ = rustix::process::kill_process(Pid::from_child(&self.daemon), Signal::CONT);
        for child in self.readers.iter_mut().chain([&mut self.daemon]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A disk whose blocks are in a file of the FUSE file system, as the only volume of the pod u1.
fn disk_on_fuse(stage: &mut Stage) -> Result<Fuse, Skip> {
    let fuse = Fuse::new(stage)?;
    let image = stage.disk_image("host/behind/disk.img")?;
    let device = stage.attach(&fuse.point.join(image.file_name().unwrap()))?;
    stage.manifest("pv.yaml", &local("pv", &device));
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    stage.settle_well();
    std::fs::write(stage.root(OF_U1).join("written"), vec![7; 100_000]).unwrap();
    Ok(fuse)
}

/// B21, B22: whoever has nothing to do with the disk is served; the unmount that hangs is made once, and is noticed when it
/// comes back.
fn an_unmount_that_hangs_delays_nothing() -> Outcome {
    let mut stage = Stage::new();
    let fuse = disk_on_fuse(&mut stage)?;
    stage.options.workers = 1;
    let manager = stage.run();
    fuse.signal(Signal::STOP);
    stage.remove_manifest("u1.yaml");
    wait_for("the pod's own mount", || !stage.is_mounted(OF_U1));
    wait_for("the device's", || !stage.is_mounted(GLOBAL));
    let begun = Instant::now();
    stage.manifest("u2.yaml", &pod("u2", "  - {name: mem, emptyDir: {medium: Memory}}\n"));
    wait_for("the other pod", || stage.is_mounted("pods/u2/volumes/kubernetes.io~empty-dir/mem"));
    stage.remove_manifest("u2.yaml");
    wait_for("its end", || !stage.root("pods/u2").exists());
    assert!(begun.elapsed() < Duration::from_secs(8), "it took {:?}", begun.elapsed());
    // The mount point is free, the disk is not: its record stays until the file system has written its last block.
    assert_eq!(stage.records().len(), 1, "{:#?}", stage.records());
    fuse.signal(Signal::CONT);
    wait_for("the end of the record", || stage.records().is_empty());
    manager.stop();
    stage.assert_clean();
    drop(fuse);
    Ok(())
}

/// B22: SIGTERM, and a restart while it still hangs.
fn a_stop_does_not_wait_for_an_unmount_that_hangs() -> Outcome {
    let mut stage = Stage::new();
    let fuse = disk_on_fuse(&mut stage)?;
    fuse.signal(Signal::STOP);
    stage.remove_manifest("u1.yaml");
    let begun = Instant::now();
    let outcome = stage.settle();
    assert!(begun.elapsed() < Duration::from_secs(8), "it took {:?}", begun.elapsed());
    let [failure] = outcome.failures.as_slice() else { panic!("{:#?}", outcome.failures) };
    assert_eq!(failure.code, "UnmountHangs", "{failure:?}");
    for part in ["kubernetes.io/local-volume/pv", &stage.root(GLOBAL).display().to_string()] {
        assert!(failure.message.contains(part), "{failure:?}");
    }
    let device = &outcome.actual.devices[0];
    assert_eq!(device.state, VolumeState::Uncertain, "{device:#?}");
    assert_eq!(stage.records().len(), 1);
    fuse.signal(Signal::CONT);
    stage.settle_well();
    stage.assert_clean();
    drop(fuse);
    Ok(())
}

/// A pod with a folder of the FUSE file system, which is mounted nowhere else, with somebody who reads in it.
fn folder_on_fuse(stage: &mut Stage) -> Result<Fuse, Skip> {
    let mut fuse = Fuse::new(stage)?;
    stage.options.operation_deadline = Duration::from_secs(2);
    stage.manifest("pv.yaml", &local("pv", &fuse.point));
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    stage.settle_well();
    std::fs::write(stage.host("behind").join("asked"), "never answered").unwrap();
    fuse.signal(Signal::STOP);
    fuse.read(&stage.root(OF_U1).join("asked"));
    Ok(fuse)
}

/// B22, B23.
fn a_dead_file_system_is_forced_when_its_pod_is_gone() -> Outcome {
    let mut stage = Stage::new();
    let fuse = folder_on_fuse(&mut stage)?;
    rustix::mount::unmount(&fuse.point, rustix::mount::UnmountFlags::DETACH).unwrap();
    let manager = stage.run();
    // While it is wanted, nothing is done about it.
    std::thread::sleep(Duration::from_secs(2));
    assert!(stage.is_mounted(OF_U1));
    stage.remove_manifest("u1.yaml");
    wait_for("the end of the pod", || !stage.root("pods/u1").exists() && stage.records().is_empty());
    manager.stop();
    stage.assert_clean();
    drop(fuse);
    assert!(stage.path("host/behind/keep.txt").exists());
    Ok(())
}

fn a_dead_file_system_that_others_have_is_taken_out_of_sight_only_when_told() -> Outcome {
    let mut stage = Stage::new();
    let fuse = folder_on_fuse(&mut stage)?;
    stage.remove_manifest("u1.yaml");
    let manager = stage.run();
    std::thread::sleep(Duration::from_secs(6));
    // Forcing it would be felt at the host's own mount of it.
    assert!(stage.is_mounted(OF_U1) && stage.records().len() == 2);
    manager.stop();
    stage.options.lazy_unmount = true;
    let manager = stage.run();
    wait_for("the end of the pod", || !stage.root("pods/u1").exists() && stage.records().is_empty());
    manager.stop();
    stage.assert_clean();
    // Nobody aborted the others' connection: its reader still waits.
    fuse.signal(Signal::CONT);
    assert!(fuse.point.join("keep.txt").exists());
    drop(fuse);
    Ok(())
}

fn a_file_system_that_answers_is_never_forced() {
    let mut stage = Stage::new();
    stage.options.operation_deadline = Duration::from_secs(1);
    stage.options.lazy_unmount = true;
    stage.manifest("u1.yaml", &pod("u1", "  - {name: mem, emptyDir: {medium: Memory}}\n"));
    stage.settle_well();
    let path = stage.root("pods/u1/volumes/kubernetes.io~empty-dir/mem");
    let user = std::fs::File::create(path.join("held")).unwrap();
    stage.remove_manifest("u1.yaml");
    let manager = stage.run();
    std::thread::sleep(Duration::from_secs(5));
    assert!(stage.is_mounted("pods/u1/volumes/kubernetes.io~empty-dir/mem"));
    drop(user);
    wait_for("the end of the pod", || !stage.root("pods/u1").exists());
    manager.stop();
    stage.assert_clean();
}
