//! A node to try volumes on: a root in a tmpfs of a private mount namespace, and the records that an executor would
//! keep.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use refloat_mount::{Kernel, KernelFeatures, MountTable, NodeRoot, TableReader};
use refloat_record::{
    BootId, ClaimRef, DeviceMount, FsGroup, FsGroupChangePolicy, OuterSpecName, PodRef, PodUid, PodVolume,
    RecordedBlock, RecordedMount, SpecName, UniqueVolumeName, Verbatim, VolumeMode, WriteError,
};
use refloat_volume::scsi::Sys;
use refloat_volume::{
    Announcer, DeviceAnnouncer, DeviceOutcome, Host, MountDevice, Object, Payload, Plugin, Plugins, PodResources,
    SetUp, SpecSource, TearDown, UnmountDevice, VolumeError, VolumeSpec,
};
use serde_json::{Value, json};

/// The kernel as it is, and as an old one would be.
pub fn kernels() -> [(&'static str, Kernel); 2] {
    let now = Kernel::detect();
    let old = KernelFeatures { openat2: now.features().openat2, ..KernelFeatures::default() };
    [("new", now), ("old", Kernel::with_features(old))]
}

pub struct Node {
    pub dir: tempfile::TempDir,
    pub host: Host,
    pub plugins: Plugins,
}

impl Node {
    pub fn new(kernel: Kernel) -> Self {
        let dir = tempfile::tempdir_in(refloat_test_support::base()).unwrap();
        let root = dir.path().join("kubelet");
        std::fs::create_dir(&root).unwrap();
        let host = Host {
            root: NodeRoot::open(&root).unwrap(),
            kernel,
            boot_id: BootId::new("this-boot").unwrap(),
            tool_deadline: Duration::from_secs(20),
            table: Mutex::new(TableReader::new(kernel)),
            drivers: refloat_csi::Drivers::none(),
            flex_drivers: refloat_volume::plugins::flex_volume::FlexDrivers::new(dir.path().join("flex")),
            sys: Sys::new(dir.path().join("scsi/sys"), dir.path().join("scsi/dev"))
                .with_iscsi(dir.path().join("scsi/iscsi")),
            providers: refloat_volume::provider::Providers::default(),
        };
        Self { dir, host, plugins: Plugins::builtin() }
    }

    /// Where its disks are, for `refloat_test_support::ScsiSim`.
    pub fn scsi(&self) -> PathBuf {
        self.dir.path().join("scsi")
    }

    pub fn table(&self) -> std::sync::Arc<MountTable> {
        self.host.mount_table().unwrap()
    }

    /// How many mounts this node has; other tests mount at the same time.
    pub fn mounts(&self) -> usize {
        self.table().under(self.dir.path()).count()
    }

    /// A folder of the host, outside the node root.
    pub fn host_dir(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join("host").join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn pod_path(&self, pod: &str, below: &str) -> PathBuf {
        self.host.root.path().join("pods").join(pod).join(below)
    }

    /// What is left below the node root but empty folders, and what is mounted there.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.symlink_metadata().unwrap().is_dir() { walk(&path, found) } else { found.push(path) }
            }
        }
        let mut found: Vec<PathBuf> =
            self.table().under(self.host.root.path()).map(|m| m.point().to_path_buf()).collect();
        if found.is_empty() {
            walk(self.host.root.path(), &mut found);
        }
        found
    }
}

/// Whatever a test mounted is out of sight before its folder is removed.
impl Drop for Node {
    fn drop(&mut self) {
        if let Ok(table) = TableReader::new(self.host.kernel).read() {
            let points: Vec<PathBuf> = table.under(self.dir.path()).map(|m| m.point().to_path_buf()).collect();
            for point in points.iter().rev() {
                let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
            }
        }
    }
}

/// Where an operation is cut off, as a crash would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// Before the nth announcement is durable.
    Before(usize),
    /// After it, before anything that follows.
    After(usize),
}

/// Keeps what is announced, as a store would.
#[derive(Debug, Default)]
pub struct Keeper {
    crash: Option<Crash>,
    state: Mutex<Kept>,
}

#[derive(Debug, Default, Clone)]
struct Kept {
    calls: usize,
    last: Option<(Option<String>, Option<RecordedMount>, Option<Verbatim>)>,
    block: Option<RecordedBlock>,
}

impl Keeper {
    fn new(crash: Option<Crash>) -> Self {
        Self { crash, state: Mutex::default() }
    }

