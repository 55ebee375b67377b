//! Parsing: what the kernel writes, what it could not write, and back.

use proptest::prelude::*;

use super::*;

fn print_line(line: &Line<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    line.print(&mut out);
    out
}

#[test]
fn all_fields_are_found() {
    let text = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue";
    let line = Line::parse(text).expect("the manual's own example");
    assert_eq!((line.id, line.parent), (36, 35));
    assert_eq!(line.device, Device { major: 98, minor: 0 });
    assert_eq!((line.root, line.point), (&b"/mnt1"[..], &b"/mnt2"[..]));
    assert_eq!((line.options, line.optional), ("rw,noatime", &b"master:1 shared:7"[..]));
    assert_eq!((line.fs_type, line.source), (&b"ext3"[..], &b"/dev/root"[..]));
    assert_eq!(line.fs_options, b"rw,errors=continue");
    assert_eq!(print_line(&line), text);
}

#[test]
fn an_empty_source_is_a_source() {
    let text = b"99 30 0:50 / /a rw - tmpfs  rw,size=4k";
    let line = Line::parse(text).expect("two spaces in a row");
    assert_eq!((line.source, line.fs_options, line.optional), (&b""[..], &b"rw,size=4k"[..], &b""[..]));
    assert_eq!(print_line(&line), text);
}

#[test]
fn a_mount_point_named_dash_is_no_separator() {
    let line = Line::parse(b"99 30 0:50 /- /- rw - tmpfs - rw").expect("dashes in fields");
    assert_eq!((line.root, line.point, line.source), (&b"/-"[..], &b"/-"[..], &b"-"[..]));
}

#[test]
fn bad_lines_are_told_and_skipped() {
    let text = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
                 x 0 8:1 / /a rw - ext4 /dev/sda1 rw\n\
                 2 1 8 / /b rw - ext4 /dev/sda1 rw\n\
                 3 1 8:1 / relative rw - ext4 /dev/sda1 rw\n\
                 4 1 8:1 / /d rw shared:1 ext4 /dev/sda1 rw\n\
                 5 1 8:1 / /e rw - ext4\n\
                 \xff\n\
                 6 1 8:1 / /f \xff - ext4 /dev/sda1 rw\n\
                 4294967296 1 8:1 / /g rw - ext4 /dev/sda1 rw\n\
                 +7 1 8:1 / /h rw - ext4 /dev/sda1 rw\n\
                 8 1 8:2 / /ok rw - ext4 /dev/sda2 rw\n";
    let (good, bad): (Vec<_>, Vec<_>) = lines(text).partition(Result::is_ok);
    let good: Vec<u32> = good.into_iter().flatten().map(|line| line.id).collect();
    assert_eq!(good, [1, 8]);
    let bad: Vec<(usize, &str)> = bad.into_iter().filter_map(Result::err).map(|bad| (bad.number, bad.why)).collect();
    let numbers: Vec<usize> = bad.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(bad[0].1, "the mount id is not a number");
    assert_eq!(bad[2].1, "the mount point is not absolute");
    assert_eq!(bad[3].1, "no separator '-'");
}

#[test]
fn escapes_are_undone_exactly_once() {
    for (escaped, plain) in [
        (&br"a\040b"[..], &b"a b"[..]),
        (br"a\011b\012c", b"a\tb\nc"),
        (br"a\134b", br"a\b"),
        // The literal text \040, as the kernel escapes it.
        (br"a\134040b", br"a\040b"),
        (br"\043", b"#"),
        (br"\377\376", b"\xff\xfe"),
        // What the kernel does not write stands for itself.
        (br"\8", br"\8"),
        (br"\400", br"\400"),
        (br"\04", br"\04"),
        (br"\", br"\"),
        (br"\\040", b"\\ "),
        (b"plain", b"plain"),
        (b"", b""),
    ] {
        assert_eq!(&*unescape(escaped), plain);
    }
}

#[test]
fn no_mount_point_holds_a_nul() {
    for point in [&b"/a\0b"[..], br"/a\000b"] {
        let text = [b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / ", point, b" rw - tmpfs x rw\n"].concat();
        let (table, bad) = crate::MountTable::from_mountinfo(&text);
        assert_eq!((table.len(), bad.len(), bad[0].number), (1, 1, 2));
        assert_eq!(bad[0].why, "the mount point holds a NUL byte");
    }
}

proptest! {
    #[test]
    fn nothing_panics(text in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = lines(&text).count();
        let _ = unescape(&text);
        let (table, _) = crate::MountTable::from_mountinfo(&text);
        for mount in table.iter() {
            let _ = (mount.point(), mount.fs_type(), mount.source(), mount.fs_options(), mount.read_only());
        }
    }

    #[test]
    fn escaping_and_back(name in proptest::collection::vec(any::<u8>(), 0..60)) {
        for escape in [escape_path, escape_name] {
            let mut escaped = Vec::new();
            escape(&name, &mut escaped);
            prop_assert!(!escaped.iter().any(|byte| b" \t\n".contains(byte)));
            prop_assert_eq!(&*unescape(&escaped), &name[..]);
        }
    }

    #[test]
    fn parse_and_print_give_the_same_line(
        ids in any::<(u32, u32, u16, u16)>(),
        root in proptest::collection::vec(1_u8.., 0..20),
        point in proptest::collection::vec(1_u8.., 0..20),
        source in proptest::collection::vec(1_u8.., 0..20),
        shared in proptest::option::of(1..100_u32),
        master in proptest::option::of(1..100_u32),
    ) {
        let mut text = format!("{} {} {}:{} /", ids.0, ids.1, ids.2, ids.3).into_bytes();
        escape_path(&root, &mut text);
        text.extend_from_slice(b" /");
        escape_path(&point, &mut text);
        text.extend_from_slice(b" rw,relatime");
        for (name, value) in [("shared", shared), ("master", master)] {
            if let Some(value) = value {
                text.extend_from_slice(format!(" {name}:{value}").as_bytes());
            }
        }
        text.extend_from_slice(b" - fuse.x ");
        escape_name(&source, &mut text);
        text.extend_from_slice(b" rw,a=b\\040c");
        let line = Line::parse(&text).expect("as the kernel writes it");
        prop_assert_eq!(print_line(&line), text.clone());
        let (table, bad) = crate::MountTable::from_mountinfo(&text);
        prop_assert!(bad.is_empty());
        let mount = table.iter().next().expect("one mount");
        let mut printed = Vec::new();
        print(mount, &mut printed);
        prop_assert_eq!(printed, text);
        prop_assert_eq!(&*mount.source_bytes(), &source[..]);
        prop_assert_eq!(&std::os::unix::ffi::OsStrExt::as_bytes(mount.root().as_os_str())[1..], &root[..]);
        prop_assert_eq!(mount.fs_options(), "rw,a=b c");
    }
}
