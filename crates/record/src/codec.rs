//! A record as the bytes of its file, and back.
//!
//! A file is one line of JSON with `apiVersion` and `kind` first and `checksum` last:
//! `{"apiVersion":"volume.refloat.dev/v1","kind":"PodVolume", … ,"checksum":"crc32c:0a1b2c3d"}`. The checksum covers
//! every byte before `,"checksum"`, so that also a change which leaves the JSON equal (an editor's, say) is seen.
//! A newline ends the file; nothing may be missing after the checksum either.
//!
//! Versions: [`Record`] is the hub that the program works with. Each version has one module with one function each
//! way between its files and the hub; `v1` is the only one so far. A file of a version that is not known here is
//! [`UnreadableReason::Newer`]: never guessed at, never changed.
//!
//! A later minor release may add fields at a record's top level. This program does not know them, keeps them as
//! [`Extra`], and writes them again when it updates the record.

mod extra;
mod file_name;
#[cfg(test)]
mod tests;
mod v1;

pub use extra::Extra;
pub use file_name::{file_name, key_of_file_name};

use std::borrow::Cow;
use std::io::Write as _;

use crate::{
    DriverName, PluginName, PodUid, Record, RecordKey, RecordKind, SpecName, UniqueVolumeName, UnreadableReason,
    VolumeMode,
};

/// The group and version of the records that this program writes.
pub const API_VERSION: &str = "volume.refloat.dev/v1";

/// The group of all records, whatever their version.
const GROUP: &str = "volume.refloat.dev/";

/// The largest record file that is read, in bytes. A Kubernetes object is limited to 1.5 MiB by etcd; a record
/// holds at most two.
pub const MAX_BYTES: u64 = 4 << 20;

/// What stands between the checked bytes and the eight hexadecimal digits.
const CHECKSUM: &str = ",\"checksum\":\"crc32c:";
/// What stands after them.
const END: &str = "\"}\n";
/// The length of everything after the checked bytes.
const TAIL: usize = CHECKSUM.len() + 8 + END.len();

/// A record with the fields of its file that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The record.
    pub record: Record,
    /// Top-level fields that a later minor release wrote. Empty as a rule.
    pub extra: Extra,
}

/// The bytes of the record's file.
pub fn encode(record: &Record) -> Vec<u8> {
    encode_with(record, &Extra::default())
}

/// The bytes of the record's file, with these unknown fields kept.
pub fn encode_with(record: &Record, extra: &Extra) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2048);
    bytes.extend_from_slice(b"{\"apiVersion\":\"");
    bytes.extend_from_slice(API_VERSION.as_bytes());
    bytes.extend_from_slice(b"\",\"kind\":\"");
    bytes.extend_from_slice(record.kind().name().as_bytes());
    bytes.push(b'"');
    v1::write_fields(record, &mut bytes);
    extra.write_fields(&mut bytes);
    seal(&mut bytes);
    bytes
}

/// Appends the checksum and the end.
fn seal(bytes: &mut Vec<u8>) {
    let sum = crc32c::crc32c(bytes);
    write!(bytes, "{CHECKSUM}{sum:08x}{END}").expect("writing to memory");
}

/// The file with a checksum that is right for what stands before it (before its old one, if it has one); none if that
/// does not end as an object does. For fuzzing alone: a checksum must not be repaired.
pub(crate) fn reseal(bytes: &[u8]) -> Option<Vec<u8>> {
    let body = match split(bytes) {
        Some((body, _)) => body,
        None => bytes.trim_ascii_end().strip_suffix(b"}")?,
    };
    let mut sealed = body.to_vec();
    seal(&mut sealed);
    Some(sealed)
}

/// The record in the bytes of a file, or what is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<Record, UnreadableReason> {
    decode_stored(bytes).map(|s| s.record)
}

/// The record in the bytes of a file, with the fields that this version does not know.
pub fn decode_stored(bytes: &[u8]) -> Result<Stored, UnreadableReason> {
    check(bytes)?;
    let text = std::str::from_utf8(bytes).map_err(|e| malformed(&e))?;
    let (version, kind) = match fast_header(text) {
        Some(kind) => (Cow::Borrowed(API_VERSION), Cow::Borrowed(kind)),
        None => header(text).map_err(|e| malformed(&e))?,
    };
    match version.as_ref() {
        API_VERSION => {}
        other if other.starts_with(GROUP) => return Err(UnreadableReason::Newer { version: other.to_owned() }),
        other => return Err(malformed(&format_args!("its apiVersion is {other:?}"))),
    }
    let Some(kind) = RecordKind::from_name(&kind) else {
        let expected = RecordKind::ALL.map(RecordKind::name).join(", ");
        return Err(UnreadableReason::WrongKind { found: kind.into_owned(), expected });
    };
    v1::read(kind, text).map_err(|e| malformed(&e))
}

