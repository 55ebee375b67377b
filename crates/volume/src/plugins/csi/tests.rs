//! Names, requests and files, against what the kubelet makes of them.

use refloat_csi::{Access, AccessMode, NodeCapabilities};
use refloat_record::{ClaimRef, FsGroup, FsGroupChangePolicy, PluginName, RelPath, SpecName, Verbatim, VolumeMode};
use serde_json::{Value, json};

use super::info::Info;
use super::request::capability;
use super::source::{Source, attachment_name, ephemeral_handle, stage_path};
use super::vol_data::{ForeignFile, VolData};
use super::{Csi, found};
use crate::{Object, Plugin as _, Recorded, SpecSource, VolumeSpec};

fn spec(pv: &Value) -> VolumeSpec {
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "c" } });
    VolumeSpec {
        plugin: PluginName::new("kubernetes.io/csi").unwrap(),
        spec_name: SpecName::new("pv").unwrap(),
        mode: VolumeMode::Filesystem,
        read_only: false,
        mount_options: vec!["noatime".into()],
        source: SpecSource::Persistent {
            volume: Object::new(Verbatim::from_value(&volume)).unwrap(),
            persistent_volume: Box::new(
                Object::new(Verbatim::from_value(&json!({ "metadata": { "name": "pv" }, "spec": pv }))).unwrap(),
            ),
            claim: ClaimRef { namespace: "n".into(), name: "c".into(), uid: None },
        },
        migrated: None,
    }
}

fn with_modes(modes: &Value) -> VolumeSpec {
    spec(&json!({ "csi": { "driver": "d.x", "volumeHandle": "h", "fsType": "xfs" }, "accessModes": modes }))
}

/// `printf h | sha256sum` and the like.
#[test]
fn names_are_the_kubelets() {
    let hash = "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";
    assert_eq!(stage_path("d.x", "h").unwrap().as_str(), format!("plugins/kubernetes.io/csi/d.x/{hash}/globalmount"));
    assert_eq!(ephemeral_handle("", "h"), format!("csi-{hash}"));
    assert_eq!(ephemeral_handle("u", "v"), ephemeral_handle("uv", ""), "no separator");
    assert_eq!(attachment_name("h", "", ""), format!("csi-{hash}"));
    let spec = with_modes(&json!(["ReadWriteOnce"]));
    assert_eq!(Csi.volume_name(&spec).unwrap(), "d.x^h");
    assert_eq!(Csi.driver(&spec).as_deref(), Some("d.x"));
}

#[test]
fn access_modes_are_the_kubelets() {
    use AccessMode::{
        MultiNodeMultiWriter, MultiNodeReaderOnly, SingleNodeMultiWriter, SingleNodeSingleWriter, SingleNodeWriter,
        Unknown,
    };
    for (modes, plain, capable) in [
        (json!(null), SingleNodeWriter, SingleNodeMultiWriter),
        (json!(["ReadWriteOnce", "ReadOnlyMany"]), SingleNodeWriter, SingleNodeMultiWriter),
        (json!(["ReadWriteOncePod"]), SingleNodeWriter, SingleNodeSingleWriter),
        (json!(["ReadOnlyMany", "ReadWriteOnce"]), MultiNodeReaderOnly, MultiNodeReaderOnly),
        (json!(["ReadWriteMany"]), MultiNodeMultiWriter, MultiNodeMultiWriter),
        (json!(["Tomorrow"]), Unknown, Unknown),
    ] {
        let spec = with_modes(&modes);
        let source = Source::of(&spec).unwrap();
        for (single_node_multi_writer, wanted) in [(false, plain), (true, capable)] {
            let capabilities = NodeCapabilities { single_node_multi_writer, ..NodeCapabilities::default() };
            assert_eq!(capability(&spec, source, capabilities, None, None).mode, wanted, "{modes}");
        }
    }
}

#[test]
fn a_capability_says_how_it_is_mounted() {
    let spec = with_modes(&json!(["ReadWriteOnce"]));
    let source = Source::of(&spec).unwrap();
    let group = Some(FsGroup { gid: 7, policy: FsGroupChangePolicy::Always });
    for (mount_group, wanted) in [(false, ""), (true, "7")] {
        let capabilities = NodeCapabilities { mount_group, ..NodeCapabilities::default() };
        let access = capability(&spec, source, capabilities, group, Some("u:r:t:s0:c1,c2")).access;
        let expected = Access::Mount {
            fs_type: "xfs".into(),
            mount_flags: vec!["noatime".into(), "context=\"u:r:t:s0:c1,c2\"".into()],
            volume_mount_group: wanted.into(),
        };
        assert_eq!(access, expected);
    }
}

