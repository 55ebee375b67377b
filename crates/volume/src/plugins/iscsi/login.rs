//! Logs in to a target, by each portal that has no session yet.
//!
//! The record says that it is about to, and which sessions there were, before a session can come: whatever ends in between,
//! one that is there afterwards and was not before is of our making. One that was there before is used, and it is somebody
//! else's unless another volume's record says that it is ours.

use refloat_csi::Secrets;

use super::chap;
use super::info::{Access, Info, Login, State};
use super::iscsiadm::{Iscsiadm, Node};
use super::target::{Portal, Target};
use crate::scsi::{Hold, Seen};
use crate::{Host, MountDevice, Problem, ToolError, VolumeError};

/// The part of an operation's time that one call may take: of each portal there are two that may wait, and the disk is waited
/// for afterwards.
const PART: u32 = 4;

/// What is to be logged in to, and how.
pub(super) struct Way<'a> {
    pub(super) target: &'a Target,
    /// The initiator name of the volume's own, and the interface record that its own is made like.
    pub(super) initiator: Option<(&'a str, &'a str)>,
    pub(super) chap: &'a Secrets,
    pub(super) chap_session: bool,
    pub(super) chap_discovery: bool,
}

/// One at a time: who logs in to a target and who logs out of it must not meet.
pub(super) fn hold(host: &Host, target: &Target) -> Result<Hold, VolumeError> {
    host.sys.hold(&format!("iSCSI target {}", target.iqn), host.tool_deadline)
}

/// What the records of this and other volumes say of how the target is reached, with the sessions as they are now.
pub(super) fn known(target: &Target, host: &Host, own: Option<&Access>, peers: &[Info], seen: &Seen) -> Access {
    let mut access = Access::new(&host.boot_id);
    let alike = |peer: &&Info| peer.target.iqn == target.iqn && peer.target.interface == target.interface;
    access.made_interface = own.is_some_and(|own| own.made_interface)
        || peers.iter().any(|peer| peer.target.interface == target.interface && peer.access.made_interface);
    for portal in &target.portals {
        let own = own.and_then(|own| own.login(portal));
        let of_peers = peers.iter().filter(alike).filter_map(|peer| peer.access.login(portal));
        let all: Vec<&Login> = own.into_iter().chain(of_peers).collect();
        let session = target.session(seen, portal).map(|session| session.number);
        let state = session.map(|number| {
            if all.iter().any(|login| login.claims(number)) { State::Ours(number) } else { State::Others(number) }
        });
        access.logins.push(Login {
            portal: portal.clone(),
            // Without a session, what this record says stands: it may still come.
            state: state.or_else(|| own.and_then(|own| own.state.clone()).filter(|s| matches!(s, State::LoggingIn(_)))),
            made_node: all.iter().find_map(|login| login.made_node.clone()),
            made_discovery: own.is_some_and(|own| own.made_discovery),
        });
    }
    access
}

