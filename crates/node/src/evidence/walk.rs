//! Lists folders by `openat2` and `getdents` alone.
//!
//! Each step down is an `openat2` that crosses no mount and follows no symlink, so a mount point ends the walk
//! before the file system mounted there hears of it. At the last level names are read and nothing is opened.

use std::ffi::{CStr, CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use refloat_mount::NodeRoot;
use refloat_record::PodUid;
use refloat_volume::{ForeignForm, ForeignRecord, Problem, foreign, layout};
use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;

use super::{PodTree, Tree, VolumeFolder};

/// Room for the names of one directory read. One pod's folders fit; larger ones take several reads.
const BUFFER: usize = 32 * 1024;

/// How many threads list pods. Listing waits for the kernel's own locks little, so two cores give nearly twice the
/// speed; the third thread of a start reads records.
const THREADS: usize = 2;

/// One entry of a folder.
pub(super) struct Entry {
    pub(super) name: CString,
    /// As the directory read tells it.
    pub(super) kind: FileType,
}

impl Entry {
    pub(super) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.name.to_bytes()))
    }

    fn text(&self) -> Option<&str> {
        self.name.to_str().ok()
    }
}

/// Lists folders; holds the buffer.
pub(super) struct Lister {
    buffer: Box<[MaybeUninit<u8>]>,
}

impl Lister {
    pub(super) fn new() -> Self {
        Self { buffer: Box::new_uninit_slice(BUFFER) }
    }

