//! From the actual and the desired state to operations. Pure, and the only place that decides.
//!
//! Planning goes in rounds: an operation is planned when everything that it needs is there already, so each plan's
//! operations are independent of one another, and a plan without operations means that nothing is left to do. Whether
//! something may be undone is asked of [`MayUnmount`] alone.

mod changed;
mod digest;
mod may_unmount;
mod planner;
mod providers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use refloat_record::{
    DeviceMount, PluginName, PodUid, PodVolume, ProviderAnswer, Record, RecordedMount, RelPath, UniqueVolumeName,
};
use refloat_volume::provider::{Provider, ProviderCall};
use refloat_volume::{Plugins, Presence, layout};

pub use changed::compare;
pub use digest::digest;
pub use may_unmount::{Held, MayUnmount};
pub use planner::plan;
pub use providers::ProviderInput;

use crate::{DesiredVolume, VolumeKey};

/// One thing to do, with the reason.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Write the pod's checkpoint, then its volumes may be set up.
    AdmitPod {
        /// The pod.
        pod: PodUid,
        /// Why.
        reason: String,
    },
    /// Set the volume up, or bring it up to date.
    SetUp {
        /// The volume.
        volume: Arc<DesiredVolume>,
        /// Why.
        reason: String,
    },
    /// Mount the volume's device.
    MountDevice {
        /// The volume that needs it first.
        volume: Arc<DesiredVolume>,
        /// Why.
        reason: String,
    },
    /// Undo SetUp, and forget the record.
    TearDown {
        /// What identifies the volume.
        key: VolumeKey,
        /// Its record, or what could be told of it.
        record: Box<PodVolume>,
        /// Whether the record came from the store.
        trusted: bool,
        /// Why.
        reason: String,
    },
    /// Undo MountDevice, and forget the record.
    UnmountDevice {
        /// Its record, or what could be told of it.
        record: Box<DeviceMount>,
        /// Whether the record came from the store.
        trusted: bool,
        /// Why.
        reason: String,
    },
    /// Remove what is left of a pod without volumes: leftover mounts of its own, empty folders, the checkpoint.
    ForgetPod {
        /// The pod.
        pod: PodUid,
        /// Why.
        reason: String,
    },
    /// Unmount what is no volume that can be torn down: a leftover mount of a pod that is gone, or a global mount that
    /// nobody uses. Nothing but an empty folder is removed. Only [`crate::clean`] plans it.
    UnmountLeftover {
        /// Whose it is.
        of: Exclusion,
        /// Where it is, relative to the node root.
        path: RelPath,
        /// What is to be there; every layer of this origin goes.
        expected: Option<RecordedMount>,
        /// Whether the folder that it was mounted on goes too, if it is empty then.
        folder: bool,
        /// Why.
        reason: String,
    },
    /// Ask a provider outside this program about what is there. Its answer is written by [`Operation::NoteAnswer`].
    AskProvider {
        /// The provider.
        provider: Arc<Provider>,
        /// The call.
        call: ProviderCall,
        /// The volume or device.
        of: Exclusion,
        /// Its record.
        record: Box<Record>,
        /// The volume as a pod wants it, if one does: it tells what is secret.
        volume: Option<Arc<DesiredVolume>>,
        /// Why.
        reason: String,
    },
    /// Write what a provider answered into the record.
    NoteAnswer {
        /// The provider.
        provider: String,
        /// The volume or device.
        of: Exclusion,
        /// The answer.
        answer: ProviderAnswer,
        /// Why.
        reason: String,
    },
    /// Remove the empty folders and the manager's own files that are left of a pod that is gone, without unmounting
    /// anything; and the checkpoint. Only [`crate::clean`] plans it.
    TidyPod {
        /// The pod.
        pod: PodUid,
        /// Why.
        reason: String,
    },
}

/// What plan needs to know beyond the two states.
#[derive(Debug, Default)]
pub struct PlanInput {
    /// The time, as the duration since the manager started.
    pub now: Duration,
    /// Operations under way, by what they exclude.
    pub running: BTreeSet<Exclusion>,
    /// When a failed operation may be tried again, by what it excludes.
    pub not_before: BTreeMap<Exclusion, Duration>,
    /// Volumes whose SetUp was finished since the manager started, with the content they then had.
    pub verified: BTreeMap<VolumeKey, u64>,
    /// Device-mountable volumes that turned out to have no device of their own.
    pub no_device: BTreeSet<UniqueVolumeName>,
    /// What [`digest()`] says of wanted volumes, as far as it was computed already.
    pub digests: BTreeMap<VolumeKey, u64>,
    /// The plugins whose SetUp is called once after each start ([`refloat_volume::Capabilities::verify`]).
    pub verify: BTreeSet<PluginName>,
    /// The plugins whose volumes are binds with options ([`refloat_volume::Capabilities::binds`]).
    pub binds: BTreeSet<PluginName>,
    /// The plugins whose volumes a driver makes ([`refloat_volume::Presence::Driver`]): what is there without a record is
    /// asked for again, which changes nothing if it is the same.
    pub by_driver: BTreeSet<PluginName>,
    /// The plugins that know a device without a record by the disk that is mounted ([`refloat_volume::Plugin::adopts_devices`]).
    pub adopts_devices: BTreeSet<PluginName>,
    /// When a volume's driver wants to be asked again, for volumes whose driver does.
    pub republish: BTreeMap<VolumeKey, Duration>,
    /// Providers outside this program.
    pub providers: ProviderInput,
}

