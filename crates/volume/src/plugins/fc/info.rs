//! What the record keeps of a disk: what it was asked for by, what it is, and as hints where it was.

use refloat_record::Verbatim;
use serde::{Deserialize, Serialize};

use super::Wanted;
use crate::plugins::san::Found;

/// The record's `providerInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Info {
    /// The ports that it was to be behind.
    #[serde(default, rename = "targetWWNs", skip_serializing_if = "Vec::is_empty")]
    target_wwns: Vec<String>,
    /// Its number there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lun: Option<i32>,
    /// The ids that it was to have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    wwids: Vec<String>,
    /// What was found.
    #[serde(flatten)]
    found: Found,
}

impl Info {
    pub(super) fn of(wanted: &Wanted, found: &Found) -> Self {
        let (target_wwns, lun, wwids) = match wanted {
            Wanted::Targets { wwns, lun } => (wwns.clone(), Some(*lun), vec![]),
            Wanted::Wwids(wwids) => (vec![], None, wwids.clone()),
        };
        Self { target_wwns, lun, wwids, found: found.clone() }
    }

    pub(super) fn verbatim(&self) -> Verbatim {
        Verbatim::of(self).expect("texts and numbers")
    }
}
