//! Block volumes: bind mount, symlink and loop device, on real devices.

use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use refloat_mount::{NodeRoot, loopdev};
use refloat_node::{LeftoverKind, ReconstructionResult, RecordState, VolumeState};
use refloat_record::{Record, RelPath, Store, VolumeMode};
use refloat_test_support::{Outcome, Skip};
use refloat_volume::block::LoopMarks;
use rustix::mount::UnmountFlags;

use crate::stage::{Stage, assert_all_mounted, local, pod, volume};

refloat_test_support::tests![
    pods_share_a_device_and_go_one_by_one,
    what_is_missing_is_mended_or_undone,
    a_lost_record_is_written_anew_or_the_volume_undone,
    a_device_mapped_by_a_kubelet_is_taken_over,
    after_a_reboot_it_is_mapped_anew_or_forgotten,
    a_loop_device_alone_is_a_leftover,
    the_root_may_be_a_symlink,
    what_stands_in_the_symlinks_place_is_kept,
    another_device_under_the_same_name_is_not_taken_for_ours,
    a_record_of_another_place_is_never_acted_on,
    a_path_that_is_no_device_is_told,
];

const CLAIM: &str = "  - {name: l, persistentVolumeClaim: {claimName: pv}}\n";

fn block(path: &Path) -> String {
    local("pv", path).replacen("spec:\n", "spec:\n  volumeMode: Block\n", 1)
}

/// A stage whose loop devices are detached, whatever becomes of the test.
struct Scene {
    stage: Stage,
    disk: PathBuf,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let real = self.stage.path("").canonicalize().unwrap_or_default();
        for one in loopdev::all().unwrap() {
            let ours = UIDS.iter().any(|uid| self.loops(uid).contains(&one.path));
            if ours || (one.backing.starts_with(&real) && one.path != self.disk) {
                let _ = loopdev::detach(&one.path);
            }
        }
    }
}

const UIDS: [&str; 2] = ["u1", "u2"];

fn map_path(uid: &str) -> String {
    format!("plugins/kubernetes.io~local-volume/volumeDevices/pv/{uid}")
}

fn link(uid: &str) -> String {
    format!("pods/{uid}/volumeDevices/kubernetes.io~local-volume/pv")
}

impl Scene {
    fn new() -> Result<Self, Skip> {
        let mut stage = Stage::new();
        let image = stage.path("disk.img");
        std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
        let disk = stage.attach(&image)?;
        stage.manifest("pv.yaml", &block(&disk));
        Ok(Self { stage, disk })
    }

    /// With these pods set up.
    fn with(uids: &[&str]) -> Result<Self, Skip> {
        let scene = Self::new()?;
        for uid in uids {
            scene.stage.manifest(&format!("{uid}.yaml"), &pod(uid, CLAIM));
        }
        scene.stage.settle_well();
        for uid in uids {
            scene.assert_mapped(uid);
        }
        Ok(scene)
    }

    /// The loop devices with our mark for this pod.
    fn loops(&self, uid: &str) -> Vec<PathBuf> {
        let root = NodeRoot::open(&self.stage.options.root_dir).unwrap();
        let mark = LoopMarks::of(&root).unwrap().mark(&RelPath::new(map_path(uid)).unwrap());
        let all = loopdev::all().unwrap().into_iter().map(|one| one.path);
        all.filter(|one| loopdev::status(one).ok().flatten().is_some_and(|s| s.mark == mark)).collect()
    }

    #[track_caller]
    fn assert_mapped(&self, uid: &str) {
        assert!(self.stage.is_mounted(&map_path(uid)), "{uid}");
        assert_eq!(std::fs::read_link(self.stage.root(&link(uid))).unwrap(), self.disk, "{uid}");
        assert_eq!(self.loops(uid).len(), 1, "{uid}");
    }

    #[track_caller]
    fn assert_clean(&self) {
        for uid in UIDS {
            assert_eq!(self.loops(uid), Vec::<PathBuf>::new(), "{uid}");
        }
        self.stage.assert_clean();
    }

    fn detach(&self, uid: &str) {
        for one in self.loops(uid) {
            loopdev::detach(&one).unwrap();
        }
    }

    /// Takes away {symlink, loop device, bind mount, file}, each whose bit is set.
    fn take_away(&self, uid: &str, which: u32) {
        if which & 1 != 0 {
            std::fs::remove_file(self.stage.root(&link(uid))).unwrap();
        }
        if which & 2 != 0 {
            self.detach(uid);
        }
        if which & 4 != 0 {
            rustix::mount::unmount(self.stage.root(&map_path(uid)), UnmountFlags::DETACH).unwrap();
        }
        if which & 8 != 0 {
            std::fs::remove_file(self.stage.root(&map_path(uid))).unwrap();
        }
    }

