//! What the tests share: volumes, pods, and what is seen of them.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::kit::{Manager, path_of, pod, volume, wait, wait_for};
use crate::node::{Node, files};
use crate::services::say;

/// What has nothing to wait for answers in a fraction of this, emulated as all is; what asks a lost server never does.
const AT_ONCE: Duration = Duration::from_secs(8);

/// A pod's volume that needs nobody.
pub(crate) const MEMORY: &str = "  - {name: m, emptyDir: {medium: Memory}}\n";

/// What the pod of [`raw_pod`] writes.
const WRITTEN: &[u8; 10] = b"by the pod";

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

/// A pod that has the claim `pv` as a raw device, and has written to it.
pub(crate) fn raw_pod(node: &Node) -> Result<()> {
    let volumes = "  - {name: v, persistentVolumeClaim: {claimName: pv}}\n";
    let text = pod("web", "[]", volumes).replace("volumeMounts: []", "volumeDevices: [{name: v, devicePath: /dev/x}]");
    node.apply("web.yaml", &text)?;
    node.once()?.expect(0)?;
    let seen = node.scan()?.expect(0)?.json()?;
    let it = volume(&seen, "web", "v")?;
    ensure!(it["mode"] == "Block" && it["state"] == "Mounted", "{it:#}");
    let device = std::fs::OpenOptions::new().read(true).write(true).open(path_of(&seen, "web", "v")?)?;
    device.write_all_at(WRITTEN, 4096)?;
    Ok(device.sync_all()?)
}

/// Checks that what the pod of [`raw_pod`] wrote is on this map.
pub(crate) fn check_raw(map: &str) -> Result<()> {
    let mut found = [0; WRITTEN.len()];
    std::fs::File::open(format!("/dev/mapper/{map}"))?.read_exact_at(&mut found, 4096)?;
    ensure!(found == *WRITTEN, "{found:?}");
    Ok(())
}

/// While a server is silent: looking, a restart, and the volumes of another pod, set up and torn down, wait for nothing. So many
/// mounts are there.
pub(crate) fn nothing_waits(node: &Node, mounts: usize) -> Result<()> {
    for args in [&["scan", "-o", "json"][..], &["doctor"], &["explain", "test/web"]] {
        let ran = at_once(args[0], || node.run(args))?;
        ensure!(ran.code == 0 || ran.code == 3, "{ran:?}");
    }
    let manager = Manager::start(node)?;
    node.apply("other.yaml", &pod("other", "[]", MEMORY))?;
    at_once("the other pod", || wait("the other pod", || Ok(node.mounts()?.len() == mounts + 1)))?;
    node.remove("other.yaml")?;
    at_once("the other pod's end", || wait("the other pod's end", || Ok(node.mounts()?.len() == mounts)))?;
    let code = at_once("a stop", || manager.stop(Signal::TERM))?;
    ensure!(code == Some(0), "{code:?}");
    Ok(())
}

/// Waits until no mount, folder or record of a plugin's volumes is left.
pub(crate) fn wait_for_nothing(node: &Node, plugin: &str, patience: Duration) -> Result<()> {
    wait_for(patience, "everything going", || {
        Ok(node.mounts()?.is_empty()
            && files(&node.root.join("pods"))?.is_empty()
            && !node.run(&["record", "list", "-o", "json"])?.expect(0)?.stdout.contains(plugin))
    })
}

/// Whether the device mapper has a map of this name.
pub(crate) fn map_exists(map: &str) -> Result<bool> {
    Ok(say("dmsetup", &["ls"])?.lines().any(|line| line.split_whitespace().next() == Some(map)))
}