/// The key that the content still tells, although it may be damaged or of a newer version. Only a hint: whoever uses
/// it compares [`file_name()`] of it with the file's name.
pub fn key_in(bytes: &[u8]) -> Option<RecordKey> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Pod {
        uid: PodUid,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Fields {
        kind: String,
        pod: Option<Pod>,
        plugin: Option<PluginName>,
        spec_name: Option<SpecName>,
        unique_name: Option<UniqueVolumeName>,
        name: Option<DriverName>,
        #[serde(default)]
        mode: VolumeMode,
    }
    let fields: Fields = serde_json::from_slice(bytes).ok()?;
    Some(match RecordKind::from_name(&fields.kind)? {
        RecordKind::DeviceMount => RecordKey::DeviceMount(fields.unique_name?),
        RecordKind::PodVolume => RecordKey::PodVolume {
            pod: fields.pod?.uid,
            plugin: fields.plugin?,
            spec_name: fields.spec_name?,
            mode: fields.mode,
        },
        RecordKind::PodCheckpoint => RecordKey::PodCheckpoint(fields.pod?.uid),
        RecordKind::Driver => RecordKey::Driver(fields.name?),
    })
}

fn malformed(error: &dyn std::fmt::Display) -> UnreadableReason {
    UnreadableReason::Malformed { detail: error.to_string() }
}

fn torn(detail: impl Into<String>) -> UnreadableReason {
    UnreadableReason::Torn { detail: detail.into() }
}

/// Whether the checksum is at its place and right.
fn check(bytes: &[u8]) -> Result<(), UnreadableReason> {
    let Some((body, found)) = split(bytes) else { return Err(without_checksum(bytes)) };
    let computed = format!("{:08x}", crc32c::crc32c(body));
    if found == computed.as_bytes() {
        return Ok(());
    }
    // A file that grew but whose last blocks never reached the disk reads as NULs there.
    if body.contains(&0) {
        return Err(torn("it holds NUL bytes"));
    }
    let found = format!("crc32c:{}", String::from_utf8_lossy(found));
    Err(UnreadableReason::Checksum { found, computed: format!("crc32c:{computed}") })
}

/// The checked bytes and the checksum's digits, if the file ends as a record must.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (body, tail) = bytes.split_at_checked(bytes.len().checked_sub(TAIL)?)?;
    let digits = tail.strip_prefix(CHECKSUM.as_bytes())?.strip_suffix(END.as_bytes())?;
    Some((body, digits))
}

/// Why a file does not end with a checksum.
fn without_checksum(bytes: &[u8]) -> UnreadableReason {
    if bytes.is_empty() {
        return torn("it is empty");
    }
    if bytes.contains(&0) {
        return torn("it holds NUL bytes");
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // Cut inside a character.
        Err(e) if e.error_len().is_none() => return torn(format!("it ends after {} bytes", bytes.len())),
        Err(e) => return malformed(&e),
    };
    match header(text) {
        Ok((version, _)) if version != API_VERSION && version.starts_with(GROUP) => {
            UnreadableReason::Newer { version: version.into_owned() }
        }
        Ok((version, _))
            if version == API_VERSION && text.ends_with('}') && split(&[bytes, b"\n"].concat()).is_some() =>
        {
            torn("its last byte, a newline, is missing")
        }
        Ok((version, _)) if version == API_VERSION => {
            malformed(&"it does not end with a checksum: it was written or laid out anew by another program")
        }
        Ok((version, _)) => malformed(&format_args!("its apiVersion is {version:?}")),
        Err(e) if e.is_eof() => torn(format!("it ends after {} bytes", bytes.len())),
        Err(e) => malformed(&e),
    }
}

/// The kind, if the file starts as this version writes it.
fn fast_header(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("{\"apiVersion\":\"")?.strip_prefix(API_VERSION)?.strip_prefix("\",\"kind\":\"")?;
    let (kind, _) = rest.split_once('"')?;
    (!kind.contains('\\')).then_some(kind)
}

/// Version and kind, wherever they stand.
fn header(text: &str) -> Result<(Cow<'_, str>, Cow<'_, str>), serde_json::Error> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Header<'a> {
        #[serde(borrow)]
        api_version: Cow<'a, str>,
        #[serde(borrow)]
        kind: Cow<'a, str>,
    }
    serde_json::from_str::<Header<'_>>(text).map(|h| (h.api_version, h.kind))
}
