//! From manifests, checkpoints and records to what the pods want. Pure.
//!
//! All entries of `spec.volumes` are wanted. The kubelet skips those that no container mounts; it can, since its pods
//! come from an API server that checked them and its containers see every change at once. Here a volume that a
//! container names only after an edit would be missing until then, and a pod's folder would not show what its spec
//! says. An unused volume costs a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume};
use refloat_record::{
    ClaimRef, FsGroup, FsGroupChangePolicy, OuterSpecName, PodCheckpoint, PodRef, PodSource, PodUid, PodVolume,
    SpecName, Verbatim, VolumeMode,
};
use refloat_volume::{
    Lookup, Object, Objects, Plugin, Plugins, PodResources, PodResourcesError, Problem, SpecError, SpecSource,
    SubPathSpec, VolumeSpec, error_chain, layout,
};

use super::expand::{Env, wrong_path};
use super::{Desired, DesiredPod, DesiredVolume, Doubt, Waiting, claims};
use crate::VolumeKey;
use crate::sources::manifests::{self, Folder, ManifestObjects, ManifestPod, containers};

/// What the pods of a manifest folder want. Pods that the folder can no longer tell of, because it or their file
/// cannot be read, are taken from their checkpoints, as last admitted.
pub fn resolve(folder: &Folder, checkpoints: &[PodCheckpoint], records: &[&PodVolume], plugins: &Plugins) -> Desired {
    let objects = ManifestObjects::new(folder);
    let mut problems = manifests::problems(folder);
    problems.extend_from_slice(objects.problems());
    problems.sort();
    let emptied = emptied(folder, checkpoints);
    problems.extend(emptied.clone());
    let incomplete = folder.unreadable.clone().or(emptied.map(|problem| problem.message));
    let mut desired =
        Desired { incomplete, source: format!("manifests in {}", folder.path), problems, ..Desired::default() };
    for (file, pod) in objects.pods() {
        let source =
            PodSource::Manifest { folder: folder.path.clone(), folder_id: folder.id.clone(), file: file.clone() };
        let resolver = Resolver { pod, objects: &objects, plugins, lookups: &objects, records: None };
        desired.pods.insert(pod.pod.uid.clone(), resolver.resolve(source, None));
    }
    let mut by_pod: BTreeMap<&PodUid, Vec<&PodVolume>> = BTreeMap::new();
    for &record in records {
        by_pod.entry(&record.pod.uid).or_default().push(record);
    }
    let mut settled = BTreeSet::new();
    let unsettled = folder.unsettled();
    let mut settling: Option<Duration> = None;
    for checkpoint in checkpoints {
        let uid = &checkpoint.pod.uid;
        if let Some(pod) = desired.pods.get_mut(uid) {
            let PodSource::Manifest { file, .. } = &pod.source else { continue };
            if let Some(&left) = folder.fresh.get(file).filter(|_| pod.object != checkpoint.object) {
                let settle = manifests::SETTLE.as_secs();
                let file = format!("{}/{file}", folder.path);
                pod.unsettled = Some(format!("{file} was changed less than {settle} s ago, and may be half written"));
                settling = Some(settling.map_or(left, |before| before.min(left)));
            }
            continue;
        }
        let why = desired.incomplete.clone().or_else(|| doubt(folder, &objects, checkpoint));
        let why = why.or_else(|| {
            let (why, left) = unsettled.clone()?;
            settling = Some(settling.map_or(left, |before| before.min(left)));
            Some(why)
        });
        match why {
            None => drop(settled.insert(uid.clone())),
            Some(why) => {
                let records = by_pod.get(uid).map(Vec::as_slice).unwrap_or_default();
                desired.pods.insert(uid.clone(), as_admitted(checkpoint, records, plugins, why));
            }
        }
    }
    desired.settles_in = settling;
    desired.doubt = objects.incomplete().map(|why| Doubt { why: why.clone(), settled });
    desired
}

