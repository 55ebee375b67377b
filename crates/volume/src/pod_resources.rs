//! What a pod's containers may use, as far as volumes depend on it: memory and huge pages.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::{NodeFacts, Quantity, QuantityError};

type List = BTreeMap<String, Text>;

/// The resource whose name begins so is huge pages of the size that follows.
const HUGE_PAGES: &str = "hugepages-";

/// What of a pod's resources its volumes depend on. Computed from the pod as admitted; never written down, since the
/// pod is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodResources {
    /// How much memory the whole pod may use, in bytes. None without a limit: one that is zero, or that not every
    /// container has, is none.
    pub memory_limit: Option<u64>,
    /// How much memory all pods of the node may use together, in bytes, where that is known.
    pub node_memory: Option<u64>,
    /// The sizes of the huge pages that it requests, in bytes.
    pub huge_page_sizes: BTreeSet<u64>,
}

/// The quantity of a resource of a pod cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the quantity of {resource} {whose} cannot be read")]
pub struct PodResourcesError {
    /// `of container "a"` or `of the pod`.
    pub whose: String,
    /// The resource: `memory`, `hugepages-2Mi`.
    pub resource: String,
    /// Why.
    #[source]
    pub source: QuantityError,
}

impl PodResources {
    /// Computes them of a pod on this node.
    ///
    /// # Errors
    /// If a quantity of memory, or the size in the name of huge pages, is none. The API server takes no such pod.
    ///
    /// # Source
    /// `ResourceConfigForPod` in `pkg/kubelet/cm` (the memory limit of a pod's cgroup), which
    /// `calculateEmptyDirMemorySize` in `pkg/volume/emptydir` asks; `getPageSizeMountOption` there; `PodLimits` of
    /// `k8s.io/component-helpers/resource`. Kubernetes v1.36.
    pub fn of(pod: &Pod, node: &NodeFacts) -> Result<Self, PodResourcesError> {
        Ok(Self {
            memory_limit: memory_limit(pod)?.and_then(Quantity::to_u64).filter(|bytes| *bytes > 0),
            node_memory: node.allocatable.get("memory").and_then(|q| q.to_u64()).filter(|bytes| *bytes > 0),
            huge_page_sizes: huge_page_sizes(pod)?,
        })
    }
}

/// The quantity of a resource that is not zero.
fn get(list: Option<&List>, resource: &str, whose: impl Fn() -> String) -> Result<Option<Quantity>, PodResourcesError> {
    let Some(text) = list.and_then(|list| list.get(resource)) else { return Ok(None) };
    let quantity = Quantity::parse(&text.0);
    let quantity =
        quantity.map_err(|source| PodResourcesError { whose: whose(), resource: resource.to_owned(), source })?;
    Ok(Some(quantity).filter(|q| !q.is_zero()))
}

fn of_pod() -> String {
    "of the pod".into()
}

fn of_container(container: &Container) -> String {
    format!("of container {:?}", container.name)
}

/// The memory that the pod may use, if it is limited.
fn memory_limit(pod: &Pod) -> Result<Option<Quantity>, PodResourcesError> {
    const MEMORY: &str = "memory";
    let Some(spec) = &pod.spec else { return Ok(None) };
    let of = |container: &Container| {
        get(container.resources.as_ref().and_then(|r| r.limits.as_ref()), MEMORY, || of_container(container))
    };
    let mut limited = true;
    let mut sum = Quantity::default();
    for container in &spec.containers {
        let limit = of(container)?;
        limited &= limit.is_some();
        sum = sum.saturating_add(limit.unwrap_or_default());
    }
    // Init containers run one after the other, beside the sidecars that were started before.
    let (mut sidecars, mut most) = (Quantity::default(), Quantity::default());
    for container in spec.init_containers.iter().flatten() {
        let limit = of(container)?.unwrap_or_default();
        let together = sidecars.saturating_add(limit);
        if container.restart_policy.as_deref() == Some("Always") {
            sum = sum.saturating_add(limit);
            sidecars = together;
        }
        limited &= !together.is_zero();
        most = most.max(together);
    }
    let own = get(spec.resources.as_ref().and_then(|r| r.limits.as_ref()), MEMORY, of_pod)?;
    let Some(limit) = own.or(limited.then_some(sum.max(most))) else { return Ok(None) };
    let overhead = get(spec.overhead.as_ref(), MEMORY, of_pod)?.unwrap_or_default();
    Ok(Some(if limit.is_zero() { limit } else { limit.saturating_add(overhead) }))
}