    fn keep(
        &self,
        device: Option<String>,
        mount: Option<RecordedMount>,
        info: Option<Verbatim>,
    ) -> Result<(), VolumeError> {
        let mut state = self.state.lock().unwrap();
        let call = state.calls;
        state.calls += 1;
        if self.crash == Some(Crash::Before(call)) {
            return Err(crashed());
        }
        state.last = Some((device, mount, info));
        if self.crash == Some(Crash::After(call)) { Err(crashed()) } else { Ok(()) }
    }
}

fn crashed() -> VolumeError {
    VolumeError::Record(WriteError {
        doing: "write",
        name: "crash".into(),
        folder: "/".into(),
        source: std::io::Error::other("the test cut it off here"),
    })
}

impl Announcer for Keeper {
    fn announce(&self, mount: Option<RecordedMount>, info: Option<Verbatim>) -> Result<(), VolumeError> {
        self.keep(None, mount, info)
    }

    fn announce_block(&self, block: RecordedBlock, info: Option<Verbatim>) -> Result<(), VolumeError> {
        if self.crash != Some(Crash::Before(self.state.lock().unwrap().calls)) {
            self.state.lock().unwrap().block = Some(block);
        }
        self.keep(None, None, info)
    }

    fn announce_call(&self, _: Verbatim) -> Result<(), VolumeError> {
        unreachable!("no plugin of these tests asks a driver")
    }
}

impl DeviceAnnouncer for Keeper {
    fn announce(
        &self,
        device: Option<String>,
        mount: Option<RecordedMount>,
        info: Option<Verbatim>,
    ) -> Result<(), VolumeError> {
        self.keep(device, mount, info)
    }
    fn announce_call(&self, _: Verbatim) -> Result<(), VolumeError> {
        unreachable!("no plugin of these tests asks a driver")
    }
}

/// One pod's use of one volume through its life.
pub struct Life<'n> {
    pub node: &'n Node,
    pub pod: PodRef,
    pub spec: VolumeSpec,
    pub fs_group: Option<FsGroup>,
    pub content: Option<Payload>,
    pub resources: PodResources,
    pub servers: Option<refloat_volume::Servers>,
    pub record: Option<PodVolume>,
    /// The record of its device.
    pub device: Option<DeviceMount>,
    /// How many times the last operation announced.
    pub announced: usize,
}

impl<'n> Life<'n> {
    /// A pod's own volume.
    pub fn inline(node: &'n Node, pod: &str, volume: &Value) -> Self {
        let volume = Object::new(Verbatim::from_value(volume)).unwrap();
        Self::new(node, pod, SpecSource::Inline { volume }, None)
    }

    /// A claim of a volume.
    pub fn claim(node: &'n Node, pod: &str, persistent_volume: &Value) -> Self {
        let name = persistent_volume["metadata"]["name"].as_str().unwrap().to_owned();
        let volume = Object::new(Verbatim::from_value(&json!({
            "name": "data", "persistentVolumeClaim": { "claimName": "claim" } })))
        .unwrap();
        let persistent_volume = Box::new(Object::new(Verbatim::from_value(persistent_volume)).unwrap());
        let claim = ClaimRef { namespace: "default".into(), name: "claim".into(), uid: None };
        Self::new(node, pod, SpecSource::Persistent { volume, persistent_volume, claim }, Some(&name))
    }

    fn new(node: &'n Node, pod: &str, source: SpecSource, name: Option<&str>) -> Self {
        let plugin = node.plugins.by_source(&source).unwrap().name();
        let name = name.map_or_else(|| source.volume().typed.name.clone(), str::to_owned);
        let mode = source.persistent_volume().and_then(|pv| pv.typed.spec.as_ref()?.volume_mode.clone());
        let options = source.persistent_volume().and_then(|pv| pv.typed.spec.as_ref()?.mount_options.clone());
        let spec = VolumeSpec {
            plugin,
            spec_name: SpecName::new(name).unwrap(),
            mode: if mode.as_deref() == Some("Block") { VolumeMode::Block } else { VolumeMode::Filesystem },
            read_only: false,
            mount_options: options.unwrap_or_default(),
            source,
            migrated: None,
        };
        let pod = PodRef { uid: PodUid::new(pod).unwrap(), namespace: "default".into(), name: format!("pod-{pod}") };
        Self {
            node,
            pod,
            spec,
            fs_group: None,
            content: None,
            resources: PodResources::default(),
            servers: None,
            record: None,
            device: None,
            announced: 0,
        }
    }

