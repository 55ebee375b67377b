//! SCSI disks of a storage array that is not there: a tree of files that stands for sysfs, a folder that stands for `/dev`, and
//! a thread that does what the kernel, the array and multipathd would.
//!
//! Each path to a logical unit, and each multipath map, is a loop device of its own over the unit's image file, and a real
//! block device under the name that the simulation gives it. Who looks at the trees may be any program: a write to
//! `device/delete` takes the disk away, one to `scsi_host/hostN/scan` brings what the array has, and `multipath -f` of
//! [`MULTIPATH`], which has to be in the `PATH` ([`with_tools`](crate::with_tools)), removes a map unless it is mounted.

mod files;
mod iscsi;
mod serve;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::Skip;

pub use iscsi::{ISCSIADM, LogOutDoes, PortalDoes};

/// The program `multipath`, of which only `-f` is done.
pub const MULTIPATH: (&str, &str) = ("multipath", include_str!("scsi_sim/multipath.sh"));

/// A port of the array as one SCSI host sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// The SCSI host.
    pub host: u32,
    /// The target that the port is there.
    pub target: u32,
}

/// How a port is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Transport {
    /// By Fibre Channel, under this name.
    Fc(String),
    /// By this iSCSI session.
    Session(u32),
}

/// A logical unit of the array.
#[derive(Debug, Clone)]
struct Unit {
    image: PathBuf,
    wwid: String,
    page: Vec<u8>,
    number: u64,
    ports: Vec<Port>,
    /// What its map is called, if multipathd makes one.
    alias: Option<String>,
    /// Whether the array shows it to who looks.
    exported: bool,
}

/// One path to a unit: a disk.
#[derive(Debug)]
struct PathTo {
    unit: String,
    port: Port,
    /// Below the tree's root.
    folder: PathBuf,
    loop_device: PathBuf,
}

#[derive(Debug)]
struct DmMap {
    unit: String,
    alias: String,
    loop_device: PathBuf,
}

/// What `multipath -f` does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MultipathDoes {
    /// It removes the map unless that is mounted.
    #[default]
    Well,
    /// It says that the map is in use.
    Refuse,
    /// It says that it did, and did not.
    Lie,
    /// It never ends.
    Hang,
    /// It fails and prints much that nobody can read.
    Garbage,
}

#[derive(Debug, Default)]
struct State {
    ports: Vec<(Port, Transport)>,
    units: BTreeMap<String, Unit>,
    disks: BTreeMap<String, PathTo>,
    maps: BTreeMap<String, DmMap>,
    events: Vec<String>,
    multipath: MultipathDoes,
    ignores_deletes: bool,
    iscsi: iscsi::Iscsi,
}

/// What is to be simulated as one logical unit.
#[derive(Debug, Clone)]
pub struct UnitSpec<'a> {
    /// How the test calls it.
    pub name: &'a str,
    /// What the kernel says in `wwid`: `naa.6005…`.
    pub wwid: &'a str,
    /// Its number behind each port.
    pub lun: u64,
    /// The ports that it is behind.
    pub ports: &'a [Port],
    /// Whether multipathd makes a map over its paths.
    pub multipath: bool,
    /// Its image file.
    pub image: &'a Path,
}

/// The simulation, which ends when this is dropped.
#[derive(Debug)]
pub struct ScsiSim {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    /// Where [`MULTIPATH`] looks for whose map it is.
    registry: Option<PathBuf>,
    state: Mutex<State>,
    ended: AtomicBool,
}

impl ScsiSim {
    /// An array without ports and units, in this folder, which is made.
    ///
    /// # Errors
    /// Why this machine cannot have it.
    ///
    /// # Panics
    /// The folder cannot be written.
    pub fn new(root: &Path) -> Result<Self, Skip> {
        Self::beside(root, serve::folder_of_programs().as_deref())
    }

    /// The same with [`MULTIPATH`] and [`ISCSIADM`] in a folder of their own, which is to be in the `PATH` of who uses the disks.
    ///
    /// # Errors
    /// Why this machine cannot have it.
    ///
    /// # Panics
    /// One of the folders cannot be written.
    pub fn with_programs(root: &Path, programs: &Path) -> Result<Self, Skip> {
        for tool in [ISCSIADM, MULTIPATH] {
            must("a program of a simulation", crate::write_tool(programs, tool));
        }
        Self::beside(root, Some(programs))
    }

