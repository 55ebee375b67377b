//! Resources of a pod's containers as text.

use k8s_openapi::api::core::v1::{Pod, ResourceFieldSelector, ResourceRequirements};

use crate::plugins::payload_volume::For;
use crate::{ContentError, NodeFacts, Quantity};

/// Resources for which a limit that is not set stands for what the node has.
///
/// # Source
/// `MergeContainerResourceLimits` in `pkg/api/v1/resource/helpers.go` of Kubernetes v1.36.
const FROM_NODE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// `limits.memory` as kind and name, if it can be projected.
fn split(resource: &str) -> Option<(&str, &str)> {
    let (kind, name) = resource.split_once('.')?;
    let known = FROM_NODE.contains(&name) || name.strip_prefix("hugepages-").is_some_and(|size| !size.is_empty());
    (known && matches!(kind, "limits" | "requests")).then_some((kind, name))
}

/// Whether the selector is well-formed; if not, which field and why.
pub(super) fn check(selector: &ResourceFieldSelector) -> Result<(), (&'static str, String)> {
    if selector.container_name.as_deref().unwrap_or_default().is_empty() {
        return Err(("containerName", "is missing".into()));
    }
    if split(&selector.resource).is_none() {
        let known = "limits or requests of cpu, memory, ephemeral-storage or hugepages-SIZE";
        return Err(("resource", format!("is {:?}; known are {known}", selector.resource)));
    }
    match selector.divisor.as_ref().map(|divisor| Quantity::parse(&divisor.0)) {
        Some(Err(error)) => Err(("divisor", format!("cannot be used: {error}"))),
        Some(Ok(divisor)) if divisor < Quantity::default() => Err(("divisor", "is negative".into())),
        _ => Ok(()),
    }
}

/// The resource in units of the divisor, rounded up.
///
/// A request that is not set is the limit, as the API server would have set it. A limit that is not set is what
/// the node has.
///
/// # Source
/// `ExtractResourceValueByContainerNameAndNodeAllocatable` in `pkg/api/v1/resource/helpers.go`, `SetDefaults_Pod` in
/// `pkg/apis/core/v1/defaults.go` of Kubernetes v1.36.
pub(super) fn value(
    whose: For<'_>,
    pod: &Pod,
    selector: &ResourceFieldSelector,
    node: &NodeFacts,
) -> Result<String, ContentError> {
    let container = selector.container_name.as_deref().unwrap_or_default();
    let (kind, name) = split(&selector.resource).ok_or_else(|| {
        let what = format_args!("the resource {:?} cannot be projected", selector.resource);
        whose.error("DownwardFieldUnsupported", what, "Use limits or requests of cpu, memory or ephemeral-storage.")
    })?;
    let invalid = |text: &str, what: &str| {
        let what = format_args!("{what} is {text:?}, which is no quantity");
        whose.error("DownwardQuantityInvalid", what, "Correct it in the pod.")
    };

    let spec = pod.spec.as_ref();
    let containers = spec.into_iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    let found = containers.into_iter().find(|c| c.name == container).ok_or_else(|| {
        whose.error(
            "DownwardContainerMissing",
            format_args!("the pod has no container {container:?}"),
            "Correct containerName in the volume.",
        )
    })?;
    let empty = ResourceRequirements::default();
    let resources = found.resources.as_ref().unwrap_or(&empty);
    let get = |what: &str| {
        let map = if what == "limits" { &resources.limits } else { &resources.requests };
        let text = map.as_ref().and_then(|map| map.get(name)).map(|q| q.0.as_str());
        text.map(|text| {
            Quantity::parse(text).map_err(|_| invalid(text, &format!("{what}.{name} of container {container:?}")))
        })
        .transpose()
    };
    let limit = get("limits")?;
    let value = match kind {
        "requests" => get("requests")?.or(limit).unwrap_or_default(),
        _ => match limit.filter(|limit| !limit.is_zero()) {
            Some(limit) => limit,
            None if FROM_NODE.contains(&name) => *node.allocatable.get(name).ok_or_else(|| {
                whose.error(
                    "NodeResourceUnknown",
                    format_args!("container {container:?} has no limit of {name}, and what the node has is not known"),
                    "Set the limit in the pod.",
                )
            })?,
            None => Quantity::default(),
        },
    };
    let one = Quantity::new(1);
    let divisor = match &selector.divisor {
        None => one,
        // Zero is the field's default and means one.
        Some(text) => Some(Quantity::parse(&text.0).map_err(|_| invalid(&text.0, "the divisor"))?)
            .filter(|divisor| !divisor.is_zero())
            .unwrap_or(one),
    };
    Ok(value.ceil_div(divisor).unwrap_or_default().to_string())
}
