//! Reading all records in one pass.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{Known, Loaded, OpenError, Store, TEMP, Unreadable, UnreadableReason, set_aside, shown};
use crate::codec::{self, Stored};
use crate::disk::{Disk, EntryType, FileRead};
use crate::{DeviceMount, Record, RecordKey, RecordKind};

/// From this many files on, two threads read: a thread costs about as much as reading twenty.
const SPLIT: usize = 256;

/// A record file and what is wrong with it, if anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Where it is.
    pub path: PathBuf,
    /// The kind of its folder.
    pub kind: RecordKind,
    /// The record's key, where content or file name tell.
    pub key: Option<RecordKey>,
    /// Its size in bytes, where it could be asked.
    pub size: Option<u64>,
    /// What is wrong with it.
    pub result: Result<(), UnreadableReason>,
}

/// A file that was looked at.
pub(super) struct Examined {
    kind: RecordKind,
    name: OsString,
    size: Option<u64>,
    /// For bad files: the key that content or name tell.
    key: Option<RecordKey>,
    pub(super) outcome: Result<Stored, UnreadableReason>,
}

/// An entry to look at.
struct Found {
    kind: RecordKind,
    name: OsString,
    entry: EntryType,
}

/// A temporary file.
type Temp = (RecordKind, OsString);

