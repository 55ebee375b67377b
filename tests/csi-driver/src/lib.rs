//! A CSI driver for the tests. It really mounts, follows the specification (`csi-sanity` says so), and fails on order.
//!
//! A volume is a file below the state folder. Staged, it is attached to a loop device and mounted (ext4 or XFS);
//! published, it is bound from there. Without `STAGE_UNSTAGE` the device is mounted at the target itself. A block
//! volume's target is a file that the device node is bound over. An inline ephemeral volume is a tmpfs. What is attached
//! and mounted is asked of the kernel each time, so the driver may be killed and started again at any instruction.
//!
//! [`Process`] runs it as a process of its own: the program `refloat-test-csi-driver`, or the test program itself, started
//! again ([`run_if_driver`]). [`Fault`]s are ordered by files, which are read at each call. The journal has every call
//! and how it ended.

// What the tests' driver looks at is its own, and does not hang.
#![allow(clippy::disallowed_methods)]

mod answer;
mod controller;
mod disk;
mod fault;
mod identity;
mod journal;
mod mounts;
mod node;
mod options;
mod process;
mod registration;
mod server;
mod work;

pub use disk::FileSystem;
pub use fault::{Action, Fault, Faults};
pub use journal::{Entry, Event, read as read_journal};
pub use options::Options;
pub use process::{AS_DRIVER, Process, Program, run_if_driver};
pub use server::run;
