//! Compares one thing that a reader of a tree found with the truth that the tree was made from.

use std::collections::BTreeMap;

use serde_json::Value;

/// What became of a spec's fields.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    /// In the truth, and not found.
    pub(super) lost: Vec<String>,
    /// Found with another value.
    pub(super) wrong: Vec<String>,
    /// Found, and not in the truth.
    pub(super) invented: Vec<String>,
}

impl Fields {
    /// Compares two specs, each `{"volume": …}` or `{"persistentVolume": …}`.
    pub(super) fn compare(want: &Value, have: &Value) -> Self {
        let (want, have) = (flat(want), flat(have));
        let mut fields = Self::default();
        for (path, value) in &want {
            match have.get(path) {
                Some(found) if found == value => {}
                Some(found) => fields.wrong.push(format!("{} = {found}, not {value}", short(path))),
                // An empty object says that the field is there; more inside it says so too.
                None if value == "{}" && inside(path, &have) => {}
                None => fields.lost.push(short(path).to_owned()),
            }
        }
        for (path, value) in &have {
            let known = want.contains_key(path) || value == "{}" && inside(path, &want);
            if !known {
                fields.invented.push(format!("{} = {value}", short(path)));
            }
        }
        fields
    }

    /// Compares where nobody could tell whether the volume is the pod's own or a `PersistentVolume`'s, and that was said:
    /// the fields of the source count where they stand in the true form, the rest of that form is lost.
    pub(super) fn compare_source(want: &Value, have: &Value) -> Self {
        match (want.get("persistentVolume"), have.get("volume").and_then(Value::as_object)) {
            (Some(volume), Some(told)) => {
                let mut spec = told.clone();
                let name = spec.remove("name").unwrap_or_default();
                let told = serde_json::json!({ "persistentVolume": { "metadata": { "name": name }, "spec": spec } });
                Self::compare(&serde_json::json!({ "persistentVolume": volume }), &told)
            }
            _ => Self::compare(want, have),
        }
    }

    /// Splits what was lost in what a reader said to be lost and what it did not.
    pub(super) fn split_lost(&self, said: &[String]) -> (Vec<String>, Vec<String>) {
        let told = |field: &String| {
            said.iter().any(|name| {
                field.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            })
        };
        self.lost.iter().cloned().partition(told)
    }
}

fn inside(path: &str, fields: &BTreeMap<String, String>) -> bool {
    fields.keys().any(|key| key.strip_prefix(path).is_some_and(|rest| rest.starts_with(['.', '['])))
}

/// The path as a reader of a spec names it: without `volume` or `persistentVolume` at its start.
fn short(path: &str) -> &str {
    path.split_once('.').map_or(path, |(_, rest)| rest)
}

/// Every value with its path, such as `volume.csi.driver` or `a.b[0]`. Empty texts and nulls are left out, as is what
/// only says which kind of object it is.
fn flat(value: &Value) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    walk(value, String::new(), &mut fields);
    for field in ["apiVersion", "kind", "metadata.creationTimestamp"] {
        fields.remove(&format!("persistentVolume.{field}"));
    }
    // A status is no part of what was asked for; the kubelet's types print an empty one.
    fields.retain(|path, _| !path.starts_with("persistentVolume.status"));
    fields
}

fn walk(value: &Value, at: String, fields: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            let before = fields.len();
            for (key, value) in map {
                walk(value, if at.is_empty() { key.clone() } else { format!("{at}.{key}") }, fields);
            }
            if fields.len() == before {
                fields.insert(at, "{}".into());
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for (i, value) in list.iter().enumerate() {
                walk(value, format!("{at}[{i}]"), fields);
            }
        }
        Value::String(text) if text.is_empty() => {}
        Value::Null | Value::Array(_) => {}
        Value::String(text) => drop(fields.insert(at, text.clone())),
        Value::Object(_) | Value::Bool(_) | Value::Number(_) => drop(fields.insert(at, value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_equal_is_exact() {
        let want = json!({ "volume": { "name": "a", "emptyDir": {} } });
        assert_eq!(Fields::compare(&want, &want), Fields::default());
        let have = json!({ "volume": { "name": "a", "emptyDir": { "medium": "" } } });
        assert_eq!(Fields::compare(&want, &have), Fields::default());
        let pv = json!({ "persistentVolume": { "metadata": { "name": "p" } } });
        let printed = json!({ "persistentVolume": { "apiVersion": "v1", "metadata": { "name": "p", "creationTimestamp": null }, "status": {} } });
        assert_eq!(Fields::compare(&pv, &printed), Fields::default());
    }

    #[test]
    fn lost_wrong_and_invented_are_told_apart() {
        let want = json!({ "persistentVolume": { "spec": { "csi": { "driver": "d", "attributes": { "x": "1" } } } } });
        let have = json!({ "persistentVolume": { "spec": { "csi": { "driver": "e" }, "mountOptions": ["ro"] } } });
        let fields = Fields::compare(&want, &have);
        assert_eq!(fields.lost, ["spec.csi.attributes.x"]);
        assert_eq!(fields.wrong, ["spec.csi.driver = e, not d"]);
        assert_eq!(fields.invented, ["spec.mountOptions[0] = ro"]);
    }

    #[test]
    fn another_kind_of_source_is_lost_and_invented() {
        let fields = Fields::compare(
            &json!({ "persistentVolume": { "spec": { "nfs": { "path": "/a" } } } }),
            &json!({ "volume": { "nfs": { "path": "/a" } } }),
        );
        assert_eq!((fields.lost.len(), fields.invented.len()), (1, 1));
    }

    #[test]
    fn a_form_that_nobody_could_tell_costs_no_field_of_the_source() {
        let want = json!({ "persistentVolume": { "metadata": { "name": "v" },
            "spec": { "nfs": { "server": "s", "path": "/a" }, "volumeMode": "Filesystem" } } });
        let fields = Fields::compare_source(
            &want,
            &json!({ "volume": { "name": "v", "nfs": { "server": "s", "path": "/b" } } }),
        );
        assert_eq!(fields.lost, ["spec.volumeMode"]);
        assert_eq!((fields.wrong.len(), fields.invented.len()), (1, 0));
    }

    #[test]
    fn an_empty_object_is_no_invention_where_there_is_more() {
        let want = json!({ "volume": { "emptyDir": { "medium": "Memory" } } });
        let fields = Fields::compare(&want, &json!({ "volume": { "emptyDir": {} } }));
        assert_eq!(fields, Fields { lost: vec!["emptyDir.medium".into()], ..Fields::default() });
        let fields = Fields::compare(&json!({ "volume": { "emptyDir": {} } }), &want);
        assert_eq!(fields.invented, ["emptyDir.medium = Memory"]);
    }

    #[test]
    fn losing_is_honest_only_if_it_is_said() {
        let fields = Fields { lost: vec!["spec.csi.attributes.x".into(), "spec.csix".into()], ..Fields::default() };
        let (said, silent) = fields.split_lost(&["spec.csi".into()]);
        assert_eq!((said, silent), (vec!["spec.csi.attributes.x".to_owned()], vec!["spec.csix".to_owned()]));
    }
}