/// The folder holds no file at all, and is another one than that which pods were read from: it was replaced, an empty file
/// system covers it, or the one that it is on is not mounted yet. Then nothing that it does not say is believed.
fn emptied(folder: &Folder, checkpoints: &[PodCheckpoint]) -> Option<Problem> {
    let id = folder.id.as_ref().filter(|_| folder.files.is_empty())?;
    let other = |c: &PodCheckpoint| match &c.source {
        PodSource::Manifest { folder_id: Some(from), .. } => from != id,
        _ => false,
    };
    let pod = &checkpoints.iter().find(|c| other(c))?.pod;
    let path = &folder.path;
    let message = format!(
        "the manifest folder {path} is empty and not the one that pod {}/{} was read from",
        pod.namespace, pod.name
    );
    let hint = "mount what belongs there, or unmount what covers it; if no pod is wanted any more, put a file into it that \
                says so (none.yaml with a line \"# no pods\"). Until then every pod keeps what it has";
    Some(Problem::new("ManifestFolderReplaced", message, hint))
}

/// Why the folder cannot tell whether the pod of this checkpoint is gone; none if it can: then it is.
fn doubt(folder: &Folder, objects: &ManifestObjects, checkpoint: &PodCheckpoint) -> Option<String> {
    let PodSource::Manifest { folder: from, file, .. } = &checkpoint.source else {
        return Some("its source is of a kind that this version does not know".into());
    };
    let same = |p: &PodRef| {
        p.uid == checkpoint.pod.uid || (&p.namespace, &p.name) == (&checkpoint.pod.namespace, &checkpoint.pod.name)
    };
    if let Some((_, why)) = objects.twice_pods().iter().find(|(p, _)| same(&p.pod)) {
        return Some(why.clone());
    }
    let own = folder.files.get(file).filter(|_| *from == folder.path).and_then(manifests::FileState::incomplete);
    own.map(|why| format!("{}/{file} cannot be read whole: {why}", folder.path))
        .or_else(|| folder.may_hold(&checkpoint.pod))
}

/// The pod as its checkpoint has it.
fn as_admitted(checkpoint: &PodCheckpoint, records: &[&PodVolume], plugins: &Plugins, why: String) -> DesiredPod {
    let source = checkpoint.source.clone();
    let pod = Object::<Pod>::new(checkpoint.object.clone())
        .map_err(|e| e.to_string())
        .and_then(|object| ManifestPod::with_ref(checkpoint.pod.clone(), object));
    match pod {
        Ok(pod) => {
            let nothing = ManifestObjects::default();
            let lookups = NotAsked(&why);
            let resolver =
                Resolver { pod: &pod, objects: &nothing, plugins, lookups: &lookups, records: Some(records) };
            resolver.resolve(source, Some(why.clone()))
        }
        Err(error) => DesiredPod {
            pod: checkpoint.pod.clone(),
            source,
            object: checkpoint.object.clone(),
            volumes: vec![],
            waiting: vec![Waiting {
                outer_name: String::new(),
                key: None,
                unique_name: None,
                problem: Problem::new(
                    "CheckpointUnusable",
                    format!("the checkpoint of pod {}/{}: {error}", checkpoint.pod.namespace, checkpoint.pod.name),
                    "what is mounted stays; make the pod's manifest readable",
                ),
            }],
            unsettled: None,
            only_checkpoint: Some(why),
        },
    }
}

/// Answers "unknown" to everything.
struct NotAsked<'a>(&'a str);

impl NotAsked<'_> {
    fn answer<T>(&self) -> Lookup<T> {
        Lookup::Unknown(self.0.to_owned())
    }
}

