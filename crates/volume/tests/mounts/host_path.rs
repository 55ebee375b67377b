//! hostPath: every type.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::node::{Life, Node, code, kernels, mode, there};

refloat_test_support::tests![
    each_type_is_checked,
    what_is_missing_is_made,
    what_is_missing_is_refused,
    symlinks_of_the_host_are_followed,
    nothing_is_made_for_the_pod_and_nothing_undone,
];

fn volume(path: &Path, kind: &str) -> Value {
    json!({ "name": "h", "hostPath": { "path": path, "type": kind } })
}

fn each_type_is_checked() {
    let node = Node::new(kernels()[0].1);
    let dir = node.host_dir("dir");
    let file = dir.join("file");
    fs::write(&file, "").unwrap();
    let socket = dir.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let char_device = Path::new("/dev/null").to_path_buf();
    for (path, fitting) in [
        (&dir, &["", "Directory", "DirectoryOrCreate"][..]),
        (&file, &["", "File", "FileOrCreate"]),
        (&socket, &["", "Socket"]),
        (&char_device, &["", "CharDevice"]),
    ] {
        for kind in
            ["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"]
        {
            let mut life = Life::inline(&node, "u1", &volume(path, kind));
            let answer = life.set_up();
            if fitting.contains(&kind) {
                answer.unwrap_or_else(|error| panic!("{} as {kind:?}: {error}", path.display()));
                assert!(life.record.is_some());
            } else {
                assert_eq!(code(answer), "HostPathType", "{} as {kind:?}", path.display());
                assert!(life.record.is_none(), "it is not set up, so it has no record");
            }
        }
    }
}

fn what_is_missing_is_made() {
    let node = Node::new(kernels()[0].1);
    let base = node.host_dir("base");
    let (one, two) = (base.join("one"), base.join("one/two"));
    Life::inline(&node, "u1", &volume(&two, "DirectoryOrCreate")).set_up().unwrap();
    assert_eq!((mode(&one), mode(&two)), (0o755, 0o755));
    let file = two.join("file");
    Life::inline(&node, "u1", &volume(&file, "FileOrCreate")).set_up().unwrap();
    assert_eq!(mode(&file), 0o644);
    fs::write(&file, "data").unwrap();
    Life::inline(&node, "u1", &volume(&file, "FileOrCreate")).set_up().unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"data");
    let mut life = Life::inline(&node, "u1", &volume(&base.join("no/file"), "FileOrCreate"));
    assert_eq!(code(life.set_up()), "PathMissing", "as for the kubelet, the folder of a file must be there");
}

fn what_is_missing_is_refused() {
    let node = Node::new(kernels()[0].1);
    let missing = node.host_dir("base").join("missing");
    for kind in ["Directory", "File", "Socket", "CharDevice", "BlockDevice"] {
        let mut life = Life::inline(&node, "u1", &volume(&missing, kind));
        assert_eq!(code(life.set_up()), "HostPathMissing", "{kind}");
        assert!(life.record.is_none() && !there(&missing));
    }
    Life::inline(&node, "u1", &volume(&missing, "")).set_up().unwrap();
    assert!(!there(&missing), "without a type nothing is checked or made");
}

fn symlinks_of_the_host_are_followed() {
    let node = Node::new(kernels()[0].1);
    let link = node.host_dir("base").join("link");
    symlink(node.host_dir("dir"), &link).unwrap();
    Life::inline(&node, "u1", &volume(&link, "Directory")).set_up().unwrap();
}

fn nothing_is_made_for_the_pod_and_nothing_undone() {
    let node = Node::new(kernels()[0].1);
    let dir = node.host_dir("dir");
    fs::write(dir.join("keep"), "data").unwrap();
    let mut life = Life::inline(&node, "u1", &volume(&dir, "Directory"));
    life.set_up().unwrap();
    let record = life.record.as_ref().unwrap();
    assert_eq!((record.path.as_ref(), record.host_path.as_deref()), (None, dir.to_str()));
    assert!(!there(&node.pod_path("u1", "")));
    life.tear_down().unwrap();
    assert_eq!(fs::read(dir.join("keep")).unwrap(), b"data");
}
