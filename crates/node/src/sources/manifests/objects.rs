//! The objects of all files together, to look up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use refloat_volume::{Lookup, NodeFacts, Object, Objects, Problem, migration};

use super::{Folder, ManifestPod, ObjectKind};

/// Every object that the folder has, by namespace and name. One that is defined twice is unknown.
#[derive(Default)]
pub struct ManifestObjects {
    pods: Vec<(String, Arc<ManifestPod>)>,
    twice_pods: Vec<(ManifestPod, String)>,
    volumes: Table<Object<PersistentVolume>>,
    claims: Table<Object<PersistentVolumeClaim>>,
    config_maps: Table<ConfigMap>,
    secrets: Table<Secret>,
    csi_drivers: Table<CSIDriver>,
    attachments: Table<VolumeAttachment>,
    endpoints: Table<Endpoints>,
    /// Why an object that was not found may exist all the same.
    incomplete: Option<String>,
    problems: Vec<Problem>,
    node: NodeFacts,
}

/// Names only: there are secrets in it.
impl std::fmt::Debug for ManifestObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManifestObjects").field("incomplete", &self.incomplete).finish_non_exhaustive()
    }
}

type Key = (String, String);

struct Table<T> {
    found: BTreeMap<Key, (String, Arc<T>)>,
    twice: BTreeMap<Key, String>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { found: BTreeMap::new(), twice: BTreeMap::new() }
    }
}

impl<T> Table<T> {
    /// Adds an object; tells if there was one already.
    fn add(&mut self, kind: &str, key: Key, place: &str, object: Arc<T>) -> Option<Problem> {
        if let Some((other, _)) = self.found.get(&key) {
            let why = twice(kind, &key.0, &key.1, other, place);
            self.twice.entry(key).or_insert_with(|| why.message.clone());
            return Some(why);
        }
        self.found.insert(key, (place.to_owned(), object));
        None
    }

    fn get(&self, namespace: &str, name: &str, incomplete: Option<&String>) -> Lookup<Arc<T>> {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(why) = self.twice.get(&key) {
            return Lookup::Unknown(why.clone());
        }
        match (self.found.get(&key), incomplete) {
            (Some((_, object)), _) => Lookup::Found(object.clone()),
            (None, Some(why)) => Lookup::Unknown(why.clone()),
            (None, None) => Lookup::Absent,
        }
    }

    /// Those that are defined once.
    fn once(&self) -> impl Iterator<Item = &Arc<T>> {
        self.found.iter().filter(|(key, _)| !self.twice.contains_key(key)).map(|(_, (_, object))| object)
    }
}

fn twice(kind: &str, namespace: &str, name: &str, one: &str, other: &str) -> Problem {
    let name = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    let message = format!("{kind} {name} is defined twice, in {one} and in {other}");
    Problem::new("DefinedTwice", message, "remove one of the two; until then what depends on it keeps what it has")
}

impl ManifestObjects {
    /// The objects of a folder.
    pub fn new(folder: &Folder) -> Self {
        let mut all = Self { incomplete: folder.unreadable.clone(), node: folder.node.clone(), ..Self::default() };
        let mut pods: Vec<(String, String, ManifestPod)> = Vec::new();
        for (name, state) in &folder.files {
            let file = format!("{}/{name}", folder.path);
            if let (None, Some(why)) = (&all.incomplete, state.incomplete()) {
                all.incomplete = Some(format!("{file} cannot be read whole: {why}"));
            }
            let super::FileState::Parsed(parsed) = state else { continue };
            for object in &parsed.objects {
                let place = format!("{file} (line {})", object.line);
                let (kind, namespace, object_name) = object.identity();
                let key = (namespace.to_owned(), object_name.to_owned());
                let problem = match &object.kind {
                    ObjectKind::Pod(pod) => {
                        pods.push((name.clone(), place, (**pod).clone()));
                        None
                    }
                    ObjectKind::PersistentVolume(o) => all.volumes.add(kind, key, &place, o.clone()),
                    ObjectKind::PersistentVolumeClaim(o) => all.claims.add(kind, key, &place, o.clone()),
                    ObjectKind::ConfigMap(o) => all.config_maps.add(kind, key, &place, o.clone()),
                    ObjectKind::Secret(o) => all.secrets.add(kind, key, &place, o.clone()),
                    ObjectKind::CSIDriver(o) => all.csi_drivers.add(kind, key, &place, o.clone()),
                    ObjectKind::Endpoints(o) => all.endpoints.add(kind, key, &place, o.clone()),
                    ObjectKind::VolumeAttachment(o) => all.attachments.add(kind, key, &place, o.clone()),
                };
                all.problems.extend(problem);
            }
        }
        all.add_pods(pods);
        all
    }

