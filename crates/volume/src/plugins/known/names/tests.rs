use proptest::prelude::*;

use super::*;

fn told(rest: &str) -> (String, String, i32, Option<String>) {
    let found = iscsi(rest).unwrap_or_else(|| panic!("{rest}"));
    (found.portal, found.iqn, found.lun, found.interface)
}

/// The kubelet cuts the portal at the first dash and the number at the first `-lun-`.
#[test]
fn iscsi_names_with_dashes_and_ports_are_taken_apart() {
    for (rest, portal, iqn, lun, interface) in [
        ("iface-default/10.0.0.5:3260-iqn.2001-04.e:d-lun-3", "10.0.0.5:3260", "iqn.2001-04.e:d", 3, Some("default")),
        ("iface-default/san-1.x:3260-iqn.2001-04.e:d-lun-0", "san-1.x:3260", "iqn.2001-04.e:d", 0, Some("default")),
        ("iface-default/my-iqn.x:3260-iqn.2001-04.e:d-lun-0", "my-iqn.x:3260", "iqn.2001-04.e:d", 0, Some("default")),
        ("iface-i/[fd00::1]:3260-eui.0123-lun-1", "[fd00::1]:3260", "eui.0123", 1, Some("i")),
        ("iface-i/[fd00::1]-naa.0123-lun-1", "[fd00::1]", "naa.0123", 1, Some("i")),
        ("iface-i/h:1-iqn.a:x-lun-5:y-lun-7", "h:1", "iqn.a:x-lun-5:y", 7, Some("i")),
        ("iface-i/h:1-iqn.a:z:2-iqn.b-lun-7", "h:1", "iqn.a:z:2-iqn.b", 7, Some("i")),
        ("iface-h:3260:pv/h:3260-iqn.a-lun-0", "h:3260", "iqn.a", 0, None),
        ("iface-cxgb4i.00:07:43.ipv4.0/h:3260-iqn.a-lun-0", "h:3260", "iqn.a", 0, Some("cxgb4i.00:07:43.ipv4.0")),
    ] {
        let want = (portal.to_owned(), iqn.to_owned(), lun, interface.map(str::to_owned));
        assert_eq!(told(rest), want, "{rest}");
    }
    for rest in [
        "",
        "iface-default",
        "iface-default/x",
        "iface-default/host-iqn.a-lun-0",
        "iface-default/h:3260-iqn.a-lun-",
        "iface-default/h:3260-iqn.a-lun-01",
        "iface-default/h:3260-iqn.a-lun--1",
        "iface-default/h:port-iqn.a-lun-1",
        "x/h:3260-iqn.a-lun-1",
    ] {
        assert_eq!(iscsi(rest), None, "{rest}");
    }
}

#[test]
fn fibre_channel_names_are_taken_apart_or_not_at_all() {
    let targets = |wwns: &[&str], lun| Some(Fc::Targets { wwns: wwns.iter().map(|w| (*w).to_owned()).collect(), lun });
    let wwids = |wwids: &[&str]| Some(Fc::Wwids(wwids.iter().map(|w| (*w).to_owned()).collect()));
    assert_eq!(fc("50060e801049cfd1-lun-0"), targets(&["50060e801049cfd1"], 0));
    let two = "50060e801049cfd1-50060e801049cfd2-lun-12";
    assert_eq!(fc(two), targets(&["50060e801049cfd1", "50060e801049cfd2"], 12));
    assert_eq!(fc(two).unwrap().volume_name(), "[50060e801049cfd1 50060e801049cfd2]:12");
    let one = "3600508b400105e210000900000490000";
    assert_eq!(fc(one), wwids(&[one]));
    assert_eq!(fc(one).unwrap().volume_name(), format!("[{one}]"));
    assert_eq!(fc(&format!("{one}-{one}")), wwids(&[one, one]));
    assert_eq!(fc("t10.vendor"), wwids(&["t10.vendor"]));
    assert_eq!(fc("1VENDOR_serial_7"), wwids(&["1VENDOR_serial_7"]));
    // A dash in an identifier, the kubelet's invention for "not found".
    for name in ["scsi-3600508b4", ".", "", "a--lun-0", "-lun-0"] {
        assert_eq!(fc(name), None, "{name}");
    }
}

