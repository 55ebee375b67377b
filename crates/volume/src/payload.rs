//! The content of a configMap, secret, downwardAPI or projected volume, computed before anything is written.

use std::collections::BTreeMap;

use crate::Problem;

/// Files to project into a volume, by relative path (`a`, `dir/b`).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Payload {
    /// The files.
    pub files: BTreeMap<String, PayloadFile>,
}

/// One file.
#[derive(Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// Its content.
    pub data: Vec<u8>,
    /// Its permission bits, for example 0o644.
    pub mode: u32,
}

/// Never prints content: it may be a secret.
impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.files.iter().map(|(k, v)| (k, v.data.len()))).finish()
    }
}

/// Why the content cannot be had now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.message)]
pub struct ContentError(pub Problem);
