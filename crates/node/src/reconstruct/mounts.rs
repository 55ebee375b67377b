//! The mount table as this node sees its own root: stacks without hidden copies, and mirrors of the root.
//!
//! A root that is bound, or lies in a tree that is bound elsewhere, makes each mount below it show more than once.
//! Two kinds of copies are told apart from real mounts:
//!
//! - a **hidden copy** has the same mount point, but hangs on a mount that another one covers, so that no path leads
//!   to it (a root that is bound on itself). [`Mount::hidden`] tells it, and it is left out.
//! - a **mirror** has a mount point elsewhere. Some other mount shows the folder that is the node root (the same
//!   device, and a root above, at or below it), so each path below the node root has a second spelling there. A
//!   mount whose path is such a second spelling, and whose first spelling shows the same device and root, is a mirror.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use refloat_mount::{Mount, MountTable, UniqueMountId};
use refloat_record::RecordedMount;

use crate::MountSeen;

/// The table, seen from the node root.
pub(crate) struct Mounts<'e> {
    pub(crate) table: &'e MountTable,
    pub(crate) root: &'e Path,
    /// Second spellings: what starts with the first path is what starts with the second.
    mirrors: Vec<(PathBuf, PathBuf)>,
}

/// What a record's mount and the mounts at its path have to say to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Match {
    /// Nothing is mounted there.
    Nothing,
    /// The recorded mount is there; on top, or under layers of its own origin.
    Ours,
    /// A mount as announced is there; the record does not have its id.
    Adopted,
    /// Something else is there.
    Conflict(String),
}

impl<'e> Mounts<'e> {
    pub(crate) fn new(table: &'e MountTable, root: &'e Path) -> Self {
        let mut mirrors = vec![];
        if let Some(cover) = table.covering(root)
            && let Ok(inside) = root.strip_prefix(cover.point())
        {
            let own = join(cover.root(), inside);
            for mount in table.of_device(cover.device()) {
                if mount.point().starts_with(root) && mount.point() != root {
                    continue;
                }
                let pair = if let Ok(rest) = own.strip_prefix(mount.root()) {
                    (join(mount.point(), rest), root.to_path_buf())
                } else if let Ok(rest) = mount.root().strip_prefix(&own) {
                    (mount.point().to_path_buf(), join(root, rest))
                } else {
                    continue;
                };
                if pair.0 != pair.1 {
                    mirrors.push(pair);
                }
            }
        }
        mirrors.sort_unstable();
        mirrors.dedup();
        Self { table, root, mirrors }
    }

    /// The mounts at this path that lie over one another, lowest first, without hidden ones.
    pub(crate) fn stack(&self, path: &Path) -> Vec<Mount<'e>> {
        let mut all = self.table.stack(path);
        all.retain(|mount| !mount.hidden());
        all
    }

    /// Whether something is mounted at this path that no path leads to.
    pub(crate) fn is_hidden_at(&self, path: &Path) -> bool {
        self.table.stack(path).iter().any(|mount| mount.hidden())
    }

    /// How many mounts below the root a path leads to, and how many it does not: copies of a root that is bound onto
    /// itself, or what was mounted before it was.
    pub(crate) fn below(&self) -> (usize, usize) {
        let all = self.table.under(self.root);
        let total = all.len();
        let hidden = all.filter(|mount| mount.hidden()).count();
        (total - hidden, hidden)
    }

    /// The path below the node root that this path is a second spelling of, if it is a mirror of a mount there.
    pub(crate) fn mirrored(&self, mount: Mount<'_>) -> Option<PathBuf> {
        self.mirrors.iter().find_map(|(mirror, real)| {
            let real = join(real, mount.point().strip_prefix(mirror).ok()?);
            let same = |m: &Mount<'_>| m.device() == mount.device() && m.root() == mount.root();
            self.table.stack(&real).iter().any(same).then_some(real)
        })
    }

    /// Whether the recorded mount is at this path, with nothing of another origin there.
    pub(crate) fn is_ours(&self, path: &Path, recorded: Option<&RecordedMount>, same_boot: bool) -> bool {
        matches!(self.matches(path, &self.stack(path), recorded, same_boot), Match::Ours | Match::Adopted)
    }

    /// The unique id of the topmost mount at this path.
    pub(crate) fn id(&self, path: &Path) -> Option<NonZeroU64> {
        Some(self.stack(path).last()?.id()?.0)
    }

    /// What a record announces against what is there. `same_boot` is whether the record is of this boot.
    pub(crate) fn matches(
        &self,
        path: &Path,
        stack: &[Mount<'e>],
        recorded: Option<&RecordedMount>,
        same_boot: bool,
    ) -> Match {
        let Some(top) = stack.last() else {
            let hidden = recorded
                .and_then(|r| r.id)
                .filter(|_| same_boot)
                .is_some_and(|id| self.table.by_id(UniqueMountId(id)).is_some_and(|mount| mount.point() == path));
            if hidden {
                return Match::Conflict("another mount over a folder above hides the recorded mount".into());
            }
            return Match::Nothing;
        };
        let Some(recorded) = recorded else {
            return Match::Conflict(format!("{} is mounted there, but the record announces no mount", shown(*top)));
        };
        if !same_boot {
            return Match::Conflict(format!(
                "{} is mounted there, but the record is of another boot, so it cannot be the recorded mount",
                shown(*top)
            ));
        }
        let same_origin = |mount: &Mount<'_>, as_this: &Mount<'_>| {
            mount.device() == as_this.device() && mount.root() == as_this.root()
        };
        let id = recorded.id.filter(|_| stack.iter().all(|m| m.id().is_some()));
        if let Some(id) = id {
            let Some(place) = stack.iter().position(|m| m.id().is_some_and(|i| i.0 == id)) else {
                // The root was bound onto itself: what a path leads to is a copy, and the recorded mount lies hidden below.
                let hidden = self.table.by_id(UniqueMountId(id)).filter(|m| m.hidden() && m.point() == path);
                if hidden.is_some_and(|hidden| stack.iter().all(|m| same_origin(m, &hidden))) {
                    return Match::Ours;
                }
                // The recorded mount is nowhere: an attach that failed left its id, or somebody unmounted it. What is there
                // is as good as it if it shows the very folder that the record names; a whole file system may be
                // another of the same name.
                let nowhere = self.table.by_id(UniqueMountId(id)).is_none();
                let is_folder = !matches!(recorded.root.as_str(), "" | "/") && !recorded.fs_type.is_empty();
                if nowhere && is_folder && agrees(*top, recorded) && stack.iter().all(|m| same_origin(m, top)) {
                    return Match::Adopted;
                }
                return Match::Conflict(format!(
                    "{} is mounted there, with mount id {}; the recorded mount is {id} and is not there",
                    shown(*top),
                    top.id().map_or(0, |i| i.0.get()),
                ));
            };
            return match stack.iter().find(|m| !same_origin(m, &stack[place])) {
                None => Match::Ours,
                Some(other) => Match::Conflict(format!(
                    "{} is mounted there too, over or under the recorded mount {id}",
                    shown(*other)
                )),
            };
        }
        if !agrees(*top, recorded) {
            return Match::Conflict(format!(
                "{} is mounted there; the record announces type {:?}, source {:?}, root {:?}",
                shown(*top),
                recorded.fs_type,
                recorded.source,
                recorded.root
            ));
        }
        if recorded.fs_type.is_empty() && recorded.source.is_empty() && recorded.root.is_empty() && stack.len() > 1 {
            return Match::Conflict("several mounts lie there, and the record tells none of them".into());
        }
        match stack.iter().find(|m| !same_origin(m, top)) {
            None => Match::Adopted,
            Some(other) => Match::Conflict(format!("{} is mounted there too", shown(*other))),
        }
    }
}

