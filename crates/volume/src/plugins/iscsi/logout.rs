//! Logs out of what was logged in to for a volume, when nobody uses it any more.

use super::info::{Info, Login, State};
use super::iscsiadm::{Iscsiadm, Node, starts_by_itself};
use super::login::hold;
use super::target::{PORT, Portal, Target};
use crate::scsi::{Disk, Lun, Seen, Session, left_in_use};
use crate::{Host, Problem, UnmountDevice, VolumeError};

/// Ends the sessions of our making that no other volume and nobody else uses, and takes away what was written for them. The
/// volume's own disk has left the node.
///
/// `file`: what another program's file says that it logged in to, if there is one; `by_path`: what the volume's path names.
pub(super) fn log_out(
    step: &UnmountDevice<'_>,
    info: Option<&Info>,
    file: Option<&Target>,
    by_path: Option<&Target>,
) -> Result<(), VolumeError> {
    let Some(target) = info.map(|info| &info.target).or(file).or(by_path) else { return Ok(()) };
    let host = step.host;
    let _hold = hold(host, target)?;
    let seen = host.sys.look()?;
    let none = refloat_csi::Secrets::default();
    let iscsiadm = Iscsiadm { patience: host.tool_deadline / 2, secrets: &none };
    let sessions: Vec<&Session> =
        seen.sessions.iter().filter(|s| target.has(s) || file.is_some_and(|file| file.has(s))).collect();
    let logins: &[Login] = info.map_or(&[], |info| &info.access.logins);
    let made = logins.iter().any(|login| login.made_node.is_some() || login.made_discovery)
        || info.is_some_and(|info| info.access.made_interface);
    if sessions.is_empty() && !made {
        return Ok(());
    }
    let peers = Info::of_peers(&step.peers.devices()?, step.record.device_mount_path.as_str(), &host.boot_id);
    let mut closing: Vec<&Session> = vec![];
    let mut open: Vec<&Session> = vec![];
    for session in sessions {
        let by_record =
            logins.iter().any(|login| login.claims(session.number) && login_is_of(login, target, session, &seen));
        let is_ours = by_record || file.is_some_and(|file| file.has(session) && is_of_file(iscsiadm, file, session));
        if !is_ours {
            match (info, file) {
                (None, None) => tracing::warn!(
                    code = "SessionLeft",
                    "{} with {} stays: nothing tells who made it. End it by hand if nobody needs it (iscsiadm -m session -r {} -u)",
                    session.name,
                    session.target,
                    session.number
                ),
                _ => {
                    tracing::info!(
                        session = session.name,
                        target = session.target,
                        "leaves a session that others made"
                    );
                }
            }
            open.push(session);
        } else if let Some(peer) = peers.iter().find(|peer| peer.uses(session)) {
            tracing::info!(
                session = session.name,
                target = session.target,
                lun = peer.target.lun,
                "another volume uses it"
            );
            open.push(session);
        } else if let Some(why) = in_use(host, &seen, session)? {
            tracing::warn!(code = "SessionLeft", "the session with {} stays: {why}", session.target);
            open.push(session);
        } else {
            closing.push(session);
        }
    }
    flush_maps(host, &closing)?;
    // All are tried; the first that fails is told.
    let results: Vec<_> = closing.iter().map(|session| end(host, iscsiadm, session)).collect();
    results.into_iter().collect::<Result<(), _>>()?;
    for login in logins {
        let is_open = open.iter().any(|session| login_is_of(login, target, session, &seen));
        let needed = |peer: &Info| {
            peer.target.iqn == target.iqn
                && peer.target.interface == target.interface
                && peer.target.portals.iter().any(|portal| portal.is(&login.portal))
        };
        if login.made_discovery {
            iscsiadm.delete_discovery(&login.portal)?;
        }
        if let (Some(place), false, false) = (&login.made_node, is_open, peers.iter().any(needed)) {
            iscsiadm.delete_node(Node { iqn: &target.iqn, portal: place, interface: &target.interface })?;
        }
    }
    let needed = peers.iter().any(|peer| peer.target.interface == target.interface);
    if info.is_some_and(|info| info.access.made_interface) && !needed && open.is_empty() {
        iscsiadm.delete_interface(&target.interface)?;
    }
    Ok(())
}

