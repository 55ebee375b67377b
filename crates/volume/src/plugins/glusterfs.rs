//! `glusterfs`: a volume of a `GlusterFS` cluster, as the pod's own volume or a `PersistentVolume`.
//!
//! | | path below the node root |
//! | --- | --- |
//! | the mount, of one client process for each pod | `pods/<uid>/volumes/kubernetes.io~glusterfs/<name>` |
//! | the client's log | `plugins/kubernetes.io/glusterfs/<name>/<pod name>-glusterfs.log` |
//!
//! The servers are the addresses of an Endpoints object. They are resolved once, at SetUp, and recorded with all else that the
//! client was told: TearDown, reconstruction and a restart ask nobody, and after a reboot without an API server the recorded
//! ones do. An Endpoints object that cannot be looked up holds up a SetUp without a record, and nothing else.
//!
//! TearDown is a plain unmount, of a dead client ("Transport endpoint is not connected") too, since the mount table alone says what
//! is mounted; then the folder and the log go.
//!
//! # Source
//! `pkg/volume/glusterfs` of Kubernetes v1.25, the last that had it; `mount.glusterfs(8)`.

#[cfg(test)]
mod tests;

use std::io::{Read, Seek, SeekFrom};

use k8s_openapi::api::core::v1::Endpoints;
use refloat_csi::Secrets;
use refloat_record::{PluginName, PodRef, RecordedMount, RelPath, Verbatim};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::by_helper::{ByHelper, with_more};
use super::known::{self, names};
use crate::tool::in_a_message;
use crate::{
    Capabilities, FoundVolume, Host, Lookup, Objects, Plugin, Presence, Problem, Rebuilt, Recorded, Servers, SetUp,
    SpecError, SpecSource, TearDown, VolumeError, VolumeSpec, layout,
};

/// The plugin `kubernetes.io/glusterfs`.
#[derive(Debug, Clone, Copy)]
pub struct GlusterFs;

/// What starts a client and mounts.
const HELPER: &str = "mount.glusterfs";

/// How much of the end of a client's log is told when it fails, in bytes.
const LOG_END: u64 = 1000;

/// The record's `providerInfo`: what the client was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    /// Namespace and name of the Endpoints object; empty where nobody can tell.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    endpoints: String,
    /// The addresses that it had, the first of which was asked for the volume.
    servers: Vec<String>,
    /// The port that it had; the client asks the servers for theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<i32>,
    /// The volume, perhaps with a folder in it.
    path: String,
    /// What the helper was given with `-o`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    options: Vec<String>,
    /// The client's log, relative to the node root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log_file: Option<String>,
}

/// The source, whichever form it has.
#[derive(Debug, Clone, Copy)]
struct Source<'a> {
    endpoints: &'a str,
    /// Of a `PersistentVolume`.
    namespace: Option<&'a str>,
    path: &'a str,
    read_only: bool,
}

impl<'a> Source<'a> {
    fn of(spec: &'a SpecSource) -> Option<Self> {
        match spec {
            SpecSource::Inline { volume } => volume.typed.glusterfs.as_ref().map(|source| Self {
                endpoints: &source.endpoints,
                namespace: None,
                path: &source.path,
                read_only: source.read_only == Some(true),
            }),
            SpecSource::Persistent { persistent_volume, claim, .. } => {
                let source = persistent_volume.typed.spec.as_ref()?.glusterfs.as_ref()?;
                let own = source.endpoints_namespace.as_deref().filter(|namespace| !namespace.is_empty());
                Some(Self {
                    endpoints: &source.endpoints,
                    // `GlusterfsPersistentVolumeSource`: "defaults to the same namespace as the bound PVC".
                    namespace: Some(own.unwrap_or(&claim.namespace)),
                    path: &source.path,
                    read_only: source.read_only == Some(true),
                })
            }
        }
    }

    /// Namespace and name of the Endpoints object.
    fn endpoints(&self, pod: &'a PodRef) -> (&'a str, &'a str) {
        (self.namespace.unwrap_or(&pod.namespace), self.endpoints)
    }
}

fn checked(spec: &VolumeSpec) -> Result<Source<'_>, SpecError> {
    let source = Source::of(&spec.source).ok_or_else(|| spec.wrong("glusterfs", "is missing"))?;
    if source.endpoints.is_empty() {
        return Err(spec.wrong("glusterfs.endpoints", "is missing"));
    }
    if source.path.trim_matches('/').is_empty() || source.path.contains(|c: char| c.is_control()) {
        return Err(spec.wrong("glusterfs.path", format!("is {:?}, which names no volume", source.path)));
    }
    if spec.mount_options.iter().any(|option| option.contains('\0')) {
        return Err(spec.wrong("mountOptions", "holds a NUL byte"));
    }
    Ok(source)
}

