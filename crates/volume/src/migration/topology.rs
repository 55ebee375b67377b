//! Where a volume can be attached: from the labels of nodes that Kubernetes has to those that a driver has.
//!
//! # Source
//! `translateTopologyFromInTreeToCSI` of `in_tree_volume.go` in `csi-translation-lib`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::gce::BETWEEN_ZONES;

/// A node's zone, and a volume's.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
/// The same, as it was called before.
pub(super) const ZONE_BETA: &str = "failure-domain.beta.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const REGION_BETA: &str = "failure-domain.beta.kubernetes.io/region";

/// Renames what the volume's node affinity has of zones. Without any, it is made of the volume's zone label.
pub(super) fn translate(volume: &mut Value, driver_key: &str) {
    let label = |key: &str| volume.pointer("/metadata/labels").and_then(|labels| labels.get(key));
    let label = |key: &str| label(key).and_then(Value::as_str).map(str::to_owned);
    let beta = is_beta(volume, label(ZONE).is_some(), label(ZONE_BETA).is_some());
    let (zone, label) = if beta { (ZONE_BETA, label(ZONE_BETA)) } else { (ZONE, label(ZONE)) };
    if has_values(volume, zone) {
        rename(volume, zone, driver_key);
    } else if let Some(label) = label {
        add(volume, driver_key, &label);
    }
    // New nodes do not have the old label.
    if beta && has_values(volume, REGION_BETA) {
        rename(volume, REGION_BETA, REGION);
    }
}

/// Whether the volume speaks of zones by the old label: in its affinity, or else by its own labels.
fn is_beta(volume: &Value, labelled: bool, labelled_beta: bool) -> bool {
    let affinity = |key: &str| requirements(volume).any(|requirement| is_of(requirement, key));
    if affinity(ZONE) {
        return false;
    }
    affinity(ZONE_BETA) || !labelled && labelled_beta
}

/// All requirements of its node affinity.
fn requirements(volume: &Value) -> impl Iterator<Item = &Value> {
    let terms = volume.pointer(TERMS).and_then(Value::as_array);
    terms.into_iter().flatten().filter_map(|term| term.get("matchExpressions")?.as_array()).flatten()
}

const TERMS: &str = "/spec/nodeAffinity/required/nodeSelectorTerms";

fn is_of(requirement: &Value, key: &str) -> bool {
    requirement.get("key").and_then(Value::as_str) == Some(key)
}

fn has_values(volume: &Value, key: &str) -> bool {
    let values =
        |requirement: &Value| requirement.get("values").and_then(Value::as_array).is_some_and(|v| !v.is_empty());
    requirements(volume).any(|requirement| is_of(requirement, key) && values(requirement))
}

fn rename(volume: &mut Value, from: &str, to: &str) {
    let terms = volume.pointer_mut(TERMS).and_then(Value::as_array_mut);
    let expressions = terms.into_iter().flatten().filter_map(|term| term.get_mut("matchExpressions")?.as_array_mut());
    for requirement in expressions.flatten().filter(|requirement| is_of(requirement, from)) {
        requirement["key"] = to.into();
    }
}

/// Adds to each term that the node must be in one of the label's zones.
fn add(volume: &mut Value, key: &str, label: &str) {
    let zones: BTreeSet<&str> = label.split(BETWEEN_ZONES).map(str::trim).filter(|zone| !zone.is_empty()).collect();
    let Some(spec) = volume.get_mut("spec").filter(|_| !zones.is_empty()) else { return };
    let required = field(spec, "nodeAffinity").and_then(|affinity| field(affinity, "required"));
    let Some(required) = required.and_then(Value::as_object_mut) else { return };
    let terms = required.entry("nodeSelectorTerms").or_insert(Value::Null);
    if terms.as_array().is_none_or(Vec::is_empty) {
        *terms = json!([{}]);
    }
    for term in terms.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        let expressions = term.entry("matchExpressions").or_insert(Value::Null);
        if !expressions.is_array() {
            *expressions = json!([]);
        }
        if let Some(expressions) = expressions.as_array_mut() {
            expressions.push(json!({ "key": key, "operator": "In", "values": zones }));
        }
    }
}

/// The object in a field; made if it is missing.
fn field<'v>(object: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    let value = object.as_object_mut()?.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    Some(value)
}
