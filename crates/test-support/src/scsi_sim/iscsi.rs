//! iSCSI: targets with portals, sessions in sysfs, and an `iscsiadm` with a database of its own.
//!
//! # Source
//! `drivers/scsi/scsi_transport_iscsi.c` and `iscsi_tcp.c` of the kernel: each session has a SCSI host of its own, its number is
//! not given twice, and with it go its disks, used or not. `usr/iscsiadm.c`, `usr/idbm.c` and `include/iscsi_err.h` of open-iscsi.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Port, ScsiSim, Shared, State, Transport, files, must};

/// The program `iscsiadm`, of which only what is needed is done.
pub const ISCSIADM: (&str, &str) = ("iscsiadm", include_str!("iscsiadm.sh"));

/// What a portal does when somebody wants something of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PortalDoes {
    /// It answers.
    #[default]
    Well,
    /// Nobody is there: `iscsiadm` says so after a while.
    Refuse,
    /// `iscsiadm` never ends.
    Hang,
    /// Another discovery takes the place of the first one, as of two at a time; later ones are answered.
    EndDiscovery,
    /// `iscsiadm` never ends a login, and the session comes all the same.
    LogInUnseen,
    /// A discovery prints much that nobody can read, and offers the target by a portal group that is a path; with it stand the
    /// passwords.
    OfferGarbage,
    /// A login is refused with the same.
    LogInGarbage,
}

/// What the end of a session is like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogOutDoes {
    /// It ends.
    #[default]
    Well,
    /// `iscsiadm` says that it cannot.
    Refuse,
    /// `iscsiadm` says that it is done, and it is not.
    Lie,
    /// `iscsiadm` never ends.
    Hang,
    /// `iscsiadm` fails and prints much that nobody can read.
    Garbage,
}

/// What [`PortalDoes::OfferGarbage`], [`PortalDoes::LogInGarbage`] and [`LogOutDoes::Garbage`] print: what a terminal would obey,
/// the passwords where a message is cut, and more than anybody keeps.
fn garbage(passwords: &[&str]) -> String {
    let mut said = format!("\u{1b}[2J\r{}", "x".repeat(985));
    for password in passwords {
        let _ = write!(said, " {password}");
    }
    said.extend(std::iter::repeat_n("\u{1b}[31m\u{7}\0", 40_000));
    said
}

/// A portal of a target.
#[derive(Debug, Clone)]
struct Portal {
    address: String,
    port: u16,
    group: u32,
    does: PortalDoes,
}

/// A target.
#[derive(Debug, Clone, Default)]
pub(super) struct Target {
    portals: Vec<Portal>,
    units: Vec<String>,
    /// User and password for a session, and for a discovery.
    chap: Option<(String, String)>,
    discovery_chap: Option<(String, String)>,
}

impl Target {
    fn passwords(&self) -> Vec<&str> {
        [&self.chap, &self.discovery_chap].into_iter().flatten().map(|(_, password)| password.as_str()).collect()
    }
}

/// A session.
#[derive(Debug, Clone)]
pub(super) struct Session {
    iqn: String,
    port: u16,
    interface: String,
    place: Port,
}

/// What the simulation has of iSCSI.
#[derive(Debug, Default)]
pub(super) struct Iscsi {
    targets: BTreeMap<String, Target>,
    sessions: BTreeMap<u32, Session>,
    log_out: LogOutDoes,
    calls: Vec<String>,
}

impl ScsiSim {
    /// Where the database of open-iscsi is.
    pub fn iscsi(&self) -> PathBuf {
        self.shared.root.join("iscsi")
    }