#[test]
fn cloud_disks_have_their_ids_back() {
    assert_eq!(aws("vol-1").as_deref(), Some("vol-1"));
    assert_eq!(aws("aws/eu-1a/vol-1").as_deref(), Some("aws://eu-1a/vol-1"));
    assert_eq!(aws("aws/vol-1").as_deref(), Some("aws:///vol-1"));
    for rest in ["", "aws", "aws/a/b/c", "other/vol-1"] {
        assert_eq!(aws(rest).filter(|id| !id.is_empty()), None, "{rest}");
    }
    assert_eq!(rbd("pool-image-disk"), Some(("pool", "disk")));
    for name in ["pool", "a-image-b-image-c", "a-image-image-b", "-image-b", "a-image-"] {
        assert_eq!(rbd(name), None, "{name}");
    }
    assert_eq!(storageos("pv.x.ns.vol"), Some(("pv.x", "ns", "vol")));
    assert_eq!(storageos("pv.vol"), None);
}

#[test]
fn sources_of_network_file_systems_are_taken_apart() {
    assert_eq!(nfs("nfs.example:/exports/a"), Some(("nfs.example", "/exports/a")));
    assert_eq!(nfs("10.0.0.1:/a:b"), Some(("10.0.0.1", "/a:b")));
    assert_eq!(nfs("[fd00::1]:/a"), Some(("fd00::1", "/a")));
    assert_eq!(nfs("host:relative"), Some(("host", "relative")));
    for source in ["", "tmpfs", ":/a", "host:", "[x]:/a", "[fd00::1]", "/dev/sda:1", "//host/share"] {
        assert_eq!(nfs(source), None, "{source}");
    }
    assert_eq!(cephfs("10.0.0.1:6789,10.0.0.2:6789:/a"), Some((vec!["10.0.0.1:6789", "10.0.0.2:6789"], "/a")));
    assert_eq!(cephfs("[fd00::1]:6789:/"), Some((vec!["[fd00::1]:6789"], "/")));
    for source in ["ceph-fuse", "admin@fsid.fs=/", "", "a,,b:/"] {
        assert_eq!(cephfs(source), None, "{source}");
    }
    assert_eq!(ceph_user("rw,name=admin,secret=<hidden>,acl"), Some("admin"));
    assert_eq!(ceph_user("rw,username=x"), None);
    assert_eq!(glusterfs("10.0.0.10:vol"), Some(("10.0.0.10", "vol")));
    assert_eq!(glusterfs("fd00::1:/vol"), Some(("fd00::1", "vol")));
    assert_eq!(glusterfs("gone"), None);
    assert_eq!(azure_file("//acc.file.core.windows.net/share"), Some("share"));
    assert_eq!(azure_file("//server/share"), None);
}

#[test]
fn persistent_volumes_are_known_by_names_that_pods_cannot_give() {
    assert!(is_of_persistent_volume("pvc-2af60e9b-dc31-421d-89d0-6bd0d07def17"));
    assert!(is_of_persistent_volume("pv.example"));
    assert!(is_of_persistent_volume(&"a".repeat(64)));
    for name in ["data", "pvc-1", "pvc-2af60e9b-dc31-421d-89d0-6bd0d07def1", "nfs-pv"] {
        assert!(!is_of_persistent_volume(name), "{name}");
    }
}

proptest! {
    /// What the kubelet makes of a spec comes back as that spec.
    #[test]
    fn iscsi_paths_round_trip(
        host in "[a-z][a-z0-9.-]{0,12}[a-z0-9]|\\[fd00::[0-9a-f]{1,4}\\]",
        port in 1u16..,
        kind in prop::sample::select(&["iqn.", "eui.", "naa."][..]),
        name in "[a-z0-9.:-]{1,20}(-lun-[0-9]{1,3})?",
        lun in 0i32..,
        interface in "[a-z0-9.]{1,8}",
    ) {
        let (portal, iqn) = (format!("{host}:{port}"), format!("{kind}{name}"));
        let found = iscsi(&format!("iface-{interface}/{portal}-{iqn}-lun-{lun}"));
        prop_assert_eq!(found, Some(Iscsi { portal, iqn, lun, interface: Some(interface) }));
    }

    #[test]
    fn fibre_channel_paths_round_trip(names in prop::collection::vec("[0-9a-f]{16,33}", 1..4), lun in 0i32..) {
        let found = fc(&format!("{}-lun-{lun}", names.join("-")));
        prop_assert_eq!(found, Some(Fc::Targets { wwns: names.clone(), lun }));
        prop_assert_eq!(fc(&names.join("-")), Some(Fc::Wwids(names)));
    }
}
