//! What a record says of a block volume.

use serde::{Deserialize, Serialize};

use crate::{RecordedMount, RelPath};

/// The number of a device as the kernel knows it. Text of the form `major:minor` in a record.
///
/// # Source
/// `makedev(3)`; the form is that of mountinfo and sysfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DeviceNumber {
    /// Which driver.
    pub major: u32,
    /// Which of the driver's devices.
    pub minor: u32,
}

impl std::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl From<DeviceNumber> for String {
    fn from(number: DeviceNumber) -> Self {
        number.to_string()
    }
}

/// The text is not `major:minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a device number is two decimal numbers with a colon between them")]
pub struct NoDeviceNumber;

impl TryFrom<String> for DeviceNumber {
    type Error = NoDeviceNumber;

    fn try_from(text: String) -> Result<Self, NoDeviceNumber> {
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten().ok_or(NoDeviceNumber)
        };
        let (major, minor) = text.split_once(':').ok_or(NoDeviceNumber)?;
        Ok(Self { major: number(major)?, minor: number(minor)? })
    }
}

/// How a block volume is presented to its pod: the device is bound over a file of its own at `map_path`, the pod's
/// `volumeDevices` folder has a symlink, and a loop device over the bound file holds the device open. (The loop device
/// is not recorded: it is found by its backing file, and carries a mark that is made from `map_path`.)
///
/// # Source
/// `MapBlockVolume` in `pkg/volume/util/util.go` of Kubernetes v1.36.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedBlock {
    /// The file that the device is bound over, relative to the node root: `<global map path>/<pod uid>`.
    pub map_path: RelPath,
    /// What the symlink says, absolute: the device (`/dev/sdb`), or the path that a CSI driver published it at.
    pub link_target: String,
    /// The bind mount that is or will be at `map_path`. Absent while what is to be bound is not there yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<RecordedMount>,
    /// The device that is bound. Numbers change between boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceNumber>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (text, number) in
            [("8:16", Some((8, 16))), ("0:0", Some((0, 0))), ("4294967295:1", Some((u32::MAX, 1)))].into_iter().chain(
                ["", ":", "8", "8:", ":1", "8:1:2", "+8:1", "8:-1", " 8:1", "4294967296:0", "a:b"].map(|t| (t, None)),
            )
        {
            let read = DeviceNumber::try_from(text.to_owned()).ok();
            assert_eq!(read.map(|n| (n.major, n.minor)), number, "{text:?}");
            if let Some(read) = read {
                assert_eq!(read.to_string(), text);
            }
        }
    }
}
