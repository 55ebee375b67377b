use std::fs::{create_dir_all, write};
use std::process::{Child, Command};
use std::time::Duration;

use super::*;

const UID: &str = "7d0a1f1e-2b3c-4d5e-8f90-a1b2c3d4e5f6";
const OTHER: &str = "11111111-2b3c-4d5e-8f90-a1b2c3d4e5f6";
const STATIC: &str = "0b1d9c3e4f5a6b7c8d9e0f1a2b3c4d5e";

fn ask(hierarchies: &[(&Path, bool)]) -> Result<Answer, SourceError> {
    let hierarchies = hierarchies.iter().map(|(path, unified)| Hierarchy { path: path.into(), unified: *unified });
    Cgroups::at(hierarchies.collect()).ask(Instant::now() + Duration::from_secs(60))
}

fn running(answer: &Answer) -> Vec<String> {
    answer.pods().map(|pod| pod.uid.to_string()).collect()
}

/// A cgroup of version 1 with these processes.
fn v1(root: &Path, cgroup: &str, processes: &str) {
    let mut folder = root.to_path_buf();
    for part in Path::new(cgroup) {
        folder.push(part);
        create_dir_all(&folder).unwrap();
        let _ = std::fs::File::options().create_new(true).write(true).open(folder.join("cgroup.procs"));
    }
    write(folder.join("cgroup.procs"), processes).unwrap();
}

/// A cgroup of version 2, with processes in it or below or not.
fn v2(root: &Path, cgroup: &str, populated: bool) {
    create_dir_all(root.join(cgroup)).unwrap();
    write(root.join(cgroup).join("cgroup.events"), format!("populated {}\nfrozen 0\n", u8::from(populated))).unwrap();
}

#[test]
fn both_drivers_names_are_read_in_version_2() {
    let uid = UID.replace('-', "_");
    let other = OTHER.replace('-', "_");
    for (live, empty) in [
        (format!("kubepods/burstable/pod{UID}"), format!("kubepods/besteffort/pod{OTHER}")),
        (format!("kubepods/pod{UID}"), format!("kubepods/pod{OTHER}")),
        (
            format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice"),
            format!("kubepods.slice/kubepods-pod{other}.slice"),
        ),
        (
            format!("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{uid}.slice"),
            format!("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{other}.slice"),
        ),
        (
            format!("docker/4f/kubelet/kubepods/besteffort/pod{UID}"),
            format!("docker/4f/kubelet/kubepods/burstable/pod{OTHER}"),
        ),
    ] {
        let root = tempfile::tempdir().unwrap();
        v2(root.path(), &live, true);
        v2(root.path(), &empty, false);
        v2(root.path(), "system.slice/kubelet.service", true);
        let answer = ask(&[(root.path(), true)]).unwrap();
        assert_eq!(running(&answer), [UID], "{live}");
        assert_eq!(answer.covers, Covers::Every);
    }
}

#[test]
fn in_version_1_a_process_counts_in_whichever_hierarchy_and_however_deep_it_is() {
    let root = tempfile::tempdir().unwrap();
    let [memory, pids] = ["memory", "pids"].map(|name| root.path().join(name));
    v1(&memory, &format!("kubepods/burstable/pod{UID}/4f2a/nested"), "4711\n");
    v1(&memory, &format!("kubepods/besteffort/pod{OTHER}/4f2a"), "");
    v1(&pids, &format!("kubepods/burstable/pod{UID}"), "");
    v1(&pids, &format!("kubepods/pod{STATIC}/1"), "1\n2\n");
    let answer = ask(&[(&memory, false), (&pids, false)]).unwrap();
    assert_eq!(running(&answer), [STATIC, UID]);
    // The mixed set-up: version 2 is there too and has no pods.
    let unified = root.path().join("unified");
    v2(&unified, "system.slice", true);
    assert_eq!(ask(&[(&memory, false), (&pids, false), (&unified, true)]).unwrap().pods().count(), 2);
    assert_eq!(ask(&[(&unified, true)]).unwrap().covers, Covers::Nobody);
}

