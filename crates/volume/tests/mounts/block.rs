//! Block volumes of the local plugin, with real devices.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use refloat_mount::loopdev;
use refloat_record::{RecordedBlock, RelPath};
use refloat_test_support::{Outcome, skip, wait_within};
use refloat_volume::block::LoopMarks;
use serde_json::{Value, json};

use crate::life::Loop;
use crate::node::{Crash, Life, Node, code, kernels, mode, mount_tmpfs, there, unmount};

refloat_test_support::tests![
    two_pods_share_a_device,
    a_crash_at_each_announcement,
    each_object_is_made_and_undone_on_its_own,
    without_a_record_it_is_undone_all_the_same,
    a_loop_device_of_the_kubelet_is_adopted_or_detached,
    what_somebody_else_put_there_is_kept,
    the_symlink_is_changed_in_one_step,
    a_loop_device_of_somebody_else_is_kept,
    the_device_went_away,
    nothing_is_left_after_a_reboot,
    what_is_no_block_device_is_refused,
    nothing_leads_out_of_the_node_root,
    a_read_only_device_is_held,
];

/// A device with a node that uses it; what is attached to the node's files is detached when it goes.
struct Scene {
    node: Node,
    disk: Option<Loop>,
}

impl Scene {
    fn new(kernel: refloat_mount::Kernel) -> Option<Self> {
        let node = Node::new(kernel);
        let disk = Some(Loop::new(&node, "disk", 4 << 20)?);
        Some(Self { node, disk })
    }

    fn device(&self) -> &Path {
        &self.disk.as_ref().unwrap().0
    }

    fn pv(&self) -> Value {
        pv(self.device())
    }

    fn life(&self, pod: &str) -> Life<'_> {
        Life::claim(&self.node, pod, &self.pv())
    }

    fn bind(&self, pod: &str) -> PathBuf {
        self.node.host.root.path().join(map_path(pod).as_path())
    }

    /// The loop devices over this pod's file, ours and others'.
    fn loops(&self, pod: &str) -> Vec<PathBuf> {
        let of_pod = loopdev::all().unwrap().into_iter().filter(|l| l.backing == self.bind(pod));
        of_pod.map(|l| l.path).collect()
    }

    /// Those with our mark.
    fn ours(&self, pod: &str) -> Vec<PathBuf> {
        let mark = LoopMarks::of(&self.node.host.root).unwrap().mark(&map_path(pod));
        let all = loopdev::all().unwrap().into_iter().map(|l| l.path);
        all.filter(|l| loopdev::status(l).unwrap().is_some_and(|s| s.mark == mark)).collect()
    }

    /// As `losetup` of another program would.
    fn foreign(file: &Path) -> Foreign {
        let opened = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
        let name = &file.as_os_str().as_encoded_bytes()[..8];
        Foreign(loopdev::attach_open(std::os::fd::AsFd::as_fd(&opened), false, name).unwrap())
    }

    #[track_caller]
    fn assert_mapped(&self, life: &Life<'_>) {
        let pod = life.pod.uid.as_str();
        assert_eq!(fs::read_link(life.path()).unwrap(), self.device());
        assert_eq!(self.node.table().stack(&self.bind(pod)).len(), 1);
        let block = life.record.as_ref().unwrap().block.clone().unwrap();
        assert_eq!(block.link_target, self.device().to_str().unwrap());
        assert_eq!(block.map_path, map_path(pod));
        assert!(block.device.is_some());
        assert_eq!(self.ours(pod), self.loops(pod));
        assert_eq!(self.ours(pod).len(), 1, "held once");
    }

    #[track_caller]
    fn assert_gone(&self, pod: &str) {
        assert!(!there(&self.node.pod_path(pod, "volumeDevices")), "symlink and folders");
        assert!(!there(&self.bind(pod)));
        assert_eq!(self.ours(pod), [] as [PathBuf; 0]);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for file in loopdev::all().unwrap() {
            if file.backing.starts_with(self.node.host.root.path()) {
                let _ = loopdev::detach(&file.path);
            }
        }
        for pod in ["u1", "u2"] {
            for device in self.ours(pod) {
                let _ = loopdev::detach(&device);
            }
        }
    }
}

/// A loop device that is not ours.
struct Foreign(PathBuf);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = loopdev::detach(&self.0);
    }
}

