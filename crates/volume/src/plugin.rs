//! The `Plugin` trait, and what an operation is given.

use std::path::{Path, PathBuf};

use refloat_mount::{Device, Dir, MountTable, NewMount};
use refloat_record::{
    DeviceMount as DeviceMountRecord, FsGroup, PluginName, PodRef, PodUid, PodVolume, RecordedBlock, RecordedMount,
    RelPath, SpecName, Verbatim, VolumeMode,
};

use crate::migration::Migrated;
use crate::{
    ContentError, DriverInputs, ForeignFile, Host, Objects, Payload, PodResources, Problem, SpecError, SpecSource,
    VolumeError, VolumeSpec,
};

/// How a plugin's volumes can be known again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconstruction {
    /// Fully, from the record alone.
    FromRecord,
    /// Without a record too, from path and mount table; some fields are lost.
    FromLayout,
    /// Without a record its spec is not claimed, yet its mounts are found and unmounted.
    UnmountOnly,
}

/// What shows that SetUp was finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The recorded mount is in the mount table. SetUp attaches it last.
    Mount,
    /// The marker file `plugins/kubernetes.io~empty-dir/<name>/ready` exists, and the recorded mount if there is one.
    Marker,
    /// The record itself: nothing is made below the pod's folder.
    Record,
    /// A driver said so: the record is confirmed in this boot, and the recorded mount, if there is one, is in the mount
    /// table. What is not confirmed is set up again, or undone; both are idempotent.
    Driver,
}

/// What a plugin can do, as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is one independent yes or no
pub struct Capabilities {
    /// A controller attaches its volumes.
    pub attachable: bool,
    /// It may have a global mount shared by pods (then its unique name is `<plugin>/<volume name>`).
    pub device_mountable: bool,
    /// It can present raw block devices.
    pub block: bool,
    /// Its content comes from objects and is written anew when they change.
    pub content: bool,
    /// SetUp is called once after each start of the manager although the volume is known, to check what the
    /// mount table cannot show.
    pub verify: bool,
    /// A volume with a file system is one bind with the spec's `read_only` and mount options, which SetUp sets again where
    /// the mount table shows others.
    pub binds: bool,
    /// How its volumes are known again.
    pub reconstruction: Reconstruction,
    /// What shows that SetUp was finished.
    pub presence: Presence,
}

/// A volume found without a record: what folder names and the mount table say of it.
#[derive(Debug, Clone, Copy)]
pub struct FoundVolume<'a> {
    /// The folder's name.
    pub folder: &'a str,
    /// File system or block.
    pub mode: VolumeMode,
    /// Its absolute path; for a block volume the one that its device is bound at.
    pub path: &'a Path,
    /// The table.
    pub table: &'a MountTable,
    /// What was found out for other volumes in the same table.
    pub memo: &'a LayoutMemo,
    /// Another program's file that says what the volume is, where there is one.
    pub foreign: Option<&'a ForeignFile>,
}

/// What plugins found out of one mount table and may meet again: thousands of volumes may show one folder of the host.
#[derive(Debug, Default)]
pub struct LayoutMemo {
    /// The path on the host that a device and root are seen at.
    pub(crate) host_paths: std::sync::Mutex<std::collections::HashMap<(Device, PathBuf), Option<PathBuf>>>,
    /// Where CSI volumes are staged, by the file systems that are mounted there.
    pub(crate) csi_stages: std::sync::OnceLock<std::collections::HashMap<Device, Vec<PathBuf>>>,
    /// The folders that global mounts stand in, relative to the node root.
    global_folders: std::collections::HashSet<PathBuf>,
}

impl LayoutMemo {
    /// Nothing found out yet, on a node with these folders for global mounts (relative to its root).
    pub fn new(global_folders: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { global_folders: global_folders.into_iter().collect(), ..Self::default() }
    }

    /// Whether there is such a folder (relative to the node root), mounted or not.
    pub(crate) fn has_global_folder(&self, path: &Path) -> bool {
        self.global_folders.contains(path)
    }
}

