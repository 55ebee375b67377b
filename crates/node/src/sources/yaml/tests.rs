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

/// What is read otherwise than by Kubernetes, and how (`None` is an error): numbers and booleans in forms that nobody writes,
/// and what is refused here because it is surely a mistake (keys that stand twice, numbers without end).
const OTHERWISE: &[(&str, Option<&str>)] = &[
    ("yEs", Some("true")),
    ("tRUE", Some("true")),
    ("0O400", Some("\"0O400\"")),
    ("0X1F", Some("\"0X1F\"")),
    ("0B101", Some("\"0B101\"")),
    ("1_", Some("\"1_\"")),
    ("1_000.5", Some("\"1_000.5\"")),
    ("a: 1__0", Some("{\"a\": \"1__0\"}")),
    ("a: 0__", Some("{\"a\": \"0__\"}")),
    ("1e400", None),
    ("a: !!timestamp 2001-12-14", None),
    ("y: 1\\nn: 2\\nNo: 3", None),
    ("1: a\\n01: b", None),
    ("y: 1\\n\"true\": 2", None),
    ("9223372036854775808: a", Some("{\"9223372036854775808\": \"a\"}")),
];

/// What `sigs.k8s.io/yaml` v1.6.0 makes of these texts: `YAMLToJSON`, as the kubelet reads manifests. `!` is an error.
#[test]
fn values_are_those_of_kubernetes() {
    let mut wrong = vec![];
    let mut other = OTHERWISE.len();
    for line in include_str!("golden.tsv").lines() {
        let (text, json) = line.rsplit_once('\t').unwrap();
        let read = documents(text.replace("\\n", "\n").as_bytes());
        let expected = serde_json::from_str::<Value>(json);
        if let Some((_, json)) = OTHERWISE.iter().find(|(otherwise, _)| *otherwise == text) {
            let read: Option<Vec<_>> = read.ok().map(|read| read.into_iter().map(|d| d.value).collect());
            assert_eq!(read, json.map(|json| vec![serde_json::from_str(json).unwrap()]), "{text:?}");
            other -= 1;
            continue;
        }
        let same = match (&read, &expected) {
            (Ok(read), Ok(Value::Null)) => read.is_empty() || read[0].value.is_null(),
            (Ok(read), Ok(expected)) => read.len() == 1 && same(&read[0].value, expected),
            (Err(_), Err(_)) => json == "!",
            _ => false,
        };
        if !same {
            wrong.push(format!("{text:?}: {json}, not {read:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(other, 0, "each exception is in the table");
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

/// Equal but for how a number is written.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}
