use refloat_record::{ClaimRef, SpecName, Verbatim, VolumeMode};
use serde_json::{Value, json};

use crate::{Object, Plugins, SpecError, SpecSource, VolumeSpec};

fn inline(volume: &Value) -> SpecSource {
    SpecSource::Inline { volume: Object::new(Verbatim::from_value(volume)).unwrap() }
}

fn claim(spec: &Value) -> SpecSource {
    let volume = json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } });
    let pv = json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv" }, "spec": spec });
    SpecSource::Persistent {
        volume: Object::new(Verbatim::from_value(&volume)).unwrap(),
        persistent_volume: Box::new(Object::new(Verbatim::from_value(&pv)).unwrap()),
        claim: ClaimRef { namespace: "default".into(), name: "c".into(), uid: None },
    }
}

type Make = fn(&Value) -> SpecSource;

#[test]
fn each_source_has_its_plugin() {
    let plugins = Plugins::builtin();
    for (make, source, name) in [
        (inline as Make, json!({ "name": "v", "emptyDir": {} }), "kubernetes.io/empty-dir"),
        (inline as Make, json!({ "name": "v", "hostPath": { "path": "/x" } }), "kubernetes.io/host-path"),
        (inline as Make, json!({ "name": "v", "configMap": { "name": "c" } }), "kubernetes.io/configmap"),
        (inline as Make, json!({ "name": "v", "secret": { "secretName": "s" } }), "kubernetes.io/secret"),
        (inline as Make, json!({ "name": "v", "downwardAPI": {} }), "kubernetes.io/downward-api"),
        (inline as Make, json!({ "name": "v", "projected": { "sources": [] } }), "kubernetes.io/projected"),
        (claim as Make, json!({ "local": { "path": "/x" } }), "kubernetes.io/local-volume"),
        (claim as Make, json!({ "hostPath": { "path": "/x" } }), "kubernetes.io/host-path"),
    ] {
        assert_eq!(plugins.by_source(&make(&source)).unwrap().name().as_str(), name);
    }
}

#[test]
fn an_unknown_type_is_named() {
    let plugins = Plugins::builtin();
    for (make, source, name) in [
        (inline as Make, json!({ "tomorrow": {}, "name": "v" }), "tomorrow"),
        (inline as Make, json!({ "name": "v" }), "none"),
        (inline as Make, json!({ "name": "v", "emptyDir": null, "later": 1 }), "later"),
        (claim as Make, json!({ "capacity": {}, "volumeMode": "Filesystem", "disk": { "id": 0 } }), "disk"),
        (claim as Make, json!({ "accessModes": [] }), "none"),
    ] {
        match plugins.by_source(&make(&source)) {
            Err(SpecError::UnknownType { volume, type_name }) => assert_eq!((&*volume, &*type_name), ("v", name)),
            other => panic!("{other:?}"),
        }
    }
}

/// Each with a word of what to use instead, if there is something.
#[test]
fn types_that_are_only_known_are_refused() {
    let plugins = Plugins::builtin();
    for (make, source, word) in [
        (inline as Make, json!({ "name": "v", "awsElasticBlockStore": { "volumeID": "v" } }), "ebs.csi.aws.com"),
        (claim as Make, json!({ "gcePersistentDisk": { "pdName": "v" } }), "pd.csi.storage.gke.io"),
        (claim as Make, json!({ "flocker": { "datasetName": "v" } }), "no CSI driver took its place"),
    ] {
        let source = make(&source);
        let plugin = plugins.by_source(&source).unwrap();
        let spec = VolumeSpec {
            plugin: plugin.name(),
            read_only: false,
            mount_options: vec![],
            spec_name: SpecName::new("v").unwrap(),
            mode: VolumeMode::Filesystem,
            source,
            migrated: None,
        };
        let error = plugin.check(&spec).unwrap_err();
        assert!(matches!(&error, SpecError::NotSetUp { why, .. } if why.contains(word)), "{error}");
    }
}

#[test]
fn two_types_are_refused() {
    let source = inline(&json!({ "name": "v", "emptyDir": {}, "hostPath": { "path": "/x" } }));
    let error = Plugins::builtin().by_source(&source).unwrap_err();
    assert!(matches!(&error, SpecError::Field { why, .. } if why.contains("more than one type")), "{error}");
}
