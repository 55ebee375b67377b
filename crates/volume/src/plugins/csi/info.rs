//! What is needed to undo a volume: the record's `providerInfo`.

use refloat_record::Verbatim;
use serde::{Deserialize, Serialize};

use crate::{Recorded, migration};

/// Driver, volume id and what the kubelet's file says besides. No secret, no context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Info {
    /// The driver.
    pub(super) driver: String,
    /// The volume's id, as the driver was told it.
    pub(super) volume_handle: String,
    /// Whether it is an inline volume.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) ephemeral: bool,
    /// The name of the `VolumeAttachment`, whether or not there is one.
    #[serde(default, rename = "attachmentID", skip_serializing_if = "Option::is_none")]
    pub(super) attachment_id: Option<String>,
}

impl Info {
    pub(super) fn verbatim(&self) -> Verbatim {
        Verbatim::of(self).expect("texts and a flag")
    }

    /// As the record has it: what was written when the driver was asked, else what the spec says.
    pub(super) fn recorded(recorded: Recorded<'_>) -> Option<Self> {
        if let Some(info) = recorded.provider_info.and_then(|info| info.parse().ok()) {
            return Some(info);
        }
        let of_driver = recorded.persistent_volume.and_then(|volume| volume.parse::<Whole>().ok());
        let of_driver = of_driver.map(|volume| volume.spec.csi).or_else(|| {
            // The record of a volume that was translated has it as it was.
            let migrated = migration::recorded(recorded.volume, recorded.persistent_volume)?;
            let csi = migrated.persistent_volume.spec?.csi?;
            Some(Csi { driver: csi.driver, volume_handle: csi.volume_handle })
        });
        let Csi { driver, volume_handle } = of_driver?;
        Some(Self { driver, volume_handle, ephemeral: false, attachment_id: None })
    }
}

/// The part of a `PersistentVolume` that is needed.
#[derive(Deserialize)]
struct Whole {
    spec: Spec,
}
#[derive(Deserialize)]
struct Spec {
    csi: Csi,
}
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Csi {
    driver: String,
    volume_handle: String,
}
