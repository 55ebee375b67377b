//! What the running kernel can do, asked once, and the switch that forces the older ways.

/// The mount calls to use. Made once at start and handed around; cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    features: KernelFeatures,
}

/// What the kernel has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is one independent yes or no
pub struct KernelFeatures {
    /// `fsopen`, `fsmount`, `move_mount`, `open_tree` (Linux 5.2).
    pub new_mount_calls: bool,
    /// `mount_setattr` (Linux 5.12).
    pub mount_setattr: bool,
    /// `listmount` and `statmount` with every field that the table needs (Linux 6.15; source and options came
    /// after 6.8).
    pub listmount: bool,
    /// Unique mount ids by `statx` (Linux 6.8).
    pub unique_mount_id: bool,
    /// `openat2` (Linux 5.6). Without it Refloat does not act: there is no safe way to walk.
    pub openat2: bool,
}

impl Kernel {
    /// Asks the kernel by trying each call harmlessly. Everything beyond plain `mount(2)` and mountinfo is left
    /// unused if the environment variable `REFLOAT_FORCE_OLD_MOUNT_API` is set and not empty.
    pub fn detect() -> Self {
        todo!()
    }

    /// A kernel with just these features, for tests of the older ways.
    pub fn with_features(features: KernelFeatures) -> Self {
        Self { features }
    }

    /// What it has.
    pub fn features(self) -> KernelFeatures {
        self.features
    }
}
