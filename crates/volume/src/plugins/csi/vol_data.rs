//! `vol_data.json`, the kubelet's file about a CSI volume.
//!
//! # Source
//! `pkg/volume/csi/csi_util.go` (`saveVolumeData`, `loadVolumeData`) of Kubernetes v1.36. All values are texts; no version, no
//! checksum. The kubelet writes it in place, so that a crash leaves it torn.

use std::fmt;
use std::io::Write as _;
use std::path::Path;

use refloat_mount::Dir;
use refloat_record::RelPath;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::source::{wrong_driver_name, wrong_handle};
use crate::{Host, VolumeError, layout};

/// Another program's file about a volume, as it was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForeignFile {
    /// It says this.
    Good(VolData),
    /// It says nothing that can be used.
    Bad {
        /// What is wrong with it.
        why: String,
    },
}

impl ForeignFile {
    /// Reads the file's text.
    pub fn parse(text: &[u8]) -> Self {
        let bad = |why: &str| Self::Bad { why: why.to_owned() };
        if text.is_empty() {
            return bad("it is empty");
        }
        if text.contains(&0) {
            return bad("it holds NUL bytes");
        }
        match serde_json::from_slice::<VolData>(text) {
            Ok(data) if data.driver_name.is_empty() => bad("it names no driver"),
            // It becomes a part of paths.
            Ok(data) if wrong_driver_name(&data.driver_name).is_some() => bad("what it names as driver can be none"),
            Ok(data) if data.volume_handle.is_empty() => bad("it names no volume"),
            Ok(data) if wrong_handle(&data.volume_handle) => bad("what it names as volume can be none"),
            Ok(data) => Self::Good(data),
            Err(error) if error.is_eof() => bad("it is torn"),
            Err(_) => bad("it is no JSON object of texts with a driver and a volume"),
        }
    }

    /// What it says, if that can be used.
    pub fn good(&self) -> Option<&VolData> {
        match self {
            Self::Good(data) => Some(data),
            Self::Bad { .. } => None,
        }
    }
}

/// What the file says. Keys are in the order that the kubelet writes them in (sorted); unknown ones are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VolData {
    /// The name of the `VolumeAttachment`, in a pod's folder.
    #[serde(default, rename = "attachmentID", skip_serializing_if = "Option::is_none")]
    pub attachment_id: Option<String>,
    /// The driver.
    #[serde(default, rename = "driverName")]
    pub driver_name: String,
    /// The node, in a pod's folder.
    #[serde(default, rename = "nodeName", skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The label that it is mounted with.
    #[serde(default, rename = "seLinuxMountContext", skip_serializing_if = "Option::is_none")]
    pub selinux_mount_context: Option<String>,
    /// The spec's name, in a pod's folder.
    #[serde(default, rename = "specVolID", skip_serializing_if = "Option::is_none")]
    pub spec_vol_id: Option<String>,
    /// The volume's id.
    #[serde(default, rename = "volumeHandle")]
    pub volume_handle: String,
    /// `Persistent` or `Ephemeral`, in a pod's folder; absent in files of old kubelets, which means persistent.
    #[serde(default, rename = "volumeLifecycleMode", skip_serializing_if = "Option::is_none")]
    pub lifecycle_mode: Option<String>,
}

impl VolData {
    /// Whether it is an inline volume.
    pub fn is_ephemeral(&self) -> bool {
        self.lifecycle_mode.as_deref() == Some("Ephemeral")
    }

    /// The file's text.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("texts");
        text.push(b'\n');
        text
    }
}

impl fmt::Display for VolData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "driver {:?}, volume {:?}", self.driver_name, self.volume_handle)
    }
}

/// The file while it is written.
pub const TEMPORARY: &str = ".vol_data.json.refloat";

/// Writes the file into a folder (relative to the node root) that exists, unless it says the same already. Whoever reads
/// it sees the old text or the new one, also after a power cut.
pub(super) fn write(folder: &Dir, data: &VolData) -> Result<(), VolumeError> {
    let io = |doing: &'static str, name: &str, source: Errno| VolumeError::Io {
        doing,
        path: folder.path().join(name),
        source: source.into(),
    };
    let text = data.text();
    if read_at(folder).is_ok_and(|old| old.as_deref() == Some(&text[..])) {
        return Ok(());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = || rustix::fs::openat(folder, TEMPORARY, flags, Mode::from_raw_mode(0o644));
    let fd = match create() {
        // Left by a crash.
        Err(Errno::EXIST) => rustix::fs::unlinkat(folder, TEMPORARY, AtFlags::empty()).and_then(|()| create()),
        created => created,
    };
    let mut file = std::fs::File::from(fd.map_err(|e| io("make the file", TEMPORARY, e))?);
    let written = file.write_all(&text).and_then(|()| file.sync_data()).map_err(|source| VolumeError::Io {
        doing: "write the file",
        path: folder.path().join(TEMPORARY),
        source,
    });
    let renamed = written.and_then(|()| {
        rustix::fs::renameat(folder, TEMPORARY, folder, layout::VOL_DATA)
            .map_err(|e| io("rename a file to", layout::VOL_DATA, e))
    });
    if renamed.is_err() {
        // No half-made file stays; if it does, the next write removes it.
        let _ = rustix::fs::unlinkat(folder, TEMPORARY, AtFlags::empty());
    }
    renamed
}

/// Reads another program's file, as evidence, in a folder beneath one that is open. `None` if there is none, or if a mount
/// hides it. No symlink is followed and no mount crossed.
pub fn look(open: &Dir, folder: &Path) -> Option<ForeignFile> {
    match crate::foreign::read_at(open, &folder.join(layout::VOL_DATA)) {
        Ok(None) | Err(Errno::NOTDIR | Errno::XDEV) => None,
        Ok(Some(text)) => Some(ForeignFile::parse(&text)),
        Err(error) => Some(ForeignFile::Bad { why: format!("it cannot be read: {error}") }),
    }
}

/// Reads the file in a folder that is open. `None` if there is none. No symlink is followed, no mount crossed.
fn read_at(folder: &Dir) -> Result<Option<Vec<u8>>, Errno> {
    crate::foreign::read_at(folder, Path::new(layout::VOL_DATA))
}

/// Removes the file, and one that a crash left half-made, from a folder relative to the node root.
pub(super) fn remove(host: &Host, folder: &Path) -> Result<(), VolumeError> {
    for name in [TEMPORARY, layout::VOL_DATA] {
        host.root.remove_file(&folder.join(name)).map_err(VolumeError::Remove)?;
    }
    Ok(())
}

/// The folder that a mount's file is in.
pub(super) fn folder_of(mount: &RelPath) -> &Path {
    mount.as_path().parent().unwrap_or(Path::new("."))
}
