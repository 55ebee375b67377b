use proptest::prelude::*;
use refloat_record::{ClaimRef, SpecName, Verbatim};
use serde_json::{Value, json};

use super::*;
use crate::plugins::san::Wanted as _;
use crate::scsi::{Address, Disk, Lun, Map, Seen};
use crate::{Object, layout};

fn object<T: serde::de::DeserializeOwned>(value: &Value) -> Object<T> {
    Object::new(Verbatim::from_value(value)).unwrap()
}

fn spec(fc: &Value, mode: VolumeMode) -> VolumeSpec {
    VolumeSpec {
        plugin: Fc.name(),
        spec_name: SpecName::new("v").unwrap(),
        mode,
        read_only: false,
        mount_options: vec![],
        source: SpecSource::Persistent {
            volume: object(&json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } })),
            persistent_volume: Box::new(object(&json!({ "metadata": { "name": "v" }, "spec": { "fc": fc } }))),
            claim: ClaimRef { namespace: "n".into(), name: "c".into(), uid: None },
        },
        migrated: None,
    }
}

/// Names and paths are the kubelet's, and the path tells what it was made of.
#[test]
fn names_and_paths() {
    for (fc, name, folder) in [
        (json!({ "targetWWNs": ["500a0981891b8dc5"], "lun": 0 }), "[500a0981891b8dc5]:0", "500a0981891b8dc5-lun-0"),
        (
            json!({ "targetWWNs": ["500a0981891b8dc5", "500a0982891b8dc5"], "lun": 12 }),
            "[500a0981891b8dc5 500a0982891b8dc5]:12",
            "500a0981891b8dc5-500a0982891b8dc5-lun-12",
        ),
        (
            json!({ "wwids": ["3600508b400105e210000900000490000"], "lun": 5 }),
            "[3600508b400105e210000900000490000]",
            "3600508b400105e210000900000490000",
        ),
        (json!({ "wwids": ["1VENDOR serial 7"] }), "[1VENDOR_serial_7]", "1VENDOR_serial_7"),
    ] {
        for (mode, above) in [(VolumeMode::Filesystem, ""), (VolumeMode::Block, "volumeDevices/")] {
            let spec = spec(&fc, mode);
            assert_eq!(Fc.volume_name(&spec).unwrap(), name);
            let path = Fc.device_mount_path(&spec).unwrap();
            assert_eq!(path.as_str(), format!("plugins/kubernetes.io/fc/{above}{folder}"));
            let global = layout::global_path(path.as_str()).unwrap();
            assert_eq!((global.mode, Fc.device_name(global.rest).as_deref()), (mode, Some(name)));
            assert_eq!(wanted_by_path(&path), Some(checked(&spec).unwrap().1));
        }
    }
}

#[test]
fn specs_that_are_wrong_are_refused_with_the_field() {
    for (fc, field) in [
        (json!({}), "fc.targetWWNs"),
        (json!({ "lun": 0 }), "fc.targetWWNs"),
        (json!({ "targetWWNs": ["500a"] }), "fc.lun"),
        (json!({ "targetWWNs": ["500a"], "lun": -1 }), "fc.lun"),
        (json!({ "targetWWNs": ["500a"], "lun": 256 }), "fc.lun"),
        (json!({ "targetWWNs": ["500a"], "lun": 0, "wwids": ["3"] }), "fc.wwids"),
        (json!({ "targetWWNs": [""], "lun": 0 }), "fc.targetWWNs"),
        (json!({ "wwids": ["a/b"] }), "fc.wwids"),
        (json!({ "wwids": [".."] }), "fc.wwids"),
        (json!({ "wwids": ["3600"], "fsType": "ext4;rm" }), "fc.fsType"),
    ] {
        let error = Fc.check(&spec(&fc, VolumeMode::Filesystem)).unwrap_err().to_string();
        assert!(error.contains(&format!("spec.{field} ")), "{fc}: {error}");
    }
}

const A: &str = "3600508b400105e210000900000490000";