impl Objects for NotAsked<'_> {
    fn config_map(&self, _: &str, _: &str) -> Lookup<Arc<k8s_openapi::api::core::v1::ConfigMap>> {
        self.answer()
    }
    fn secret(&self, _: &str, _: &str) -> Lookup<Arc<k8s_openapi::api::core::v1::Secret>> {
        self.answer()
    }
    fn claim(&self, _: &str, _: &str) -> Lookup<Arc<Object<k8s_openapi::api::core::v1::PersistentVolumeClaim>>> {
        self.answer()
    }
    fn persistent_volume(&self, _: &str) -> Lookup<Arc<Object<k8s_openapi::api::core::v1::PersistentVolume>>> {
        self.answer()
    }
    fn csi_driver(&self, _: &str) -> Lookup<Arc<k8s_openapi::api::storage::v1::CSIDriver>> {
        self.answer()
    }
    fn endpoints(&self, _: &str, _: &str) -> Lookup<Arc<k8s_openapi::api::core::v1::Endpoints>> {
        self.answer()
    }
    fn volume_attachment(&self, _: &str, _: &str) -> Lookup<Arc<k8s_openapi::api::storage::v1::VolumeAttachment>> {
        self.answer()
    }
}

/// Resolves one pod.
struct Resolver<'a> {
    pod: &'a ManifestPod,
    objects: &'a ManifestObjects,
    plugins: &'a Plugins,
    /// What plugins and environments look up.
    lookups: &'a dyn Objects,
    /// The pod's records, if it is known only from its checkpoint.
    records: Option<&'a [&'a PodVolume]>,
}

