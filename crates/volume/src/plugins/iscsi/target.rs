//! What an iSCSI volume calls its disk: a logical unit of a target, behind portals, by an interface of this node.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::Host;
use crate::disk::Words;
use crate::plugins::san;
use crate::scsi::{self, Lun, Scan, Seen, Session};

/// The port of a portal that names none.
///
/// # Source
/// RFC 7143, 13.8: `iscsi-target` at IANA.
pub(super) const PORT: u16 = 3260;

/// The interface record of open-iscsi that is used where a spec names none.
pub(super) const DEFAULT_INTERFACE: &str = "default";

/// A portal as the kubelet writes it into names and paths.
///
/// # Source
/// `portalMounter` of `pkg/volume/iscsi`: whatever holds no colon gets the port.
pub fn with_port(portal: &str) -> String {
    if portal.contains(':') { portal.to_owned() } else { format!("{portal}:{PORT}") }
}

/// A place where a target can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Portal {
    /// A name or an address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// The addresses that a name stood for when it was looked up; none if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) addresses: Option<Vec<String>>,
}

impl Portal {
    /// Reads `host`, `host:port`, `[IPv6]`, `[IPv6]:port` or an IPv6 address alone.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let port = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { PORT } else { port(rest.strip_prefix(':')?)? })
        } else if text.parse::<std::net::Ipv6Addr>().is_ok() {
            (text, PORT)
        } else {
            match text.split_once(':') {
                Some((host, rest)) => (host, port(rest)?),
                None => (text, PORT),
            }
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        let good = host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == ':') && host.chars().all(plain);
        (good && port > 0).then(|| Self { host: host.to_owned(), port, addresses: None })
    }

    /// Whether its host is a name, which stands for addresses.
    pub(super) fn is_name(&self) -> bool {
        self.host.parse::<IpAddr>().is_err()
    }

    /// Whether this address and port are its own. A name that was not looked up may stand for any address.
    pub(super) fn is_at(&self, address: &str, port: u16) -> bool {
        self.port == port
            && (same_host(&self.host, address)
                || match &self.addresses {
                    Some(addresses) => addresses.iter().any(|its| same_host(its, address)),
                    None => self.is_name(),
                })
    }

    fn is_of(&self, session: &Session) -> bool {
        session.address.as_deref().zip(session.port).is_some_and(|(address, port)| self.is_at(address, port))
    }

    /// Whether it is the same place in other words.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.port == other.port && same_host(&self.host, &other.host)
    }
}

impl std::fmt::Display for Portal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        shown_at(f, &self.host, self.port)
    }
}

/// As `iscsiadm` takes it.
fn shown_at(f: &mut std::fmt::Formatter<'_>, host: &str, port: u16) -> std::fmt::Result {
    if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
}

pub(super) fn same_host(one: &str, other: &str) -> bool {
    match (one.parse::<IpAddr>(), other.parse::<IpAddr>()) {
        (Ok(one), Ok(other)) => one == other,
        (Err(_), Err(_)) => one.eq_ignore_ascii_case(other),
        _ => false,
    }
}

/// A logical unit of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Target {
    /// Where it can be reached; the first is the one in the volume's name.
    pub(super) portals: Vec<Portal>,
    pub(super) iqn: String,
    pub(super) lun: i32,
    /// The interface record of open-iscsi.
    pub(super) interface: String,
}

impl Target {
    /// Whether a session is with this target by this interface, wherever the target was reached.
    fn is_with(&self, session: &Session) -> bool {
        session.target == self.iqn && session.interface.as_deref().unwrap_or(DEFAULT_INTERFACE) == self.interface
    }

    /// The sessions that the unit may be behind.
    ///
    /// Other portals of the target may show other units under the same number, and so may other interfaces, which may have
    /// another initiator name.
    pub(super) fn sessions<'s>(&'s self, seen: &'s Seen) -> impl Iterator<Item = &'s Session> {
        seen.sessions.iter().filter(|session| self.has(session))
    }

    pub(super) fn has(&self, session: &Session) -> bool {
        self.is_with(session) && self.portals.iter().any(|portal| portal.is_of(session))
    }

    /// The session by this portal.
    pub(super) fn session<'s>(&self, seen: &'s Seen, portal: &Portal) -> Option<&'s Session> {
        seen.sessions.iter().find(|session| self.is_with(session) && portal.is_of(session))
    }
}

impl san::Wanted for Target {
    const WORDS: Words = Words::ISCSI;
    const NOT_FOUND: &'static str = "Look whether the target shows this number to this node's initiator name, and into the kernel log. It is tried again.";
    const AMBIGUOUS: &'static str =
        "Nothing is used. The portals show different disks under one number: give the volume only those of one disk.";
    const NOWHERE: &'static str = "this node has no session with its target";

    fn shown(&self) -> String {
        let portals: Vec<String> = self.portals.iter().map(ToString::to_string).collect();
        format!("LUN {} of {} at {}", self.lun, self.iqn, portals.join(", "))
    }

    fn fits(&self, seen: &Seen, disk: &scsi::Disk) -> bool {
        disk.address.has_lun(self.lun) && seen.session_of(disk).is_some_and(|session| self.has(session))
    }

    fn is_whole(&self, seen: &Seen, lun: &Lun) -> bool {
        let has_path = |session: &Session| lun.disks.iter().any(|disk| disk.session.as_ref() == Some(&session.name));
        !lun.disks.is_empty() && (!lun.maps.is_empty() || self.sessions(seen).all(has_path))
    }

    fn scans(&self, host: &Host) -> Vec<(u32, Scan)> {
        let seen = host.sys.look().unwrap_or_default();
        let lun = u64::try_from(self.lun).ok();
        self.sessions(&seen)
            .filter_map(|session| Some((session.host?, Scan::Target { channel: 0, target: session.target_id, lun })))
            .collect()
    }
}
