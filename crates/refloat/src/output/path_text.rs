//! Paths as text, without loss.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use refloat_volume::Problem;

/// The path as text. One that is not UTF-8 has each byte that does not belong, and each backslash, written as `\xNN`;
/// the second answer says so then. So no two paths have the same text and the same answer.
pub(crate) fn path_text(path: &Path) -> (String, bool) {
    if let Some(text) = path.to_str() {
        return (text.to_owned(), false);
    }
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\x5c"));
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    (text, true)
}

/// The path as text; adds a problem if it is not UTF-8.
pub(crate) fn path_or_problem(path: &Path, problems: &mut Vec<Problem>) -> String {
    let (text, escaped) = path_text(path);
    if escaped {
        problems.push(Problem::new(
            "PathNotUtf8",
            format!("the path {text} is not UTF-8; its other bytes and its backslashes are written as \\xNN"),
            "to use the path in a shell, turn each \\xNN back into its byte, for example with printf '%b'",
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn text(bytes: &[u8]) -> (String, bool) {
        path_text(Path::new(OsStr::from_bytes(bytes)))
    }

    #[test]
    fn nothing_is_lost() {
        assert_eq!(text(b"/a b\\040"), ("/a b\\040".into(), false));
        assert_eq!(text("/ü".as_bytes()), ("/ü".into(), false));
        assert_eq!(text(b"/a\xff\\b"), ("/a\\xff\\x5cb".into(), true));
        assert_ne!(text(b"/\xff"), text(b"/\\xff"));
    }
}