    fn lose_records(&self) {
        let store = Store::open(&self.stage.options.state_dir).unwrap();
        for record in store.load().unwrap().records {
            store.remove(&record.key()).unwrap();
        }
    }
}

/// Attached as another program would.
fn attach(file: &Path) -> PathBuf {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    loopdev::attach_open(file.as_fd(), false, b"/var/lib").unwrap()
}

fn pods_share_a_device_and_go_one_by_one() -> Outcome {
    let scene = Scene::with(&UIDS)?;
    let stage = &scene.stage;
    let ids = |uid: &str| stage.table().at(&stage.root(&map_path(uid))).unwrap().id();
    let before = UIDS.map(ids);
    // A restart changes nothing.
    let outcome = stage.settle_well();
    assert_all_mounted(&outcome, 2);
    assert_eq!(UIDS.map(ids), before);
    assert!(outcome.actual.leftovers.is_empty() && outcome.actual.devices.is_empty());
    for found in &outcome.actual.volumes {
        let uid = found.key.pod.as_str();
        assert_eq!(found.key.mode, VolumeMode::Block);
        assert_eq!(found.path.as_ref(), Some(&stage.root(&link(uid))));
        assert_eq!(found.device_path.as_ref(), Some(&scene.disk));
        assert_eq!(found.reconstruction, ReconstructionResult::Full);
        let block = found.record.as_ref().unwrap().block.as_ref().unwrap();
        assert_eq!(
            (block.map_path.as_str(), block.link_target.as_str()),
            (&*map_path(uid), scene.disk.to_str().unwrap())
        );
        assert_eq!(block.mount.as_ref().unwrap().id, before[usize::from(uid == "u2")].map(|id| id.0));
    }
    stage.remove_manifest("u1.yaml");
    assert_all_mounted(&stage.settle_well(), 1);
    assert!(!stage.root("pods/u1").exists() && scene.loops("u1").is_empty());
    scene.assert_mapped("u2");
    assert_eq!(ids("u2"), before[1]);
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    scene.assert_clean();
    Ok(())
}

/// B28.
fn what_is_missing_is_mended_or_undone() -> Outcome {
    for which in 0..16 {
        if which & 8 != 0 && which & 4 == 0 {
            continue;
        }
        for (wanted, record) in [(true, true), (false, true), (false, false)] {
            let scene = Scene::with(&["u1"])?;
            scene.take_away("u1", which);
            if !wanted {
                scene.stage.remove_manifest("u1.yaml");
            }
            if !record {
                scene.lose_records();
            }
            let outcome = scene.stage.settle();
            assert_eq!(outcome.failures, [], "{which} {wanted} {record}");
            if wanted {
                assert_all_mounted(&outcome, 1);
                scene.assert_mapped("u1");
                continue;
            }
            if !record && which & 0b1101 == 0b1101 {
                // Nothing says any more that the empty folder in `plugins` was this pod's.
                let empty =
                    std::fs::remove_dir(scene.stage.root("plugins/kubernetes.io~local-volume/volumeDevices/pv"));
                empty.and_then(|()| std::fs::remove_dir_all(scene.stage.root("plugins"))).unwrap();
            }
            scene.assert_clean();
        }
    }
    Ok(())
}

fn a_lost_record_is_written_anew_or_the_volume_undone() -> Outcome {
    let scene = Scene::with(&["u1"])?;
    let stage = &scene.stage;
    let id = || stage.table().at(&stage.root(&map_path("u1"))).unwrap().id();
    let before = (id(), scene.loops("u1"));
    scene.lose_records();
    // Nobody can tell whether it is wanted.
    stage.manifest("u1.yaml", "{ no yaml");
    let outcome = stage.settle();
    let found = volume(&outcome, "pv");
    assert_eq!((found.record_state, found.state), (RecordState::Missing, VolumeState::Mounted));
    assert!(matches!(found.reconstruction, ReconstructionResult::Partial { .. }), "{:?}", found.reconstruction);
    assert_eq!(found.device_path.as_ref(), Some(&scene.disk));
    assert_eq!((id(), scene.loops("u1")), before);
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    let outcome = stage.settle_well();
    assert_all_mounted(&outcome, 1);
    assert_eq!(volume(&outcome, "pv").record_state, RecordState::Ok);
    assert_eq!((id(), scene.loops("u1")), before);
    scene.lose_records();
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    scene.assert_clean();
    Ok(())
}

