//! What is kept of a driver's answers: the record's `providerInfo`.

use refloat_csi::Secrets;
use refloat_record::Verbatim;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::field;
use crate::provider::MAX_INFO;
use crate::secret_text::has_secret;

/// The record's `providerInfo`: what the driver answered.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Info {
    /// The device that `waitforattach` told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<String>,
    /// The `providerInfo` object of its last answer that had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) answered: Option<Verbatim>,
}

impl Info {
    pub(super) fn recorded(provider_info: Option<&Verbatim>) -> Self {
        provider_info.and_then(|info| info.parse().ok()).unwrap_or_default()
    }

    pub(super) fn verbatim(&self) -> Verbatim {
        Verbatim::of(self).expect("texts and JSON")
    }

    /// Takes the `providerInfo` of an answer, unless a secret is in it.
    pub(super) fn take(&mut self, plugin: &str, answer: &Map<String, Value>, secrets: &Secrets) {
        let Some(told) = field(answer, "providerInfo").filter(|told| told.is_object()) else { return };
        let verbatim = Verbatim::from_value(told);
        let why = if has_secret(told, secrets) {
            "holds a secret"
        } else if verbatim.get().len() > MAX_INFO {
            "is larger than what is kept of one"
        } else {
            self.answered = Some(verbatim);
            return;
        };
        tracing::warn!(
            code = "ProviderInfoDropped",
            driver = plugin,
            "the flexVolume driver answered with a providerInfo that {why}; it is not kept"
        );
    }
}
