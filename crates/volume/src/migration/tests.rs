//! Translations against those that Kubernetes' own code makes (`tests/migration-golden` writes them), and what holds for any.

use k8s_openapi::api::core::v1::PersistentVolume;
use proptest::prelude::*;
use refloat_record::{PluginName, Verbatim};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{inline_name, inline_volume, persistent_volume, recorded, same_volume, translate};
use crate::{Object, Plugins, SpecError, SpecSource};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    name: String,
    volume: Option<Value>,
    persistent_volume: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Expected {
    name: String,
    persistent_volume: Option<PersistentVolume>,
}

/// As Kubernetes' types have it: absent and empty are the same.
fn normal(volume: PersistentVolume) -> Value {
    fn prune(value: &mut Value) {
        if let Value::Object(fields) = value {
            fields.values_mut().for_each(prune);
            fields.retain(|_, field| !matches!(field, Value::Null) && *field != json!({}) && *field != json!([]));
        } else if let Value::Array(list) = value {
            list.iter_mut().for_each(prune);
        }
    }
    let mut value = serde_json::to_value(volume).unwrap();
    let mode = &mut value["spec"]["volumeMode"];
    if mode.is_null() {
        *mode = "Filesystem".into();
    }
    prune(&mut value);
    value
}

fn translated(case: &Case) -> Result<Option<Value>, super::Untranslatable> {
    let result = match (&case.volume, &case.persistent_volume) {
        (Some(entry), _) => inline_volume(entry),
        (None, Some(volume)) => persistent_volume(volume),
        (None, None) => panic!("{}: nothing to translate", case.name),
    };
    Ok(result?.map(|(_, value)| value))
}

#[test]
fn translations_are_those_of_kubernetes() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../tests/golden/migration/cases.json")).unwrap();
    let expected: Vec<Expected> =
        serde_json::from_str(include_str!("../../tests/golden/migration/expected.json")).unwrap();
    assert_eq!(cases.len(), expected.len());
    let mut refused = 0;
    for (case, expected) in cases.iter().zip(expected) {
        assert_eq!(case.name, expected.name);
        match (translated(case), expected.persistent_volume) {
            (Ok(Some(ours)), Some(theirs)) => {
                let ours: PersistentVolume = serde_json::from_value(ours).unwrap();
                assert_eq!(normal(ours), normal(theirs), "{}", case.name);
            }
            (Err(_), None) => refused += 1,
            (ours, theirs) => panic!("{}: {ours:?}, and Kubernetes has {theirs:?}", case.name),
        }
    }
    assert!(refused > 5 && cases.len() > 60, "{refused} of {}", cases.len());
}

#[test]
fn what_makes_no_sense_is_told_by_its_field() {
    let volume = |source: Value| json!({ "metadata": { "name": "pv" }, "spec": source });
    for (source, field) in [
        (json!({ "gcePersistentDisk": {} }), "gcePersistentDisk.pdName"),
        (json!({ "gcePersistentDisk": { "pdName": "" } }), "gcePersistentDisk.pdName"),
        (json!({ "gcePersistentDisk": { "pdName": 7 } }), "gcePersistentDisk.pdName"),
        (json!({ "gcePersistentDisk": { "pdName": "d", "partition": 256 } }), "gcePersistentDisk.partition"),
        (json!({ "gcePersistentDisk": { "pdName": "d", "partition": -1 } }), "gcePersistentDisk.partition"),
        (json!({ "awsElasticBlockStore": { "volumeID": "aws://z/x" } }), "awsElasticBlockStore.volumeID"),
        (
            json!({ "awsElasticBlockStore": { "volumeID": "vol-1", "partition": "1" } }),
            "awsElasticBlockStore.partition",
        ),
    ] {
        assert_eq!(inline_volume(&source).unwrap_err().field, field, "{source}");
        assert_eq!(persistent_volume(&volume(source.clone())).unwrap_err().field, format!("spec.{field}"), "{source}");
    }
    for id in ["aws://z/vol-1?x", "aws://z/vol-1#x", "aws://z/vol%2d1"] {
        let source = json!({ "awsElasticBlockStore": { "volumeID": id } });
        assert!(inline_volume(&source).is_err(), "{id}");
    }
}

