//! The content of a configMap, secret, downwardAPI or projected volume, computed before anything is written.

use std::collections::{BTreeMap, BTreeSet};

use crate::Problem;

/// Files to project into a volume, by relative path (`a`, `dir/b`).
///
/// Made with [`Payload::insert`] its paths are good; [`Payload::check`] says it of one made by hand.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Payload {
    /// The files.
    pub files: BTreeMap<String, PayloadFile>,
    /// Folders inside this volume that other volumes of the pod are mounted at, by relative path. They are made in the
    /// volume's folder, beside the content: the container gets it read-only, so nobody could make them later.
    pub mount_points: BTreeSet<String>,
}

impl Payload {
    /// Adds a file. A later one takes the place of an earlier one with the same path, as in Kubernetes.
    ///
    /// # Errors
    /// `ContentPathInvalid` if the path cannot be used. Whether it is a folder of another file's is only told by
    /// [`Payload::check`], when all are there.
    pub fn insert(&mut self, path: &str, file: PayloadFile) -> Result<(), ContentError> {
        self.files.insert(clean_path(path)?, file);
        Ok(())
    }

    /// Whether every path can be used, alone and beside the others.
    ///
    /// # Errors
    /// `ContentPathInvalid`, or `ContentPathConflict` if one file's path is a folder of another's.
    pub fn check(&self) -> Result<(), ContentError> {
        for path in self.files.keys() {
            let clean = clean_path(path)?;
            let parents = std::iter::successors(clean.rfind('/'), |end| clean[..*end].rfind('/'));
            if let Some(parent) = parents.map(|end| &clean[..end]).find(|parent| self.files.contains_key(*parent)) {
                return Err(ContentError(Problem::new(
                    "ContentPathConflict",
                    format!("the content has a file {parent:?} and a file {clean:?}, which needs it to be a folder"),
                    "Choose other paths or keys.",
                )));
            }
        }
        let top = |path: &str| path.split('/').next().map(str::to_owned);
        let tops: BTreeSet<Option<String>> =
            self.files.keys().map(|path| clean_path(path).map(|path| top(&path))).collect::<Result<_, _>>()?;
        for path in &self.mount_points {
            let path = clean_path(path)?;
            if tops.contains(&top(&path)) {
                return Err(ContentError(Problem::new(
                    "ContentPathConflict",
                    format!(
                        "another volume is mounted at {path:?} in this one, where its own content has a file or folder"
                    ),
                    "Mount the other volume elsewhere, or choose other paths or keys.",
                )));
            }
        }
        Ok(())
    }
}

/// The path without `.` and empty elements, if it can name a file of a volume.
///
/// # Source
/// `validatePath` and `validatePayload` in `pkg/volume/util/atomic_writer.go`, `validateLocalNonReservedPath` in
/// `pkg/apis/core/validation` of Kubernetes v1.36.
pub(crate) fn clean_path(path: &str) -> Result<String, ContentError> {
    let invalid = |why: &str| {
        let shown: String = path.chars().take(64).collect();
        Err(ContentError(Problem::new(
            "ContentPathInvalid",
            format!("the path {shown:?} cannot name a file of the volume: it {why}"),
            "Choose another path or key.",
        )))
    };
    if path.len() > 4096 {
        return invalid("is longer than 4096 bytes");
    }
    if path.contains('\0') {
        return invalid("has a NUL byte");
    }
    if path.starts_with('/') {
        return invalid("is absolute");
    }
    let clean: Vec<&str> = path.split('/').filter(|element| !matches!(*element, "" | ".")).collect();
    if clean.contains(&"..") {
        return invalid("has a \"..\" element");
    }
    if clean.iter().any(|element| element.len() > 255) {
        return invalid("has an element longer than 255 bytes");
    }
    match clean.first() {
        None => invalid("is empty"),
        Some(first) if first.starts_with("..") => invalid("begins with \"..\""),
        Some(_) => Ok(clean.join("/")),
    }
}

/// One file.
#[derive(Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// Its content.
    pub data: Vec<u8>,
    /// Its permission bits, for example 0o644.
    pub mode: u32,
}

/// Never prints content: it may be a secret.
impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: BTreeMap<_, _> = self.files.iter().map(|(path, file)| (path, file.data.len())).collect();
        f.debug_struct("Payload").field("bytes", &files).field("mount_points", &self.mount_points).finish()
    }
}

/// Never prints content: it may be a secret.
impl std::fmt::Debug for PayloadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayloadFile")
            .field("bytes", &self.data.len())
            .field("mode", &format_args!("{:#o}", self.mode))
            .finish()
    }
}

/// Why the content cannot be had now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.message)]
pub struct ContentError(pub Problem);

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> PayloadFile {
        PayloadFile { data: b"hunter2".to_vec(), mode: 0o644 }
    }

    #[test]
    fn paths_are_those_of_kubernetes() {
        for (path, clean) in
            [("a", "a"), ("a/b", "a/b"), ("./a//b/", "a/b"), ("a/..b", "a/..b"), ("...", ""), (".a", ".a")]
        {
            assert_eq!(clean_path(path).ok().unwrap_or_default(), clean, "{path}");
        }
        let long = "x".repeat(256);
        for bad in
            ["", ".", "/a", "..", "../a", "a/../b", "a/..", "..data", "./..data", "a\0b", &long, &"a/".repeat(2049)]
        {
            assert_eq!(clean_path(bad).unwrap_err().0.code, "ContentPathInvalid", "{bad}");
        }
    }

    #[test]
    fn a_file_cannot_be_a_folder_too() {
        let mut payload = Payload::default();
        payload.insert("a/b/c", file()).unwrap();
        payload.insert("a/b-c", file()).unwrap();
        assert_eq!(payload.check(), Ok(()));
        payload.mount_points = ["m/n".to_owned(), "b".to_owned()].into();
        assert_eq!(payload.check(), Ok(()));
        payload.mount_points.insert("a/z".into());
        assert_eq!(payload.check().unwrap_err().0.code, "ContentPathConflict");
        payload.mount_points.clear();
        payload.insert("a", file()).unwrap();
        assert_eq!(payload.check().unwrap_err().0.code, "ContentPathConflict");
    }

    #[test]
    fn debug_output_has_no_content() {
        let mut payload = Payload::default();
        payload.insert("key", file()).unwrap();
        let text = format!("{payload:?} {:?}", file());
        assert!(text.contains("key") && !text.contains("hunter2") && !text.contains("104"), "{text}");
    }
}