/// The record or what is wrong with the file; none if there is no such file (any more).
pub(super) fn examine<D: Disk>(
    disk: &D,
    folder: &D::Folder,
    kind: RecordKind,
    name: &OsStr,
    buffer: &mut Vec<u8>,
) -> Option<Examined> {
    let mut size = None;
    let outcome = match disk.read(folder, name, codec::MAX_BYTES, buffer) {
        Ok(FileRead::Whole) => {
            size = Some(buffer.len() as u64);
            codec::decode_stored(buffer).and_then(|stored| belongs(stored, kind, name))
        }
        Ok(FileRead::NotAFile(what)) => Err(UnreadableReason::NotAFile { what: what.into() }),
        Ok(FileRead::TooLarge(bytes)) => {
            size = Some(bytes);
            Err(UnreadableReason::TooLarge { bytes })
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
        Err(e) => Err(UnreadableReason::Io { error: e.to_string() }),
    };
    let key = outcome.is_err().then(|| key_of_bad(name, buffer)).flatten();
    Some(Examined { kind, name: name.to_owned(), size, key, outcome })
}

/// Whether the record is where it belongs.
fn belongs(stored: Stored, kind: RecordKind, name: &OsStr) -> Result<Stored, UnreadableReason> {
    let found = stored.record.kind();
    if found != kind {
        return Err(UnreadableReason::WrongKind { found: found.name().into(), expected: kind.name().into() });
    }
    let right = codec::file_name(&stored.record.key());
    if name != OsStr::new(&right) {
        return Err(UnreadableReason::WrongKind { found: right, expected: name.to_string_lossy().into_owned() });
    }
    Ok(stored)
}

/// The key of a bad file: as its name tells, or as its content tells if the name agrees or the content is sound.
fn key_of_bad(name: &OsStr, content: &[u8]) -> Option<RecordKey> {
    let name = name.to_str()?;
    codec::key_of_file_name(name).or_else(|| {
        if let Ok(misplaced) = codec::decode(content) {
            return Some(misplaced.key());
        }
        codec::key_in(content).filter(|key| codec::file_name(key) == name)
    })
}

/// Looks at every file of the kinds' folders. The parts follow each other; putting them into one list would copy as much
/// as was read.
fn examine_all<D: Disk>(
    disk: &D,
    folders: [Option<&D::Folder>; RecordKind::COUNT],
    found: &[Found],
) -> Vec<Vec<Examined>> {
    let work = |part: &[Found]| {
        let mut buffer = Vec::with_capacity(64 << 10);
        let mut examined = Vec::with_capacity(part.len());
        for Found { kind, name, entry } in part {
            examined.extend(match (entry, folders[*kind as usize]) {
                (_, None) => None,
                // Not even opened: opening a device or FIFO can have effects of its own.
                (EntryType::Other(what), _) => Some(Examined {
                    kind: *kind,
                    name: name.clone(),
                    size: None,
                    key: name.to_str().and_then(codec::key_of_file_name),
                    outcome: Err(UnreadableReason::NotAFile { what: (*what).into() }),
                }),
                (EntryType::File | EntryType::Unknown, Some(folder)) => examine(disk, folder, *kind, name, &mut buffer),
            });
        }
        examined
    };
    if found.len() < SPLIT {
        return vec![work(found)];
    }
    let (left, right) = found.split_at(found.len() / 2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(right));
        let first = work(left);
        match other.join() {
            Ok(rest) => vec![first, rest],
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// What the folders list: record files, and temporary files apart.
fn list_all<D: Disk>(
    disk: &D,
    folders: [Option<&D::Folder>; RecordKind::COUNT],
    path: &Path,
) -> Result<(Vec<Found>, Vec<Temp>), OpenError> {
    let (mut found, mut temps) = (Vec::new(), Vec::new());
    for kind in RecordKind::ALL {
        let Some(folder) = folders[kind as usize] else { continue };
        let entries = disk.list(folder).map_err(|source| OpenError::Io {
            doing: "list the folder",
            path: path.join(kind.folder()),
            source,
        })?;
        for entry in entries {
            if entry.name.as_bytes().starts_with(TEMP.as_bytes()) && !matches!(entry.kind, EntryType::Other(_)) {
                temps.push((kind, entry.name));
            } else {
                found.push(Found { kind, name: entry.name, entry: entry.kind });
            }
        }
    }
    // Names begin as keys do, so the records come nearly in their order: sorting names moves little, sorting records much.
    found.sort_unstable_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    Ok((found, temps))
}

/// Opens the folders of the kinds that are there.
fn open_kinds<D: Disk>(
    disk: &D,
    state: &D::Folder,
    path: &Path,
) -> Result<[Option<D::Folder>; RecordKind::COUNT], OpenError> {
    let open = |kind: RecordKind| match disk.open_folder(state, kind.folder()) {
        Ok(folder) => Ok(Some(folder)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OpenError::Io { doing: "open the folder", path: path.join(kind.folder()), source }),
    };
    let [a, b, c, d] = RecordKind::ALL.map(open);
    Ok([a?, b?, c?, d?])
}

/// Takes what was read apart, in the orders that are promised.
fn sort_out(
    examined: Vec<Vec<Examined>>,
    path: &Path,
    mut bad: impl FnMut(RecordKind, &OsString, &UnreadableReason) -> Option<PathBuf>,
    mut good: impl FnMut(&Stored),
) -> Loaded {
    let count = examined.iter().map(Vec::len).sum();
    let mut loaded = Loaded { records: Vec::with_capacity(count), unreadable: Vec::new() };
    for Examined { kind, name, key, outcome, .. } in examined.into_iter().flatten() {
        match outcome {
            Ok(stored) => {
                good(&stored);
                loaded.records.push(stored.record);
            }
            Err(reason) => {
                let moved = bad(kind, &name, &reason);
                let set_aside = moved.is_some();
                let path = moved.unwrap_or_else(|| path.join(kind.folder()).join(&name));
                loaded.unreadable.push(Unreadable { path, name: shown(&name), key, reason, set_aside });
            }
        }
    }
    loaded.records.sort_by(crate::Record::cmp_by_key);
    loaded.unreadable.sort_by(|a, b| a.path.cmp(&b.path));
    loaded
}

/// [`Store::read`].
pub(super) fn read_on<D: Disk>(disk: &D, state: &D::Folder, path: &Path) -> Result<Loaded, OpenError> {
    let folders = open_kinds(disk, state, path)?;
    let folders = folders.each_ref().map(Option::as_ref);
    let (found, _) = list_all(disk, folders, path)?;
    Ok(sort_out(examine_all(disk, folders, &found), path, |_, _, _| None, |_| {}))
}

/// [`Store::device_mounts`].
pub(super) fn device_mounts<D: Disk>(store: &Store<D>) -> Result<Vec<DeviceMount>, OpenError> {
    let mut folders = [None; RecordKind::COUNT];
    folders[RecordKind::DeviceMount as usize] = Some(store.folders.of(RecordKind::DeviceMount));
    let (found, _) = list_all(&store.disk, folders, &store.path)?;
    let records = sort_out(examine_all(&store.disk, folders, &found), &store.path, |_, _, _| None, |_| {}).records;
    Ok(records
        .into_iter()
        .filter_map(|record| if let Record::DeviceMount(device) = record { Some(device) } else { None })
        .collect())
}

/// [`Store::verify`].
pub(super) fn verify_on<D: Disk>(disk: &D, state: &D::Folder, path: &Path) -> Result<Vec<Verified>, OpenError> {
    let folders = open_kinds(disk, state, path)?;
    let folders = folders.each_ref().map(Option::as_ref);
    let (found, _) = list_all(disk, folders, path)?;
    let mut verified: Vec<_> = examine_all(disk, folders, &found)
        .into_iter()
        .flatten()
        .map(|Examined { kind, name, size, key, outcome }| Verified {
            path: path.join(kind.folder()).join(name),
            kind,
            key: outcome.as_ref().map_or(key, |stored| Some(stored.record.key())),
            size,
            result: outcome.map(drop),
        })
        .collect();
    verified.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(verified)
}

/// [`Store::load`]; the caller keeps writers away.
pub(super) fn load<D: Disk>(store: &Store<D>) -> Result<Loaded, OpenError> {
    let folders = store.folders.kinds.each_ref().map(Some);
    let (found, temps) = list_all(&store.disk, folders, &store.path)?;
    for (kind, name) in temps {
        // One that stays is in nobody's way, and the next start tries again.
        let _ = store.disk.unlink(store.folders.of(kind), &name);
    }
    let mut known = Known { loaded: true, ..Known::default() };
    let mut extras = Vec::new();
    let loaded = sort_out(
        examine_all(&store.disk, folders, &found),
        &store.path,
        |kind, name, reason| {
            // Not being able to read says nothing about the file.
            let moved = if matches!(reason, UnreadableReason::Io { .. }) {
                None
            } else {
                set_aside::move_away(store, kind, name, set_aside::word(reason)).ok()
            };
            if moved.is_none() {
                known.in_the_way.insert((kind, shown(name)));
            }
            moved
        },
        |stored| {
            if !stored.extra.is_empty() {
                extras.push((stored.record.key(), stored.extra.clone()));
            }
        },
    );
    known.extras.extend(extras);
    *store.known() = known;
    Ok(loaded)
}
