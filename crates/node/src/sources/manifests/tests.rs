//! Reading: every kind, every way to be wrong, and nothing that panics.

use proptest::prelude::*;
use refloat_volume::{Lookup, Objects as _};

use super::*;

fn read(text: &str) -> ParsedFile {
    read_file("a.yaml", text.as_bytes()).unwrap()
}

fn identities(file: &ParsedFile) -> Vec<(&'static str, String, usize)> {
    let shown = |o: &ManifestObject| {
        let (kind, namespace, name) = o.identity();
        (kind, format!("{namespace}/{name}"), o.line)
    };
    file.objects.iter().map(shown).collect()
}

/// The one error of the text, with its line.
fn error(text: &str) -> (usize, String) {
    let file = read(text);
    assert_eq!((file.errors.len(), file.objects.len()), (1, 0), "{text}: {:?}", file.errors);
    (file.errors[0].error.line, file.errors[0].error.reason.clone())
}

fn folder_of(files: &[(&str, &str)]) -> Folder {
    let state = |name: &str, text: &str| match read_file(name, text.as_bytes()) {
        Ok(file) => FileState::Parsed(file),
        Err(e) => FileState::Broken { line: Some(e.line), reason: e.reason },
    };
    let files = files.iter().map(|(name, text)| ((*name).to_owned(), state(name, text))).collect();
    Folder { path: "/m".into(), files, ..Folder::default() }
}

#[test]
fn all_kinds_are_read_with_their_lines() {
    let file = read(
        "# a comment\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {}\n---\n\
         apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: v}\n---\n\
         {apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c, namespace: ns}}\n---\n\
         {apiVersion: v1, kind: ConfigMap, metadata: {name: m}}\n---\n---\n\
         {apiVersion: v1, kind: Secret, metadata: {name: s, namespace: ns}}\n",
    );
    assert_eq!(file.errors, []);
    let found = identities(&file);
    let names: Vec<_> = found.iter().map(|(kind, name, _)| (*kind, name.as_str())).collect();
    assert_eq!(
        names,
        [
            ("Pod", "default/p"),
            ("PersistentVolume", "/v"),
            ("PersistentVolumeClaim", "ns/c"),
            ("ConfigMap", "default/m"),
            ("Secret", "ns/s"),
        ]
    );
    let lines: Vec<usize> = found.iter().map(|(_, _, line)| *line).collect();
    assert_eq!(lines, [2, 7, 11, 13, 16]);
}

#[test]
fn lists_hold_objects_and_need_not_repeat_what_they_are() {
    let file = read(
        "kind: List\napiVersion: v1\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n\
         - {apiVersion: v1, kind: PodList, items: [{metadata: {name: b}, spec: {}}]}\n",
    );
    assert_eq!(file.errors, []);
    let names: Vec<String> = identities(&file).into_iter().map(|(_, name, _)| name).collect();
    assert_eq!(names, ["default/a", "default/b"]);
    assert!(error("{kind: PodList, apiVersion: v1}").1.contains("items is missing"));
}

#[test]
fn lists_in_lists_end_somewhere() {
    let mut text = String::from("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {}}");
    for _ in 0..6 {
        text = format!("{{apiVersion: v1, kind: List, items: [{text}]}}");
    }
    assert!(error(&text).1.contains("nested too deep"));
}

#[test]
fn string_data_is_merged_over_data_and_never_shown() {
    let file =
        read("{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {a: b2xk, b: aGlkZGVu}, stringData: {a: new}}");
    let ObjectKind::Secret(secret) = &file.objects[0].kind else { panic!("a secret") };
    let data = secret.data.as_ref().unwrap();
    assert_eq!((&*data["a"].0, &*data["b"].0), (&b"new"[..], &b"hidden"[..]));
    assert_eq!(secret.string_data, None);
    let shown = format!("{file:?}");
    assert!(!shown.contains("hidden") && !shown.contains("new") && !shown.contains("aGlkZGVu"), "{shown}");
}

#[test]
fn an_error_in_a_secret_does_not_tell_its_value() {
    for data in ["{k: 'topsecret!'}", "{k: [topsecret]}", "topsecret"] {
        let (_, reason) = error(&format!("{{apiVersion: v1, kind: Secret, metadata: {{name: s}}, data: {data}}}"));
        assert!(reason.contains("\"s\"") && !reason.contains("topsecret"), "{reason}");
    }
}