/// The addresses that an Endpoints object has, each once, and its first port.
///
/// # Source
/// `setUpAtInternal` of `pkg/volume/glusterfs`: the addresses of all subsets that are ready.
fn servers(object: &Endpoints) -> (Vec<String>, Option<i32>) {
    let subsets = || object.subsets.iter().flatten();
    let mut addresses: Vec<String> = vec![];
    for address in subsets().flat_map(|subset| subset.addresses.iter().flatten()) {
        if address.ip.parse::<std::net::IpAddr>().is_ok() && !addresses.contains(&address.ip) {
            addresses.push(address.ip.clone());
        }
    }
    let port = subsets().flat_map(|subset| subset.ports.iter().flatten()).map(|port| port.port).next();
    (addresses, port)
}

impl Plugin for GlusterFs {
    fn name(&self) -> PluginName {
        known::GLUSTERFS.name()
    }

    fn capabilities(&self) -> Capabilities {
        known::capabilities(false, false, Presence::Mount)
    }

    fn supports(&self, spec: &SpecSource) -> bool {
        Source::of(spec).is_some()
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        checked(spec).map(drop)
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        // Not a part of any path or name.
        checked(spec).map(|source| format!("{}:{}", source.endpoints, source.path))
    }

    fn servers(&self, spec: &VolumeSpec, pod: &PodRef, objects: &dyn Objects) -> Option<Servers> {
        let (namespace, name) = Source::of(&spec.source)?.endpoints(pod);
        let not_known = |code, why: String, hint| Servers::NotKnown(Problem::new(code, why, hint));
        Some(match objects.endpoints(namespace, name) {
            Lookup::Found(object) => match servers(&object) {
                (addresses, _) if addresses.is_empty() => not_known(
                    "EndpointsMissing",
                    format!("Endpoints {namespace}/{name} has no address of a server"),
                    "Give it the addresses of the servers, in subsets[].addresses[].ip.",
                ),
                (addresses, port) => Servers::Known { addresses, port },
            },
            Lookup::Absent => not_known(
                "EndpointsMissing",
                format!("there is no Endpoints {namespace}/{name}, which would name the servers"),
                "Create it with the addresses of the servers.",
            ),
            Lookup::Unknown(why) => not_known(
                "EndpointsUnknown",
                format!("Endpoints {namespace}/{name} cannot be looked up: {why}"),
                "What is mounted stays; correct what cannot be read.",
            ),
        })
    }

    fn lane(&self, spec: &VolumeSpec) -> Option<String> {
        Source::of(&spec.source).map(|source| lane(source.endpoints))
    }

    fn recorded_lane(&self, recorded: Recorded<'_>) -> Option<String> {
        let info = recorded_info(recorded)?;
        let endpoints = info.endpoints.rsplit('/').next().filter(|name| !name.is_empty());
        Some(lane(endpoints.or(info.servers.first().map(String::as_str))?))
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        let source = checked(step.spec).map_err(|error| super::bad_spec(&error))?;
        let before = step.record.and_then(|record| recorded_info(record.into()));
        // What is mounted was mounted from those.
        let recorded = before.filter(|info| step.mounted && !info.servers.is_empty());
        let info = match recorded.or_else(|| step.mounted.then(|| shown(&step, source)).flatten()) {
            Some(info) => info,
            None => info(&step, source)?,
        };
        let first = info.servers.first().cloned().unwrap_or_default();
        let mount = ByHelper {
            helper: HELPER,
            source: format!("{first}:{}", info.path),
            options: &info.options,
            announced: RecordedMount {
                id: None,
                fs_type: "fuse.glusterfs".into(),
                source: format!("{first}:{}", info.path),
                root: "/".into(),
            },
            provider_info: info.verbatim(),
        };
        let log = info.log();
        let made = mount.set_up(&step, || make_log_folder(step.host, log.as_ref()));
        let secrets = Secrets::of_options(&info.options);
        made.map_err(|error| with_more(error, &log.map(|log| log_end(step.host, &log, &secrets)).unwrap_or_default()))
    }

    fn tear_down(&self, step: &TearDown<'_>) -> Result<(), VolumeError> {
        known::plain_tear_down(step)?;
        match recorded_info(step.record.into()).and_then(|info| info.log()) {
            Some(log) => remove_log(step.host, &log),
            None => Ok(()),
        }
    }

    /// A mount that is no cluster's is not claimed: nothing would tell it from what a pod wants there.
    fn from_layout(&self, found: FoundVolume<'_>) -> Option<Rebuilt> {
        let rebuilt = known::GLUSTERFS.from_layout(found)?;
        let Some(mount) = found.table.at(found.path) else { return Some(rebuilt) };
        Some(Rebuilt { provider_info: Some(told(mount)?.verbatim()), ..rebuilt })
    }
}

impl Info {
    fn verbatim(&self) -> Verbatim {
        Verbatim::of(self).expect("texts and a number")
    }

    /// The log, if it is where logs of this plugin are.
    fn log(&self) -> Option<RelPath> {
        let log = RelPath::new(self.log_file.as_ref()?).ok()?;
        let below = log.as_str().strip_prefix(LOGS)?.strip_prefix('/')?;
        (below.split('/').count() == 2 && below.ends_with(LOG_NAME)).then_some(log)
    }
}

/// The folder of all logs, and how each name ends.
const LOGS: &str = "plugins/kubernetes.io/glusterfs";
const LOG_NAME: &str = "-glusterfs.log";