/// A kubelet's loop device has no mark of ours.
fn a_device_mapped_by_a_kubelet_is_taken_over() -> Outcome {
    for wanted in [true, false] {
        let scene = Scene::with(&["u1"])?;
        scene.detach("u1");
        attach(&scene.stage.root(&map_path("u1")));
        scene.lose_records();
        if !wanted {
            scene.stage.remove_manifest("u1.yaml");
        }
        let outcome = scene.stage.settle_well();
        if wanted {
            assert_all_mounted(&outcome, 1);
            scene.assert_mapped("u1");
            let file = scene.stage.root(&map_path("u1"));
            let over = loopdev::all().unwrap().into_iter().filter(|one| one.backing == file).map(|one| one.path);
            assert_eq!(over.collect::<Vec<_>>(), scene.loops("u1"), "theirs is detached");
            scene.stage.remove_manifest("u1.yaml");
            scene.stage.settle_well();
        }
        scene.assert_clean();
    }
    Ok(())
}

fn after_a_reboot_it_is_mapped_anew_or_forgotten() -> Outcome {
    for wanted in [true, false] {
        let scene = Scene::with(&["u1"])?;
        scene.detach("u1");
        scene.stage.reboot();
        assert!(scene.stage.root(&link("u1")).symlink_metadata().is_ok() && scene.stage.root(&map_path("u1")).exists());
        if wanted {
            assert_all_mounted(&scene.stage.settle_well(), 1);
            scene.assert_mapped("u1");
            scene.stage.remove_manifest("u1.yaml");
        } else {
            scene.stage.remove_manifest("u1.yaml");
        }
        scene.stage.settle_well();
        scene.assert_clean();
    }
    Ok(())
}

/// B29.
fn a_loop_device_alone_is_a_leftover() -> Outcome {
    // With our mark, its bind gone: sysfs shows "/".
    let scene = Scene::with(&["u1"])?;
    scene.take_away("u1", 1 | 4 | 8);
    scene.lose_records();
    std::fs::remove_dir_all(scene.stage.root("pods/u1")).unwrap();
    std::fs::remove_dir_all(scene.stage.root("plugins/kubernetes.io~local-volume")).unwrap();
    let ours = scene.loops("u1");
    let shown = loopdev::all().unwrap().into_iter().find(|one| one.path == ours[0]).unwrap();
    assert_eq!(shown.backing, Path::new("/"));
    scene.stage.manifest("u1.yaml", "{ no yaml");
    let outcome = scene.stage.settle();
    let left = &outcome.actual.leftovers;
    assert_eq!(
        left.iter().map(|l| (l.kind, l.path.clone())).collect::<Vec<_>>(),
        [(LeftoverKind::LoopDevice, ours[0].clone())]
    );
    assert_eq!(left[0].pod.as_ref().unwrap().as_str(), "u1");
    assert_eq!(scene.loops("u1"), ours, "whether its pod is gone cannot be told");
    scene.stage.remove_manifest("u1.yaml");
    scene.stage.settle_well();
    scene.assert_clean();

    // Without a mark, over the plain file in that place; a second one over another file that had the same name, and a
    // third over one that was deleted.
    let file = scene.stage.root(&map_path("u1"));
    let make = || {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        attach(&file)
    };
    let renamed = make();
    std::fs::rename(&file, scene.stage.root("elsewhere")).unwrap();
    let deleted = make();
    std::fs::remove_file(&file).unwrap();
    let in_place = make();
    scene.stage.manifest("u1.yaml", "{ no yaml");
    let outcome = scene.stage.settle();
    let mut kinds: Vec<_> =
        outcome.actual.leftovers.iter().map(|l| (l.path.clone(), l.kind, l.pod.is_some())).collect();
    kinds.sort();
    let mut expected =
        vec![(deleted.clone(), LeftoverKind::LoopDevice, false), (in_place.clone(), LeftoverKind::LoopDevice, true)];
    expected.sort();
    // The file itself has content, so the volume that it would be of is shown, and kept: no leftover has its loop device.
    let volumes: Vec<_> = outcome.actual.volumes.iter().map(|v| v.key.spec_name.as_str()).collect();
    if volumes.is_empty() {
        assert_eq!(kinds, expected);
    } else {
        assert_eq!(volumes, ["pv"]);
    }
    scene.stage.remove_manifest("u1.yaml");
    scene.stage.settle();
    assert!(loopdev::status(&renamed).unwrap().is_some() && loopdev::status(&deleted).unwrap().is_some());
    assert!(file.exists(), "it has content");
    for device in [renamed, deleted, in_place] {
        loopdev::detach(&device).unwrap();
    }
    Ok(())
}

/// B29: sysfs has the real path.
fn the_root_may_be_a_symlink() -> Outcome {
    let mut scene = Scene::new()?;
    let alias = scene.stage.path("alias");
    symlink(scene.stage.path("kubelet"), &alias).unwrap();
    scene.stage.options.root_dir = alias;
    scene.stage.manifest("u1.yaml", &pod("u1", CLAIM));
    scene.stage.settle_well();
    scene.assert_mapped("u1");
    assert_all_mounted(&scene.stage.settle_well(), 1);
    scene.stage.remove_manifest("u1.yaml");
    scene.stage.settle_well();
    scene.assert_clean();
    Ok(())
}

