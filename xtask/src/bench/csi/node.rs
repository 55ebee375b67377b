//! A node with volumes of a driver that does nothing.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use refloat_mount::{BindOptions, Kernel, NewMount};
use refloat_node::{Manager, ManagerOptions, VolumeState};
use refloat_record::{DriverName, Record, RecordedMount, Store};
use refloat_test_csi_driver::{Options, Process, Program};

use crate::node::{Node, dir};
use crate::process::THIS_PROGRAM;

pub(super) const DRIVER: &str = "bench.test";

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// The node and its driver.
pub(super) struct CsiNode {
    // It ends before its folder goes.
    pub(super) driver: Process,
    pub(super) node: Node,
    pub(super) root: PathBuf,
    pub(super) state: PathBuf,
}

impl CsiNode {
    /// Makes it. `place`: where root and state folder are, if not in memory.
    pub(super) fn new(binary: &Path, place: Option<&Path>) -> Result<Self> {
        Self::with(binary, place, |_| {})
    }

    /// The same, with other options of the driver.
    pub(super) fn with(binary: &Path, place: Option<&Path>, change: impl FnOnce(&mut Options)) -> Result<Self> {
        let node = Node::new(binary)?;
        let (root, state) = match place {
            Some(place) => (place.join("kubelet"), place.join("state")),
            None => (node.root.clone(), node.state.clone()),
        };
        for folder in [&root, &state] {
            std::fs::create_dir_all(folder)?;
        }
        let mut options = Options::new(DRIVER, node.folder().join("driver"));
        (options.noop, options.journal, options.faults) = (true, None, None);
        change(&mut options);
        let driver = Process::start(Program::At(THIS_PROGRAM.into()), options).context("cannot start the driver")?;
        let csi = Self { driver, node, root, state };
        csi.remember(&csi.driver)?;
        Ok(csi)
    }

    /// Writes down that the driver registered before; so its socket is known from the start.
    pub(super) fn remember(&self, driver: &Process) -> Result<()> {
        let options = driver.options();
        Ok(Store::open(&self.state)?.put(&Record::Driver(refloat_record::Driver {
            name: DriverName::new(&options.name)?,
            endpoint: options.endpoint.to_string_lossy().into_owned(),
            node_id: "node-1".into(),
            topology: BTreeMap::new(),
            registered_at: "2026-01-01T00:00:00Z".into(),
            missing_since: None,
        }))?)
    }

    pub(super) fn manager(&self, workers: usize) -> Result<Manager> {
        let options = ManagerOptions {
            flex_volume_dir: std::path::PathBuf::new(),
            sys: refloat_volume::scsi::Sys::default(),
            provider_dir: None,
            root_dir: self.root.clone(),
            state_dir: self.state.clone(),
            manifests: self.node.pods(),
            workers,
            operation_deadline: Duration::from_secs(60),
            lazy_unmount: false,
            records: true,
        };
        Manager::start(options).context("cannot start the manager")
    }

    /// Wants so many volumes, `each` in a pod.
    pub(super) fn want(&self, volumes: usize, each: usize) -> Result<()> {
        self.want_of(DRIVER, "", volumes, each)
    }

    /// The same of this driver; `tag` tells what is wanted from what is wanted of others.
    pub(super) fn want_of(&self, driver: &str, tag: &str, volumes: usize, each: usize) -> Result<()> {
        let mut text = String::new();
        for number in 0..volumes {
            let _ = writeln!(
                text,
                "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: pv-{tag}{number}}}\nspec: {{capacity: {{storage: 1Gi}}, \
                 accessModes: [ReadWriteOnce], csi: {{driver: {driver}, volumeHandle: vol-{tag}{number}, fsType: ext4, \
                 volumeAttributes: {{storage.kubernetes.io/csiProvisionerIdentity: 1700000000000-8081-{driver}}}}}, claimRef: \
                 {{namespace: bench, name: c-{tag}{number}}}}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: \
                 c-{tag}{number}, namespace: bench}}\nspec: {{volumeName: pv-{tag}{number}, accessModes: [ReadWriteOnce], resources: \
                 {{requests: {{storage: 1Gi}}}}}}\n---"
            );
        }
        self.node.apply(&format!("volumes{tag}.yaml"), &text)?;
        for first in (0..volumes).step_by(each) {
            let mut text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{tag}{first}, namespace: bench}}\nspec:\n  containers: [{{name: c, \
                 image: i}}]\n  volumes:\n"
            );
            for number in first..volumes.min(first + each) {
                let _ =
                    writeln!(text, "  - {{name: v{number}, persistentVolumeClaim: {{claimName: c-{tag}{number}}}}}");
            }
            self.node.apply(&format!("pod-{tag}{first}.yaml"), &text)?;
        }
        Ok(())
    }

    /// Removes all pods.
    pub(super) fn want_nothing(&self) -> Result<()> {
        self.node.no_pods()
    }

    /// Makes the world match, and checks that so many volumes are there then. Answers how long it took.
    pub(super) fn settle(&self, workers: usize, volumes: usize) -> Result<Duration> {
        let mut manager = self.manager(workers)?;
        let start = Instant::now();
        let outcome = manager.run_once(PATIENCE)?;
        let time = start.elapsed();
        ensure!(outcome.failures.is_empty(), "it failed: {:?}", outcome.failures.first());
        let mounted = outcome.actual.volumes.iter().filter(|v| v.state == VolumeState::Mounted).count();
        let all = outcome.actual.volumes.len();
        ensure!(mounted == volumes && all == volumes, "{mounted} of {all} volumes are there, not {volumes}");
        ensure!(outcome.actual.devices.len() == volumes, "{} are staged", outcome.actual.devices.len());
        Ok(time)
    }

    /// Mounts what the driver did not: a file system over memory where each volume is staged, bound to where it is published;
    /// the records say so then.
    pub(super) fn mount_all(&self) -> Result<()> {
        let kernel = Kernel::detect();
        let store = Store::open(&self.state)?;
        let mut records = store.load()?.records;
        // Stages come first.
        for record in &mut records {
            match record {
                Record::DeviceMount(device) => {
                    let path = device.device_mount_path.below(&self.root);
                    device.mount = Some(attach(NewMount::tmpfs(kernel, &[])?, &path)?);
                }
                Record::PodVolume(volume) => {
                    let staged = volume.device_mount_path.as_ref().context("a volume that is not staged")?;
                    let staged = staged.below(&self.root);
                    let source = dir(&staged)?;
                    let bind = NewMount::bind(kernel, source.as_fd(), &staged, &BindOptions::default())?;
                    let path = volume.path.as_ref().context("a volume without a path")?;
                    volume.mount = Some(attach(bind, &path.below(&self.root))?);
                }
                Record::PodCheckpoint(_) | Record::Driver(_) => {}
            }
        }
        store.put_all(&records).into_iter().try_for_each(|result| Ok(result?))
    }
}

fn attach(mount: NewMount, folder: &Path) -> Result<RecordedMount> {
    std::fs::create_dir_all(folder)?;
    let (fs_type, source, root) = mount.announced();
    let before = mount.id();
    let after = mount.attach(&dir(folder)?).context("cannot mount")?;
    Ok(RecordedMount { id: before.or(after).map(|id| id.0), fs_type, source, root })
}
