use proptest::prelude::*;
use refloat_record::{BootId, ClaimRef, SpecName, Verbatim};
use serde_json::{Value, json};

use super::info::{Login, State};
use super::*;
use crate::plugins::san::Wanted as _;
use crate::scsi::{Address, Disk, Lun, Seen, Session};
use crate::{Object, layout};

const IQN: &str = "iqn.2001-04.com.example:storage.disk1";

fn object<T: serde::de::DeserializeOwned>(value: &Value) -> Object<T> {
    Object::new(Verbatim::from_value(value)).unwrap()
}

/// A `PersistentVolume` with this source, over what one has to have.
fn spec(iscsi: &Value, mode: VolumeMode) -> VolumeSpec {
    let mut source = json!({ "targetPortal": "10.0.0.5", "iqn": IQN, "lun": 3 });
    source.as_object_mut().unwrap().extend(iscsi.as_object().unwrap().clone());
    VolumeSpec {
        plugin: Iscsi.name(),
        spec_name: SpecName::new("v").unwrap(),
        mode,
        read_only: false,
        mount_options: vec![],
        source: SpecSource::Persistent {
            volume: object(&json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } })),
            persistent_volume: Box::new(object(&json!({ "metadata": { "name": "v" }, "spec": { "iscsi": source } }))),
            claim: ClaimRef { namespace: "n".into(), name: "c".into(), uid: None },
        },
        migrated: None,
    }
}

fn portal(text: &str) -> Portal {
    Portal::parse(text).unwrap_or_else(|| panic!("{text}"))
}

fn target(portals: &[&str], lun: i32) -> Target {
    let portals = portals.iter().map(|text| portal(text)).collect();
    Target { portals, iqn: IQN.into(), lun, interface: "default".into() }
}

/// Names and paths are the kubelet's, with the port whether the spec has it or not; the path tells target, number and interface.
#[test]
fn names_and_paths() {
    for (iscsi, name, folder) in [
        (json!({}), "10.0.0.5:3260", "iface-default/10.0.0.5:3260"),
        (json!({ "targetPortal": "10.0.0.5:3260" }), "10.0.0.5:3260", "iface-default/10.0.0.5:3260"),
        (json!({ "targetPortal": "san-1.example:860" }), "san-1.example:860", "iface-default/san-1.example:860"),
        (json!({ "iscsiInterface": "eth-1" }), "10.0.0.5:3260", "iface-eth-1/10.0.0.5:3260"),
        (
            json!({ "iscsiInterface": "eth-1", "initiatorName": "iqn.2001-04.a:b" }),
            "10.0.0.5:3260",
            "iface-10.0.0.5:3260:v/10.0.0.5:3260",
        ),
    ] {
        for (mode, above) in [(VolumeMode::Filesystem, ""), (VolumeMode::Block, "volumeDevices/")] {
            let spec = spec(&iscsi, mode);
            assert_eq!(Iscsi.volume_name(&spec).unwrap(), format!("{name}:{IQN}:3"));
            let path = Iscsi.device_mount_path(&spec).unwrap();
            assert_eq!(path.as_str(), format!("plugins/kubernetes.io/iscsi/{above}{folder}-{IQN}-lun-3"));
            assert_eq!(layout::global_path(path.as_str()).unwrap().mode, mode);
            let wanted = Source::of(&spec).unwrap().target;
            assert_eq!(target_by_path(&path), Some(wanted), "{iscsi}");
        }
    }
}

