//! What the record keeps of a disk: what it was asked for by, what it is, and as hints where it was.

use refloat_record::{DeviceNumber, Verbatim};
use serde::{Deserialize, Serialize};

use super::Wanted;
use crate::disk::Identity;
use crate::scsi::Lun;

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
    /// The id of the disk that was found, by which it is known from then on. None if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    /// The multipath map over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    map: Option<MapInfo>,
    /// Its paths in the boot of the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) paths: Vec<PathInfo>,
    /// What is on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) disk: Option<Identity>,
}

/// A multipath map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MapInfo {
    /// What it is called: `mpatha`.
    name: String,
    /// Who made it and over what: `mpath-3600508b4…`.
    uuid: String,
}

/// One path. Names and numbers are another disk's after the next boot, or sooner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PathInfo {
    /// `sdc`.
    pub(super) name: String,
    number: DeviceNumber,
    /// `host:channel:target:lun`.
    pub(super) address: String,
}

impl Info {
    pub(super) fn of(wanted: &Wanted, lun: &Lun) -> Self {
        let (target_wwns, number, wwids) = match wanted {
            Wanted::Targets { wwns, lun } => (wwns.clone(), Some(*lun), vec![]),
            Wanted::Wwids(wwids) => (vec![], None, wwids.clone()),
        };
        let path = |disk: &crate::scsi::Disk| PathInfo {
            name: disk.name.clone(),
            number: disk.number,
            address: disk.address.to_string(),
        };
        Self {
            target_wwns,
            lun: number,
            wwids,
            id: lun.id().map(str::to_owned),
            map: lun.maps.first().map(|map| MapInfo { name: map.map_name.clone(), uuid: map.uuid.clone() }),
            paths: lun.disks.iter().map(path).collect(),
            disk: None,
        }
    }

    /// What a record has; nothing if it has none that is ours.
    pub(super) fn recorded(info: Option<&Verbatim>) -> Self {
        info.and_then(|info| info.parse().ok()).unwrap_or_default()
    }

    /// The same with what is on the disk.
    pub(super) fn with_disk(&self, disk: &Identity) -> Self {
        Self { disk: Some(disk.clone()), ..self.clone() }
    }

    pub(super) fn verbatim(&self) -> Verbatim {
        Verbatim::of(self).expect("texts and numbers")
    }
}