#[test]
fn other_kinds_are_ignored_and_told() {
    let file = read(
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}\n---\n{apiVersion: v1, kind: Node, metadata: {}}\n",
    );
    assert_eq!((file.objects.len(), file.errors.len(), file.ignored.len()), (0, 0, 2));
    let problems = problems(&folder_of(&[("x.yaml", "\n{apiVersion: v2, kind: Pod, metadata: {}}")]));
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].code, "ManifestKindUnused");
    assert!(problems[0].message.starts_with("/m/x.yaml, line 2: Pod of v2"), "{}", problems[0].message);
}

#[test]
fn what_is_no_object_is_an_error_with_its_line() {
    for (text, line, part) in [
        ("- a", 1, "no object"),
        ("\n\nkind: Pod", 3, "apiVersion is missing"),
        ("apiVersion: v1", 1, "kind is missing"),
        ("{apiVersion: v1, kind: Pod}", 1, "metadata is missing"),
        ("{apiVersion: v1, kind: Pod, metadata: {}}", 1, "metadata.name is missing"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: 5}}", 1, "metadata.name is no text"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: 5}}", 1, "metadata.namespace is no text"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a}}", 1, "spec is missing"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {volumes: 7}}", 1, "Pod \"a\""),
    ] {
        let (at, reason) = error(text);
        assert!(at == line && reason.contains(part), "{text}: line {at}: {reason}");
    }
}

#[test]
fn bad_names_are_refused_with_file_line_and_field() {
    let long = "x".repeat(256);
    let names = ["..", ".", "a/b", "../../etc", "\"a\\0b\"", long.as_str()];
    for name in names {
        for (text, field) in [
            (format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{}}}}"), "metadata.name"),
            (format!("{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: {name}}}}}"), "metadata.name"),
            (
                format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a, namespace: {name}}}}}"),
                "metadata.namespace",
            ),
            (format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a, uid: {name}}}, spec: {{}}}}"), "metadata.uid"),
            (
                format!(
                    "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{volumes: [{{name: {name}, emptyDir: {{}}}}]}}}}"
                ),
                "spec.volumes[0].name",
            ),
            (
                format!(
                    "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{initContainers: [{{name: {name}}}]}}}}"
                ),
                "spec.initContainers[].name",
            ),
        ] {
            let folder = folder_of(&[("bad.yaml", &format!("\n{text}"))]);
            let problems = problems(&folder);
            assert_eq!(problems.len(), 1, "{text}");
            let message = &problems[0].message;
            assert!(message.starts_with("/m/bad.yaml, line 2: ") && message.contains(field), "{message}");
            assert!(message.len() < 400, "a long name is cut: {message}");
        }
    }
    // As long as a file name may be.
    let name = "x".repeat(253);
    let file = read(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{volumes: [{{name: {name}, emptyDir: {{}}}}]}}}}"
    ));
    assert_eq!((file.objects.len(), file.errors.len()), (1, 0));
}

#[test]
fn names_stand_once_and_mounts_name_volumes() {
    for (spec, part) in [
        ("{volumes: [{name: v}, {name: v}]}", "spec.volumes[1].name: \"v\" stands twice"),
        ("{containers: [{name: c}], initContainers: [{name: c}]}", "\"c\" stands twice"),
        ("{containers: [{name: c, volumeMounts: [{name: v, mountPath: /x}]}]}", "names no volume of the pod: \"v\""),
        ("{containers: [{name: c, volumeDevices: [{name: v, devicePath: /x}]}]}", "volumeDevices: entry 0"),
    ] {
        let (_, reason) = error(&format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {spec}}}"));
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn a_uid_is_the_same_until_the_pod_is_another() {
    let uid = |text: &str, file: &str| match &read_file(file, text.as_bytes()).unwrap().objects[0].kind {
        ObjectKind::Pod(pod) => pod.pod.uid.to_string(),
        _ => panic!("a pod"),
    };
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {}}";
    let first = uid(text, "f.yaml");
    let edited = "\n{apiVersion: v1, kind: Pod, metadata: {name: a, uid: '', labels: {x: z}}, spec: {volumes: []}}";
    assert_eq!(uid(edited, "f.yaml"), first);
    assert_ne!(uid(text, "g.yaml"), first);
    assert_ne!(uid(&text.replace("name: a", "name: b"), "f.yaml"), first);
    assert_ne!(uid(&text.replace("name: a", "name: a, namespace: ns"), "f.yaml"), first);
    assert_eq!(uid(&text.replace("name: a", "name: a, uid: own"), "f.yaml"), "own");
    assert_eq!((first.len(), first.as_bytes()[14]), (36, b'8'));
}

