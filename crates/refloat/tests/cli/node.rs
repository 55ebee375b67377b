//! A node to test on: folders over memory in a private mount namespace, and the real binary.
//!
//! Also used by `xtask`. The process must have called `refloat_mount::enter_private_namespace` before.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use refloat_mount::{Dir, Kernel, NewMount, NodeRoot, TableReader, UnmountHow, loopdev};
use rustix::fs::{Mode, OFlags};
use serde_json::Value;

/// A node. Everything that it made is gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Node {
    folder: PathBuf,
    binary: PathBuf,
    /// Further arguments of every command.
    pub(crate) more: Vec<String>,
    /// Further environment of every command.
    pub(crate) env: Vec<(String, String)>,
    /// Whether the pods are those of the project's own folder of none.
    none: AtomicBool,
    /// The node root.
    pub(crate) root: PathBuf,
    /// The state folder.
    pub(crate) state: PathBuf,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The exit code; -1 if a signal ended it.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Ran {
    fn of(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Standard output as JSON.
    pub(crate) fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("no JSON: {self:?}"))
    }

    /// An error with everything in it, unless it ended with this code.
    pub(crate) fn expect(self, code: i32) -> Result<Self> {
        ensure!(self.code == code, "expected exit code {code}: code {}\n{}\n{}", self.code, self.stdout, self.stderr);
        Ok(self)
    }
}

/// A folder of this process's own. One that was killed leaves its folder, and its number is given out again.
fn make_folder() -> Result<PathBuf> {
    let name = format!("refloat-test-{}", std::process::id());
    let mut tried = 0;
    loop {
        let folder = std::env::temp_dir().join(if tried == 0 { name.clone() } else { format!("{name}-{tried}") });
        match std::fs::create_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && tried < 1000 => tried += 1,
            made => {
                made.with_context(|| format!("cannot make {}", folder.display()))?;
                return Ok(folder);
            }
        }
    }
}

impl Node {
    /// Makes the folders. `binary` is the `refloat` to run.
    pub(crate) fn new(binary: &Path) -> Result<Self> {
        let folder = make_folder()?;
        // As the mount table spells it.
        let folder = NodeRoot::open(&folder)?.path().to_owned();
        let node = Self {
            root: folder.join("kubelet"),
            state: folder.join("state"),
            folder,
            binary: binary.to_owned(),
            more: Vec::new(),
            env: Vec::new(),
            none: AtomicBool::new(false),
        };
        mount_tmpfs(&node.folder, "1g")?;
        for path in [&node.root, &node.state, &node.pods(), &node.host()] {
            std::fs::create_dir(path)?;
        }
        Ok(node)
    }

    /// The folder of everything.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The binary.
    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// The manifest folder.
    pub(crate) fn pods(&self) -> PathBuf {
        if self.none.load(Ordering::Relaxed) { no_pods() } else { self.folder.join("manifests") }
    }

    /// A folder for what belongs to the host.
    pub(crate) fn host(&self) -> PathBuf {
        self.folder.join("host")
    }

    /// Puts a manifest into the folder in one step.
    pub(crate) fn apply(&self, name: &str, text: &str) -> Result<()> {
        self.none.store(false, Ordering::Relaxed);
        let hidden = self.pods().join(format!(".{name}.new"));
        std::fs::write(&hidden, text)?;
        Ok(std::fs::rename(hidden, self.pods().join(name))?)
    }

