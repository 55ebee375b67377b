//! The watch wakes on changes and on nothing else.

use refloat_mount::TableWatch;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::Test;
use crate::scene::Scene;

pub(crate) const TESTS: &[(&str, Test)] = &[("watch::wakes_on_changes_only", watch)];

fn ready(watch: &TableWatch, milliseconds: i64) -> bool {
    let mut poll = [PollFd::new(watch, PollFlags::PRI | PollFlags::ERR)];
    let wait = Timespec { tv_sec: milliseconds / 1000, tv_nsec: (milliseconds % 1000) * 1_000_000 };
    rustix::event::poll(&mut poll, Some(&wait)).expect("poll") > 0
}

fn watch(scene: &Scene) {
    let watch = TableWatch::open().expect("open");
    assert!(!ready(&watch, 1000), "an idle second");
    scene.tmpfs("v", "new");
    assert!(ready(&watch, 2000), "a mount");
    assert!(!ready(&watch, 100), "polling re-arms it");
    let flags = MountFlags::BIND | MountFlags::RDONLY;
    rustix::mount::mount_remount(scene.path("v"), flags, c"").expect("remount");
    assert!(ready(&watch, 2000), "other options");
    rustix::mount::unmount(scene.path("v"), UnmountFlags::empty()).expect("unmount");
    assert!(ready(&watch, 2000), "an unmount");
    assert!(!ready(&watch, 100));
    // Files in the mounts are nothing to it.
    std::fs::write(scene.path("file"), "x").expect("write");
    assert!(!ready(&watch, 100));
    let woken = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ready(&watch, 5000));
        std::thread::sleep(std::time::Duration::from_millis(50));
        scene.tmpfs("w", "new");
        waiting.join().expect("no panic")
    });
    assert!(woken, "a waiting thread is woken");
}
