//! What the tests start in the machine: an NFS server and an iSCSI target of the kernel, iscsid, multipathd, SCSI disks over memory.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use refloat_mount::{Kernel, NodeRoot, TableReader};

use crate::kit::wait;

/// Runs a program to its end; answers what it printed, on both outputs. An error with all of that, if it fails.
pub(crate) fn say(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{program} {args:?}: {}\n{text}", output.status);
    Ok(text)
}

/// Loads modules of the kernel.
pub(crate) fn load(modules: &[&str]) -> Result<()> {
    say("modprobe", &[&["-a"], modules].concat()).map(drop)
}

/// Waits until udev has done what it was told of.
pub(crate) fn settle() -> Result<()> {
    say("udevadm", &["settle", "--timeout=30"]).map(drop)
}

/// Removes a folder with all that is in it, unless something is mounted there.
pub(crate) fn remove_tree(folder: &Path) -> Result<()> {
    let (parent, name) = (folder.parent().context("no folder")?, folder.file_name().context("no folder")?);
    let table = TableReader::new(Kernel::detect()).read()?;
    Ok(NodeRoot::open(parent)?.remove_tree(Path::new(name), &table)?)
}

/// A daemon that runs in the foreground, until this is dropped.
#[derive(Debug)]
pub(crate) struct Daemon(Child);

impl Daemon {
    fn start(program: &str, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn().with_context(|| format!("cannot run {program}"))?))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// ── iSCSI ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

const TARGETS: &str = "/sys/kernel/config/target";

/// What a target has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TargetOptions<'a> {
    /// Its name.
    pub(crate) iqn: &'a str,
    /// Its portals, `ADDRESS:PORT` each; any address of 127.0.0.0/8.
    pub(crate) portals: &'a [&'a str],
    /// How many LUNs it has, from 0.
    pub(crate) luns: u32,
    /// User and password that a login needs. A password has 12 characters or more.
    pub(crate) chap: Option<(&'a str, &'a str)>,
}

/// An iSCSI target of the kernel; it ends when it is dropped, with those of its sessions that are still there.
#[derive(Debug)]
pub(crate) struct Target {
    folder: PathBuf,
    portals: Vec<PathBuf>,
    links: Vec<PathBuf>,
    stores: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

/// Makes a target. Each LUN is a disk of 64 MiB over memory, with an identity of its own: [`Target::wwid`].
pub(crate) fn start_target(options: &TargetOptions<'_>) -> Result<Target> {
    load(&["target_core_mod", "target_core_file", "iscsi_target_mod"])?;
    let write = |path: PathBuf, text: &str| {
        std::fs::write(&path, text).with_context(|| format!("cannot write {text:?} to {}", path.display()))
    };
    let make = |path: &Path| std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()));
    let core = Path::new(TARGETS).join("core/fileio_0");
    let group = Path::new(TARGETS).join("iscsi").join(options.iqn).join("tpgt_1");
    make(&core)?;
    make(&Path::new(TARGETS).join("iscsi"))?;
    let mut target = Target { folder: group.clone(), portals: vec![], links: vec![], stores: vec![], files: vec![] };
    make(&group)?;
    let (first, name) = (options.iqn.bytes().map(u32::from).sum::<u32>(), options.iqn.replace([':', '.'], "_"));
    for lun in 0..options.luns {
        let (file, store) = (PathBuf::from(format!("/tmp/{name}-{lun}.disk")), core.join(format!("{name}_{lun}")));
        std::fs::File::create(&file)?.set_len(64 << 20)?;
        target.files.push(file.clone());
        make(&store)?;
        target.stores.push(store.clone());
        write(store.join("control"), &format!("fd_dev_name={},fd_dev_size={}", file.display(), 64 << 20))?;
        // Its hexadecimal digits become the disk's identity.
        write(store.join("wwn/vpd_unit_serial"), &format!("5ef10a7{first:08x}{lun:04x}"))?;
        write(store.join("enable"), "1")?;
        let (shown, link) = (group.join("lun").join(format!("lun_{lun}")), "disk");
        make(&shown)?;
        symlink(&store, shown.join(link)).with_context(|| format!("cannot show {}", store.display()))?;
        target.links.push(shown.join(link));
    }
    for portal in options.portals {
        let portal = group.join("np").join(portal);
        make(&portal)?;
        target.portals.push(portal);
    }
    // Whoever can log in may write.
    write(group.join("attrib/generate_node_acls"), "1")?;
    write(group.join("attrib/demo_mode_write_protect"), "0")?;
    write(group.join("attrib/authentication"), if options.chap.is_some() { "1" } else { "0" })?;
    if let Some((user, password)) = options.chap {
        write(group.join("auth/userid"), user)?;
        write(group.join("auth/password"), password)?;
    }
    write(group.join("enable"), "1")?;
    Ok(target)
}