fn map_path(pod: &str) -> RelPath {
    RelPath::new(format!("plugins/kubernetes.io~local-volume/volumeDevices/pv1/{pod}")).unwrap()
}

fn pv(path: &Path) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv1" },
        "spec": { "local": { "path": path }, "volumeMode": "Block", "accessModes": ["ReadWriteOnce"] } })
}

/// What the pod reads through its symlink is what is written to the device.
#[track_caller]
fn assert_is_the_device(life: &Life<'_>, text: &[u8]) {
    let mut device = fs::OpenOptions::new().read(true).write(true).open(life.path()).unwrap();
    device.write_all(text).unwrap();
    device.sync_all().unwrap();
    let mut read = vec![0; text.len()];
    fs::File::open(life.path()).unwrap().read_exact(&mut read).unwrap();
    assert_eq!(read, text);
}

fn two_pods_share_a_device() -> Outcome {
    for (name, kernel) in kernels() {
        let Some(scene) = Scene::new(kernel) else { return skip("no loop devices") };
        let (mut one, mut two) = (scene.life("u1"), scene.life("u2"));
        for life in [&mut one, &mut two] {
            life.set_up().unwrap();
            assert_eq!(life.announced, 1, "{name}");
            scene.assert_mapped(life);
            life.set_up().unwrap();
            scene.assert_mapped(life);
        }
        assert_eq!(mode(&scene.node.pod_path("u1", "volumeDevices")), 0o750, "{name}");
        assert_eq!(mode(scene.bind("u1").parent().unwrap()), 0o750, "{name}");
        assert_is_the_device(&one, b"of both");
        one.tear_down().unwrap();
        one.tear_down().unwrap();
        scene.assert_gone("u1");
        scene.assert_mapped(&two);
        assert_is_the_device(&two, b"of the other");
        two.tear_down().unwrap();
        scene.assert_gone("u2");
        assert_eq!(scene.node.leftovers(), Vec::<PathBuf>::new(), "{name}");
        let plugins: Vec<_> = fs::read_dir(scene.node.host.root.path().join("plugins")).unwrap().collect();
        assert!(plugins.is_empty(), "{name}: the empty folders go");
    }
    Ok(())
}

fn a_crash_at_each_announcement() -> Outcome {
    for (name, kernel) in kernels() {
        for again in [false, true] {
            let Some(scene) = Scene::new(kernel) else { return skip("no loop devices") };
            let mut life = scene.life("u1");
            life.set_up_with(Some(Crash::Before(0))).unwrap_err();
            assert!(
                life.record.is_none() && !there(&scene.node.pod_path("u1", "")),
                "{name}: nothing before the record"
            );
            life.set_up_with(Some(Crash::After(0))).unwrap_err();
            assert!(life.record.is_some());
            if again {
                life.set_up().unwrap();
                scene.assert_mapped(&life);
            }
            life.tear_down().unwrap();
            scene.assert_gone("u1");
        }
    }
    Ok(())
}

