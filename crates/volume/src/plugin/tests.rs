use refloat_record::{ClaimRef, Verbatim};
use serde_json::{Value, json};

use crate::{Object, Plugins, SpecError, SpecSource};

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

#[test]
fn each_source_has_its_plugin() {
    let plugins = Plugins::builtin();
    for (source, name) in vec![
        (inline(&json!({ "name": "v", "emptyDir": {} })), "kubernetes.io/empty-dir"),
        (inline(&json!({ "name": "v", "hostPath": { "path": "/x" } })), "kubernetes.io/host-path"),
        (inline(&json!({ "name": "v", "configMap": { "name": "c" } })), "kubernetes.io/configmap"),
        (inline(&json!({ "name": "v", "secret": { "secretName": "s" } })), "kubernetes.io/secret"),
        (inline(&json!({ "name": "v", "downwardAPI": {} })), "kubernetes.io/downward-api"),
        (inline(&json!({ "name": "v", "projected": { "sources": [] } })), "kubernetes.io/projected"),
        (claim(&json!({ "local": { "path": "/x" } })), "kubernetes.io/local-volume"),
        (claim(&json!({ "hostPath": { "path": "/x" } })), "kubernetes.io/host-path"),
    ] {
        assert_eq!(plugins.by_source(&source).unwrap().name().as_str(), name);
    }
}

#[test]
fn an_unknown_type_is_named() {
    let plugins = Plugins::builtin();
    for (source, name) in vec![
        (inline(&json!({ "name": "v", "nfs": { "server": "s", "path": "/" } })), "nfs"),
        (inline(&json!({ "tomorrow": {}, "name": "v" })), "tomorrow"),
        (inline(&json!({ "name": "v" })), "none"),
        (inline(&json!({ "name": "v", "emptyDir": null, "later": 1 })), "later"),
        (
            claim(
                &json!({ "capacity": {}, "volumeMode": "Filesystem", "csi": { "driver": "d", "volumeHandle": "h" } }),
            ),
            "csi",
        ),
        (claim(&json!({ "accessModes": [] })), "none"),
    ] {
        match plugins.by_source(&source) {
            Err(SpecError::UnknownType { volume, type_name }) => assert_eq!((&*volume, &*type_name), ("v", name)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn two_types_are_refused() {
    let source = inline(&json!({ "name": "v", "emptyDir": {}, "hostPath": { "path": "/x" } }));
    let error = Plugins::builtin().by_source(&source).unwrap_err();
    assert!(matches!(&error, SpecError::Field { why, .. } if why.contains("more than one type")), "{error}");
}
