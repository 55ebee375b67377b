//! Look-ups in tables from text; the real faults that a table can show.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn table(text: &str) -> MountTable {
    let (table, bad) = MountTable::from_mountinfo(text.as_bytes());
    assert!(bad.is_empty(), "{bad:?}");
    table
}

fn ids<'t>(mounts: impl IntoIterator<Item = Mount<'t>>) -> Vec<u32> {
    mounts.into_iter().map(Mount::short_id).collect()
}

const SMALL: &str = "\
1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
2 1 8:2 / /a rw - ext4 /dev/sdb rw
3 1 8:3 / /a-b rw - ext4 /dev/sdc rw
4 2 8:4 / /a/b rw - ext4 /dev/sdd rw
5 4 8:1 /data /a/b/c ro,nosuid - ext4 /dev/sda1 rw
6 1 8:1 /data /z rw - ext4 /dev/sda1 ro
";

#[test]
fn paths_are_compared_by_their_elements() {
    let table = table(SMALL);
    assert_eq!(ids(table.under(Path::new("/a"))), [4, 5]);
    assert_eq!(ids(table.under(Path::new("/a/b"))), [5]);
    assert_eq!(ids(table.under(Path::new("/a/"))), [4, 5]);
    assert!(ids(table.under(Path::new("/a/b/c"))).is_empty());
    assert_eq!(ids(table.under(Path::new("/"))), [2, 4, 5, 3, 6]);
    assert!(ids(table.under(Path::new("/nothing"))).is_empty());
    assert_eq!(ids(table.at(Path::new("/a"))), [2]);
    assert_eq!(ids(table.at(Path::new("//a//b/./"))), [4]);
    assert!(ids(table.at(Path::new("/a/x"))).is_empty());
    assert!(ids(table.at(Path::new("a"))).is_empty(), "a relative path is nowhere");
    assert_eq!(ids(table.covering(Path::new("/a-b/x"))), [3]);
    assert_eq!(ids(table.covering(Path::new("/a-c"))), [1]);
    assert_eq!(ids(table.covering(Path::new("/a/c/d"))), [2]);
    assert_eq!(ids(table.covering(Path::new("/a/b/c"))), [5]);
    assert_eq!(ids(table.covering(Path::new("/"))), [1]);
}

#[test]
fn file_systems_are_found() {
    let table = table(SMALL);
    let device = Device { major: 8, minor: 1 };
    assert_eq!(ids(table.same_root(device, Path::new("/data"))), [5, 6]);
    assert_eq!(ids(table.same_root(device, Path::new("/"))), [1]);
    assert!(ids(table.same_root(device, Path::new("/dat"))).is_empty());
    assert_eq!(ids(table.of_device(device)), [1, 5, 6]);
    assert!(ids(table.of_device(Device { major: 9, minor: 9 })).is_empty());
    assert_eq!(ids(table.by_short_id(4)), [4]);
    assert!(table.by_short_id(40).is_none());
    assert!(table.iter().all(|mount| mount.id().is_none()), "mountinfo tells no unique ids");
    let read_only: Vec<bool> = table.iter().map(Mount::read_only).collect();
    assert_eq!(read_only, [false, false, false, false, true, true]);
    assert!(table.iter().next().is_some_and(Mount::shared));
}

#[test]
fn an_empty_table_answers() {
    let table = MountTable::default();
    assert!(table.is_empty() && table.at(Path::new("/")).is_none() && table.covering(Path::new("/a")).is_none());
    assert!(table.stack(Path::new("/")).is_empty() && table.under(Path::new("/")).next().is_none());
}

/// Case B24: a global mount whose path has a space and brackets and the literal text `\040`.
#[test]
fn b24_special_characters() {
    let line = r"99 30 8:32 /r\040oot /var/lib/kubelet/plugins/kubernetes.io/vsphere-volume/mounts/[ds\0401]\040vm/d.vmdk rw - ext4 /dev/s\134040dc rw";
    let table = table(line);
    let point = Path::new("/var/lib/kubelet/plugins/kubernetes.io/vsphere-volume/mounts/[ds 1] vm/d.vmdk");
    let mount = table.at(point).expect("found by its real path");
    assert_eq!(mount.point(), point);
    assert_eq!(mount.root(), Path::new("/r oot"));
    assert_eq!(mount.source(), r"/dev/s\040dc");
    let mut printed = Vec::new();
    mountinfo::print(mount, &mut printed);
    assert_eq!(OsStr::from_bytes(&printed), OsStr::new(line));
}

