//! Sources of pods.

pub mod manifests;
pub mod yaml;