    /// Gives the array a target with this many portals, and answers its name and where they are: `127.0.0.1:20001`.
    ///
    /// # Panics
    /// [`ISCSIADM`] is not in the `PATH`.
    pub fn target(&self, portals: usize) -> (String, Vec<String>) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // No two of one program may have the same, for `iscsiadm` is told no more.
        let iqn = format!("iqn.2001-04.org.example:disk-{count}");
        let place = |n: usize| Portal {
            address: "127.0.0.1".into(),
            port: u16::try_from(20_000 + 8 * (count as usize) + n).expect("few targets"),
            group: u32::try_from(n).expect("few portals") + 1,
            does: PortalDoes::Well,
        };
        let portals = (0..portals).map(place).collect();
        self.target_called(&iqn, portals)
    }

    fn target_called(&self, iqn: &str, portals: Vec<Portal>) -> (String, Vec<String>) {
        let shown: Vec<String> = portals.iter().map(|portal| format!("{}:{}", portal.address, portal.port)).collect();
        self.shared.register("targets", iqn);
        for portal in &portals {
            for host in [portal.address.as_str(), "localhost"] {
                self.shared.register("portals", &format!("{host}:{}", portal.port));
            }
        }
        self.state().iscsi.targets.insert(iqn.to_owned(), Target { portals, ..Target::default() });
        (iqn.to_owned(), shown)
    }

    /// Gives the array another target, whose name begins with that of this one, behind the same portals.
    pub fn target_beside(&self, iqn: &str) -> String {
        let portals = self.at_target(iqn, |target| target.portals.clone());
        self.target_called(&format!("{iqn}-b"), portals).0
    }

    fn at_target<T>(&self, iqn: &str, change: impl FnOnce(&mut Target) -> T) -> T {
        change(self.state().iscsi.targets.get_mut(iqn).expect("a target"))
    }

    /// Puts a unit behind a target: who logs in sees it.
    pub fn put_behind(&self, unit: &str, iqn: &str) {
        self.at_target(iqn, |target| target.units.push(unit.to_owned()));
        let mut state = self.state();
        let of_target = state.iscsi.sessions.values().filter(|session| session.iqn == iqn);
        let places: Vec<Port> = of_target.map(|session| session.place).collect();
        state.units.get_mut(unit).expect("a unit").ports.extend(places);
    }

    /// What the target wants of who logs in.
    pub fn want_chap(&self, iqn: &str, session: Option<(&str, &str)>, discovery: Option<(&str, &str)>) {
        let owned = |pair: (&str, &str)| (pair.0.to_owned(), pair.1.to_owned());
        self.at_target(iqn, |target| {
            target.chap = session.map(owned);
            target.discovery_chap = discovery.map(owned);
        });
    }

    /// What a portal of a target does from now on.
    pub fn portal(&self, iqn: &str, index: usize, does: PortalDoes) {
        self.at_target(iqn, |target| target.portals[index].does = does);
    }

    /// What the end of a session is like from now on.
    pub fn log_outs(&self, does: LogOutDoes) {
        self.state().iscsi.log_out = does;
    }

    /// Somebody else logs in by a portal, with a record that says when that is done by itself; answers the session's number.
    ///
    /// # Panics
    /// There is such a session.
    pub fn somebody_logs_in(&self, iqn: &str, index: usize, startup: &str) -> u32 {
        let mut state = self.state();
        let portal = state.iscsi.targets.get(iqn).expect("a target").portals[index].clone();
        let file = self.shared.node_file(iqn, &portal, "default");
        must("a record", Shared::write_record(&file, &record(iqn, &portal, "default", startup)));
        self.shared.log_in(&mut state, iqn, &portal, "default", true)
    }

    /// All sessions end by themselves, as with the machine.
    pub fn end_sessions(&self) {
        let mut state = self.state();
        let all: Vec<u32> = state.iscsi.sessions.keys().copied().collect();
        for session in all {
            self.shared.end_session(&mut state, session);
        }
    }

    /// The numbers of the sessions with a target.
    pub fn sessions(&self, iqn: &str) -> Vec<u32> {
        self.state().iscsi.sessions.iter().filter(|(_, its)| its.iqn == iqn).map(|(number, _)| *number).collect()
    }

    /// The arguments of every call of `iscsiadm`.
    pub fn iscsiadm_calls(&self) -> Vec<String> {
        self.state().iscsi.calls.clone()
    }
}

/// What `iscsiadm` prints of a record that was made anew; the configuration of some distributions logs in at a boot.
fn record(iqn: &str, portal: &Portal, interface: &str, startup: &str) -> String {
    let Portal { address, port, group, .. } = portal;
    format!(
        "# BEGIN RECORD 2.1.8\nnode.name = {iqn}\nnode.tpgt = {group}\nnode.startup = {startup}\n\
         iface.iscsi_ifacename = {interface}\nnode.session.auth.authmethod = None\nnode.session.scan = auto\n\
         node.conn[0].address = {address}\nnode.conn[0].port = {port}\n# END RECORD\n"
    )
}

fn line<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let lines = text.lines().filter_map(|line| line.split_once(" = "));
    lines.filter(|(its, _)| its.trim() == name).map(|(_, value)| value).next_back()
}

