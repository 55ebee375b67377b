//! From manifests to what the pods want: names, claims, groups, subPaths, and what is unknown.

use std::collections::BTreeMap;
use std::fs;

use refloat_record::{FsGroupChangePolicy, PodCheckpoint, PodRef, PodSource, PodUid, Verbatim};
use refloat_volume::Plugins;

use super::{Desired, DesiredPod, Wanted, resolve};
use crate::sources::manifests::{Folder, read_folder};

const UID: &str = "11111111-2222-4333-8444-555555555555";

/// What the pods of these files want.
fn desired(files: &[(&str, &str)], checkpoints: &[PodCheckpoint]) -> (Desired, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    (resolve(&read_folder(folder.path()), checkpoints, &[], &Plugins::builtin()), folder)
}

/// A pod with these fields of its spec, in YAML flow style.
fn pod(name: &str, uid: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: n1, uid: {uid:?}}}\nspec: {{{spec}}}\n")
}

fn only(desired: &Desired) -> &DesiredPod {
    desired.pods.get(&PodUid::new(UID).unwrap()).expect("the pod is there")
}

fn checkpoint(name: &str, uid: &str, folder: &str, file: &str) -> PodCheckpoint {
    let object = serde_json::json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "n1", "uid": uid },
        "spec": { "containers": [{ "name": "c", "image": "i" }], "volumes": [{ "name": "a", "emptyDir": {} }] } });
    PodCheckpoint {
        pod: PodRef { uid: PodUid::new(uid).unwrap(), namespace: "n1".into(), name: name.into() },
        source: PodSource::Manifest { folder: folder.into(), folder_id: None, file: file.into() },
        object: Verbatim::from_value(&object),
    }
}

const CONTAINERS: &str = "containers: [{name: c, image: i}]";

fn codes(pod: &DesiredPod) -> Vec<&str> {
    pod.waiting.iter().map(|w| w.problem.code).collect()
}

#[test]
fn every_volume_of_a_pod_is_wanted_also_one_that_no_container_mounts() {
    let text = pod("p", UID, &format!("{CONTAINERS}, volumes: [{{name: a, emptyDir: {{}}}}]"));
    let (desired, _folder) = desired(&[("p.yaml", &text)], &[]);
    let volume = &only(&desired).volumes[0];
    assert_eq!(volume.unique_name.as_str(), format!("kubernetes.io/empty-dir/{UID}-a"));
    assert_eq!(volume.path.as_ref().unwrap().as_str(), format!("pods/{UID}/volumes/kubernetes.io~empty-dir/a"));
    assert!(matches!(desired.wanted_volume(&volume.key), Wanted::Yes { .. }));
}

#[test]
fn what_cannot_be_resolved_waits_and_stops_nothing_else() {
    let volumes = "volumes: [{name: a, emptyDir: {}}, {name: b, configMap: {name: none}}, {name: c, secret: {secretName: none}}, \
                   {name: d, rbd: {monitors: [m], image: i}}, {name: f, tomorrow: {}}, {name: e, persistentVolumeClaim: {claimName: none}}]";
    let text = pod("p", UID, &format!("{CONTAINERS}, {volumes}"));
    let (desired, _folder) = desired(&[("p.yaml", &text)], &[]);
    let pod = only(&desired);
    assert_eq!(pod.volumes.len(), 1);
    assert_eq!(codes(pod), ["ConfigMapMissing", "SecretMissing", "TypeNotSetUp", "UnknownVolumeType", "ClaimMissing"]);
}

/// B18: two entries that name one claim are one volume with two names.
#[test]
fn one_claim_under_two_names_is_one_volume() {
    let objects = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c1, namespace: n1}\nspec: {volumeName: pv1}\n---\n\
                   apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: pv1}\nspec: {local: {path: /data}, mountOptions: [noatime]}\n";
    let claim = "persistentVolumeClaim: {claimName: c1";
    let text = pod(
        "p",
        UID,
        &format!("{CONTAINERS}, volumes: [{{name: a, {claim}, readOnly: true}}}}, {{name: b, {claim}}}}}]"),
    );
    let (desired, _folder) = desired(&[("objects.yaml", objects), ("p.yaml", &text)], &[]);
    let pod = only(&desired);
    assert_eq!((pod.volumes.len(), codes(pod)), (1, vec![]));
    let volume = &pod.volumes[0];
    let names: Vec<_> = volume.outer_names.iter().map(refloat_record::OuterSpecName::as_str).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(volume.unique_name.as_str(), "kubernetes.io/local-volume/pv1");
    assert!(!volume.spec.read_only, "one of the two may write");
    assert_eq!(volume.spec.mount_options, ["noatime"]);
}