/// A spec rebuilt without a record. Unknown fields are left unknown, never invented.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuilt {
    /// The `volumes[x]` entry or the `PersistentVolume`, as far as it could be told.
    pub spec: RebuiltSpec,
    /// The fields that nobody could tell, as paths (`emptyDir.sizeLimit`).
    pub lost: Vec<&'static str>,
    /// The plugin's own name for the volume, if it is one that pods share and could be told.
    pub volume_name: Option<String>,
    /// What the plugin's record would have to find its way back, as far as that could be told.
    pub provider_info: Option<Verbatim>,
    /// What speaks against it.
    pub doubts: Doubts,
}

/// What speaks against another program's file that a volume is told by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Doubts {
    /// What contradicts what, one sentence each.
    pub contradictions: Vec<String>,
    /// Whether nobody can tell for that which volume it is.
    pub of_identity: bool,
    /// The global mount (relative to the node root) of the volume that it is by the file: it counts as used by it.
    pub by_file: Option<RelPath>,
}

/// A device rebuilt without a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuiltDevice {
    /// The plugin's own name for the volume.
    pub volume_name: String,
    /// What the plugin's record would have to find its way back.
    pub provider_info: Verbatim,
}

/// What a record says of a volume or device, for who only needs that.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recorded<'a> {
    /// The plugin.
    pub plugin: Option<&'a PluginName>,
    /// The `PersistentVolume`.
    pub persistent_volume: Option<&'a Verbatim>,
    /// The pod's `volumes[x]` entry.
    pub volume: Option<&'a Verbatim>,
    /// What the plugin wrote to find its way back.
    pub provider_info: Option<&'a Verbatim>,
}

impl<'a> From<&'a PodVolume> for Recorded<'a> {
    fn from(record: &'a PodVolume) -> Self {
        Self {
            plugin: Some(&record.plugin),
            persistent_volume: record.persistent_volume.as_ref(),
            volume: Some(&record.volume),
            provider_info: record.provider_info.as_ref(),
        }
    }
}

impl<'a> From<&'a DeviceMountRecord> for Recorded<'a> {
    fn from(record: &'a DeviceMountRecord) -> Self {
        Self {
            plugin: Some(&record.plugin),
            persistent_volume: record.persistent_volume.as_ref(),
            volume: record.volume.as_ref(),
            provider_info: record.provider_info.as_ref(),
        }
    }
}

/// The device that a volume found without a record comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalMount {
    /// Its global mount path (absolute).
    pub path: PathBuf,
    /// The plugin's own name for the volume, if the path tells it.
    pub volume_name: Option<String>,
}

/// What kind of spec was rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RebuiltSpec {
    /// A `volumes[x]` entry.
    Volume(serde_json::Value),
    /// A `PersistentVolume`.
    PersistentVolume(serde_json::Value),
}

/// The servers of a volume, looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Servers {
    /// These.
    Known {
        /// At least one address.
        addresses: Vec<String>,
        /// The port that was told with them, if one was.
        port: Option<i32>,
    },
    /// They are missing, or could not be looked up. A volume that is set up does not need them, and one that has a record has
    /// them there.
    NotKnown(Problem),
}

/// What MountDevice did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceOutcome {
    /// The device is mounted at its global path.
    Mounted,
    /// This volume has no device of its own (a local volume that is a folder); nothing was done or recorded.
    NotNeeded,
}

/// One kind of volume.
///
/// A plugin holds no state. Its pure methods (all but the four operations) perform no I/O.
pub trait Plugin: Send + Sync + std::fmt::Debug {
    /// Its name, such as `kubernetes.io/empty-dir`.
    fn name(&self) -> PluginName;

    /// The name that a volume of this source has as its plugin's: of flexVolumes, the driver's.
    fn name_for(&self, source: &SpecSource) -> PluginName {
        let _ = source;
        self.name()
    }

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether its volumes always lie in a file system in memory. Where that is not mounted nothing of them is there, and files
    /// in the folder are none of theirs.
    fn in_memory(&self) -> bool {
        false
    }