/// Takes away those of {symlink, loop device, bind mount} whose bit is set. (The bind is busy while the loop device is
/// there, so it is detached as `umount -l` does.)
fn take_away(scene: &Scene, life: &Life<'_>, which: u32) {
    if which & 1 != 0 {
        fs::remove_file(life.path()).unwrap();
    }
    if which & 2 != 0 {
        for device in scene.ours("u1") {
            loopdev::detach(&device).unwrap();
        }
    }
    if which & 4 != 0 {
        rustix::mount::unmount(scene.bind("u1"), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

fn each_object_is_made_and_undone_on_its_own() -> Outcome {
    for (name, kernel) in kernels() {
        for which in 0..8 {
            for without_file in [false, true] {
                if without_file && which & 4 == 0 {
                    continue;
                }
                let Some(scene) = Scene::new(kernel) else { return skip("no loop devices") };
                let mut life = scene.life("u1");
                life.set_up().unwrap();
                for mend in [true, false] {
                    take_away(&scene, &life, which);
                    if without_file {
                        fs::remove_file(scene.bind("u1")).unwrap();
                    }
                    if mend {
                        life.set_up().unwrap_or_else(|e| panic!("{name} {which}: {e:?}"));
                        scene.assert_mapped(&life);
                    } else {
                        life.tear_down().unwrap_or_else(|e| panic!("{name} {which}: {e:?}"));
                        scene.assert_gone("u1");
                    }
                }
            }
        }
    }
    Ok(())
}

fn without_a_record_it_is_undone_all_the_same() -> Outcome {
    for (name, kernel) in kernels() {
        for which in 0..8 {
            let Some(scene) = Scene::new(kernel) else { return skip("no loop devices") };
            let mut life = scene.life("u1");
            life.set_up().unwrap();
            life.record = None;
            take_away(&scene, &life, which);
            life.tear_down().unwrap_or_else(|e| panic!("{name} {which}: {e:?}"));
            scene.assert_gone("u1");
        }
    }
    Ok(())
}

/// What a kubelet makes: no mark.
fn as_the_kubelet(scene: &Scene, life: &mut Life<'_>) {
    life.set_up().unwrap();
    for device in scene.ours("u1") {
        loopdev::detach(&device).unwrap();
    }
    // Whoever looks at all devices of the machine has it open for a moment, and it goes when that is over.
    wait_within(Duration::from_secs(10), "the end of the loop device", || scene.ours("u1").is_empty());
    std::mem::forget(Scene::foreign(&scene.bind("u1")));
}

fn a_loop_device_of_the_kubelet_is_adopted_or_detached() -> Outcome {
    for (_, kernel) in kernels() {
        let Some(scene) = Scene::new(kernel) else { return skip("no loop devices") };
        let mut life = scene.life("u1");
        as_the_kubelet(&scene, &mut life);
        assert_eq!((scene.ours("u1").len(), scene.loops("u1").len()), (0, 1));
        for _ in 0..2 {
            refloat_volume::block::adopt_loop(&scene.node.host, &map_path("u1"), false).unwrap();
            scene.assert_mapped(&life);
        }
        life.tear_down().unwrap();
        as_the_kubelet(&scene, &mut life);
        life.record = None;
        life.tear_down().unwrap();
        scene.assert_gone("u1");
        // Which of two it is, nobody can tell.
        as_the_kubelet(&scene, &mut life);
        life.record = None;
        let second = Scene::foreign(&scene.bind("u1"));
        assert_eq!(code(life.tear_down()), "LoopDeviceForeign");
        assert_eq!(scene.loops("u1").len(), 2);
        drop(second);
        life.tear_down().unwrap();
        scene.assert_gone("u1");
    }
    Ok(())
}

fn what_somebody_else_put_there_is_kept() -> Outcome {
    for (name, kernel) in kernels() {
        let Some(scene) = Scene::new(kernel) else { return skip("no loop devices") };
        let mut life = scene.life("u1");
        let (link, bind) = (life.path(), scene.bind("u1"));
        // Where the symlink belongs.
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        fs::create_dir(&link).unwrap();
        fs::write(link.join("data"), "keep").unwrap();
        assert_eq!(code(life.set_up()), "PathTaken", "{name}");
        assert!(life.record.is_none() && !there(&bind), "{name}: nothing was begun");
        fs::rename(&link, scene.node.dir.path().join("away")).unwrap();
        fs::write(&link, "keep").unwrap();
        assert_eq!(code(life.set_up()), "PathTaken", "{name}");
        fs::remove_file(&link).unwrap();
        life.set_up().unwrap();
        // The same when it is undone: the device is released, what is not ours stays.
        fs::remove_file(&link).unwrap();
        fs::rename(scene.node.dir.path().join("away"), &link).unwrap();
        assert_eq!(code(life.tear_down()), "PathTaken", "{name}");
        assert!(!there(&bind) && scene.ours("u1").is_empty(), "{name}");
        assert_eq!(fs::read(link.join("data")).unwrap(), b"keep", "{name}");
        fs::remove_file(link.join("data")).unwrap();
        fs::remove_dir(&link).unwrap();
        life.tear_down().unwrap();
        scene.assert_gone("u1");
        life.record = None;

        // Where the device is to be bound.
        fs::create_dir_all(bind.parent().unwrap()).unwrap();
        fs::write(&bind, "written while the device was not there").unwrap();
        assert_eq!(code(life.set_up()), "DataBelowMount", "{name}");
        assert_eq!(code(life.tear_down()), "PathTaken", "{name}");
        assert!(there(&bind), "{name}");
        fs::remove_file(&bind).unwrap();
        fs::create_dir(&bind).unwrap();
        assert_eq!(code(life.set_up()), "PathTaken", "{name}");
        mount_tmpfs("somebody", &bind);
        assert_eq!(code(life.set_up()), "OtherMount", "{name}");
        assert_eq!(code(life.tear_down()), "OtherMount", "{name}: no block device, so not ours");
        unmount(&bind);
        fs::remove_dir(&bind).unwrap();
        life.set_up().unwrap();
        rustix::mount::mount_bind("/dev/null", &bind).unwrap();
        assert_eq!(code(life.tear_down()), "OtherMount", "{name}: over ours");
        unmount(&bind);
        life.tear_down().unwrap();
        scene.assert_gone("u1");
    }
    Ok(())
}

fn the_symlink_is_changed_in_one_step() -> Outcome {
    for (_, kernel) in kernels() {
        let Some(scene) = Scene::new(kernel) else { return skip("no loop devices") };
        let mut life = scene.life("u1");
        life.set_up().unwrap();
        for says in ["/dev/null", "nowhere", "/etc"] {
            fs::remove_file(life.path()).unwrap();
            symlink(says, life.path()).unwrap();
            life.set_up().unwrap();
            scene.assert_mapped(&life);
            let entries: Vec<_> = fs::read_dir(life.path().parent().unwrap()).unwrap().collect();
            assert_eq!(entries.len(), 1, "no other name is left");
        }
        fs::remove_file(life.path()).unwrap();
        symlink("/etc", life.path()).unwrap();
        life.tear_down().unwrap();
        scene.assert_gone("u1");
    }
    Ok(())
}

fn a_loop_device_of_somebody_else_is_kept() -> Outcome {
    for (name, kernel) in kernels() {
        let Some(scene) = Scene::new(kernel) else { return skip("no loop devices") };
        let mut life = scene.life("u1");
        life.set_up().unwrap();
        // Over the very file: it holds the mount, so this waits for somebody to detach it.
        let foreign = Scene::foreign(&scene.bind("u1"));
        assert_eq!(code(life.tear_down()), "LoopDeviceForeign", "{name}");
        assert_eq!(scene.loops("u1"), std::slice::from_ref(&foreign.0), "{name}: ours is detached, theirs is not");
        drop(foreign);
        life.tear_down().unwrap();
        scene.assert_gone("u1");
        // Over another file whose path has the same text.
        life.set_up().unwrap();
        rustix::mount::unmount(scene.bind("u1"), rustix::mount::UnmountFlags::DETACH).unwrap();
        fs::OpenOptions::new().write(true).open(scene.bind("u1")).unwrap().set_len(1 << 20).unwrap();
        let foreign = Scene::foreign(&scene.bind("u1"));
        fs::OpenOptions::new().write(true).open(scene.bind("u1")).unwrap().set_len(0).unwrap();
        assert_eq!(scene.loops("u1"), std::slice::from_ref(&foreign.0), "{name}");
        life.record = None;
        life.tear_down().unwrap();
        scene.assert_gone("u1");
        assert!(loopdev::status(&foreign.0).unwrap().is_some(), "{name}");
    }
    Ok(())
}

fn the_device_went_away() -> Outcome {
    let Some(mut scene) = Scene::new(kernels()[0].1) else { return skip("no loop devices") };
    // A node of our own, so that its name can be taken away: an unplugged disk.
    let device = scene.device().to_path_buf();
    let node = scene.node.host_dir("dev").join("sdx");
    let made = rustix::fs::stat(&device).and_then(|stat| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &node, rustix::fs::FileType::BlockDevice, mode, stat.st_rdev)
    });
    if let Err(errno) = made {
        return skip(format!("cannot make a device node: {errno}"));
    }
    if fs::File::open(&node).is_err() {
        return skip("device nodes cannot be opened here");
    }
    let mut life = Life::claim(&scene.node, "u1", &pv(&node));
    life.set_up().unwrap();
    let record = life.record.clone();
    fs::remove_file(&node).unwrap();
    let deleted: Vec<_> = loopdev::all().unwrap().into_iter().filter(|l| scene.ours("u1").contains(&l.path)).collect();
    assert!(deleted.len() == 1 && deleted[0].deleted, "{deleted:?}");
    assert_eq!(code(life.set_up()), "LocalPathMissing");
    life.tear_down().unwrap();
    assert!(!there(&life.path()) && !there(&scene.bind("u1")) && scene.ours("u1").is_empty());
    // It comes back under another number while the bind is there: what the pod has stays.
    life.record = record;
    life.record.as_mut().unwrap().block = None;
    let disk = scene.disk.take().unwrap();
    let other = Loop::new(&scene.node, "other", 4 << 20).unwrap();
    let path = scene.node.host_dir("by-id").join("disk");
    symlink(&disk.0, &path).unwrap();
    let mut life = Life::claim(&scene.node, "u1", &pv(&path));
    life.set_up().unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&other.0, &path).unwrap();
    assert_eq!(code(life.set_up()), "OtherDevice");
    assert_eq!(fs::read_link(life.path()).unwrap(), disk.0);
    life.tear_down().unwrap();
    assert!(!there(&life.path()) && !there(&scene.bind("u1")) && scene.ours("u1").is_empty());
    scene.disk = Some(disk);
    Ok(())
}