#[test]
fn a_claim_that_is_not_bound_waits() {
    let objects = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c1, namespace: n1}\nspec: {}\n---\n\
                   apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c2, namespace: n1}\nspec: {volumeName: none}\n";
    let volumes = "volumes: [{name: a, persistentVolumeClaim: {claimName: c1}}, {name: b, persistentVolumeClaim: {claimName: c2}}]";
    let text = pod("p", UID, &format!("{CONTAINERS}, {volumes}"));
    let (desired, _folder) = desired(&[("objects.yaml", objects), ("p.yaml", &text)], &[]);
    assert_eq!(codes(only(&desired)), ["ClaimNotBound", "PersistentVolumeMissing"]);
}

#[test]
fn groups_and_sub_paths_come_from_the_pod() {
    let containers = "containers: [{name: c, image: i, env: [{name: WHO, value: me}], volumeMounts: [\
                      {name: a, mountPath: /a}, {name: a, mountPath: /b, subPath: x/y, readOnly: true}, \
                      {name: a, mountPath: /c, subPathExpr: $(WHO)/z}]}]";
    let group = "securityContext: {fsGroup: 2000, fsGroupChangePolicy: OnRootMismatch}";
    let text = pod("p", UID, &format!("{containers}, {group}, volumes: [{{name: a, emptyDir: {{}}}}]"));
    let (desired, _folder) = desired(&[("p.yaml", &text)], &[]);
    let volume = &only(&desired).volumes[0];
    let group = volume.fs_group.unwrap();
    assert_eq!((group.gid, group.policy), (2000, FsGroupChangePolicy::OnRootMismatch));
    let seen: Vec<_> = volume.sub_paths.iter().map(|s| (s.index, s.sub_path.as_str(), s.read_only)).collect();
    assert_eq!(seen, [(1, "x/y", true), (2, "me/z", false)]);
}

#[test]
fn a_sub_path_that_leaves_its_volume_is_refused() {
    let containers = "containers: [{name: c, image: i, volumeMounts: [{name: a, mountPath: /b, subPath: ../x}]}]";
    let text = pod("p", UID, &format!("{containers}, volumes: [{{name: a, emptyDir: {{}}}}]"));
    let (desired, _folder) = desired(&[("p.yaml", &text)], &[]);
    assert_eq!(codes(only(&desired)), ["BadSubPath"]);
}

/// The folder as it is once nobody has touched it for a while.
fn settled(folder: &std::path::Path) -> Folder {
    Folder { fresh: BTreeMap::new(), fresh_list: None, ..read_folder(folder) }
}

fn wanted(folder: &Folder, checkpoints: &[PodCheckpoint]) -> Vec<&'static str> {
    let desired = resolve(folder, checkpoints, &[], &Plugins::builtin());
    let word = |c: &PodCheckpoint| match desired.wanted(&c.pod.uid) {
        Wanted::Yes { .. } => "yes",
        Wanted::No { .. } => "no",
        Wanted::Unknown { .. } => "unknown",
    };
    checkpoints.iter().map(word).collect()
}

const OTHER: &str = "99999999-2222-4333-8444-555555555555";

