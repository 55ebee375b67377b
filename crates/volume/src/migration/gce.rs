//! Persistent disks of the Google Compute Engine.

use serde_json::Value;

use super::{Disk, Fields, Rules, Untranslatable, partition, text, topology};

pub(super) static RULES: Rules = Rules {
    plugin: "kubernetes.io/gce-pd",
    source: "gcePersistentDisk",
    driver: "pd.csi.storage.gke.io",
    topology_key: "topology.gke.io/zone",
    disk,
    inline_access: |read_only| if read_only { "ReadOnlyMany" } else { "ReadWriteOnce" },
    access_modes,
    disk_of_source: |name| Some(name),
    disk_of_handle,
};

/// Project and zone are not in the source. The driver's sidecars fill them in for the driver's controller; on a node the
/// handle is used as it is here.
///
/// # Source
/// `UnspecifiedValue` of `gce_pd.go`.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// What stands between the zones of a disk that is in several.
///
/// # Source
/// `labelMultiZoneDelimiter` of `csi-translation-lib`.
pub(super) const BETWEEN_ZONES: &str = "__";

fn disk(source: &Fields, labels: &Fields) -> Result<Disk, Untranslatable> {
    let name = text(source, "pdName")?;
    let label = |key: &str| labels.get(key).and_then(Value::as_str).filter(|label| !label.is_empty());
    let place = match label(topology::ZONE_BETA).or_else(|| label(topology::ZONE)) {
        None => format!("zones/{UNSPECIFIED}"),
        Some(zones) if zones.contains(BETWEEN_ZONES) => format!("regions/{}", region(zones)?),
        Some(zone) => format!("zones/{zone}"),
    };
    let partition = match partition(source)? {
        0 => String::new(),
        number => number.to_string(),
    };
    Ok(Disk { handle: format!("projects/{UNSPECIFIED}/{place}/disks/{name}"), id: name.to_owned(), partition })
}

/// The region that all these zones are in.
///
/// # Source
/// `gceGetRegionFromZones` of `gce_pd.go`.
fn region(zones: &str) -> Result<String, Untranslatable> {
    let wrong = |why: String| Untranslatable::new("pdName", why);
    let mut found: Option<String> = None;
    for zone in zones.split(BETWEEN_ZONES) {
        let parts: Vec<&str> = zone.split('-').collect();
        let [locale, region, _] = parts[..] else {
            return Err(wrong(format!(
                "is of a disk in several zones, of which {zone:?} is none (expected as in europe-west1-b)"
            )));
        };
        let region = format!("{locale}-{region}");
        match &found {
            Some(other) if *other != region => {
                return Err(wrong(format!("is of a disk in several zones, of two regions: {other} and {region}")));
            }
            _ => found = Some(region),
        }
    }
    found.ok_or_else(|| wrong("is of a disk in no zone".into()))
}

/// The in-tree plugin attached every disk for one writer or for readers, whatever stood there.
///
/// # Source
/// `backwardCompatibleAccessModes` of `gce_pd.go`.
fn access_modes(modes: &[String]) -> Vec<String> {
    let has = |wanted: &str| modes.iter().any(|mode| mode == wanted);
    let readers = has("ReadOnlyMany") && !has("ReadWriteOnce") && !has("ReadWriteMany");
    vec![if readers { "ReadOnlyMany" } else { "ReadWriteOnce" }.to_owned()]
}

/// The disk's name, by a handle of any project, zone or region.
fn disk_of_handle(handle: &str) -> Option<&str> {
    let mut parts = handle.split('/');
    let shape = (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let ("projects", _, "zones" | "regions", _, "disks") = shape else { return None };
    let name = parts.next()?;
    (parts.next().is_none() && !name.is_empty()).then_some(name)
}