    /// Two pods of one name, or of one uid, are both left alone.
    fn add_pods(&mut self, pods: Vec<(String, String, ManifestPod)>) {
        let mut by_name: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let mut by_uid: BTreeMap<&str, usize> = BTreeMap::new();
        let mut double: BTreeMap<usize, String> = BTreeMap::new();
        let mut told = BTreeSet::new();
        for (i, (_, place, pod)) in pods.iter().enumerate() {
            let same_name = *by_name.entry((&pod.pod.namespace, &pod.pod.name)).or_insert(i);
            let same_uid = *by_uid.entry(pod.pod.uid.as_str()).or_insert(i);
            for (other, kind) in [(same_name, "Pod"), (same_uid, "Pod (by its uid)")] {
                if other != i && told.insert((other, i)) {
                    let problem = twice(kind, &pod.pod.namespace, &pod.pod.name, &pods[other].1, place);
                    double.entry(i).or_insert_with(|| problem.message.clone());
                    double.entry(other).or_insert_with(|| problem.message.clone());
                    self.problems.push(problem);
                }
            }
        }
        for (i, (file, _, pod)) in pods.into_iter().enumerate() {
            match double.remove(&i) {
                Some(why) => self.twice_pods.push((pod, why)),
                None => self.pods.push((file, Arc::new(pod))),
            }
        }
    }

    /// The pods that are defined once, each with its file's name.
    pub fn pods(&self) -> &[(String, Arc<ManifestPod>)] {
        &self.pods
    }

    /// The pods that are defined twice, with the reason why neither is taken.
    pub fn twice_pods(&self) -> &[(ManifestPod, String)] {
        &self.twice_pods
    }

    /// Why an object that is not found may exist all the same, if so.
    pub fn incomplete(&self) -> Option<&String> {
        self.incomplete.as_ref()
    }

    /// What is defined twice.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// All volumes that are defined once.
    pub fn all_persistent_volumes(&self) -> impl Iterator<Item = &Arc<Object<PersistentVolume>>> {
        self.volumes.once()
    }

    /// All claims that are defined once.
    pub fn all_claims(&self) -> impl Iterator<Item = &Arc<Object<PersistentVolumeClaim>>> {
        self.claims.once()
    }
}

impl Objects for ManifestObjects {
    fn config_map(&self, namespace: &str, name: &str) -> Lookup<Arc<ConfigMap>> {
        self.config_maps.get(namespace, name, self.incomplete.as_ref())
    }

    fn secret(&self, namespace: &str, name: &str) -> Lookup<Arc<Secret>> {
        self.secrets.get(namespace, name, self.incomplete.as_ref())
    }

    fn claim(&self, namespace: &str, name: &str) -> Lookup<Arc<Object<PersistentVolumeClaim>>> {
        self.claims.get(namespace, name, self.incomplete.as_ref())
    }

    fn persistent_volume(&self, name: &str) -> Lookup<Arc<Object<PersistentVolume>>> {
        self.volumes.get("", name, self.incomplete.as_ref())
    }

    fn csi_driver(&self, name: &str) -> Lookup<Arc<CSIDriver>> {
        self.csi_drivers.get("", name, self.incomplete.as_ref())
    }

    fn volume_attachment(&self, driver: &str, persistent_volume: &str) -> Lookup<Arc<VolumeAttachment>> {
        // Its name holds the node's, which no manifest tells; the manifests are this node's alone.
        let named = |a: &Arc<VolumeAttachment>| {
            let source = &a.spec.source;
            // That of an inline volume which a driver took over has no `PersistentVolume` but the whole spec of one.
            let inline = || migration::inline_name(source.inline_volume_spec.as_ref()?.csi.as_ref()?);
            source.persistent_volume_name.clone().or_else(inline)
        };
        let fits =
            |a: &&Arc<VolumeAttachment>| a.spec.attacher == driver && named(a).as_deref() == Some(persistent_volume);
        let mut fitting = self.attachments.once().filter(fits);
        match (fitting.next(), fitting.next(), &self.incomplete) {
            (Some(one), None, _) => Lookup::Found(one.clone()),
            (Some(_), Some(_), _) => Lookup::Unknown(format!(
                "two VolumeAttachments are of the driver {driver} and PersistentVolume {persistent_volume}"
            )),
            (None, _, Some(why)) => Lookup::Unknown(why.clone()),
            (None, _, None) => Lookup::Absent,
        }
    }

    fn endpoints(&self, namespace: &str, name: &str) -> Lookup<Arc<Endpoints>> {
        self.endpoints.get(namespace, name, self.incomplete.as_ref())
    }

    fn node_facts(&self) -> NodeFacts {
        self.node.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_not_set_can_be_what_the_machine_has() {
        let folder = tempfile::tempdir().unwrap();
        let objects = ManifestObjects::new(&super::super::read_folder(folder.path()));
        for resource in ["cpu", "memory"] {
            assert!(objects.node_facts().allocatable.contains_key(resource), "{resource}");
        }
    }
}
