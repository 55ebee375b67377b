//! `refloat demo`: what Refloat is for, shown in under a minute on real mounts.
//!
//! Everything happens in a mount namespace of its own and a file system over memory, so that nothing can be left
//! behind even if this process is killed. The manager is this very binary, as a child process.

mod manifests;
mod stage;
mod story;

use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::output::table::Look;

/// Runs the command.
pub(crate) fn run(settings: &Settings) -> Result<Done, Failure> {
    let in_user_namespace = refloat_mount::enter_private_namespace().map_err(|e| {
        let hint = e.hint.clone();
        Failure::with_hint(anyhow::Error::new(e).context("the demo needs a mount namespace of its own"), hint)
    })?;
    let stage = stage::Stage::build(in_user_namespace, settings)?;
    let mut story = story::Story::new(stage, Look::of_stdout(settings.color));
    let told = story.tell();
    // Cleaning up comes first, also after a failure; what it cannot clean up it says.
    let cleaned = story.into_stage().take_down();
    told.and(cleaned)?;
    Ok(Done::Well)
}
