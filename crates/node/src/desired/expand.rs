//! Paths inside volumes: `subPath` as it is, `subPathExpr` with the container's environment.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, Pod};
use refloat_volume::{Lookup, Objects};

use crate::sources::manifests::ContainerRef;

/// A container's environment: each variable's value, or why it cannot be known.
pub(super) struct Env(BTreeMap<String, Result<String, String>>);

impl Env {
    /// The environment that the kubelet would give the container, as far as the pod and its configMaps tell. A secret's
    /// value is never part of it: it would end up in a path, a record and the mount table.
    ///
    /// # Source
    /// `makeEnvironmentVariables` in `pkg/kubelet/kubelet_pods.go`: `envFrom` first, `env` over it in order, `$(VAR)` in a
    /// value replaced by what came before.
    pub(super) fn of(container: &ContainerRef<'_>, pod: &Pod, objects: &dyn Objects) -> Self {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let mut env = Self(BTreeMap::new());
        for from in container.env_from {
            let Some(source) = &from.config_map_ref else { continue };
            if let Lookup::Found(map) = objects.config_map(namespace, &source.name) {
                for (key, value) in map.data.iter().flatten() {
                    let name = format!("{}{key}", from.prefix.as_deref().unwrap_or(""));
                    env.0.insert(name, Ok(value.clone()));
                }
            }
        }
        for var in container.env {
            let value = env.value(var, pod, namespace, objects);
            env.0.insert(var.name.clone(), value);
        }
        env
    }

    fn value(&self, var: &EnvVar, pod: &Pod, namespace: &str, objects: &dyn Objects) -> Result<String, String> {
        let Some(from) = &var.value_from else {
            // A reference to what is not known stays as it is written.
            let text = var.value.as_deref().unwrap_or("");
            return Ok(replace(text, |name| match self.0.get(name) {
                Some(Ok(value)) => Ok::<_, String>(value.clone()),
                _ => Ok(format!("$({name})")),
            })
            .unwrap_or_default());
        };
        if let Some(field) = &from.field_ref {
            return pod_field(pod, &field.field_path)
                .ok_or_else(|| format!("the pod's field {:?} has no value here", field.field_path));
        }
        if let Some(key) = &from.config_map_key_ref {
            return match objects.config_map(namespace, &key.name) {
                Lookup::Found(map) => map
                    .data
                    .as_ref()
                    .and_then(|data| data.get(&key.key).cloned())
                    .ok_or_else(|| format!("ConfigMap {namespace}/{} has no key {:?}", key.name, key.key)),
                Lookup::Absent => Err(format!("there is no ConfigMap {namespace}/{}", key.name)),
                Lookup::Unknown(why) => Err(why),
            };
        }
        Err("it comes from a source that must not, or cannot, name a path (a secret, a resource)".into())
    }

    /// The expression with every `$(VAR)` replaced; one that is not known is an error.
    pub(super) fn expand(&self, expression: &str) -> Result<String, String> {
        replace(expression, |name| match self.0.get(name) {
            Some(Ok(value)) => Ok(value.clone()),
            Some(Err(why)) => Err(format!("its variable {name:?} has no value: {why}")),
            None => Err(format!("its variable {name:?} is not in the container's env")),
        })
    }
}

/// Replaces `$(NAME)`; `$$` is a dollar, and a dollar before anything else is itself.
///
/// # Source
/// `third_party/forked/golang/expansion` of Kubernetes.
fn replace<E>(text: &str, value: impl Fn(&str) -> Result<String, E>) -> Result<String, E> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        rest = after;
        if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) = after.strip_prefix('(').and_then(|a| a.split_once(')')) {
            expanded.push_str(&value(name)?);
            rest = after;
        } else {
            expanded.push('$');
        }
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// The pod's own fields that a `fieldRef` may name and that are known before it runs.
fn pod_field(pod: &Pod, path: &str) -> Option<String> {
    let entry = |map: &Option<BTreeMap<String, String>>, field: &str| {
        let key = path.strip_prefix(field)?.strip_prefix("['")?.strip_suffix("']")?;
        Some(map.as_ref().and_then(|m| m.get(key).cloned()).unwrap_or_default())
    };
    let spec = pod.spec.as_ref();
    match path {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => spec.and_then(|s| s.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|s| s.service_account_name.clone()),
        _ => entry(&pod.metadata.labels, "metadata.labels")
            .or_else(|| entry(&pod.metadata.annotations, "metadata.annotations")),
    }
}

/// What is wrong with a path inside a volume.
///
/// # Source
/// `validateLocalDescendingPath` of Kubernetes: relative, and no `..` in it.
pub(super) fn wrong_path(path: &str) -> Option<&'static str> {
    if path.starts_with('/') {
        Some("it is absolute")
    } else if path.split('/').any(|part| part == "..") {
        Some("it has a \"..\" in it")
    } else if path.contains('\0') {
        Some("it holds a NUL byte")
    } else if path.len() > 4095 || path.split('/').any(|part| part.len() > 255) {
        Some("it is longer than a path may be")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_as_kubernetes_does() {
        let value = |name: &str| match name {
            "A" => Ok("1".to_owned()),
            "" => Ok("empty".to_owned()),
            other => Err(other.to_owned()),
        };
        for (text, expected) in [
            ("", ""),
            ("x$(A)y$(A)", "x1y1"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$", "$"),
            ("a$b$", "a$b$"),
            ("$(A", "$(A"),
            ("$()", "empty"),
            ("ä$(A)ö", "ä1ö"),
        ] {
            assert_eq!(replace(text, value), Ok(expected.to_owned()), "{text}");
        }
        assert_eq!(replace("$(B)", value), Err("B".to_owned()));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = replace(&text, |name| Ok::<_, ()>(name.to_owned()));
            let _ = wrong_path(&text);
        }
    }
}