impl Resolver<'_> {
    fn spec(&self) -> &PodSpec {
        self.pod.object.typed.spec.as_ref().expect("checked when the pod was read")
    }

    fn resolve(&self, source: PodSource, only_checkpoint: Option<String>) -> DesiredPod {
        let mut volumes: Vec<DesiredVolume> = Vec::new();
        let mut waiting = Vec::new();
        let resources = PodResources::of(&self.pod.object.typed, &self.lookups.node_facts()).map(Arc::new);
        for (volume, raw) in self.spec().volumes.iter().flatten().zip(self.raw_volumes()) {
            let entry = Object { raw, typed: volume.clone() };
            match self.volume(entry, &resources) {
                Ok(new) => self.add(&mut volumes, &mut waiting, new),
                Err(w) => waiting.push(*w),
            }
        }
        DesiredPod {
            pod: self.pod.pod.clone(),
            source,
            object: self.pod.object.raw.clone(),
            volumes: volumes.into_iter().map(Arc::new).collect(),
            waiting,
            unsettled: None,
            only_checkpoint,
        }
    }

    /// The entries of `spec.volumes` as they came.
    fn raw_volumes(&self) -> Vec<Verbatim> {
        #[derive(serde::Deserialize)]
        struct Spec {
            volumes: Option<Vec<Verbatim>>,
        }
        #[derive(serde::Deserialize)]
        struct Whole {
            spec: Spec,
        }
        // It was parsed as a pod, and in the same order.
        let whole = self.pod.object.raw.parse::<Whole>();
        whole.ok().and_then(|w| w.spec.volumes).unwrap_or_default()
    }

    /// Adds a volume, or the names of one that the pod has already under another name.
    fn add(&self, volumes: &mut Vec<DesiredVolume>, waiting: &mut Vec<Waiting>, new: DesiredVolume) {
        let Some(old) = volumes.iter_mut().find(|v| v.key == new.key) else {
            volumes.push(new);
            return;
        };
        let claim = |v: &DesiredVolume| match &v.spec.source {
            SpecSource::Persistent { claim, .. } => Some(claim.clone()),
            SpecSource::Inline { .. } => None,
        };
        if claim(old).is_some() && claim(old) == claim(&new) {
            old.outer_names.extend(new.outer_names);
            old.sub_paths.extend(new.sub_paths);
            // One mount serves both entries: writable if one of them is. Containers get theirs read-only each.
            old.spec.read_only &= new.spec.read_only;
            return;
        }
        let name = new.outer_names[0].to_string();
        let message = format!(
            "volume {name:?} of pod {} and its volume {:?} would have the same folder",
            self.shown(),
            old.outer_names[0].as_str()
        );
        // The folder of a disk's volume is called after the disk.
        let hint = match (&new.spec.migrated, &new.spec.source) {
            (Some(_), SpecSource::Inline { .. }) => "name the disk in one volume of the pod, and mount that twice",
            _ => "rename the volume in the pod",
        };
        let problem = Problem::new("SameFolderTwice", message, hint);
        waiting.push(Waiting { outer_name: name, key: Some(new.key), unique_name: Some(new.unique_name), problem });
    }

    fn shown(&self) -> String {
        format!("{}/{}", self.pod.pod.namespace, self.pod.pod.name)
    }

    /// One entry of `spec.volumes`.
    fn volume(
        &self,
        entry: Object<Volume>,
        resources: &Result<Arc<PodResources>, PodResourcesError>,
    ) -> Result<DesiredVolume, Box<Waiting>> {
        let outer = entry.typed.name.clone();
        let shown = self.shown();
        let wait = |key: Option<VolumeKey>, problem: Problem| {
            Box::new(Waiting {
                outer_name: outer.clone(),
                key,
                unique_name: None,
                problem: about(problem, &outer, &shown),
            })
        };
        let bad = |key: Option<VolumeKey>| {
            let wait = &wait;
            move |error: SpecError| wait(key.clone(), spec_problem(&error))
        };
        let (source, spec_name, mode, read_only, options) = self.source(entry).map_err(|p| wait(None, p))?;
        let (plugin, migrated) = self.plugins.resolve(&source).map_err(bad(None))?;
        let spec_name = migrated.as_ref().map_or(spec_name, |migrated| migrated.spec_name().to_owned());
        let name = |source| SpecError::Name { volume: outer.clone(), source };
        let outer_name = OuterSpecName::new(&outer).map_err(name).map_err(bad(None))?;
        let spec_name = SpecName::new(spec_name).map_err(name).map_err(bad(None))?;
        let pod = &self.pod.pod;
        let plugin_name = plugin.name_for(&source);
        let key = VolumeKey { pod: pod.uid.clone(), spec_name: spec_name.clone(), plugin: plugin_name.clone(), mode };
        let spec =
            VolumeSpec { plugin: plugin_name, spec_name, mode, read_only, mount_options: options, source, migrated };
        // Where a folder is called after more than the volume, its key cannot be told.
        let named = plugin.spec_name(spec.spec_name.as_str()) == Some(spec.spec_name.as_str());
        let some = named.then(|| key.clone());
        self.check_use(&outer, plugin, mode).map_err(|p| wait(some.clone(), p))?;
        plugin.check(&spec).map_err(bad(some.clone()))?;
        let device_mount_path = plugin.device_mount_path(&spec);
        let unique_name = if plugin.capabilities().device_mountable && device_mount_path.is_some() {
            let volume = plugin.volume_name(&spec).map_err(bad(some.clone()))?;
            layout::unique_name_of_device(&spec.plugin, &volume).map_err(name).map_err(bad(some.clone()))?
        } else {
            layout::unique_name_of_pod(pod, &spec.plugin, &spec.spec_name)
        };
        // From here on it is known which device it would be on.
        let wait = |problem: Problem| {
            let unique_name = Some(unique_name.clone());
            Box::new(Waiting { unique_name, ..*wait(some.clone(), problem) })
        };
        let fs_group = self.fs_group().map_err(wait)?;
        // A device has no files to give to a group.
        let fs_group = fs_group.filter(|_| mode == VolumeMode::Filesystem);
        let resources = resources
            .clone()
            .map_err(|error| wait(Problem::new("BadSpec", error_chain(&error), "correct the pod's resources")))?;
        let sub_paths = self.sub_paths(&outer).map_err(wait)?;
        let content = if plugin.capabilities().content {
            let content = plugin.content(&spec, &self.pod.object.typed, pod, self.lookups);
            content.map_err(|e| wait(e.0))?.map(Arc::new)
        } else {
            None
        };
        let inputs = plugin.inputs(&spec, &self.pod.object.typed, pod, self.lookups);
        let inputs = inputs.map_err(|e| wait(e.0))?.map(Arc::new);
        let servers = plugin.servers(&spec, pod, self.lookups).map(Arc::new);
        Ok(DesiredVolume {
            key,
            pod: pod.clone(),
            outer_names: vec![outer_name],
            unique_name,
            path: plugin.path(pod, &spec),
            host_path: plugin.host_path(&spec),
            device_mount_path,
            fs_group,
            sub_paths,
            resources,
            content,
            inputs,
            servers,
            spec,
        })
    }

    /// The entry resolved through its claim, if it has one: source, inner spec name, mode, read-only, mount options.
    fn source(&self, entry: Object<Volume>) -> Result<(SpecSource, String, VolumeMode, bool, Vec<String>), Problem> {
        let Some((claim, read_only)) = claims::claim_of(&self.pod.pod.name, &entry.typed) else {
            let read_only = inline_read_only(&entry.raw);
            let name = entry.typed.name.clone();
            return Ok((SpecSource::Inline { volume: entry }, name, VolumeMode::Filesystem, read_only, vec![]));
        };
        let (volume, claim): (_, ClaimRef) = match self.records {
            None => claims::bound(self.objects, &self.pod.pod.namespace, &claim)?,
            Some(records) => claims::recorded(records, &entry.typed.name).ok_or_else(|| {
                let message = format!(
                    "claim {}/{claim} cannot be looked up, and no record has its volume",
                    self.pod.pod.namespace
                );
                Problem::new("ClaimUnknown", message, "what is mounted stays; make the pod's manifest readable")
            })?,
        };
        let mode = match volume.typed.spec.as_ref().and_then(|s| s.volume_mode.as_deref()) {
            Some("Block") => VolumeMode::Block,
            None | Some("" | "Filesystem") => VolumeMode::Filesystem,
            Some(other) => {
                let message = format!("its PersistentVolume has the volumeMode {other:?}");
                return Err(Problem::new("BadSpec", message, "use Filesystem or Block"));
            }
        };
        let name = volume.typed.metadata.name.clone().unwrap_or_default();
        let options = claims::mount_options(&volume.typed);
        let source = SpecSource::Persistent { volume: entry, persistent_volume: Box::new(volume), claim };
        Ok((source, name, mode, read_only, options))
    }

    /// Whether containers use the volume as what it is.
    ///
    /// # Source
    /// `createVolumeSpec` of the kubelet's populator: `volumeMounts` need Filesystem, `volumeDevices` need Block.
    fn check_use(&self, outer: &str, plugin: &dyn Plugin, mode: VolumeMode) -> Result<(), Problem> {
        let all = containers(self.spec());
        let mounted = all.iter().find(|c| c.mounts.iter().any(|m| m.name == outer));
        let device = all.iter().find(|c| c.devices.iter().any(|d| d.name == outer));
        let wrong = |message: String| {
            Err(Problem::new("WrongVolumeMode", message, "use volumeMounts for Filesystem and volumeDevices for Block"))
        };
        match (mode, mounted, device) {
            (VolumeMode::Block, Some(c), _) => {
                wrong(format!("it is a block device, and container {:?} names it in volumeMounts", c.name))
            }
            (VolumeMode::Filesystem, _, Some(c)) => {
                wrong(format!("it is a file system, and container {:?} names it in volumeDevices", c.name))
            }
            (VolumeMode::Block, None, _) if !plugin.capabilities().block => {
                let message = format!("{} cannot present raw block devices", plugin.name());
                Err(Problem::new("BlockUnsupported", message, "use volumeMode Filesystem"))
            }
            (VolumeMode::Block | VolumeMode::Filesystem, _, _) => Ok(()),
        }
    }

    fn fs_group(&self) -> Result<Option<FsGroup>, Problem> {
        let Some(context) = &self.spec().security_context else { return Ok(None) };
        let Some(gid) = context.fs_group else { return Ok(None) };
        let bad = |message: String, hint| Err(Problem::new("BadSpec", message, hint));
        // The largest number means "unchanged" to chown.
        let Some(gid) = u32::try_from(gid).ok().filter(|&g| g != u32::MAX) else {
            return bad(format!("the pod's securityContext.fsGroup is {gid}"), "use a group id");
        };
        let policy = match context.fs_group_change_policy.as_deref() {
            None | Some("" | "Always") => FsGroupChangePolicy::Always,
            Some("OnRootMismatch") => FsGroupChangePolicy::OnRootMismatch,
            Some(other) => {
                let message = format!("the pod's securityContext.fsGroupChangePolicy is {other:?}");
                return bad(message, "use Always or OnRootMismatch");
            }
        };
        Ok(Some(FsGroup { gid, policy }))
    }

    /// The subPaths of all containers that mount this volume.
    fn sub_paths(&self, outer: &str) -> Result<Vec<SubPathSpec>, Problem> {
        let mut sub_paths = Vec::new();
        for container in containers(self.spec()) {
            let mut env = None;
            for (index, mount) in container.mounts.iter().enumerate().filter(|(_, m)| m.name == outer) {
                let set = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
                let field = if mount.sub_path.is_some() { "subPath" } else { "subPathExpr" };
                let wrong = |why: String| {
                    let place = format!("{}[{}].volumeMounts[{index}].{field}", container.list, container.name);
                    Problem::new("BadSubPath", format!("{place}: {why}"), "correct the pod's volumeMounts")
                };
                let path = match (set(&mount.sub_path), set(&mount.sub_path_expr)) {
                    (None, None) => continue,
                    (Some(_), Some(_)) => return Err(wrong("subPathExpr is set as well".into())),
                    (Some(path), None) => path,
                    (None, Some(expression)) => {
                        let typed = &self.pod.object.typed;
                        let env = env.get_or_insert_with(|| Env::of(&container, typed, self.lookups));
                        env.expand(&expression).map_err(wrong)?
                    }
                };
                // The whole volume.
                if path.is_empty() {
                    continue;
                }
                if let Some(why) = wrong_path(&path) {
                    return Err(wrong(format!("{why}: {path:?}")));
                }
                sub_paths.push(SubPathSpec {
                    container: container.name.to_owned(),
                    index: u32::try_from(index).unwrap_or(u32::MAX),
                    sub_path: path,
                    read_only: mount.read_only.unwrap_or(false),
                });
            }
        }
        Ok(sub_paths)
    }
}