#[test]
fn specs_that_are_wrong_are_refused_with_the_field() {
    let long = "h".repeat(60);
    for (iscsi, field) in [
        (json!({ "targetPortal": "" }), "iscsi.targetPortal"),
        (json!({ "targetPortal": "a b" }), "iscsi.targetPortal"),
        (json!({ "targetPortal": "../x" }), "iscsi.targetPortal"),
        (json!({ "targetPortal": "-p" }), "iscsi.targetPortal"),
        (json!({ "targetPortal": "h:0" }), "iscsi.targetPortal"),
        (json!({ "targetPortal": "h:65536" }), "iscsi.targetPortal"),
        (json!({ "portals": ["h/i"] }), "iscsi.portals"),
        (json!({ "iqn": "" }), "iscsi.iqn"),
        (json!({ "iqn": "disk1" }), "iscsi.iqn"),
        (json!({ "iqn": "iqn.a/../b" }), "iscsi.iqn"),
        (json!({ "iqn": "iqn.a -o delete" }), "iscsi.iqn"),
        (json!({ "lun": -1 }), "iscsi.lun"),
        (json!({ "lun": 256 }), "iscsi.lun"),
        (json!({ "iscsiInterface": "a/b" }), "iscsi.iscsiInterface"),
        (json!({ "iscsiInterface": "-o" }), "iscsi.iscsiInterface"),
        (json!({ "initiatorName": "me" }), "iscsi.initiatorName"),
        (json!({ "targetPortal": long, "initiatorName": "iqn.a" }), "iscsi.initiatorName"),
        (json!({ "chapAuthSession": true }), "iscsi.secretRef"),
        (json!({ "chapAuthDiscovery": true, "secretRef": { "name": "" } }), "iscsi.secretRef"),
        (json!({ "fsType": "ext4;rm" }), "iscsi.fsType"),
    ] {
        let error = Iscsi.check(&spec(&iscsi, VolumeMode::Filesystem)).unwrap_err().to_string();
        assert!(error.contains(&format!("spec.{field} ")), "{iscsi}: {error}");
    }
}

#[test]
fn portals_in_all_spellings() {
    for (text, host, port, shown) in [
        ("h", "h", 3260, "h:3260"),
        ("h:860", "h", 860, "h:860"),
        ("10.0.0.5:3260", "10.0.0.5", 3260, "10.0.0.5:3260"),
        ("fe80::1", "fe80::1", 3260, "[fe80::1]:3260"),
        ("[fe80::1]", "fe80::1", 3260, "[fe80::1]:3260"),
        ("[fe80::1]:860", "fe80::1", 860, "[fe80::1]:860"),
    ] {
        let parsed = portal(text);
        assert_eq!((parsed.host.as_str(), parsed.port, parsed.to_string().as_str()), (host, port, shown));
    }
    for text in ["", ":", ":3260", "h:", "h:x", "h:+1", "h:1:2", "[h]", "[::1]x", "[::1", "h i", "h\n", ".", "-h"] {
        assert_eq!(Portal::parse(text), None, "{text:?}");
    }
    // One address has many spellings; a name may stand for any until it was looked up.
    assert!(portal("[fe80::1]").is_at("fe80:0:0:0:0:0:0:1", 3260));
    assert!(!portal("10.0.0.5").is_at("10.0.0.50", 3260) && !portal("10.0.0.5").is_at("10.0.0.5", 860));
    let mut name = portal("san");
    assert!(name.is_at("10.0.0.9", 3260));
    name.addresses = Some(vec!["10.0.0.7".into()]);
    assert!(name.is_at("10.0.0.7", 3260) && name.is_at("SAN", 3260) && !name.is_at("10.0.0.9", 3260));
}

fn session(number: u32, target: &str, address: &str, interface: &str) -> Session {
    Session {
        name: format!("session{number}"),
        number,
        host: Some(number + 1),
        target_id: 0,
        target: target.into(),
        interface: Some(interface.into()),
        address: Some(address.into()),
        port: Some(3260),
        state: Some("LOGGED_IN".into()),
    }
}

fn disk(name: &str, session: u32, lun: u64, id: &str) -> Disk {
    Disk {
        name: name.into(),
        number: refloat_record::DeviceNumber { major: 8, minor: u32::from(name.as_bytes()[2]) },
        address: Address::parse(&format!("{}:0:0:{lun}", session + 1)).unwrap(),
        ids: vec![id.into()],
        state: Some("running".into()),
        target_port: None,
        session: Some(format!("session{session}")),
        holders: vec![],
        partitions: vec![],
    }
}

