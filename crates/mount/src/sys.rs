//! The system calls that rustix does not have: `listmount`, `statmount`, `mount_setattr`, and `unshare`.
//! The only module with `unsafe`.
#![allow(unsafe_code)]
