//! Where the demo plays: a folder with a file system over memory, and what has to be cleaned up.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use refloat_mount::{Dir, Kernel, NewMount, NodeRoot, TableReader, UnmountHow, loopdev};

use super::manifests::{Manifest, Means};
use crate::config::Settings;
use crate::exit::Failure;

/// The largest time that one step may take.
const STEP: Duration = Duration::from_secs(20);

/// The demo's folder and what runs in it. Taken down when dropped.
#[derive(Debug)]
pub(super) struct Stage {
    folder: PathBuf,
    mounted: bool,
    manager: Option<Child>,
    stop: UnixStream,
    pub(super) means: Means,
    /// What cannot be shown here, and why.
    pub(super) skipped: Vec<String>,
    /// How the manager and the looks at the node are run.
    pub(super) settings: Settings,
    taken_down: bool,
}

impl Stage {
    /// Makes the folder and mounts memory there.
    pub(super) fn build(in_user_namespace: bool, settings: &Settings) -> Result<Self, Failure> {
        let stop = stop_signals()?;
        let mut uuid = String::new();
        File::open("/proc/sys/kernel/random/uuid")
            .and_then(|mut f| f.read_to_string(&mut uuid))
            .context("cannot get a random name")?;
        let temp = NodeRoot::open(&std::env::temp_dir()).context("cannot use the temporary folder")?;
        let folder = temp.path().join(format!("refloat-demo-{}", uuid.get(..8).unwrap_or("0")));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))
            .map_err(|e| Failure::with_hint(e, "set TMPDIR to a folder that can be written"))?;
        let mut stage = Self {
            settings: Settings {
                root_dir: folder.join("kubelet"),
                state_dir: folder.join("state"),
                state_dir_given: true,
                output: settings.output,
                color: settings.color,
                verbose: settings.verbose,
                log_format: settings.log_format,
                file: crate::config::ConfigFile::default(),
            },
            folder,
            mounted: false,
            manager: None,
            stop,
            means: Means { disk: None, groups: !in_user_namespace },
            skipped: Vec::new(),
            taken_down: false,
        };
        stage.furnish(in_user_namespace)?;
        Ok(stage)
    }

    /// Mounts memory over the folder, and makes what the pods need from the host.
    fn furnish(&mut self, in_user_namespace: bool) -> Result<(), Failure> {
        let kernel = Kernel::detect();
        let memory = NewMount::tmpfs(kernel, &[("mode", Some("0700")), ("size", Some("128m"))])
            .context("cannot mount a file system over memory")?;
        let folder = rustix::fs::open(
            &self.folder,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        );
        let folder = folder.with_context(|| format!("cannot open {}", self.folder.display()))?;
        memory.attach(&Dir::new(folder, self.folder.clone())).context("cannot mount a file system over memory")?;
        self.mounted = true;
        for name in ["kubelet", "state", "pods", "host", "host/files", "host/logs"] {
            let path = self.folder.join(name);
            std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        write(&self.host().join("files/customers.txt"), "customers of the shop\n")?;
        if in_user_namespace {
            self.skipped.push("the volume on a disk: a user namespace may not mount block devices".into());
            self.skipped.push("fsGroup: a user namespace has no second group".into());
        } else {
            match self.attach_disk() {
                Ok(device) => self.means.disk = Some(device),
                Err(error) => self.skipped.push(format!("the volume on a disk: {error:#}")),
            }
        }
        Ok(())
    }

    /// A blank disk: a file as a loop device.
    fn attach_disk(&self) -> anyhow::Result<String> {
        let found = |tool| {
            std::env::split_paths(&format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
                .any(|folder| rustix::fs::access(folder.join(tool), rustix::fs::Access::EXEC_OK).is_ok())
        };
        if let Some(tool) = ["mkfs.ext4", "blkid"].into_iter().find(|tool| !found(*tool)) {
            anyhow::bail!("there is no {tool} (Debian: e2fsprogs, util-linux)");
        }
        let file = File::create_new(self.disk()).context("cannot make a disk")?;
        file.set_len(32 << 20).context("cannot make a disk")?;
        let device = loopdev::attach(&self.disk(), false).context("cannot attach a loop device")?;
        Ok(device.to_string_lossy().into_owned())
    }

    /// How many records of volumes there are: one directory read, quick enough to catch the manager at work.
    pub(super) fn count_records(&self) -> usize {
        std::fs::read_dir(self.settings.state_dir.join("volumes")).map_or(0, Iterator::count)
    }

    /// The file behind the disk.
    pub(super) fn disk(&self) -> PathBuf {
        self.folder.join("demo-disk.img")
    }

    /// The manifest folder.
    pub(super) fn pods(&self) -> PathBuf {
        self.folder.join("pods")
    }

    /// The folder for what belongs to the host.
    pub(super) fn host(&self) -> PathBuf {
        self.folder.join("host")
    }

    /// Puts a manifest into the folder in one step, as a careful administrator does.
    pub(super) fn apply(&self, (name, text): &Manifest) -> Result<(), Failure> {
        let hidden = self.pods().join(format!(".{name}"));
        write(&hidden, text)?;
        let path = self.pods().join(name);
        Ok(std::fs::rename(&hidden, &path).with_context(|| format!("cannot write {}", path.display()))?)
    }

    /// Removes a manifest.
    pub(super) fn delete(&self, name: &str) -> Result<(), Failure> {
        let path = self.pods().join(name);
        Ok(std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?)
    }

    fn refloat(&self, args: &[&str]) -> Command {
        let mut command = Command::new("/proc/self/exe");
        // Nothing of the user's own node may find its way in.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REFLOAT_")) {
            command.env_remove(name);
        }
        command.args(args).arg("--manifests").arg(self.pods());
        command.arg("--root-dir").arg(&self.settings.root_dir).arg("--state-dir").arg(&self.settings.state_dir);
        command.args(["--color", "never"]).stdin(Stdio::null());
        command
    }

    /// Starts the manager. It dies with this process.
    pub(super) fn start_manager(&mut self) -> Result<(), Failure> {
        let log =
            File::options().append(true).create(true).open(self.log()).context("cannot write the manager's log")?;
        let mut command = self.refloat(&["node", "--die-with-parent", "-v", "--workers", "1"]);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().context("cannot start the manager")?;
        self.manager = Some(child);
        Ok(())
    }

    /// Runs the manager once and waits for it.
    pub(super) fn run_manager_once(&mut self) -> Result<Output, Failure> {
        let output = self.refloat(&["node", "--once", "--die-with-parent", "-o", "json"]).output();
        Ok(output.context("cannot run the manager")?)
    }

    /// Kills the manager as hard as can be.
    pub(super) fn kill_manager(&mut self) -> Result<(), Failure> {
        if let Some(mut child) = self.manager.take() {
            child.kill().context("cannot kill the manager")?;
            child.wait().context("cannot wait for the manager")?;
        }
        Ok(())
    }

    /// Waits until something is so, looking again and again.
    pub(super) fn wait_until(
        &mut self,
        what: &str,
        pause: Duration,
        mut is_so: impl FnMut(&Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        while !is_so(self)? {
            self.check_stop()?;
            if let Some(status) = self.manager.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                return Err(self.failed(format!("the manager ended by itself ({status}) before {what}")));
            }
            if start.elapsed() > STEP {
                return Err(self.failed(format!("{what} did not happen within {} seconds", STEP.as_secs())));
            }
            std::thread::sleep(pause);
        }
        Ok(())
    }

    /// Ends the demo if the user asked for that.
    pub(super) fn check_stop(&mut self) -> Result<(), Failure> {
        match self.stop.read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            _ => Err(Failure::message("interrupted", "")),
        }
    }

    /// A failure of the demo, with the end of the manager's log.
    pub(super) fn failed(&self, what: String) -> Failure {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(8)..].join("\n      ");
        Failure::message(what, if end.is_empty() { end } else { format!("the manager's last messages:\n      {end}") })
    }

    fn log(&self) -> PathBuf {
        self.folder.join("manager.log")
    }

    /// Cleans up: the manager, the mounts, the disk, the folder.
    pub(super) fn take_down(mut self) -> Result<(), Failure> {
        self.clean_up()
    }

    fn clean_up(&mut self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.taken_down, true) {
            return Ok(());
        }
        let killed = self.kill_manager();
        // The loop device needs its file's name, so it is found first and detached last.
        let disks =
            if self.means.disk.is_some() { loopdev::find(&self.disk()).unwrap_or_default() } else { Vec::new() };
        let parent = self.folder.parent().unwrap_or(Path::new("/"));
        let name = Path::new(self.folder.file_name().unwrap_or_default());
        let temp = NodeRoot::open(parent).context("cannot open the temporary folder")?;
        if self.mounted {
            // Lazily: this takes everything that is mounted inside along. All of it is this namespace's own.
            let mut reader = TableReader::new(Kernel::detect());
            temp.unmount(name, None, UnmountHow::Lazy, &mut reader)
                .with_context(|| format!("cannot unmount {}", self.folder.display()))?;
        }
        for disk in disks {
            loopdev::detach(&disk).with_context(|| format!("cannot detach {}", disk.display()))?;
        }
        temp.remove_dir(name).with_context(|| format!("cannot remove {}", self.folder.display()))?;
        killed
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(Failure::Failed { error, .. }) = self.clean_up() {
            tracing::error!("the demo could not clean up: {error:#}");
        }
    }
}

/// Writes a file.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    Ok(std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?)
}

/// A stream that can be read once SIGTERM or SIGINT came.
fn stop_signals() -> Result<UnixStream, Failure> {
    let (read, write) = UnixStream::pair().context("cannot make a pipe for signals")?;
    read.set_nonblocking(true).context("cannot make a pipe for signals")?;
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP] {
        let write = write.try_clone().context("cannot make a pipe for signals")?;
        signal_hook::low_level::pipe::register(signal.as_raw(), write).context("cannot listen for signals")?;
    }
    Ok(read)
}
