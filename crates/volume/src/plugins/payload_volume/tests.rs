use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use refloat_mount::MountTable;
use refloat_record::{PodUid, Verbatim, VolumeMode};
use serde_json::{Value, json};

use super::*;
use crate::{NodeFacts, Object, Objects, Plugin, Plugins, Quantity, SpecSource};

/// A namespace with objects.
#[derive(Default)]
struct Cluster {
    config_maps: BTreeMap<String, Value>,
    secrets: BTreeMap<String, Value>,
    unreadable: Option<&'static str>,
    facts: NodeFacts,
}

fn look<T: serde::de::DeserializeOwned>(
    cluster: &Cluster,
    map: &BTreeMap<String, Value>,
    namespace: &str,
    name: &str,
) -> Lookup<Arc<T>> {
    assert_eq!(namespace, "shop", "objects are looked up in the pod's namespace");
    match (map.get(name), cluster.unreadable) {
        (Some(value), _) => Lookup::Found(Arc::new(serde_json::from_value(value.clone()).unwrap())),
        (None, Some(why)) => Lookup::Unknown(why.into()),
        (None, None) => Lookup::Absent,
    }
}

impl Objects for Cluster {
    fn config_map(&self, namespace: &str, name: &str) -> Lookup<Arc<ConfigMap>> {
        look(self, &self.config_maps, namespace, name)
    }
    fn secret(&self, namespace: &str, name: &str) -> Lookup<Arc<Secret>> {
        look(self, &self.secrets, namespace, name)
    }
    fn claim(&self, _: &str, _: &str) -> Lookup<Arc<Object<PersistentVolumeClaim>>> {
        unreachable!("content never needs a claim")
    }
    fn persistent_volume(&self, _: &str) -> Lookup<Arc<Object<PersistentVolume>>> {
        unreachable!("content never needs a volume")
    }
    fn csi_driver(&self, _: &str) -> Lookup<Arc<k8s_openapi::api::storage::v1::CSIDriver>> {
        unreachable!("content never needs a driver")
    }
    fn endpoints(&self, _: &str, _: &str) -> Lookup<Arc<k8s_openapi::api::core::v1::Endpoints>> {
        unreachable!("content never needs endpoints")
    }
    fn volume_attachment(&self, _: &str, _: &str) -> Lookup<Arc<k8s_openapi::api::storage::v1::VolumeAttachment>> {
        unreachable!("content never needs an attachment")
    }
    fn node_facts(&self) -> NodeFacts {
        self.facts.clone()
    }
}

fn cluster() -> Cluster {
    Cluster {
        config_maps: BTreeMap::from([(
            "conf".into(),
            json!({"data": {"a": "one", "b.txt": "two"}, "binaryData": {"bin": "AAH/"}}),
        )]),
        secrets: BTreeMap::from([("cred".into(), json!({"data": {"user": "YWRtaW4=", "password": "aHVudGVyMg=="}}))]),
        unreadable: None,
        facts: NodeFacts {
            allocatable: BTreeMap::from([("cpu".into(), Quantity::new(4)), ("memory".into(), Quantity::new(8 << 30))]),
        },
    }
}

fn pod_ref() -> PodRef {
    PodRef { uid: PodUid::new("u-1").unwrap(), namespace: "shop".into(), name: "web".into() }
}

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "labels": {"tier": "front", "app": "a\"b\n"}, "annotations": {"x.io/k": "v"}},
        "spec": {
            "nodeName": "n1",
            "containers": [
                {"name": "c", "resources": {"limits": {"cpu": "1500m", "memory": "64Mi", "hugepages-2Mi": "4Mi"},
                                            "requests": {"cpu": "250m"}}},
                {"name": "bare"}
            ],
            "initContainers": [{"name": "init", "resources": {"requests": {"memory": "1Ki"}}}]
        },
        "status": {"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}]}
    }))
    .unwrap()
}

