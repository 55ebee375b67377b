//! `volume.refloat.dev/v1`: its files to the hub types, and back.
//!
//! As long as v1 is the newest version, its fields are those of the hub types. When they part, this module gets types
//! of its own and the two functions convert; the golden files in `tests/golden` stay as they are.

use serde::Deserialize as _;

use super::{Extra, Stored, extra::KeepUnknown};
use crate::{DeviceMount, Driver, PodCheckpoint, PodVolume, Record, RecordKind};

/// Appends the record's own fields, each with a comma before it.
pub(super) fn write_fields(record: &Record, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    let written = match record {
        Record::DeviceMount(r) => serde_json::to_writer(&mut *bytes, r),
        Record::PodVolume(r) => serde_json::to_writer(&mut *bytes, r),
        Record::PodCheckpoint(r) => serde_json::to_writer(&mut *bytes, r),
        Record::Driver(r) => serde_json::to_writer(&mut *bytes, r),
    };
    written.expect("records have string keys, and memory takes all");
    // `{…}` becomes `,…`.
    bytes[start] = b',';
    bytes.pop();
}

/// Reads a record of this kind from the whole text of a file.
pub(super) fn read(kind: RecordKind, text: &str) -> Result<Stored, serde_json::Error> {
    let mut extra = Extra::default();
    let mut json = serde_json::Deserializer::from_str(text);
    let keep = KeepUnknown::new(&mut json, &mut extra);
    let record = match kind {
        RecordKind::DeviceMount => Record::DeviceMount(DeviceMount::deserialize(keep)?),
        RecordKind::PodVolume => Record::PodVolume(PodVolume::deserialize(keep)?),
        RecordKind::PodCheckpoint => Record::PodCheckpoint(PodCheckpoint::deserialize(keep)?),
        RecordKind::Driver => Record::Driver(Driver::deserialize(keep)?),
    };
    json.end()?;
    Ok(Stored { record, extra })
}
