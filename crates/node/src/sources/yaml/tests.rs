//! Manifests are read as Kubernetes reads them.

use serde_json::json;

use super::*;

fn values(text: &str) -> Vec<Value> {
    documents(text.as_bytes()).unwrap().into_iter().map(|d| d.value).collect()
}

fn error(text: &[u8]) -> YamlError {
    documents(text).unwrap_err()
}

/// `defaultMode: 0400` is 256 to Kubernetes, as a value and as a field of a type.
#[test]
fn octal_modes() {
    let text = "name: v\nconfigMap: {name: c, defaultMode: 0400, items: [{key: k, path: p, mode: 0o644}]}\n";
    let value = values(text).remove(0);
    assert_eq!(value["configMap"]["defaultMode"], json!(256));
    assert_eq!(value["configMap"]["items"][0]["mode"], json!(420));
    let volume: k8s_openapi::api::core::v1::Volume = serde_json::from_value(value).unwrap();
    assert_eq!(volume.config_map.unwrap().default_mode, Some(0o400));
    assert_eq!(
        values("a: \"0400\"\nb: 0x1F\nc: yes\nd: 0\ne: -5\nf: 1.5\n"),
        [json!({"a": "0400", "b": 31, "c": true, "d": 0, "e": -5, "f": 1.5})]
    );
}

#[test]
fn each_document_has_its_line() {
    let text = "# nothing yet\n---\nkind: A\n---\n---\n# empty\n---\n\nkind: B\n...\n---\nkind: C\n";
    let read = documents(text.as_bytes()).unwrap();
    let lines: Vec<_> = read.iter().map(|d| (d.line, d.value["kind"].as_str().unwrap())).collect();
    assert_eq!(lines, [(3, "A"), (9, "B"), (12, "C")]);
    assert_eq!(documents(b""), Ok(vec![]));
    assert_eq!(documents(b"---\n---\n"), Ok(vec![]));
}

#[test]
fn json_one_or_several() {
    let text = "\u{feff}\n{\"kind\": \"A\", \"s\": \"\\ud83d\\ude00\",\n\t\"n\": 1}\n\n{\"kind\":\"B\"}";
    let read = documents(text.as_bytes()).unwrap();
    assert_eq!((read[0].line, read[1].line), (2, 5));
    assert_eq!(read[0].value["s"], "😀");
    assert_eq!(values("{kind: A, mode: 0400}"), [json!({"kind": "A", "mode": 256})]);
    assert_eq!(values("{\"mode\": 0400}"), [json!({"mode": 256})]);
}

#[test]
fn errors_have_a_line_and_a_reason_and_no_content() {
    assert_eq!(error(b"a: 1\nb: 2\na: hunter2\n").line, 3);
    assert!(error(b"a: 1\nb: 2\na: hunter2\n").reason.contains("duplicate"), "{}", error(b"a: 1\na: 2\n"));
    let twice = error(b"{\"a\": \"hunter2\",\n \"a\": 2}");
    assert_eq!(twice.line, 2);
    let tab = error(b"a:\n  b: 1\n\tc: hunter2\n");
    assert!((2..=3).contains(&tab.line), "{tab}");
    let open = error(b"kind: Pod\nspec: [1, 2\n");
    assert!((2..=3).contains(&open.line), "{open}");
    let bytes = error(b"a: 1\nb: \xff\n");
    assert_eq!(bytes.to_string(), "line 2: it is not UTF-8 text");
    let second = error(b"kind: A\n---\nkind: B\n---\n[\n");
    assert!(second.line >= 5, "{second}");
    for e in [twice, tab, open, second] {
        assert!(!e.reason.is_empty() && !e.reason.contains("hunter2") && !e.reason.contains('\n'), "{e}");
    }
}

#[test]
fn bombs_are_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let list = vec![format!("*a{}", i - 1); 10].join(", ");
        bomb = bomb + "a" + &format!("{i}: &a{i} [{list}]\n");
    }
    let started = std::time::Instant::now();
    assert!(documents(bomb.as_bytes()).is_err());
    for deep in ["[".repeat(100_000), "{\"a\":".repeat(100_000), "- ".repeat(100_000), "a:\n ".repeat(1000)] {
        assert!(documents(deep.as_bytes()).is_err());
    }
    assert!(documents(&vec![b'#'; MAX_BYTES + 1]).is_err());
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    // Aliases as people use them are fine.
    assert_eq!(values("a: &x {k: v}\nb: *x\n"), [json!({"a": {"k": "v"}, "b": {"k": "v"}})]);
}

#[test]
fn megabytes_are_fine() {
    let one = format!("kind: ConfigMap\ndata:\n  k: {}\n---\n", "x".repeat(1 << 20));
    assert_eq!(values(&one.repeat(4)).len(), 4);
    let block = format!("data:\n  k: |\n{}", "    line\n".repeat(300_000));
    assert_eq!(values(&block)[0]["data"]["k"].as_str().unwrap().len(), 5 * 300_000);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(128))]

    #[test]
    fn never_panics(bytes: Vec<u8>, text in "[-:{}\\[\\],&*!|>'\"%#a0 \n\t.]{0,60}") {
        let _ = documents(&bytes);
        let _ = documents(text.as_bytes());
    }
}