fn spec(volume: &Value) -> VolumeSpec {
    let mut volume = volume.clone();
    volume.as_object_mut().unwrap().entry("name").or_insert(json!("v"));
    let source = SpecSource::Inline { volume: Object::new(Verbatim::from_value(&volume)).unwrap() };
    let plugins = Plugins::builtin();
    let plugin = plugins.by_source(&source).unwrap().name();
    let spec_name = refloat_record::SpecName::new(volume["name"].as_str().unwrap()).unwrap();
    VolumeSpec {
        plugin,
        spec_name,
        mode: VolumeMode::Filesystem,
        read_only: false,
        mount_options: vec![],
        source,
        migrated: None,
    }
}

fn content_of(cluster: &Cluster, volume: &Value) -> Result<BTreeMap<String, (String, u32)>, &'static str> {
    let (spec, plugins) = (spec(volume), Plugins::builtin());
    let plugin = plugins.by_name(&spec.plugin).unwrap();
    match plugin.content(&spec, &pod(), &pod_ref(), cluster) {
        Ok(payload) => {
            let files = payload.unwrap().files.into_iter();
            Ok(files.map(|(path, f)| (path, (String::from_utf8_lossy(&f.data).into_owned(), f.mode))).collect())
        }
        Err(ContentError(problem)) => {
            assert!(problem.message.contains("volume \"v\" of pod shop/web"), "{problem:?}");
            assert!(!problem.hint.is_empty());
            assert!(!problem.message.contains("hunter2"));
            let list = include_str!("../../../../../docs/problems.md");
            assert!(list.contains(&format!("| `{}` |", problem.code)), "docs/problems.md lacks {}", problem.code);
            Err(problem.code)
        }
    }
}

/// What [`content_of`] answers for these.
#[allow(clippy::unnecessary_wraps)] // compared with an answer
fn files<const N: usize>(files: [(&str, &str, u32); N]) -> Result<BTreeMap<String, (String, u32)>, &'static str> {
    Ok(files.into_iter().map(|(path, data, mode)| (path.to_owned(), (data.to_owned(), mode))).collect())
}

fn check(volume: &Value) -> Result<(), String> {
    let (spec, plugins) = (spec(volume), Plugins::builtin());
    plugins.by_name(&spec.plugin).unwrap().check(&spec).map_err(|e| e.to_string())
}

#[test]
fn config_maps() {
    let c = cluster();
    let content = |source: Value| content_of(&c, &json!({"configMap": source}));
    assert_eq!(
        content(json!({"name": "conf"})),
        files([("a", "one", 0o644), ("b.txt", "two", 0o644), ("bin", "\0\u{1}\u{fffd}", 0o644)])
    );
    let items = json!([{"key": "a", "path": "d/x", "mode": 256}, {"key": "a", "path": "./d//y"}]);
    assert_eq!(
        content(json!({"name": "conf", "defaultMode": 0o440, "items": items})),
        files([("d/x", "one", 0o400), ("d/y", "one", 0o440)])
    );
    assert_eq!(content(json!({"name": "gone"})), Err("ConfigMapMissing"));
    assert_eq!(content(json!({"name": "gone", "optional": true})), files([]));
    let items = json!([{"key": "a", "path": "a"}, {"key": "gone", "path": "b"}]);
    assert_eq!(content(json!({"name": "conf", "items": items})), Err("ConfigMapKeyMissing"));
    assert_eq!(content(json!({"name": "conf", "items": items, "optional": true})), files([("a", "one", 0o644)]));
    let items = json!([{"key": "a", "path": "x"}, {"key": "b.txt", "path": "x/y"}]);
    assert_eq!(content(json!({"name": "conf", "items": items})), Err("ContentPathConflict"));
}

#[test]
fn secrets() {
    let c = cluster();
    let content = |source: Value| content_of(&c, &json!({"secret": source}));
    assert_eq!(
        content(json!({"secretName": "cred", "defaultMode": 0o400})),
        files([("password", "hunter2", 0o400), ("user", "admin", 0o400)])
    );
    let items = json!([{"key": "password", "path": "p/w", "mode": 0o600}]);
    assert_eq!(content(json!({"secretName": "cred", "items": items})), files([("p/w", "hunter2", 0o600)]));
    assert_eq!(content(json!({"secretName": "gone"})), Err("SecretMissing"));
    assert_eq!(content(json!({"secretName": "gone", "optional": true})), files([]));
    let items = json!([{"key": "gone", "path": "b"}]);
    assert_eq!(content(json!({"secretName": "cred", "items": items})), Err("SecretKeyMissing"));
}

