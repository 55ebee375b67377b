//! The plugins, one module each.

use crate::Plugin;

/// All plugins that are built in.
pub(crate) fn all() -> Vec<Box<dyn Plugin>> {
    vec![]
}
