//! Loop devices.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use refloat_mount::loopdev;

use crate::Test;
use crate::scene::Scene;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("loopdev::found_by_its_file_and_nothing_else", found),
    ("loopdev::found_beside_one_whose_file_system_is_dead", beside_a_dead_one),
];

/// Detaches whatever the test left.
struct Detach(Vec<PathBuf>);

impl Drop for Detach {
    fn drop(&mut self) {
        for device in &self.0 {
            let _ = loopdev::detach(device);
        }
    }
}

fn found(scene: &Scene) {
    let (ours, other) = (scene.base.join("ours.img"), scene.base.join("other.img"));
    for file in [&ours, &other] {
        std::fs::File::create(file).and_then(|f| f.set_len(1 << 20)).expect("make the file");
    }
    let mut all = Detach(Vec::new());
    let attach = |file: &Path, read_only, all: &mut Detach| match loopdev::attach(file, read_only) {
        Ok(device) => {
            all.0.push(device.clone());
            Some(device)
        }
        Err(error) => {
            println!("skipped loopdev::found_by_its_file_and_nothing_else: no loop device: {error}");
            None
        }
    };
    let Some(first) = attach(&ours, false, &mut all) else { return };
    let (Some(second), Some(third)) = (attach(&ours, true, &mut all), attach(&other, false, &mut all)) else { return };
    let mut wanted = vec![first.clone(), second.clone()];
    wanted.sort();
    let mut devices = loopdev::find(&ours).expect("find");
    devices.sort();
    assert_eq!(devices, wanted);
    // By the file, whatever it is called: renamed, another file in its place, through a symlink.
    std::fs::rename(&ours, scene.base.join("renamed.img")).expect("rename");
    std::fs::rename(&other, &ours).expect("rename");
    assert_eq!(loopdev::find(&ours).expect("find"), std::slice::from_ref(&third));
    std::os::unix::fs::symlink(scene.base.join("renamed.img"), scene.base.join("link")).expect("symlink");
    assert_eq!(loopdev::find(&scene.base.join("link")).expect("find").len(), 2);
    let read_only = std::fs::read_to_string(format!(
        "/sys/block/{}/ro",
        second.file_name().and_then(|n| n.to_str()).expect("a name")
    ));
    assert_eq!(read_only.expect("sysfs").trim(), "1");
    for device in [&first, &second] {
        loopdev::detach(device).expect("detach");
        loopdev::detach(device).expect("already detached is done");
    }
    assert_eq!(loopdev::find(&scene.base.join("renamed.img")).expect("find"), [] as [PathBuf; 0]);
    assert_eq!(loopdev::find(&ours).expect("the other stays"), [third]);
    loopdev::detach(Path::new("/dev/no-such-loop")).expect("no device is done");
    assert!(loopdev::find(&scene.base.join("no-such")).is_err());
}

/// The kernel asks each device's own file system: one whose daemon is gone must not hide the others.
fn beside_a_dead_one(scene: &Scene) {
    let skipped = |why: &str| println!("skipped loopdev::found_beside_one_whose_file_system_is_dead: {why}");
    let (behind, point) = (scene.base.join("behind"), scene.base.join("fuse"));
    for folder in [&behind, &point] {
        std::fs::create_dir(folder).expect("make the folder");
    }
    let mut daemon = match Command::new("bindfs").arg("-f").args([&behind, &point]).stderr(Stdio::null()).spawn() {
        Ok(daemon) => daemon,
        Err(error) => return skipped(&format!("bindfs cannot be run: {error}")),
    };
    let mut all = Detach(Vec::new());
    let start = Instant::now();
    let is_mounted = || scene.table().at(&point).is_some();
    while !is_mounted() && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (ours, theirs) = (scene.base.join("ours.img"), point.join("theirs.img"));
    let attached = is_mounted().then(|| {
        [&theirs, &ours].map(|file| {
            std::fs::File::create(file).and_then(|f| f.set_len(1 << 20)).expect("make the file");
            loopdev::attach(file, false).inspect(|device| all.0.push(device.clone()))
        })
    });
    let _ = daemon.kill();
    let _ = daemon.wait();
    match attached {
        None => skipped("bindfs mounts nothing here"),
        Some([Ok(dead), Ok(device)]) => {
            // The kernel keeps what the daemon last said of the file for a moment.
            while loopdev::status(&dead).is_ok() && start.elapsed() < Duration::from_secs(15) {
                std::thread::sleep(Duration::from_millis(50));
            }
            let error = loopdev::status(&dead).expect_err("its file system is dead");
            assert!(loopdev::is_backing_dead(&error), "{error}");
            assert_eq!(loopdev::find(&ours).expect("find"), [device]);
        }
        Some(_) => skipped("no loop device"),
    }
}