/// B06: a pod whose file is gone, while another file cannot be read, may have been moved there.
#[test]
fn no_pod_is_gone_while_a_file_may_hold_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let text = path.to_str().unwrap();
    let checkpoints = [checkpoint("moved-pod", UID, text, "a.yaml"), checkpoint("deleted", OTHER, text, "c.yaml")];
    let b = path.join("b.yaml");
    for content in ["", "a: [\n", "apiVersion: v1\nkind: Pod\nmetadata:\n", "\0\u{1}"] {
        fs::write(&b, content).unwrap();
        assert_eq!(wanted(&settled(path), &checkpoints), ["unknown", "unknown"], "{content:?}");
    }
    // One that says which pod it is keeps that one only.
    fs::write(&b, "apiVersion: v1\nkind: Pod\nmetadata: {name: moved-pod, namespace: n1}\nspec: []\n").unwrap();
    assert_eq!(wanted(&settled(path), &checkpoints), ["unknown", "no"]);
    fs::remove_file(&b).unwrap();
    std::os::unix::fs::symlink("nowhere", &b).unwrap();
    assert_eq!(wanted(&settled(path), &checkpoints), ["unknown", "unknown"], "a dangling link");
    fs::remove_file(&b).unwrap();
    for own in ["b.yaml", "a.yaml"].map(|name| path.join(name)) {
        fs::create_dir(&own).unwrap();
        assert_eq!(wanted(&settled(path), &checkpoints), ["unknown", "unknown"], "a folder {}", own.display());
        fs::remove_dir(&own).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &own, fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        assert_eq!(wanted(&settled(path), &checkpoints), ["unknown", "unknown"], "a FIFO {}", own.display());
        fs::remove_file(&own).unwrap();
    }
    fs::write(&b, "# no pods\n").unwrap();
    assert_eq!(wanted(&settled(path), &checkpoints), ["no", "no"]);
    // What was changed a moment ago is not believed yet.
    let fresh = read_folder(path);
    assert_eq!(wanted(&fresh, &checkpoints), ["unknown", "unknown"]);
    assert!(resolve(&fresh, &checkpoints, &[], &Plugins::builtin()).settles_in.is_some());
    assert_eq!(wanted(&Folder { fresh: BTreeMap::new(), ..fresh }, &checkpoints), ["unknown", "unknown"]);
}

/// A folder that nothing is mounted at yet, or that an empty file system covers, has no file in it either.
#[test]
fn an_empty_folder_that_is_another_says_nothing() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(one.path().join("p.yaml"), pod("p", UID, CONTAINERS)).unwrap();
    let read = resolve(&settled(one.path()), &[], &[], &Plugins::builtin());
    let source = only(&read).source.clone();
    let admitted = [PodCheckpoint { source, ..checkpoint("p", UID, "", "") }];
    let older = [checkpoint("p", UID, other.path().to_str().unwrap(), "p.yaml")];
    fs::remove_file(one.path().join("p.yaml")).unwrap();
    assert_eq!(wanted(&settled(one.path()), &admitted), ["no"], "its own folder, empty");
    assert_eq!(wanted(&settled(other.path()), &admitted), ["unknown"]);
    assert_eq!(wanted(&settled(other.path()), &older), ["no"], "an older program did not say which folder it was");
    let desired = resolve(&settled(other.path()), &admitted, &[], &Plugins::builtin());
    assert_eq!(desired.problems.iter().map(|p| p.code).collect::<Vec<_>>(), ["ManifestFolderReplaced"]);
    assert!(matches!(desired.wanted(&PodUid::new(OTHER).unwrap()), Wanted::Unknown { .. }), "one without checkpoint");
    fs::write(other.path().join("none.yaml"), "# no pods\n").unwrap();
    assert_eq!(wanted(&settled(other.path()), &admitted), ["no"], "it says so");
}

#[test]
fn a_folder_that_cannot_be_read_takes_no_pod_away() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none");
    let path = missing.to_str().unwrap();
    let desired = resolve(&read_folder(&missing), &[checkpoint("p", UID, path, "a.yaml")], &[], &Plugins::builtin());
    assert!(matches!(desired.wanted(&PodUid::new(UID).unwrap()), Wanted::Unknown { .. }));
    let unseen = PodUid::new("99999999-2222-4333-8444-555555555555").unwrap();
    assert!(matches!(desired.wanted(&unseen), Wanted::Unknown { .. }));
    assert_eq!(only(&desired).volumes.len(), 1, "as last admitted");
}
