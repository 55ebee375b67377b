use super::*;

const OURS: &str = "\
20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
30 20 0:50 / /node/pods/p-1/volumes/kubernetes.io~nfs/a rw shared:7 - nfs4 s:/a rw
31 20 8:16 / /node/plugins/kubernetes.io/csi/d/h/globalmount rw shared:8 - ext4 /dev/sdb rw
32 20 8:16 /sub /node/pods/p-1/volumes/kubernetes.io~csi/b/mount rw shared:9 - ext4 /dev/sdb rw
";

fn table(text: &str) -> MountTable {
    let (table, bad) = MountTable::from_mountinfo(text.as_bytes());
    assert!(bad.is_empty(), "{bad:?}");
    table
}

/// Which of our mounts a namespace with this table holds, by a process in this cgroup.
fn held(theirs: &str, cgroup: &str) -> Vec<u32> {
    let ours = table(OURS);
    let namespace = Namespace { pid: 1, cgroup: cgroup.into(), table: table(theirs) };
    Holders::compare(&ours, Path::new("/node"), [namespace]).by_mount.into_keys().collect()
}

const POD: &str = "/kubepods/burstable/podp-1/abc";

#[test]
fn a_container_holds_what_its_pod_has() {
    let container = "90 80 0:90 / / rw - overlay overlay rw\n91 90 0:50 /logs /data rw - nfs4 s:/a rw\n";
    for cgroup in [POD, "/kubepods.slice/kubepods-podp_1.slice/cri-abc.scope", "/user.slice", ""] {
        assert_eq!(held(container, cgroup), [30], "{cgroup}");
    }
    assert!(held("90 80 0:90 / / rw - overlay overlay rw\n", POD).is_empty(), "it has nothing of ours");
}

#[test]
fn a_container_of_another_pod_holds_the_device_and_not_the_mount() {
    let other = "90 80 0:90 / / rw - overlay overlay rw\n91 90 8:16 /sub /data rw - ext4 /dev/sdb rw\n";
    assert_eq!(held(other, "/kubepods/podp-2/abc"), [31]);
    assert_eq!(held(other, POD), [31, 32]);
}

#[test]
fn a_copy_that_goes_with_ours_holds_nothing() {
    let slave = |of: &str| {
        format!(
            "80 1 8:1 / / rw {of} - ext4 /dev/sda1 rw\n\
             91 80 0:50 / /node/pods/p-1/volumes/kubernetes.io~nfs/a rw master:7 - nfs4 s:/a rw\n"
        )
    };
    assert!(held(&slave("master:1"), "").is_empty(), "a slave of ours");
    assert!(held(&slave("shared:1"), "").is_empty(), "a peer of ours");
    assert!(held(&slave("shared:40 master:1"), "").is_empty());
    assert_eq!(held(&slave("master:2"), ""), [30], "a slave of somebody else");
    assert_eq!(held(&slave("shared:2"), ""), [30]);
    // The host's root, below a folder of the container.
    let below = "80 1 0:90 / / rw - overlay overlay rw\n81 80 8:1 / /host rw master:1 - ext4 /dev/sda1 rw\n\
                 91 81 0:50 / /host/node/pods/p-1/volumes/kubernetes.io~nfs/a rw master:7 - nfs4 s:/a rw\n";
    assert!(held(below, "").is_empty());
    assert_eq!(held(&below.replace("/host/node", "/host/other"), ""), [30], "another place");
}
