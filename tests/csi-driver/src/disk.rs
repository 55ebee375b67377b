//! Volumes: a file each, and what is known of it.

use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use refloat_mount::loopdev;
use serde::{Deserialize, Serialize};

/// What is known of a volume. What is attached and mounted is not written down but asked of the kernel.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Volume {
    /// Its handle.
    pub(crate) id: String,
    /// The name that it was made under; empty if it was made because it was missing.
    pub(crate) name: String,
    /// Its size in bytes.
    pub(crate) capacity: u64,
    /// Where it may be staged.
    #[serde(default)]
    pub(crate) staged: BTreeSet<String>,
    /// Where it may be published.
    #[serde(default)]
    pub(crate) published: BTreeSet<String>,
}

/// The state folder.
#[derive(Debug, Clone)]
pub(crate) struct Disks {
    folder: PathBuf,
}

const META: &str = "volume.json";
const DATA: &str = "data.img";

impl Disks {
    pub(crate) fn new(state: &Path) -> io::Result<Self> {
        let folder = state.join("volumes");
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    fn of(&self, id: &str) -> PathBuf {
        self.folder.join(file_name(id))
    }

    fn data(&self, id: &str) -> PathBuf {
        self.of(id).join(DATA)
    }

    pub(crate) fn load(&self, id: &str) -> io::Result<Option<Volume>> {
        match std::fs::read(self.of(id).join(META)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes what is known of a volume: whole or not at all, and on the disk when this returns.
    pub(crate) fn save(&self, volume: &Volume) -> io::Result<()> {
        let folder = self.of(&volume.id);
        std::fs::create_dir_all(&folder)?;
        let new = folder.join(".volume.json");
        let mut file = File::create(&new)?;
        serde_json::to_writer(&mut file, volume)?;
        file.sync_all()?;
        std::fs::rename(&new, folder.join(META))?;
        File::open(&folder)?.sync_all()
    }

    /// Makes a volume, empty and without a file system.
    pub(crate) fn create(&self, id: &str, name: &str, capacity: u64) -> io::Result<Volume> {
        std::fs::create_dir_all(self.of(id))?;
        // A file that a driver killed just here left is as good.
        let file = File::options().write(true).create(true).truncate(false).open(self.data(id))?;
        file.set_len(capacity)?;
        let volume =
            Volume { id: id.into(), name: name.into(), capacity, staged: BTreeSet::new(), published: BTreeSet::new() };
        self.save(&volume)?;
        Ok(volume)
    }

    pub(crate) fn delete(&self, id: &str) -> io::Result<()> {
        let folder = self.of(id);
        // The record first: without it there is no volume.
        for name in [META, ".volume.json", DATA, ".data.img"] {
            gone(std::fs::remove_file(folder.join(name)))?;
        }
        gone(std::fs::remove_dir(folder))
    }

    pub(crate) fn all(&self) -> io::Result<Vec<Volume>> {
        let mut volumes = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            match std::fs::read(entry?.path().join(META)) {
                Ok(text) => volumes.push(serde_json::from_slice::<Volume>(&text)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        volumes.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(volumes)
    }

    /// The file system in the file, made now if nothing was ever written to it. On a copy that takes the file's place when
    /// it is complete, so that a driver killed half-way left nothing half made.
    pub(crate) fn format(&self, volume: &Volume, wanted: FileSystem) -> io::Result<FileSystem> {
        let data = self.data(&volume.id);
        if let Some(found) = FileSystem::of(&data)? {
            return Ok(found);
        }
        if std::fs::metadata(&data)?.blocks() > 0 || self.device(&volume.id)?.is_some() {
            return Err(io::Error::other("the volume has data, or is a block volume now, and has no file system"));
        }
        let new = self.of(&volume.id).join(".data.img");
        let file = File::create(&new)?;
        file.set_len(volume.capacity)?;
        match wanted {
            FileSystem::Ext4 => tool(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&new))?,
            FileSystem::Xfs => tool(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(&new))?,
        }
        file.sync_all()?;
        std::fs::rename(new, data)?;
        Ok(wanted)
    }

    /// The loop device that the volume is attached to.
    pub(crate) fn device(&self, id: &str) -> io::Result<Option<PathBuf>> {
        match loopdev::find(&self.data(id)) {
            Ok(devices) => Ok(devices.into_iter().next()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Attaches the volume, unless it is.
    pub(crate) fn attach(&self, id: &str) -> io::Result<PathBuf> {
        match self.device(id)? {
            Some(device) => Ok(device),
            None => loopdev::attach(&self.data(id), false),
        }
    }

    /// Detaches the volume. Every device of it, should there be more.
    pub(crate) fn detach(&self, id: &str) -> io::Result<()> {
        while let Some(device) = self.device(id)? {
            loopdev::detach(&device)?;
        }
        Ok(())
    }

    /// Grows the file, the device if it is attached, and the file system that is mounted at `mounted`.
    pub(crate) fn grow(&self, volume: &mut Volume, capacity: u64, mounted: Option<&Path>) -> io::Result<()> {
        let data = self.data(&volume.id);
        if capacity > volume.capacity {
            File::options().write(true).open(&data)?.set_len(capacity)?;
            volume.capacity = capacity;
            self.save(volume)?;
        }
        let Some(device) = self.device(&volume.id)? else { return Ok(()) };
        // LOOP_SET_CAPACITY.
        tool(Command::new("losetup").arg("--set-capacity").arg(&device))?;
        match (mounted, FileSystem::of(&data)?) {
            // Needs CAP_SYS_RESOURCE.
            (Some(_), Some(FileSystem::Ext4)) => tool(Command::new("resize2fs").arg(&device)),
            (Some(path), Some(FileSystem::Xfs)) => tool(Command::new("xfs_growfs").arg(path)),
            (None, _) | (_, None) => Ok(()),
        }
    }
}

/// A file system that the driver can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FileSystem {
    /// ext4: any size; growing it takes `CAP_SYS_RESOURCE`, which a container may lack.
    Ext4,
    /// XFS: 300 MiB and more.
    Xfs,
}

impl FileSystem {
    /// Its name, as the kernel and the specification have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The file system in a file, by its magic number.
    fn of(path: &Path) -> io::Result<Option<Self>> {
        let mut file = File::open(path)?;
        let mut is = |at: u64, magic: &[u8]| {
            let mut found = vec![0; magic.len()];
            file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut found)).is_ok() && found == magic
        };
        if is(0, b"XFSB") {
            return Ok(Some(Self::Xfs));
        }
        Ok(is(1024 + 56, &[0x53, 0xef]).then_some(Self::Ext4))
    }
}

/// A folder's name for a handle, which may be anything.
fn file_name(id: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if (1..=100).contains(&id.len()) && id.bytes().all(plain) {
        return format!("v-{id}");
    }
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    format!("h-{:016x}", hasher.finish())
}

fn tool(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("{command:?}: {}: {text}", output.status)))
}

pub(crate) fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