#[test]
fn unknown_is_never_taken_for_absent_not_even_where_optional() {
    let mut c = cluster();
    c.unreadable = Some("the folder cannot be read");
    for volume in [
        json!({"configMap": {"name": "gone", "optional": true}}),
        json!({"secret": {"secretName": "gone", "optional": true}}),
        json!({"projected": {"sources": [{"secret": {"name": "gone", "optional": true}}]}}),
    ] {
        assert_eq!(content_of(&c, &volume), Err("ContentUnknown"));
    }
}

#[test]
fn keys_that_cannot_be_file_names_are_refused() {
    let mut c = cluster();
    for key in ["../evil", "..data", "/etc/passwd", ""] {
        c.config_maps.insert("bad".into(), json!({"data": {key: "x"}}));
        assert_eq!(content_of(&c, &json!({"configMap": {"name": "bad"}})), Err("ContentPathInvalid"), "{key}");
    }
}

#[test]
fn downward_fields() {
    let c = cluster();
    let one = |field: &str| {
        let items = json!([{"path": "f", "fieldRef": {"fieldPath": field}}]);
        content_of(&c, &json!({"downwardAPI": {"items": items}})).map(|files| files["f"].0.clone())
    };
    for (field, value) in [
        ("metadata.name", "web"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "u-1"),
        ("metadata.labels", "app=\"a\\\"b\\n\"\ntier=\"front\""),
        ("metadata.annotations", "x.io/k=\"v\""),
        ("metadata.labels['tier']", "front"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['x.io/k']", "v"),
        ("spec.nodeName", "n1"),
        ("status.podIP", "10.0.0.7"),
        ("status.podIPs", "10.0.0.7,fd00::7"),
    ] {
        assert_eq!(one(field), Ok(value.to_owned()), "{field}");
    }
    assert_eq!(one("status.hostIP"), Err("DownwardFieldUnset"));
    assert_eq!(one("spec.serviceAccountName"), Err("DownwardFieldUnset"));
    assert_eq!(one("spec.containers"), Err("BadSpec"));
}

#[test]
fn downward_resources() {
    let c = cluster();
    let one = |c: &Cluster, container: &str, resource: &str, divisor: Option<&str>| {
        let mut reference = json!({"containerName": container, "resource": resource});
        if let Some(divisor) = divisor {
            reference["divisor"] = json!(divisor);
        }
        let items = json!([{"path": "f", "mode": 0o400, "resourceFieldRef": reference}]);
        content_of(c, &json!({"downwardAPI": {"items": items}})).map(|files| files["f"].0.clone())
    };
    for (container, resource, divisor, value) in [
        ("c", "limits.cpu", None, "2"),
        ("c", "limits.cpu", Some("1m"), "1500"),
        ("c", "limits.cpu", Some("0"), "2"),
        ("c", "requests.cpu", Some("1m"), "250"),
        ("c", "requests.cpu", None, "1"),
        ("c", "limits.memory", None, "67108864"),
        ("c", "limits.memory", Some("1Mi"), "64"),
        ("c", "limits.memory", Some("1M"), "68"),
        ("c", "requests.memory", Some("1Mi"), "64"),
        ("c", "limits.hugepages-2Mi", None, "4194304"),
        ("init", "requests.memory", None, "1024"),
        ("bare", "limits.cpu", None, "4"),
        ("bare", "limits.memory", Some("1Gi"), "8"),
        ("bare", "requests.cpu", None, "0"),
        ("bare", "limits.hugepages-1Gi", None, "0"),
    ] {
        assert_eq!(one(&c, container, resource, divisor), Ok(value.to_owned()), "{container} {resource} {divisor:?}");
    }
    assert_eq!(one(&c, "none", "limits.cpu", None), Err("DownwardContainerMissing"));
    assert_eq!(one(&c, "bare", "limits.ephemeral-storage", None), Err("NodeResourceUnknown"));
    assert_eq!(one(&c, "c", "limits.disk", None), Err("BadSpec"));
    assert_eq!(one(&c, "c", "limits.cpu", Some("1Q")), Err("BadSpec"));
}

#[test]
fn projected_sources() {
    let mut c = cluster();
    let content =
        |c: &Cluster, sources: Value| content_of(c, &json!({"projected": {"defaultMode": 0o440, "sources": sources}}));
    assert_eq!(
        content(
            &c,
            json!([
                {"configMap": {"name": "conf", "items": [{"key": "a", "path": "conf/a"}]}},
                {"secret": {"name": "cred", "items": [{"key": "user", "path": "cred/user", "mode": 0o400}]}},
                {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"configMap": {"name": "gone", "optional": true}},
            ])
        ),
        files([("conf/a", "one", 0o440), ("cred/user", "admin", 0o400), ("name", "web", 0o440)])
    );
    c.secrets.insert("same".into(), json!({"data": {"a": "bGF0ZXI="}}));
    assert_eq!(
        content(&c, json!([{"configMap": {"name": "conf"}}, {"secret": {"name": "same"}}])).unwrap()["a"].0,
        "later"
    );
    assert_eq!(content(&c, json!([])), files([]));
    assert_eq!(content(&c, json!([{"configMap": {"name": "gone"}}])), Err("ConfigMapMissing"));
    for source in [
        json!({"serviceAccountToken": {"path": "token"}}),
        json!({"clusterTrustBundle": {"path": "ca", "name": "x"}}),
        json!({"podCertificate": {"keyType": "RSA3072", "signerName": "x/y"}}),
    ] {
        assert_eq!(content(&c, json!([source])), Err("NeedsApiServer"), "{source}");
    }
    c.secrets.insert("deep".into(), json!({"data": {"d": "eA=="}}));
    let file_and_folder =
        json!([{"secret": {"name": "deep"}}, {"configMap": {"name": "conf", "items": [{"key": "a", "path": "d/a"}]}}]);
    assert_eq!(content(&c, file_and_folder), Err("ContentPathConflict"));
}

#[test]
fn folders_for_volumes_mounted_inside() {
    let points = |mounts: Value| {
        let spec = json!({"containers": [{"name": "c", "volumeMounts": mounts}],
            "initContainers": [{"name": "i", "volumeMounts": [{"name": "v", "mountPath": "/i"}, {"name": "x", "mountPath": "/i/j"}]}]});
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        mount_points("v", &pod).into_iter().collect::<Vec<_>>()
    };
    let at = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    assert_eq!(points(json!([])), ["j"]);
    assert_eq!(
        points(json!([
            at("v", "/etc//conf/"),
            at("x", "/etc/conf/a"),
            at("x", "/etc/conf/a/deeper"),
            at("x", "/etc/conf/a.b"),
            at("x", "/etc/conf/b/c"),
            at("x", "/etc/config"),
            at("x", "/etc"),
            at("x", "/etc/conf/../other"),
        ])),
        ["a", "a.b", "b/c", "j"]
    );
    let part = json!({"name": "v", "mountPath": "/p", "subPath": "s"});
    assert_eq!(points(json!([part, at("x", "/p/q")])), ["j"]);
}

#[test]
fn specs_that_are_refused_name_the_field() {
    let item = |path: &str| json!([{"key": "a", "path": path}]);
    for (volume, field) in [
        (json!({"configMap": {"name": ""}}), "configMap.name"),
        (json!({"configMap": {"name": "c", "defaultMode": 0o1000}}), "configMap.defaultMode"),
        (json!({"configMap": {"name": "c", "defaultMode": -1}}), "configMap.defaultMode"),
        (json!({"configMap": {"name": "c", "items": item("../x")}}), "configMap.items[0].path"),
        (json!({"configMap": {"name": "c", "items": [{"key": "", "path": "x"}]}}), "configMap.items[0].key"),
        (json!({"configMap": {"name": "c", "items": [{"key": "a", "path": "x", "mode": 512}]}}), "items[0].mode"),
        (
            json!({"configMap": {"name": "c", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x/"}]}}),
            "items[1].path",
        ),
        (json!({"secret": {}}), "secret.secretName"),
        (json!({"secret": {"secretName": "s", "items": item("/x")}}), "secret.items[0].path"),
        (json!({"downwardAPI": {"items": [{"path": "x"}]}}), "downwardAPI.items[0]"),
        (
            json!({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "spec.x"}}]}}),
            "downwardAPI.items[0].fieldRef.fieldPath",
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "x", "resourceFieldRef": {"resource": "limits.cpu"}}]}}),
            "downwardAPI.items[0].resourceFieldRef.containerName",
        ),
        (json!({"projected": {"sources": [{}]}}), "projected.sources[0]"),
        (
            json!({"projected": {"sources": [{"secret": {"name": "s"}, "configMap": {"name": "c"}}]}}),
            "projected.sources[0]",
        ),
        (
            json!({"projected": {"sources": [{"secret": {"name": "s", "items": item("x")}},
                                             {"configMap": {"name": "c", "items": item("x")}}]}}),
            "projected.sources[1]",
        ),
    ] {
        let why = check(&volume).unwrap_err();
        assert!(why.contains("volume \"v\"") && why.contains(field), "{volume}: {why}");
    }
    // The marker's name is longer than the volume's.
    let long = |length| json!({"name": "x".repeat(length), "configMap": {"name": "c"}});
    assert!(check(&long(253)).unwrap_err().contains("longer than 255 bytes"));
    assert_eq!(check(&long(247)), Ok(()));
}

