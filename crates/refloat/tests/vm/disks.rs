//! What the tests of disks share: volumes, pods, and what is seen of them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::kit::{pod, volume};
use crate::node::Node;
use crate::services::say;

/// What has nothing to wait for answers in a fraction of this, emulated as all is; what asks a lost server never does.
const AT_ONCE: Duration = Duration::from_secs(8);

/// Runs something that nothing may hold up.
pub(crate) fn at_once<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    let answer = run()?;
    ensure!(begun.elapsed() < AT_ONCE, "{what} took {:?}", begun.elapsed());
    Ok(answer)
}

/// A `PersistentVolume` with this source, and its claim of the same name. `both` goes into both specs.
pub(crate) fn persistent(node: &Node, name: &str, source: &str, both: &str) -> Result<()> {
    let text = format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  capacity: {{storage: 32Mi}}\n  \
         accessModes: [ReadWriteOnce]\n{both}  {source}\n  claimRef: {{namespace: test, name: {name}}}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  \
         volumeName: {name}\n{both}  accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: 32Mi}}}}\n"
    );
    node.apply(&format!("volume-{name}.yaml"), &text)
}

/// A pod of one volume.
pub(crate) fn pod_of(node: &Node, name: &str, claim: &str) -> Result<()> {
    let volumes = format!("  - {{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}\n");
    node.apply(&format!("{name}.yaml"), &pod(name, "[]", &volumes))
}

/// The mount of a pod's volume, as a scan tells it.
pub(crate) fn mount_of(node: &Node, pod: &str) -> Result<Value> {
    let scan = node.scan()?.json()?;
    let seen = volume(&scan, pod, "v")?;
    ensure!(seen["state"] == "Mounted" && seen["record"] == "Ok", "{seen:#}");
    Ok(seen["mount"].clone())
}

/// Whether the device mapper has a map of this name.
pub(crate) fn map_exists(map: &str) -> Result<bool> {
    Ok(say("dmsetup", &["ls"])?.lines().any(|line| line.split_whitespace().next() == Some(map)))
}