    fn beside(root: &Path, programs: Option<&Path>) -> Result<Self, Skip> {
        std::fs::create_dir_all(root).expect("the folder of a simulation");
        for folder in ["sys/block", "sys/dev/block", "sys/class/scsi_host", "dev/mapper", "ask"] {
            std::fs::create_dir_all(root.join(folder)).expect("a folder of a simulation");
        }
        let probe = root.join("probe");
        std::fs::File::create(&probe).and_then(|file| file.set_len(1 << 20)).expect("a file of a simulation");
        let device = refloat_mount::loopdev::attach(&probe, false)
            .map_err(|error| Skip(format!("no loop device can be had: {error}")))?;
        let number = files::number_of(&device);
        let _ = refloat_mount::loopdev::detach(&device);
        let node = root.join("dev/probe");
        let made = number.and_then(|number| files::make_node(&node, number));
        made.map_err(|error| Skip(format!("no device node can be made: {error}")))?;
        std::fs::remove_file(node).expect("the node that was just made");
        let shared = Arc::new(Shared {
            root: root.to_owned(),
            registry: programs.map(serve::registry),
            state: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.serve()
        });
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What stands for `/sys`.
    pub fn sysfs(&self) -> PathBuf {
        self.shared.root.join("sys")
    }

    /// What stands for `/dev`.
    pub fn dev(&self) -> PathBuf {
        self.shared.root.join("dev")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// A Fibre Channel port of the array, with this name (hexadecimal digits), at a SCSI host, which is made if need be.
    pub fn fc_port(&self, host: u32, wwn: &str) -> Port {
        self.add_port(host, Transport::Fc(wwn.to_owned()))
    }

    fn add_port(&self, host: u32, transport: Transport) -> Port {
        let mut state = self.state();
        let target = state.ports.iter().filter(|(port, _)| port.host == host).count();
        let port = Port { host, target: u32::try_from(target).expect("few ports") };
        self.shared.make_port(port, &transport).expect("the files of a port");
        state.ports.push((port, transport));
        port
    }

    /// Gives the array a logical unit, which is seen by who scans. Its image file is there.
    pub fn unit(&self, spec: &UnitSpec<'_>) {
        static MAPS: AtomicU32 = AtomicU32::new(0);
        let count = MAPS.fetch_add(1, Ordering::Relaxed);
        let unit = Unit {
            image: spec.image.to_owned(),
            wwid: spec.wwid.to_owned(),
            page: vec![],
            number: spec.lun,
            ports: spec.ports.to_vec(),
            // No two of one machine may have the same, for `multipath` is told no more.
            alias: spec.multipath.then(|| format!("mpath{}x{count}", std::process::id())),
            exported: true,
        };
        self.state().units.insert(spec.name.to_owned(), unit);
    }

    /// Whether the array shows a unit to who scans.
    ///
    /// # Panics
    /// There is no such unit.
    pub fn export(&self, unit: &str, exported: bool) {
        self.state().units.get_mut(unit).expect("a unit").exported = exported;
    }

    /// All that the array has comes by itself, as after a boot.
    pub fn appear(&self) {
        let mut state = self.state();
        let hosts: Vec<u32> = state.ports.iter().map(|(port, _)| port.host).collect();
        for host in hosts {
            self.shared.scan(&mut state, host, [None; 3]);
        }
    }

    /// The disks of a unit, by name.
    pub fn disks(&self, unit: &str) -> Vec<String> {
        self.state().disks.iter().filter(|(_, path)| path.unit == unit).map(|(name, _)| name.clone()).collect()
    }

    /// Name and alias of the map over a unit.
    pub fn map(&self, unit: &str) -> Option<(String, String)> {
        let state = self.state();
        state.maps.iter().find(|(_, map)| map.unit == unit).map(|(name, map)| (name.clone(), map.alias.clone()))
    }

    /// All paths to a unit go away by themselves, and its map if `with_map`.
    pub fn vanish(&self, unit: &str, with_map: bool) {
        for name in self.disks(unit) {
            self.shared.remove_disk(&mut self.state(), &name);
        }
        if with_map && let Some((name, _)) = self.map(unit) {
            self.shared.remove_map(&mut self.state(), &name);
        }
    }

    /// A disk gets another name, as after it went and came back.
    ///
    /// # Panics
    /// There is no such disk, or one with the new name.
    pub fn rename(&self, from: &str, to: &str) {
        let mut state = self.state();
        assert!(!state.disks.contains_key(to), "{to} is there");
        let (unit, port) = state.disks.get(from).map(|path| (path.unit.clone(), path.port)).expect("a disk");
        self.shared.remove_disk(&mut state, from);
        self.shared.add_disk(&mut state, to, &unit, port);
    }

    /// A unit says from now on that it is another one.
    ///
    /// # Panics
    /// There is no such unit.
    pub fn set_wwid(&self, unit: &str, wwid: &str) {
        let mut state = self.state();
        wwid.clone_into(&mut state.units.get_mut(unit).expect("a unit").wwid);
        for path in state.disks.values().filter(|path| path.unit == unit) {
            std::fs::write(self.shared.root.join(&path.folder).join("wwid"), format!("{wwid}\n")).expect("wwid");
        }
    }

    /// What a unit says of itself in its page 83.
    ///
    /// # Panics
    /// There is no such unit.
    pub fn set_page(&self, unit: &str, page: &[u8]) {
        let mut state = self.state();
        page.clone_into(&mut state.units.get_mut(unit).expect("a unit").page);
        for path in state.disks.values().filter(|path| path.unit == unit) {
            std::fs::write(self.shared.root.join(&path.folder).join("vpd_pg83"), page).expect("vpd_pg83");
        }
    }

    /// What the kernel thinks of a disk.
    ///
    /// # Panics
    /// There is no such disk.
    pub fn set_state(&self, disk: &str, state: &str) {
        let folder = self.state().disks.get(disk).map(|path| path.folder.clone()).expect("a disk");
        std::fs::write(self.shared.root.join(folder).join("state"), format!("{state}\n")).expect("state");
    }

    /// What `multipath -f` does from now on.
    pub fn multipath(&self, does: MultipathDoes) {
        self.state().multipath = does;
    }

    /// Whether disks stay although they are removed.
    pub fn ignore_deletes(&self, ignore: bool) {
        self.state().ignores_deletes = ignore;
    }

    /// What was asked of it: `scan host2 - - -`, `delete sdc`, `flush mpatha`.
    pub fn events(&self) -> Vec<String> {
        self.state().events.clone()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ScsiSim {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let mut state = self.state();
        let disks: Vec<_> = state.disks.keys().cloned().collect();
        for name in disks {
            self.shared.remove_disk(&mut state, &name);
        }
        let maps: Vec<_> = state.maps.keys().cloned().collect();
        for name in maps {
            self.shared.remove_map(&mut state, &name);
        }
    }
}

/// An answer that the tests cannot do without.
fn must<T>(what: &str, answer: io::Result<T>) -> T {
    answer.unwrap_or_else(|error| panic!("{what}: {error}"))
}
