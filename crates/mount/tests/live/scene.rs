//! Where a test happens: a tmpfs of its own, with a node root in it and an "outside".

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use refloat_mount::{
    BindOptions, Device, Kernel, MountTable, NewMount, NodeRoot, TableReader, UniqueMountId, UnmountError, UnmountHow,
};
use rustix::mount::{MountFlags, UnmountFlags};

/// One test's place. Everything in it goes when it is dropped.
pub(crate) struct Scene {
    pub(crate) kernel: Kernel,
    pub(crate) base: PathBuf,
    pub(crate) root: NodeRoot,
    _folder: tempfile::TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.base, UnmountFlags::DETACH);
    }
}

impl Scene {
    pub(crate) fn new(kernel: Kernel) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("refloat-live").tempdir()?;
        // The temporary folder may be behind a symlink.
        let base = NodeRoot::open(folder.path()).map_err(io::Error::other)?.path().to_owned();
        rustix::mount::mount("scene", &base, "tmpfs", MountFlags::empty(), None)?;
        for name in ["root", "outside"] {
            std::fs::create_dir(base.join(name))?;
        }
        std::fs::write(base.join("outside/keep.txt"), "kept")?;
        let root = NodeRoot::open(&base.join("root")).map_err(io::Error::other)?;
        Ok(Self { kernel, base, root, _folder: folder })
    }

    pub(crate) fn reader(&self) -> TableReader {
        TableReader::new(self.kernel)
    }

    pub(crate) fn table(&self) -> std::sync::Arc<MountTable> {
        self.reader().read().expect("the table can be read")
    }

    pub(crate) fn path(&self, rel: &str) -> PathBuf {
        self.root.path().join(rel)
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.base.join("outside")
    }

    pub(crate) fn assert_kept(&self) {
        let kept = std::fs::read(self.outside().join("keep.txt"));
        assert_eq!(kept.expect("the file outside is there"), b"kept");
    }

    /// Mounts a tmpfs by the plain call.
    pub(crate) fn tmpfs(&self, rel: &str, source: &str) {
        std::fs::create_dir_all(self.path(rel)).expect("make the folder");
        rustix::mount::mount(source, self.path(rel), "tmpfs", MountFlags::empty(), None).expect("mount a tmpfs");
    }

    /// Binds by the plain call.
    pub(crate) fn bind(&self, from: &Path, rel: &str) {
        std::fs::create_dir_all(self.path(rel)).expect("make the folder");
        rustix::mount::mount_bind(from, self.path(rel)).expect("bind");
    }

    pub(crate) fn new_bind(&self, from: &Path, options: &BindOptions) -> NewMount {
        let source = std::fs::File::open(from).expect("open the source");
        NewMount::bind(self.kernel, source.as_fd(), from, options).expect("make the bind")
    }

    pub(crate) fn unmount(&self, rel: &str, id: Option<UniqueMountId>) -> Result<(), UnmountError> {
        self.root.unmount(Path::new(rel), id, UnmountHow::Ordinary, &mut self.reader())
    }

    pub(crate) fn mounts_at(&self, rel: &str) -> usize {
        self.table().stack(&self.path(rel)).len()
    }
}

/// The device of a folder.
pub(crate) fn device(path: &Path) -> Device {
    let stat = rustix::fs::stat(path).expect("stat");
    Device { major: rustix::fs::major(stat.st_dev), minor: rustix::fs::minor(stat.st_dev) }
}