    /// Whether it is the plugin for this source.
    fn supports(&self, source: &SpecSource) -> bool;

    /// Whether the spec is well-formed; called when the pod is admitted.
    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError>;

    /// The plugin's own name for the volume: the second part of the unique name of device-mountable volumes.
    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError>;

    /// The volume's folder relative to the node root, for block volumes the symlink in `volumeDevices`; none for volumes
    /// without one (hostPath).
    fn path(&self, pod: &PodRef, spec: &VolumeSpec) -> Option<RelPath> {
        Some(match spec.mode {
            VolumeMode::Filesystem => crate::layout::volume_path(&pod.uid, &self.name(), &spec.spec_name),
            VolumeMode::Block => crate::layout::volume_device_path(&pod.uid, &self.name(), &spec.spec_name),
        })
    }

    /// The host's own path, for volumes that are one (hostPath).
    fn host_path(&self, spec: &VolumeSpec) -> Option<String> {
        let _ = spec;
        None
    }

    /// The global mount path of a device-mountable volume, relative to the node root.
    fn device_mount_path(&self, spec: &VolumeSpec) -> Option<RelPath> {
        let _ = spec;
        None
    }

    /// Where a block volume's device is bound for this pod, relative to the node root: `<global map path>/<pod uid>`. For
    /// plugins with [`Capabilities::block`]; it must be told from these names alone, since it is what finds the mount of a
    /// volume without a record.
    fn map_path(&self, pod: &PodUid, spec_name: &SpecName) -> Option<RelPath> {
        let _ = (pod, spec_name);
        None
    }

    /// The content that the volume is to have, for plugins with [`Capabilities::content`].
    fn content(
        &self,
        spec: &VolumeSpec,
        pod: &k8s_openapi::api::core::v1::Pod,
        pod_ref: &PodRef,
        objects: &dyn Objects,
    ) -> Result<Option<Payload>, ContentError> {
        let _ = (spec, pod, pod_ref, objects);
        Ok(None)
    }

    /// What a driver is told besides the spec: looked up when the pod is admitted, and never recorded. For plugins whose
    /// volumes a driver makes.
    fn inputs(
        &self,
        spec: &VolumeSpec,
        pod: &k8s_openapi::api::core::v1::Pod,
        pod_ref: &PodRef,
        objects: &dyn Objects,
    ) -> Result<Option<DriverInputs>, ContentError> {
        let _ = (spec, pod, pod_ref, objects);
        Ok(None)
    }

    /// The servers that the volume is on, for plugins that have to look them up: when the pod is admitted, and not where
    /// something is undone.
    fn servers(&self, spec: &VolumeSpec, pod: &PodRef, objects: &dyn Objects) -> Option<Servers> {
        let _ = (spec, pod, objects);
        None
    }

    /// The driver that is asked for this volume, if one is.
    fn driver(&self, spec: &VolumeSpec) -> Option<String> {
        let _ = spec;
        None
    }

    /// The driver that is asked to undo what a record describes, if one is.
    fn recorded_driver(&self, recorded: Recorded<'_>) -> Option<String> {
        let _ = recorded;
        None
    }

    /// What the volume hangs on outside of this node, if on anything: operations on volumes with the same answer hold up one
    /// another and no others.
    fn lane(&self, spec: &VolumeSpec) -> Option<String> {
        self.driver(spec)
    }

    /// The same for what a record describes.
    fn recorded_lane(&self, recorded: Recorded<'_>) -> Option<String> {
        self.recorded_driver(recorded)
    }

    /// Rebuilds a device without a record, from another program's file beside its global mount. `rel` is the global
    /// mount's path relative to the node root. `Err` says why the file cannot be believed.
    #[allow(clippy::wrong_self_convention)] // says what the device is made from; the plugin makes it
    fn device_from_foreign(&self, rel: &RelPath, foreign: &ForeignFile) -> Option<Result<RebuiltDevice, String>> {
        let _ = (rel, foreign);
        None
    }