    /// Removes a manifest.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        std::fs::remove_file(self.pods().join(name)).with_context(|| format!("cannot remove the manifest {name}"))
    }

    /// Removes a manifest, and waits until it is believed that it is gone.
    #[allow(dead_code, reason = "not every package that has this file needs it")]
    pub(crate) fn delete(&self, name: &str) -> Result<()> {
        self.remove(name)?;
        Self::settle();
        Ok(())
    }

    /// Waits until what the manifest folder does not say any more is believed.
    #[allow(dead_code, reason = "not every package that has this file needs it")]
    pub(crate) fn settle() {
        std::thread::sleep(refloat_node::sources::manifests::SETTLE + std::time::Duration::from_millis(20));
    }

    /// Removes every manifest, and waits until it is believed that they are gone.
    #[allow(dead_code, reason = "not every package that has this file needs it")]
    pub(crate) fn delete_all(&self) -> Result<()> {
        self.remove_all()?;
        Self::settle();
        Ok(())
    }

    fn remove_all(&self) -> Result<()> {
        for entry in std::fs::read_dir(self.pods())? {
            std::fs::remove_file(entry?.path())?;
        }
        Ok(())
    }

    /// Removes every manifest, and takes another folder until there is one again: one that says that there are no pods
    /// and that nobody has changed for long. Its silence is believed at once, and not after a second.
    #[cfg_attr(test, allow(dead_code, reason = "of use where thousands of nodes are emptied"))]
    pub(crate) fn no_pods(&self) -> Result<()> {
        if !self.none.load(Ordering::Relaxed) {
            self.remove_all()?;
        }
        self.none.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Attaches a file of the node's folder as a loop device, until the node is dropped.
    pub(crate) fn attach_loop(&self, backing: &Path) -> Result<PathBuf> {
        ensure!(backing.starts_with(&self.folder), "{} is not in the node's folder", backing.display());
        loopdev::attach(backing, false).with_context(|| format!("cannot attach {} as a loop device", backing.display()))
    }

    /// `refloat ARGS`, with this node's folders.
    pub(crate) fn refloat(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        self.configure(&mut command, args);
        command
    }

    /// Adds arguments and environment to a command that ends with the binary.
    pub(crate) fn configure(&self, command: &mut Command, args: &[&str]) {
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REFLOAT_")) {
            command.env_remove(name);
        }
        command.args(args).arg("--root-dir").arg(&self.root).arg("--state-dir").arg(&self.state).args(&self.more);
        command.envs(self.env.iter().map(|(k, v)| (k, v))).env("RUST_BACKTRACE", "1").stdin(Stdio::null());
    }

    /// Runs `refloat ARGS` to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Result<Ran> {
        Ok(Ran::of(&self.refloat(args).output().context("cannot run refloat")?))
    }

    /// `refloat node --once` with the manifest folder.
    pub(crate) fn once(&self) -> Result<Ran> {
        let pods = self.pods();
        let pods = pods.to_str().context("a folder's name is not UTF-8")?;
        self.run(&["node", "--once", "-o", "json", "--workers", "1", "--manifests", pods])
    }

    /// `refloat scan` with the manifest folder.
    pub(crate) fn scan(&self) -> Result<Ran> {
        let pods = self.pods();
        let pods = pods.to_str().context("a folder's name is not UTF-8")?;
        self.run(&["scan", "-o", "json", "--manifests", pods])
    }

    /// The mount points below the node root, each as often as it is mounted.
    pub(crate) fn mounts(&self) -> Result<Vec<PathBuf>> {
        let table = TableReader::new(Kernel::detect()).read()?;
        Ok(table.under(&self.root).map(|m| m.point().to_owned()).collect())
    }
}

/// The project's folder of no pods. The package that this file is compiled into is one of several.
fn no_pods() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = package.ancestors().map(|folder| folder.join("tests/no-pods")).find(|folder| folder.is_dir());
    found.expect("tests/no-pods is a part of the project")
}

impl Drop for Node {
    fn drop(&mut self) {
        let parent = self.folder.parent().unwrap_or(Path::new("/"));
        let name = Path::new(self.folder.file_name().unwrap_or_default());
        let clean = || -> Result<()> {
            let root = NodeRoot::open(parent)?;
            // The test's own, and what holds a block volume: while it is mounted the kernel says where it is.
            let mut loops = loopdev::all()?;
            loops.retain(|device| device.backing.starts_with(&self.folder));
            // Lazily: this takes along everything that is mounted inside, all of it in this namespace only.
            let mut reader = TableReader::new(Kernel::detect());
            while reader.read()?.at(&self.folder).is_some() {
                root.unmount(name, None, UnmountHow::Lazy, &mut reader)?;
            }
            for device in &loops {
                loopdev::detach(&device.path)?;
            }
            root.remove_dir(name)?;
            Ok(())
        };
        if let Err(error) = clean() {
            eprintln!("cannot clean up {}: {error:#}", self.folder.display());
        }
    }
}

/// Lets this process finish, and thereby clean up, when it is asked to stop: its children stop, and so its next step
/// fails. Answers what says that it was asked.
pub(crate) fn finish_on_signals() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP] {
        signal_hook::flag::register(signal.as_raw(), asked.clone()).context("cannot listen for signals")?;
    }
    Ok(asked)
}

/// Opens a folder as a mount target.
pub(crate) fn dir(path: &Path) -> Result<Dir> {
    let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Dir::new(fd, path.to_owned()))
}

/// Mounts a small file system over memory.
pub(crate) fn mount_tmpfs(at: &Path, size: &str) -> Result<()> {
    let mount = NewMount::tmpfs(Kernel::detect(), &[("mode", Some("0755")), ("size", Some(size))])?;
    mount.attach(&dir(at)?)?;
    Ok(())
}

/// Everything below a folder that is no mount, as paths relative to it; nothing below a mount is looked at.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let root = NodeRoot::open(folder)?;
    let mut open: Vec<PathBuf> = root
        .list(Path::new("."))
        .or_else(|_| root.list(Path::new("")))?
        .unwrap_or_default()
        .into_iter()
        .map(|entry| entry.name.into())
        .collect();
    while let Some(path) = open.pop() {
        if let Ok(Some(entries)) = root.list(&path) {
            open.extend(entries.into_iter().map(|entry| path.join(entry.name)));
        }
        found.push(path);
    }
    found.sort();
    Ok(found)
}
