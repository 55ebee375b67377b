//! YAML and JSON as Kubernetes reads them: the one function that all manifests go through.

/// One document of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The line on which it starts, from 1.
    pub line: usize,
    /// Its content.
    pub value: serde_json::Value,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct YamlError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

/// The documents of a YAML or JSON text. Empty documents are left out. `0400` is octal, as Kubernetes reads it.
pub fn documents(text: &[u8]) -> Result<Vec<Document>, YamlError> {
    let _ = text;
    todo!()
}