/// The same text with this setting.
fn with(text: &str, name: &str, value: &str) -> String {
    let others = text.lines().filter(|line| line.split_once(" = ").is_none_or(|(its, _)| its.trim() != name));
    let mut lines: Vec<String> = others.map(str::to_owned).collect();
    let end = lines.iter().position(|line| line == "# END RECORD").unwrap_or(lines.len());
    lines.insert(end, format!("{name} = {value}"));
    lines.join("\n") + "\n"
}

fn is_let_in(wanted: Option<&(String, String)>, record: &str, of: &str) -> bool {
    wanted.is_none_or(|(user, password)| {
        line(record, &format!("{of}.authmethod")) == Some("CHAP")
            && line(record, &format!("{of}.username")) == Some(user)
            && line(record, &format!("{of}.password")) == Some(password)
    })
}

/// Exit code and what is printed; none if it never ends.
type Answer = Option<(i32, String)>;

#[allow(clippy::unnecessary_wraps)] // as its like
fn good(text: impl Into<String>) -> Answer {
    Some((0, text.into()))
}

#[allow(clippy::unnecessary_wraps)] // as its like
fn bad(code: i32, text: &str) -> Answer {
    Some((code, format!("iscsiadm: {text}\n")))
}

fn none() -> Answer {
    bad(21, "No records found")
}

/// The arguments of a call.
struct Call<'a>(Vec<&'a str>);

impl<'a> Call<'a> {
    fn after(&self, flag: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|word| *word == flag)?;
        self.0.get(at + 1).copied()
    }

    fn has(&self, flag: &str) -> bool {
        self.0.contains(&flag)
    }

    /// Address and port.
    fn portal(&self) -> Option<(&'a str, u16)> {
        let text = self.after("-p")?.split(',').next()?;
        let (address, port) = text.rsplit_once(':')?;
        Some((address, port.parse().ok()?))
    }
}

impl Shared {
    fn register(&self, kind: &str, name: &str) {
        let registry = self.registry.as_ref().and_then(|maps| Some(maps.parent()?.join("iscsi").join(kind)));
        let registry = registry.expect("the simulated programs are in the PATH");
        must("a folder", std::fs::create_dir_all(&registry));
        must("whose it is", std::fs::write(registry.join(name), self.root.to_string_lossy().as_bytes()));
    }

    fn node_file(&self, iqn: &str, portal: &Portal, interface: &str) -> PathBuf {
        let place = format!("{},{},{}", portal.address, portal.port, portal.group);
        self.root.join("iscsi/nodes").join(iqn).join(place).join(interface)
    }

