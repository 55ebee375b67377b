//! A node that is not this one: its root unpacked somewhere here, and its mount table in a file.
//!
//! Everything is told by the paths that the node itself has. Nothing of this machine is asked: neither its mount table,
//! nor its boot id, nor, unless the user names it, its state folder. It needs no privilege but to read the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use refloat_mount::MountTable;
use refloat_mount::mountinfo::BadLine;
use refloat_record::{BootId, Record, RecordedMount, RelPath};
use refloat_volume::Problem;

use crate::exit::Failure;

/// What stands for a boot id that nobody can tell. No kernel has it: theirs are UUIDs.
const UNKNOWN_BOOT: &str = "unknown";

/// The kubelet's own default.
const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// A mount table from a file, and where the node's root was.
#[derive(Debug)]
pub(crate) struct Saved {
    /// The file.
    pub(crate) file: PathBuf,
    /// Where the root was on the node.
    pub(crate) root: PathBuf,
    /// The table.
    pub(crate) table: Arc<MountTable>,
    /// What is strange about it.
    pub(crate) problems: Vec<Problem>,
}

impl Saved {
    /// Reads the file. `root` is where the node root was; the kubelet's default if the user does not say.
    pub(crate) fn read(file: &Path, root: Option<&Path>) -> Result<Self, Failure> {
        let root = normal(root.unwrap_or(Path::new(KUBELET_ROOT)))?;
        let text = std::fs::read(file)
            .with_context(|| format!("cannot read the saved mount table {}", file.display()))
            .map_err(|e| Failure::with_hint(e, "--mountinfo names a copy of the node's /proc/1/mountinfo"))?;
        let (table, bad) = MountTable::from_mountinfo(&text);
        if table.is_empty() {
            let why = bad.first().map_or_else(
                || "it is empty".to_owned(),
                |bad| format!("line {} cannot be understood: {}", bad.number, bad.why),
            );
            return Err(Failure::message(
                format!("{} is no mount table: {why}", file.display()),
                "--mountinfo names a copy of the node's /proc/1/mountinfo; /proc/mounts and the output of mount do not \
                 tell enough",
            ));
        }
        let mut problems: Vec<_> = bad.iter().map(|bad| bad_line(file, bad)).collect();
        problems.extend(elsewhere(&table, &root));
        Ok(Self { file: file.to_owned(), root, table: Arc::new(table), problems })
    }

    /// The boot that the table is of, as far as records can tell: that of the recorded mounts which stand in it, else
    /// that of most records.
    pub(crate) fn boot(&self, records: &[Record]) -> BootId {
        let mut boots = BTreeMap::<&BootId, (usize, usize)>::new();
        for record in records {
            let (boot, path, mount) = match record {
                Record::PodVolume(v) => (&v.boot_id, v.path.as_ref(), v.mount.as_ref()),
                Record::DeviceMount(d) => (&d.boot_id, Some(&d.device_mount_path), d.mount.as_ref()),
                Record::PodCheckpoint(_) | Record::Driver(_) => continue,
            };
            let (standing, all) = boots.entry(boot).or_default();
            *all += 1;
            *standing += usize::from(self.stands(path, mount));
        }
        let most = boots.into_iter().max_by_key(|(_, votes)| *votes).map(|(boot, _)| boot.clone());
        most.unwrap_or_else(unknown_boot)
    }

    fn stands(&self, path: Option<&RelPath>, mount: Option<&RecordedMount>) -> bool {
        let (Some(path), Some(mount)) = (path, mount) else { return false };
        let found = self.table.at(&path.below(&self.root));
        found.is_some_and(|found| found.fs_type() == mount.fs_type && found.source() == mount.source)
    }
}

/// What stands for the boot id of a node that nobody can ask.
pub(crate) fn unknown_boot() -> BootId {
    BootId::new(UNKNOWN_BOOT).expect("a word is a boot id")
}

/// An absolute path as a mount table would spell it.
fn normal(root: &Path) -> Result<PathBuf, Failure> {
    let plain = root.components().all(|part| !matches!(part, std::path::Component::ParentDir));
    if !root.is_absolute() || !plain {
        return Err(Failure::usage(
            format!("--original-root is {}, which is no absolute path", root.display()),
            "name the node's root folder as its mount table spells it, such as /var/lib/kubelet",
        ));
    }
    Ok(root.components().collect())
}

fn bad_line(file: &Path, bad: &BadLine) -> Problem {
    Problem::new(
        "MountTableLine",
        format!("line {} of {} cannot be understood: {}", bad.number, file.display(), bad.why),
        "Compare it with `man proc_pid_mountinfo`; the mount that it tells of is missing here.",
    )
}

/// Whether the mounts of pods lie below another root than the one that was named.
fn elsewhere(table: &MountTable, root: &Path) -> Option<Problem> {
    if table.under(root).next().is_some() {
        return None;
    }
    let mut roots = BTreeMap::<PathBuf, usize>::new();
    for mount in table.under(Path::new("/")) {
        let parts: Vec<_> = mount.point().components().collect();
        let pods = (2..parts.len().saturating_sub(2)).find(|&i| {
            parts[i].as_os_str() == "pods"
                && matches!(parts[i + 2].as_os_str().to_str(), Some("volumes" | "volume-subpaths"))
        });
        if let Some(pods) = pods {
            *roots.entry(parts[..pods].iter().collect()).or_default() += 1;
        }
    }
    let (other, number) = roots.into_iter().max_by_key(|(_, number)| *number)?;
    Some(Problem::new(
        "OtherRoot",
        format!(
            "no mount of the table lies below {}, and {number} of pods lie below {}",
            root.display(),
            other.display()
        ),
        format!("Say --original-root {}.", other.display()),
    ))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn table(points: &[&str]) -> MountTable {
        let mut text = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n".to_owned();
        for (n, point) in points.iter().enumerate() {
            let _ = writeln!(text, "{} 1 0:{} / {point} rw - tmpfs tmpfs rw", n + 2, n + 30);
        }
        MountTable::from_mountinfo(text.as_bytes()).0
    }

    #[test]
    fn another_root_is_found() {
        let volume = "pods/0000/volumes/kubernetes.io~secret/a";
        let found = table(&[&format!("/data/kubelet/{volume}"), &format!("/data/kubelet/{volume}b"), "/pods/x"]);
        let problem = elsewhere(&found, Path::new(KUBELET_ROOT)).unwrap();
        assert_eq!(problem.hint, "Say --original-root /data/kubelet.");
        assert!(elsewhere(&found, Path::new("/data/kubelet")).is_none());
        assert!(elsewhere(&table(&["/home", "/a/pods"]), Path::new(KUBELET_ROOT)).is_none());
        assert!(
            elsewhere(&table(&["/pods/0/volumes/p/v"]), Path::new(KUBELET_ROOT)).is_none(),
            "/ is no kubelet's root"
        );
    }

    #[test]
    fn the_original_root_is_an_absolute_path() {
        for bad in ["kubelet", "", "../x", "/a/../b"] {
            assert!(matches!(normal(Path::new(bad)), Err(Failure::Usage { .. })), "{bad}");
        }
        assert_eq!(normal(Path::new("//var/./lib/kubelet/")).unwrap(), Path::new(KUBELET_ROOT));
    }
}
