//! Linux mounts for Refloat: the mount table, making mounts, undoing them, and removing folders without ever
//! following a symlink or crossing a mount.
//!
//! [`MountTable`] is one immutable value with look-ups that do not scan; [`TableReader`] makes it, from
//! `listmount(2)`/`statmount(2)` where the kernel has them and from mountinfo elsewhere; [`TableWatch`] says when it
//! is out of date. [`NodeRoot`] is the folder that everything happens beneath: it opens, makes, lists, unmounts
//! and removes by descriptors only. [`NewMount`] is a mount that no path shows yet.
//!
//! This is the only crate that makes mount system calls, and `sys` its only module with `unsafe`.

#[doc(hidden)]
pub mod fuzz;
mod kernel;
pub mod loopdev;
pub mod mountinfo;
mod namespace;
mod new_mount;
mod root;
mod sys;
mod table;
mod watch;

pub use kernel::{Kernel, KernelFeatures};
pub use namespace::{NamespaceError, enter_private_namespace};
pub use new_mount::{BindOptions, MountError, NewMount, mount_by_helper, set_bind_options_again};
pub use root::{
    Dir, DirEntry, EntryKind, Liveness, NodeRoot, PathError, PendingUnmount, RemoveError, RootPlace, Standing,
    UnmountError, UnmountHow, write_within,
};
pub use table::{Device, Mount, MountTable, TableError, TableReader, UniqueMountId};
pub use watch::TableWatch;