fn disk(name: &str, address: &str, port: Option<&str>, ids: &[&str]) -> Disk {
    Disk {
        name: name.into(),
        number: refloat_record::DeviceNumber { major: 8, minor: u32::from(name.as_bytes()[2]) },
        address: Address::parse(address).unwrap(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        state: Some("running".into()),
        target_port: port.map(str::to_owned),
        session: None,
        holders: vec![],
        partitions: vec![],
    }
}

fn targets(wwns: &[&str], lun: i32) -> Wanted {
    Wanted::Targets { wwns: wwns.iter().map(|wwn| (*wwn).to_owned()).collect(), lun }
}

#[test]
fn disks_are_found_by_port_and_number_or_by_id() {
    let seen = Seen {
        disks: vec![
            disk("sda", "0:0:0:0", None, &["3boot"]),
            disk("sdc", "2:0:0:1", Some("500a01"), &[A]),
            disk("sdd", "3:0:0:1", Some("500a02"), &[A, "1VENDOR_7"]),
            disk("sde", "2:0:0:2", Some("500a01"), &["3b"]),
        ],
        ..Seen::default()
    };
    let names = |wanted: &Wanted| wanted.luns(&seen).iter().map(Lun::shown).collect::<Vec<_>>();
    // One path is told, and the other is one of the same disk.
    for wwns in [&["500a01"][..], &["0x500A:02"], &["500a01", "500a02"], &["500a09", "500a02"]] {
        assert_eq!(names(&targets(wwns, 1)), ["sdc, sdd"], "{wwns:?}");
    }
    assert_eq!(names(&targets(&["500a01"], 2)), ["sde"]);
    assert_eq!(names(&targets(&["500a01"], 3)), Vec::<String>::new());
    let wwid = |wwid: &str| Wanted::Wwids(vec![wwid.into()]);
    assert_eq!(names(&wwid(A)), ["sdc, sdd"]);
    assert_eq!(names(&wwid("1VENDOR_7")), ["sdc, sdd"]);
    // Two disks: nobody can tell which is meant.
    assert_eq!(names(&Wanted::Wwids(vec![A.into(), "3b".into()])), ["sdc, sdd", "sde"]);
}

#[test]
fn a_map_without_paths_is_found_by_its_id() {
    let map = Map {
        name: "dm-0".into(),
        number: refloat_record::DeviceNumber { major: 254, minor: 0 },
        map_name: "mpatha".into(),
        uuid: format!("mpath-{A}"),
        slaves: vec![],
        holders: vec![],
    };
    let seen = Seen { maps: vec![map], ..Seen::default() };
    let luns = Wanted::Wwids(vec![A.into()]).luns(&seen);
    assert_eq!(luns.iter().map(Lun::shown).collect::<Vec<_>>(), ["dm-0 (mpatha)"]);
}

#[test]
fn the_record_tells_what_was_found() {
    let lun = Lun { disks: vec![disk("sdc", "2:0:0:1", Some("500a01"), &[A])], maps: vec![] };
    let info = Info::of(&targets(&["500a01"], 1), &Found::of(&lun));
    let text = info.verbatim().parse::<Value>().unwrap();
    let path = json!({ "name": "sdc", "number": "8:99", "address": "2:0:0:1" });
    assert_eq!(text, json!({ "targetWWNs": ["500a01"], "lun": 1, "id": A, "paths": [path] }));
    assert_eq!(info.verbatim().parse::<Info>().unwrap(), info);
    assert_eq!(Found::recorded(Some(&info.verbatim())), Found::of(&lun));
    // A record of another program.
    assert_eq!(Found::recorded(Some(&Verbatim::from_value(&json!([1])))), Found::default());
}

proptest! {
    /// Whatever is there, what is found fits, and no disk is in two of the answers.
    #[test]
    fn what_is_found_is_what_was_meant(
        disks in proptest::collection::vec((0u64..3, 0usize..3, 0usize..4), 0..6),
        lun in 0i32..3,
        wwns in proptest::collection::vec(0usize..3, 1..3),
    ) {
        let ports = ["500a01", "500a02", "500a03"];
        let ids = ["3a", "3b", "3c"];
        let all: Vec<Disk> = disks.iter().enumerate().map(|(n, (lun, port, id))| {
            let id: Vec<&str> = ids.get(*id).copied().into_iter().collect();
            disk(&format!("sd{}", char::from(b'a' + u8::try_from(n).unwrap())), &format!("0:0:{port}:{lun}"), Some(ports[*port]), &id)
        }).collect();
        let seen = Seen { disks: all, ..Seen::default() };
        let wanted = targets(&wwns.iter().map(|n| ports[*n]).collect::<Vec<_>>(), lun);
        let luns = wanted.luns(&seen);
        let mut names: Vec<&str> = luns.iter().flat_map(|lun| &lun.disks).map(|disk| disk.name.as_str()).collect();
        for lun in &luns {
            prop_assert!(lun.disks.iter().any(|disk| wanted.fits(&seen, disk)));
        }
        for disk in seen.disks.iter().filter(|disk| wanted.fits(&seen, disk)) {
            prop_assert!(names.contains(&disk.name.as_str()));
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        prop_assert_eq!(names.len(), count);
    }
}
