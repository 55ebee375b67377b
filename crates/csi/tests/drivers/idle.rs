//! What the watch costs: nothing while nothing happens, and nothing after its end. In a process of its own, where no
//! other test's threads are.

use std::process::{Command, ExitCode};
use std::time::Duration;

use refloat_csi::Drivers;

use crate::stage::{Stage, stage_request, start, until};

refloat_test_support::tests!(it_costs_nothing_when_idle_and_leaves_nothing);

const CHILD: &str = "REFLOAT_CSI_IDLE_CHILD";

fn it_costs_nothing_when_idle_and_leaves_nothing() {
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new(program).env(CHILD, "1").output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs the check if this process is for it.
pub fn run_if_child() -> Option<ExitCode> {
    std::env::var_os(CHILD)?;
    check();
    Some(ExitCode::SUCCESS)
}

fn check() {
    // What a process opens once and for all, as the runtime does for signals, is open after the first life.
    life();
    let files = open_files();
    life();
    until("no file is left open", || open_files() == files);

    // Those who only look start nothing.
    let drivers = Drivers::none();
    drivers.remember("x", "/x".as_ref());
    assert_eq!(drivers.list().len(), 1);
    assert_eq!((csi_thread(), open_files()), (None, files));
}

/// From the first driver to the end of the watch.
fn life() {
    let stage = Stage::new();
    let process = start(stage.registering("idle.test"));
    let drivers = stage.watch();
    stage.log.registered("idle.test");
    let driver = drivers.get("idle.test", "NodeStageVolume").expect("it is registered");
    driver.stage(&stage_request("v")).expect("it works");
    let thread = csi_thread().expect("it runs");
    // What the call set going may take a moment to end; what goes on for ever never does.
    until("it sleeps", || {
        let before = wake_ups(&thread);
        std::thread::sleep(Duration::from_secs(1));
        wake_ups(&thread) == before
    });
    drop((drivers, driver));
    until("the thread ends", || csi_thread().is_none());
    drop(process);
    drop(stage);
}

/// The folder in `/proc` of the thread that talks to drivers.
fn csi_thread() -> Option<String> {
    let threads = std::fs::read_dir("/proc/self/task").expect("it can be listed");
    let mut folders = threads.flatten().map(|entry| entry.path().to_string_lossy().into_owned());
    let is_csi =
        |folder: &String| std::fs::read_to_string(format!("{folder}/comm")).is_ok_and(|comm| comm.trim() == "csi");
    folders.find(is_csi)
}

/// How often a thread was let run.
fn wake_ups(folder: &str) -> u64 {
    let status = std::fs::read_to_string(format!("{folder}/status")).expect("it runs");
    let lines = status.lines().filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    lines.map(|count| count.trim().parse::<u64>().expect("it is a number")).sum()
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("it can be listed").count()
}
