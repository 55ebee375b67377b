//! Mount options as `mount(8)` splits them: some are flags of the mount, some of the superblock, some are for
//! programs alone, and all else is the file system's own.

use rustix::mount::{MountAttrFlags, MountFlags};

/// Options taken apart. A later option wins over an earlier one that says the contrary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    /// As `fsmount` and `mount_setattr` want them.
    pub(super) attr: MountAttrFlags,
    /// What options name the contrary of, or are of a kind that excludes the others of it (access times): to be cleared
    /// at a mount that exists.
    pub(super) cleared: MountAttrFlags,
    /// As `attr`, and the superblock's, as `mount(2)` wants them.
    pub(super) flags: MountFlags,
    /// The superblock's flags by their names in `fsconfig`.
    pub(super) superblock: Vec<&'static str>,
    /// The file system's own: name and value.
    pub(super) own: Vec<(String, Option<String>)>,
}

/// Flags of the mount: name, set or clear, for both kinds of calls.
const MOUNT_FLAGS: &[(&str, bool, MountAttrFlags, MountFlags)] = &[
    ("ro", true, MountAttrFlags::MOUNT_ATTR_RDONLY, MountFlags::RDONLY),
    ("rw", false, MountAttrFlags::MOUNT_ATTR_RDONLY, MountFlags::RDONLY),
    ("nosuid", true, MountAttrFlags::MOUNT_ATTR_NOSUID, MountFlags::NOSUID),
    ("suid", false, MountAttrFlags::MOUNT_ATTR_NOSUID, MountFlags::NOSUID),
    ("nodev", true, MountAttrFlags::MOUNT_ATTR_NODEV, MountFlags::NODEV),
    ("dev", false, MountAttrFlags::MOUNT_ATTR_NODEV, MountFlags::NODEV),
    ("noexec", true, MountAttrFlags::MOUNT_ATTR_NOEXEC, MountFlags::NOEXEC),
    ("exec", false, MountAttrFlags::MOUNT_ATTR_NOEXEC, MountFlags::NOEXEC),
    ("nodiratime", true, MountAttrFlags::MOUNT_ATTR_NODIRATIME, MountFlags::NODIRATIME),
    ("diratime", false, MountAttrFlags::MOUNT_ATTR_NODIRATIME, MountFlags::NODIRATIME),
    ("nosymfollow", true, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW, MountFlags::NOSYMFOLLOW),
    ("symfollow", false, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW, MountFlags::NOSYMFOLLOW),
];

/// The kinds of access time, of which there is one at a time. `MOUNT_ATTR_RELATIME` is no bit: it is their absence.
const ATIME: &[(&str, MountAttrFlags, MountFlags)] = &[
    ("noatime", MountAttrFlags::MOUNT_ATTR_NOATIME, MountFlags::NOATIME),
    ("strictatime", MountAttrFlags::MOUNT_ATTR_STRICTATIME, MountFlags::STRICTATIME),
    ("relatime", MountAttrFlags::empty(), MountFlags::RELATIME),
    ("atime", MountAttrFlags::empty(), MountFlags::empty()),
    ("norelatime", MountAttrFlags::empty(), MountFlags::empty()),
    ("nostrictatime", MountAttrFlags::empty(), MountFlags::empty()),
];

/// Flags of the superblock.
const SUPERBLOCK: &[(&str, bool, &str, MountFlags)] = &[
    ("sync", true, "sync", MountFlags::SYNCHRONOUS),
    ("async", false, "sync", MountFlags::SYNCHRONOUS),
    ("dirsync", true, "dirsync", MountFlags::DIRSYNC),
    ("lazytime", true, "lazytime", MountFlags::LAZYTIME),
    ("nolazytime", false, "lazytime", MountFlags::LAZYTIME),
    ("mand", true, "mand", MountFlags::PERMIT_MANDATORY_FILE_LOCKING),
    ("nomand", false, "mand", MountFlags::PERMIT_MANDATORY_FILE_LOCKING),
];

