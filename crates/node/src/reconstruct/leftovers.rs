//! What belongs to no volume: folders of pods that have none, and subPath folders without a volume.

use std::collections::HashSet;

use refloat_record::PodUid;
use refloat_volume::{Problem, layout};

use super::Context;
use crate::evidence::PodTree;
use crate::{ActualVolume, Leftover, LeftoverKind};

/// The folders in `pods/` that no volume and no mount that was left there (`mounts`) explains.
pub(super) fn pod_folders(context: &Context<'_>, volumes: &[ActualVolume], mounts: &[Leftover]) -> Vec<Leftover> {
    let mounted: HashSet<&PodUid> = mounts.iter().filter_map(|leftover| leftover.pod.as_ref()).collect();
    let root = context.mounts.root;
    // Sorted by pod.
    let known: Vec<&str> = {
        let mut pods: Vec<&str> = volumes.iter().map(|v| v.key.pod.as_str()).collect();
        pods.dedup();
        pods
    };
    let mut found = vec![];
    for pod in context.evidence.tree.iter().flat_map(|t| &t.pods) {
        let path = root.join(&pod.path);
        let Some(uid) = &pod.uid else {
            found.push(Leftover {
                problems: vec![Problem::new(
                    "UnreadableName",
                    format!("{} has a name that no pod's uid can have", path.display()),
                    "Find out who made it. Refloat leaves it alone.",
                )],
                path,
                kind: LeftoverKind::Unknown,
                pod: None,
                mounted: false,
            });
            continue;
        };
        if known.binary_search(&uid.as_str()).is_ok() {
            found.extend(sub_path_folders(context, pod, volumes));
            continue;
        }
        let checkpoint = context.checkpoints.contains_key(uid);
        match pod.files {
            Some(false) if checkpoint || mounted.contains(uid) => {}
            Some(false) => found.push(Leftover {
                path,
                kind: LeftoverKind::EmptyPodDir,
                pod: Some(uid.clone()),
                mounted: false,
                problems: vec![],
            }),
            Some(true) | None => found.push(Leftover {
                problems: vec![Problem::new(
                    "PodDirWithData",
                    format!("{} holds files that belong to no known volume", path.display()),
                    "They are kept. Look whether anybody needs them before you remove them.",
                )],
                path,
                kind: LeftoverKind::PodDirWithData,
                pod: Some(uid.clone()),
                mounted: false,
            }),
        }
    }
    found
}

/// The sockets that nobody listens on.
pub(super) fn sockets(context: &Context<'_>) -> impl Iterator<Item = Leftover> {
    let found = context.evidence.tree.iter().flat_map(|tree| &tree.sockets);
    found.map(|socket| {
        let path = context.mounts.root.join(socket);
        let problem = Problem::new(
            "SocketLeft",
            format!("nobody listens on the socket {}", path.display()),
            "Its driver is stopped or gone. One that starts makes its socket anew; if it is gone for good, remove the file.",
        );
        Leftover { path, kind: LeftoverKind::Socket, pod: None, mounted: false, problems: vec![problem] }
    })
}

/// subPath folders where nothing is mounted and whose spec name no volume of the pod has.
fn sub_path_folders(context: &Context<'_>, pod: &PodTree, volumes: &[ActualVolume]) -> Vec<Leftover> {
    let Some(uid) = &pod.uid else { return vec![] };
    if pod.sub_paths.is_empty() {
        return vec![];
    }
    let from = volumes.partition_point(|v| v.key.pod < *uid);
    let specs: HashSet<&str> =
        volumes[from..].iter().take_while(|v| v.key.pod == *uid).map(|v| v.key.spec_name.as_str()).collect();
    let unexplained = pod.sub_paths.iter().filter(|path| {
        let spec = path.iter().nth(1).and_then(|s| s.to_str());
        path.starts_with(layout::VOLUME_SUBPATHS) && !spec.is_some_and(|s| specs.contains(s))
    });
    unexplained
        .map(|path| context.mounts.root.join(&pod.path).join(path))
        .filter(|path| context.mounts.table.at(path).is_none())
        .map(|path| Leftover {
            path,
            kind: LeftoverKind::SubPath,
            pod: Some(uid.clone()),
            mounted: false,
            problems: vec![],
        })
        .collect()
}
