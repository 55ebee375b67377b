//! Reads such a file: never through a symlink or a mount, and no more than it may have.

use std::io::Read as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{ForeignForm, ForeignRecord};

/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file beneath a folder that is open. `None` if there is none. A symlink (`ELOOP`), something that is no file
/// (`EINVAL`) and a file that is too large (`EFBIG`) are errors, and so is a mount on the way (`EXDEV`).
pub fn read_at(folder: impl AsFd, name: &Path) -> Result<Option<Vec<u8>>, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    // Nearly all files fit, and are read at once then.
    let mut text = Vec::with_capacity(1024);
    let read = std::fs::File::from(fd).take(MAX_BYTES + 1).read_to_end(&mut text);
    if read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))? as u64 > MAX_BYTES {
        return Err(Errno::FBIG);
    }
    Ok(Some(text))
}

/// Looks for a file of this form beneath a folder that is open. `path` is what it is called relative to the node root.
/// `None` if there is none, or if a mount hides it.
pub fn look_for(folder: impl AsFd, name: &Path, path: PathBuf, form: ForeignForm) -> Option<ForeignRecord> {
    match read_at(folder, name) {
        Ok(None) | Err(Errno::XDEV | Errno::NOTDIR) => None,
        Ok(Some(text)) => Some(ForeignRecord::parse(path, form, &text)),
        Err(error) => {
            let why = match error {
                Errno::LOOP => "it is a symlink, which is never followed here".to_owned(),
                Errno::INVAL => "it is no file".to_owned(),
                Errno::FBIG => format!("it has more than {MAX_BYTES} bytes"),
                error => format!("it cannot be read: {error}"),
            };
            Some(ForeignRecord { path, form, says: Err(why) })
        }
    }
}
