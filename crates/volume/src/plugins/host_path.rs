//! `hostPath`: the host's own path. Nothing is mounted and no folder is made for the pod.
//!
//! SetUp checks that the path is what its type says and makes it where the type asks for that. The path is the
//! host's, so symlinks in it are followed, as the kubelet does; what is below the node root is not concerned.
//! TearDown has nothing to do: the path was there before the pod and stays. The record is all that shows a
//! hostPath volume; with it the pod's subPath mounts are found again, which in the kubelet no folder leads to.
//!
//! # Source
//! `pkg/volume/hostpath` of Kubernetes v1.36.

use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use k8s_openapi::api::core::v1::HostPathVolumeSource;
use refloat_record::{PluginName, PodRef, RelPath};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::{
    Capabilities, Plugin, Presence, Problem, Reconstruction, SetUp, SpecError, SpecSource, TearDown, VolumeError,
    VolumeSpec,
};

/// The plugin `kubernetes.io/host-path`.
#[derive(Debug, Clone, Copy)]
pub struct HostPath;

/// What must be at the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Whatever: nothing is checked.
    Unset,
    DirectoryOrCreate,
    Directory,
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" => Self::Unset,
            "DirectoryOrCreate" => Self::DirectoryOrCreate,
            "Directory" => Self::Directory,
            "FileOrCreate" => Self::FileOrCreate,
            "File" => Self::File,
            "Socket" => Self::Socket,
            "CharDevice" => Self::CharDevice,
            "BlockDevice" => Self::BlockDevice,
            _ => return None,
        })
    }

    fn wants(self) -> Option<FileType> {
        match self {
            Self::Unset => None,
            Self::DirectoryOrCreate | Self::Directory => Some(FileType::Directory),
            Self::FileOrCreate | Self::File => Some(FileType::RegularFile),
            Self::Socket => Some(FileType::Socket),
            Self::CharDevice => Some(FileType::CharacterDevice),
            Self::BlockDevice => Some(FileType::BlockDevice),
        }
    }
}

fn source(spec: &SpecSource) -> Option<&HostPathVolumeSource> {
    match spec {
        SpecSource::Inline { volume } => volume.typed.host_path.as_ref(),
        SpecSource::Persistent { persistent_volume, .. } => {
            persistent_volume.typed.spec.as_ref().and_then(|s| s.host_path.as_ref())
        }
    }
}

fn parts(spec: &VolumeSpec) -> Result<(&str, Kind), SpecError> {
    let field = |field: &str, why: String| SpecError::Field {
        volume: spec.source.volume().typed.name.clone(),
        field: format!("hostPath.{field}"),
        why,
    };
    let source = source(&spec.source).ok_or_else(|| field("path", "is missing".into()))?;
    if let Some(why) = super::wrong_host_path(&source.path) {
        return Err(field("path", why));
    }
    let type_ = source.type_.as_deref().unwrap_or_default();
    let kind =
        Kind::parse(type_).ok_or_else(|| field("type", format!("is {type_:?}, which is no type of hostPath")))?;
    Ok((&source.path, kind))
}

impl Plugin for HostPath {
    fn name(&self) -> PluginName {
        PluginName::new("kubernetes.io/host-path").expect("a constant name")
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            attachable: false,
            device_mountable: false,
            block: false,
            content: false,
            verify: true,
            binds: false,
            reconstruction: Reconstruction::FromRecord,
            presence: Presence::Record,
        }
    }

    fn supports(&self, spec: &SpecSource) -> bool {
        source(spec).is_some()
    }

    fn check(&self, spec: &VolumeSpec) -> Result<(), SpecError> {
        parts(spec).map(drop)
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, SpecError> {
        parts(spec).map(|(path, _)| path.to_owned())
    }

    fn path(&self, _: &PodRef, _: &VolumeSpec) -> Option<RelPath> {
        None
    }

    fn host_path(&self, spec: &VolumeSpec) -> Option<String> {
        parts(spec).ok().map(|(path, _)| path.to_owned())
    }

    fn set_up(&self, step: SetUp<'_>) -> Result<(), VolumeError> {
        let (path, kind) = parts(step.spec).map_err(|error| {
            VolumeError::Refused(Problem::new("BadSpec", error.to_string(), "correct the pod's volume"))
        })?;
        let path = Path::new(path);
        let Some(wanted) = kind.wants() else { return step.announce(None, None).map(drop) };
        let create = matches!(kind, Kind::DirectoryOrCreate | Kind::FileOrCreate);
        let Some(found) = file_type(path)? else {
            if !create {
                return Err(refused(
                    "HostPathMissing",
                    path,
                    &format!("nothing is there, and its type {kind:?} asks for it"),
                    "make it on this node, or use the type DirectoryOrCreate or FileOrCreate",
                ));
            }
            step.announce(None, None)?;
            if kind == Kind::DirectoryOrCreate {
                make_dirs(path)?;
            } else {
                make_file(path)?;
            }
            // Somebody may have been faster and made something else.
            return match file_type(path)? {
                Some(found) => agree(path, wanted, found),
                None => Err(io("find again", path, Errno::NOENT)),
            };
        };
        agree(path, wanted, found)?;
        step.announce(None, None).map(drop)
    }

    fn tear_down(&self, _: &TearDown<'_>) -> Result<(), VolumeError> {
        Ok(())
    }
}

fn agree(path: &Path, wanted: FileType, found: FileType) -> Result<(), VolumeError> {
    if wanted == found {
        return Ok(());
    }
    let why = format!("it is {}, and its type asks for {}", word(found), word(wanted));
    Err(refused("HostPathType", path, &why, "correct the volume's type or path"))
}

fn word(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a folder",
        FileType::RegularFile => "a regular file",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Symlink => "a symlink",
        FileType::Fifo => "a pipe",
        FileType::Unknown => "something unknown",
    }
}

fn refused(code: &'static str, path: &Path, why: &str, hint: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(code, format!("the host path {} cannot be used: {why}", path.display()), hint))
}

fn io(doing: &'static str, path: &Path, source: Errno) -> VolumeError {
    VolumeError::Io { doing, path: path.to_path_buf(), source: source.into() }
}

/// What is at the path, symlinks followed; opened only by name, so that no device or pipe notices.
fn file_type(path: &Path) -> Result<Option<FileType>, VolumeError> {
    let fd = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io("open", path, error)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(|error| io("look at", path, error))?;
    Ok(Some(FileType::from_raw_mode(stat.st_mode)))
}

/// Makes the folders that are missing, 0755 whatever the umask.
fn make_dirs(path: &Path) -> Result<(), VolumeError> {
    let mut at = std::path::PathBuf::new();
    for part in path.components() {
        at.push(part);
        if part == Component::RootDir {
            continue;
        }
        match rustix::fs::mkdir(&at, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let dir = rustix::fs::open(&at, flags, Mode::empty()).map_err(|e| io("open the new folder", &at, e))?;
                chmod(&dir, 0o755, &at)?;
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(io("make the folder", &at, error)),
        }
    }
    Ok(())
}

/// Makes an empty file, 0644 whatever the umask. Its folder must be there, as for the kubelet.
fn make_file(path: &Path) -> Result<(), VolumeError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)) {
        Ok(file) => chmod(&file, 0o644, path),
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(io("make the file", path, error)),
    }
}

fn chmod(fd: &OwnedFd, mode: u32, path: &Path) -> Result<(), VolumeError> {
    rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)).map_err(|error| io("set the mode of", path, error))
}