    /// Mounts the device at its global path. Called only for device-mountable plugins. Idempotent.
    fn mount_device(&self, step: MountDevice<'_>) -> Result<DeviceOutcome, VolumeError> {
        let _ = step;
        Ok(DeviceOutcome::NotNeeded)
    }

    /// Makes the volume ready for the pod. Idempotent: called again on a volume that is set up, it changes only
    /// what is not as it should be.
    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError>;

    /// Undoes SetUp, object by object; what is already gone is done. The record and the pod's folders are removed
    /// by the caller; subPath mounts were undone by the caller before.
    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError>;

    /// Undoes MountDevice.
    fn unmount_device(&self, step: &UnmountDevice<'_>) -> Result<(), VolumeError> {
        let _ = step;
        Ok(())
    }

    /// Whether MountDevice looks at what is mounted at the global path without a record, and takes it for its own where the disk
    /// below it is the volume's.
    fn adopts_devices(&self) -> bool {
        false
    }

    /// What [`Plugin::unmount_device`] would need and this program does not have: no device of this plugin is undone
    /// while that is so. As the end of a sentence.
    fn device_needs(&self) -> Option<&'static str> {
        None
    }

    /// The device that a volume found without a record was mounted from, where paths and mounts tell it.
    fn device_of(&self, found: FoundVolume<'_>) -> Option<GlobalMount> {
        let _ = found;
        None
    }

    /// The plugin's own name for the volume whose global path ends in this ([`crate::layout::GlobalPath::rest`]), if
    /// that tells it.
    fn device_name(&self, rest: &str) -> Option<String> {
        let _ = rest;
        None
    }

    /// The fields of the source of the volume whose global path ends in this, as far as that tells them.
    fn device_fields(&self, rest: &str, mode: VolumeMode) -> serde_json::Map<String, serde_json::Value> {
        let _ = (rest, mode);
        serde_json::Map::new()
    }

    /// The spec name of the volume whose folder is called so; none if that does not tell it.
    fn spec_name<'f>(&self, folder: &'f str) -> Option<&'f str> {
        Some(folder)
    }

    /// Rebuilds a spec without a record. `None` where nothing can be told.
    #[allow(clippy::wrong_self_convention)] // says what the spec is made from; the plugin makes it
    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        let _ = found;
        None
    }
}

/// Makes announcements durable: implemented by the executor, which puts the record into the store.
pub trait Announcer {
    /// Writes the record with this mount and this provider info. When it returns without an error the record
    /// survives a power cut.
    fn announce(&self, mount: Option<RecordedMount>, provider_info: Option<Verbatim>) -> Result<(), VolumeError>;

    /// The same for a block volume, which has no mount at its own path.
    fn announce_block(&self, block: RecordedBlock, provider_info: Option<Verbatim>) -> Result<(), VolumeError>;
    /// Writes the record before a driver is asked to make the volume: with this provider info, and not confirmed. Its mount
    /// stays as it was.
    fn announce_call(&self, provider_info: Verbatim) -> Result<(), VolumeError>;
}

/// What SetUp is given.
pub struct SetUp<'a> {
    /// The node.
    pub host: &'a Host,
    /// The pod.
    pub pod: &'a PodRef,
    /// The volume.
    pub spec: &'a VolumeSpec,
    /// Where it is to be, relative to the node root; none for volumes without a folder.
    pub path: Option<&'a RelPath>,
    /// The group for its files.
    pub fs_group: Option<FsGroup>,
    /// Its content, for plugins with [`Capabilities::content`].
    pub content: Option<&'a Payload>,
    /// What the pod may use, for volumes that are a part of it.
    pub resources: &'a PodResources,
    /// What a driver is told besides, for plugins with [`Plugin::inputs`].
    pub inputs: Option<&'a DriverInputs>,
    /// Its servers, for plugins with [`Plugin::servers`].
    pub servers: Option<&'a Servers>,
    /// The device's record, if MountDevice mounted one.
    pub device: Option<&'a DeviceMountRecord>,
    /// The volume's record as it was before this SetUp, if it had one.
    pub record: Option<&'a PodVolume>,
    /// Whether the table shows at `path`, on top, the mount of that record (of a block volume: at its map path).
    pub mounted: bool,
    /// Whether a driver confirmed the volume in this boot, and what it mounted then is still there.
    pub confirmed: bool,
    /// Writes the record.
    pub announcer: &'a dyn Announcer,
}