#[test]
fn other_volumes_are_left_alone() {
    for entry in
        [json!({ "name": "v", "emptyDir": {} }), json!({ "name": "gcePersistentDisk" }), json!([]), json!(null)]
    {
        assert_eq!(inline_volume(&entry), Ok(None), "{entry}");
        assert_eq!(persistent_volume(&entry), Ok(None), "{entry}");
        assert_eq!(persistent_volume(&json!({ "spec": entry })), Ok(None), "{entry}");
    }
    assert!(recorded(None, None).is_none());
}

fn source(entry: &Value) -> SpecSource {
    SpecSource::Inline { volume: Object::new(Verbatim::from_value(entry)).unwrap() }
}

#[test]
fn a_migrated_volume_is_the_csi_plugins() {
    let plugins = Plugins::builtin();
    let disk = source(&json!({ "name": "data", "gcePersistentDisk": { "pdName": "pd-1" } }));
    let (plugin, migrated) = plugins.resolve(&disk).unwrap();
    let migrated = migrated.unwrap();
    assert_eq!(plugin.name().as_str(), "kubernetes.io/csi");
    assert_eq!(migrated.from, PluginName::new("kubernetes.io/gce-pd").unwrap());
    assert_eq!(migrated.spec_name(), "pd.csi.storage.gke.io-pd-1");
    // The folders of kubelets that still had the plugin are its own.
    assert_eq!(plugins.by_source(&disk).unwrap().name().as_str(), "kubernetes.io/gce-pd");

    let (plugin, migrated) = plugins.resolve(&source(&json!({ "name": "data", "emptyDir": {} }))).unwrap();
    assert_eq!((plugin.name().as_str(), migrated.is_none()), ("kubernetes.io/empty-dir", true));
    let both = source(&json!({
        "name": "data", "gcePersistentDisk": { "pdName": "pd-1" }, "csi": { "driver": "d.x" }
    }));
    assert!(matches!(plugins.resolve(&both), Err(SpecError::Field { .. })));
    let wrong = source(&json!({ "name": "data", "awsElasticBlockStore": { "volumeID": "aws://" } }));
    let error = translate(&wrong).unwrap_err().to_string();
    assert!(error.contains("\"data\"") && error.contains("awsElasticBlockStore.volumeID"), "{error}");
}

#[test]
fn one_volume_has_two_names() {
    const GCE: &str = "kubernetes.io/csi/pd.csi.storage.gke.io^projects";
    let zonal = format!("{GCE}/UNSPECIFIED/zones/UNSPECIFIED/disks/pd-1");
    let here = format!("{GCE}/p/zones/europe-west1-b/disks/pd-1");
    let regional = format!("{GCE}/UNSPECIFIED/regions/europe-west1/disks/pd-1");
    let ebs = "kubernetes.io/csi/ebs.csi.aws.com^vol-1";
    let aws = "kubernetes.io/aws-ebs/aws://us-east-1a/vol-1";
    let gce = "kubernetes.io/gce-pd/pd-1";
    for (one, other, same) in [
        (gce, zonal.as_str(), true),
        (gce, here.as_str(), true),
        (gce, regional.as_str(), true),
        (zonal.as_str(), here.as_str(), false),
        (gce, gce, true),
        ("kubernetes.io/gce-pd/pd-2", zonal.as_str(), false),
        ("kubernetes.io/gce-pd/", zonal.as_str(), false),
        (aws, ebs, true),
        ("kubernetes.io/aws-ebs/aws:///vol-1", ebs, true),
        ("kubernetes.io/aws-ebs/vol-1", ebs, true),
        ("kubernetes.io/aws-ebs/vol-1", aws, true),
        ("kubernetes.io/aws-ebs/vol-2", ebs, false),
        ("kubernetes.io/csi/ebs.csi.aws.com.example^vol-1", aws, false),
        (aws, gce, false),
        ("kubernetes.io/nfs/a", "kubernetes.io/nfs/b", false),
        ("", "", true),
    ] {
        assert_eq!(same_volume(one, other), same, "{one} {other}");
        assert_eq!(same_volume(other, one), same, "{other} {one}");
    }
    for (name, plugin) in
        [(zonal.as_str(), Some("kubernetes.io/gce-pd")), (ebs, Some("kubernetes.io/aws-ebs")), (gce, None)]
    {
        assert_eq!(super::in_tree_plugin(name), plugin, "{name}");
    }
}