/// The `readOnly` of the entry's own source, whatever its type.
fn inline_read_only(entry: &Verbatim) -> bool {
    let fields: serde_json::Map<String, serde_json::Value> = entry.parse().unwrap_or_default();
    fields.values().any(|source| source.get("readOnly") == Some(&serde_json::Value::Bool(true)))
}

/// The problem with volume and pod named, where its own words do not.
fn about(problem: Problem, volume: &str, pod: &str) -> Problem {
    let message = match problem.message.strip_prefix(&format!("volume {volume:?}")) {
        Some(rest) if rest.starts_with(" of pod ") => return problem,
        Some(rest) => format!("volume {volume:?} of pod {pod}{rest}"),
        None => format!("volume {volume:?} of pod {pod}: {}", problem.message),
    };
    Problem { message, ..problem }
}

fn spec_problem(error: &SpecError) -> Problem {
    let (code, hint) = match error {
        SpecError::UnknownType { .. } => {
            ("UnknownVolumeType", "use a type that this node has, or run a Refloat that has a plugin for it")
        }
        SpecError::NotSetUp { .. } => ("TypeNotSetUp", "what is mounted of it is kept for the pod; use another type"),
        SpecError::Name { .. } => ("BadName", "correct the name"),
        _ => ("BadSpec", "correct the volume's spec"),
    };
    Problem::new(code, error.to_string(), hint)
}