fn nothing_is_left_after_a_reboot() -> Outcome {
    for (name, kernel) in kernels() {
        for wanted in [true, false] {
            let Some(scene) = Scene::new(kernel) else { return skip("no loop devices") };
            let mut life = scene.life("u1");
            life.set_up().unwrap();
            for device in scene.ours("u1") {
                loopdev::detach(&device).unwrap();
            }
            life.reboot();
            assert!(there(&scene.bind("u1")) && there(&life.path()), "{name}: file and symlink survive");
            if wanted {
                life.set_up().unwrap();
                scene.assert_mapped(&life);
            }
            life.tear_down().unwrap();
            scene.assert_gone("u1");
        }
    }
    Ok(())
}

fn what_is_no_block_device_is_refused() {
    let node = Node::new(kernels()[0].1);
    let folder = node.host_dir("folder");
    fs::write(folder.join("file"), "").unwrap();
    for (path, expected) in [
        (folder.clone(), "LocalPathType"),
        (folder.join("file"), "LocalPathType"),
        ("/dev/null".into(), "LocalPathType"),
        (folder.join("missing"), "LocalPathMissing"),
    ] {
        let mut life = Life::claim(&node, "u1", &pv(&path));
        assert_eq!(code(life.set_up()), expected, "{}", path.display());
        assert!(life.record.is_none() && !there(&node.pod_path("u1", "")));
    }
}