/// Case B25: the source of a bind was deleted; a folder can be called `x (deleted)`.
#[test]
fn b25_deleted_sources() {
    let table = table(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
         100 1 8:1 /data/x//deleted /pods/U1/0 rw - ext4 /dev/sda1 rw\n\
         101 1 8:1 /data/x\\040(deleted) /pods/U1/1 rw - ext4 /dev/sda1 rw\n",
    );
    let gone = table.at(Path::new("/pods/U1/0")).expect("still mounted");
    assert!(gone.root_deleted());
    assert_eq!(gone.root_path(), Path::new("/data/x"));
    let there = table.at(Path::new("/pods/U1/1")).expect("mounted");
    assert!(!there.root_deleted());
    assert_eq!(there.root_path(), Path::new("/data/x (deleted)"));
}

/// Case B26: three layers at one path, each the child of the one before; listed in any order.
#[test]
fn b26_stacks() {
    let lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "101 1 0:50 / /v rw - nfs4 srv:/e rw",
        "102 101 0:50 / /v rw - nfs4 srv:/e rw",
        "103 102 0:51 / /v rw - tmpfs other rw",
    ];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let text: Vec<&str> = order.iter().map(|&at| lines[at]).collect();
        let table = table(&text.join("\n"));
        assert_eq!(ids(table.stack(Path::new("/v"))), [101, 102, 103]);
        assert_eq!(ids(table.at(Path::new("/v"))), [103]);
        assert!(table.iter().all(|mount| !mount.hidden()));
    }
}

#[test]
fn a_mount_over_a_folder_above_hides_what_was_there() {
    let table = table(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
         2 1 8:2 / /a/v rw - ext4 old rw\n\
         3 2 8:3 / /a/v/in rw - ext4 old-in rw\n\
         4 1 8:4 / /a rw - ext4 over rw\n\
         5 4 8:5 / /a/v rw - ext4 new rw\n",
    );
    assert_eq!(ids(table.at(Path::new("/a/v"))), [5]);
    assert_eq!(ids(table.stack(Path::new("/a/v"))), [2, 5], "the hidden one first");
    assert_eq!(ids(table.iter().filter(|mount| mount.hidden())), [2, 3]);
    assert!(table.at(Path::new("/a/v/in")).is_none());
    assert_eq!(ids(table.covering(Path::new("/a/v/in"))), [5]);
    assert_eq!(ids(table.covering(Path::new("/a/w"))), [4]);
    assert_eq!(ids(table.under(Path::new("/a"))), [2, 5, 3]);
}

#[test]
fn a_table_that_starts_below_the_root() {
    // After a chroot the parent of the first mounts is none that is listed.
    let table = table("7 3 8:1 / /a rw - ext4 x rw\n8 7 8:2 / /a/b rw - ext4 y rw\n9 3 8:3 / /c rw - ext4 z rw\n");
    assert!(table.iter().all(|mount| !mount.hidden()));
    assert_eq!(ids(table.covering(Path::new("/a/b/c"))), [8]);
    assert!(table.covering(Path::new("/x")).is_none());
}

#[test]
fn circles_of_bad_input_end() {
    let table = table("1 1 8:1 / / rw - ext4 a rw\n2 3 8:2 / /a rw - ext4 b rw\n3 2 8:2 / /a rw - ext4 c rw\n");
    assert_eq!(table.stack(Path::new("/a")).len(), 2);
    assert_eq!(ids(table.covering(Path::new("/a"))), [1]);
    let same: Vec<String> = (0..20).map(|_| "5 5 8:1 / / rw - ext4 a rw".to_owned()).collect();
    assert_eq!(self::table(&same.join("\n")).stack(Path::new("/")).len(), 20);
}

