//! Whether a device is truly blank, so that formatting it destroys nothing.
//!
//! That `blkid` knows nothing on it is not enough: it may hold a volume of plain dm-crypt, a database on the raw device,
//! or metadata of a RAID whose signature was damaged. Blank is a device that nobody holds open exclusively, that has
//! no partitions and no holders, that is writable, that can be read, and whose first and last mebibyte are zero:
//! partition tables (GPT has one at either end), LVM, Linux RAID (superblocks of 0.90 and 1.0 are at the end), LUKS,
//! ZFS (labels at both ends) and every file system have something there.

use std::fs::File;
use std::io::{Error, ErrorKind, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Words;
use crate::{Problem, VolumeError};

/// How much must be zero at either end. Bytes.
const END: u64 = 1 << 20;

/// Refuses a device that is not truly blank. `sys` is its folder in sysfs.
pub(super) fn check(device: &Path, sys: &Path, words: Words) -> Result<(), VolumeError> {
    writable(device, sys, words)?;
    let exclusive = open_exclusively(device)?;
    let io = |source| VolumeError::Io { doing: "read", path: device.to_path_buf(), source };
    match first_data(&mut File::from(exclusive)).map_err(io)? {
        None => Ok(()),
        Some(at) => Err(not_blank(
            device,
            &format!("there is data at byte {at}, of a kind that blkid does not know"),
            "if the data is not needed, zero the first and the last mebibyte of the device (blkdiscard -z, or dd)",
        )),
    }
}

/// What also a device must be whose formatting is begun anew: not read-only, without partitions and holders.
pub(super) fn writable(device: &Path, sys: &Path, words: Words) -> Result<(), VolumeError> {
    if std::fs::read_to_string(sys.join("ro")).is_ok_and(|ro| ro.trim() == "1") {
        return Err(not_blank(device, "it is read-only", "a read-only device is never formatted"));
    }
    if first_entry(&sys.join("holders"), |_| true)?.is_some() {
        return Err(not_blank(device, "another device is built on it", &format!("see lsblk; {}", words.built_on)));
    }
    if let Some(name) = first_entry(sys, |entry| entry.join("partition").symlink_metadata().is_ok())? {
        return Err(not_blank(device, &format!("it has partitions ({name})"), words.partitions));
    }
    Ok(())
}

fn first_entry(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Option<String>, VolumeError> {
    let io = |source| VolumeError::Io { doing: "list", path: folder.to_path_buf(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    for entry in entries {
        let path = entry.map_err(io)?.path();
        if wanted(&path) {
            return Ok(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

fn open_exclusively(device: &Path) -> Result<OwnedFd, VolumeError> {
    match rustix::fs::open(device, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => Ok(fd),
        Err(Errno::BUSY) => Err(not_blank(
            device,
            "it is in use (mounted, or part of LVM, RAID or device mapper)",
            "see lsblk and findmnt for who uses it",
        )),
        Err(error) => Err(VolumeError::Io { doing: "open", path: device.to_path_buf(), source: error.into() }),
    }
}

/// The position of the first byte in the first or last mebibyte that is not zero. A device without a byte cannot be
/// told to be blank.
fn first_data(file: &mut File) -> std::io::Result<Option<u64>> {
    let size = file.seek(SeekFrom::End(0))?;
    if size == 0 {
        return Err(Error::new(ErrorKind::UnexpectedEof, "the device has no size"));
    }
    let mut buffer = vec![0_u8; usize::try_from(END.min(size)).unwrap_or(usize::MAX)];
    for start in [0, size.saturating_sub(END)] {
        file.read_exact_at(&mut buffer, start)?;
        if let Some(at) = buffer.iter().position(|byte| *byte != 0) {
            return Ok(Some(start + at as u64));
        }
    }
    Ok(None)
}

fn not_blank(device: &Path, why: &str, hint: &str) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "NotBlank",
        format!("{} has no file system that can be told, yet it is not formatted: {why}", device.display()),
        hint,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_at_either_end_is_found() {
        let file = tempfile::tempfile().unwrap();
        let mut file = file;
        assert!(first_data(&mut file).is_err(), "no size");
        for size in [1_u64, 4096, END, END + 1, 3 * END + 7] {
            file.set_len(0).unwrap();
            file.set_len(size).unwrap();
            assert_eq!(first_data(&mut file).unwrap(), None, "{size}");
            file.write_all_at(b"x", size - 1).unwrap();
            assert_eq!(first_data(&mut file).unwrap(), Some(size - 1), "{size}");
            file.write_all_at(b"y", 0).unwrap();
            assert_eq!(first_data(&mut file).unwrap(), Some(0), "{size}");
        }
    }

    #[test]
    fn partitions_holders_and_read_only_are_refused() {
        let sys = tempfile::tempdir().unwrap();
        let device = Path::new("/dev/null");
        assert!(writable(device, sys.path(), Words::LOCAL).is_ok());
        std::fs::create_dir(sys.path().join("holders")).unwrap();
        std::fs::write(sys.path().join("ro"), "0\n").unwrap();
        assert!(writable(device, sys.path(), Words::LOCAL).is_ok());
        let refused = |what: &str| match writable(device, sys.path(), Words::LOCAL) {
            Err(VolumeError::Refused(problem)) => assert!(problem.message.contains(what), "{}", problem.message),
            other => panic!("{other:?}"),
        };
        std::fs::create_dir_all(sys.path().join("sdx1/partition")).unwrap();
        refused("partitions (sdx1)");
        std::fs::write(sys.path().join("holders/dm-0"), "").unwrap();
        refused("built on it");
        std::fs::write(sys.path().join("ro"), "1\n").unwrap();
        refused("read-only");
    }
}
