//! A file system whose server never answers, and one whose server is dead: FUSE with nobody behind it.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use refloat_mount::{PathError, UnmountHow};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use crate::Test;
use crate::scene::Scene;

pub(crate) const TESTS: &[(&str, Test)] =
    &[("hung::a_server_that_never_answers_holds_nothing_up", hung), ("hung::a_dead_server_is_unmounted", dead)];

/// Mounts a FUSE file system that nobody serves. None if this kernel does not let us.
fn fuse(scene: &Scene, rel: &str) -> Option<OwnedFd> {
    std::fs::create_dir_all(scene.path(rel)).expect("make the folder");
    let device = match rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => device,
        Err(errno) => {
            println!("skipped: no FUSE: {errno}");
            return None;
        }
    };
    let data = CString::new(format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd())).expect("no NUL");
    match rustix::mount::mount("server:/e", scene.path(rel), "fuse.dead", MountFlags::empty(), Some(&*data)) {
        Ok(()) => Some(device),
        Err(errno) => {
            println!("skipped: FUSE cannot be mounted: {errno}");
            None
        }
    }
}

/// All that a manager does beside such a mount, and undoing it.
fn everything(scene: &Scene) {
    let table = scene.table();
    let mount = table.at(&scene.path("v/fuse")).expect("the table shows it");
    assert_eq!((mount.fs_type(), mount.source()), ("fuse.dead".into(), "server:/e".into()));
    assert_eq!(scene.root.list(Path::new("v")).expect("list").expect("there").len(), 1);
    assert!(matches!(scene.root.list(Path::new("v/fuse")), Err(PathError::Mount { .. })));
    assert!(scene.root.remove_tree(Path::new("v"), &table).is_err());
    assert!(scene.root.remove_dir(Path::new("v/fuse")).is_err());
    assert!(scene.root.remove_file(Path::new("v/fuse")).is_err());
    scene.root.make_dirs(Path::new("other"), 0o750).expect("others are served");
    scene.root.unmount(Path::new("v/fuse"), mount.id(), UnmountHow::Ordinary, &mut scene.reader()).expect("unmounted");
    assert_eq!(scene.mounts_at("v/fuse"), 0);
    scene.root.remove_tree(Path::new("v"), &scene.table()).expect("removed");
}

fn hung(scene: &Scene) {
    let Some(device) = fuse(scene, "v/fuse") else { return };
    let (done, wait) = mpsc::channel();
    std::thread::scope(|scope| {
        let work = scope.spawn(move || {
            everything(scene);
            let _ = done.send(());
        });
        let in_time = wait.recv_timeout(Duration::from_secs(10));
        // Whoever hangs is let go before this fails: without its server the file system answers with an error.
        drop(device);
        if let Err(mpsc::RecvTimeoutError::Timeout) = in_time {
            panic!("something touched the mount and hung");
        }
        work.join().expect("all as it should be");
    });
}

fn dead(scene: &Scene) {
    let Some(device) = fuse(scene, "v/fuse") else { return };
    drop(device);
    let error = std::fs::metadata(scene.path("v/fuse")).expect_err("its server is dead");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");
    everything(scene);
}