fn what_stands_in_the_symlinks_place_is_kept() -> Outcome {
    let scene = Scene::with(&["u1"])?;
    let stage = &scene.stage;
    let path = stage.root(&link("u1"));
    // Another symlink is only a wrong word: it is changed.
    std::fs::remove_file(&path).unwrap();
    symlink("/etc", &path).unwrap();
    assert_all_mounted(&stage.settle_well(), 1);
    scene.assert_mapped("u1");
    for folder in [true, false] {
        stage.settle_well();
        scene.assert_mapped("u1");
        std::fs::remove_file(&path).unwrap();
        if folder {
            std::fs::create_dir(&path).unwrap();
        } else {
            std::fs::write(&path, "somebody's").unwrap();
        }
        let outcome = stage.settle();
        assert_eq!(volume(&outcome, "pv").state, VolumeState::Uncertain);
        assert_eq!(outcome.failures[0].code, "PathTaken");
        assert!(stage.is_mounted(&map_path("u1")), "what the pod has stays");
        stage.remove_manifest("u1.yaml");
        let outcome = stage.settle();
        assert_eq!(outcome.failures[0].code, "PathTaken");
        assert!(path.exists() && !stage.is_mounted(&map_path("u1")) && scene.loops("u1").is_empty(), "it is released");
        if folder { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) }.unwrap();
        stage.settle_well();
        scene.assert_clean();
        stage.manifest("u1.yaml", &pod("u1", CLAIM));
    }
    Ok(())
}

fn another_device_under_the_same_name_is_not_taken_for_ours() -> Outcome {
    let mut scene = Scene::with(&["u1"])?;
    let image = scene.stage.path("other.img");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let other = scene.stage.attach(&image)?;
    // The record is lost, and the volume of that name is another device by now.
    scene.lose_records();
    scene.stage.manifest("pv.yaml", &block(&other));
    let outcome = scene.stage.settle();
    assert_eq!(outcome.failures[0].code, "OtherDevice", "{:#?}", outcome.plan.report);
    scene.assert_mapped("u1");
    assert!(!scene.stage.records().iter().any(|r| matches!(r, Record::PodVolume(_))), "nothing untrue is written");
    // A device bound over ours: a conflict.
    let scene = Scene::with(&["u1"])?;
    scene.stage.bind(Path::new("/dev/null"), &scene.stage.root(&map_path("u1")));
    for wanted in [true, false] {
        if !wanted {
            scene.stage.remove_manifest("u1.yaml");
        }
        let outcome = scene.stage.settle();
        assert!(volume(&outcome, "pv").conflict.is_some());
        assert_eq!(scene.stage.mounts().len(), 2);
        assert_eq!(scene.loops("u1").len(), 1);
    }
    scene.stage.unmount(&scene.stage.root(&map_path("u1")));
    scene.stage.settle_well();
    scene.assert_clean();
    Ok(())
}

fn a_record_of_another_place_is_never_acted_on() -> Outcome {
    let scene = Scene::with(&UIDS)?;
    let store = Store::open(&scene.stage.options.state_dir).unwrap();
    let mut records = store.load().unwrap().records;
    let theirs = records.iter().find_map(|record| match record {
        Record::PodVolume(v) if v.pod.uid.as_str() == "u2" => v.block.clone(),
        _ => None,
    });
    for record in &mut records {
        if let Record::PodVolume(volume) = record
            && volume.pod.uid.as_str() == "u1"
        {
            volume.block.clone_from(&theirs);
            store.put(record).unwrap();
        }
    }
    drop(store);
    scene.stage.remove_manifest("u1.yaml");
    let outcome = scene.stage.settle();
    let found = outcome.actual.volumes.iter().find(|v| v.key.pod.as_str() == "u1").unwrap();
    assert_eq!(found.problems[0].code, "NotUnderstood");
    scene.assert_mapped("u1");
    scene.assert_mapped("u2");
    Ok(())
}

fn a_path_that_is_no_device_is_told() {
    let stage = Stage::new();
    stage.manifest("pv.yaml", &block(&stage.host("folder")));
    stage.manifest("u1.yaml", &pod("u1", CLAIM));
    let outcome = stage.settle();
    assert_eq!(outcome.failures[0].code, "LocalPathType");
    assert!(outcome.failures[0].message.contains("volumeMode is Block"), "{}", outcome.failures[0].message);
    assert!(stage.files("pods").is_empty());
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.assert_clean();
}
