//! Looks for secrets in what other programs say.

use k8s_openapi::ByteString;
use refloat_csi::{Secrets, StringMap};
use serde_json::Value;

use crate::{Capabilities, DriverInputs, Payload, Presence};

/// Whether one of these secrets is a part of any text in this value, or of the value as it is written.
pub(crate) fn has_secret(value: &Value, secrets: &Secrets) -> bool {
    if secrets.is_empty() {
        return false;
    }
    match value {
        Value::String(text) => secrets.are_in(text),
        Value::Array(list) => list.iter().any(|value| has_secret(value, secrets)),
        Value::Object(map) => map.iter().any(|(key, value)| secrets.are_in(key) || has_secret(value, secrets)),
        Value::Null | Value::Bool(_) => false,
        Value::Number(number) => secrets.are_in(&number.to_string()),
    }
}

/// These secrets, and what those of them that are base64 stand for.
pub(crate) fn with_decoded(secrets: &Secrets) -> Secrets {
    let mut all = StringMap::new();
    add(&mut all, secrets);
    Secrets::new(all)
}

fn add(all: &mut StringMap, secrets: &Secrets) {
    for (key, coded) in secrets.expose() {
        let plain = serde_json::from_value::<ByteString>(coded.as_str().into()).ok();
        if let Some(plain) = plain.and_then(|plain| String::from_utf8(plain.0).ok()) {
            all.insert(format!("{} {key} decoded", all.len()), plain);
        }
        all.insert(format!("{} {key}", all.len()), coded.clone());
    }
}

/// The secrets of a volume whose plugin can do this: what its driver is told, and what it has in its files. `None` where they
/// were not looked up, so that nobody can tell whether a text holds one.
pub fn secrets_of(
    capabilities: Capabilities,
    inputs: Option<&DriverInputs>,
    content: Option<&Payload>,
) -> Option<Secrets> {
    let mut all = StringMap::new();
    match inputs {
        Some(inputs) => inputs.all_secrets().into_iter().for_each(|secrets| add(&mut all, secrets)),
        None if capabilities.presence == Presence::Driver => return None,
        None => {}
    }
    if capabilities.content {
        // Which file is from a secret and which is not is no more known here: none of it is kept.
        let texts =
            content?.files.iter().filter_map(|(path, file)| Some((path, std::str::from_utf8(&file.data).ok()?)));
        all.extend(texts.map(|(path, text)| (path.clone(), text.to_owned())));
    }
    Some(Secrets::new(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_secret_is_found_wherever_it_stands() {
        let secrets = with_decoded(&Secrets::new([("k".into(), "aHVudGVyMg==".into())].into()));
        for value in
            [json!("xhunter2x"), json!({"a": [{"b": "aHVudGVyMg=="}]}), json!({"hunter2": 1}), json!([[["hunter2"]]])]
        {
            assert!(has_secret(&value, &secrets), "{value}");
        }
        for value in [json!(null), json!(true), json!({"a": "hunter"}), json!(2)] {
            assert!(!has_secret(&value, &secrets), "{value}");
        }
        assert!(has_secret(&json!(12345), &Secrets::new([("pin".into(), "234".into())].into())));
    }
}
