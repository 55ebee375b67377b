//! Looks at the node without changing it: gathers evidence, reconstructs, and asks who wants what.

mod saved;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use refloat_mount::{Kernel, MountTable, NodeRoot, TableReader};
use refloat_node::{Actual, Answers, Desired, Evidence, Gather, Holders, VolumeKey, Wanted, ask_all, compare};
use refloat_record::{BootId, Loaded, PodUid, Store};
use refloat_volume::scsi::Sys;
use refloat_volume::{Host, Plugins, Problem};

use crate::cli::{SavedArgs, SourceArgs};
use crate::config::Settings;
use crate::exit::Failure;
use crate::sources;
use crate::usage::Usage;
use saved::{Saved, unknown_boot};

/// What was seen on the node.
#[derive(Debug)]
pub(crate) struct View {
    /// The node root as the mount table spells it.
    pub(crate) root: PathBuf,
    /// The node root as it was given, from `/` on.
    pub(crate) given_root: PathBuf,
    /// The state folder; none if no records were looked for.
    pub(crate) state_dir: Option<PathBuf>,
    /// The file that the mount table is from; none for this node's own table.
    pub(crate) mountinfo: Option<PathBuf>,
    /// The boot; none if nobody can tell it.
    pub(crate) boot_id: Option<BootId>,
    /// When it was seen.
    pub(crate) scanned_at: Timestamp,
    /// Who holds mounts in other mount namespaces; empty where that was not looked for.
    pub(crate) holders: Holders,
    /// What was concluded.
    pub(crate) actual: Actual,
    /// Who says what is wanted.
    pub(crate) authority: Authority,
    /// What is mounted.
    pub(crate) table: Arc<MountTable>,
    /// How full volumes are, by path, as far as that was asked.
    pub(crate) usage: BTreeMap<PathBuf, Usage>,
}

/// Who says what is wanted.
#[derive(Debug)]
pub(crate) enum Authority {
    /// Nobody but the pods' checkpoints: they say Yes, and nothing says No.
    Checkpoints(Desired, Vec<PodUid>),
    /// A source of pods.
    Source(Desired),
}

impl Authority {
    /// Only the checkpoints.
    pub(crate) fn of_checkpoints(actual: &Actual) -> Self {
        let incomplete = Some("no source of pods was asked".to_owned());
        let desired = Desired { incomplete, source: "checkpoint".into(), ..Desired::default() };
        Self::Checkpoints(desired, actual.checkpoints.iter().map(|c| c.pod.uid.clone()).collect())
    }

    /// The same with what the sources of a node that something else runs answered. Of a pod that they cannot tell of the
    /// checkpoints tell.
    fn with(self, answers: Answers) -> Self {
        match self {
            Self::Checkpoints(_, pods) => Self::Checkpoints(
                Desired { source: "checkpoint".into(), ..Desired::by_others(Arc::new(answers)) },
                pods,
            ),
            Self::Source(_) => self,
        }
    }

    /// Whether this pod is wanted.
    pub(crate) fn wanted(&self, pod: &PodUid) -> Wanted {
        let (Self::Checkpoints(desired, _) | Self::Source(desired)) = self;
        match (self, desired.wanted(pod)) {
            (Self::Checkpoints(_, pods), Wanted::Unknown { .. }) if pods.contains(pod) => {
                Wanted::Yes { by: "checkpoint".into() }
            }
            (_, wanted) => wanted,
        }
    }

    /// Whether anybody but the checkpoints was asked.
    pub(crate) fn was_asked(&self) -> bool {
        matches!(self, Self::Source(_)) || self.answers().is_some()
    }

    /// What the sources of a node that something else runs answered; none if nobody was asked.
    pub(crate) fn answers(&self) -> Option<&Answers> {
        self.desired().others.as_deref()
    }

    /// Whether a device with these users is wanted: as any of them is; without them, whether a pod that wants it may be in
    /// what could not be read.
    pub(crate) fn wanted_device(&self, users: &[PodUid]) -> Wanted {
        let (Self::Checkpoints(desired, _) | Self::Source(desired)) = self;
        let none = match (desired.unread(), self.answers().map(Answers::verdict_of_unused)) {
            (Some(why), _) | (None, Some(Err(why))) => Wanted::Unknown { why },
            (None, Some(Ok(by))) => Wanted::No { by },
            (None, None) => Wanted::No { by: desired.source.clone() },
        };
        users.iter().map(|pod| self.wanted(pod)).fold(none, |all, one| match (&all, &one) {
            (Wanted::Yes { .. }, _) | (Wanted::Unknown { .. }, Wanted::No { .. } | Wanted::Unknown { .. }) => all,
            _ => one,
        })
    }

    /// Why a manager with no more than this authority would do nothing, where a checkpoint alone wants the pod.
    pub(crate) fn only_checkpoint(&self, pod: &PodUid) -> Option<&'static str> {
        match self {
            Self::Checkpoints(_, pods) if pods.contains(pod) && self.answers().is_none() => {
                Some("its pod's checkpoint wants it, and no source of pods was asked (--manifests names one)")
            }
            Self::Checkpoints(..) | Self::Source(_) => None,
        }
    }

    /// Whether this volume is wanted.
    pub(crate) fn wanted_volume(&self, key: &VolumeKey) -> Wanted {
        match self {
            Self::Checkpoints(..) => self.wanted(&key.pod),
            Self::Source(desired) => desired.wanted_volume(key),
        }
    }

    /// What is wrong with the sources.
    pub(crate) fn problems(&self) -> &[Problem] {
        let (Self::Checkpoints(desired, _) | Self::Source(desired)) = self;
        &desired.problems
    }

    /// The desired state as far as it is known.
    pub(crate) fn desired(&self) -> &Desired {
        let (Self::Checkpoints(desired, _) | Self::Source(desired)) = self;
        desired
    }
}

