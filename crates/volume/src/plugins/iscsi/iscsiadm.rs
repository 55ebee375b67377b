//! Calls of `iscsiadm`: each with a deadline, with exactly what it is to touch, and without any secret among its arguments.
//!
//! # Source
//! iscsiadm(8), and its exit codes in `include/iscsi_err.h` of open-iscsi.

use std::ffi::OsStr;
use std::time::Duration;

use refloat_csi::Secrets;

use super::target::{Portal, same_host};
use crate::{Host, Problem, ToolOutput, VolumeError, run_tool};

const PROGRAM: &str = "iscsiadm";

/// `ISCSI_ERR_SESS_EXISTS`: there is such a session already.
const EXISTS: i32 = 15;
/// `ISCSI_ERR_NO_OBJS_FOUND`: no such record or session.
const NOT_THERE: i32 = 21;
/// `ISCSI_ERR_IDBM`: of a record that is not there, older ones say so.
const DATABASE: i32 = 6;
/// `ISCSI_ERR_LOGIN_AUTH_FAILED`.
const REFUSED: i32 = 24;

/// What is called, for one volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct Iscsiadm<'a> {
    /// How long one call may take.
    pub(super) patience: Duration,
    /// What must not be in a message.
    pub(super) secrets: &'a Secrets,
}

/// A record of the database about one portal of a target by one interface.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) iqn: &'a str,
    /// `10.0.0.5:3260,1`.
    pub(super) portal: &'a str,
    pub(super) interface: &'a str,
}

impl Iscsiadm<'_> {
    /// Runs it. Any end is an answer, but one by the deadline.
    fn run(self, args: &[&str]) -> Result<ToolOutput, VolumeError> {
        let given: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        run_tool(PROGRAM, &given, self.patience).map_err(|error| {
            if crate::disk::is_missing(&error) {
                return crate::disk::missing(PROGRAM, "open-iscsi, iscsi-initiator-utils or the like");
            }
            VolumeError::Tool(error)
        })
    }

    /// The same, where only one end is a good one.
    fn done(self, args: &[&str]) -> Result<String, VolumeError> {
        let output = self.run(args)?;
        self.success(output)
    }

    fn success(self, output: ToolOutput) -> Result<String, VolumeError> {
        if output.code == Some(REFUSED) {
            return Err(VolumeError::Refused(Problem::new(
                "ChapRefused",
                format!("the target refused the login: {}", output.said(self.secrets)),
                "Compare the keys of the volume's Secret, and chapAuthSession and chapAuthDiscovery, with what the target wants.",
            )));
        }
        let output = output.success_without(PROGRAM, self.secrets).map_err(VolumeError::Tool)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The same for what may not be there; whether it was.
    fn there(self, args: &[&str]) -> Result<Option<String>, VolumeError> {
        let output = self.run(args)?;
        match output.code {
            Some(NOT_THERE | DATABASE) => Ok(None),
            _ => self.success(output).map(Some),
        }
    }

    /// The place and portal group of the target at this portal, as the portal itself says: `10.0.0.5:3260,1`. Nothing of what
    /// it says is kept in the database.
    pub(super) fn discover(self, portal: &Portal, iqn: &str, interface: &str) -> Result<String, VolumeError> {
        let at = portal.to_string();
        let how = ["-D", "-o", "nonpersistent"];
        let said =
            self.done(&[&["-m", "discoverydb", "-t", "sendtargets", "-p", &at, "-I", interface], &how[..]].concat())?;
        let offered = said.lines().filter_map(|line| line.split_once(' ')).filter(|(_, name)| name.trim() == iqn);
        let offered: Vec<&str> = offered.map(|(place, _)| place).collect();
        let is_here = |place: &&&str| {
            // The group becomes a part of a path in the database, and is nothing but a number.
            let parsed = place.rsplit_once(',').filter(|(_, group)| group.parse::<u16>().is_ok());
            let parsed = parsed.and_then(|(place, _)| Portal::parse(place));
            parsed.is_some_and(|place| portal.is_at(&place.host, place.port))
        };
        if let Some(place) = offered.iter().find(is_here) {
            return Ok((*place).to_owned());
        }
        let what = match offered.as_slice() {
            [] => "it does not offer the target".to_owned(),
            offered => {
                format!("it offers the target at {}, and not at itself", self.secrets.hidden_in(&offered.join(", ")))
            }
        };
        Err(VolumeError::Refused(Problem::new(
            "TargetNotOffered",
            format!("the portal {at} was asked for {iqn}: {what}"),
            "Correct the volume's targetPortal, portals or iqn, or let the target offer itself to this node.",
        )))
    }

    /// Whether there is a record for discoveries at this portal.
    pub(super) fn has_discovery(self, portal: &Portal) -> Result<bool, VolumeError> {
        let at = portal.to_string();
        Ok(self.there(&["-m", "discoverydb", "-t", "sendtargets", "-p", &at])?.is_some())
    }

    pub(super) fn make_discovery(self, portal: &Portal) -> Result<(), VolumeError> {
        self.done(&["-m", "discoverydb", "-t", "sendtargets", "-p", &portal.to_string(), "-o", "new"]).map(drop)
    }

    pub(super) fn delete_discovery(self, portal: &Portal) -> Result<(), VolumeError> {
        self.there(&["-m", "discoverydb", "-t", "sendtargets", "-p", &portal.to_string(), "-o", "delete"]).map(drop)
    }

    /// What the database has of it, line by line; none if it has none.
    pub(super) fn node(self, node: Node<'_>) -> Result<Option<String>, VolumeError> {
        self.there(&["-m", "node", "-T", node.iqn, "-p", node.portal, "-I", node.interface])
    }

    /// Makes a record. It is not used at a boot, and what it logs in to does not bring all units of the target.
    pub(super) fn make_node(self, node: Node<'_>) -> Result<(), VolumeError> {
        let of = ["-m", "node", "-T", node.iqn, "-p", node.portal, "-I", node.interface];
        self.done(&[&of[..], &["-o", "new"]].concat())?;
        self.done(&[&of[..], &["-o", "update", "-n", "node.startup", "-v", "manual"]].concat())?;
        // Old ones do not know this.
        let scan = self.done(&[&of[..], &["-o", "update", "-n", "node.session.scan", "-v", "manual"]].concat());
        if let Err(error) = scan {
            tracing::debug!("all units of {} will come: {error}", node.iqn);
        }
        Ok(())
    }

    pub(super) fn delete_node(self, node: Node<'_>) -> Result<(), VolumeError> {
        let of = ["-m", "node", "-T", node.iqn, "-p", node.portal, "-I", node.interface];
        self.there(&[&of[..], &["-o", "delete"]].concat()).map(drop)
    }

    /// Whether it made the session; not if there was one.
    pub(super) fn log_in(self, node: Node<'_>) -> Result<bool, VolumeError> {
        let output = self.run(&["-m", "node", "-T", node.iqn, "-p", node.portal, "-I", node.interface, "--login"])?;
        if output.code == Some(EXISTS) {
            return Ok(false);
        }
        self.success(output).map(|_| true)
    }

    /// Ends exactly this session.
    pub(super) fn log_out(self, session: u32) -> Result<(), VolumeError> {
        self.there(&["-m", "session", "-r", &session.to_string(), "-u"]).map(drop)
    }

    pub(super) fn interface(self, name: &str) -> Result<Option<String>, VolumeError> {
        self.there(&["-m", "iface", "-I", name])
    }

    /// Makes an interface record like another one, with this initiator name.
    pub(super) fn make_interface(self, name: &str, like: &str, initiator: &str) -> Result<(), VolumeError> {
        let of = ["-m", "iface", "-I", name];
        let settings = self.interface(like)?.ok_or_else(|| {
            VolumeError::Refused(Problem::new(
                "NoInterface",
                format!("open-iscsi has no interface record {like:?}"),
                "Make it, or correct the volume's iscsiInterface. It is tried again.",
            ))
        })?;
        self.done(&[&of[..], &["-o", "new"]].concat())?;
        for (key, value) in settings.lines().filter_map(|line| line.split_once(" = ")) {
            let (key, value) = (key.trim(), value.trim());
            let is_own = ["iface.iscsi_ifacename", "iface.initiatorname"].contains(&key);
            if !is_own && key.starts_with("iface.") && value != "<empty>" {
                self.done(&[&of[..], &["-o", "update", "-n", key, "-v", value]].concat())?;
            }
        }
        self.done(&[&of[..], &["-o", "update", "-n", "iface.initiatorname", "-v", initiator]].concat()).map(drop)
    }

    pub(super) fn delete_interface(self, name: &str) -> Result<(), VolumeError> {
        self.there(&["-m", "iface", "-I", name, "-o", "delete"]).map(drop)
    }
}

