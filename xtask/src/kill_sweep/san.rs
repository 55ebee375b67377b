//! Pods with Fibre Channel and iSCSI volumes of a simulated storage array, over real block devices: a disk that two pods share,
//! two units of one target behind two portals, a raw disk; all with multipath maps. `node --once` is killed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use refloat_test_support::ScsiSim;
use refloat_test_support::scsi_sim::{Port, UnitSpec};

use super::drivers::{names, wait_for_end};
use super::scenario::{Data, Kind, Scenario, check_nothing_left, check_volumes, make_disk, tools_of, volume_path};
use crate::node::{self, Node};

/// This scenario.
pub(super) const KIND: Kind = Kind {
    phases: &[FIRST, RESTART, TEAR_DOWN, END],
    others: &[],
    part: 40,
    shared: |folder| make_disk(&folder.join(IMAGE), DISK),
    new: |binary, shared| Ok(Box::new(San::new(binary, &shared.join(IMAGE))?)),
};

const IMAGE: &str = "san-image";
const DISK: u64 = 8 << 20;

/// The first start ever, with the pods there.
const FIRST: &str = "san-first";
/// A start with everything mounted.
const RESTART: &str = "san-restart";
/// One of two users of a disk goes, one of two users of a target, and a raw disk.
const TEAR_DOWN: &str = "san-tear-down";
/// All pods go.
const END: &str = "san-end";

/// What pods write.
const POD_FILE: &str = "the pod's\n";

/// Pods with their volumes.
const PODS: [(&str, &str); 5] = [("fc-a", "fc"), ("fc-b", "fc"), ("one", "one"), ("two", "two"), (RAW, RAW)];
const RAW: &str = "raw";
const REMOVED: [&str; 3] = ["fc-a", "one", RAW];

/// The units, with their numbers.
const UNITS: [(&str, u64); 4] = [("fc", 0), ("one", 1), ("two", 2), (RAW, 3)];

/// The scenario on one node.
struct San {
    // Dropped before the node, whose folder it is in. The kernel detaches its disks when nothing holds them any more.
    sim: ScsiSim,
    node: Node,
    iqn: String,
    portals: Vec<String>,
    tools: PathBuf,
}

impl San {
    fn new(binary: &Path, image: &Path) -> Result<Self> {
        let mut node = Node::new(binary)?;
        let tools = tools_of(&mut node)?;
        let sim = ScsiSim::with_programs(&node.folder().join("scsi"), &tools);
        let sim = sim.map_err(|why| anyhow!("there is no array: {why:?}"))?;
        node.env.push(("REFLOAT_SYSFS".into(), sim.sysfs().display().to_string()));
        node.env.push(("REFLOAT_DEVFS".into(), sim.dev().display().to_string()));
        let ports: Vec<Port> = (2..).zip(["500a01", "500a02"]).map(|(host, wwn)| sim.fc_port(host, wwn)).collect();
        let (iqn, portals) = sim.target(2);
        for (name, lun) in UNITS {
            let own = node.folder().join(format!("{name}.img"));
            std::fs::copy(image, &own).context("cannot copy the image")?;
            let wwid = format!("naa.600508b400105e21000090000049000{lun}");
            let by_fc = ["fc", RAW].contains(&name);
            let ports: &[Port] = if by_fc { &ports } else { &[] };
            sim.unit(&UnitSpec { name, wwid: &wwid, lun, ports, multipath: true, image: &own });
            if !by_fc {
                sim.put_behind(name, &iqn);
            }
        }
        let san = Self { sim, node, iqn, portals, tools };
        san.apply_all()?;
        Ok(san)
    }

