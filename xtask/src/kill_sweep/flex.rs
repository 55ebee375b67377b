//! Pods with flexVolumes of two drivers, which are programs: one mounts over memory, the other mounts a device first, which
//! two pods share, and grows it. `node --once` is killed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::drivers::{names, wait_for_end};
use super::scenario::{Data, Kind, Scenario, check_nothing_left, check_volumes, make_disk, volume_path};
use crate::node::Node;

/// This scenario.
pub(super) const KIND: Kind = Kind {
    phases: &[FIRST, RESTART, GROW, TEAR_DOWN, END],
    others: &[],
    part: 60,
    shared: |folder| make_disk(&folder.join(IMAGE), DISK),
    new: |binary, shared| Ok(Box::new(Flex::new(binary, &shared.join(IMAGE))?)),
};

const IMAGE: &str = "flex-image";
const DISK: u64 = 8 << 20;

/// The first start ever, with the pods there.
const FIRST: &str = "flex-first";
/// A start with everything mounted.
const RESTART: &str = "flex-restart";
/// A volume grows.
const GROW: &str = "flex-grow";
/// Some pods go: one of two users of a device, and the only user of another.
const TEAR_DOWN: &str = "flex-tear-down";
/// All pods go.
const END: &str = "flex-end";

/// What pods write.
const POD_FILE: &str = "the pod's\n";

/// Both drivers. Undoing what is not there is no failure, as it is none with a good driver; making what is there is one.
const DRIVER: &str = r#"#!/bin/sh
option() { printf %s "$1" | sed -n "s/.*\"$2\":\"\([^\"]*\)\".*/\1/p"; }
say() { printf '{"status": "%s"%s}\n' "$1" "$2"; }
undo() { while findmnt --noheadings --mountpoint "$1" > /dev/null; do umount "$1" || { say Failure; exit 1; }; done; say Success; }
once() { if findmnt --noheadings --mountpoint "$1" > /dev/null; then say Failure ', "message": "already mounted"'; exit 1; fi; }
case ${0##*/}-$1 in
mem-init) say Success ', "capabilities": {"attach": false}';;
disk-init) say Success;;
mem-mount) once "$2"; mount -t tmpfs flex "$2" > /dev/null 2>&1 || { say Failure; exit 1; }
  say Success ', "providerInfo": {"of": "mem"}';;
disk-waitforattach) say Success ", \"device\": \"$(option "$3" device)\"";;
disk-mountdevice) once "$2"; mount -t ext4 "$3" "$2" > /dev/null 2>&1 || { say Failure; exit 1; }
  say Success ', "providerInfo": {"lun": 7}';;
disk-expandvolume | disk-expandfs) say Success;;
mem-unmount | disk-unmount | disk-unmountdevice) undo "$2";;
*) say 'Not supported'; exit 1;;
esac
"#;

/// Pods, with whether their data is on a disk.
const PODS: [(&str, bool); 5] =
    [("mem-a", false), ("mem-b", false), ("shared-a", true), ("shared-b", true), ("inline", true)];

/// Those that go in the tear-down.
const REMOVED: [&str; 3] = ["mem-a", "shared-a", "inline"];

/// The scenario on one node.
struct Flex {
    node: Node,
    /// The devices of the `PersistentVolume` and of the pod's own volume.
    disks: [PathBuf; 2],
}

impl Flex {
    fn new(binary: &Path, image: &Path) -> Result<Self> {
        let mut node = Node::new(binary)?;
        let disk = |name: &str| -> Result<PathBuf> {
            let own = node.folder().join(name);
            std::fs::copy(image, &own).context("cannot copy the image")?;
            node.attach_loop(&own)
        };
        let disks = [disk("shared.img")?, disk("inline.img")?];
        let folder = node.folder().join("drivers");
        for name in ["mem", "disk"] {
            let own = folder.join(format!("acme~{name}"));
            std::fs::create_dir_all(&own)?;
            refloat_test_support::write_tool(&own, (name, DRIVER))?;
        }
        node.env.push(("REFLOAT_FLEX_VOLUME_PLUGIN_DIR".into(), folder.display().to_string()));
        let flex = Self { node, disks };
        flex.apply_all()?;
        Ok(flex)
    }

