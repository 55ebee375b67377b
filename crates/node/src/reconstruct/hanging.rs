//! Names what is on a file system that does not answer.

use std::path::Path;

use refloat_volume::Problem;

use super::Mounts;
use crate::{ActualDevice, ActualVolume, Evidence, Leftover};

/// The problem of something on such a file system.
pub fn problem(who: &str, path: &Path, why: &str) -> Problem {
    Problem::new(
        "FileSystemHangs",
        format!("{who}: the file system at {} does not answer: {why}", path.display()),
        "Whoever touches it waits. Let its daemon go on (kill -CONT) or end it; `refloat clean --force` takes off the \
         volumes of pods that are gone.",
    )
}

/// Adds that problem, and if `explained` also the evidence, to each volume, device and leftover that is, or has something inside that is, on one.
pub(super) fn tell(
    evidence: &Evidence,
    mounts: &Mounts<'_>,
    volumes: &mut [ActualVolume],
    devices: &mut [ActualDevice],
    leftovers: &mut [Leftover],
    explained: bool,
) {
    if evidence.hanging.is_empty() {
        return;
    }
    let of = |path: &Path| {
        let inside = mounts.table.under(path).map(|mount| (mount.point(), mount.device()));
        let mut all = mounts.table.at(path).map(|mount| (mount.point(), mount.device())).into_iter().chain(inside);
        all.find_map(|(point, device)| Some((point.to_path_buf(), evidence.hanging.get(&device)?.clone())))
    };
    for volume in volumes {
        let paths = volume.path.iter().chain(volume.sub_paths.iter().map(|sub_path| &sub_path.path));
        if let Some((point, why)) = paths.map(std::path::PathBuf::as_path).find_map(of) {
            if explained {
                volume.evidence.push(format!("file system: at {} it does not answer: {why}", point.display()));
            }
            let who = format!("volume {:?} of pod {}", volume.key.spec_name.as_str(), volume.key.pod);
            volume.problems.push(problem(&who, &point, &why));
        }
    }
    for device in devices {
        if let Some((point, why)) = of(&device.path) {
            if explained {
                device.evidence.push(format!("file system: it does not answer: {why}"));
            }
            device.problems.push(problem(&format!("the device at {}", device.path.display()), &point, &why));
        }
    }
    for leftover in leftovers.iter_mut().filter(|leftover| leftover.mounted) {
        if let Some((point, why)) = of(&leftover.path) {
            leftover.problems.push(problem(&leftover.path.display().to_string(), &point, &why));
        }
    }
}