/// Proof that the record is durable: what may be seen is done through this.
pub struct Announced<'a> {
    /// The node.
    pub host: &'a Host,
    /// Where the volume is to be, relative to the node root.
    pub path: Option<&'a RelPath>,
}

impl<'a> SetUp<'a> {
    /// Makes the record durable, with the mount that is about to be attached (none for plain folders). Every
    /// SetUp calls this once, before anything that can be seen. Writes nothing if the record says so already.
    pub fn announce(
        &self,
        mount: Option<&NewMount>,
        provider_info: Option<Verbatim>,
    ) -> Result<Announced<'a>, VolumeError> {
        let mount =
            mount.map(recorded).or_else(|| if self.mounted { self.record.and_then(|r| r.mount.clone()) } else { None });
        self.announcer.announce(mount, provider_info)?;
        Ok(Announced { host: self.host, path: self.path })
    }

    /// The same for a mount that another program makes at the volume's path: as far as it is known before that program runs
    /// (no id), and again as the mount table then shows it.
    pub fn announce_found(
        &self,
        mount: RecordedMount,
        provider_info: Option<Verbatim>,
    ) -> Result<Announced<'a>, VolumeError> {
        self.announcer.announce(Some(mount), provider_info)?;
        Ok(Announced { host: self.host, path: self.path })
    }

    /// Makes the record of a block volume durable, before anything that can be seen. It may be called again when more is
    /// known: a CSI driver publishes the device between the two, and [`crate::block::map()`] calls it with the bind mount.
    pub fn announce_block(
        &self,
        block: RecordedBlock,
        provider_info: Option<Verbatim>,
    ) -> Result<Announced<'a>, VolumeError> {
        self.announcer.announce_block(block, provider_info)?;
        Ok(Announced { host: self.host, path: self.path })
    }

    /// Makes the record durable before a driver is asked to make the volume. Until the driver has answered and the mount
    /// table was looked at, the volume is uncertain.
    pub fn announce_call(&self, provider_info: Verbatim) -> Result<Announced<'a>, VolumeError> {
        self.announcer.announce_call(provider_info)?;
        Ok(Announced { host: self.host, path: self.path })
    }
}

/// The record's words for a mount that is about to be attached.
pub(crate) fn recorded(mount: &NewMount) -> RecordedMount {
    let (fs_type, source, root) = mount.announced();
    RecordedMount { id: mount.id().map(|id| id.0), fs_type, source, root }
}

impl Announced<'_> {
    /// Makes the volume's folder and those above it (0750), the last with `mode`, and opens it.
    ///
    /// A folder that exists keeps its mode.
    pub fn make_volume_dir(&self, mode: u32) -> Result<Dir, VolumeError> {
        let Some(path) = self.path else {
            return Err(VolumeError::Refused(Problem::new(
                "NoFolder",
                "this kind of volume has no folder of its own, yet one was to be made",
                "this is a fault in Refloat; please report it",
            )));
        };
        if let Some(parent) = path.as_path().parent().filter(|p| !p.as_os_str().is_empty()) {
            self.host.root.make_dirs(parent, 0o750).map_err(VolumeError::Path)?;
        }
        self.host.root.make_dirs(path.as_path(), mode).map_err(VolumeError::Path)
    }

    /// Makes the mount visible at the volume's folder.
    pub fn attach(&self, mount: NewMount, target: &Dir) -> Result<(), VolumeError> {
        mount.attach(target).map(|_| ()).map_err(VolumeError::Mount)
    }
}

/// What other devices of this node are known by their records: implemented by the executor. Plugins whose devices share
/// something with others (an iSCSI session) ask for it.
pub trait Peers: std::fmt::Debug {
    /// The records of all devices, as they are now.
    ///
    /// # Errors
    /// They cannot be read, so nobody can tell what others use.
    fn devices(&self) -> Result<Vec<DeviceMountRecord>, VolumeError>;
}

