//! Files that are no good records, kept intact for whoever wants to look at them.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::{OpenError, SET_ASIDE, Store, UnreadableReason};
use crate::disk::Disk;
use crate::{RecordKey, RecordKind, codec};

/// A file that was set aside. Its content is as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Where it is.
    pub path: PathBuf,
    /// When it was set aside, where its name tells.
    pub when: Option<jiff::Timestamp>,
    /// Why, in a word (`torn`, `checksum`, `newer`, `wrong-kind`, `malformed`, `not-a-file`, `too-large`,
    /// `unreadable`), where its name tells.
    pub reason: Option<String>,
    /// The name that it had in its kind's folder (the start of it, if that was very long).
    pub name: String,
    /// The record that it was, where that name tells.
    pub key: Option<RecordKey>,
}

/// The reasons as they stand in file names.
const WORDS: [&str; 8] =
    ["torn", "checksum", "newer", "wrong-kind", "malformed", "not-a-file", "too-large", "unreadable"];

/// A time that sorts as text and suits file names.
const TIME: &str = "%Y%m%dT%H%M%S.%9fZ";

/// The reason in a word.
pub(super) fn word(reason: &UnreadableReason) -> &'static str {
    match reason {
        UnreadableReason::Torn { .. } => WORDS[0],
        UnreadableReason::Checksum { .. } => WORDS[1],
        UnreadableReason::Newer { .. } => WORDS[2],
        UnreadableReason::WrongKind { .. } => WORDS[3],
        UnreadableReason::Malformed { .. } => WORDS[4],
        UnreadableReason::NotAFile { .. } => WORDS[5],
        UnreadableReason::TooLarge { .. } => WORDS[6],
        UnreadableReason::Io { .. } => WORDS[7],
    }
}

/// Moves a file to the folder for such files, replacing nothing. Not synced: one that a power cut brings back is set
/// aside again. Answers its new path.
pub(super) fn move_away<D: Disk>(store: &Store<D>, kind: RecordKind, name: &OsStr, why: &str) -> io::Result<PathBuf> {
    let from = store.folders.of(kind);
    // A folder whose name a power cut takes away takes along what was moved to it.
    store.sync_names()?;
    loop {
        let new = new_name(jiff::Timestamp::now(), why, &name.to_string_lossy());
        let moved = match store.disk.rename_new(from, name, &store.folders.set_aside, OsStr::new(&new)) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            // This file system cannot refuse to replace; the nanoseconds in the name have to do.
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                store.disk.replace(from, name, &store.folders.set_aside, OsStr::new(&new))
            }
            outcome => outcome,
        };
        return moved.map(|()| store.path.join(SET_ASIDE).join(new));
    }
}

/// `<time>-<reason>-<original name>`, at most 255 bytes.
fn new_name(now: jiff::Timestamp, why: &str, name: &str) -> String {
    let mut new = format!("{}-{why}-", now.strftime(TIME));
    let room = 255 - new.len();
    let end = (0..=name.len().min(room)).rev().find(|&i| name.is_char_boundary(i)).unwrap_or(0);
    new.push_str(&name[..end]);
    new
}

/// Time, reason and original name of a name made by [`new_name`].
fn parse_name(name: &str) -> Option<(jiff::Timestamp, &'static str, &str)> {
    let (time, rest) = name.split_once('-')?;
    let time = jiff::civil::DateTime::strptime(TIME, time).ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
    let (word, original) = WORDS.into_iter().find_map(|w| Some((w, rest.strip_prefix(w)?.strip_prefix('-')?)))?;
    Some((time, word, original))
}

/// [`Store::set_aside`].
pub(super) fn list_on<D: Disk>(disk: &D, state: &D::Folder, path: &Path) -> Result<Vec<SetAside>, OpenError> {
    let path = path.join(SET_ASIDE);
    let io = |doing| {
        let path = path.clone();
        move |source| OpenError::Io { doing, path, source }
    };
    let folder = match disk.open_folder(state, SET_ASIDE) {
        Ok(folder) => folder,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io("open the folder")(e)),
    };
    let mut list: Vec<_> = disk
        .list(&folder)
        .map_err(io("list the folder"))?
        .into_iter()
        .map(|entry| {
            let name = super::shown(&entry.name);
            let (when, reason, original) = match parse_name(&name) {
                Some((when, reason, original)) => (Some(when), Some(reason.to_owned()), original.to_owned()),
                None => (None, None, name.clone()),
            };
            let key = codec::key_of_file_name(&original);
            SetAside { path: path.join(&entry.name), when, reason, name: original, key }
        })
        .collect();
    list.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_when_and_why() {
        let now: jiff::Timestamp = "2026-12-02T07:08:09.000000012Z".parse().unwrap();
        let name = new_name(now, "wrong-kind", "a-b+0.json");
        assert_eq!(name, "20261202T070809.000000012Z-wrong-kind-a-b+0.json");
        assert_eq!(parse_name(&name), Some((now, "wrong-kind", "a-b+0.json")));
        assert_eq!(parse_name("by-hand.json"), None);
    }

    #[test]
    fn a_long_name_is_cut_at_a_character() {
        let name = new_name(jiff::Timestamp::UNIX_EPOCH, "torn", &"ä".repeat(127));
        assert!(name.len() <= 255 && name.ends_with('ä'), "{} {name}", name.len());
    }
}
