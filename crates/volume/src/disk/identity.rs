//! What is on a device, and whether it is what the record says.

use refloat_record::Verbatim;
use serde::{Deserialize, Serialize};

use super::Words;
use crate::{Problem, VolumeError};

/// What the record keeps of a device: enough to know it again after its name has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    /// The device node.
    pub device: String,
    /// The UUID of its file system.
    #[serde(default, rename = "fsUUID", skip_serializing_if = "Option::is_none")]
    pub fs_uuid: Option<String>,
    /// The type of its file system.
    #[serde(default)]
    pub fs_type: String,
    /// Set while it is being formatted, after it was found to be blank: the kernel's number of this very disk in this
    /// boot. Half a file system on it is then ours, and formatting starts anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formatting: Option<DiskNumber>,
}

/// Which disk a device node stands for in this boot.
///
/// # Source
/// `diskseq` of `/sys/dev/block/<major>:<minor>/` (Linux 5.15): never used again within one boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DiskNumber {
    /// Device number, `major:minor`.
    pub number: String,
    /// Sequence number of the disk.
    pub sequence: String,
}

impl Identity {
    /// What a record says of a volume's device, if anything, from the whole `providerInfo` or a part of it.
    pub(crate) fn recorded(info: Option<&Verbatim>, shown: &str) -> Result<Option<Self>, VolumeError> {
        info.map(Verbatim::parse).transpose().map_err(|error| {
            VolumeError::Refused(Problem::new(
                "OtherDevice",
                format!("what the record says of {shown} cannot be read: {error}"),
                "the record was changed by hand; correct it, see `refloat record show`",
            ))
        })
    }

    pub(crate) fn to_verbatim(&self) -> Verbatim {
        Verbatim::from_value(&serde_json::to_value(self).expect("text fields only"))
    }
}

/// What `blkid` says is on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing that it knows.
    Nothing,
    /// A file system or another signature.
    Signature {
        /// Its type.
        kind: String,
        /// Its UUID.
        uuid: Option<String>,
    },
    /// A partition table.
    Partitions(String),
    /// Signatures that contradict each other.
    Ambivalent,
}

/// Reads what `blkid -p -o export` printed. `code` is its exit code.
///
/// # Source
/// `blkid(8)`: 0 found, 2 nothing found, 8 ambivalent.
pub(super) fn parse_blkid(code: i32, stdout: &str) -> Option<Found> {
    let value = |key: &str| {
        stdout
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(unescape)
            .filter(|v| !v.is_empty())
    };
    match code {
        0 => match (value("TYPE"), value("PTTYPE")) {
            (Some(kind), _) => Some(Found::Signature { kind, uuid: value("UUID") }),
            (None, Some(table)) => Some(Found::Partitions(table)),
            (None, None) => Some(Found::Ambivalent),
        },
        // With nothing found there is nothing to print either.
        2 if stdout.trim().is_empty() => Some(Found::Nothing),
        8 => Some(Found::Ambivalent),
        _ => None,
    }
}

/// `blkid -o export` puts a backslash before what a shell would take for more than a character.
fn unescape(text: &str) -> String {
    text.chars().filter(|c| *c != '\\').collect()
}

/// What is to be done with a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// It has nothing on it that is known: make this file system.
    Format {
        /// The file system's type.
        fs_type: String,
        /// Whether this was begun and interrupted; else it must be truly blank.
        again: bool,
    },
    /// Mount what it has.
    Use {
        /// The file system's type.
        fs_type: String,
    },
}

/// What the decision about a device depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    /// The device node.
    pub device: &'a str,
    /// What is on it.
    pub found: &'a Found,
    /// The file system that the volume asks for, if it does.
    pub wanted: Option<&'a str>,
    /// Whether the volume is read-only.
    pub read_only: bool,
    /// What the record says of it.
    pub before: Option<&'a Identity>,
    /// Which disk this is, if the record is of this boot.
    pub disk: Option<&'a DiskNumber>,
    /// What a message calls the volume's fields.
    pub words: Words,
}

/// Signatures that are no file systems, and cannot be mounted.
const NO_FILE_SYSTEM: [&str; 6] = ["swap", "crypto_LUKS", "BitLocker", "drbd", "bcache", "VMFS"];

/// Decides what to do with a device. Whatever is not surely right is refused; nothing that may be data is formatted.
pub(super) fn decide(question: Question<'_>) -> Result<Action, Problem> {
    let Question { device, found, wanted, read_only, before, disk, words } = question;
    let recorded = before.and_then(|b| b.fs_uuid.as_deref());
    let other = |now: String| {
        Problem::new(
            "OtherDevice",
            format!(
                "{device} is not the device of this volume: the record knows the file system {}, and now {now}",
                recorded.unwrap_or("without a UUID")
            ),
            format!("{}, or look where the recorded file system is now: blkid -U UUID", words.other_device),
        )
    };
    match found {
        Found::Signature { kind, uuid } => {
            if kind.ends_with("_member") || NO_FILE_SYSTEM.contains(&kind.as_str()) {
                return Err(Problem::new(
                    "NoFileSystem",
                    format!("{device} holds {kind}, which is no file system; it was not touched"),
                    format!("{}; if its content is not needed, remove it with wipefs", words.no_file_system),
                ));
            }
            if recorded.is_some() && recorded != uuid.as_deref() {
                return Err(other(uuid.as_ref().map_or("it has none".into(), |u| format!("it has {u}"))));
            }
            if let Some(wanted) = wanted
                && wanted != kind
            {
                return Err(Problem::new(
                    "OtherFileSystem",
                    format!("{device} has the file system {kind}, and the volume asks for {wanted}"),
                    format!("correct {}, or use another device", words.fs_type),
                ));
            }
            Ok(Action::Use { fs_type: kind.clone() })
        }
        Found::Partitions(table) => Err(Problem::new(
            "NoFileSystem",
            format!("{device} has a partition table ({table}); it was not touched"),
            words.partitions,
        )),
        Found::Ambivalent => Err(Problem::new(
            "NoFileSystem",
            format!("{device} has signatures that contradict each other; it was not touched"),
            "see wipefs --no-act for what is on it",
        )),
        Found::Nothing => {
            if recorded.is_some() {
                return Err(other("it has none".into()));
            }
            if read_only {
                return Err(Problem::new(
                    "UnformattedReadOnly",
                    format!("{device} has no file system, and a read-only volume is never formatted"),
                    "make the file system by hand, or let a pod that may write use the volume first",
                ));
            }
            let begun = before.and_then(|b| b.formatting.as_ref().map(|n| (n, b.fs_type.as_str())));
            match (begun, disk) {
                (Some((begun, fs_type)), Some(disk)) if begun == disk && wanted.is_none_or(|w| w == fs_type) => {
                    Ok(Action::Format { fs_type: fs_type.to_owned(), again: true })
                }
                _ => Ok(Action::Format { fs_type: wanted.unwrap_or("ext4").to_owned(), again: false }),
            }
        }
    }
}
