//! The two names of one volume: that of the plugin, and that of the driver.

use k8s_openapi::api::core::v1::CSIPersistentVolumeSource;
use refloat_record::PluginName;

use super::{RULES, Rules};
use crate::layout::CSI;

/// The name of the `PersistentVolume` that is made up for an inline volume. It names the pod's folder.
pub(super) fn made_up(rules: &Rules, id: &str) -> String {
    format!("{}-{id}", rules.driver)
}

/// The name that the `PersistentVolume` made up for this inline volume had; none if its driver took no plugin's place.
pub fn inline_name(source: &CSIPersistentVolumeSource) -> Option<String> {
    let rules = RULES.iter().find(|rules| rules.driver == source.driver)?;
    Some(made_up(rules, (rules.disk_of_handle)(&source.volume_handle)?))
}

/// The plugin whose place the driver of this volume took, by its unique name as a CSI volume.
pub fn in_tree_plugin(unique_name: &str) -> Option<&'static str> {
    let name = Name::of(unique_name).filter(|name| name.by_driver)?;
    Some(name.rules.plugin)
}

/// Whether a driver took the place of this plugin.
pub fn gave_way(plugin: &PluginName) -> bool {
    RULES.iter().any(|rules| rules.plugin == plugin.as_str())
}

/// Whether two unique volume names are of the same volume: the same text, or one of the plugin and the other of the driver
/// that took its place. The plugin's name of a persistent disk has no zone, so it is that of the disk in any; and that of an
/// EBS volume may have its zone or not.
pub fn same_volume(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let (Some(one), Some(other)) = (Name::of(one), Name::of(other)) else { return false };
    // Two zones of one driver are two disks.
    let forms = one.by_driver != other.by_driver || !one.by_driver;
    one.rules.plugin == other.rules.plugin && one.disk == other.disk && forms
}

/// A unique volume name, taken apart.
struct Name<'n> {
    rules: &'static Rules,
    by_driver: bool,
    disk: &'n str,
}

impl<'n> Name<'n> {
    fn of(name: &'n str) -> Option<Self> {
        RULES.iter().find_map(|&rules| {
            if let Some(disk) = name.strip_prefix(rules.plugin).and_then(|rest| rest.strip_prefix('/')) {
                return Some(Self { rules, by_driver: false, disk: (rules.disk_of_source)(disk)? });
            }
            let volume = name.strip_prefix(CSI)?.strip_prefix('/')?;
            let handle = volume.strip_prefix(rules.driver)?.strip_prefix('^')?;
            Some(Self { rules, by_driver: true, disk: (rules.disk_of_handle)(handle)? })
        })
    }
}