/// What is for fstab and for programs; it never reaches the kernel.
const FOR_PROGRAMS: &[&str] =
    &["defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev", "nofail", "silent", "loud"];

impl Options {
    /// Takes options apart, each a name with or without a value.
    pub(super) fn split<'o>(options: impl IntoIterator<Item = (&'o str, Option<&'o str>)>) -> Self {
        let mut split = Self {
            attr: MountAttrFlags::empty(),
            cleared: MountAttrFlags::empty(),
            flags: MountFlags::empty(),
            superblock: Vec::new(),
            own: Vec::new(),
        };
        for (name, value) in options {
            split.add(name, value);
        }
        split
    }

    /// Takes apart options as Kubernetes has them: each may be `name` or `name=value`, or several with commas.
    pub(super) fn parse(options: &[String]) -> Self {
        let each = options.iter().flat_map(|option| split_commas(option));
        Self::split(each.filter(|option| !option.is_empty()).map(|option| match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        }))
    }

    fn add(&mut self, name: &str, value: Option<&str>) {
        if value.is_none() {
            if let Some((_, set, attr, flags)) = MOUNT_FLAGS.iter().find(|flag| flag.0 == name) {
                self.attr.set(*attr, *set);
                self.cleared.set(*attr, !*set);
                self.flags.set(*flags, *set);
                return;
            }
            if let Some((_, attr, flags)) = ATIME.iter().find(|flag| flag.0 == name) {
                self.attr = self.attr.difference(MountAttrFlags::MOUNT_ATTR__ATIME).union(*attr);
                self.cleared |= MountAttrFlags::MOUNT_ATTR__ATIME;
                let all = MountFlags::NOATIME.union(MountFlags::STRICTATIME).union(MountFlags::RELATIME);
                self.flags = self.flags.difference(all).union(*flags);
                return;
            }
            if let Some((_, set, fs_name, flags)) = SUPERBLOCK.iter().find(|flag| flag.0 == name) {
                self.superblock.retain(|there| there != fs_name);
                if *set {
                    self.superblock.push(fs_name);
                }
                self.flags.set(*flags, *set);
                return;
            }
            if FOR_PROGRAMS.contains(&name) {
                return;
            }
        }
        if name.starts_with("x-") || name.starts_with("X-") || name == "comment" {
            return;
        }
        self.own.push((name.to_owned(), value.map(str::to_owned)));
    }

    /// Makes the mount read-only, whatever the options say.
    pub(super) fn set_read_only(&mut self) {
        self.add("ro", None);
    }

    /// The flags of a mount that has these options now, once they are changed by `self`: for a remount, which keeps
    /// only what it is given.
    pub(super) fn changing(&self, now: &str) -> MountFlags {
        let atime = MountFlags::NOATIME.union(MountFlags::STRICTATIME).union(MountFlags::RELATIME);
        let mut flags = Self::split(now.split(',').map(|option| (option, None))).flags;
        if !flags.intersects(atime) {
            // The table has no word for it, and the kernel takes none for `relatime`.
            flags |= MountFlags::STRICTATIME;
        }
        for (.., flag) in MOUNT_FLAGS.iter().filter(|(_, _, attr, _)| self.cleared.contains(*attr)) {
            flags.remove(*flag);
        }
        if self.cleared.contains(MountAttrFlags::MOUNT_ATTR__ATIME) {
            flags.remove(atime);
            if !self.flags.intersects(atime) {
                flags |= MountFlags::RELATIME;
            }
        }
        let superblock = SUPERBLOCK.iter().fold(MountFlags::empty(), |all, (.., flag)| all | *flag);
        (flags | self.flags) - superblock
    }

    /// Whether a mount that has these options now is changed by `self`.
    pub(super) fn changes(&self, now: &str) -> bool {
        self.changing(now) != Self::split(std::iter::empty()).changing(now)
    }

    /// Whether the mount is to be read-only.
    pub(super) fn read_only(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }

    /// The file system's own options in one line, as `mount(2)` wants them.
    pub(super) fn data(&self) -> String {
        let mut data = String::new();
        for (name, value) in &self.own {
            if !data.is_empty() {
                data.push(',');
            }
            data.push_str(name);
            if let Some(value) = value {
                data.push('=');
                data.push_str(value);
            }
        }
        data
    }
}