fn lane(endpoints: &str) -> String {
    format!("glusterfs {endpoints}")
}

fn recorded_info(recorded: Recorded<'_>) -> Option<Info> {
    recorded.provider_info?.parse().ok()
}

/// What the mount table tells of a client.
fn told(mount: refloat_mount::Mount<'_>) -> Option<Info> {
    let source = mount.source();
    let (host, path) = names::glusterfs(&source).filter(|_| mount.root().as_os_str() == "/")?;
    Some(Info {
        endpoints: String::new(),
        servers: vec![host.to_owned()],
        port: None,
        path: path.to_owned(),
        options: vec![],
        log_file: None,
    })
}

/// The same of the volume that is mounted, with what its spec tells.
fn shown(step: &SetUp<'_>, source: Source<'_>) -> Option<Info> {
    let table = step.host.mount_table().ok()?;
    let (namespace, name) = source.endpoints(step.pod);
    let told = told(table.at(&step.host.absolute(step.path?))?)?;
    Some(Info {
        endpoints: format!("{namespace}/{name}"),
        log_file: log_path(step).ok().map(|p| p.to_string()),
        ..told
    })
}

/// Where the client of this pod logs.
fn log_path(step: &SetUp<'_>) -> Result<RelPath, VolumeError> {
    let folder = RelPath::new(format!("{LOGS}/{}", step.spec.spec_name));
    folder.and_then(|folder| folder.join(&format!("{}{LOG_NAME}", step.pod.name))).map_err(|error| {
        VolumeError::Refused(Problem::new("BadName", error.to_string(), "Give the pod and the volume shorter names."))
    })
}

/// What the client is to be told: with the servers of now, or, where nobody can be asked for them, the recorded ones.
fn info(step: &SetUp<'_>, source: Source<'_>) -> Result<Info, VolumeError> {
    let (namespace, name) = source.endpoints(step.pod);
    let endpoints = format!("{namespace}/{name}");
    let before = step.record.and_then(|record| recorded_info(record.into())).filter(|i| i.endpoints == endpoints);
    let (servers, port) = match (step.servers, before) {
        (Some(Servers::Known { addresses, port }), _) => (addresses.clone(), *port),
        (_, Some(before)) if !before.servers.is_empty() => (before.servers, before.port),
        (Some(Servers::NotKnown(problem)), _) => return Err(VolumeError::Refused(problem.clone())),
        (None, _) => {
            let why = format!("the servers of Endpoints {endpoints} were not looked up");
            return Err(VolumeError::Refused(Problem::new(
                "NoInputs",
                why,
                "This is a fault in Refloat; please report it.",
            )));
        }
    };
    let log = log_path(step)?;
    let mut options = step.spec.mount_options.clone();
    // An address with colons could not be told from two.
    let others: Vec<&str> = servers.iter().skip(1).map(String::as_str).filter(|s| !s.contains(':')).collect();
    if !others.is_empty() {
        options.push(format!("backup-volfile-servers={}", others.join(":")));
    }
    options.push("log-level=ERROR".into());
    options.push(format!("log-file={}", step.host.absolute(&log).display()));
    if step.spec.read_only || source.read_only {
        options.push("ro".into());
    }
    let path = source.path.trim_start_matches('/').to_owned();
    Ok(Info { endpoints, servers, port, path, options, log_file: Some(log.to_string()) })
}

fn make_log_folder(host: &Host, log: Option<&RelPath>) -> Result<(), VolumeError> {
    let Some(folder) = log.and_then(|log| log.as_path().parent()) else { return Ok(()) };
    host.root.make_dirs(folder, 0o750).map(drop).map_err(VolumeError::Path)
}

/// The last lines of a client's log, for a message, without these secrets; empty if it cannot be read.
fn log_end(host: &Host, log: &RelPath, secrets: &Secrets) -> String {
    let read = || -> Option<Vec<u8>> {
        let folder = host.root.open_dir(log.as_path().parent()?).ok()??;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&folder, log.as_path().file_name()?, flags, Mode::empty()).ok()?;
        let mut file = std::fs::File::from(fd);
        let length = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
        let start = length.saturating_sub(LOG_END);
        file.seek(SeekFrom::Start(start)).ok()?;
        let mut end = vec![];
        file.take(LOG_END).read_to_end(&mut end).ok()?;
        // What may begin amid a secret is not shown.
        let begins = if start > 0 { end.iter().position(|byte| *byte == b'\n')? } else { 0 };
        Some(end.split_off(begins))
    };
    let end = read().unwrap_or_default();
    let lines = String::from_utf8_lossy(&end);
    let lines: Vec<String> = lines.lines().map(|line| secrets.hidden_in(line)).collect();
    in_a_message(lines.join("\n").as_bytes())
}

/// Removes the log, and its folder if no other pod's log is there.
fn remove_log(host: &Host, log: &RelPath) -> Result<(), VolumeError> {
    host.root.remove_file(log.as_path()).map_err(VolumeError::Remove)?;
    let Some(folder) = log.as_path().parent() else { return Ok(()) };
    host.root.remove_empty_dirs_up(folder, layout::PLUGINS.as_ref()).map_err(VolumeError::Remove)
}