fn nothing_leads_out_of_the_node_root() -> Outcome {
    let Some(scene) = Scene::new(kernels()[0].1) else { return skip("no loop devices") };
    let outside = scene.node.host_dir("outside");
    for part in ["pods/u1/volumeDevices", "plugins/kubernetes.io~local-volume/volumeDevices"] {
        let mut life = scene.life("u1");
        let planted = scene.node.host.root.path().join(part);
        fs::create_dir_all(planted.parent().unwrap()).unwrap();
        symlink(&outside, &planted).unwrap();
        assert_eq!(code(life.set_up()), "PathHasSymlink", "{part}");
        assert_eq!(code(life.tear_down()), "PathHasSymlink", "{part}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{part}");
        fs::remove_file(&planted).unwrap();
        fs::create_dir(&planted).unwrap();
        mount_tmpfs("planted", &planted);
        assert_eq!(code(life.set_up()), "PathHasMount", "{part}");
        assert_eq!(code(life.tear_down()), "PathHasMount", "{part}");
        assert_eq!(fs::read_dir(&planted).unwrap().count(), 0, "{part}");
        unmount(&planted);
        fs::remove_dir(&planted).unwrap();
        life.record = None;
        life.set_up().unwrap();
        life.tear_down().unwrap();
        scene.assert_gone("u1");
    }
    Ok(())
}

fn a_read_only_device_is_held() -> Outcome {
    let Some(scene) = Scene::new(kernels()[0].1) else { return skip("no loop devices") };
    let image = scene.node.dir.path().join("image");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let device = Loop(loopdev::attach(&image, true).unwrap());
    let mut life = Life::claim(&scene.node, "u1", &pv(&device.0));
    life.set_up().unwrap();
    let held = scene.ours("u1");
    let name = held[0].file_name().unwrap().to_str().unwrap();
    assert_eq!(fs::read_to_string(format!("/sys/block/{name}/ro")).unwrap().trim(), "1");
    let recorded: RecordedBlock = life.record.as_ref().unwrap().block.clone().unwrap();
    assert_eq!(recorded.link_target, device.0.to_str().unwrap());
    life.tear_down().unwrap();
    scene.assert_gone("u1");
    Ok(())
}