/// The sizes of huge pages in requests, and in limits, since for huge pages one is the other.
fn huge_page_sizes(pod: &Pod) -> Result<BTreeSet<u64>, PodResourcesError> {
    let mut sizes = BTreeSet::new();
    let Some(spec) = &pod.spec else { return Ok(sizes) };
    let mut add = |lists: [Option<&List>; 2], whose: &dyn Fn() -> String| {
        for resource in lists.into_iter().flatten().flat_map(List::keys) {
            let Some(size) = resource.strip_prefix(HUGE_PAGES) else { continue };
            let size = Quantity::parse(size).map_err(|source| PodResourcesError {
                whose: whose(),
                resource: resource.clone(),
                source,
            })?;
            sizes.extend(size.to_u64().filter(|bytes| *bytes > 0));
        }
        Ok(())
    };
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        if let Some(resources) = &container.resources {
            add([resources.requests.as_ref(), resources.limits.as_ref()], &|| of_container(container))?;
        }
    }
    if let Some(resources) = &spec.resources {
        add([resources.requests.as_ref(), resources.limits.as_ref()], &of_pod)?;
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: impl std::borrow::Borrow<Value>) -> Result<PodResources, PodResourcesError> {
        let pod: Pod = serde_json::from_value(json!({ "metadata": {}, "spec": spec.borrow() })).unwrap();
        PodResources::of(&pod, &NodeFacts::default())
    }

    fn container(limit: &str) -> Value {
        if limit.is_empty() {
            return json!({ "name": "c" });
        }
        json!({ "name": "c", "resources": { "limits": { "memory": limit } } })
    }

    fn sidecar(limit: &str) -> Value {
        let mut container = container(limit);
        container["restartPolicy"] = "Always".into();
        container
    }

    #[test]
    fn the_memory_limit_is_the_pods_cgroups() {
        const MI: u64 = 1 << 20;
        for (what, spec, limit) in [
            ("no limit", json!({ "containers": [container("")] }), None),
            ("a sum", json!({ "containers": [container("1Mi"), container("2Mi")] }), Some(3 * MI)),
            ("one has none", json!({ "containers": [container("1Mi"), container("")] }), None),
            ("one has zero", json!({ "containers": [container("1Mi"), container("0")] }), None),
            (
                "the largest init container",
                json!({ "containers": [container("1Mi")], "initContainers": [container("5Mi"), container("4Mi")] }),
                Some(5 * MI),
            ),
            (
                "an init container has none",
                json!({ "containers": [container("1Mi")], "initContainers": [container("")] }),
                None,
            ),
            (
                "a sidecar counts beside both",
                json!({ "containers": [container("1Mi")],
                    "initContainers": [sidecar("2Mi"), container("4Mi"), sidecar("1Mi")] }),
                Some(6 * MI),
            ),
            (
                "and with the containers",
                json!({ "containers": [container("9Mi")], "initContainers": [sidecar("2Mi"), container("4Mi")] }),
                Some(11 * MI),
            ),
            (
                "the pod's own",
                json!({ "containers": [container("")], "resources": { "limits": { "memory": "7Mi" } } }),
                Some(7 * MI),
            ),
            (
                "the pod's own wins",
                json!({ "containers": [container("1Mi")], "resources": { "limits": { "memory": "7Mi" } } }),
                Some(7 * MI),
            ),
            ("overhead", json!({ "containers": [container("1Mi")], "overhead": { "memory": "1Mi" } }), Some(2 * MI)),
            ("overhead alone", json!({ "containers": [container("")], "overhead": { "memory": "1Mi" } }), None),
            ("rounded up once", json!({ "containers": [container("500m"), container("500m")] }), Some(1)),
        ] {
            assert_eq!(of(spec).unwrap().memory_limit, limit, "{what}");
        }
        let error = of(json!({ "containers": [container("much")] })).unwrap_err();
        assert_eq!(error.to_string(), "the quantity of memory of container \"c\" cannot be read");
    }

    #[test]
    fn the_nodes_memory_is_what_pods_may_have() {
        let node = NodeFacts { allocatable: [("memory".to_owned(), Quantity::new(1 << 30))].into() };
        let resources = PodResources::of(&Pod::default(), &node).unwrap();
        assert_eq!(resources, PodResources { node_memory: Some(1 << 30), ..PodResources::default() });
    }

    #[test]
    fn huge_pages_are_those_that_are_requested() {
        let pages = |name: &str| json!({ "name": "c", "resources": { "requests": { name: "4Mi", "cpu": "1" } } });
        let sizes = |spec| of(spec).unwrap().huge_page_sizes.into_iter().collect::<Vec<_>>();
        assert_eq!(sizes(json!({ "containers": [container("1Mi")] })), [0_u64; 0]);
        assert_eq!(sizes(json!({ "containers": [pages("hugepages-2Mi"), pages("hugepages-2048Ki")] })), [2 << 20]);
        let init = json!({ "containers": [pages("hugepages-2Mi")], "initContainers": [pages("hugepages-1Gi")] });
        assert_eq!(sizes(init), [2 << 20, 1 << 30]);
        let limits = json!({ "containers": [{ "name": "c", "resources": { "limits": { "hugepages-2Mi": "4Mi" } } }] });
        assert_eq!(sizes(limits), [2 << 20]);
        let pod = json!({ "containers": [], "resources": { "requests": { "hugepages-2Mi": "4Mi" } } });
        assert_eq!(sizes(pod), [2 << 20]);
        assert!(of(json!({ "containers": [pages("hugepages-large")] })).is_err());
    }
}