    pub fn plugin(&self) -> &'n dyn Plugin {
        self.node.plugins.by_name(&self.spec.plugin).unwrap()
    }

    /// The volume's folder.
    pub fn path(&self) -> PathBuf {
        self.plugin().path(&self.pod, &self.spec).unwrap().below(self.node.host.root.path())
    }

    pub fn marker(&self) -> PathBuf {
        self.node
            .pod_path(self.pod.uid.as_str(), &format!("plugins/kubernetes.io~empty-dir/{}/ready", self.spec.spec_name))
    }

    pub fn set_up(&mut self) -> Result<(), VolumeError> {
        self.set_up_with(None)
    }

    pub fn set_up_with(&mut self, crash: Option<Crash>) -> Result<(), VolumeError> {
        let path = self.plugin().path(&self.pod, &self.spec);
        let before = self.record.clone();
        let same_boot = before.as_ref().filter(|r| r.boot_id == self.node.host.boot_id);
        let block = same_boot.and_then(|r| r.block.as_ref());
        let (at, recorded) = match block {
            Some(block) => (Some(&block.map_path), block.mount.as_ref()),
            None => (path.as_ref(), same_boot.and_then(|r| r.mount.as_ref())),
        };
        let mounted = at.is_some_and(|p| self.node.shows(&self.node.host.absolute(p), recorded));
        let keeper = Keeper::new(crash);
        let answer = self.plugin().set_up(SetUp {
            host: &self.node.host,
            pod: &self.pod,
            spec: &self.spec,
            path: path.as_ref(),
            fs_group: self.fs_group,
            content: self.content.as_ref(),
            resources: &self.resources,
            inputs: None,
            servers: self.servers.as_ref(),
            device: self.device.as_ref(),
            record: before.as_ref(),
            mounted,
            confirmed: false,
            announcer: &keeper,
        });
        let kept = keeper.state.into_inner().unwrap();
        self.announced = kept.calls;
        if let Some((_, mount, info)) = kept.last {
            let mut record = self.new_record();
            record.mount = mount;
            record.block = kept.block;
            record.provider_info = info;
            record.sub_paths = before.map(|b| b.sub_paths).unwrap_or_default();
            self.record = Some(record);
        }
        answer
    }

    /// A record of this volume with nothing announced.
    pub fn new_record(&self) -> PodVolume {
        PodVolume {
            pod: self.pod.clone(),
            volume_names: vec![OuterSpecName::new(&self.spec.source.volume().typed.name).unwrap()],
            spec_name: self.spec.spec_name.clone(),
            plugin: self.spec.plugin.clone(),
            unique_name: UniqueVolumeName::new("unique").unwrap(),
            mode: self.spec.mode,
            read_only: self.spec.read_only,
            mount_options: self.spec.mount_options.clone(),
            fs_group: self.fs_group,
            selinux_label: None,
            volume: self.spec.source.volume().raw.clone(),
            persistent_volume: self.spec.source.persistent_volume().map(|pv| pv.raw.clone()),
            claim: None,
            path: self.plugin().path(&self.pod, &self.spec),
            host_path: self.plugin().host_path(&self.spec),
            device_mount_path: self.plugin().device_mount_path(&self.spec),
            mount: None,
            block: None,
            sub_paths: vec![],
            confirmed: false,
            boot_id: self.node.host.boot_id.clone(),
            provider_info: None,
            providers: refloat_record::ProviderAnswers::new(),
            lost: vec![],
        }
    }

    pub fn tear_down(&self) -> Result<(), VolumeError> {
        let record = self.record.clone().unwrap_or_else(|| self.new_record());
        let trusted = self.record.is_some();
        self.plugin().tear_down(&TearDown {
            host: &self.node.host,
            record: &record,
            trusted,
            failures: 0,
            without_driver: false,
        })
    }

    pub fn mount_device(&mut self) -> Result<DeviceOutcome, VolumeError> {
        self.mount_device_with(None)
    }

    pub fn mount_device_with(&mut self, crash: Option<Crash>) -> Result<DeviceOutcome, VolumeError> {
        let path = self.plugin().device_mount_path(&self.spec).unwrap();
        let before = self.device.clone();
        let recorded = before.as_ref().filter(|r| r.boot_id == self.node.host.boot_id).and_then(|r| r.mount.as_ref());
        let mounted = self.node.shows(&self.node.host.absolute(&path), recorded);
        let keeper = Keeper::new(crash);
        let answer = self.plugin().mount_device(MountDevice {
            host: &self.node.host,
            spec: &self.spec,
            path: &path,
            fs_group: self.fs_group,
            inputs: None,
            record: before.as_ref(),
            mounted,
            confirmed: false,
            peers: &Vec::new(),
            announcer: &keeper,
        });
        let kept = keeper.state.into_inner().unwrap();
        self.announced = kept.calls;
        if let Some((device, mount, provider_info)) = kept.last {
            self.device = Some(DeviceMount {
                unique_name: UniqueVolumeName::new("unique").unwrap(),
                plugin: self.spec.plugin.clone(),
                mode: self.spec.mode,
                persistent_volume: None,
                volume: None,
                device,
                device_mount_path: path,
                mount,
                publish_context: None,
                confirmed: false,
                boot_id: self.node.host.boot_id.clone(),
                provider_info,
                providers: refloat_record::ProviderAnswers::new(),
            });
        }
        answer
    }

    pub fn unmount_device(&self) -> Result<(), VolumeError> {
        let record = self.device.as_ref().unwrap();
        self.plugin().unmount_device(&UnmountDevice {
            host: &self.node.host,
            record,
            trusted: true,
            peers: &Vec::new(),
        })
    }

    /// As if the machine had been started anew: what is mounted of it is gone, and the record is of another boot.
    pub fn reboot(&mut self) {
        let boot = BootId::new("the-boot-before").unwrap();
        if let Some(record) = &mut self.record {
            record.boot_id = boot.clone();
        }
        if let Some(device) = &mut self.device {
            device.boot_id = boot;
        }
        let points: Vec<PathBuf> =
            self.node.table().under(self.node.host.root.path()).map(|m| m.point().to_path_buf()).collect();
        for point in points.iter().rev() {
            rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }
}