/// Whether the mount is as announced. What the record does not know is not compared.
fn agrees(mount: Mount<'_>, recorded: &RecordedMount) -> bool {
    let root = mount.root_path().to_string_lossy();
    (recorded.fs_type.is_empty() || recorded.fs_type == mount.fs_type())
        && (recorded.source.is_empty() || recorded.source == mount.source())
        && (recorded.root.is_empty() || recorded.root == root)
}

/// A mount in a sentence.
pub(crate) fn shown(mount: Mount<'_>) -> String {
    format!("{} {:?} (root {})", mount.fs_type(), mount.source(), mount.root().display())
}

/// What the table has at a path, in a sentence.
pub(super) fn mounted(stack: &[Mount<'_>]) -> String {
    match stack.last() {
        Some(top) => format!("mount table: {}, {} layer(s)", shown(*top), stack.len()),
        None => "mount table: nothing at its path".into(),
    }
}

/// What is seen of a stack: its topmost mount.
pub(crate) fn seen(stack: &[Mount<'_>], ours: bool) -> Option<MountSeen> {
    let top = stack.last()?;
    Some(MountSeen {
        id: top.id(),
        fs_type: top.fs_type().into_owned(),
        source: top.source().into_owned(),
        root: top.root().to_path_buf(),
        options: all_options(top.options(), &top.fs_options()),
        stack: stack.len(),
        ours,
    })
}

/// The options of a mount and of its file system as one list, as findmnt shows them: one `ro` makes it read-only.
fn all_options(mount: &str, file_system: &str) -> String {
    let all = || mount.split(',').chain(file_system.split(',')).filter(|option| !option.is_empty());
    let first = if all().any(|option| option == "ro") { "ro" } else { "rw" };
    let mut list = vec![first];
    list.extend(all().filter(|option| !matches!(*option, "ro" | "rw")));
    list.join(",")
}

/// A record's words for a mount that was found.
pub(crate) fn told(stack: &[Mount<'_>]) -> Option<RecordedMount> {
    let top = stack.last()?;
    Some(RecordedMount {
        id: top.id().map(|id| id.0),
        fs_type: top.fs_type().into_owned(),
        source: top.source().into_owned(),
        root: top.root_path().to_string_lossy().into_owned(),
    })
}

/// `Path::join` that adds no slash for an empty rest.
fn join(path: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { path.to_path_buf() } else { path.join(rest) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn options_are_told_once() {
        for (mount, file_system, all) in [
            ("rw,relatime", "rw,size=64k", "rw,relatime,size=64k"),
            ("ro,relatime", "rw", "ro,relatime"),
            ("rw,noatime", "ro", "ro,noatime"),
            ("rw", "", "rw"),
        ] {
            assert_eq!(super::all_options(mount, file_system), all, "{mount} {file_system}");
        }
    }
}
