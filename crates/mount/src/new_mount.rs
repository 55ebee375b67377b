//! Mounts that no path shows yet.
//!
//! With the new mount calls a mount is made detached: it has its unique id and can be filled before anybody sees
//! it, and it vanishes with this process. [`NewMount::attach`] makes it visible in one step. On older kernels the
//! same value only remembers what is to be mounted, and `attach` mounts it.

mod attach;
mod helper;
mod options;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use linux_raw_sys::general as raw;
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, OpenTreeFlags};

pub use helper::mount_by_helper;
use options::Options;

use crate::kernel::unique_mount_id;
use crate::root::path_of;
use crate::{Dir, Kernel, UniqueMountId, sys, table};

/// Why a mount could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}{}", .path.display(), .detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
pub struct MountError {
    /// What was being done.
    pub doing: &'static str,
    /// To which source or target.
    pub path: PathBuf,
    /// The kernel's own log of the failed call, or the helper's output, where there is one.
    pub detail: Option<String>,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl MountError {
    fn new(doing: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self { doing, path: path.into(), detail: None, source: source.into() }
    }
    fn because(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

/// How a bind mount differs from its source.
#[derive(Debug, Clone, Default)]
pub struct BindOptions {
    /// Read-only from the moment that it is visible (on kernels without the new mount calls: a moment later).
    pub read_only: bool,
    /// With everything mounted below the source.
    pub recursive: bool,
    /// Mount propagation: make it slave (`HostToContainer`: what is mounted below the source later shows here too)
    /// or leave it private (default: nothing goes either way between it and the source).
    pub slave: bool,
    /// Mount options as Kubernetes gives them. Those of a mount (`ro`, `nosuid`, `noexec`, `noatime`, … and their
    /// contraries) are applied; what they do not name stays as it is at the source. The others are a file system's: a
    /// bind makes none, so they change nothing; [`Self::ignored`] tells them.
    ///
    /// # Source
    /// mount(8): a bind is followed by a remount with the options, of which the kernel reads those of the mount alone
    /// (`do_reconfigure_mnt` in `fs/namespace.c`).
    pub options: Vec<String>,
}

impl BindOptions {
    /// Whether the bind is read-only, by its own field or by an option.
    pub fn is_read_only(&self) -> bool {
        self.parsed().read_only()
    }

    /// Whether a bind that has these options now (as the mount table shows them) is not as it should be.
    pub fn differ_from(&self, now: &str) -> bool {
        self.parsed().changes(now)
    }

    /// The options that change nothing, since they are not those of a mount.
    pub fn ignored(&self) -> Vec<String> {
        let parsed = self.parsed();
        let superblock = parsed.superblock.iter().map(|name| (*name).to_owned());
        let own = parsed.own.iter().filter(|(name, value)| name != "bind" || value.is_some());
        superblock
            .chain(own.map(|(name, value)| match value {
                Some(value) => format!("{name}={value}"),
                None => name.clone(),
            }))
            .collect()
    }

    fn parsed(&self) -> Options {
        let mut options = Options::parse(&self.options);
        if self.read_only {
            options.set_read_only();
        }
        options
    }
}

/// Sets a bind's options again: for one that was made by `mount(2)`, which cannot make it with them, when the maker died
/// before the second call. Answers whether they were not as they should be. What is mounted below it stays as it is.
///
/// `mounted` is the bind's root, opened by name only (`O_PATH` will do).
pub fn set_bind_options_again(mounted: &Dir, options: &BindOptions) -> Result<bool, MountError> {
    attach::set_again(mounted, &options.parsed())
}

/// A mount that no path shows yet.
///
/// # Propagation
/// A new mount is private (or, if asked, slave of the bind's source). Attached below a *shared* mount it becomes
/// shared as well, in a peer group of its own: that is the kernel's rule, and it is what lets containers that have
/// the folder see what is mounted inside.
#[derive(Debug)]
pub struct NewMount {
    kernel: Kernel,
    state: State,
    /// Type, source and root as the table will show them; empty where not known beforehand.
    announced: (String, String, String),
    /// The source, for messages.
    shown: PathBuf,
}

#[derive(Debug)]
enum State {
    /// It exists.
    Detached(OwnedFd),
    /// It will be made by `mount(2)`.
    FileSystem { fs_type: String, source: String, options: Options },
    /// It will be made by `mount(2)`.
    Bind { source: OwnedFd, options: BindOptions },
}

/// The kernel reads at most this many bytes of one option's value in the new calls (`fsconfig`).
const MAX_OPTION: usize = 255;

/// File systems that may be mounted from a folder inside them, so that the root is not known beforehand.
const ROOT_UNKNOWN: &[&str] =
    &["btrfs", "bcachefs", "nfs", "nfs4", "cifs", "smb3", "ceph", "cgroup", "cgroup2", "9p", "overlay"];

impl NewMount {
    /// A new tmpfs. `options` are file system options such as `size=1048576`, `mode=0755`, `noswap`, or options of
    /// the mount (`ro`, `nosuid`); one that the kernel does not know is an error.
    pub fn tmpfs(kernel: Kernel, options: &[(&str, Option<&str>)]) -> Result<Self, MountError> {
        Self::make(kernel, "tmpfs", "tmpfs", Options::split(options.iter().copied()))
    }

    /// A new file system of any type known to the kernel (`hugetlbfs`, `ext4`), with the mount options as
    /// Kubernetes gives them: `ro`, `noatime`, … go to the mount, all else to the file system.
    pub fn file_system(kernel: Kernel, fs_type: &str, source: &str, options: &[String]) -> Result<Self, MountError> {
        Self::make(kernel, fs_type, source, Options::parse(options))
    }

    fn make(kernel: Kernel, fs_type: &str, source: &str, options: Options) -> Result<Self, MountError> {
        // The kernel's own word for a mount without a source.
        let source = if source.is_empty() { "none" } else { source };
        let root = if ROOT_UNKNOWN.contains(&fs_type) { "" } else { "/" };
        let announced = (fs_type.to_owned(), source.to_owned(), root.to_owned());
        let shown = PathBuf::from(source);
        // The new calls take neither a subtype (`fuse.x`) nor long values.
        let fits = !fs_type.contains('.')
            && options.own.iter().all(|(_, value)| value.as_ref().is_none_or(|value| value.len() <= MAX_OPTION));
        if !kernel.features().new_mount_calls || !fits {
            let state = State::FileSystem { fs_type: fs_type.to_owned(), source: source.to_owned(), options };
            return Ok(Self { kernel, state, announced, shown });
        }
        let mount = make_detached(fs_type, source, &options)?;
        Ok(Self { kernel, state: State::Detached(mount), announced, shown })
    }

    /// A bind of what this descriptor (`O_PATH` will do) stands for: a folder or a file. `shown` is its path, for
    /// messages.
    pub fn bind(
        kernel: Kernel,
        source: BorrowedFd<'_>,
        shown: &Path,
        options: &BindOptions,
    ) -> Result<Self, MountError> {
        const DOING: &str = "bind";
        let announced = announced_bind(kernel, source);
        let shown = shown.to_owned();
        let features = kernel.features();
        if !(features.new_mount_calls && features.mount_setattr) {
            let source = source.try_clone_to_owned().map_err(|error| MountError::new(DOING, &shown, error))?;
            return Ok(Self { kernel, state: State::Bind { source, options: options.clone() }, announced, shown });
        }
        let mut flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        if options.recursive {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        let mount =
            rustix::mount::open_tree(source, "", flags).map_err(|errno| MountError::new(DOING, &shown, errno))?;
        let parsed = options.parsed();
        let attr = sys::MountAttr {
            set: parsed.attr.bits().into(),
            clear: parsed.cleared.bits().into(),
            propagation: u64::from(if options.slave { raw::MS_SLAVE } else { raw::MS_PRIVATE }),
        };
        sys::mount_setattr(&mount, options.recursive, attr)
            .map_err(|error| MountError::new("set the options of the bind of", &shown, error))?;
        Ok(Self { kernel, state: State::Detached(mount), announced, shown })
    }

    /// The unique id, if it exists already.
    pub fn id(&self) -> Option<UniqueMountId> {
        match &self.state {
            State::Detached(mount) if self.kernel.features().unique_mount_id => unique_mount_id(mount),
            _ => None,
        }
    }

    /// The root of the mount, to fill it before anyone sees it; none on older kernels. It is a path descriptor
    /// (`O_PATH`): files are opened relative to it.
    pub fn root(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Detached(mount) => Some(mount.as_fd()),
            _ => None,
        }
    }

    /// File system type, source and root as the mount table will show them, where they are known beforehand; else
    /// empty.
    pub fn announced(&self) -> (String, String, String) {
        self.announced.clone()
    }

    /// Makes it visible at a folder or file beneath the node root. Answers its id where the kernel tells it.
    ///
    /// Refuses (EBUSY) if the target has become a mount point meanwhile, and (ESTALE) if its path leads to something
    /// else by now: the descriptor was opened before. Where the kernel tells it, the attached mount is checked
    /// to hang on the target itself, not on something mounted there in the very last moment; else it is taken away
    /// again.
    pub fn attach(self, target: &Dir) -> Result<Option<UniqueMountId>, MountError> {
        let place = attach::Place::free(target)?;
        let Self { kernel, state, shown, .. } = self;
        match state {
            State::Detached(mount) => attach::attach_detached(kernel, &mount, &place),
            State::FileSystem { fs_type, source, options } => {
                attach::attach_file_system(kernel, &fs_type, &source, &options, &place)
            }
            State::Bind { source, options } => attach::attach_bind(kernel, source.as_fd(), &shown, &options, &place),
        }
    }
}

/// Makes a file system and a detached mount of it.
fn make_detached(fs_type: &str, source: &str, options: &Options) -> Result<OwnedFd, MountError> {
    const DOING: &str = "make the mount of";
    let context = rustix::mount::fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(|errno| MountError::new(DOING, source, errno).because(format!("file system type {fs_type}")))?;
    let failed = |errno: Errno, option: Option<&str>| {
        let mut detail = kernel_log(&context);
        if detail.is_empty() {
            detail = option.map(|option| format!("{fs_type}: option {option}")).unwrap_or_default();
        }
        let error = MountError::new(DOING, source, errno);
        if detail.is_empty() { error } else { error.because(detail) }
    };
    rustix::mount::fsconfig_set_string(&context, "source", source).map_err(|errno| failed(errno, Some("source")))?;
    for flag in &options.superblock {
        rustix::mount::fsconfig_set_flag(&context, *flag).map_err(|errno| failed(errno, Some(flag)))?;
    }
    if options.read_only() {
        rustix::mount::fsconfig_set_flag(&context, "ro").map_err(|errno| failed(errno, Some("ro")))?;
    }
    for (name, value) in &options.own {
        match value {
            // Quotes hold a value with commas together in one line of options; here nothing needs them.
            Some(value) => {
                let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
                rustix::mount::fsconfig_set_string(&context, name.as_str(), value)
            }
            None => rustix::mount::fsconfig_set_flag(&context, name.as_str()),
        }
        .map_err(|errno| failed(errno, Some(name)))?;
    }
    rustix::mount::fsconfig_create(&context).map_err(|errno| failed(errno, None))?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, options.attr).map_err(|errno| failed(errno, None))
}

/// What the kernel wrote into the context's log: lines of `e …`, `w …` or `i …`.
fn kernel_log(context: &OwnedFd) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut line = [0_u8; 1024];
    while let Ok(length) = rustix::io::read(context, &mut line) {
        let text = String::from_utf8_lossy(line.get(..length).unwrap_or_default());
        if length == 0 || lines.len() == 64 {
            break;
        }
        lines.push(text.trim_end().trim_start_matches(['e', 'w', 'i']).trim_start().to_owned());
    }
    lines.join("; ")
}

/// What the table will show of a bind of this descriptor.
fn announced_bind(kernel: Kernel, source: BorrowedFd<'_>) -> (String, String, String) {
    let Some(table) = table::mount_of(kernel, source) else { return Default::default() };
    let Some(mount) = table.iter().next() else { return Default::default() };
    let root = root_of_bind(mount, source).unwrap_or_default();
    (mount.fs_type().into_owned(), mount.source().into_owned(), root)
}

/// The root that a bind of this descriptor will show: the root of the mount that it is in, and the way inside.
fn root_of_bind(mount: crate::Mount<'_>, source: BorrowedFd<'_>) -> Option<String> {
    // What was unlinked has no path, and whether the kernel's " (deleted)" is a part of the name cannot be told.
    if rustix::fs::fstat(source).ok()?.st_nlink == 0 {
        return None;
    }
    let path = path_of(source).ok()?;
    let inside = path.strip_prefix(mount.point()).ok()?;
    let mut root = mount.root().as_os_str().as_bytes().to_vec();
    if !inside.as_os_str().is_empty() {
        if root.last() != Some(&b'/') {
            root.push(b'/');
        }
        root.extend_from_slice(inside.as_os_str().as_bytes());
    }
    Some(OsStr::from_bytes(&root).to_string_lossy().into_owned())
}
