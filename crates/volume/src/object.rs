//! Kubernetes objects: typed for us, verbatim for the record.

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret};
use refloat_record::Verbatim;

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
}