impl Peers for Vec<DeviceMountRecord> {
    fn devices(&self) -> Result<Vec<DeviceMountRecord>, VolumeError> {
        Ok(self.clone())
    }
}

/// What MountDevice is given.
pub struct MountDevice<'a> {
    /// The node.
    pub host: &'a Host,
    /// The volume.
    pub spec: &'a VolumeSpec,
    /// The global mount path.
    pub path: &'a RelPath,
    /// The group for its files, for drivers that give it to them.
    pub fs_group: Option<FsGroup>,
    /// What a driver is told besides, for plugins with [`Plugin::inputs`].
    pub inputs: Option<&'a DriverInputs>,
    /// The device's record as it was before, if it had one.
    pub record: Option<&'a DeviceMountRecord>,
    /// Whether the table shows at `path`, on top, the mount of that record.
    pub mounted: bool,
    /// Whether a driver confirmed the device in this boot, and what it mounted then is still there.
    pub confirmed: bool,
    /// The other devices.
    pub peers: &'a dyn Peers,
    /// Writes the record.
    pub announcer: &'a dyn DeviceAnnouncer,
}

/// Makes announcements of devices durable: implemented by the executor.
pub trait DeviceAnnouncer {
    /// Writes the record with this device, mount and provider info.
    fn announce(
        &self,
        device: Option<String>,
        mount: Option<RecordedMount>,
        provider_info: Option<Verbatim>,
    ) -> Result<(), VolumeError>;

    /// Writes the record before a driver is asked to make the device: with this provider info, and not confirmed. Its
    /// mount stays as it was.
    fn announce_call(&self, provider_info: Verbatim) -> Result<(), VolumeError>;
}

impl<'a> MountDevice<'a> {
    /// Makes the record durable. Every MountDevice calls this before anything that can be seen (formatting too), and
    /// again when it knows more. What is `None` stays as it was while the device is mounted.
    pub fn announce(
        &self,
        device: Option<String>,
        mount: Option<&NewMount>,
        provider_info: Option<Verbatim>,
    ) -> Result<Announced<'a>, VolumeError> {
        let before = if self.mounted { self.record } else { None };
        let mount = mount.map(recorded).or_else(|| before.and_then(|r| r.mount.clone()));
        let device = device.or_else(|| before.and_then(|r| r.device.clone()));
        let provider_info = provider_info.or_else(|| before.and_then(|r| r.provider_info.clone()));
        self.announcer.announce(device, mount, provider_info)?;
        Ok(Announced { host: self.host, path: Some(self.path) })
    }

    /// Makes the record of a mount durable that is there already.
    pub fn announce_found(
        &self,
        device: Option<String>,
        mount: RecordedMount,
        provider_info: Verbatim,
    ) -> Result<(), VolumeError> {
        self.announcer.announce(device, Some(mount), Some(provider_info))
    }

    /// As [`SetUp::announce_call`].
    pub fn announce_call(&self, provider_info: Verbatim) -> Result<Announced<'a>, VolumeError> {
        self.announcer.announce_call(provider_info)?;
        Ok(Announced { host: self.host, path: Some(self.path) })
    }
}

/// What TearDown is given.
#[derive(Debug)]
pub struct TearDown<'a> {
    /// The node.
    pub host: &'a Host,
    /// The record; for a volume found without one, what could be told of it (`trusted` is false then).
    pub record: &'a PodVolume,
    /// Whether the record was really read from the store. Without one, no file content is ever deleted.
    pub trusted: bool,
    /// How many times in a row it failed before, since the manager's start.
    pub failures: u32,
    /// Whether what a driver mounted is unmounted without it if the driver is not there any more.
    pub without_driver: bool,
}

/// What UnmountDevice is given.
#[derive(Debug)]
pub struct UnmountDevice<'a> {
    /// The node.
    pub host: &'a Host,
    /// The record; for a device found without one, what could be told of it.
    pub record: &'a DeviceMountRecord,
    /// Whether the record was really read from the store.
    pub trusted: bool,
    /// The other devices.
    pub peers: &'a dyn Peers,
}

