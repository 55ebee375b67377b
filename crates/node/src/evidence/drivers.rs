//! Which CSI drivers that records know can be reached. Never waits for one.

use std::collections::BTreeMap;
use std::path::Path;

use refloat_csi::Drivers;
use refloat_record::Record;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The drivers of the records that neither are registered nor have a socket that takes connections, with since when.
pub(super) fn missing(records: &[Record], drivers: &Drivers) -> BTreeMap<String, Option<String>> {
    let registered = drivers.list();
    let known = records.iter().filter_map(|record| match record {
        Record::Driver(driver) => Some(driver),
        Record::DeviceMount(_) | Record::PodVolume(_) | Record::PodCheckpoint(_) => None,
    });
    known
        .filter(|driver| !registered.iter().any(|d| d.registered && d.name == driver.name.as_str()))
        .filter(|driver| !answers(Path::new(&driver.endpoint)))
        .map(|driver| (driver.name.to_string(), driver.missing_since.clone()))
        .collect()
}

/// The drivers that records say are missing.
pub(super) fn recorded_missing(records: &[Record]) -> BTreeMap<String, Option<String>> {
    let missing = records.iter().filter_map(|record| match record {
        Record::Driver(driver) => driver.missing_since.clone().map(|since| (driver.name.to_string(), Some(since))),
        Record::DeviceMount(_) | Record::PodVolume(_) | Record::PodCheckpoint(_) => None,
    });
    missing.collect()
}

/// Whether somebody listens on the socket. Nothing is said to whoever does.
pub(crate) fn answers(socket: &Path) -> bool {
    let Ok(address) = SocketAddrUnix::new(socket) else { return false };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(fd) = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else { return false };
    // With a full backlog a listener is there all the same.
    matches!(rustix::net::connect(&fd, &address), Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_answers_while_somebody_listens() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("csi.sock");
        assert!(!answers(&socket));
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(answers(&socket));
        drop(listener);
        assert!(!answers(&socket), "the file is still there");
        assert!(!answers(&folder.path().join("x".repeat(200))), "no path of a socket is that long");
    }
}