/// What an attachment of an inline volume tells is the name that the volume has.
#[test]
fn an_inline_volume_is_found_by_its_handle() {
    for entry in [
        json!({ "gcePersistentDisk": { "pdName": "pd-1" } }),
        json!({ "awsElasticBlockStore": { "volumeID": "aws://us-east-1a/vol-1" } }),
    ] {
        let (_, volume) = inline_volume(&entry).unwrap().unwrap();
        let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
        assert_eq!(inline_name(&volume.spec.unwrap().csi.unwrap()), volume.metadata.name, "{entry}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z_/:.-]{0,12}".prop_map(Value::from),
        Just("europe-west1-b__europe-west1-c".into()),
        Just("aws://us-east-1a/vol-1".into()),
    ];
    let key = || {
        prop_oneof![
            Just("pdName".to_owned()),
            Just("volumeID".to_owned()),
            Just("partition".to_owned()),
            Just("key".to_owned()),
            Just("values".to_owned()),
            Just("required".to_owned()),
            Just("nodeSelectorTerms".to_owned()),
            Just("matchExpressions".to_owned()),
            Just("topology.kubernetes.io/zone".to_owned()),
            "[a-z]{1,4}",
        ]
    };
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((key(), inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Something like a `PersistentVolume`, whose parts may be anything.
fn any_volume() -> impl Strategy<Value = Value> {
    let source = prop_oneof![Just("gcePersistentDisk"), Just("awsElasticBlockStore"), Just("nfs")];
    let good = prop_oneof![
        Just(json!({ "pdName": "pd-1", "volumeID": "vol-1", "tomorrow": [1] })),
        Just(json!({ "pdName": "pd-1", "volumeID": "aws://z/vol-1", "partition": 2 })),
        any_json(),
    ];
    (source, good, any_json(), any_json(), any_json()).prop_map(|(name, source, labels, affinity, more)| {
        json!({
            "apiVersion": "v1",
            "metadata": { "name": "pv", "labels": labels, "tomorrow": more },
            "spec": { name: source, "nodeAffinity": affinity, "accessModes": more, "tomorrow": more },
            "tomorrow": more,
        })
    })
}

proptest! {
    #[test]
    fn any_volume_is_translated_or_refused(volume in any_volume()) {
        let first = persistent_volume(&volume);
        prop_assert_eq!(&first, &persistent_volume(&volume), "the same every time");
        if let Ok(Some((_, translated))) = first {
            for path in ["/apiVersion", "/metadata", "/spec/tomorrow", "/tomorrow"] {
                prop_assert_eq!(translated.pointer(path), volume.pointer(path), "unknown fields are kept");
            }
            prop_assert!(translated["spec"]["csi"]["driver"].is_string());
            prop_assert!(translated["spec"].get("gcePersistentDisk").is_none());
            prop_assert_eq!(persistent_volume(&translated), Ok(None), "what is translated is not translated again");
        }
        let _ = inline_volume(&volume["spec"]);
        let raw = Verbatim::from_value(&volume);
        let _ = (recorded(Some(&raw), None), recorded(None, Some(&raw)));
    }

    #[test]
    fn any_names_may_be_compared(one in "(kubernetes.io/)?(csi|gce-pd|aws-ebs)?/.{0,20}", other in ".{0,20}") {
        prop_assert!(same_volume(&one, &one));
        prop_assert_eq!(same_volume(&one, &other), same_volume(&other, &one));
    }
}
