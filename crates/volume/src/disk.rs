//! A block device with a file system, as some plugins' MountDevice has it: what is on it, a file system if it is truly blank,
//! a check, and the mount at the volume's global path.

mod blank;
mod identity;
mod mount;
#[cfg(test)]
mod tests;

pub(crate) use identity::Identity;
pub(crate) use mount::{Disk, is_missing, missing, mount};

/// What messages call the fields of a volume, and what they tell to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    /// What to do where the device is another one.
    pub(crate) other_device: &'static str,
    /// What to do where it holds something that is no file system.
    pub(crate) no_file_system: &'static str,
    /// The field of the file system's type.
    pub(crate) fs_type: &'static str,
    /// What to do where it has partitions.
    pub(crate) partitions: &'static str,
    /// What to do where another device is built on it.
    pub(crate) built_on: &'static str,
}

impl Words {
    /// Of a local volume.
    pub(crate) const LOCAL: Self = Self {
        other_device: "device names change between boots; give the PersistentVolume a path below /dev/disk/by-id",
        no_file_system: "correct spec.local.path",
        fs_type: "spec.local.fsType",
        partitions: "use one of its partitions as spec.local.path",
        built_on: "use the device that is built on it as spec.local.path",
    };

    /// Of an iSCSI volume.
    pub(crate) const ISCSI: Self = Self {
        other_device: "look whether the disk's content was replaced at the target",
        no_file_system: "correct the volume's targetPortal, iqn or lun",
        fs_type: "iscsi.fsType",
        ..Self::FC
    };

    /// Of a Fibre Channel volume.
    pub(crate) const FC: Self = Self {
        other_device: "look whether the disk's content was replaced on the array",
        no_file_system: "correct the volume's targetWWNs, lun or wwids",
        fs_type: "fc.fsType",
        partitions: "a volume is a whole disk: use one without partitions",
        built_on: "it is used for something else on this node: use another disk",
    };
}
