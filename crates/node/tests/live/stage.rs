//! One node: root, state folder and manifests in a folder of its own, and the manager on it.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use refloat_mount::{Kernel, MountTable, TableReader};
use refloat_node::manager::Outcome;
use refloat_node::{ActualVolume, Manager, ManagerOptions, VolumeState};
use refloat_record::{Record, Store};
use refloat_test_support::Skip;
use rustix::mount::{MountFlags, UnmountFlags};

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Stage {
    dir: tempfile::TempDir,
    pub options: ManagerOptions,
    loops: Vec<PathBuf>,
}

impl Stage {
    pub fn new() -> Self {
        let dir = tempfile::tempdir_in(refloat_test_support::base()).unwrap();
        for name in ["kubelet", "state", "manifests", "host"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let options = ManagerOptions {
            flex_volume_dir: std::path::PathBuf::new(),
            sys: refloat_volume::scsi::Sys::default(),
            provider_dir: None,
            root_dir: dir.path().join("kubelet"),
            state_dir: dir.path().join("state"),
            manifests: dir.path().join("manifests"),
            workers: 4,
            operation_deadline: PATIENCE,
            lazy_unmount: false,
            records: true,
        };
        Self { dir, options, loops: vec![] }
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// A path below the node root.
    pub fn root(&self, below: &str) -> PathBuf {
        self.path("kubelet").join(below)
    }

    /// A folder of the host with a file.
    pub fn host(&self, name: &str) -> PathBuf {
        let path = self.path("host").join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("keep.txt"), "the host's").unwrap();
        path
    }

    pub fn manifest(&self, file: &str, text: &str) {
        // As an editor does: readers see the old file or the new one.
        let hidden = self.options.manifests.join(format!(".{file}"));
        std::fs::write(&hidden, text).unwrap();
        std::fs::rename(hidden, self.options.manifests.join(file)).unwrap();
    }

    pub fn remove_manifest(&self, file: &str) {
        std::fs::remove_file(self.options.manifests.join(file)).unwrap();
    }

    /// Starts a manager, lets it make the world match, and ends it.
    pub fn settle(&self) -> Outcome {
        Manager::start(self.options.clone()).unwrap().run_once(PATIENCE).unwrap()
    }

    /// As [`Stage::settle`], and everything must be well.
    pub fn settle_well(&self) -> Outcome {
        let outcome = self.settle();
        assert_eq!(outcome.failures, [], "{:#?}", outcome.plan.report);
        assert!(outcome.plan.operations.is_empty());
        outcome
    }

    pub fn table(&self) -> Arc<MountTable> {
        TableReader::new(Kernel::detect()).read().unwrap()
    }

    /// The mount points below the node root.
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.table().under(&self.path("kubelet")).map(|m| m.point().to_path_buf()).collect()
    }

    pub fn is_mounted(&self, below: &str) -> bool {
        self.table().at(&self.root(below)).is_some()
    }

    pub fn bind(&self, source: &Path, target: &Path) {
        rustix::mount::mount_bind(source, target).unwrap();
    }

    pub fn tmpfs(&self, target: &Path, options: &std::ffi::CStr) {
        rustix::mount::mount("by-hand", target, "tmpfs", MountFlags::empty(), options).unwrap();
    }

