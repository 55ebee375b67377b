//! From evidence to the actual state. Pure.

use refloat_volume::Plugins;

use crate::{Actual, Evidence};

/// Concludes what is on the node. When sources disagree it says how, and picks the least harmful reading.
pub fn reconstruct(evidence: &Evidence, plugins: &Plugins) -> Actual {
    let _ = (evidence, plugins);
    todo!()
}