impl Target {
    /// The identity of a LUN, as multipath and `/dev/disk/by-id/scsi-…` name it.
    pub(crate) fn wwid(&self, lun: usize) -> Result<String> {
        let serial = std::fs::read_to_string(self.stores.get(lun).context("no such LUN")?.join("wwn/vpd_unit_serial"))?;
        let serial = serial.trim().rsplit(' ').next().unwrap_or_default();
        // NAA 6, the target's company, then the serial number's digits; after them zeros.
        Ok(format!("3{:0<32}", format!("6001405{serial}")))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // In the order in which the kernel lets go of them.
        let _ = std::fs::write(self.folder.join("enable"), "0");
        for link in &self.links {
            let _ = std::fs::remove_file(link);
            let _ = link.parent().map(std::fs::remove_dir);
        }
        let folder = self.folder.parent().unwrap_or(Path::new("/nonexistent"));
        let folders = self.portals.iter().map(PathBuf::as_path).chain([self.folder.as_path(), folder]);
        for folder in folders.chain(self.stores.iter().map(PathBuf::as_path)) {
            if let Err(error) = std::fs::remove_dir(folder) {
                eprintln!("cannot remove {}: {error}", folder.display());
            }
        }
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Every session is closed and every known portal forgotten when this is dropped.
#[derive(Debug)]
pub(crate) struct Iscsid {
    _daemon: Daemon,
}

/// Starts iscsid, with nothing that is known from before.
pub(crate) fn start_iscsid() -> Result<Iscsid> {
    load(&["iscsi_tcp"])?;
    // It would be started on demand by another init.
    let daemon = Iscsid { _daemon: Daemon::start("iscsid", &["--foreground"])? };
    wait("iscsid", || Ok(std::fs::read_to_string("/proc/net/unix")?.contains("ISCSIADM_ABSTRACT_NAMESPACE")))?;
    Ok(daemon)
}

/// The sessions: host, portal and target of each, as iscsiadm tells them.
pub(crate) fn sessions() -> Result<Vec<String>> {
    let output = Command::new("iscsiadm").args(["-m", "session"]).stdin(Stdio::null()).output()?;
    // It fails if there are none.
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

impl Drop for Iscsid {
    fn drop(&mut self) {
        for args in [["-m", "node", "--logoutall=all"], ["-m", "node", "--op=delete"]] {
            let _ = Command::new("iscsiadm").args(args).stdin(Stdio::null()).output();
        }
    }
}

// ── multipath ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Every map that nobody uses goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Multipathd {
    _daemon: Daemon,
}

/// Starts multipathd; it makes a map of every SCSI disk, named by its identity. What a map without paths is asked fails, so that a
/// test that failed can be cleaned up after.
pub(crate) fn start_multipathd() -> Result<Multipathd> {
    load(&["dm-multipath"])?;
    let config = "defaults {\n user_friendly_names no\n find_multipaths no\n}\noverrides {\n no_path_retry fail\n}\n\
         blacklist {\n devnode \"^(vd|loop)\"\n}\n";
    std::fs::write("/etc/multipath.conf", config)?;
    let daemon = Multipathd { _daemon: Daemon::start("multipathd", &["-d", "-s"])? };
    wait("multipathd", || Ok(say("multipathd", &["show", "daemon"]).is_ok_and(|said| said.contains("idle"))))?;
    Ok(daemon)
}

impl Drop for Multipathd {
    fn drop(&mut self) {
        let _ = Command::new("multipath").arg("-F").stdin(Stdio::null()).output();
        let _ = std::fs::remove_file("/etc/multipath.conf");
    }
}

// ── SCSI disks over memory ─────────────────────────────────────────────────────────────────────────────────────────────

/// Disks of the module `scsi_debug`; they go when this is dropped, if nobody uses them.
#[derive(Debug)]
pub(crate) struct ScsiDebug(());

/// Makes disks over memory: each of `hosts` shows the same `luns` disks, so that each disk has that many paths.
pub(crate) fn start_scsi_debug(hosts: u32, luns: u32) -> Result<ScsiDebug> {
    let (hosts, luns) = (format!("add_host={hosts}"), format!("max_luns={luns}"));
    // What a test that failed left behind.
    if Path::new("/sys/module/scsi_debug").try_exists()? {
        say("modprobe", &["-r", "scsi_debug"])?;
    }
    // One store for all hosts, and identities without the host's number.
    say("modprobe", &["scsi_debug", "dev_size_mb=64", "num_tgts=1", "vpd_use_hostno=0", "delay=0", &hosts, &luns])?;
    settle()?;
    Ok(ScsiDebug(()))
}

impl ScsiDebug {
    /// The disks: host, channel, target and LUN of each, and its name below `/dev`.
    pub(crate) fn disks(&self) -> Result<Vec<(String, String)>> {
        let ScsiDebug(()) = self;
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/sys/class/scsi_device")? {
            let entry = entry?;
            let device = entry.path().join("device");
            if std::fs::read_to_string(device.join("model")).is_ok_and(|model| model.trim() == "scsi_debug")
                && let Some(disk) = std::fs::read_dir(device.join("block"))?.next()
            {
                found.push((
                    entry.file_name().to_string_lossy().into_owned(),
                    disk?.file_name().to_string_lossy().into_owned(),
                ));
            }
        }
        found.sort();
        Ok(found)
    }
}

impl Drop for ScsiDebug {
    fn drop(&mut self) {
        if let Err(error) = settle().and_then(|()| say("modprobe", &["-r", "scsi_debug"])) {
            eprintln!("{error:#}");
        }
    }
}

// ── NFS ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

const EXPORT: &str = "/srv/export";
/// Where the kernel's server is told what to do, and where its client asks for names.
const NFS_PLACES: [(&str, &str); 2] = [("nfsd", "/proc/fs/nfsd"), ("rpc_pipefs", "/var/lib/nfs/rpc_pipefs")];

/// The kernel's NFS server, with one folder that anybody on this machine may mount; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct NfsServer {
    _daemons: [Daemon; 3],
}