/// The plugins of this node.
#[derive(Debug)]
pub struct Plugins {
    /// With their names, which cost an allocation each time they are asked for.
    list: Vec<(PluginName, Box<dyn Plugin>)>,
    /// What stands for every flexVolume driver: their names are their own.
    flex: crate::plugins::known::Flex,
}

impl Plugins {
    /// All plugins that are built in.
    pub fn builtin() -> Self {
        let list = crate::plugins::all().into_iter().map(|plugin| (plugin.name(), plugin)).collect();
        Self { list, flex: crate::plugins::known::Flex }
    }

    /// The plugin with this name. Any name that is not of the form `kubernetes.io/…` may be a flexVolume driver's.
    pub fn by_name(&self, name: &PluginName) -> Option<&dyn Plugin> {
        let known = self.list.iter().find(|(its, _)| its == name).map(|(_, plugin)| plugin.as_ref());
        known.or_else(|| crate::plugins::known::is_flex(name).then_some(&self.flex as &dyn Plugin))
    }

    /// The plugin for this source. Exactly one, or an error that names the type.
    pub fn by_source(&self, source: &SpecSource) -> Result<&dyn Plugin, SpecError> {
        let mut fitting = self.iter().chain([&self.flex as &dyn Plugin]).filter(|p| p.supports(source));
        let volume = || source.volume().typed.name.clone();
        match (fitting.next(), fitting.next()) {
            (Some(plugin), None) => Ok(plugin),
            (None, _) => Err(SpecError::UnknownType { volume: volume(), type_name: type_name(source) }),
            (Some(one), Some(other)) => Err(SpecError::Field {
                volume: volume(),
                field: match source {
                    SpecSource::Inline { .. } => "volumes[]".into(),
                    SpecSource::Persistent { .. } => "persistentVolume.spec".into(),
                },
                why: format!("has more than one type ({} and {})", one.name(), other.name()),
            }),
        }
    }

    /// The plugin that sets this source up: that of the source, or the CSI plugin if a driver has taken its place. Then what
    /// the source is to that driver too.
    ///
    /// # Errors
    /// No plugin is for it, or it cannot be translated.
    pub fn resolve(&self, source: &SpecSource) -> Result<(&dyn Plugin, Option<Migrated>), SpecError> {
        let own = self.by_source(source)?;
        let Some(migrated) = crate::migration::translate(source)? else { return Ok((own, None)) };
        let csi = self.iter().find(|plugin| plugin.name().as_str() == crate::layout::CSI);
        Ok((csi.unwrap_or(own), Some(migrated)))
    }

    /// All of them but flexVolume, whose names are the drivers' own.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Plugin> {
        self.list.iter().map(|(_, plugin)| plugin.as_ref())
    }
}

/// The fields of a `PersistentVolume`'s spec that are not its type.
///
/// # Source
/// `PersistentVolumeSpec` of the Kubernetes core API v1.36.
const NOT_A_TYPE: [&str; 9] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

/// The field that says what type of volume this is: taken from the JSON as it came, so that also a type is named that
/// this program has never heard of.
fn type_name(source: &SpecSource) -> String {
    type Fields = serde_json::Map<String, serde_json::Value>;
    let first = |fields: Option<&Fields>, not: &[&str]| {
        fields
            .and_then(|f| f.iter().find(|(key, value)| !value.is_null() && !not.contains(&key.as_str())))
            .map_or_else(|| "none".to_owned(), |(key, _)| key.clone())
    };
    match source {
        SpecSource::Inline { volume } => first(volume.raw.parse::<Fields>().ok().as_ref(), &["name"]),
        SpecSource::Persistent { persistent_volume, .. } => {
            let whole: Option<Fields> = persistent_volume.raw.parse().ok();
            first(whole.as_ref().and_then(|w| w.get("spec")).and_then(serde_json::Value::as_object), &NOT_A_TYPE)
        }
    }
}

#[cfg(test)]
mod tests;
