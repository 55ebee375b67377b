//! What must hold after the restarts.

use std::os::unix::fs::{FileExt, MetadataExt};

use anyhow::{Context, Result, ensure};
use refloat_mount::loopdev;

use super::{Csi, GROWN, POD_FILE, PODS, REMOVED, SIZE, VOLUMES, Volume, can_grow_mounted, data_of, handle, journal};
use crate::kill_sweep::scenario::{Data, check_volumes, volume_path};
use crate::node;

impl Csi {
    /// Checks that every volume is mounted exactly once with its data intact, and that a scan finds nothing wrong.
    pub(super) fn check_all_there(&self, grown: bool, some_removed: bool, data: Data) -> Result<()> {
        let scan = self.node.scan()?.expect(0).context("the scan after the restart")?.json()?;
        let pods: Vec<_> = PODS.iter().filter(|(pod, _)| !some_removed || !REMOVED.contains(pod)).collect();
        let mut expected: Vec<_> = pods.iter().map(|(pod, _)| format!("{pod}/data")).collect();
        expected.sort();
        check_volumes(&self.node, &scan, &expected)?;
        for (pod, claim) in &pods {
            let raw = *claim == "raw";
            // A raw volume is no mount where the pod sees it, but one that belongs to it.
            let path = volume_path(&scan, pod, "data")?;
            let mounted = self.node.mounts()?.iter().filter(|point| **point == path).count();
            ensure!(mounted == usize::from(!raw), "{} is mounted {mounted} times", path.display());
            if data == Data::All || data == Data::Persistent && !claim.is_empty() {
                let (path, offset) = data_of(&scan, pod)?;
                let mut found = vec![0; POD_FILE.len()];
                let file = std::fs::File::open(&path).with_context(|| format!("{pod} lost {}", path.display()))?;
                file.read_exact_at(&mut found, offset).with_context(|| format!("cannot read {}", path.display()))?;
                ensure!(found == POD_FILE, "{pod} lost its data: {found:?}");
            }
            if *claim == "alone" {
                let group = std::fs::metadata(&path)?.gid();
                ensure!(group == 4321, "the volume of {pod} is the group {group}'s");
            }
        }
        let devices = scan["devices"].as_array().context("a scan without devices")?;
        let mut staged: Vec<_> = devices.iter().filter_map(|d| d["uniqueName"].as_str()).collect();
        staged.sort_unstable();
        let name = |volume: &str| format!("kubernetes.io/csi/{}^{}", super::STAGING, handle(volume));
        let wanted = if some_removed { vec!["raw", "shared"] } else { vec!["alone", "raw", "shared"] };
        let wanted: Vec<_> = wanted.into_iter().map(name).collect();
        ensure!(staged == wanted, "there are other devices: {}", scan["devices"]);
        if grown {
            self.check_grown(&scan)?;
        }
        self.check_loops(&if some_removed { vec!["raw", "shared"] } else { vec!["alone", "direct", "raw", "shared"] })
    }

    fn check_grown(&self, scan: &serde_json::Value) -> Result<()> {
        let mut device = std::fs::File::open(volume_path(scan, "raw-a", "data")?)?;
        let size = std::io::Seek::seek(&mut device, std::io::SeekFrom::End(0))?;
        ensure!(size == GROWN << 20, "the raw volume has {size} bytes");
        if can_grow_mounted()? {
            let seen = rustix::fs::statvfs(&volume_path(scan, "alone", "data")?)?;
            let size = seen.f_blocks * seen.f_frsize;
            ensure!(size > SIZE << 20, "the file system has {size} bytes");
        }
        let calls = self.staging.journal()?;
        for Volume { name: volume, .. } in VOLUMES.iter().filter(|volume| volume.grows) {
            ensure!(journal::succeeded(&calls, "NodeExpandVolume", &handle(volume)), "{volume} was not grown");
        }
        Ok(())
    }

    /// Checks that each of these volumes is attached once, and no other.
    fn check_loops(&self, volumes: &[&str]) -> Result<()> {
        let state = |name: &str| self.node.folder().join(name).join("state");
        let states = [state(super::STAGING), state(super::DIRECT)];
        let all = loopdev::all()?;
        let backing: Vec<_> =
            all.iter().map(|d| &d.backing).filter(|b| states.iter().any(|s| b.starts_with(s))).collect();
        ensure!(backing.len() == volumes.len(), "there are other loop devices: {backing:?}");
        for volume in volumes {
            let folder = format!("v-{}", handle(volume));
            let times = backing.iter().filter(|b| b.parent().is_some_and(|p| p.ends_with(&folder))).count();
            ensure!(times == 1, "{volume} is attached {times} times: {backing:?}");
        }
        Ok(())
    }

    /// Checks that nothing is left: no mount, folder, loop device or record but the drivers'; and what the drivers heard.
    pub(super) fn check_all_gone(&self) -> Result<()> {
        let mounts = self.node.mounts()?;
        ensure!(mounts.is_empty(), "mounts are left: {mounts:?}");
        for folder in ["pods", "plugins"] {
            let path = self.node.root.join(folder);
            if std::fs::symlink_metadata(&path).is_ok() {
                let left = node::files(&path)?;
                ensure!(left.is_empty(), "folders are left in {folder}: {left:?}");
            }
        }
        let records = node::files(&self.node.state)?;
        let left: Vec<_> = records.iter().filter(|p| p.components().count() > 1 && !p.starts_with("drivers")).collect();
        ensure!(left.is_empty(), "record files are left: {left:?}");
        let scan = self.node.scan()?.expect(0).context("the scan of the empty node")?.json()?;
        for list in ["volumes", "devices", "leftovers"] {
            ensure!(scan[list].as_array().is_some_and(Vec::is_empty), "the scan finds {list}: {}", scan[list]);
        }
        let left: Vec<_> = loopdev::all()?.into_iter().filter(|d| d.backing.starts_with(self.node.folder())).collect();
        ensure!(left.is_empty(), "loop devices are left: {left:?}");
        let mut again = journal::check(&self.staging.journal()?).context("what the staging driver heard")?;
        let direct = self.direct.journal()?;
        again += journal::check(&direct).context("what the driver without stages heard")?;
        ensure!(direct.iter().all(|e| !e.call.to_lowercase().contains("stage")), "it was asked to stage");
        // One was killed, once: of one call the answer may have been lost.
        ensure!(again <= 1, "{again} calls came again after they had succeeded");
        Ok(())
    }
}