#[test]
fn what_is_defined_twice_is_unknown() {
    let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: m}}";
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p, uid: u1}, spec: {}}";
    let same_uid = "{apiVersion: v1, kind: Pod, metadata: {name: q, uid: u1}, spec: {}}";
    let objects = ManifestObjects::new(&folder_of(&[("a.yaml", map), ("b.yaml", map)]));
    let Lookup::Unknown(why) = objects.config_map("default", "m") else { panic!("unknown") };
    assert!(why.contains("/m/a.yaml (line 1)") && why.contains("/m/b.yaml (line 1)"), "{why}");
    assert!(matches!(objects.config_map("default", "other"), Lookup::Absent));
    assert!(matches!(objects.config_map("other", "m"), Lookup::Absent));
    for other in [pod, same_uid] {
        let objects = ManifestObjects::new(&folder_of(&[("a.yaml", pod), ("b.yaml", other)]));
        assert_eq!((objects.pods().len(), objects.twice_pods().len(), objects.problems().len()), (0, 2, 1));
        assert_eq!(objects.problems()[0].code, "DefinedTwice");
    }
}

#[test]
fn a_broken_file_makes_what_is_not_found_unknown() {
    let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: m}}";
    let folder = folder_of(&[("a.yaml", map), ("b.yaml", "a: 1\nb: [\n")]);
    let objects = ManifestObjects::new(&folder);
    assert!(matches!(objects.config_map("default", "m"), Lookup::Found(_)));
    let Lookup::Unknown(why) = objects.secret("default", "s") else { panic!("unknown") };
    assert!(why.contains("/m/b.yaml"), "{why}");
    let problems = problems(&folder);
    assert_eq!(problems[0].code, "ManifestBroken");
    assert!(problems[0].message.starts_with("/m/b.yaml, line "), "{}", problems[0].message);
}

#[test]
fn a_folder_is_read_or_told_to_be_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for name in ["a.yaml", "b.yml", "c.json", ".hidden.yaml", "d.txt", "e.yaml~"] {
        std::fs::write(path.join(name), "{apiVersion: v1, kind: ConfigMap, metadata: {name: m}}").unwrap();
    }
    std::fs::create_dir(path.join("dir.yaml")).unwrap();
    std::os::unix::fs::symlink("a.yaml", path.join("link.yaml")).unwrap();
    std::os::unix::fs::symlink("nowhere", path.join("dangling.yaml")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path.join("fifo.yaml"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let read = read_folder(path);
    assert_eq!(read.unreadable, None);
    let names: Vec<&str> = read.files.keys().map(String::as_str).collect();
    assert_eq!(names, ["a.yaml", "b.yml", "c.json", "dangling.yaml", "dir.yaml", "fifo.yaml", "link.yaml"]);
    for (name, told) in [("dangling", "cannot read it"), ("dir", "it is a folder"), ("fifo", "it is no regular file")] {
        let state = &read.files[&format!("{name}.yaml")];
        assert!(matches!(state, FileState::Broken { line: None, reason } if reason.contains(told)), "{state:?}");
    }
    for missing in [path.join("missing"), path.join("a.yaml")] {
        let read = read_folder(&missing);
        assert!(read.unreadable.as_ref().is_some_and(|why| why.contains(&read.path)), "{read:?}");
        assert_eq!(problems(&read)[0].code, "ManifestFolderUnreadable");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "([a-z]{1,4}|: |\n|  |- |---\n|[{}\\[\\],&*!|>'\"#~0-9.]|\\PC){0,60}") {
        crate::fuzz::manifest(text.as_bytes());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        crate::fuzz::manifest(&bytes);
    }
}

/// A configMap's value and key as Kubernetes takes them: what reads as a boolean is none for text, and a key is one.
#[test]
fn booleans_of_yaml_1_1() {
    let read = |data: &str| -> Result<std::collections::BTreeMap<String, String>, String> {
        let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{{data}}}\n");
        let value = crate::sources::yaml::documents(text.as_bytes()).unwrap().remove(0).value;
        let map: Result<k8s_openapi::api::core::v1::ConfigMap, _> = serde_json::from_value(value);
        map.map(|m| m.data.unwrap_or_default()).map_err(|e| e.to_string())
    };
    for text in ["k: y", "k: No", "k: on", "k: 1", "k: 0400"] {
        assert!(read(text).is_err(), "{text}");
    }
    assert_eq!(read("k: 'y'").unwrap()["k"], "y");
    assert_eq!(read("y: a").unwrap()["true"], "a");
    assert_eq!(read("'y': a").unwrap()["y"], "a");
    let volume = "name: v\nnfs: {server: s, path: /p, readOnly: yes}\n";
    let volume = crate::sources::yaml::documents(volume.as_bytes()).unwrap().remove(0).value;
    let volume: k8s_openapi::api::core::v1::Volume = serde_json::from_value(volume).unwrap();
    assert_eq!(volume.nfs.unwrap().read_only, Some(true));
}

