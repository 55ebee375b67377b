//! Reads one disk or map from sysfs.

use std::io::{self, Read as _};
use std::path::Path;

use refloat_record::DeviceNumber;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Address, Disk, Map, Sys, ids};

/// More than any file here has; the longest is a page 83.
const MOST: u64 = 64 << 10;

/// What was found where something should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Read<T> {
    There(T),
    /// It went away while it was read.
    Gone,
    /// It is there and makes no sense.
    Unreadable,
}

/// The names in a folder, sorted. Those that are no text are no device's.
pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = vec![];
    for entry in std::fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

fn is_gone(errno: Errno) -> bool {
    [Errno::NOENT, Errno::NODEV, Errno::NXIO].contains(&errno)
}

/// The bytes of a file that is a regular one.
pub(super) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![];
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A short text, without the blanks around it; none if there is none.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = String::from_utf8(bytes(path).ok()?).ok()?;
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// The number in a device's `dev`.
fn number(folder: &Path) -> Read<DeviceNumber> {
    match bytes(&folder.join("dev")) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            DeviceNumber::try_from(text).map_or(Read::Unreadable, Read::There)
        }
        Err(error) if Errno::from_io_error(&error).is_some_and(is_gone) => match folder.symlink_metadata() {
            // A folder without its file is on its way out.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Read::Gone,
            Ok(_) if std::fs::metadata(folder).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) => Read::Gone,
            _ => Read::Unreadable,
        },
        Err(_) => Read::Unreadable,
    }
}

/// The ids that the files of a SCSI device's folder tell.
pub(super) fn ids_of(device: &Path) -> Vec<String> {
    let wwid = bytes(&device.join("wwid")).ok();
    let page = bytes(&device.join("vpd_pg83")).ok();
    ids::all(wwid.as_deref().and_then(|wwid| std::str::from_utf8(wwid).ok()), page.as_deref())
}

/// The address that the link to a SCSI device's folder ends in.
pub(super) fn address_of(device: &Path) -> io::Result<Option<Address>> {
    let target = std::fs::read_link(device)?;
    Ok(target.file_name().and_then(|name| Address::parse(name.to_str()?)))
}

impl Sys {
    /// `folder` is that of the disk below `block`.
    pub(super) fn read_disk(&self, folder: &Path, name: &str) -> Read<Disk> {
        let number = match number(folder) {
            Read::There(number) => number,
            Read::Gone => return Read::Gone,
            Read::Unreadable => return Read::Unreadable,
        };
        let device = folder.join("device");
        let Ok(Some(address)) = address_of(&device) else { return Read::Unreadable };
        // The link of the disk itself says what it is behind: `…/host2/session1/target2:0:0/2:0:0:1/block/sdc`.
        let place = std::fs::read_link(folder).unwrap_or_default();
        let part = |prefix: &str| {
            place
                .iter()
                .filter_map(|part| part.to_str())
                .find(|part| part.strip_prefix(prefix).is_some_and(starts_with_digit))
        };
        let target = format!("target{}:{}:{}", address.host, address.channel, address.target);
        let transport = self.sysfs.join("class/fc_transport").join(target).join("port_name");
        let wwn = text(&transport).or_else(|| {
            let remote = part("rport-")?;
            text(&self.sysfs.join("class/fc_remote_ports").join(remote).join("port_name"))
        });
        let (partitions, mut holders) = partitions(folder, name);
        holders.extend(names(&folder.join("holders")).unwrap_or_default());
        holders.sort_unstable();
        holders.dedup();
        Read::There(Disk {
            name: name.to_owned(),
            number,
            address,
            ids: ids_of(&device),
            state: text(&device.join("state")),
            target_port: wwn.map(|wwn| ids::wwn(&wwn)),
            session: part("session").map(str::to_owned),
            holders,
            partitions,
        })
    }

    /// `folder` is that of the map below `block`.
    pub(super) fn read_map(folder: &Path, name: &str) -> Read<Map> {
        let number = match number(folder) {
            Read::There(number) => number,
            Read::Gone => return Read::Gone,
            Read::Unreadable => return Read::Unreadable,
        };
        let list = |what: &str| names(&folder.join(what)).unwrap_or_default();
        let Some(map_name) = text(&folder.join("dm/name")) else { return Read::Unreadable };
        Read::There(Map {
            name: name.to_owned(),
            number,
            map_name,
            // Those that people made by hand have none.
            uuid: text(&folder.join("dm/uuid")).unwrap_or_default(),
            slaves: list("slaves"),
            holders: list("holders"),
        })
    }
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// The numbers of a disk's partitions, and what lies over them.
fn partitions(folder: &Path, name: &str) -> (Vec<DeviceNumber>, Vec<String>) {
    let (mut numbers, mut holders) = (vec![], vec![]);
    for part in names(folder).unwrap_or_default() {
        if !part.strip_prefix(name).is_some_and(starts_with_digit) {
            continue;
        }
        let folder = folder.join(part);
        if let (Some(_), Read::There(number)) = (text(&folder.join("partition")), number(&folder)) {
            numbers.push(number);
            holders.extend(names(&folder.join("holders")).unwrap_or_default());
        }
    }
    (numbers, holders)
}