/// Case B27: 75,000 lines, 859 targets, each many times, nested.
fn doubled(lines: usize) -> String {
    let mut text = String::from("1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n");
    // The topmost mount of each target so far, to hang the next layer on.
    let mut tops: HashMap<String, usize> = HashMap::new();
    for id in 2..=lines {
        let target = (id * 31) % 859;
        let above = format!("/var/lib/kubelet/{}", target / 10);
        let point = if target % 10 == 0 { above.clone() } else { format!("{above}/pods/{target}/volumes") };
        let parent = tops.get(&point).copied().unwrap_or(1);
        writeln!(text, "{id} {parent} 8:{} /data {point} rw shared:{id} - ext4 /dev/sda1 rw", target % 7)
            .expect("writing into memory");
        tops.insert(point, id);
    }
    text
}

#[test]
fn b27_a_table_that_doubled_takes_linear_time() {
    let best = |text: &str| {
        let once = |_| {
            let start = Instant::now();
            assert!(table(text).len() > 1000);
            start.elapsed()
        };
        (0..3).map(once).min().unwrap_or_default()
    };
    let (small, large) = (doubled(7_500), doubled(75_000));
    let (short, long) = (best(&small), best(&large));
    // Ten times the lines; sorting and caches get some room.
    assert!(long < short * 40 + Duration::from_millis(50), "{short:?} became {long:?}");
    let table = table(&large);
    assert_eq!(table.len(), 75_000);
    let points: std::collections::BTreeSet<PathBuf> = table.iter().map(|mount| mount.point().to_owned()).collect();
    assert_eq!(points.len(), 860);
    let layers: usize = points.iter().map(|point| table.stack(point).len()).sum();
    assert_eq!(layers, 75_000);
}

/// Mounts made as the kernel makes them: each on what a walk to its path ends in.
fn arbitrary_mounts() -> impl Strategy<Value = Vec<String>> {
    let name = prop_oneof![Just("a"), Just("b"), Just("a-b"), Just("a b"), Just("c")];
    let path = proptest::collection::vec(name, 0..4).prop_map(|names| format!("/{}", names.join("/")));
    proptest::collection::vec(path, 0..40)
}

/// The walk, the plain way: from mount to mount, looking at every one at every step.
fn walk(mounts: &[(u32, u32, String)], path: &str) -> u32 {
    let mut at = 1;
    let mut prefixes = vec!["/".to_owned()];
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let last = prefixes.last().map_or("", |prefix| prefix.trim_end_matches('/'));
        let next = format!("{last}/{name}");
        prefixes.push(next);
    }
    for prefix in prefixes {
        while let Some((id, _, _)) =
            mounts.iter().find(|(id, parent, point)| *parent == at && *id != at && *point == prefix)
        {
            at = *id;
        }
    }
    at
}

proptest! {
    #[test]
    fn look_ups_agree_with_the_plain_walk(paths in arbitrary_mounts(), probes in arbitrary_mounts()) {
        let mut mounts = vec![(1_u32, 0_u32, "/".to_owned())];
        for (id, path) in (2..).zip(&paths) {
            let parent = walk(&mounts, path);
            mounts.push((id, parent, path.clone()));
        }
        let mut text = String::new();
        for (id, parent, point) in &mounts {
            let point = point.replace(' ', "\\040");
            writeln!(text, "{id} {parent} 0:{id} / {point} rw - tmpfs x rw").expect("writing into memory");
        }
        let table = table(&text);
        for path in paths.iter().chain(&probes) {
            let top = walk(&mounts, path);
            prop_assert_eq!(ids(table.covering(Path::new(path))), [top]);
            let here = mounts.iter().any(|(id, _, point)| *id == top && point == path);
            prop_assert_eq!(ids(table.at(Path::new(path))), if here { vec![top] } else { vec![] });
            let mut under = ids(table.under(Path::new(path)));
            under.sort_unstable();
            let plain: Vec<u32> = mounts
                .iter()
                .filter(|(_, _, point)| point != path && Path::new(point).starts_with(path))
                .map(|(id, _, _)| *id)
                .collect();
            prop_assert_eq!(under, plain);
        }
        // A mount is hidden exactly if the walk to its point does not come by it.
        for mount in table.iter() {
            let point = mount.point().to_str().expect("text");
            let mut at = walk(&mounts, point);
            let mut by = vec![at];
            while let Some((_, parent, _)) = mounts.iter().find(|(id, _, _)| *id == at) {
                at = *parent;
                by.push(at);
            }
            prop_assert_eq!(mount.hidden(), !by.contains(&mount.short_id()));
        }
    }
}