#[test]
fn names_and_paths_are_the_kubelets() {
    for (volume, plugin, volume_name, folder) in [
        (json!({"configMap": {"name": "conf"}}), "kubernetes.io/configmap", "v/conf", "kubernetes.io~configmap"),
        (json!({"secret": {"secretName": "cred"}}), "kubernetes.io/secret", "cred", "kubernetes.io~secret"),
        (json!({"downwardAPI": {}}), "kubernetes.io/downward-api", "v", "kubernetes.io~downward-api"),
        (json!({"projected": {}}), "kubernetes.io/projected", "v", "kubernetes.io~projected"),
    ] {
        let (spec, plugins) = (spec(&volume), Plugins::builtin());
        let found = plugins.by_name(&spec.plugin).unwrap();
        assert_eq!(found.name().as_str(), plugin);
        assert_eq!(found.volume_name(&spec).unwrap(), volume_name);
        let path = found.path(&pod_ref(), &spec).unwrap();
        assert_eq!(path.as_str(), format!("pods/u-1/volumes/{folder}/v"));
        let unique = crate::layout::unique_name_of_pod(&pod_ref(), &found.name(), &spec.spec_name);
        assert_eq!(unique.as_str(), format!("{plugin}/u-1-v"));
    }
}

#[test]
fn without_a_record_nothing_is_invented() {
    let (table, _) = MountTable::from_mountinfo(b"");
    for (plugin, field) in [
        (&super::super::config_map::ConfigMap as &dyn Plugin, "configMap"),
        (&super::super::secret::Secret, "secret"),
        (&super::super::downward_api::DownwardApi, "downwardAPI"),
        (&super::super::projected::Projected, "projected"),
    ] {
        let path = Path::new("/r/pods/u/volumes/p/creds");
        let rebuilt = plugin
            .from_layout(FoundVolume {
                folder: "creds",
                mode: refloat_record::VolumeMode::Filesystem,
                path,
                table: &table,
                memo: &crate::LayoutMemo::default(),
                foreign: None,
            })
            .unwrap();
        assert_eq!(rebuilt.spec, RebuiltSpec::Volume(json!({"name": "creds", field: {}})));
        assert!(rebuilt.lost.iter().all(|lost| lost.starts_with(&format!("{field}."))) && !rebuilt.lost.is_empty());
    }
}
