//! What the fuzz targets check. [`manifest`]: any bytes are manifests or a reason why not, and any manifests are resolved, the same
//! way each time and to nothing outside the pods' folders, never with a panic. [`foreign()`]: any mount table and any
//! other program's file are a node, reconstructed the same way each time and without losing a volume. [`foreign_file()`]: any
//! text of any form of such a file is merged or refused, never with a password in what is concluded. Called by the targets
//! in `fuzz/` and, with the corpus that is kept there, by the tests below.

mod foreign;
mod foreign_file;

use std::collections::BTreeSet;

use refloat_record::{PodCheckpoint, Record, codec};
use refloat_volume::{Plugins, layout};

use crate::sources::manifests::{FileState, Folder, ParsedFile, read_file};
use crate::{Desired, DesiredPod, Wanted, desired::resolve};

pub use foreign::foreign;
pub use foreign_file::foreign_file;

const FILE: &str = "fuzz.yaml";

/// Reads bytes as the one file of a manifest folder, and resolves what its pods want.
pub fn manifest(bytes: &[u8]) {
    let plugins = Plugins::builtin();
    let state = match read_file(FILE, bytes) {
        Ok(file) => FileState::Parsed(file),
        Err(error) => {
            // YAML also ends a line with a lone carriage return.
            let lines = bytes.iter().filter(|byte| b"\r\n".contains(byte)).count() + 1;
            assert!((1..=lines + 1).contains(&error.line), "line {} of {lines}", error.line);
            FileState::Broken { line: Some(error.line), reason: error.reason }
        }
    };
    let folder = folder(state);
    let desired = resolve(&folder, &[], &[], &plugins);
    let shown = format!("{desired:?}");
    assert_eq!(shown, format!("{:?}", resolve(&folder, &[], &[], &plugins)), "the same answer twice");
    for pod in desired.pods.values() {
        check_pod(pod);
    }
    as_admitted(&desired, &folder, &plugins);
}

fn folder(state: FileState) -> Folder {
    Folder { path: "/manifests".into(), files: [(FILE.to_owned(), state)].into(), ..Folder::default() }
}

fn check_pod(pod: &DesiredPod) {
    let own = layout::pod_path(&pod.pod.uid);
    let mut keys = BTreeSet::new();
    for volume in &pod.volumes {
        assert!(keys.insert(&volume.key), "one entry for a volume");
        assert!(volume.path.iter().all(|path| path.as_path().starts_with(&own)), "{:?}", volume.path);
        assert!(volume.device_mount_path.iter().all(|path| path.as_path().starts_with(layout::PLUGINS)));
        assert!(volume.host_path.iter().all(|path| path.starts_with('/') && !path.split('/').any(|e| e == "..")));
        assert!(!volume.outer_names.is_empty());
        for sub_path in &volume.sub_paths {
            let place = layout::sub_path(&pod.pod.uid, &volume.key.spec_name, &sub_path.container, sub_path.index);
            assert!(place.is_ok_and(|place| place.as_path().starts_with(&own)), "{sub_path:?}");
            assert!(!sub_path.sub_path.starts_with('/') && !sub_path.sub_path.split('/').any(|e| e == ".."));
        }
        if let Some(content) = &volume.content {
            assert_eq!(content.check(), Ok(()));
        }
    }
}

/// The pods as their checkpoints have them: kept while their file cannot be read, gone when it no longer has them.
fn as_admitted(desired: &Desired, read: &Folder, plugins: &Plugins) {
    let checkpoint = |pod: &DesiredPod| PodCheckpoint {
        pod: pod.pod.clone(),
        source: pod.source.clone(),
        object: pod.object.clone(),
    };
    let checkpoints: Vec<PodCheckpoint> = desired.pods.values().map(checkpoint).collect();
    for checkpoint in &checkpoints {
        let record = Record::PodCheckpoint(checkpoint.clone());
        assert_eq!(codec::decode(&codec::encode(&record)), Ok(record));
    }
    let same = resolve(read, &checkpoints, &[], plugins);
    assert_eq!(format!("{:?}", same.pods), format!("{:?}", desired.pods), "a checkpoint changes no pod that is there");
    let broken = folder(FileState::Broken { line: None, reason: "it cannot be read".into() });
    let kept = resolve(&broken, &checkpoints, &[], plugins);
    let gone = resolve(&folder(FileState::Parsed(ParsedFile::default())), &checkpoints, &[], plugins);
    for (uid, pod) in &desired.pods {
        assert!(matches!(kept.wanted(uid), Wanted::Unknown { .. }));
        assert!(matches!(gone.wanted(uid), Wanted::No { .. }));
        let kept = &kept.pods[uid];
        check_pod(kept);
        // Nothing that was wanted may look unwanted now.
        let entries =
            |pod: &DesiredPod| pod.volumes.iter().map(|v| v.outer_names.len()).sum::<usize>() + pod.waiting.len();
        assert_eq!(entries(kept), entries(pod));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_of_manifest() {
        refloat_test_support::corpus(env!("CARGO_MANIFEST_DIR"), "manifest", super::manifest);
    }

    #[test]
    fn seeds_of_foreign_file() {
        refloat_test_support::corpus(env!("CARGO_MANIFEST_DIR"), "foreign_file", super::foreign_file);
    }

    #[test]
    fn seeds_of_foreign() {
        refloat_test_support::corpus(env!("CARGO_MANIFEST_DIR"), "foreign", super::foreign);
    }
}