    fn apply_all(&self) -> Result<()> {
        for (name, lun) in UNITS {
            let source = match name {
                "fc" | RAW => format!("fc: {{targetWWNs: [\"500a01\", \"500a02\"], lun: {lun}}}"),
                _ => format!(
                    "iscsi: {{targetPortal: \"{}\", portals: [\"{}\"], iqn: \"{}\", lun: {lun}}}",
                    self.portals[0], self.portals[1], self.iqn
                ),
            };
            let mode = if name == RAW { "Block" } else { "Filesystem" };
            self.node.apply(
                &format!("volume-{name}.yaml"),
                &format!(
                    "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  \
                     capacity: {{storage: 8Mi}}\n  accessModes: [ReadWriteMany]\n  volumeMode: {mode}\n  \
                     claimRef: {{namespace: test, name: {name}}}\n  {source}\n---\n\
                     apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  \
                     accessModes: [ReadWriteMany]\n  volumeMode: {mode}\n  volumeName: {name}\n  \
                     resources: {{requests: {{storage: 8Mi}}}}\n"
                ),
            )?;
        }
        for (name, volume) in PODS {
            let uses = if name == RAW { ", volumeDevices: [{name: data, devicePath: /dev/x}]" } else { "" };
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  containers:\n  \
                 - {{name: main, image: example.org/main{uses}}}\n  volumes:\n  \
                 - {{name: data, persistentVolumeClaim: {{claimName: {volume}}}}}\n"
            );
            self.node.apply(&format!("pod-{name}.yaml"), &text)?;
        }
        Ok(())
    }

    fn write_data(&self) -> Result<()> {
        let scan = self.node.scan()?.json()?;
        for (pod, _) in PODS.into_iter().filter(|(pod, _)| *pod != RAW) {
            std::fs::write(volume_path(&scan, pod, "data")?.join(pod), POD_FILE)?;
        }
        Ok(())
    }

    /// Checks that every volume is there exactly once with its data intact, and nothing of the array but what they need.
    fn check_all_there(&self, phase: &str) -> Result<()> {
        let (some_removed, data) = (phase == TEAR_DOWN, if phase == FIRST { Data::None } else { Data::All });
        let scan = self.node.scan()?.expect(0).context("the scan after the restart")?.json()?;
        let there: Vec<_> = PODS.into_iter().filter(|(pod, _)| !some_removed || !REMOVED.contains(pod)).collect();
        let mut expected: Vec<_> = there.iter().map(|(pod, _)| format!("{pod}/data")).collect();
        expected.sort();
        check_volumes(&self.node, &scan, &expected)?;
        for (unit, _) in UNITS {
            let used = there.iter().any(|(_, volume)| *volume == unit);
            let (disks, map) = (self.sim.disks(unit), self.sim.map(unit));
            // multipathd does not make a map again that was flushed before the kill: then one path is used alone, and that is told.
            let has_map = map.is_some() || phase == END;
            let right = if used { !disks.is_empty() && has_map } else { disks.is_empty() && map.is_none() };
            ensure!(right, "of {unit}, used: {used}, there are {disks:?} and {map:?}: {:?}", self.sim.events());
        }
        let sessions = self.sim.sessions(&self.iqn);
        ensure!(sessions.len() == 2, "there are the sessions {sessions:?}: {:?}", self.sim.events());
        for (pod, _) in there.into_iter().filter(|(pod, _)| *pod != RAW && data != Data::None) {
            let path = volume_path(&scan, pod, "data")?.join(pod);
            let found = std::fs::read_to_string(&path).with_context(|| format!("{pod} lost its data"))?;
            ensure!(found == POD_FILE, "the data of {pod} is {found:?}");
        }
        Ok(())
    }
}

impl Scenario for San {
    fn prepare(&mut self, phase: &str) -> Result<()> {
        if phase == FIRST {
            return Ok(());
        }
        self.node.once()?.expect(0).context("the set-up before the kill")?;
        self.write_data()?;
        match phase {
            RESTART => Ok(()),
            TEAR_DOWN => REMOVED.iter().try_for_each(|name| self.node.remove(&format!("pod-{name}.yaml"))),
            END => self.node.no_pods(),
            other => bail!("there is no phase {other:?}"),
        }
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn check_restart(&mut self, phase: &str) -> Result<()> {
        // What was killed left `iscsiadm` at work.
        wait_for_end("a tool", |words| names(words, &self.tools))?;
        if phase == END {
            // "The same pods" are none here, which is checked afterwards. Before that they all come back.
            self.apply_all()?;
        }
        self.node.once()?.expect(0).context("the restart with the same pods")?;
        self.check_all_there(phase)
    }

    fn check_nothing_left(&self) -> Result<()> {
        check_nothing_left(&self.node)?;
        let events = || self.sim.events();
        for (unit, _) in UNITS {
            let (disks, map) = (self.sim.disks(unit), self.sim.map(unit));
            ensure!(disks.is_empty() && map.is_none(), "of {unit} are left {disks:?} and {map:?}: {:?}", events());
        }
        let sessions = self.sim.sessions(&self.iqn);
        ensure!(sessions.is_empty(), "the sessions {sessions:?} are left: {:?}", events());
        let database: Vec<PathBuf> = match node::files(&self.sim.iscsi()) {
            Ok(all) => all.into_iter().filter(|path| path.components().count() > 3).collect(),
            // Nobody made it.
            Err(_) => vec![],
        };
        ensure!(database.is_empty(), "open-iscsi still knows {database:?}: {:?}", events());
        Ok(())
    }
}