/// Looks at the node: records, mount table and folders, each in one pass. With a saved mount table nothing of this
/// machine is asked, not even what its configuration file says. `conclude` is [`refloat_node::reconstruct()`] or
/// [`refloat_node::reconstruct_explained`].
pub(crate) fn look(
    settings: &Settings,
    sources: &SourceArgs,
    saved: &SavedArgs,
    conclude: fn(&Evidence, &Plugins) -> Actual,
) -> Result<View, Failure> {
    let asking = ask(settings, sources, saved)?;

    let saved = match &saved.mountinfo {
        Some(file) => Some(Saved::read(file, saved.original_root.as_deref())?),
        None => None,
    };
    let manifests = match saved {
        Some(_) => sources.manifests.as_deref(),
        None => sources.manifests.as_deref().or(settings.file.manifests.as_deref()),
    };
    let state_dir = (saved.is_none() || settings.state_dir_given).then_some(settings.state_dir.as_path());
    let evidence = match &saved {
        Some(saved) => gather_saved(settings, state_dir, saved)?,
        None => gather(settings)?,
    };
    let plugins = Plugins::builtin();
    let mut actual = conclude(&evidence, &plugins);
    let asked_at = Timestamp::now();
    let from_manifests = manifests.map(|folder| {
        let records = &evidence.records.records;
        refloat_node::sources::desired(folder, &actual.checkpoints, records, &plugins)
    });
    let answers = asking.map(|asking| asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    if let Some(answers) = &answers {
        answers.tell_names(&mut actual);
    }
    let authority = match (from_manifests, answers) {
        (None, None) => Authority::of_checkpoints(&actual),
        (None, Some(answers)) => Authority::of_checkpoints(&actual).with(answers),
        (Some(desired), None) => Authority::Source(desired),
        (Some(desired), Some(answers)) => Authority::Source(desired.with_others(answers, asked_at)),
    };
    compare(authority.desired(), &mut actual);
    actual.problems.extend(saved.iter().flat_map(|saved| saved.problems.iter().cloned()));
    Ok(View {
        root: evidence.root,
        given_root: std::path::absolute(&settings.root_dir).unwrap_or_else(|_| settings.root_dir.clone()),
        state_dir: state_dir.map(Path::to_path_buf),
        boot_id: saved.is_none().then_some(evidence.boot_id),
        mountinfo: saved.map(|saved| saved.file),
        scanned_at: Timestamp::now(),
        holders: Holders::default(),
        actual,
        authority,
        table: evidence.table,
        usage: BTreeMap::new(),
    })
}

/// Begins to ask the sources of pods, beside the look at the node. None if there is nobody to ask.
fn ask(
    settings: &Settings,
    args: &SourceArgs,
    saved: &SavedArgs,
) -> Result<Option<std::thread::JoinHandle<Answers>>, Failure> {
    let sources = match saved.mountinfo {
        Some(_) => sources::of_another_node(args)?,
        None => sources::of_this_node(args, settings)?,
    };
    if sources.is_empty() {
        return Ok(None);
    }
    let patience = sources::patience(args);
    let asking = std::thread::Builder::new().name("sources".into()).spawn(move || ask_all(&sources, patience));
    Ok(Some(asking.context("cannot start a thread")?))
}

/// Gathers evidence: the records (read only), the mount table and the folders.
pub(crate) fn gather(settings: &Settings) -> Result<Evidence, Failure> {
    let host = host(open_root(settings)?, boot_id()?);
    Gather::new(&host).read(|| Store::read(&settings.state_dir)).context("cannot look at the node").map_err(unreadable)
}

/// The same from a root that was unpacked here and a saved mount table.
fn gather_saved(settings: &Settings, state_dir: Option<&Path>, saved: &Saved) -> Result<Evidence, Failure> {
    let host = host(open_root(settings)?.said_to_be_at(saved.root.clone()), unknown_boot());
    let records = || state_dir.map_or_else(|| Ok(Loaded::default()), Store::read);
    let evidence = Gather::new(&host).with_table(&saved.table).read(records);
    let mut evidence = evidence.context("cannot look at what was saved of the node").map_err(unreadable)?;
    evidence.boot_id = saved.boot(&evidence.records.records);
    Ok(evidence)
}

fn host(root: NodeRoot, boot_id: BootId) -> Host {
    let kernel = Kernel::detect();
    let table = Mutex::new(TableReader::new(kernel));
    let drivers = refloat_csi::Drivers::none();
    // Nobody is asked for anything.
    let flex_drivers = refloat_volume::plugins::flex_volume::FlexDrivers::default();
    Host {
        root,
        kernel,
        boot_id,
        tool_deadline: Duration::ZERO,
        table,
        drivers,
        flex_drivers,
        sys: Sys::default(),
        providers: refloat_volume::provider::Providers::default(),
    }
}

fn unreadable(error: anyhow::Error) -> Failure {
    Failure::with_hint(error, "run as a user who may read the state folder; `refloat doctor` says more")
}

/// Opens the node root. That it is not there is an error that says so, never "nothing to do".
pub(crate) fn open_root(settings: &Settings) -> Result<NodeRoot, Failure> {
    NodeRoot::open(&settings.root_dir)
        .map_err(|e| Failure::with_hint(e, "name the kubelet's root folder with --root-dir or REFLOAT_ROOT_DIR"))
}

/// The id of this boot.
pub(crate) fn boot_id() -> Result<BootId, Failure> {
    let id = refloat_node::evidence::boot_id().context("cannot read the boot id");
    id.map_err(|e| Failure::with_hint(e, "mount proc at /proc"))
}
