//! The kind `PodCheckpoint`: a pod as it was admitted.

use serde::{Deserialize, Serialize};

use crate::{PodRef, Verbatim};

/// Where a pod came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum PodSource {
    /// A file of the manifest folder.
    Manifest {
        /// The manifest folder, absolute.
        folder: String,
        /// Which folder stood at that path, as the program that read it tells folders apart; opaque. None in checkpoints of
        /// older programs. An empty folder with another identity says nothing.
        #[serde(rename = "folderID", default, skip_serializing_if = "Option::is_none")]
        folder_id: Option<String>,
        /// The file's name in it.
        file: String,
    },
}

/// A pod as it was admitted, so that desired state survives a restart without its source.
/// Written when the pod is admitted, removed when its last volume is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCheckpoint {
    /// The pod's names.
    pub pod: PodRef,
    /// Where it came from.
    pub source: PodSource,
    /// The whole pod, verbatim.
    pub object: Verbatim,
}