    /// A program that another test is about to start has, until it runs, all that this process has open: so it may be
    /// busy for a moment.
    pub fn unmount(&self, path: &Path) {
        wait_for("a mount that nobody uses", || match rustix::mount::unmount(path, UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) => false,
            unmounted => {
                unmounted.unwrap();
                true
            }
        });
    }

    /// What a reboot leaves: files, and no mount.
    pub fn reboot(&self) {
        let store = Store::open(&self.options.state_dir).unwrap();
        for mut record in store.load().unwrap().records {
            let another = refloat_record::BootId::new("another-boot").unwrap();
            match &mut record {
                Record::DeviceMount(device) => device.boot_id = another,
                Record::PodVolume(volume) => volume.boot_id = another,
                Record::PodCheckpoint(_) | Record::Driver(_) => continue,
            }
            store.put(&record).unwrap();
        }
        for point in self.mounts().iter().rev() {
            self.unmount(point);
        }
    }

    pub fn records(&self) -> Vec<Record> {
        Store::read(&self.options.state_dir).unwrap().records
    }

    /// A record file whose name holds this text.
    pub fn record_file(&self, kind: &str, part: &str) -> PathBuf {
        let folder = self.options.state_dir.join(kind);
        let entries = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
        entries.into_iter().find(|p| p.to_string_lossy().contains(part)).unwrap()
    }

    /// Nothing of any pod is left.
    pub fn assert_clean(&self) {
        assert_eq!(self.mounts(), Vec::<PathBuf>::new());
        assert_eq!(self.files("pods"), Vec::<PathBuf>::new());
        assert_eq!(self.files("plugins"), Vec::<PathBuf>::new());
        assert_eq!(self.records(), []);
    }

    /// Everything below a folder of the node root, folders included.
    pub fn files(&self, below: &str) -> Vec<PathBuf> {
        let mut found = vec![];
        let mut todo = vec![self.root(below)];
        while let Some(folder) = todo.pop() {
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            for entry in entries {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    todo.push(entry.path());
                }
                found.push(entry.path());
            }
        }
        found.sort();
        found
    }

    /// A loop device with an ext4 on it, a file `disk.txt` in that.
    pub fn disk(&mut self, name: &str) -> Result<PathBuf, Skip> {
        let image = self.disk_image(name)?;
        self.attach(&image)
    }

    /// A file with an ext4 in it, a file `disk.txt` in that.
    pub fn disk_image(&self, name: &str) -> Result<PathBuf, Skip> {
        let image = self.path(name);
        let content = tempfile::tempdir_in(refloat_test_support::base()).unwrap();
        std::fs::write(content.path().join("disk.txt"), "the disk's").unwrap();
        std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-F", "-d"]).arg(content.path()).arg(&image).status();
        if !made.is_ok_and(|status| status.success()) {
            return Err(Skip("mkfs.ext4 cannot be run".into()));
        }
        Ok(image)
    }

    /// Attaches a file as a loop device, until the stage is dropped.
    pub fn attach(&mut self, image: &Path) -> Result<PathBuf, Skip> {
        let device = refloat_mount::loopdev::attach(image, false)
            .map_err(|error| Skip(format!("no loop device can be had: {error}")))?;
        self.loops.push(device.clone());
        Ok(device)
    }

    /// A manager that runs on a thread of its own.
    pub fn run(&self) -> Running {
        let (stop, stopped) = UnixStream::pair().unwrap();
        let options = self.options.clone();
        let (tell, thread_id) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            Manager::start(options).unwrap().run(stopped.as_fd()).unwrap();
        });
        Running { stop: Some(stop), thread: Some(thread), thread_id: thread_id.recv().unwrap() }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let table = self.table();
        let points: Vec<_> = table.under(self.dir.path()).map(|m| m.point().to_path_buf()).collect();
        for point in points.iter().rev() {
            let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
        }
        for device in &self.loops {
            let _ = refloat_mount::loopdev::detach(device);
        }
    }
}

/// A running manager.
pub struct Running {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    pub thread_id: i32,
}

impl Running {
    /// Stops it in order.
    pub fn stop(mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until it is so.
#[track_caller]
pub fn wait_for(what: &str, is_so: impl FnMut() -> bool) {
    refloat_test_support::wait_within(PATIENCE, what, is_so);
}

/// The volume with this spec name.
#[track_caller]
pub fn volume<'o>(outcome: &'o Outcome, name: &str) -> &'o ActualVolume {
    let found = outcome.actual.volumes.iter().find(|v| v.key.spec_name.as_str() == name);
    found.unwrap_or_else(|| panic!("no volume {name}: {:#?}", outcome.plan.report))
}

#[track_caller]
pub fn assert_all_mounted(outcome: &Outcome, count: usize) {
    assert_eq!(outcome.actual.volumes.len(), count, "{:#?}", outcome.plan.report);
    for volume in &outcome.actual.volumes {
        assert_eq!(volume.state, VolumeState::Mounted, "{volume:#?}");
        assert_eq!(volume.problems, [], "{:?}", volume.key);
    }
}

/// A pod with this uid, these `volumes` (each indented by two) and no more.
pub fn pod(uid: &str, volumes: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: pod-{uid}, uid: {uid}}}\nspec:\n  containers:\n  - {{name: c, image: i}}\n  volumes:\n{volumes}"
    )
}

/// A local volume on this path and a claim bound to it, both with this name.
pub fn local(name: &str, path: &Path) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  capacity: {{storage: 1Mi}}\n  accessModes: [ReadWriteMany]\n  local: {{path: {path}}}\n  claimRef: {{namespace: default, name: {name}}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: default}}\nspec:\n  volumeName: {name}\n  accessModes: [ReadWriteMany]\n  resources: {{requests: {{storage: 1Mi}}}}\n",
        path = path.display()
    )
}
