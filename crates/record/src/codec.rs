//! A record as the bytes of its file, and back.
//!
//! A file is one line of JSON with `apiVersion` and `kind` first and `checksum` last:
//! `{"apiVersion":"volume.refloat.dev/v1","kind":"PodVolume", … ,"checksum":"crc32c:0a1b2c3d"}`. The checksum covers
//! every byte before `,"checksum"`, so that also a change which leaves the JSON equal (an editor's, say) is seen.

use crate::{Record, RecordKey, UnreadableReason};

/// The group and version of the records that this program writes.
pub const API_VERSION: &str = "volume.refloat.dev/v1";

/// The largest record file that is read, in bytes. A Kubernetes object is limited to 1.5 MiB by etcd; a record
/// holds at most two.
pub const MAX_BYTES: u64 = 4 << 20;

/// The bytes of the record's file.
pub fn encode(record: &Record) -> Vec<u8> {
    let _ = record;
    todo!()
}

/// The record in the bytes of a file, or what is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<Record, UnreadableReason> {
    let _ = bytes;
    todo!()
}

/// The file name for a record: readable in its parts, unique by a hash, at most 255 bytes whatever the names.
pub fn file_name(key: &RecordKey) -> String {
    let _ = key;
    todo!()
}
