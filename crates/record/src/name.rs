//! The names that records carry, each a type of its own so that none can stand where another is meant.
//!
//! All are validated when they are made and when they are read back from JSON: a record edited by hand cannot
//! smuggle `..` or a slash into a path that Refloat acts on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty.
    #[error("a {what} must not be empty")]
    Empty {
        /// What the text was to be.
        what: &'static str,
    },
    /// The text is longer than a file name may be (255 bytes), or a path is longer than `PATH_MAX` (4096).
    #[error("the {what} {text:?} is longer than {limit} bytes")]
    TooLong {
        /// What the text was to be.
        what: &'static str,
        /// The text, cut to its first 64 characters.
        text: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The text names no single folder entry (`.`, `..`, a slash, NUL), or a path leaves its root.
    #[error("the {what} {text:?} would leave its folder: {why}")]
    Escapes {
        /// What the text was to be.
        what: &'static str,
        /// The text.
        text: String,
        /// The offending part.
        why: &'static str,
    },
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

fn check_element(what: &'static str, text: &str) -> Result<(), NameError> {
    let escapes = |why| NameError::Escapes { what, text: cut(text), why };
    match text {
        "" => return Err(NameError::Empty { what }),
        "." => return Err(escapes("it is \".\"")),
        ".." => return Err(escapes("it is \"..\"")),
        _ => {}
    }
    if text.contains('/') {
        return Err(escapes("it holds a slash"));
    }
    if text.contains('\0') {
        return Err(escapes("it holds a NUL byte"));
    }
    if text.len() > 255 {
        return Err(NameError::TooLong { what, text: cut(text), limit: 255 });
    }
    Ok(())
}

fn check_text(what: &'static str, text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.contains('\0') {
        return Err(NameError::Escapes { what, text: cut(text), why: "it holds a NUL byte" });
    }
    if text.len() > 4096 {
        return Err(NameError::TooLong { what, text: cut(text), limit: 4096 });
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Makes the name, or says why the text is none.
            pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
                $check($what, text.as_ref())?;
                Ok(Self(text.as_ref().into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name! {
    /// A pod's UID: the name of its folder below `pods/`, so one path element. The kubelet's `UniquePodName`.
    PodUid, "pod uid", check_element
}
name! {
    /// The inner spec name: the `PersistentVolume`'s name for a claim, else the pod's own name for the volume.
    /// Names the volume's folder, so one path element.
    SpecName, "spec name", check_element
}
name! {
    /// The outer spec name: `pod.spec.volumes[x].name`.
    OuterSpecName, "volume name", check_element
}
name! {
    /// An unescaped plugin name such as `kubernetes.io/empty-dir`.
    PluginName, "plugin name", check_text
}
name! {
    /// The unique volume name (`<plugin>/<volume name>` or `<plugin>/<pod uid>-<spec name>`).
    UniqueVolumeName, "unique volume name", check_text
}
name! {
    /// The name of a CSI driver (`hostpath.csi.k8s.io`). It names a folder below `plugins/kubernetes.io/csi/`, so one path
    /// element.
    DriverName, "driver name", check_element
}
name! {
    /// The id of one boot of this machine, from `/proc/sys/kernel/random/boot_id`.
    BootId, "boot id", check_text
}

impl PluginName {
    /// The folder name below `volumes/`: every `/` becomes `~`.
    ///
    /// # Source
    /// `EscapeQualifiedName` of `k8s.io/utils/strings`. Nothing escapes `~` itself; plugin names are qualified
    /// names, which cannot hold one.
    pub fn escaped(&self) -> String {
        self.0.replace('/', "~")
    }

    /// The plugin name for a folder name: every `~` becomes `/`. The reverse of [`PluginName::escaped`].
    pub fn from_escaped(folder: &str) -> Result<Self, NameError> {
        Self::new(folder.replace('~', "/"))
    }
}

/// A path relative to the node root that cannot leave it: no `..`, no `.`, no empty element, not absolute.
/// It says nothing about symlinks: whoever acts on it opens it beneath the root without following any.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(Arc<str>);

impl RelPath {
    /// Makes the path, or says why the text is none.
    pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
        let text = text.as_ref();
        let what = "path";
        if text.is_empty() {
            return Err(NameError::Empty { what });
        }
        if text.len() > 4095 {
            return Err(NameError::TooLong { what, text: cut(text), limit: 4095 });
        }
        if text.starts_with('/') {
            return Err(NameError::Escapes { what, text: cut(text), why: "it is absolute" });
        }
        for element in text.split('/') {
            check_element("path element", element)?;
        }
        Ok(Self(text.into()))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path as a [`Path`].
    pub fn as_path(&self) -> &Path {
        Path::new(&*self.0)
    }

    /// This path with one more element.
    pub fn join(&self, element: &str) -> Result<Self, NameError> {
        Self::new(format!("{}/{element}", self.0))
    }

    /// The absolute path below `root`.
    pub fn below(&self, root: &Path) -> PathBuf {
        root.join(&*self.0)
    }
}

impl AsRef<Path> for RelPath {
    fn as_ref(&self) -> &Path {
        self.as_path()
    }
}

impl std::fmt::Display for RelPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl serde::Serialize for RelPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for RelPath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(text).map_err(serde::de::Error::custom)
    }
}
