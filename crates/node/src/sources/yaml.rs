//! YAML and JSON as Kubernetes reads them: the one function that all manifests go through.

#[cfg(test)]
mod tests;

use serde::Deserialize as _;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The largest text that is read, in bytes. An object has at most 1.5 MiB; a file may list thousands.
pub const MAX_BYTES: usize = 64 << 20;

/// One document of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The line on which it starts, from 1.
    pub line: usize,
    /// Its content.
    pub value: serde_json::Value,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct YamlError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong. Says nothing of a value, which may be a secret's.
    pub reason: String,
}

/// The documents of a YAML or JSON text. Empty documents are left out. `0400` is octal, as Kubernetes reads it.
///
/// Refused: text that is not UTF-8, or longer than [`MAX_BYTES`]; keys that stand twice in one map; aliases that
/// blow a small text up; nesting deeper than 64.
///
/// # Source
/// Kubernetes reads manifests with `sigs.k8s.io/yaml` (YAML 1.1 numbers and booleans, in keys too: `0400`, `yes`, `y`), and a text that
/// starts with `{` as JSON first (`k8s.io/apimachinery/pkg/util/yaml`).
pub fn documents(text: &[u8]) -> Result<Vec<Document>, YamlError> {
    // Only where something is wrong: not worth a crate.
    #[allow(clippy::naive_bytecount)]
    let line_at = |offset: usize| 1 + text[..offset].iter().filter(|&&b| b == b'\n').count();
    if text.len() > MAX_BYTES {
        let reason = format!("it has {} bytes, more than the {MAX_BYTES} that are read", text.len());
        return Err(YamlError { line: 1, reason });
    }
    let text = std::str::from_utf8(text)
        .map_err(|e| YamlError { line: line_at(e.valid_up_to()), reason: "it is not UTF-8 text".into() })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{')
        && let Some(documents) = json(text)
    {
        return Ok(documents);
    }
    yaml(text)
}

/// The documents of a JSON text; none if it is not JSON all through. YAML then says what is wrong: it is nearly a
/// superset, but for the escapes of characters beyond the basic plane.
fn json(text: &str) -> Option<Vec<Document>> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Strict>();
    let mut documents = Vec::new();
    let (mut line, mut counted) = (1, 0);
    loop {
        let start = stream.byte_offset();
        let start = start + text[start..].bytes().take_while(u8::is_ascii_whitespace).count();
        line += text[counted..start].bytes().filter(|&b| b == b'\n').count();
        counted = start;
        match stream.next() {
            None => return Some(documents),
            Some(Ok(Strict(value))) => documents.push(Document { line, value }),
            Some(Err(_)) => return None,
        }
    }
}

fn yaml(text: &str) -> Result<Vec<Document>, YamlError> {
    let options = serde_saphyr::options! {
        // A snippet would show a secret's value in an error.
        with_snippet: false,
        legacy_octal_numbers: true,
        // The text's own size is limited; what these stop is a small text that stands for a huge value.
        budget: serde_saphyr::budget! {
            max_events: 16 << 20,
            max_nodes: 8 << 20,
            max_documents: 1 << 17,
            max_aliases: 10_000,
            max_total_scalar_bytes: MAX_BYTES,
            max_depth: 64,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 16,
        },
    };
    let documents = serde_saphyr::from_multiple_with_options::<serde_saphyr::Spanned<Strict>>(text, options);
    let documents = documents.map_err(|e| {
        let line = e.location().map_or(1, |at| usize::try_from(at.line()).unwrap_or(usize::MAX)).max(1);
        YamlError { line, reason: without_place(&e.without_snippet().to_string()) }
    })?;
    Ok(documents
        .into_iter()
        .map(|spanned| Document {
            line: usize::try_from(spanned.referenced.line()).unwrap_or(usize::MAX).max(1),
            value: spanned.value.0,
        })
        .collect())
}

/// The message without a place at its end or start, which is told apart.
fn without_place(message: &str) -> String {
    let message = message.split(" at line ").next().unwrap_or(message);
    let message = message.lines().next().unwrap_or(message);
    let rest = message.strip_prefix("error: ").unwrap_or(message);
    match rest.strip_prefix("line ").and_then(|r| r.split_once(": ")) {
        Some((_, reason)) => reason.to_owned(),
        None => rest.to_owned(),
    }
}

/// A key, as the text that Kubernetes makes of it: `y: a` has the key "true", and `0400: a` the key "256".
///
/// # Source
/// `convertToJSONableObject` in `sigs.k8s.io/yaml`.
struct Key(String);

impl<'de> serde::Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalar;
        impl Visitor<'_> for Scalar {
            type Value = String;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a key that is text, a number or a boolean")
            }
            fn visit_bool<E>(self, v: bool) -> Result<String, E> {
                Ok(v.to_string())
            }
            fn visit_i64<E>(self, v: i64) -> Result<String, E> {
                Ok(v.to_string())
            }
            fn visit_u64<E>(self, v: u64) -> Result<String, E> {
                Ok(v.to_string())
            }
            fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<String, E> {
                // Go writes others with an exponent, of single precision: no key that anybody means.
                if v == 0.0 || (1e-4..1e6).contains(&v.abs()) {
                    #[allow(clippy::cast_possible_truncation)] // as Kubernetes does
                    return Ok((v as f32).to_string());
                }
                Err(E::custom("a key is a number that is very small or large; put it in quotes"))
            }
            fn visit_str<E>(self, v: &str) -> Result<String, E> {
                Ok(v.into())
            }
            fn visit_string<E>(self, v: String) -> Result<String, E> {
                Ok(v)
            }
        }
        deserializer.deserialize_any(Scalar).map(Self)
    }
}

/// A value whose maps name each key once.
struct Strict(Value);

impl<'de> serde::Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_none<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
                Strict::deserialize(deserializer).map(|v| v.0)
            }
            fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
                Ok(v.into())
            }
            fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
                Ok(v.into())
            }
            fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
                Ok(v.into())
            }
            fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
                serde_json::Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
            }
            fn visit_str<E>(self, v: &str) -> Result<Value, E> {
                Ok(v.into())
            }
            fn visit_string<E>(self, v: String) -> Result<Value, E> {
                Ok(v.into())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut list = Vec::new();
                while let Some(Strict(value)) = seq.next_element()? {
                    list.push(value);
                }
                Ok(list.into())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
                let mut map = Map::new();
                while let Some(Key(key)) = entries.next_key()? {
                    if map.contains_key(&key) {
                        return Err(A::Error::custom(format_args!("the key {key:?} stands twice")));
                    }
                    let Strict(value) = entries.next_value()?;
                    map.insert(key, value);
                }
                Ok(map.into())
            }
        }
        deserializer.deserialize_any(Any).map(Self)
    }
}
