//! What the fuzz targets check: any bytes give a table or bad lines, never a panic, and what was read can be found
//! and printed. Called by the targets in `fuzz/` and, with the corpus that is kept there, by the tests below.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::mountinfo::{Line, escape_name, escape_path, lines, print, unescape};
use crate::{Mount, MountTable};

/// How many mounts of a text are looked up, so that long texts do not slow a fuzzer down.
const LOOKED_UP: usize = 24;

/// Reads a mountinfo text, looks its mounts up and prints it.
pub fn mountinfo(text: &[u8]) {
    for line in lines(text).flatten() {
        check_line(&line);
    }
    let (table, bad) = MountTable::from_mountinfo(text);
    let given = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count();
    assert_eq!(table.len() + bad.len(), given, "each line is a mount or told to be bad");
    assert_eq!(table.under(Path::new("/")).len() + table.stack(Path::new("/")).len(), table.len());
    for mount in table.iter().take(LOOKED_UP) {
        look_up(&table, mount);
    }
    let mut printed = Vec::new();
    for mount in table.iter() {
        print(mount, &mut printed);
        printed.push(b'\n');
    }
    let (again, bad) = MountTable::from_mountinfo(&printed);
    assert_eq!(bad, [], "what is printed can be read");
    assert_eq!(again.len(), table.len());
    for (one, other) in table.iter().zip(again.iter()) {
        assert_eq!(texts(one), texts(other));
        assert_eq!(
            (one.short_id(), one.parent_short_id(), one.device(), one.hidden()),
            (other.short_id(), other.parent_short_id(), other.device(), other.hidden())
        );
    }
}

/// Undoes escapes, and escapes and undoes any bytes.
pub fn escapes(text: &[u8]) {
    let plain = unescape(text);
    assert!(plain.len() <= text.len());
    assert!(text.contains(&b'\\') || *plain == *text);
    for escape in [escape_path, escape_name] {
        let mut escaped = Vec::new();
        escape(text, &mut escaped);
        assert!(!escaped.iter().any(|byte| b" \t\n".contains(byte)), "an escaped text is one field");
        assert_eq!(*unescape(&escaped), *text);
    }
}

fn check_line(line: &Line<'_>) {
    let mut printed = Vec::new();
    line.print(&mut printed);
    assert_eq!(Line::parse(&printed).as_ref(), Ok(line));
}

fn texts(mount: Mount<'_>) -> [Vec<u8>; 7] {
    [
        mount.root().as_os_str().as_bytes().to_vec(),
        mount.point().as_os_str().as_bytes().to_vec(),
        mount.options().into(),
        mount.propagation().into(),
        mount.fs_type().as_bytes().to_vec(),
        mount.source_bytes().into_owned(),
        mount.fs_options().as_bytes().to_vec(),
    ]
}

/// Whether they are the same entry of one table, whose texts lie at places of their own.
fn same(one: Mount<'_>, other: Mount<'_>) -> bool {
    std::ptr::eq(one.point(), other.point())
}

fn look_up(table: &MountTable, mount: Mount<'_>) {
    let point = mount.point();
    let _ = (mount.source(), mount.read_only(), mount.shared(), mount.root_path(), mount.id());
    assert!(table.by_short_id(mount.short_id()).is_some());
    assert!(table.of_device(mount.device()).into_iter().any(|other| same(mount, other)));
    assert!(table.same_root(mount.device(), mount.root()).into_iter().any(|other| same(mount, other)));
    // The kernel prints tidy paths; others are kept, but cannot be asked for.
    let bytes = point.as_os_str().as_bytes();
    let mut elements = bytes.split(|&byte| byte == b'/').skip(1);
    if bytes != b"/" && !elements.all(|element| !element.is_empty() && element != b".") {
        return;
    }
    assert!(table.stack(point).into_iter().any(|other| same(mount, other)));
    for above in point.ancestors().skip(1) {
        assert!(table.under(above).any(|other| same(mount, other)), "{} under {}", point.display(), above.display());
    }
    if let Some(top) = table.at(point) {
        assert_eq!(top.point(), point);
        assert!(!top.hidden(), "a walk ends in no hidden mount");
        assert!(table.stack(point).last().is_some_and(|&last| same(last, top)));
        assert!(table.covering(point).is_some_and(|covering| same(covering, top)));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_of_mountinfo() {
        refloat_test_support::corpus(env!("CARGO_MANIFEST_DIR"), "mountinfo", super::mountinfo);
    }

    #[test]
    fn seeds_of_unescape() {
        refloat_test_support::corpus(env!("CARGO_MANIFEST_DIR"), "unescape", super::escapes);
    }

    proptest::proptest! {
        #[test]
        fn any_lines(lines in proptest::collection::vec(
            (0..6_u32, 0..6_u32, "(/[ab\\\\#. ]{0,2}){1,4}", "(/[ab]{0,2}){1,2}"), 0..12)
        ) {
            let mut text = Vec::new();
            for (id, parent, point, root) in lines {
                text.extend_from_slice(format!("{id} {parent} 0:{id} {root} ").as_bytes());
                crate::mountinfo::escape_path(point.as_bytes(), &mut text);
                text.extend_from_slice(b" rw - tmpfs x rw\n");
            }
            super::mountinfo(&text);
        }
    }
}
