//! Messages that have in them what another program said.

/// Looks that a message has not more of it than fits, and nothing that a terminal would obey.
///
/// # Panics
/// It has.
#[track_caller]
pub fn assert_readable(message: &str) {
    assert!(message.len() < 5000, "{} bytes", message.len());
    assert!(!message.chars().any(|c| c.is_control() && c != '\n'), "{message:?}");
}
