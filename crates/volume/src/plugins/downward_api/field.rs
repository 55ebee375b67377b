//! Fields of a pod as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::Pod;

use crate::ContentError;
use crate::plugins::payload_volume::For;

/// The fields that can be projected, beside single labels and annotations. The first five are those that Kubernetes
/// allows in volumes; the rest it allows in environment variables only.
const FIELDS: [&str; 11] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.labels",
    "metadata.annotations",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Whether the path is one that can be projected; if not, why.
pub(super) fn check(path: &str) -> Result<(), String> {
    if let Some((map, key)) = subscript(path) {
        let qualified = match map {
            "metadata.labels" => is_qualified_name(key),
            // As Kubernetes: annotations may have capitals in the prefix.
            "metadata.annotations" => is_qualified_name(&key.to_lowercase()),
            _ => return Err(format!("is {path:?}: only metadata.labels and metadata.annotations have keys")),
        };
        return if qualified { Ok(()) } else { Err(format!("is {path:?}: {key:?} is no qualified name")) };
    }
    if FIELDS.contains(&path) {
        Ok(())
    } else {
        Err(format!(
            "is {path:?}; known are {}, metadata.labels['KEY'] and metadata.annotations['KEY']",
            FIELDS.join(", ")
        ))
    }
}

/// The field's value. A label or annotation that the pod does not have is empty; a field that it does not have (yet) is
/// an error, since an empty address or name would be believed.
///
/// # Source
/// `ExtractFieldPathAsString` in `pkg/fieldpath/fieldpath.go` of Kubernetes v1.36.
pub(super) fn value(whose: For<'_>, pod: &Pod, path: &str) -> Result<String, ContentError> {
    let unsupported =
        |why| whose.error("DownwardFieldUnsupported", format_args!("the field {why}"), "Use another field.");
    check(path).map_err(unsupported)?;
    let (labels, annotations) = (pod.metadata.labels.as_ref(), pod.metadata.annotations.as_ref());
    if let Some((map, key)) = subscript(path) {
        let map = if map == "metadata.labels" { labels } else { annotations };
        return Ok(map.and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
    // Fields that may be plural in the status alone, as older kubelets left them.
    let joined = |list: Option<Vec<&str>>, single: Option<&String>| match list {
        Some(list) if !list.is_empty() => Some(list.join(",")),
        _ => single.cloned(),
    };
    let found = match path {
        "metadata.name" => Some(whose.pod.name.clone()),
        "metadata.namespace" => Some(whose.pod.namespace.clone()),
        "metadata.uid" => Some(whose.pod.uid.to_string()),
        "metadata.labels" => return Ok(labels.map(format_map).unwrap_or_default()),
        "metadata.annotations" => return Ok(annotations.map(format_map).unwrap_or_default()),
        "spec.nodeName" => spec.and_then(|s| s.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|s| s.service_account_name.clone()),
        "status.hostIP" => status.and_then(|s| s.host_ip.clone()),
        "status.podIP" => status.and_then(|s| s.pod_ip.clone()),
        "status.hostIPs" => status.and_then(|s| {
            let list = s.host_ips.as_ref().map(|ips| ips.iter().map(|ip| ip.ip.as_str()).collect());
            joined(list, s.host_ip.as_ref())
        }),
        "status.podIPs" => status.and_then(|s| {
            let list = s.pod_ips.as_ref().map(|ips| ips.iter().map(|ip| ip.ip.as_str()).collect());
            joined(list, s.pod_ip.as_ref())
        }),
        _ => return Err(unsupported(format!("is {path:?}"))),
    };
    found.filter(|value| !value.is_empty()).ok_or_else(|| {
        whose.error(
            "DownwardFieldUnset",
            format_args!("the pod has no value for {path}"),
            "Set the field in the pod, or leave it out of the volume.",
        )
    })
}

/// `metadata.labels['key']` as map and key.
///
/// # Source
/// `SplitMaybeSubscriptedPath` in `pkg/fieldpath/fieldpath.go`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['").filter(|(map, _)| !map.is_empty())
}

/// # Source
/// `IsQualifiedName` in `k8s.io/apimachinery/pkg/util/validation`.
fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let ends = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphanumeric()) && s.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let label = |s: &str| ends(s) && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    name.len() <= 63
        && ends(name)
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && prefix.is_none_or(|p| p.len() <= 253 && p.split('.').all(label))
}

/// A line `key="value"` for each entry, sorted by key, without a line end at the end.
///
/// # Source
/// `FormatMap` in `pkg/fieldpath/fieldpath.go`: Go's `%q`.
fn format_map(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> = map.iter().map(|(key, value)| format!("{key}={}", go_quote(value))).collect();
    lines.join("\n")
}

/// A text as Go's `strconv.Quote` writes it.
fn go_quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x0b' => quoted.push_str("\\v"),
            ' '..='~' => quoted.push(c),
            c if is_print(c) => quoted.push(c),
            // Writing into a String cannot fail.
            c => {
                let n = c as u32;
                let _ = match n {
                    0..0x20 | 0x7f => write!(quoted, "\\x{n:02x}"),
                    0x20..0x1_0000 => write!(quoted, "\\u{n:04x}"),
                    _ => write!(quoted, "\\U{n:08x}"),
                };
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Whether Go counts the character as printable: letters, marks, numbers, punctuation, symbols and the plain space. The
/// standard library escapes the same categories, and, at the start of a text only, marks that would join the quote.
fn is_print(c: char) -> bool {
    let text: String = ['a', c].into_iter().collect();
    text.escape_debug().nth(1) == Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_is_gos() {
        for (text, quoted) in [
            ("", r#""""#),
            ("plain ünïcode 世界 🦀", r#""plain ünïcode 世界 🦀""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("'", r#""'""#),
            ("\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
            ("\0\x01\x1b\x7f", r#""\x00\x01\x1b\x7f""#),
            ("\u{80}\u{a0}\u{ad}", r#""\u0080\u00a0\u00ad""#),
            ("\u{2028}\u{feff}\u{e000}\u{200d}", r#""\u2028\ufeff\ue000\u200d""#),
            ("\u{10ffff}\u{e0001}", r#""\U0010ffff\U000e0001""#),
            ("e\u{301}", "\"e\u{301}\""),
            ("\u{301}", "\"\u{301}\""),
        ] {
            assert_eq!(go_quote(text), quoted);
        }
    }

    #[test]
    fn maps_are_sorted_lines() {
        let map = [("b/x", "2"), ("a", "1\n2"), ("B", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(format_map(&map), "B=\"\"\na=\"1\\n2\"\nb/x=\"2\"");
        assert_eq!(format_map(&BTreeMap::new()), "");
    }

    #[test]
    fn field_paths() {
        for good in FIELDS.into_iter().chain([
            "metadata.labels['a']",
            "metadata.labels['example.com/a.b_c-D']",
            "metadata.annotations['Example.COM/x']",
        ]) {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "metadata",
            "metadata.generateName",
            "spec.containers",
            "metadata.name['a']",
            "['a']",
            "metadata.labels['']",
            "metadata.labels['a b']",
            "metadata.labels['-a']",
            "metadata.labels['a/b/c']",
            "metadata.labels['/a']",
            "metadata.labels['Example.com/x']",
            "metadata.labels[a]",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