/// Whether it is the session of this portal.
fn login_is_of(login: &Login, target: &Target, session: &Session, seen: &Seen) -> bool {
    target.session(seen, &login.portal).is_some_and(|its| its.number == session.number)
}

impl Info {
    /// Whether it was set up by this session.
    fn uses(&self, session: &Session) -> bool {
        let is_used = |login: &Login| {
            matches!(&login.state, Some(State::LoggingIn(_)))
                || matches!(&login.state, Some(State::Ours(n) | State::Others(n)) if *n == session.number)
        };
        self.target.has(session) && self.access.logins.iter().any(is_used)
    }
}

/// Whether the database says that nobody else makes this session: another program made it for the volume, then.
fn is_of_file(iscsiadm: Iscsiadm<'_>, file: &Target, session: &Session) -> bool {
    let Some(address) = session.address.as_deref() else { return false };
    let portal = Portal { host: address.to_owned(), port: session.port.unwrap_or(PORT), addresses: None }.to_string();
    let node = Node { iqn: &file.iqn, portal: &portal, interface: &file.interface };
    match iscsiadm.node(node) {
        Ok(record) => record.is_some_and(|record| !starts_by_itself(&record)),
        Err(error) => {
            tracing::warn!(session = session.name, "whether it may be ended is not known: {}", error.problem().message);
            false
        }
    }
}

/// Who uses a unit of this session.
fn in_use(host: &Host, seen: &Seen, session: &Session) -> Result<Option<String>, VolumeError> {
    for disk in seen.disks.iter().filter(|disk| disk.session.as_ref() == Some(&session.name)) {
        let lun = seen.lun_of(std::slice::from_ref(disk));
        let users = host.sys.users(host, seen, &lun)?;
        if !users.is_empty() {
            return Ok(Some(left_in_use(&lun.shown(), &users)));
        }
    }
    // One of its disks may be among them.
    Ok(seen.unreadable.iter().find(|name| name.starts_with("sd")).map(|name| format!("what {name} is cannot be told")))
}

/// Takes off the units that have a multipath map and no other paths than those by these sessions: the map would stay without
/// any.
fn flush_maps(host: &Host, closing: &[&Session]) -> Result<(), VolumeError> {
    let is_closing = |disk: &Disk| closing.iter().any(|session| disk.session.as_ref() == Some(&session.name));
    let alone = |seen: &Seen, name: &str| -> Lun {
        let lun = seen.disk(name).map(|disk| seen.lun_of(std::slice::from_ref(disk))).unwrap_or_default();
        if !lun.maps.is_empty() && lun.disks.iter().all(is_closing) { lun } else { Lun::default() }
    };
    for disk in host.sys.look()?.disks.iter().filter(|disk| is_closing(disk)) {
        host.sys.take_off(host, |seen| alone(seen, &disk.name))?;
    }
    Ok(())
}

fn end(host: &Host, iscsiadm: Iscsiadm<'_>, session: &Session) -> Result<(), VolumeError> {
    tracing::info!(session = session.name, target = session.target, "logs out");
    iscsiadm.log_out(session.number)?;
    let is_gone = |seen: &Seen| (!seen.sessions.iter().any(|its| its.number == session.number)).then_some(());
    match host.sys.wait_for(host.tool_deadline / 4, is_gone)? {
        Ok(()) => Ok(()),
        Err(_) => Err(VolumeError::Refused(Problem::new(
            "SessionOpen",
            format!(
                "iscsiadm said that the session {} with {} is ended, and it is still there",
                session.number, session.target
            ),
            "Look into the log of iscsid. It is tried again.",
        ))),
    }
}
