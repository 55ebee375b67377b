//! iSCSI sessions: which targets this node is logged in to, from where, and by which portal.
//!
//! # Source
//! `drivers/scsi/scsi_transport_iscsi.c` of the kernel: `class/iscsi_session/session<number>` and
//! `class/iscsi_connection/connection<number>:<cid>`. The number goes up with each session of a boot and is not given twice.
//! What lies beside these files and holds passwords is never opened.

use std::path::Path;

use super::{Sys, read};
use crate::VolumeError;

/// One iSCSI session of this node with a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its name in this boot, `session3`.
    pub name: String,
    /// Its number in this boot.
    pub number: u32,
    /// The number of the SCSI host that it is behind.
    pub host: Option<u32>,
    /// The number of the target at that host.
    pub target_id: u32,
    /// The target's name.
    pub target: String,
    /// The interface record of open-iscsi that it was made with; none if it is not told.
    pub interface: Option<String>,
    /// The host of the portal, as whoever logged in called it.
    pub address: Option<String>,
    /// The port of the portal.
    pub port: Option<u16>,
    /// `LOGGED_IN`, `FAILED`, `FREE`.
    pub state: Option<String>,
}

/// What the kernel writes where it has no text.
const NO_TEXT: [&str; 2] = ["(null)", "<NULL>"];

fn text(path: &Path) -> Option<String> {
    read::text(path).filter(|text| !NO_TEXT.contains(&text.as_str()))
}

impl Sys {
    /// All iSCSI sessions, by number, and the names of those that cannot be understood.
    ///
    /// # Errors
    /// They cannot be listed.
    pub(super) fn sessions(&self) -> Result<(Vec<Session>, Vec<String>), VolumeError> {
        let folder = self.sysfs.join("class/iscsi_session");
        let names = match read::names(&folder) {
            Ok(names) => names,
            // The kernel's module is not loaded.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((vec![], vec![])),
            Err(source) => {
                return Err(VolumeError::Io { doing: "list the iSCSI sessions in", path: folder, source });
            }
        };
        let (mut sessions, mut unreadable) = (vec![], vec![]);
        for name in names {
            match self.read_session(&folder.join(&name), &name) {
                Some(session) => sessions.push(session),
                None if folder.join(&name).symlink_metadata().is_ok() => unreadable.push(name),
                None => {}
            }
        }
        sessions.sort_by_key(|session| session.number);
        Ok((sessions, unreadable))
    }

    fn read_session(&self, folder: &Path, name: &str) -> Option<Session> {
        let number: u32 = name.strip_prefix("session")?.parse().ok()?;
        // `…/host2/session1/iscsi_session/session1`.
        let place = std::fs::read_link(folder).unwrap_or_default();
        let host = place.iter().find_map(|part| part.to_str()?.strip_prefix("host")?.parse().ok());
        // There is one connection a session.
        let connection = self.sysfs.join(format!("class/iscsi_connection/connection{number}:0"));
        let of_connection =
            |name: &str, other: &str| text(&connection.join(name)).or_else(|| text(&connection.join(other)));
        Some(Session {
            name: name.to_owned(),
            number,
            host,
            target_id: read::text(&folder.join("target_id")).and_then(|id| id.parse().ok()).unwrap_or(0),
            target: text(&folder.join("targetname"))?,
            interface: text(&folder.join("ifacename")),
            // A target may send a login on to another address; the first is the one that was asked for.
            address: of_connection("persistent_address", "address"),
            port: of_connection("persistent_port", "port").and_then(|port| port.parse().ok()),
            state: text(&folder.join("state")),
        })
    }
}