    fn write_record(file: &Path, text: &str) -> io::Result<()> {
        std::fs::create_dir_all(file.parent().expect("a folder"))?;
        std::fs::write(file, text)?;
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600))
    }

    /// What a call of `iscsiadm` does and says.
    pub(super) fn iscsiadm(&self, state: &mut State, args: &str) -> Answer {
        let call = Call(args.lines().collect());
        state.iscsi.calls.push(call.0.join(" "));
        match call.after("-m") {
            Some("discoverydb") => self.discovery(state, &call),
            Some("node") => self.node(state, &call),
            Some("session") => {
                let number: u32 = call.after("-r").and_then(|number| number.parse().ok())?;
                if !state.iscsi.sessions.contains_key(&number) {
                    return bad(21, "No session found.");
                }
                state.events.push(format!("logout {number}"));
                match state.iscsi.log_out {
                    LogOutDoes::Hang => return None,
                    LogOutDoes::Refuse => {
                        return bad(10, "Could not logout of [sid]. initiator reported error (10 - logout failed)");
                    }
                    LogOutDoes::Garbage => return bad(10, &garbage(&[])),
                    LogOutDoes::Lie => {}
                    LogOutDoes::Well => self.end_session(state, number),
                }
                good(format!("Logout of [sid: {number}] successful.\n"))
            }
            Some("iface") => self.interface(state, &call),
            _ => bad(7, "this is not done here"),
        }
    }

    fn interface(&self, state: &mut State, call: &Call<'_>) -> Answer {
        let name = call.after("-I")?;
        let file = self.root.join("iscsi/ifaces").join(name);
        let text = std::fs::read_to_string(&file).ok();
        match (call.after("-o"), text) {
            (Some("new"), _) => {
                state.events.push(format!("interface {name}"));
                must("an interface", Self::write_record(&file, &format!("iface.iscsi_ifacename = {name}\n")));
            }
            (_, None) => return none(),
            (Some("update"), Some(text)) => {
                must("an interface", Self::write_record(&file, &with(&text, call.after("-n")?, call.after("-v")?)));
            }
            (Some("delete"), Some(_)) => {
                state.events.push(format!("no interface {name}"));
                must("an interface", std::fs::remove_file(&file));
            }
            (_, Some(text)) => return good(text),
        }
        good("")
    }

    fn discovery(&self, state: &mut State, call: &Call<'_>) -> Answer {
        let (address, port) = call.portal()?;
        let file = self.root.join("iscsi/send_targets").join(format!("{address},{port}")).join("st_config");
        let text = std::fs::read_to_string(&file).ok();
        if !call.has("-D") {
            return match (call.after("-o"), text) {
                (Some("new"), _) => {
                    must("a record", Self::write_record(&file, "# BEGIN RECORD 2.1.8\n# END RECORD\n"));
                    good("New discovery record added.\n")
                }
                (_, None) => bad(21, "Discovery record not found."),
                (Some("delete"), Some(_)) => {
                    must("a record", std::fs::remove_file(&file));
                    good("")
                }
                (_, Some(text)) => good(text),
            };
        }
        let mut said = String::new();
        for (iqn, target) in &mut state.iscsi.targets {
            let here =
                |portal: &&mut Portal| portal.port == port && [portal.address.as_str(), "localhost"].contains(&address);
            let Some(portal) = target.portals.iter_mut().find(here) else { continue };
            match portal.does {
                PortalDoes::Well | PortalDoes::LogInUnseen | PortalDoes::LogInGarbage => {}
                PortalDoes::OfferGarbage => {
                    let passwords = target.passwords();
                    let secret = passwords.join(" ");
                    let place = format!("{address}:{port}");
                    return good(format!(
                        "{place},1/../../.. {iqn}\n{place}, {iqn}\n{secret} {iqn}\n{} {iqn}\n",
                        garbage(&passwords)
                    ));
                }
                PortalDoes::Hang => return None,
                PortalDoes::EndDiscovery => {
                    portal.does = PortalDoes::Well;
                    return bad(11, "Could not perform SendTargets discovery: iSCSI PDU timed out");
                }
                PortalDoes::Refuse => {
                    return bad(4, &format!("cannot make connection to {address}: Connection refused"));
                }
            }
            if !is_let_in(
                target.discovery_chap.as_ref(),
                text.as_deref().unwrap_or_default(),
                "discovery.sendtargets.auth",
            ) {
                return bad(24, "Login failed to authenticate with target");
            }
            for portal in &target.portals {
                let _ = writeln!(said, "{}:{},{} {iqn}", portal.address, portal.port, portal.group);
            }
        }
        state.events.push(format!("discover {address}:{port}"));
        if said.is_empty() { bad(21, "No portals found") } else { good(said) }
    }

    fn node(&self, state: &mut State, call: &Call<'_>) -> Answer {
        let (iqn, (address, port)) = (call.after("-T")?, call.portal()?);
        let interface = call.after("-I").unwrap_or("default");
        let portal =
            state.iscsi.targets.get(iqn)?.portals.iter().find(|its| its.port == port && its.address == address)?;
        let portal = portal.clone();
        let file = self.node_file(iqn, &portal, interface);
        let text = std::fs::read_to_string(&file).ok();
        match (call.after("-o"), text) {
            (Some("new"), _) => {
                must("a record", Self::write_record(&file, &record(iqn, &portal, interface, "automatic")));
                good("New iSCSI node added.\n")
            }
            (_, None) => none(),
            (Some("update"), Some(text)) => {
                must("a record", Self::write_record(&file, &with(&text, call.after("-n")?, call.after("-v")?)));
                good("")
            }
            (Some("delete"), Some(_)) => {
                must("a record", std::fs::remove_file(&file));
                let _ = std::fs::remove_dir(file.parent().expect("a folder"));
                good("")
            }
            (None, Some(text)) if call.has("--login") => {
                state.events.push(format!("login {address}:{port} {interface}"));
                let target = state.iscsi.targets.get(iqn)?;
                let is_it = |its: &&Session| its.iqn == iqn && its.port == port && its.interface == interface;
                match portal.does {
                    PortalDoes::Hang => return None,
                    PortalDoes::Refuse => return bad(8, "initiator reported error (8 - connection timed out)"),
                    PortalDoes::LogInGarbage => return bad(24, &garbage(&target.passwords())),
                    PortalDoes::Well
                    | PortalDoes::EndDiscovery
                    | PortalDoes::LogInUnseen
                    | PortalDoes::OfferGarbage => {}
                }
                if state.iscsi.sessions.values().any(|its| is_it(&its)) {
                    return bad(15, "default: 1 session requested, but 1 already present.");
                }
                if !is_let_in(target.chap.as_ref(), &text, "node.session.auth") {
                    return bad(24, "initiator reported error (24 - iSCSI login failed due to authorization failure)");
                }
                let all = line(&text, "node.session.scan") == Some("auto");
                self.log_in(state, iqn, &portal, interface, all);
                if portal.does == PortalDoes::LogInUnseen { None } else { good("Login successful.\n") }
            }
            (_, Some(text)) => {
                let shown = text.lines().map(|line| match line.split_once(" = ") {
                    Some((name, _)) if name.contains("password") => format!("{name} = ********\n"),
                    _ => format!("{line}\n"),
                });
                good(shown.collect::<String>())
            }
        }
    }

    /// A session begins; `all`: with all units of the target.
    fn log_in(&self, state: &mut State, iqn: &str, portal: &Portal, interface: &str, all: bool) -> u32 {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let host = 10 + u32::try_from(state.ports.len()).expect("few ports") + number;
        let place = Port { host, target: 0 };
        let transport = Transport::Session(number);
        must("the files of a port", self.make_port(place, &transport));
        let of = self.root.join(format!("sys/devices/host{host}/session{number}"));
        let files = [
            (format!("iscsi_session/session{number}"), "targetname", iqn.to_owned()),
            (format!("iscsi_session/session{number}"), "ifacename", interface.to_owned()),
            (format!("iscsi_session/session{number}"), "target_id", "0".to_owned()),
            (format!("iscsi_session/session{number}"), "state", "LOGGED_IN".to_owned()),
            (format!("iscsi_session/session{number}"), "password", "(null)".to_owned()),
            (
                format!("connection{number}:0/iscsi_connection/connection{number}:0"),
                "persistent_address",
                portal.address.clone(),
            ),
            (
                format!("connection{number}:0/iscsi_connection/connection{number}:0"),
                "persistent_port",
                portal.port.to_string(),
            ),
        ];
        for (folder, name, text) in files {
            must("a folder", std::fs::create_dir_all(of.join(&folder)));
            must(name, std::fs::write(of.join(folder).join(name), text + "\n"));
        }
        let links = [
            (
                "iscsi_connection",
                format!("connection{number}:0"),
                format!("connection{number}:0/iscsi_connection/connection{number}:0"),
            ),
            ("iscsi_session", format!("session{number}"), format!("iscsi_session/session{number}")),
        ];
        for (class, name, folder) in links {
            let class = self.root.join("sys/class").join(class);
            must("a class", std::fs::create_dir_all(&class));
            let place = format!("../../devices/host{host}/session{number}/{folder}");
            must("a link", symlink(place, class.join(name)));
        }
        self.register("sessions", &number.to_string());
        state.ports.push((place, transport));
        let units = state.iscsi.targets.get(iqn).map(|target| target.units.clone()).unwrap_or_default();
        for unit in units {
            state.units.get_mut(&unit).expect("a unit").ports.push(place);
        }
        let (iqn, interface) = (iqn.to_owned(), interface.to_owned());
        let session = Session { iqn, port: portal.port, interface, place };
        state.iscsi.sessions.insert(number, session);
        if all {
            self.scan(state, host, [None; 3]);
        }
        number
    }

    /// A session ends, and its disks go, used or not.
    fn end_session(&self, state: &mut State, number: u32) {
        let Some(session) = state.iscsi.sessions.remove(&number) else { return };
        let disks: Vec<String> =
            state.disks.iter().filter(|(_, path)| path.port == session.place).map(|(name, _)| name.clone()).collect();
        for disk in disks {
            self.remove_disk(state, &disk);
        }
        let class = self.root.join("sys/class");
        let _ = std::fs::remove_file(class.join(format!("iscsi_session/session{number}")));
        let _ = std::fs::remove_file(class.join(format!("iscsi_connection/connection{number}:0")));
        files::remove_tree(&class.join(format!("scsi_host/host{}", session.place.host)));
        files::remove_tree(&self.root.join(format!("sys/devices/host{}", session.place.host)));
        state.ports.retain(|(port, _)| *port != session.place);
        state.units.values_mut().for_each(|unit| unit.ports.retain(|port| *port != session.place));
    }
}
