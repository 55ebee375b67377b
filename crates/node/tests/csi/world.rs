//! A node with drivers.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use refloat_csi::Drivers;
use refloat_mount::{Kernel, NodeRoot, TableReader};
use refloat_node::manager::Outcome;
use refloat_node::{ActualVolume, VolumeState};
use refloat_record::{PodVolume, Record};
use refloat_test_csi_driver::{Event, Options, Process, Program};
use refloat_test_support::Skip;
use refloat_volume::Host;
use refloat_volume::plugins::flex_volume::FlexDrivers;

use crate::stage::{Stage, pod, volume};

/// The driver of most tests.
pub const DRIVER: &str = "disk.test";

pub struct World {
    // Dropped first: the mounts go before the loop devices that are mounted.
    pub stage: Stage,
    pub driver: Process,
}

impl World {
    pub fn new() -> Result<Self, Skip> {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Options)) -> Result<Self, Skip> {
        Self::of(DRIVER, change)
    }

    /// With a driver of this name.
    pub fn of(driver: &str, change: impl FnOnce(&mut Options)) -> Result<Self, Skip> {
        can_mount()?;
        let stage = Stage::new();
        std::fs::create_dir(stage.root("plugins_registry")).unwrap();
        let driver = start(&stage, driver, change);
        Ok(Self { stage, driver })
    }

    /// The calls of the driver that were answered with OK, in order, without those that ask nothing of a volume.
    pub fn done(&self) -> Vec<String> {
        done(&self.driver)
    }

    /// How many calls of this name were answered with OK.
    pub fn count(&self, call: &str) -> usize {
        self.done().iter().filter(|c| *c == call).count()
    }

    /// How many calls of this name began.
    pub fn begun(&self, call: &str) -> usize {
        let journal = self.driver.journal().unwrap();
        journal.iter().filter(|e| e.call == call && e.event == Event::Begin).count()
    }

    /// The pod's mount.
    pub fn target(&self, uid: &str, spec: &str) -> PathBuf {
        self.stage.root(&target(uid, spec))
    }

    /// The record of the one volume.
    pub fn volume_record(&self) -> PodVolume {
        let found = self.stage.records().into_iter().find_map(|record| match record {
            Record::PodVolume(volume) => Some(volume),
            _ => None,
        });
        found.unwrap()
    }

    /// The node as plugins see it, without drivers.
    pub fn host(&self) -> Host {
        Host {
            root: NodeRoot::open(&self.stage.options.root_dir).unwrap(),
            kernel: Kernel::detect(),
            boot_id: self.volume_record().boot_id,
            tool_deadline: crate::stage::PATIENCE,
            table: Mutex::new(TableReader::new(Kernel::detect())),
            drivers: Drivers::none(),
            flex_drivers: FlexDrivers::default(),
            sys: refloat_volume::scsi::Sys::default(),
            providers: refloat_volume::provider::Providers::default(),
        }
    }

    /// Nothing of any pod is left, and no record but those of drivers.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert_eq!(self.stage.mounts(), Vec::<PathBuf>::new());
        assert_eq!(self.stage.files("pods"), Vec::<PathBuf>::new());
        assert_eq!(self.stage.files("plugins"), Vec::<PathBuf>::new());
        let left: Vec<_> = self.stage.records().into_iter().filter(|r| !matches!(r, Record::Driver(_))).collect();
        assert_eq!(left, []);
    }

    /// Removes all pods and lets the manager undo everything.
    #[track_caller]
    pub fn end(&self, manifests: &[&str]) {
        for file in manifests {
            self.stage.remove_manifest(file);
        }
        self.stage.settle_well();
        self.assert_clean();
    }
}

/// Starts a driver that registers.
pub fn start(stage: &Stage, name: &str, change: impl FnOnce(&mut Options)) -> Process {
    let mut options = Options::new(name, stage.path(name));
    options.registration = Some(stage.root("plugins_registry").join(format!("{name}-reg.sock")));
    change(&mut options);
    Process::start(Program::This, options).unwrap()
}

pub fn done(driver: &Process) -> Vec<String> {
    let ended = driver.journal().unwrap().into_iter().filter(|e| e.event == Event::End("Ok".into()));
    ended
        .map(|e| e.call)
        .filter(|call| call.ends_with("Volume") && call.starts_with("Node"))
        .map(|call| call.trim_start_matches("Node").trim_end_matches("Volume").to_owned())
        .collect()
}

