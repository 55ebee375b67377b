//! The file calls that the store needs, behind one small trait, so that a simulated disk which forgets what was
//! not synced can stand under the store in tests.

/// The file calls of the store.
pub trait Disk: Send + Sync {}

/// The real file system, by descriptors of folders opened once.
#[derive(Debug)]
pub struct RealDisk {}
