//! The state of what a driver makes.
//!
//! What a driver confirmed in this boot is there if its mount is, if it had one. Everything else is uncertain: asked for
//! again if it is wanted, undone by the driver if not. Both calls are idempotent, so also a mount that the record does not
//! know is the driver's to sort out, as long as nothing was confirmed; one over or in the place of a confirmed mount is
//! somebody else's.

use std::borrow::Cow;

use refloat_mount::Mount;
use refloat_volume::{Plugin, Problem, Recorded as Record};

use super::Context;
use super::mounts::Match;
use crate::VolumeState;

/// State, the reason for it, and what contradicts what, if anything does.
pub(super) struct Told {
    pub(super) state: VolumeState,
    pub(super) reason: Cow<'static, str>,
    pub(super) conflict: Option<String>,
}

/// What a record tells.
#[derive(Clone, Copy)]
pub(super) struct Recorded {
    pub(super) confirmed: bool,
    /// Whether it has a mount.
    pub(super) mount: bool,
    pub(super) same_boot: bool,
}

pub(super) fn tell(record: Recorded, matched: &Match, stack: &[Mount<'_>]) -> Told {
    let told = |state, reason: &'static str| Told { state, reason: reason.into(), conflict: None };
    let confirmed = record.confirmed && record.same_boot;
    match matched {
        // With nothing to be seen there, something hides it.
        Match::Conflict(why) if stack.is_empty() || (confirmed && record.mount) => {
            Told { state: VolumeState::Uncertain, reason: why.clone().into(), conflict: Some(why.clone()) }
        }
        _ if confirmed => match matched {
            Match::Ours | Match::Adopted => {
                told(VolumeState::Mounted, "its driver confirmed it, and its mount is in the mount table")
            }
            Match::Nothing if record.mount => {
                told(VolumeState::NotMounted, "the mount that its driver confirmed is not in the mount table")
            }
            Match::Nothing => told(VolumeState::Mounted, "its driver confirmed it, without a mount"),
            Match::Conflict(_) => {
                told(VolumeState::Uncertain, "its driver confirmed it without a mount, and now one is there")
            }
        },
        _ if !record.same_boot && stack.is_empty() => {
            told(VolumeState::NotMounted, "its driver made it in another boot, or had not yet")
        }
        _ if !record.same_boot => {
            told(VolumeState::Uncertain, "something is mounted there, and its driver has not confirmed it in this boot")
        }
        _ => told(VolumeState::Uncertain, "its driver has not confirmed that it is made, or may have begun to undo it"),
    }
}

/// The problem that the driver which has to be asked is not there.
pub(super) fn missing(
    context: &Context<'_>,
    plugin: &dyn Plugin,
    record: Option<Record<'_>>,
    who: &dyn std::fmt::Display,
) -> Option<Problem> {
    let missing = &context.evidence.missing_drivers;
    if missing.is_empty() {
        return None;
    }
    let driver = plugin.recorded_driver(record?)?;
    let since = missing.get(&driver)?;
    let since = since.as_ref().map_or_else(String::new, |since| format!(" since {since}"));
    Some(Problem::new(
        "DriverMissing",
        format!("{who}: its CSI driver {driver} is missing{since}"),
        "Look whether the driver's pod runs on this node. The volume is kept as it is, and what has to be asked of the \
         driver is asked as soon as it is back.",
    ))
}