/// Whether a record of the database is used at a boot, so that its session may be anybody's.
///
/// # Source
/// `node.startup` of iscsid.conf: `manual`, `automatic`, `onboot`.
pub(super) fn starts_by_itself(record: &str) -> bool {
    let startup = record.lines().filter_map(|line| line.split_once('=')).find(|(key, _)| key.trim() == "node.startup");
    startup.is_none_or(|(_, value)| value.trim() != "manual")
}

/// The addresses that a name stands for on this node.
pub(super) fn addresses_of(host: &Host, name: &str) -> Result<Vec<String>, VolumeError> {
    let args = [OsStr::new("ahosts"), OsStr::new(name)];
    let output = run_tool("getent", &args, host.tool_deadline / 3).map_err(|error| {
        if crate::disk::is_missing(&error) {
            crate::disk::missing("getent", "libc-bin, glibc-common or the like")
        } else {
            VolumeError::Tool(error)
        }
    })?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut addresses: Vec<String> = vec![];
    for address in said.lines().filter_map(|line| line.split_whitespace().next()) {
        if address.parse::<std::net::IpAddr>().is_ok() && !addresses.iter().any(|its| same_host(its, address)) {
            addresses.push(address.to_owned());
        }
    }
    if output.code != Some(0) || addresses.is_empty() {
        return Err(VolumeError::Refused(Problem::new(
            "PortalUnknown",
            format!("the name {name} of the volume's portal stands for no address on this node"),
            "Look at this node's name resolution, or give the portal as an address. It is tried again.",
        )));
    }
    Ok(addresses)
}