#[test]
fn what_names_no_volume_is_refused() {
    for (driver, handle, field) in [
        ("", "h", "spec.csi.driver"),
        ("../x", "h", "spec.csi.driver"),
        ("a/b", "h", "spec.csi.driver"),
        ("-a", "h", "spec.csi.driver"),
        ("volumeDevices", "h", "spec.csi.driver"),
        (&"x".repeat(64), "h", "spec.csi.driver"),
        ("d", "", "spec.csi.volumeHandle"),
        ("d", "a\0b", "spec.csi.volumeHandle"),
    ] {
        let spec = spec(&json!({ "csi": { "driver": driver, "volumeHandle": handle } }));
        let error = Csi.check(&spec).unwrap_err().to_string();
        assert!(error.contains(field), "{driver:?} {handle:?}: {error}");
    }
    // A handle is the driver's own: it may be a path, and hold what splits names.
    let odd = spec(&json!({ "csi": { "driver": "d", "volumeHandle": "../a^b/c" } }));
    assert!(Csi.check(&odd).is_ok());
    assert!(!Csi.device_mount_path(&odd).unwrap().as_str().contains(".."));
}

#[test]
fn the_kubelets_file_is_read_in_every_state() {
    let good = br#"{"attachmentID":"csi-1","driverName":"d","nodeName":"n","specVolID":"pv","volumeHandle":"h","volumeLifecycleMode":"Ephemeral","tomorrow":"x"}"#;
    let data = ForeignFile::parse(good);
    let data = data.good().unwrap();
    assert!(data.is_ephemeral() && data.spec_vol_id.as_deref() == Some("pv"));
    assert!(!ForeignFile::parse(br#"{"driverName":"d","volumeHandle":"h"}"#).good().unwrap().is_ephemeral());
    for cut in 0..good.len() {
        assert_eq!(ForeignFile::parse(&good[..cut]).good(), None, "cut after {cut}");
    }
    for bad in ["null", "[]", "{}", r#"{"driverName":"","volumeHandle":"h"}"#, r#"{"driverName":"d","volumeHandle":1}"#]
    {
        assert_eq!(ForeignFile::parse(bad.as_bytes()).good(), None, "{bad}");
    }
    assert_eq!(ForeignFile::parse(&[0; 64]).good(), None);
    // A driver's name becomes a folder's, and nothing of a text that may hold anything is quoted.
    let long = "d".repeat(64);
    for driver in
        ["../../../etc", "..", ".", "a/b", "/", "pv", "volumeDevices", "-d", "d.", "a b", "d\u{0}", "ä", &long]
    {
        let text = serde_json::json!({ "driverName": driver, "volumeHandle": "h" }).to_string();
        let ForeignFile::Bad { why } = ForeignFile::parse(text.as_bytes()) else { panic!("{driver:?} is a driver") };
        assert_eq!(why, "what it names as driver can be none", "{driver:?}");
    }
    for handle in ["h\u{0}", &"h".repeat(2049)] {
        let text = serde_json::json!({ "driverName": "d", "volumeHandle": handle }).to_string();
        assert_eq!(ForeignFile::parse(text.as_bytes()).good(), None, "{handle:?}");
    }
    // A handle is the driver's own.
    let odd = br#"{"driverName":"Acme_d.example-1","volumeHandle":"../../a^b/c"}"#;
    assert!(ForeignFile::parse(odd).good().is_some());
    let written = VolData { driver_name: "d".into(), volume_handle: "h".into(), ..VolData::default() };
    assert_eq!(written.text(), b"{\"driverName\":\"d\",\"volumeHandle\":\"h\"}\n");
}

#[test]
fn a_file_beside_another_stage_is_not_believed() {
    let file = |driver: &str, handle: &str| {
        ForeignFile::Good(VolData { driver_name: driver.into(), volume_handle: handle.into(), ..VolData::default() })
    };
    let own = stage_path("d", "h").unwrap();
    assert_eq!(found::device(&own, &file("d", "h")).unwrap().volume_name, "d^h");
    assert!(found::device(&own, &file("d", "other")).is_err());
    assert!(found::device(&own, &file("e", "h")).is_err());
    let old = RelPath::new("plugins/kubernetes.io/csi/pv/pvc-1/globalmount").unwrap();
    assert_eq!(found::device(&old, &file("d", "h")).unwrap().volume_name, "d^h");
    assert!(found::device(&own, &ForeignFile::parse(b"")).is_err());
}

#[test]
fn what_undoing_needs_is_in_the_record() {
    let info = Info { driver: "d".into(), volume_handle: "h".into(), ephemeral: true, attachment_id: None };
    let written = info.verbatim();
    assert_eq!(written.get(), r#"{"driver":"d","volumeHandle":"h","ephemeral":true}"#);
    let recorded = Recorded { provider_info: Some(&written), ..Recorded::default() };
    assert_eq!(Info::recorded(recorded), Some(info));
    let volume = Verbatim::from_value(&json!({ "spec": { "csi": { "driver": "e", "volumeHandle": "i" } } }));
    let recorded = Recorded { persistent_volume: Some(&volume), ..Recorded::default() };
    assert_eq!(Info::recorded(recorded).unwrap().driver, "e");
    assert_eq!(Info::recorded(Recorded::default()), None);
}