    /// The entries of an open folder, sorted by name.
    pub(super) fn entries(&mut self, dir: impl AsFd) -> Result<Vec<Entry>, Errno> {
        let mut found = vec![];
        let mut raw = RawDir::new(dir, &mut self.buffer);
        while let Some(entry) = raw.next() {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                found.push(Entry { name: entry.file_name().to_owned(), kind: entry.file_type() });
            }
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Opens a folder and lists it.
    pub(super) fn folder(&mut self, at: impl AsFd, name: &CStr) -> Result<(OwnedFd, Vec<Entry>), Errno> {
        let dir = open(at, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let entries = self.entries(&dir)?;
        Ok((dir, entries))
    }
}

/// Opens beneath a folder without following a symlink or crossing a mount.
pub(crate) fn open(at: impl AsFd, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        // `openat2` answers EAGAIN when a rename elsewhere made its check of `..` unsure.
        match rustix::fs::openat2(&at, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// The problem of a folder that could not be listed; none if it is simply not there.
fn trouble(path: &Path, error: Errno) -> Option<Problem> {
    let shown = path.display();
    match error {
        Errno::NOENT => None,
        Errno::NOTDIR => Some(Problem::new(
            "NotAFolder",
            format!("{shown} is not a folder, so no volumes can be looked for in it"),
            "Find out who put it there; move it away, and the volumes below that path are looked for again.",
        )),
        Errno::LOOP => Some(Problem::new(
            "SymlinkInTheWay",
            format!("{shown} is a symlink, which is never followed here, so no volumes can be looked for in it"),
            "Find out who put it there. Refloat keeps away from it until it is a folder.",
        )),
        Errno::XDEV => Some(Problem::new(
            "MountInTheWay",
            format!("{shown} is a mount point where a plain folder belongs; nothing in it was looked at"),
            "Unmount it if it is not meant to be there.",
        )),
        other => Some(Problem::new(
            "CannotList",
            format!("cannot list {shown}: {other}"),
            "Check the permissions of that folder and the health of its disk.",
        )),
    }
}

/// Collects what one thread found.
pub(super) struct Walk<'p> {
    lister: Lister,
    root: &'p Path,
    problems: Vec<Problem>,
    records: Vec<ForeignRecord>,
    /// What is in global map folders that are called after devices.
    pub(super) maps: Vec<PathBuf>,
}

impl Walk<'_> {
    fn new(root: &NodeRoot) -> Walk<'_> {
        Walk { lister: Lister::new(), root: root.path(), problems: vec![], records: vec![], maps: vec![] }
    }

    /// Lists a folder; what cannot be listed is a problem and empty.
    pub(super) fn list(&mut self, at: impl AsFd, name: &CStr, rel: &Path) -> Option<(OwnedFd, Vec<Entry>)> {
        match self.lister.folder(at, name) {
            Ok(found) => Some(found),
            Err(error) => {
                self.problems.extend(trouble(&self.root.join(rel), error));
                None
            }
        }
    }

    /// Reads another program's file in an open folder, if it is one by its name. `path` is the folder's.
    pub(super) fn record(&mut self, folder: impl AsFd, entry: &Entry, path: &Path) -> bool {
        let Some((form, _)) = entry.text().and_then(ForeignForm::of_name) else { return false };
        self.records.extend(foreign::look_for(folder, entry.path(), path.join(entry.path()), form));
        true
    }

    /// Reads the file that a plugin keeps in each of its global folders. `path` is the folder's, `name` its name in the
    /// open one.
    pub(super) fn record_in(&mut self, at: impl AsFd, name: &Path, path: &Path, form: ForeignForm) {
        let Some(file) = form.in_global_folder() else { return };
        self.records.extend(foreign::look_for(at, &name.join(file), path.join(file), form));
    }

    fn unreadable_name(&mut self, rel: &Path) {
        self.problems.push(Problem::new(
            "UnreadableName",
            format!("{} has a name that is no text; no volume is called so", self.root.join(rel).display()),
            "Find out who made it. Refloat leaves it alone.",
        ));
    }

    fn pod(&mut self, pods: impl AsFd, entry: &Entry) -> Option<PodTree> {
        let path = Path::new(layout::PODS).join(entry.path());
        let (dir, entries) = self.list(pods, &entry.name, &path)?;
        let mut pod = PodTree::new(entry.path());
        for child in entries {
            match child.text() {
                Some(layout::VOLUMES) => pod.volumes = self.volumes(&dir, &child, &path),
                Some(layout::VOLUME_DEVICES) => pod.volume_devices = self.volumes(&dir, &child, &path),
                Some(layout::VOLUME_SUBPATHS) => pod.sub_paths = self.sub_paths(&dir, &child, &path),
                Some(layout::PLUGINS) => self.markers(&dir, &child, &mut pod),
                _ => pod.other.push(child.path().to_path_buf()),
            }
        }
        pod.records = std::mem::take(&mut self.records);
        Some(pod)
    }

    /// `volumes/<plugin>/<name>` and `volumeDevices/<plugin>/<name>`.
    fn volumes(&mut self, pod: impl AsFd, entry: &Entry, pod_path: &Path) -> Vec<VolumeFolder> {
        let path = pod_path.join(entry.path());
        let Some((dir, plugins)) = self.list(pod, &entry.name, &path) else { return vec![] };
        let mut found = vec![];
        for plugin in plugins {
            let path = path.join(plugin.path());
            let Some(plugin_text) = plugin.text() else {
                self.unreadable_name(&path);
                continue;
            };
            let Some((dir, names)) = self.list(&dir, &plugin.name, &path) else { continue };
            for name in names {
                let Some(text) = name.text() else {
                    self.unreadable_name(&path.join(name.path()));
                    continue;
                };
                // A symlink that was about to replace a block volume's.
                if text.starts_with(refloat_volume::block::TEMPORARY) {
                    continue;
                }
                if name.kind != FileType::Directory && self.record(&dir, &name, &path) {
                    continue;
                }
                found.push(VolumeFolder {
                    plugin: plugin_text.to_owned(),
                    name: text.to_owned(),
                    is_dir: is_dir(&dir, &name),
                    link: None,
                    link_device: None,
                    empty: None,
                    foreign: None,
                });
            }
        }
        found
    }

    /// `volume-subpaths/<spec>/<container>/<index>`: the deepest folder of each branch.
    fn sub_paths(&mut self, pod: impl AsFd, entry: &Entry, pod_path: &Path) -> Vec<PathBuf> {
        let top = PathBuf::from(layout::VOLUME_SUBPATHS);
        let Some((dir, specs)) = self.list(pod, &entry.name, &pod_path.join(&top)) else { return vec![] };
        let mut found = vec![];
        if specs.is_empty() {
            found.push(top.clone());
        }
        for spec in specs {
            let rel = top.join(spec.path());
            let Some((dir, containers)) = self.list(&dir, &spec.name, &pod_path.join(&rel)) else {
                found.push(rel);
                continue;
            };
            if containers.is_empty() {
                found.push(rel.clone());
            }
            for container in containers {
                let rel = rel.join(container.path());
                let Some((_, indexes)) = self.list(&dir, &container.name, &pod_path.join(&rel)) else {
                    found.push(rel);
                    continue;
                };
                if indexes.is_empty() {
                    found.push(rel.clone());
                }
                found.extend(indexes.iter().map(|index| rel.join(index.path())));
            }
        }
        found
    }

    /// `plugins/kubernetes.io~empty-dir/<name>/ready`.
    fn markers(&mut self, pod: impl AsFd, entry: &Entry, tree: &mut PodTree) {
        let top = PathBuf::from(layout::PLUGINS);
        let Some((dir, plugins)) = self.list(pod, &entry.name, &tree.path.join(&top)) else { return };
        for plugin in plugins {
            if plugin.name.as_c_str() != c"kubernetes.io~empty-dir" {
                tree.other.push(top.join(plugin.path()));
                continue;
            }
            let path = tree.path.join(&top).join(plugin.path());
            let Some((dir, names)) = self.list(&dir, &plugin.name, &path) else { continue };
            for name in names {
                let marker = [name.name.to_bytes(), b"/ready"].concat();
                let marker = CString::new(marker).expect("made of two texts without NUL");
                let ready = open(&dir, &marker, OFlags::PATH).is_ok();
                match name.text() {
                    Some(text) if ready => tree.ready.push(text.to_owned()),
                    _ => {}
                }
            }
        }
    }
}

/// Whether what is at this path, from a pod's folder on, is taken for a volume, or for what is left of one of this program's own,
/// and so is no part of the pod's own folder. It is not if its name is no text: no volume is called so.
pub(crate) fn is_volume(path: &[&[u8]], is_dir: bool) -> bool {
    let &[top @ (b"volumes" | b"volumeDevices"), plugin, name] = path else { return false };
    let (Ok(_), Ok(name)) = (std::str::from_utf8(plugin), std::str::from_utf8(name)) else { return false };
    if name.starts_with(refloat_volume::block::TEMPORARY) {
        return top == b"volumeDevices";
    }
    is_dir || ForeignForm::of_name(name).is_none()
}

/// Whether an entry is a folder. Some file systems do not tell in the directory read; opening without crossing a
/// mount tells there.
pub(super) fn is_dir(at: impl AsFd, entry: &Entry) -> bool {
    match entry.kind {
        FileType::Directory => true,
        FileType::Unknown => {
            matches!(open(at, &entry.name, OFlags::PATH | OFlags::DIRECTORY), Ok(_) | Err(Errno::XDEV))
        }
        _ => false,
    }
}

fn is_symlink(at: impl AsFd, entry: &Entry) -> bool {
    match entry.kind {
        FileType::Unknown => open(at, &entry.name, OFlags::PATH).is_err_and(|error| error == Errno::LOOP),
        kind => kind == FileType::Symlink,
    }
}

/// Everything below the root that volumes can be in.
pub(super) fn tree(root: &NodeRoot, saved: bool) -> Tree {
    let mut walk = Walk::new(root);
    let GlobalTree { folders, records, maps } = global_folders(root, &mut walk.problems);
    let blocks = super::block::look(root, maps, saved, &mut walk.problems);
    let mut tree = Tree { global_folders: folders, records, blocks, ..Tree::default() };
    let listed = root.open_dir(Path::new(layout::PODS)).map(|dir| {
        dir.map(|dir| {
            walk.lister.entries(&dir).map(|entries| (dir, entries)).map_err(|e| (e, root.path().join("pods")))
        })
    });
    match listed {
        Ok(Some(Ok((dir, entries)))) => {
            let (folders, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| is_dir(&dir, e));
            for other in others {
                let path = root.path().join(layout::PODS).join(other.path());
                let why = if is_symlink(&dir, &other) { Errno::LOOP } else { Errno::NOTDIR };
                walk.problems.extend(trouble(&path, why));
            }
            let share = folders.len().div_ceil(THREADS).max(64);
            std::thread::scope(|scope| {
                let threads: Vec<_> = folders
                    .chunks(share)
                    .map(|pods| {
                        let dir = &dir;
                        scope.spawn(move || {
                            let mut walk = Walk::new(root);
                            let pods: Vec<_> = pods.iter().filter_map(|pod| walk.pod(dir, pod)).collect();
                            (pods, walk.problems)
                        })
                    })
                    .collect();
                for thread in threads {
                    let (pods, problems) = super::joined(thread);
                    tree.pods.extend(pods);
                    walk.problems.extend(problems);
                }
            });
        }
        Ok(Some(Err((error, path)))) => walk.problems.extend(trouble(&path, error)),
        Ok(None) => {}
        Err(error) => walk.problems.push(Problem::new(
            "CannotList",
            format!("{error}, so no pod's folder was looked at"),
            "Make it a folder that root can read.",
        )),
    }
    tree.problems = walk.problems;
    tree.problems.sort_unstable();
    tree
}

/// One pod's folder; none if it is not there.
pub(super) fn pod(root: &NodeRoot, pod: &PodUid, problems: &mut Vec<Problem>) -> Option<PodTree> {
    let mut walk = Walk::new(root);
    let dir = root.open_dir(Path::new(layout::PODS)).ok().flatten()?;
    let name = CString::new(pod.as_str()).expect("a uid holds no NUL");
    let found = walk.pod(&dir, &Entry { name, kind: FileType::Directory });
    // What was wrong with this pod's folders before is told anew.
    let below = format!("{}/", root.path().join(layout::pod_path(pod)).display());
    problems.retain(|p| !p.message.contains(&below));
    problems.extend(walk.problems);
    found
}

/// What is below `plugins/`.
pub(super) struct GlobalTree {
    /// The folders that global mounts stand in, and global map folders.
    pub(super) folders: Vec<PathBuf>,
    /// Other programs' files.
    pub(super) records: Vec<ForeignRecord>,
    /// What is in global map folders that are called after devices.
    pub(super) maps: Vec<PathBuf>,
}

/// Looks for folders of global mounts, and for files about volumes, below `plugins/`.
pub(super) fn global_folders(root: &NodeRoot, problems: &mut Vec<Problem>) -> GlobalTree {
    let mut walk = Walk::new(root);
    let mut found = vec![];
    let top = Path::new("plugins/kubernetes.io");
    if let Ok(Some(dir)) = root.open_dir(top)
        && let Ok(plugins) = walk.lister.entries(&dir)
    {
        for plugin in plugins {
            let path = top.join(plugin.path());
            if plugin.name.as_c_str() == c"csi" {
                walk.csi_stages(&dir, &plugin, &path, &mut found);
                continue;
            }
            if is_dir(&dir, &plugin) {
                walk.global_folders_of(&dir, &plugin, &path, &mut found);
            }
        }
    }
    // The one plugin besides local block volumes with an escaped name there.
    let storageos = Path::new("plugins/kubernetes.io~storageos/mounts");
    let entries = root.list(storageos).ok().flatten().unwrap_or_default();
    found.extend(entries.into_iter().map(|entry| storageos.join(entry.name)));
    found.sort_unstable();
    walk.problems.retain(|p| p.code != "NotAFolder");
    problems.extend(walk.problems);
    walk.records.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    GlobalTree { folders: found, records: walk.records, maps: walk.maps }
}

impl Walk<'_> {
    /// `csi/<driver>/<hash>/globalmount`, and `csi/pv/<persistent volume>/globalmount` of kubelets before 1.24.
    fn csi_stages(&mut self, dir: impl AsFd, csi: &Entry, path: &Path, found: &mut Vec<PathBuf>) {
        let Some((dir, drivers)) = self.list(dir, &csi.name, path) else { return };
        for driver in &drivers {
            let path = path.join(driver.path());
            if driver.name.as_c_str() == c"volumeDevices" {
                let staging = path.join("staging");
                if let Some((_, volumes)) = self.list(&dir, c"volumeDevices/staging", &staging) {
                    found.extend(volumes.iter().map(|volume| staging.join(volume.path())));
                }
                continue;
            }
            let Some((dir, stages)) = self.list(&dir, &driver.name, &path) else { continue };
            for stage in stages {
                let path = path.join(stage.path());
                let Some((_, names)) = self.list(&dir, &stage.name, &path) else { continue };
                // The kubelet's file may be all that a crash left.
                if names.iter().any(|n| matches!(n.text(), Some(layout::CSI_GLOBAL_MOUNT | layout::VOL_DATA))) {
                    found.push(path.join("globalmount"));
                }
            }
        }
    }
}