/// The pod's mount, relative to the node root.
pub fn target(uid: &str, spec: &str) -> String {
    format!("pods/{uid}/volumes/kubernetes.io~csi/{spec}/mount")
}

/// A persistent volume of the driver with a claim of the same name. `csi` and `spec` are more fields, in flow style.
pub fn claim(name: &str, driver: &str, handle: &str, csi: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec: {{capacity: {{storage: 16Mi}}, \
         accessModes: [ReadWriteOnce], csi: {{driver: {driver}, volumeHandle: {handle}, fsType: ext4{csi}}}, claimRef: \
         {{namespace: default, name: {name}}}{spec}}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: \
         {name}, namespace: default}}\nspec: {{volumeName: {name}, accessModes: [ReadWriteOnce], resources: {{requests: \
         {{storage: 16Mi}}}}}}\n---\n"
    )
}

/// A pod with this claim.
pub fn pod_with(uid: &str, claim: &str) -> String {
    pod(uid, &format!("  - {{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}\n"))
}

/// What a volume is for its pod: `pv` of the driver with the handle `h1`, and a pod that uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Filesystem,
    Block,
}

impl Kind {
    pub const BOTH: [Self; 2] = [Self::Filesystem, Self::Block];

    pub fn claim(self) -> String {
        match self {
            Self::Filesystem => claim("pv", DRIVER, "h1", "", ""),
            Self::Block => claim("pv", DRIVER, "h1", "", ", volumeMode: Block")
                .replace(", fsType: ext4", "")
                .replace("accessModes: [ReadWriteOnce],", "accessModes: [ReadWriteMany],"),
        }
    }

    pub fn pod(self, uid: &str) -> String {
        let text = pod_with(uid, "pv");
        match self {
            Self::Filesystem => text,
            Self::Block => text.replace(
                "{name: c, image: i}",
                "{name: c, image: i, volumeDevices: [{name: data, devicePath: /dev/x}]}",
            ),
        }
    }

    /// Where the driver publishes the volume for the pod, relative to the node root.
    pub fn published(self, uid: &str) -> String {
        match self {
            Self::Filesystem => target(uid, "pv"),
            Self::Block => format!("plugins/kubernetes.io/csi/volumeDevices/publish/pv/{uid}"),
        }
    }
}

/// A `CSIDriver` with this spec, in flow style.
pub fn csi_driver(name: &str, spec: &str) -> String {
    format!("apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n")
}

/// A node with one pod and one volume `pv` of the driver, set up.
pub fn one_volume() -> Result<World, Skip> {
    one_volume_of(Kind::Filesystem)
}

/// The same with a volume of this kind.
pub fn one_volume_of(kind: Kind) -> Result<World, Skip> {
    let world = World::new()?;
    world.stage.manifest("pv.yaml", &kind.claim());
    world.stage.manifest("pod.yaml", &kind.pod("u1"));
    let outcome = world.stage.settle_well();
    assert_mounted(volume(&outcome, "pv"));
    Ok(world)
}

#[track_caller]
pub fn assert_mounted(volume: &ActualVolume) {
    assert_eq!(volume.state, VolumeState::Mounted, "{volume:#?}");
    assert_eq!(volume.problems, [], "{volume:#?}");
    assert!(volume.record.as_ref().is_some_and(|r| r.confirmed), "{volume:#?}");
}

/// The codes of everything that went wrong.
pub fn codes(outcome: &Outcome) -> Vec<&'static str> {
    let mut codes: Vec<_> = outcome.failures.iter().map(|p| p.code).collect();
    codes.dedup();
    codes
}

/// Whether the driver can do its work here.
pub fn can_mount() -> Result<(), Skip> {
    let tool = Command::new("mkfs.ext4").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !tool.is_ok_and(|status| status.success()) {
        return Err(Skip("mkfs.ext4 cannot be run".into()));
    }
    match std::fs::File::open("/dev/loop-control") {
        Ok(_) => Ok(()),
        Err(error) => Err(Skip(format!("no loop device can be had: {error}"))),
    }
}
