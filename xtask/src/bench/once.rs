//! One reconstruction, from process start: what the benchmark starts again and again.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use refloat_mount::{Kernel, NodeRoot, TableReader};
use refloat_node::{Actual, Gather, Manager, ManagerOptions, reconstruct};
use refloat_record::Store;
use refloat_volume::{Host, Plugins};
use serde_json::json;

/// As `scan` does: reads records, table and folders.
pub(super) fn scan(root: &Path, state: &Path) -> Result<()> {
    let kernel = Kernel::detect();
    let host = Host {
        flex_drivers: refloat_volume::plugins::flex_volume::FlexDrivers::default(),
        providers: refloat_volume::provider::Providers::default(),
        root: NodeRoot::open(root)?,
        kernel,
        boot_id: refloat_node::evidence::boot_id()?,
        tool_deadline: Duration::ZERO,
        table: Mutex::new(TableReader::new(kernel)),
        drivers: refloat_csi::Drivers::none(),
        sys: refloat_volume::scsi::Sys::default(),
    };
    let evidence = Gather::new(&host).read(|| Store::read(state)).context("cannot gather")?;
    end(&reconstruct(&evidence, &Plugins::builtin()))
}

/// As `node` does at its start.
pub(super) fn restart(root: &Path, state: &Path) -> Result<()> {
    let manager = Manager::start(ManagerOptions {
        flex_volume_dir: std::path::PathBuf::new(),
        sys: refloat_volume::scsi::Sys::default(),
        provider_dir: None,
        root_dir: root.into(),
        state_dir: state.into(),
        manifests: root.join("none"),
        workers: 1,
        operation_deadline: Duration::from_secs(1),
        lazy_unmount: false,
        records: true,
    });
    end(manager.context("cannot start")?.actual())
}

/// Prints what was found and ends the process: freeing all that memory piece by piece is no part of the work.
fn end(actual: &Actual) -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).and_then(|l| l.trim().split(' ').next());
    let peak: u64 = peak.and_then(|n| n.parse().ok()).unwrap_or(0);
    println!("{}", json!({ "volumes": actual.volumes.len(), "devices": actual.devices.len(), "peakKiB": peak }));
    std::process::exit(0)
}
