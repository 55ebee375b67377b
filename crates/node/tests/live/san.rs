//! What the tests of Fibre Channel and iSCSI share: volumes on a simulated array, and what is seen of them.

use std::path::Path;

use refloat_node::manager::Outcome as Settled;
use refloat_record::{DeviceMount, Record};
use refloat_test_support::ScsiSim;

use crate::stage::{Stage, pod};

/// A pod's volume `d`, of the claim `pv`.
pub const CLAIM: &str = "  - {name: d, persistentVolumeClaim: {claimName: pv}}\n";

/// The digits of a unit's identity.
pub fn wwid(number: u64) -> String {
    format!("600508b400105e21000090000049000{number}")
}

/// A manifest with a `PersistentVolume` of this name and source, and its claim. `of_spec` comes after the source.
pub fn persistent(stage: &Stage, name: &str, source: &str, of_spec: &str) {
    let local = crate::stage::local(name, Path::new("/none"));
    let text = local.replace("local: {path: /none}", &format!("{source}{of_spec}"));
    assert_ne!(text, local);
    stage.manifest(&format!("{name}.yaml"), &text);
}

/// A pod that has the claim as a raw device.
pub fn block_pod(uid: &str) -> String {
    pod(uid, CLAIM)
        .replace("{name: c, image: i}", "{name: c, image: i, volumeDevices: [{name: d, devicePath: /dev/x}]}")
}

/// The records of devices.
pub fn devices(stage: &Stage) -> Vec<DeviceMount> {
    let records = stage.records().into_iter();
    records.filter_map(|record| if let Record::DeviceMount(device) = record { Some(device) } else { None }).collect()
}

/// What the one device's record knows.
pub fn info(stage: &Stage) -> serde_json::Value {
    let [device] = devices(stage).try_into().unwrap();
    device.provider_info.unwrap().parse().unwrap()
}

/// What was asked of the array that begins so.
pub fn events(sim: &ScsiSim, kind: &str) -> Vec<String> {
    sim.events().into_iter().filter(|event| event.starts_with(kind)).collect()
}

/// No disk is on the node, and nothing of any pod.
#[track_caller]
pub fn assert_clean(stage: &Stage, sim: &ScsiSim) {
    stage.assert_clean();
    assert_eq!(std::fs::read_dir(sim.sysfs().join("block")).unwrap().count(), 0, "{:?}", sim.events());
}

/// The file that is on each disk.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path.join("disk.txt")).unwrap()
}

/// The code and message of what alone went wrong.
pub fn only_failure(settled: &Settled) -> (&'static str, &str) {
    let [failure] = settled.failures.as_slice() else { panic!("{:#?}", settled.failures) };
    (failure.code, &failure.message)
}

/// Takes records away, or makes them unreadable.
pub fn lose(stage: &Stage, kind: &str, part: &str, damaged: bool) {
    let file = stage.record_file(kind, part);
    if damaged { std::fs::write(file, "{").unwrap() } else { std::fs::remove_file(file).unwrap() }
}
