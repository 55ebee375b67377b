//! What the record keeps of a disk that was found: what it is, and as hints where it was.

use refloat_record::{DeviceNumber, Verbatim};
use serde::{Deserialize, Serialize};

use crate::disk::Identity;
use crate::scsi::Lun;

/// A part of the record's `providerInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::plugins) struct Found {
    /// The id of the disk that was found, by which it is known from then on. None if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::plugins) id: Option<String>,
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
    /// Who made it over what: `mpath-3600508b4…`.
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

impl Found {
    pub(in crate::plugins) fn of(lun: &Lun) -> Self {
        let path = |disk: &crate::scsi::Disk| PathInfo {
            name: disk.name.clone(),
            number: disk.number,
            address: disk.address.to_string(),
        };
        Self {
            id: lun.id().map(str::to_owned),
            map: lun.maps.first().map(|map| MapInfo { name: map.map_name.clone(), uuid: map.uuid.clone() }),
            paths: lun.disks.iter().map(path).collect(),
            disk: None,
        }
    }

    /// What a record has; nothing if it has none that is ours.
    pub(in crate::plugins) fn recorded(info: Option<&Verbatim>) -> Self {
        info.and_then(|info| info.parse().ok()).unwrap_or_default()
    }

    /// The same with what is on the disk.
    pub(super) fn with_disk(&self, disk: &Identity) -> Self {
        Self { disk: Some(disk.clone()), ..self.clone() }
    }
}
