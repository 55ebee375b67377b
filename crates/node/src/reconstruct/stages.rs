//! Which staged CSI volume a mount was bound from.

use std::path::Path;

use refloat_mount::Mount;
use refloat_record::{PluginName, Record, RelPath};
use refloat_volume::{RebuiltDevice, layout};

use super::Context;

/// The staged volume that shows the same file system, and the same root or one above it, as the topmost of these mounts: by
/// its record, else by the kubelet's file beside it. `None` if there is none, or if two could be it.
pub(super) fn of_mount(context: &Context<'_>, stack: &[Mount<'_>]) -> Option<RebuiltDevice> {
    let top = stack.last()?;
    let root = context.mounts.root;
    let mut found: Option<RebuiltDevice> = None;
    for mount in context.mounts.table.of_device(top.device()) {
        if !top.root().starts_with(mount.root()) {
            continue;
        }
        let Ok(rel) = mount.point().strip_prefix(root) else { continue };
        if !rel.starts_with(Path::new(layout::PLUGINS).join(layout::CSI)) || !rel.ends_with(layout::CSI_GLOBAL_MOUNT) {
            continue;
        }
        let Some(device) = by_record(context, rel).or_else(|| by_file(context, rel)) else { continue };
        if found.as_ref().is_some_and(|found| *found != device) {
            return None;
        }
        found = Some(device);
    }
    found
}

fn by_record(context: &Context<'_>, rel: &Path) -> Option<RebuiltDevice> {
    let record = context.evidence.records.records.iter().find_map(|record| match record {
        Record::DeviceMount(device) if device.device_mount_path.as_path() == rel => Some(device),
        _ => None,
    })?;
    let name = record.unique_name.as_str().strip_prefix(layout::CSI)?.strip_prefix('/')?;
    Some(RebuiltDevice { volume_name: name.to_owned(), provider_info: record.provider_info.clone()? })
}

fn by_file(context: &Context<'_>, rel: &Path) -> Option<RebuiltDevice> {
    let foreign = context.evidence.tree.as_ref()?.foreign.get(rel.parent()?)?;
    let plugin = context.plugins.by_name(&PluginName::new(layout::CSI).ok()?)?;
    plugin.device_from_foreign(&RelPath::new(rel.to_str()?).ok()?, foreign)?.ok()
}
