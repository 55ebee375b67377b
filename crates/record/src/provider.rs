//! What providers outside this program said of a volume or device.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::{BootId, Verbatim};

/// What each provider said that was asked about a volume or device, by the provider's name.
pub type ProviderAnswers = BTreeMap<String, ProviderAnswer>;

/// What one provider said last. It was told so of the mount and in the boot that stand here: of another mount, it is asked anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderAnswer {
    /// The boot of the record that it was given.
    #[serde(rename = "bootID")]
    pub boot_id: BootId,
    /// The kernel's unique id of the mount in that record, where it had one.
    #[serde(default, rename = "mountID", skip_serializing_if = "Option::is_none")]
    pub mount_id: Option<NonZeroU64>,
    /// Its `providerInfo`, a JSON object. Absent if it had nothing to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_info: Option<Verbatim>,
}