/// Sees to it that there is a session by at least one portal, by all of them if they answer. `announce` makes what it is given
/// durable, and is called at least once: then other volumes know that this one uses these sessions.
pub(super) fn log_in(
    step: &MountDevice<'_>,
    way: &Way<'_>,
    before: Option<&Access>,
    announce: &dyn Fn(&Access) -> Result<(), VolumeError>,
) -> Result<Access, VolumeError> {
    let (host, target) = (step.host, way.target);
    let _hold = hold(host, target)?;
    let peers = Info::of_peers(&step.peers.devices()?, step.path.as_str(), &host.boot_id);
    let seen = host.sys.look()?;
    let mut access = known(target, host, before, &peers, &seen);
    let missing: Vec<usize> =
        (0..access.logins.len()).filter(|n| target.session(&seen, &access.logins[*n].portal).is_none()).collect();
    if missing.is_empty() {
        announce(&access)?;
        return Ok(access);
    }
    let iscsiadm = Iscsiadm { patience: host.tool_deadline / PART, secrets: way.chap };
    if let Some((initiator, like)) = way.initiator
        && iscsiadm.interface(&target.interface)?.is_none()
    {
        access.made_interface = true;
        announce(&access)?;
        iscsiadm.make_interface(&target.interface, like, initiator)?;
    }
    let mut failed: Vec<VolumeError> = vec![];
    let places = discover(host, way, iscsiadm, &mut access, &missing, announce)?;
    let mut ready: Vec<(usize, String, bool)> = vec![];
    let numbers: Vec<u32> = seen.sessions.iter().map(|session| session.number).collect();
    for (n, place) in missing.into_iter().zip(places) {
        let found = place.and_then(|place| {
            let node = Node { iqn: &target.iqn, portal: &place, interface: &target.interface };
            let is_there = iscsiadm.node(node)?.is_some();
            Ok((n, place, is_there))
        });
        match found {
            Ok((n, place, is_there)) => {
                let login = &mut access.logins[n];
                if !is_there {
                    login.made_node = Some(place.clone());
                }
                login.state = Some(State::LoggingIn(match login.state.take() {
                    // One that came since then is of our making too.
                    Some(State::LoggingIn(before)) => before,
                    _ => numbers.clone(),
                }));
                ready.push((n, place, is_there));
            }
            Err(error) => {
                told(&access.logins[n].portal, target, &error);
                failed.push(error);
            }
        }
    }
    announce(&access)?;
    let made = on_threads(&ready, |(n, place, is_there)| {
        let node = Node { iqn: &target.iqn, portal: place, interface: &target.interface };
        if !is_there {
            iscsiadm.make_node(node)?;
        }
        // What others made has their own.
        if way.chap_session && access.logins[*n].made_node.is_some() {
            chap::for_session(host, way.chap, node.iqn, node.portal, node.interface)?;
        }
        tracing::info!(target = node.iqn, portal = node.portal, interface = node.interface, "logs in");
        iscsiadm.log_in(node)
    });
    let seen = host.sys.look()?;
    for ((n, ..), made) in ready.into_iter().zip(made) {
        let login = &mut access.logins[n];
        if let Some(session) = target.session(&seen, &login.portal) {
            // Whatever the program said, it is there.
            let is_ours = login.claims(session.number) && !matches!(made, Ok(false));
            login.state = Some(if is_ours { State::Ours(session.number) } else { State::Others(session.number) });
            continue;
        }
        let error = made.err().unwrap_or_else(|| no_session(&login.portal, target));
        told(&login.portal, target, &error);
        failed.push(error);
    }
    announce(&access)?;
    if target.sessions(&seen).next().is_none() {
        return Err(failed.into_iter().next().unwrap_or_else(|| no_session(&target.portals[0], target)));
    }
    Ok(access)
}

/// Where the portals are by their own word, each asked on a thread of its own.
///
/// `iscsiadm` gives all its discoveries one session identifier, so that two at a time with one storage end each other there
/// (RFC 7143, 6.3.5: session reinstatement), whichever portals they use. Those that failed are tried again, one after another; not
/// those that did not answer, for one of these must not take the others' time.
fn discover(
    host: &Host,
    way: &Way<'_>,
    iscsiadm: Iscsiadm<'_>,
    access: &mut Access,
    missing: &[usize],
    announce: &dyn Fn(&Access) -> Result<(), VolumeError>,
) -> Result<Vec<Result<String, VolumeError>>, VolumeError> {
    let target = way.target;
    let mut holds = vec![];
    if way.chap_discovery {
        for n in missing {
            let login = &mut access.logins[*n];
            // Other targets may be behind the same portal.
            holds.push(host.sys.hold(&format!("iSCSI portal {}", login.portal), host.tool_deadline)?);
            login.made_discovery = login.made_discovery || !iscsiadm.has_discovery(&login.portal)?;
        }
        announce(access)?;
    }
    let ask = |n: &usize| {
        let login = &access.logins[*n];
        if login.made_discovery {
            iscsiadm.make_discovery(&login.portal)?;
            chap::for_discovery(host, way.chap, &login.portal)?;
        }
        let found = iscsiadm.discover(&login.portal, &target.iqn, &target.interface);
        if login.made_discovery {
            iscsiadm.delete_discovery(&login.portal)?;
        }
        found
    };
    let mut found = on_threads(missing, ask);
    if missing.len() > 1 {
        for (n, found) in missing.iter().zip(&mut found) {
            if matches!(found, Err(VolumeError::Tool(ToolError::Failed { .. }))) {
                *found = ask(n);
            }
        }
    }
    for (n, found) in missing.iter().zip(&found) {
        access.logins[*n].made_discovery &= found.is_err();
    }
    Ok(found)
}

/// The answers for all of these, in their order.
fn on_threads<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(|| work(one))).collect();
        let answers = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        answers.map(|answer| answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

fn told(portal: &Portal, target: &Target, error: &VolumeError) {
    let message = error.problem().message;
    tracing::warn!(code = "PortalNotUsed", "{} is not reached by the portal {portal}: {message}", target.iqn);
}

fn no_session(portal: &Portal, target: &Target) -> VolumeError {
    VolumeError::Refused(Problem::new(
        "NoSession",
        format!("after the login to {} at {portal} there is no session with it", target.iqn),
        "Look into the log of iscsid. It is tried again.",
    ))
}
