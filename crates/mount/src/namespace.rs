//! A mount namespace of one's own.

/// Why no private namespace could be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing}: {hint}")]
pub struct NamespaceError {
    /// What was being done.
    pub doing: &'static str,
    /// What to do about it.
    pub hint: String,
    /// What the system said.
    #[source]
    pub source: std::io::Error,
}

/// Moves this process into a mount namespace of its own in which nothing propagates out; where it has no
/// privilege, into a user namespace first, in which it is root. Only while the process has a single thread.
/// Returns whether a user namespace was needed.
pub fn enter_private_namespace() -> Result<bool, NamespaceError> {
    todo!()
}
