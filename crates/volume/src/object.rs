//! Kubernetes objects: typed for us, verbatim for the record.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use refloat_record::Verbatim;

use crate::Quantity;

/// A Kubernetes object as a type and as the JSON that it came as, so that unknown fields are not lost.
#[derive(Debug, Clone)]
pub struct Object<T> {
    /// As it came.
    pub raw: Verbatim,
    /// What this program knows of it.
    pub typed: T,
}

impl<T: serde::de::DeserializeOwned> Object<T> {
    /// Reads the type out of the JSON.
    pub fn new(raw: Verbatim) -> Result<Self, serde_json::Error> {
        let typed = raw.parse()?;
        Ok(Self { raw, typed })
    }
}

/// The answer to a look-up. An answer that is missing is not an answer of "missing".
#[derive(Debug, Clone)]
pub enum Lookup<T> {
    /// It is this.
    Found(T),
    /// There is surely none.
    Absent,
    /// It could not be asked; the text says why.
    Unknown(String),
}

/// Where plugins look up the objects that a volume refers to.
pub trait Objects {
    /// A `ConfigMap`.
    fn config_map(&self, namespace: &str, name: &str) -> Lookup<std::sync::Arc<ConfigMap>>;
    /// A `Secret`. Its content goes to the volume and nowhere else.
    fn secret(&self, namespace: &str, name: &str) -> Lookup<std::sync::Arc<Secret>>;
    /// A claim.
    fn claim(&self, namespace: &str, name: &str) -> Lookup<std::sync::Arc<Object<PersistentVolumeClaim>>>;
    /// A volume.
    fn persistent_volume(&self, name: &str) -> Lookup<std::sync::Arc<Object<PersistentVolume>>>;
    /// The object that says how a CSI driver is to be used.
    fn csi_driver(&self, name: &str) -> Lookup<std::sync::Arc<CSIDriver>>;
    /// The attachment of a volume to this node by a driver.
    fn volume_attachment(&self, driver: &str, persistent_volume: &str) -> Lookup<std::sync::Arc<VolumeAttachment>>;
    /// Where a service answers.
    fn endpoints(&self, namespace: &str, name: &str) -> Lookup<std::sync::Arc<Endpoints>>;
    /// What the node has for pods, for limits that a pod does not set. Without an answer of its own nothing is known,
    /// and content that needs it waits.
    fn node_facts(&self) -> NodeFacts {
        NodeFacts::default()
    }
}

/// What the node has for pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// How much of each resource (`cpu`, `memory`, `ephemeral-storage`) pods may have together.
    pub allocatable: BTreeMap<String, Quantity>,
}

impl NodeFacts {
    /// Reads what this machine has: its online processors, its memory and, if the node root is given, the size of its
    /// file system. Nothing is subtracted, since nothing is reserved here. What cannot be read is left out.
    pub fn read(root: Option<&std::path::Path>) -> Self {
        let mut allocatable = BTreeMap::new();
        let mut add = |name: &str, value: Option<u64>| {
            if let Some(value) = value.and_then(|v| i64::try_from(v).ok()) {
                allocatable.insert(name.to_owned(), Quantity::new(value));
            }
        };
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
        add("cpu", online.as_deref().and_then(count_of_list));
        let info = rustix::system::sysinfo();
        // The fields' width differs between architectures.
        #[allow(clippy::useless_conversion)]
        let memory = u64::from(info.totalram).checked_mul(u64::from(info.mem_unit.max(1)));
        add("memory", memory);
        let disk = root.and_then(|root| rustix::fs::statvfs(root).ok());
        add("ephemeral-storage", disk.and_then(|fs| fs.f_blocks.checked_mul(fs.f_frsize)));
        Self { allocatable }
    }
}

/// How many numbers a list such as `0-3,8` has.
fn count_of_list(list: &str) -> Option<u64> {
    let mut count = 0_u64;
    for part in list.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<u64>().ok()?, to.parse::<u64>().ok()?);
        count = count.checked_add(to.checked_sub(from)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        for (list, count) in
            [("0", Some(1)), ("0-3\n", Some(4)), ("0-1,4,6-7", Some(5)), ("", None), ("3-1", None), ("x", None)]
        {
            assert_eq!(count_of_list(list), count, "{list:?}");
        }
    }

    #[test]
    fn this_machine_has_something_of_everything() {
        let facts = NodeFacts::read(Some(std::path::Path::new("/")));
        for name in ["cpu", "memory", "ephemeral-storage"] {
            assert!(facts.allocatable.get(name).is_some_and(|q| *q > Quantity::default()), "{name}");
        }
    }
}