    fn apply_volumes(&self, size: &str) -> Result<()> {
        let text = format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv}}\nspec:\n  capacity: {{storage: {size}}}\n  \
             accessModes: [ReadWriteMany]\n  claimRef: {{namespace: test, name: pv}}\n  \
             flexVolume: {{driver: acme/disk, options: {{device: {}}}}}\n---\n\
             apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: pv, namespace: test}}\nspec:\n  \
             accessModes: [ReadWriteMany]\n  volumeName: pv\n  resources: {{requests: {{storage: {size}}}}}\n",
            self.disks[0].display()
        );
        self.node.apply("volumes.yaml", &text)
    }

    fn apply_all(&self) -> Result<()> {
        self.apply_volumes("8Mi")?;
        for (name, _) in PODS {
            let volume = match name {
                "inline" => {
                    let device = self.disks[1].display();
                    format!("flexVolume: {{driver: acme/disk, options: {{device: {device}}}}}")
                }
                "shared-a" | "shared-b" => "persistentVolumeClaim: {claimName: pv}".into(),
                _ => "flexVolume: {driver: acme/mem}".into(),
            };
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  containers:\n  \
                 - {{name: main, image: example.org/main}}\n  volumes:\n  - {{name: data, {volume}}}\n"
            );
            self.node.apply(&format!("pod-{name}.yaml"), &text)?;
        }
        Ok(())
    }

    fn write_data(&self) -> Result<()> {
        let scan = self.node.scan()?.json()?;
        for (pod, _) in PODS {
            std::fs::write(volume_path(&scan, pod, "data")?.join(pod), POD_FILE)?;
        }
        Ok(())
    }

    /// Checks that every volume is mounted exactly once with its data intact, and that a scan finds nothing wrong.
    fn check_all_there(&self, some_removed: bool, data: Data) -> Result<()> {
        let scan = self.node.scan()?.expect(0).context("the scan after the restart")?.json()?;
        let there: Vec<_> = PODS.into_iter().filter(|(pod, _)| !some_removed || !REMOVED.contains(pod)).collect();
        let mut expected: Vec<_> = there.iter().map(|(pod, _)| format!("{pod}/data")).collect();
        expected.sort();
        check_volumes(&self.node, &scan, &expected)?;
        let devices = scan["devices"].as_array().context("a scan without devices")?.len();
        ensure!(devices == if some_removed { 1 } else { 2 }, "there are other devices: {}", scan["devices"]);
        for (pod, on_disk) in there {
            if data == Data::All || data == Data::Persistent && on_disk {
                let path = volume_path(&scan, pod, "data")?.join(pod);
                let found = std::fs::read_to_string(&path).with_context(|| format!("{pod} lost its data"))?;
                ensure!(found == POD_FILE, "the data of {pod} is {found:?}");
            }
        }
        Ok(())
    }

    /// What was killed left its driver at work.
    fn wait_for_drivers(&self) -> Result<()> {
        let folder = self.node.folder().join("drivers");
        wait_for_end("a driver", |words| {
            words.get(1..).is_some_and(|rest| names(rest, &folder)) || names(words, &folder)
        })
    }
}

impl Scenario for Flex {
    fn prepare(&mut self, phase: &str) -> Result<()> {
        if phase == FIRST {
            return Ok(());
        }
        self.node.once()?.expect(0).context("the set-up before the kill")?;
        self.write_data()?;
        match phase {
            RESTART => Ok(()),
            GROW => self.apply_volumes("12Mi"),
            TEAR_DOWN => REMOVED.iter().try_for_each(|name| self.node.remove(&format!("pod-{name}.yaml"))),
            END => self.node.no_pods(),
            other => bail!("there is no phase {other:?}"),
        }
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn check_restart(&mut self, phase: &str) -> Result<()> {
        self.wait_for_drivers()?;
        if phase == END {
            // "The same pods" are none here, which is checked afterwards. Before that they all come back.
            self.apply_all()?;
        }
        self.node.once()?.expect(0).context("the restart with the same pods")?;
        match phase {
            TEAR_DOWN => self.check_all_there(true, Data::All),
            END => self.check_all_there(false, Data::Persistent),
            FIRST => self.check_all_there(false, Data::None),
            _ => self.check_all_there(false, Data::All),
        }
    }

    fn check_nothing_left(&self) -> Result<()> {
        check_nothing_left(&self.node)?;
        for (device, image) in self.disks.iter().zip(["shared.img", "inline.img"]) {
            let found = refloat_mount::loopdev::find(&self.node.folder().join(image))?;
            ensure!(found == [device.clone()], "the disk is attached as {found:?}");
        }
        Ok(())
    }
}