impl Node {
    /// What the executor tells a plugin: whether the recorded mount is on top there.
    fn shows(&self, path: &Path, recorded: Option<&RecordedMount>) -> bool {
        let table = self.table();
        let Some((top, recorded)) = table.at(path).zip(recorded) else { return false };
        if let (Some(id), Some(recorded)) = (top.id(), recorded.id) {
            return id.0 == recorded;
        }
        // What was not known beforehand is not compared.
        let same = |announced: &str, seen: &str| announced.is_empty() || announced == seen;
        same(&recorded.fs_type, &top.fs_type())
            && same(&recorded.source, &top.source())
            && (recorded.root.is_empty() || top.root() == Path::new(&recorded.root))
    }
}

/// Permission bits, with setgid and the like.
pub fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

pub fn owner(path: &Path) -> (u32, u32) {
    let metadata = path.symlink_metadata().unwrap();
    (metadata.uid(), metadata.gid())
}

pub fn there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The stable code of a refusal.
#[track_caller]
pub fn code<T: std::fmt::Debug>(answer: Result<T, VolumeError>) -> &'static str {
    answer.expect_err("it was to be refused").problem().code
}

/// A group to give files to: 4711, or, where only the user's own is mapped (in a user namespace), that one.
pub fn gid() -> u32 {
    let map = std::fs::read_to_string("/proc/self/gid_map").unwrap_or_default();
    let mapped = map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|n| n.parse::<u64>().unwrap_or(0));
        let (first, count) = (numbers.next().unwrap_or(0), numbers.nth(1).unwrap_or(0));
        (first..first + count).contains(&4711)
    });
    if mapped { 4711 } else { 0 }
}

/// That group, always given.
pub fn group() -> FsGroup {
    FsGroup { gid: gid(), policy: FsGroupChangePolicy::Always }
}

/// Mounts a tmpfs by hand, as somebody else.
pub fn mount_tmpfs(source: &str, target: &Path) {
    rustix::mount::mount(source, target, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
}

pub fn bind(source: &Path, target: &Path) {
    rustix::mount::mount_bind(source, target).unwrap();
}

/// Unmounts by hand. Another test that starts a program may share our descriptors with it for a moment.
#[track_caller]
pub fn unmount(target: &Path) {
    for _ in 0..50 {
        match rustix::mount::unmount(target, rustix::mount::UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) => std::thread::sleep(Duration::from_millis(20)),
            answer => return answer.unwrap(),
        }
    }
    panic!("{} stays busy", target.display());
}