/// Splits at commas outside double quotes (SELinux contexts have commas in quotes, as in `mount(8)`).
fn split_commas(options: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    options.split(move |c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Options {
        Options::parse(&options.iter().map(|&o| o.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn flags_and_file_system_options_part() {
        let options =
            parse(&["ro,noatime", "size=1M", "nosuid", "sync", "mode=0755", "defaults", "x-systemd.automount"]);
        assert!(options.read_only());
        assert_eq!(
            options.attr,
            MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOATIME | MountAttrFlags::MOUNT_ATTR_NOSUID
        );
        assert_eq!(options.superblock, ["sync"]);
        assert_eq!(options.data(), "size=1M,mode=0755");
    }

    #[test]
    fn the_later_one_wins() {
        let options = parse(&["ro", "rw", "noatime", "strictatime", "sync", "async", "noexec", "exec"]);
        assert_eq!(options.attr, MountAttrFlags::MOUNT_ATTR_STRICTATIME);
        assert_eq!(options.flags, MountFlags::STRICTATIME);
        assert!(options.superblock.is_empty());
    }

    #[test]
    fn what_exists_is_changed_where_an_option_says_so() {
        let changed = |options: &[&str], now: &str| parse(options).changing(now);
        let relatime = MountFlags::RELATIME;
        assert_eq!(changed(&[], "rw,relatime"), relatime);
        assert_eq!(changed(&[], "ro,nosuid,relatime"), MountFlags::RDONLY | MountFlags::NOSUID | relatime);
        assert_eq!(
            changed(&["rw", "noexec"], "ro,nosuid,relatime"),
            MountFlags::NOSUID | MountFlags::NOEXEC | relatime
        );
        assert_eq!(changed(&["suid"], "rw,nosuid,noatime"), MountFlags::NOATIME);
        assert_eq!(changed(&["noatime"], "rw,relatime"), MountFlags::NOATIME);
        assert_eq!(changed(&["relatime"], "rw,noatime"), relatime);
        assert_eq!(changed(&["atime"], "rw,noatime"), relatime);
        assert_eq!(changed(&["sync"], "rw"), MountFlags::STRICTATIME);
        let would = |options: &[&str], now: &str| parse(options).changes(now);
        assert!(would(&["ro"], "rw,relatime") && would(&["noexec"], "ro,relatime") && would(&["exec"], "rw,noexec"));
        assert!(!would(&["ro"], "ro,relatime") && !would(&[], "rw,nosuid") && !would(&["size=1"], "rw,relatime"));
        assert!(!would(&["strictatime"], "rw") && !would(&["relatime", "exec"], "rw,relatime"));
    }

    #[test]
    fn contraries_are_cleared() {
        let options = parse(&["noexec", "exec", "nosuid", "noatime"]);
        assert_eq!(options.attr, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOATIME);
        assert_eq!(options.cleared, MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR__ATIME);
        assert!(parse(&["rw", "ro"]).cleared.is_empty());
    }

    #[test]
    fn a_flag_with_a_value_is_the_file_systems() {
        assert_eq!(parse(&["ro=x"]).own, [("ro".to_owned(), Some("x".to_owned()))]);
    }

    #[test]
    fn quotes_hold_commas_together() {
        let options = parse(&[r#"context="system_u:object_r:x:s0:c1,c2",nodev"#]);
        assert_eq!(options.own.len(), 1);
        assert_eq!(options.attr, MountAttrFlags::MOUNT_ATTR_NODEV);
    }
}