/// Starts the server with an empty folder. It knows the versions 3 and 4 of the protocol.
pub(crate) fn start_nfs_server() -> Result<NfsServer> {
    load(&["nfsd", "nfs", "nfsv3", "nfsv4"])?;
    for (fs_type, place) in NFS_PLACES {
        std::fs::create_dir_all(place)?;
        say("mount", &["-t", fs_type, fs_type, place])?;
    }
    std::fs::create_dir_all(EXPORT)?;
    let answers = |what: &str| say("rpcinfo", &["-p"]).is_ok_and(|all| all.contains(what));
    let mapper = Daemon::start("rpcbind", &["-f", "-w"])?;
    wait("rpcbind", || Ok(answers("portmapper")))?;
    let daemons =
        [mapper, Daemon::start("rpc.mountd", &["--foreground"])?, Daemon::start("rpc.statd", &["--foreground"])?];
    let server = NfsServer { _daemons: daemons };
    wait("rpc.mountd and rpc.statd", || Ok(answers("mountd") && answers("status")))?;
    server.start()?;
    server.show()?;
    Ok(server)
}

impl NfsServer {
    /// The folder.
    #[allow(clippy::unused_self, reason = "there is none without a server")]
    pub(crate) fn export(&self) -> &Path {
        Path::new(EXPORT)
    }

    /// Ends the server's threads: connections are refused.
    #[allow(clippy::unused_self, reason = "it is the kernel's only one")]
    pub(crate) fn stop(&self) -> Result<()> {
        say("rpc.nfsd", &["0"]).map(drop)
    }

    /// Starts the server's threads.
    #[allow(clippy::unused_self, reason = "it is the kernel's only one")]
    pub(crate) fn start(&self) -> Result<()> {
        say("rpc.nfsd", &["4"])?;
        // Clients of an earlier server are not waited for; an error says that nobody waits.
        let _ = std::fs::write("/proc/fs/nfsd/v4_end_grace", "Y");
        Ok(())
    }

    /// The folder can be mounted.
    #[allow(clippy::unused_self, reason = "it is the kernel's only one")]
    pub(crate) fn show(&self) -> Result<()> {
        let options = "rw,no_root_squash,no_subtree_check";
        say("exportfs", &["-o", options, &format!("127.0.0.1:{EXPORT}")]).map(drop)
    }

    /// The folder cannot be mounted any more, and those who have mounted it get errors.
    #[allow(clippy::unused_self, reason = "it is the kernel's only one")]
    pub(crate) fn withdraw(&self) -> Result<()> {
        say("exportfs", &["-u", &format!("127.0.0.1:{EXPORT}")])?;
        say("exportfs", &["-f"]).map(drop)
    }

    /// Loses all that is sent to the server, as a broken network does, until the answer is dropped.
    #[allow(clippy::unused_self, reason = "it is the kernel's only one")]
    pub(crate) fn silence(&self) -> Result<Silence> {
        Silence::of(&[111, 2049])
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        for (program, args) in [("exportfs", &["-u", "-a"][..]), ("rpc.nfsd", &["0"])] {
            if let Err(error) = say(program, args) {
                eprintln!("{error:#}");
            }
        }
        let _ = remove_tree(Path::new(EXPORT));
    }
}

/// While it is there nothing reaches these ports of this machine.
#[derive(Debug)]
pub(crate) struct Silence(());

impl Silence {
    /// Loses all that is sent to the ports, as a broken network does.
    pub(crate) fn of(ports: &[u16]) -> Result<Self> {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let ports = ports.join(", ");
        let rules = format!(
            "table inet silence {{ chain input {{ type filter hook input priority 0; \
             tcp dport {{ {ports} }} drop; udp dport {{ {ports} }} drop; }}; }}"
        );
        say("nft", &[&rules])?;
        Ok(Self(()))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        if let Err(error) = say("nft", &["delete table inet silence"]) {
            eprintln!("{error:#}");
        }
    }
}
