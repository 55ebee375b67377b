//! Undoing stacks of mounts: case B26.

use std::fs;

use serde_json::json;

use crate::node::{Life, Node, code, kernels, mount_tmpfs};

refloat_test_support::tests![own_layers_come_off_one_by_one, another_layer_is_not_touched];

fn memory(node: &Node) -> Life<'_> {
    let mut life =
        Life::inline(node, "u1", &json!({ "name": "m", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }));
    life.set_up().unwrap();
    life
}

fn own_layers_come_off_one_by_one() {
    for (name, kernel) in kernels() {
        for known in [true, false] {
            let node = Node::new(kernel);
            let mut life = memory(&node);
            mount_tmpfs("tmpfs", &life.path());
            mount_tmpfs("tmpfs", &life.path());
            assert_eq!(node.table().stack(&life.path()).len(), 3, "{name}");
            let before = node.mounts();
            let _ = life.set_up();
            assert_eq!(node.mounts(), before, "{name}: SetUp adds no layer");
            if !known {
                life.record = None;
            }
            life.tear_down().unwrap();
            assert_eq!(node.leftovers(), Vec::<std::path::PathBuf>::new(), "{name}, record: {known}");
        }
    }
}

fn another_layer_is_not_touched() {
    for (name, kernel) in kernels() {
        // On top: nothing is taken off. In the middle: only what lies over it.
        for (sources, left) in [(["tmpfs", "other"], 3), (["other", "tmpfs"], 2)] {
            let node = Node::new(kernel);
            let life = memory(&node);
            for source in sources {
                mount_tmpfs(source, &life.path());
                fs::write(life.path().join("data"), source).unwrap();
            }
            assert_eq!(code(life.tear_down()), "OtherMount", "{name}");
            let table = node.table();
            assert_eq!(table.stack(&life.path()).len(), left, "{name}");
            assert_eq!(&*table.at(&life.path()).unwrap().source(), "other", "{name}");
            assert_eq!(fs::read(life.path().join("data")).unwrap(), b"other", "{name}");
        }
    }
}
