//! The kind `Driver`: a CSI driver that registered on this node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::DriverName;

/// A CSI driver that registered on this node. Written when it registers and when it goes, so that after a restart its
/// volumes can be undone as soon as its socket answers, and so that it can be told since when it is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Driver {
    /// Its name, as `GetInfo` gave it.
    pub name: DriverName,
    /// Its socket, absolute.
    pub endpoint: String,
    /// What it calls this node (`NodeGetInfo.node_id`); empty if it was not asked.
    #[serde(default, rename = "nodeID")]
    pub node_id: String,
    /// The topology segments of this node, where it reports any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<String, String>,
    /// When it registered last, RFC 3339 in UTC.
    pub registered_at: String,
    /// When its registration socket went, RFC 3339 in UTC; absent while it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_since: Option<String>,
}