#[test]
fn only_cgroups_of_a_kubelet_are_pods() {
    let root = tempfile::tempdir().unwrap();
    v2(root.path(), &format!("machine.slice/pod{UID}"), true);
    v2(root.path(), "machine.slice/machine-pod1.slice", true);
    v2(root.path(), "kubepods.slice/kubepods-burstable.slice", true);
    let answer = ask(&[(root.path(), true)]).unwrap();
    assert_eq!(answer.pods().count(), 0);
    assert_eq!(answer.covers, Covers::Every);
}

#[test]
fn what_cannot_be_read_is_an_error_and_what_went_away_is_not() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(ask(&[(&root.path().join("absent"), true)]).unwrap().covers, Covers::Nobody);
    let pod = format!("kubepods/pod{UID}");
    create_dir_all(root.path().join(&pod)).unwrap();
    assert_eq!(ask(&[(root.path(), true)]).unwrap().pods().count(), 0, "it is being removed");
    write(root.path().join(&pod).join("cgroup.events"), "frozen 0\n").unwrap();
    assert!(matches!(ask(&[(root.path(), true)]), Err(SourceError::Incomplete { .. })));
    std::fs::remove_file(root.path().join(&pod).join("cgroup.events")).unwrap();
    create_dir_all(root.path().join(&pod).join("cgroup.events")).unwrap();
    assert!(matches!(ask(&[(root.path(), true)]), Err(SourceError::Failed { .. })));
    let over = Cgroups::at(vec![Hierarchy { path: root.path().into(), unified: true }]).ask(Instant::now());
    assert!(matches!(over, Err(SourceError::Incomplete { .. })));
}

#[test]
fn hierarchies_are_found_in_the_mount_table() {
    let table = b"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                  35 31 0:32 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n\
                  36 31 0:32 / /mnt/again rw - cgroup cgroup rw,memory\n\
                  41 31 0:38 / /sys/fs/cg\\040roup/unified rw - cgroup2 cgroup2 rw\n";
    let found = hierarchies(table);
    assert_eq!(
        found,
        [
            Hierarchy { path: "/sys/fs/cgroup/memory".into(), unified: false },
            Hierarchy { path: "/sys/fs/cg roup/unified".into(), unified: true }
        ]
    );
}

/// A process in a real cgroup; both go with it.
struct Living {
    process: Child,
    cgroups: Vec<PathBuf>,
}

impl Drop for Living {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for cgroup in self.cgroups.iter().rev() {
            // The kernel lets the process go a moment after it ended.
            for _ in 0..200 {
                if std::fs::remove_dir(cgroup).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[test]
fn a_real_process_in_a_real_cgroup_is_seen_until_it_ends() {
    let uid = format!("{:08x}-0000-4000-8000-000000000000", std::process::id());
    let mut tried = 0;
    for hierarchy in mounted().unwrap_or_default() {
        // A parent of its own, so that no kubelet of this machine is disturbed.
        let parent = hierarchy.path.join(format!("refloat-test-{}", std::process::id()));
        let process = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut living = Living { process, cgroups: vec![] };
        let made = [parent.clone(), parent.join("kubepods"), parent.join(format!("kubepods/pod{uid}"))];
        let made = made.into_iter().chain([parent.join(format!("kubepods/pod{uid}/container"))]);
        let mut able = true;
        for cgroup in made {
            able = able && std::fs::create_dir(&cgroup).is_ok();
            if able {
                living.cgroups.push(cgroup);
            }
        }
        let Some(container) = living.cgroups.get(3).cloned() else { continue };
        // Not every controller takes a process at once (cpuset wants its CPUs first).
        if write(container.join("cgroup.procs"), living.process.id().to_string()).is_err() {
            continue;
        }
        tried += 1;
        let known = |path: &Path| ask(&[(path, hierarchy.unified)]).unwrap().pods().any(|pod| pod.uid.as_str() == uid);
        assert!(known(&parent), "{hierarchy:?}");
        living.process.kill().unwrap();
        living.process.wait().unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while known(&parent) {
            assert!(Instant::now() < end, "{hierarchy:?}: it ended and is still seen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    if tried == 0 {
        println!("skipped: a_real_process_in_a_real_cgroup_is_seen_until_it_ends: no cgroup can be made here");
    }
}
