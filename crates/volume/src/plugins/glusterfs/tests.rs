use refloat_record::{ClaimRef, PodUid, SpecName, VolumeMode};
use serde_json::{Value, json};

use super::*;
use crate::Object;

fn object<T: serde::de::DeserializeOwned>(value: &Value) -> Object<T> {
    Object::new(Verbatim::from_value(value)).unwrap()
}

fn spec(source: SpecSource) -> VolumeSpec {
    VolumeSpec {
        plugin: GlusterFs.name(),
        spec_name: SpecName::new("v").unwrap(),
        mode: VolumeMode::Filesystem,
        read_only: false,
        mount_options: vec![],
        source,
        migrated: None,
    }
}

fn inline(source: &Value) -> VolumeSpec {
    spec(SpecSource::Inline { volume: object(&json!({ "name": "v", "glusterfs": source })) })
}

fn persistent(source: &Value) -> VolumeSpec {
    spec(SpecSource::Persistent {
        volume: object(&json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } })),
        persistent_volume: Box::new(object(&json!({ "metadata": { "name": "v" }, "spec": { "glusterfs": source } }))),
        claim: ClaimRef { namespace: "of-claim".into(), name: "c".into(), uid: None },
    })
}

#[test]
fn each_ready_address_is_a_server_once() {
    let endpoints: Endpoints = serde_json::from_value(json!({ "subsets": [
        { "addresses": [{ "ip": "10.0.0.1" }, { "ip": "10.0.0.2" }], "notReadyAddresses": [{ "ip": "10.0.0.9" }], "ports": [{ "port": 1 }] },
        { "addresses": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }, { "ip": "-o" }], "ports": [{ "port": 2 }] },
        {},
    ] }))
    .unwrap();
    let addresses = ["10.0.0.1", "10.0.0.2", "fd00::1"].map(str::to_owned).to_vec();
    assert_eq!(servers(&endpoints), (addresses, Some(1)));
    assert_eq!(servers(&Endpoints::default()), (vec![], None));
}

#[test]
fn endpoints_are_in_the_namespace_of_pod_claim_or_volume() {
    let pod = PodRef { uid: PodUid::new("u").unwrap(), namespace: "of-pod".into(), name: "p".into() };
    let at = |spec: &VolumeSpec| {
        let (namespace, name) = checked(spec).unwrap().endpoints(&pod);
        format!("{namespace}/{name}")
    };
    assert_eq!(at(&inline(&json!({ "endpoints": "e", "path": "v" }))), "of-pod/e");
    assert_eq!(at(&persistent(&json!({ "endpoints": "e", "path": "v" }))), "of-claim/e");
    assert_eq!(at(&persistent(&json!({ "endpoints": "e", "path": "v", "endpointsNamespace": "own" }))), "own/e");
}

#[test]
fn what_is_wrong_is_named() {
    for (source, field) in [
        (json!({ "endpoints": "", "path": "v" }), "glusterfs.endpoints"),
        (json!({ "endpoints": "e", "path": "/" }), "glusterfs.path"),
        (json!({ "endpoints": "e", "path": "" }), "glusterfs.path"),
        (json!({ "endpoints": "e", "path": "a\nb" }), "glusterfs.path"),
    ] {
        for (spec, prefix) in [(inline(&source), ""), (persistent(&source), "spec.")] {
            match GlusterFs.check(&spec).unwrap_err() {
                SpecError::Field { field: its, .. } => assert_eq!(its, format!("{prefix}{field}")),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A record that was changed by hand has no file of another place removed.
#[test]
fn a_log_is_where_logs_are() {
    for (log, is) in [
        ("plugins/kubernetes.io/glusterfs/v/p-glusterfs.log", true),
        ("plugins/kubernetes.io/glusterfs/v/w/p-glusterfs.log", false),
        ("plugins/kubernetes.io/glusterfs/p-glusterfs.log", false),
        ("plugins/kubernetes.io/glusterfs/../p-glusterfs.log", false),
        ("plugins/kubernetes.io/glusterfs/v/data", false),
        ("pods/u/v/p-glusterfs.log", false),
    ] {
        let info = Info {
            endpoints: String::new(),
            servers: vec![],
            port: None,
            path: "v".into(),
            options: vec![],
            log_file: Some(log.into()),
        };
        assert_eq!(info.log().is_some(), is, "{log}");
        assert_eq!(info.verbatim().parse::<Info>().unwrap(), info);
    }
}

#[test]
fn a_lane_is_found_again_from_the_record() {
    let spec = inline(&json!({ "endpoints": "e", "path": "v" }));
    let recorded = |info: Value| {
        let info = Verbatim::from_value(&info);
        GlusterFs.recorded_lane(Recorded { provider_info: Some(&info), ..Recorded::default() })
    };
    assert_eq!(recorded(json!({ "endpoints": "n/e", "servers": ["h"], "path": "v" })), GlusterFs.lane(&spec));
    assert_eq!(recorded(json!({ "servers": ["h"], "path": "v" })).as_deref(), Some("glusterfs h"));
}
