//! Finding mounts by path without scanning: paths in order, and what a walk of the path ends in.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;

use super::entries::Entries;

/// No mount, no group.
pub(super) const NONE: u32 = u32::MAX;

/// All mounts at one path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    /// Its first mount in `by_path`.
    pub(super) first: u32,
    /// The group of the nearest path above that has mounts.
    pub(super) above: u32,
    /// The mount that a walk to this path ends in; it may belong to a group above if all here are hidden.
    pub(super) top: u32,
}

/// The mounts by path.
#[derive(Debug, Default)]
pub(super) struct PathIndex {
    /// Mounts in path order; at one path first the hidden ones, then the stack from the lowest.
    pub(super) by_path: Vec<u32>,
    pub(super) groups: Vec<Group>,
}

/// Compares two absolute paths element by element, so that everything below `a` comes directly after `a`, and
/// `a-b` after `a/b`. A path holds no NUL, so `/` may count as the smallest byte.
pub(super) fn cmp_paths(a: &[u8], b: &[u8]) -> Ordering {
    let at = mismatch(a, b);
    let byte = |path: &[u8]| path.get(at).map(|&byte| if byte == b'/' { 0 } else { u16::from(byte) });
    byte(a).cmp(&byte(b))
}

/// Where two texts begin to differ; eight bytes at a time, since long common beginnings are the rule here.
fn mismatch(a: &[u8], b: &[u8]) -> usize {
    let words = a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count() * 8;
    let rest = |path: &[u8]| path.len().min(words);
    words + a[rest(a)..].iter().zip(&b[rest(b)..]).take_while(|(a, b)| a == b).count()
}

/// Whether `path` is `above` or lies below it.
pub(super) fn lies_in(path: &[u8], above: &[u8]) -> bool {
    above == b"/" || (path.starts_with(above) && matches!(path.get(above.len()), None | Some(b'/')))
}

/// The path as mount points are spelled: absolute, no doubled or trailing slash, no `.`. None if it is relative.
pub(super) fn normal(path: &[u8]) -> Option<Cow<'_, [u8]>> {
    if path.first() != Some(&b'/') {
        return None;
    }
    let tidy = path.len() == 1
        || path.split(|&byte| byte == b'/').skip(1).all(|element| !element.is_empty() && element != b".");
    if tidy {
        return Some(Cow::Borrowed(path));
    }
    let mut tidied = Vec::with_capacity(path.len());
    for element in path.split(|&byte| byte == b'/').filter(|element| !element.is_empty() && *element != b".") {
        tidied.push(b'/');
        tidied.extend_from_slice(element);
    }
    if tidied.is_empty() {
        tidied.push(b'/');
    }
    Some(Cow::Owned(tidied))
}

impl PathIndex {
    /// Builds the index and marks the hidden mounts.
    pub(super) fn build(entries: &mut Entries) -> Self {
        let mut by_path: Vec<u32> = (0..entries.list.len() as u32).collect();
        by_path.sort_by(|&a, &b| cmp_paths(entries.point(a), entries.point(b)));
        Self::from_sorted(entries, by_path)
    }