impl PlanInput {
    /// The input at the manager's start, with what these plugins can do.
    pub fn new(plugins: &Plugins) -> Self {
        let verify = plugins.iter().filter(|p| p.capabilities().verify).map(refloat_volume::Plugin::name).collect();
        let binds = plugins.iter().filter(|p| p.capabilities().binds).map(refloat_volume::Plugin::name).collect();
        let by_driver = plugins.iter().filter(|p| p.capabilities().presence == Presence::Driver);
        let by_driver = by_driver.map(refloat_volume::Plugin::name).collect();
        let adopts_devices = plugins.iter().filter(|p| p.adopts_devices()).map(refloat_volume::Plugin::name).collect();
        Self { verify, binds, by_driver, adopts_devices, ..Self::default() }
    }
}

impl Operation {
    /// What it is called in reports and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AdmitPod { .. } => "AdmitPod",
            Self::SetUp { .. } => "SetUp",
            Self::MountDevice { .. } => "MountDevice",
            Self::TearDown { .. } => "TearDown",
            Self::UnmountDevice { .. } => "UnmountDevice",
            Self::ForgetPod { .. } => "ForgetPod",
            Self::UnmountLeftover { .. } => "UnmountLeftover",
            Self::TidyPod { .. } => "TidyPod",
            Self::AskProvider { .. } => "AskProvider",
            Self::NoteAnswer { .. } => "NoteAnswer",
        }
    }

    /// Why it is done.
    pub fn reason(&self) -> &str {
        match self {
            Self::AdmitPod { reason, .. }
            | Self::SetUp { reason, .. }
            | Self::MountDevice { reason, .. }
            | Self::TearDown { reason, .. }
            | Self::UnmountDevice { reason, .. }
            | Self::ForgetPod { reason, .. }
            | Self::UnmountLeftover { reason, .. }
            | Self::AskProvider { reason, .. }
            | Self::NoteAnswer { reason, .. }
            | Self::TidyPod { reason, .. } => reason,
        }
    }

    /// What it excludes while it is under way. The first is what its back-off is counted for.
    pub fn excludes(&self) -> Vec<Exclusion> {
        match self {
            Self::AdmitPod { pod, .. } | Self::ForgetPod { pod, .. } | Self::TidyPod { pod, .. } => {
                vec![Exclusion::Pod(pod.clone())]
            }
            Self::UnmountLeftover { of, .. } => vec![of.clone()],
            Self::SetUp { volume, .. } => {
                let own = Exclusion::Volume(volume.key.clone());
                let device = volume.device_mount_path.is_some();
                std::iter::once(own).chain(device.then(|| Exclusion::Device(volume.unique_name.clone()))).collect()
            }
            Self::MountDevice { volume, .. } => vec![Exclusion::Device(volume.unique_name.clone())],
            Self::TearDown { key, record, .. } => {
                let own = Exclusion::Volume(key.clone());
                // A volume that pods share: its driver is asked one thing of it at a time.
                let shared =
                    record.unique_name != layout::unique_name_of_pod(&record.pod, &record.plugin, &record.spec_name);
                let shared = shared.then(|| Exclusion::Device(record.unique_name.clone()));
                let asked = Exclusion::Asked(Box::new(own.clone()));
                [own].into_iter().chain(shared).chain([asked]).collect()
            }
            Self::UnmountDevice { record, .. } => {
                let own = Exclusion::Device(record.unique_name.clone());
                vec![own.clone(), Exclusion::Asked(Box::new(own))]
            }
            Self::AskProvider { provider, of, .. } => {
                let of = Box::new(of.clone());
                vec![Exclusion::Provider(provider.name().to_owned(), of.clone()), Exclusion::Asked(of)]
            }
            Self::NoteAnswer { provider, of, .. } => {
                vec![Exclusion::Provider(provider.clone(), Box::new(of.clone())), of.clone()]
            }
        }
    }
}

/// What an operation excludes: no two operations under way may share one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exclusion {
    /// One pod's use of a volume.
    Volume(VolumeKey),
    /// A device.
    Device(UniqueVolumeName),
    /// A pod.
    Pod(PodUid),
    /// What one provider is asked about a volume or device.
    Provider(String, Box<Exclusion>),
    /// What any provider is asked about a volume or device: one thing at a time, and nothing while it is undone.
    Asked(Box<Exclusion>),
}

/// Why something or nothing is done about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What it is about: a volume, device, pod or path, as a person names it.
    pub subject: String,
    /// The volume, if it is one.
    pub volume: Option<VolumeKey>,
    /// What is done: the operation's name, `Keep`, `Wait` or `HandsOff`.
    pub decision: &'static str,
    /// Why.
    pub reason: String,
}

/// What to do now, and why.
#[derive(Debug, Default)]
pub struct Plan {
    /// Unmounts before mounts before devices; none of them excludes another or one under way.
    pub operations: Vec<Operation>,
    /// One entry for every volume, device and leftover, wanted or found.
    pub report: Vec<Report>,
    /// When the next back-off ends; nothing changes before, unless something is noticed.
    pub wake_at: Option<Duration>,
}

impl std::fmt::Display for Exclusion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Volume(key) => write!(f, "volume {:?} ({}) of pod {}", key.spec_name.as_str(), key.plugin, key.pod),
            Self::Device(name) => write!(f, "device {name}"),
            Self::Pod(pod) => write!(f, "pod {pod}"),
            Self::Provider(provider, of) => write!(f, "provider {provider} about {of}"),
            Self::Asked(of) => write!(f, "what providers are asked about {of}"),
        }
    }
}

#[cfg(test)]
mod tests;
