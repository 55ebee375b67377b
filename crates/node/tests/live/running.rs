//! The loop itself: asleep when idle, held up by nothing.

use std::process::Command;
use std::time::Duration;

use refloat_mount::Mount;
use refloat_test_support::{Outcome, Skip};

use crate::stage::{Stage, local, pod, wait_for};

refloat_test_support::tests![an_idle_manager_sleeps, a_hung_operation_delays_no_other, many_volumes_take_few_rounds];

/// How often the thread gave up the processor: each system call that waits, and each preemption, counts.
fn switches(thread: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let value =
        |key: &str| -> u64 { status.lines().find_map(|l| l.strip_prefix(key)).unwrap().trim().parse().unwrap() };
    value("voluntary_ctxt_switches:") + value("nonvoluntary_ctxt_switches:")
}

fn an_idle_manager_sleeps() {
    let stage = Stage::new();
    stage.manifest("pod.yaml", &pod("u1", "  - {name: a, emptyDir: {}}\n"));
    let manager = stage.run();
    wait_for("the volume", || stage.root("pods/u1/plugins/kubernetes.io~empty-dir/a/ready").exists());
    // Other tests mount and unmount in the same namespace, which wakes it. A pause of theirs is waited for.
    let idle = || {
        let before = switches(manager.thread_id);
        let table = stage.table();
        std::thread::sleep(Duration::from_secs(1));
        let same = stage.table().iter().map(Mount::id).eq(table.iter().map(Mount::id));
        same && switches(manager.thread_id) == before
    };
    let begun = std::time::Instant::now();
    while !idle() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it never slept for a second");
    }
    manager.stop();
}

/// Whatever happens, the file system is thawed.
struct Thaw<F: Fn(&str) -> bool>(F);

impl<F: Fn(&str) -> bool> Drop for Thaw<F> {
    fn drop(&mut self) {
        (self.0)("-u");
    }
}

/// B21, B22: the volume's own file system does not answer.
fn a_hung_operation_delays_no_other() -> Outcome {
    let mut stage = Stage::new();
    let disk = stage.disk("disk.img")?;
    let frozen = stage.path("frozen");
    std::fs::create_dir(&frozen).unwrap();
    rustix::mount::mount(&disk, &frozen, "ext4", rustix::mount::MountFlags::empty(), None).unwrap();
    let data = frozen.join("data");
    std::fs::create_dir(&data).unwrap();
    let freeze = |how: &str| Command::new("fsfreeze").arg(how).arg(&frozen).status().is_ok_and(|s| s.success());
    if !freeze("-f") {
        return Err(Skip("no file system can be frozen here".into()));
    }
    let thaw = Thaw(freeze);

    stage.options.workers = 1;
    stage.options.operation_deadline = Duration::from_secs(1);
    stage.manifest("pv.yaml", &local("pv", &data));
    // Giving the files to a group writes to the frozen file system, which waits until it is thawed.
    let text = pod("u1", "  - {name: l, persistentVolumeClaim: {claimName: pv}}\n");
    stage.manifest("u1.yaml", &text.replace("spec:\n", "spec:\n  securityContext: {fsGroup: 1234}\n"));
    let manager = stage.run();
    std::thread::sleep(Duration::from_millis(300));
    stage.manifest("u2.yaml", &pod("u2", "  - {name: mem, emptyDir: {medium: Memory}}\n"));
    wait_for("the other pod", || stage.is_mounted("pods/u2/volumes/kubernetes.io~empty-dir/mem"));
    assert!(!stage.is_mounted("pods/u1/volumes/kubernetes.io~local-volume/pv"));
    stage.remove_manifest("u2.yaml");
    wait_for("the end of the other pod", || !stage.root("pods/u2").exists());
    drop(thaw);
    wait_for("the volume", || stage.is_mounted("pods/u1/volumes/kubernetes.io~local-volume/pv"));
    manager.stop();
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.assert_clean();
    Ok(())
}

fn many_volumes_take_few_rounds() {
    let stage = Stage::new();
    let volumes = (0..10).map(|n| format!("  - {{name: v{n}, emptyDir: {{}}}}\n"));
    let volumes = volumes.collect::<Vec<_>>().concat();
    for n in 0..50 {
        stage.manifest(&format!("u{n}.yaml"), &pod(&format!("u{n}"), &volumes));
    }
    let begun = std::time::Instant::now();
    crate::stage::assert_all_mounted(&stage.settle_well(), 500);
    eprintln!("500 volumes in {:?}", begun.elapsed());
    for n in 0..50 {
        stage.remove_manifest(&format!("u{n}.yaml"));
    }
    stage.settle_well();
    stage.assert_clean();
}