    /// As [`PathIndex::build`] from mounts that are in path order already (those at one path in any order).
    pub(super) fn from_sorted(entries: &mut Entries, mut by_path: Vec<u32>) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        // The groups that the current path lies in.
        let mut open: Vec<u32> = Vec::new();
        let mut walk = Walk::default();
        let mut first = 0;
        while first < by_path.len() {
            let path = entries.point(by_path[first]);
            let same = by_path[first..].iter().take_while(|&&mount| entries.point(mount) == path).count();
            by_path[first..first + same].sort_unstable();
            while let Some(&group) = open.last() {
                let above = groups[group as usize].first as usize;
                if lies_in(path, entries.point(by_path[above])) {
                    break;
                }
                open.pop();
            }
            let above = open.last().copied().unwrap_or(NONE);
            let start = if above == NONE { NONE } else { groups[above as usize].top };
            let top = walk.stack(entries, &mut by_path[first..first + same], start);
            open.push(groups.len() as u32);
            groups.push(Group { first: first as u32, above, top });
            first += same;
        }
        Self { by_path, groups }
    }

    /// The index of a table that has most mounts from an older one: `renamed` tells what a mount of the older table is
    /// called now (or [`NONE`]), `fresh` are the mounts that it did not have.
    pub(super) fn carry_over(&self, entries: &mut Entries, renamed: &[u32], mut fresh: Vec<u32>) -> Self {
        fresh.sort_by(|&a, &b| cmp_paths(entries.point(a), entries.point(b)));
        let mut by_path = Vec::with_capacity(entries.list.len());
        let kept = self.by_path.iter().map(|&old| renamed[old as usize]).filter(|&mount| mount != NONE);
        let kept: Vec<u32> = kept.collect();
        let mut from = 0;
        for mount in fresh {
            let point = entries.point(mount);
            let count = kept[from..].partition_point(|&kept| cmp_paths(entries.point(kept), point).is_le());
            by_path.extend_from_slice(&kept[from..from + count]);
            by_path.push(mount);
            from += count;
        }
        by_path.extend_from_slice(&kept[from..]);
        Self::from_sorted(entries, by_path)
    }

    /// The mounts of a group.
    pub(super) fn members(&self, group: usize) -> &[u32] {
        let first = self.groups[group].first as usize;
        let end = self.groups.get(group + 1).map_or(self.by_path.len(), |next| next.first as usize);
        &self.by_path[first..end]
    }

    fn path_of<'e>(&self, entries: &'e Entries, group: &Group) -> &'e [u8] {
        entries.point(self.by_path[group.first as usize])
    }

    /// The group at exactly this path, else the place where it would be.
    pub(super) fn find(&self, entries: &Entries, path: &[u8]) -> Result<usize, usize> {
        self.groups.binary_search_by(|group| cmp_paths(self.path_of(entries, group), path))
    }

    /// The group at this path or the nearest above.
    pub(super) fn nearest(&self, entries: &Entries, path: &[u8]) -> Option<usize> {
        let mut at = match self.find(entries, path) {
            Ok(found) => return Some(found),
            // Everything before it in order is smaller: its nearest relative is there or above that.
            Err(place) => place.checked_sub(1)?,
        };
        loop {
            let group = self.groups.get(at)?;
            if lies_in(path, self.path_of(entries, group)) {
                return Some(at);
            }
            at = group.above as usize;
        }
    }

    /// The nearest group above this one.
    pub(super) fn above(&self, group: usize) -> Option<usize> {
        let above = self.groups.get(group)?.above;
        (above != NONE).then_some(above as usize)
    }

    /// The mounts strictly below a path.
    pub(super) fn below(&self, entries: &Entries, path: &[u8]) -> &[u32] {
        let begin = match self.find(entries, path) {
            Ok(found) => found + 1,
            Err(place) => place,
        };
        let count = self.groups[begin..].partition_point(|group| lies_in(self.path_of(entries, group), path));
        let place = |group: usize| self.groups.get(group).map_or(self.by_path.len(), |group| group.first as usize);
        &self.by_path[place(begin)..place(begin + count)]
    }
}

/// Walks paths as the kernel does: at each path, from the mount that the walk is in to the one mounted on it there,
/// until nothing more is on top.
#[derive(Default)]
struct Walk {
    /// All short ids, sorted; made when first needed.
    known: Option<Vec<u32>>,
}

impl Walk {
    /// Orders the mounts of one path: first those that the walk does not come by (hidden), then the stack. Answers
    /// the mount that the walk ends in, which began in `start`.
    fn stack(&mut self, entries: &mut Entries, mounts: &mut [u32], start: u32) -> u32 {
        let mut stack: Vec<u32> = Vec::new();
        let mut at = start;
        if at == NONE {
            // The walk begins: a mount whose parent is none of the table hangs on what this process cannot see.
            let root = mounts.iter().rev().copied().find(|&mount| !self.has_parent(entries, mount));
            let Some(root) = root else {
                set_hidden(entries, mounts, true);
                return NONE;
            };
            stack.push(root);
            at = root;
        }
        if let [only] = *mounts {
            let visible = !stack.is_empty() || hangs_on(entries, only, at);
            entries.list[only as usize].hidden = !visible;
            return if visible { only } else { at };
        }
        let by_parent: HashMap<u32, u32> =
            mounts.iter().map(|&mount| (entries.list[mount as usize].parent, mount)).collect();
        set_hidden(entries, mounts, true);
        set_hidden(entries, &stack, false);
        while let Some(&next) = by_parent.get(&entries.list[at as usize].short) {
            // Bad input may have a circle.
            if next == at || !entries.list[next as usize].hidden {
                break;
            }
            entries.list[next as usize].hidden = false;
            stack.push(next);
            at = next;
        }
        let mut ordered: Vec<u32> =
            mounts.iter().copied().filter(|&mount| entries.list[mount as usize].hidden).collect();
        ordered.extend_from_slice(&stack);
        mounts.copy_from_slice(&ordered);
        at
    }

    fn has_parent(&mut self, entries: &Entries, mount: u32) -> bool {
        let entry = &entries.list[mount as usize];
        let known = self.known.get_or_insert_with(|| {
            let mut ids: Vec<u32> = entries.list.iter().map(|entry| entry.short).collect();
            ids.sort_unstable();
            ids
        });
        entry.parent != entry.short && known.binary_search(&entry.parent).is_ok()
    }
}

fn hangs_on(entries: &Entries, mount: u32, parent: u32) -> bool {
    mount != parent && entries.list[mount as usize].parent == entries.list[parent as usize].short
}

fn set_hidden(entries: &mut Entries, mounts: &[u32], hidden: bool) {
    for &mount in mounts {
        entries.list[mount as usize].hidden = hidden;
    }
}