/// kubelet-reference: a target whose name begins with another's, an address that begins with another's, another interface.
#[test]
fn disks_are_found_behind_the_sessions_that_are_meant_alone() {
    let seen = Seen {
        sessions: vec![
            session(1, IQN, "10.0.0.5", "default"),
            session(2, IQN, "10.0.0.6", "default"),
            session(3, &format!("{IQN}0"), "10.0.0.5", "default"),
            session(4, IQN, "10.0.0.50", "default"),
            session(5, IQN, "10.0.0.5", "eth-1"),
        ],
        disks: vec![
            disk("sda", 1, 3, "3a"),
            disk("sdb", 2, 3, "3a"),
            disk("sdc", 3, 3, "3c"),
            disk("sdd", 4, 3, "3d"),
            disk("sde", 5, 3, "3e"),
            disk("sdf", 1, 33, "3f"),
        ],
        ..Seen::default()
    };
    let names = |wanted: &Target| wanted.luns(&seen).iter().map(Lun::shown).collect::<Vec<_>>();
    assert_eq!(names(&target(&["10.0.0.5"], 3)), ["sda, sdb"]);
    assert_eq!(names(&target(&["10.0.0.5", "10.0.0.6"], 3)), ["sda, sdb"]);
    assert_eq!(names(&target(&["10.0.0.50"], 3)), ["sdd"]);
    assert_eq!(names(&target(&["10.0.0.5"], 33)), ["sdf"]);
    assert_eq!(names(&target(&["10.0.0.7"], 3)), Vec::<String>::new());
    let other = Target { interface: "eth-1".into(), ..target(&["10.0.0.5"], 3) };
    assert_eq!(names(&other), ["sde"]);
    // It is whole when each session has its path.
    let lun =
        |disks: &[&str]| Lun { disks: disks.iter().map(|n| seen.disk(n).unwrap().clone()).collect(), maps: vec![] };
    assert!(target(&["10.0.0.5"], 3).is_whole(&seen, &lun(&["sda"])));
    assert!(!target(&["10.0.0.5", "10.0.0.6"], 3).is_whole(&seen, &lun(&["sda"])));
    assert!(target(&["10.0.0.5", "10.0.0.6"], 3).is_whole(&seen, &lun(&["sda", "sdb"])));
}

#[test]
fn a_session_is_ours_only_if_it_came_after_we_said_so() {
    let login = |state| Login { portal: portal("h"), state, made_node: None, made_discovery: false };
    for (state, ours) in [
        (None, false),
        (Some(State::Others(7)), false),
        (Some(State::Ours(6)), false),
        (Some(State::Ours(7)), true),
        (Some(State::LoggingIn(vec![6, 7])), false),
        (Some(State::LoggingIn(vec![6])), true),
    ] {
        assert_eq!(login(state.clone()).claims(7), ours, "{state:?}");
    }
}

/// Sessions do not outlive a boot, and their numbers are given again; what was written to the database is still there.
#[test]
fn of_another_boot_only_the_database_counts() {
    let boot = |n: u8| BootId::new(format!("00000000-0000-4000-8000-00000000000{n}")).unwrap();
    let mut access = Access::new(&boot(1));
    for (host, made) in [("10.0.0.5", Some("10.0.0.5:3260,1")), ("10.0.0.6", None)] {
        let made_node = made.map(str::to_owned);
        access.logins.push(Login {
            portal: portal(host),
            state: Some(State::Ours(7)),
            made_node,
            made_discovery: false,
        });
    }
    assert_eq!(access.clone().in_boot(&boot(1)), access);
    let later = access.in_boot(&boot(2));
    assert_eq!(later.logins.len(), 1);
    assert!(later.login(&portal("10.0.0.5")).is_some_and(|login| login.state.is_none() && !login.claims(7)));
}

proptest! {
    /// Whatever a spec says: if it is taken, its path tells the same target.
    #[test]
    fn a_path_tells_what_it_was_made_of(
        host in "[a-z0-9][a-z0-9.-]{0,12}",
        port in proptest::option::of(1u16..),
        tail in "[a-z0-9.:-]{1,20}",
        lun in 0i32..256,
        interface in "[a-z][a-z0-9._:-]{0,10}",
    ) {
        let at = port.map_or(host.clone(), |port| format!("{host}:{port}"));
        let iscsi = json!({ "targetPortal": at, "iqn": format!("iqn.{tail}"), "lun": lun, "iscsiInterface": interface });
        let spec = spec(&iscsi, VolumeMode::Filesystem);
        let Ok(source) = Source::of(&spec) else { return Ok(()) };
        let path = Iscsi.device_mount_path(&spec).unwrap();
        if let Some(told) = target_by_path(&path) {
            prop_assert_eq!(told, source.target);
        }
    }
}