fn pod_ref(name: &str, uid: &str) -> PodRef {
    PodRef { uid: refloat_record::PodUid::new(uid).unwrap(), namespace: "default".into(), name: name.into() }
}

/// What is not understood may be any pod, unless it surely says that it is another.
#[test]
fn what_is_not_understood_may_be_any_pod_unless_it_says_which() {
    let bad = "kind: Pod\nmetadata:\n  name: web\n  uid: u7\napiVersion: v1\n";
    for (text, web, moved, other) in [
        ("", true, true, true),
        (" \n\n", true, true, true),
        ("a: [\n", true, true, true),
        ("apiVersion: v1\nkind: Pod\nmetadata:\n", true, true, true),
        ("apiVersion: v1\nkind: Pod\nmetadata:\n  na", true, true, true),
        ("apiVersion: v1\nkind: Po", true, true, true),
        ("kind: Pod\napiVersion: v", true, true, true),
        // It may be cut in the name.
        (bad.trim_end(), true, true, true),
        // It says which pod it is, and by its uid also the one that has another name here.
        (bad, true, true, false),
        ("# no pods\n", false, false, false),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: m}}", false, false, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.yaml"), text).unwrap();
        let read = read_folder(folder.path());
        let may_hold = |name, uid| read.may_hold(&pod_ref(name, uid)).is_some();
        assert_eq!(
            (may_hold("web", "u1"), may_hold("api", "u7"), may_hold("api", "u2")),
            (web, moved, other),
            "{text:?}"
        );
    }
}

#[test]
fn a_file_whose_name_is_no_text_is_told_and_may_hold_any_pod() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"p\xff.yaml");
    std::fs::write(folder.path().join(name), "{apiVersion: v1, kind: ConfigMap, metadata: {name: m}}").unwrap();
    let read = read_folder(folder.path());
    assert!(read.may_hold(&pod_ref("web", "u1")).is_some());
    assert_eq!(problems(&read)[0].code, "ManifestBroken");
}

/// A rename while the folder is listed hides the file under both names: the list is read until it is the same twice.
#[test]
fn a_file_that_is_renamed_meanwhile_is_never_missed() {
    let folder = tempfile::tempdir().unwrap();
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {}}\n";
    let at = |n: usize| folder.path().join(format!("{n}.yaml"));
    for n in 0..300 {
        std::fs::write(folder.path().join(format!("other-{n}.yaml")), "# nothing\n").unwrap();
    }
    std::fs::write(at(0), pod).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let renames = std::thread::scope(|scope| {
        let renamer = scope.spawn(|| {
            let mut n = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::rename(at(n), at(n + 1)).unwrap();
                n += 1;
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
            n
        });
        for _ in 0..60 {
            let read = read_folder(folder.path());
            let pods = ManifestObjects::new(&read).pods().len();
            assert!(pods == 1 || read.unreadable.is_some(), "{pods} pods");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        renamer.join().unwrap()
    });
    assert!(renames > 10, "{renames}");
}
