//! `/proc/self/mountinfo`: the parser.
//!
//! Bytes in, borrowed slices out. One bad line is reported and skipped, never fatal.
//!
//! # Source
//! `proc_pid_mountinfo(5)`; the escapes are those of the kernel's `fs/proc_namespace.c`: space, tab, newline and
//! backslash everywhere, `#` in type and source as well (since Linux 5.x), each as a backslash and three octal digits.

use std::borrow::Cow;

use crate::{Device, Mount};

/// A line that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub number: usize,
    /// The line.
    pub line: Vec<u8>,
    /// What is wrong.
    pub why: &'static str,
}

/// The fields of one line. Text is as in the file: escapes are not undone (see [`unescape`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'t> {
    /// The short id of the mount.
    pub id: u32,
    /// The short id of its parent.
    pub parent: u32,
    /// The device of the file system.
    pub device: Device,
    /// The mount's root in the file system, escaped.
    pub root: &'t [u8],
    /// Where it is mounted, escaped.
    pub point: &'t [u8],
    /// The mount's own options.
    pub options: &'t str,
    /// The optional fields (`shared:2 master:1`), as one text; empty if there are none.
    pub optional: &'t [u8],
    /// The type, escaped.
    pub fs_type: &'t [u8],
    /// The source, escaped; may be empty.
    pub source: &'t [u8],
    /// The file system's options, escaped.
    pub fs_options: &'t [u8],
}

impl<'t> Line<'t> {
    /// Takes one line apart (without its newline).
    pub fn parse(line: &'t [u8]) -> Result<Self, &'static str> {
        let mut fields = Fields { rest: Some(line) };
        let id = number(fields.next().ok_or("no mount id")?).ok_or("the mount id is not a number")?;
        let parent = number(fields.next().ok_or("no parent id")?).ok_or("the parent id is not a number")?;
        let device = device(fields.next().ok_or("no device")?).ok_or("the device is not major:minor")?;
        let root = fields.next().ok_or("no root")?;
        let point = fields.next().ok_or("no mount point")?;
        if point.first() != Some(&b'/') {
            return Err("the mount point is not absolute");
        }
        let options = fields.next().ok_or("no mount options")?;
        let options = std::str::from_utf8(options).map_err(|_| "the mount options are not text")?;
        let after_options = fields.rest.ok_or("nothing after the mount options")?;
        let mut optional_length = 0;
        loop {
            let field = fields.next().ok_or("no separator '-'")?;
            if field == b"-" {
                break;
            }
            optional_length += field.len() + 1;
        }
        let optional = after_options.get(..optional_length.saturating_sub(1)).unwrap_or_default();
        let fs_type = fields.next().ok_or("no file system type")?;
        let source = fields.next().ok_or("no source")?;
        let fs_options = fields.rest.ok_or("no file system options")?;
        Ok(Self { id, parent, device, root, point, options, optional, fs_type, source, fs_options })
    }

    /// Writes the line as it was read, without a newline.
    pub fn print(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(
            format!("{} {} {}:{} ", self.id, self.parent, self.device.major, self.device.minor).as_bytes(),
        );
        for field in [self.root, self.point, self.options.as_bytes()] {
            out.extend_from_slice(field);
            out.push(b' ');
        }
        if !self.optional.is_empty() {
            out.extend_from_slice(self.optional);
            out.push(b' ');
        }
        out.extend_from_slice(b"- ");
        for field in [self.fs_type, self.source] {
            out.extend_from_slice(field);
            out.push(b' ');
        }
        out.extend_from_slice(self.fs_options);
    }
}

/// Fields between single spaces; a field may be empty.
struct Fields<'t> {
    rest: Option<&'t [u8]>,
}

impl<'t> Iterator for Fields<'t> {
    type Item = &'t [u8];
    fn next(&mut self) -> Option<&'t [u8]> {
        let rest = self.rest?;
        let end = rest.iter().position(|&byte| byte == b' ');
        self.rest = end.map(|end| &rest[end + 1..]);
        Some(end.map_or(rest, |end| &rest[..end]))
    }
}

fn number(digits: &[u8]) -> Option<u32> {
    // No sign, no leading zeros: what is printed is what was read.
    if digits.is_empty() || (digits.len() > 1 && digits[0] == b'0') {
        return None;
    }
    digits.iter().try_fold(0_u32, |sum, digit| {
        let digit = digit.is_ascii_digit().then(|| u32::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

fn device(text: &[u8]) -> Option<Device> {
    let colon = text.iter().position(|&byte| byte == b':')?;
    Some(Device { major: number(&text[..colon])?, minor: number(&text[colon + 1..])? })
}

/// All lines of a mountinfo text.
pub fn lines(text: &[u8]) -> impl Iterator<Item = Result<Line<'_>, BadLine>> {
    text.split(|&byte| byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| Line::parse(line).map_err(|why| BadLine { number: index + 1, line: line.to_vec(), why }))
}

/// Undoes the kernel's escapes, each once: a backslash and three octal digits are one byte. Any other backslash
/// stands for itself.
pub fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'\\') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    unescape_into(text, &mut bytes);
    Cow::Owned(bytes)
}

/// As [`unescape`], at the end of `out`.
pub(crate) fn unescape_into(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let escape = &rest[at..];
        if let [_, high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', after @ ..] = escape {
            out.push(((high - b'0') << 6) | ((middle - b'0') << 3) | (low - b'0'));
            rest = after;
        } else {
            out.push(b'\\');
            rest = &escape[1..];
        }
    }
    out.extend_from_slice(rest);
}

/// Escapes as the kernel does in root and mount point.
pub(crate) fn escape_path(text: &[u8], out: &mut Vec<u8>) {
    escape(text, b" \t\n\\", out);
}

/// Escapes as the kernel does in type and source.
pub(crate) fn escape_name(text: &[u8], out: &mut Vec<u8>) {
    escape(text, b" \t\n\\#", out);
}

fn escape(text: &[u8], special: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if special.contains(&byte) {
            out.extend_from_slice(&[b'\\', b'0' + (byte >> 6), b'0' + ((byte >> 3) & 7), b'0' + (byte & 7)]);
        } else {
            out.push(byte);
        }
    }
}

/// Writes a mount of a table as the line that mountinfo has (or would have) for it, without a newline.
pub fn print(mount: Mount<'_>, out: &mut Vec<u8>) {
    let mut root = Vec::new();
    let mut point = Vec::new();
    escape_path(std::os::unix::ffi::OsStrExt::as_bytes(mount.root().as_os_str()), &mut root);
    escape_path(std::os::unix::ffi::OsStrExt::as_bytes(mount.point().as_os_str()), &mut point);
    let raw = mount.raw();
    Line {
        id: mount.short_id(),
        parent: mount.parent_short_id(),
        device: mount.device(),
        root: &root,
        point: &point,
        options: mount.options(),
        optional: raw.optional,
        fs_type: raw.fs_type,
        source: raw.source,
        fs_options: raw.fs_options,
    }
    .print(out);
}

#[cfg(test)]
mod tests;
