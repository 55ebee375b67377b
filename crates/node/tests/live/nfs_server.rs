//! NFS volumes on a real server, which runs on this machine, with the kernel's own client.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use refloat_test_support::{Outcome, Skip};

use crate::stage::{Stage, assert_all_mounted, pod, wait_for};

refloat_test_support::tests![a_server_and_its_end];

const PORT: u16 = 12049;
const OF_U1: &str = "pods/u1/volumes/kubernetes.io~nfs/pv";
/// Where it keeps what it needs.
const PLACES: [&str; 2] = ["/var/lib/nfs/ganesha", "/run/ganesha"];

/// An NFS server for one folder.
struct Server {
    daemon: Child,
    export: PathBuf,
}

impl Server {
    fn new(stage: &Stage) -> Result<Self, Skip> {
        let program = Path::new("/usr/bin/ganesha.nfsd");
        if !program.exists() {
            return Err(Skip("there is no ganesha.nfsd (nfs-ganesha, nfs-ganesha-vfs)".into()));
        }
        if TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).is_ok() {
            return Err(Skip(format!("something listens on port {PORT} already")));
        }
        // In the tests' own mount namespace.
        for place in PLACES {
            let own = stage.path("server").join(place.trim_start_matches('/'));
            std::fs::create_dir_all(&own).unwrap();
            std::fs::create_dir_all(place).unwrap();
            rustix::mount::mount_bind(&own, place).unwrap();
        }
        let (export, config) = (stage.host("export"), stage.path("server/ganesha.conf"));
        let folder = export.display();
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {PORT}; Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false; }}\n\
             NFSV4 {{ Grace_Period = 1; Lease_Lifetime = 2; RecoveryBackend = fs; }}\n\
             EXPORT {{ Export_Id = 1; Path = {folder}; Pseudo = {folder}; Access_Type = RW; Squash = No_Root_Squash; \
             SecType = sys; FSAL {{ Name = VFS; }} }}\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(program);
        command.arg("-F").arg("-f").arg(&config).arg("-L").arg(stage.path("server/log"));
        command.arg("-p").arg(stage.path("server/pid"));
        let daemon = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let daemon = daemon.map_err(|error| Skip(format!("ganesha.nfsd cannot be run: {error}")))?;
        let mut server = Self { daemon, export };
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).is_err() {
            let ended = server.daemon.try_wait().unwrap();
            if ended.is_some() || Instant::now() > end {
                return Err(Skip(format!("ganesha.nfsd does not come up here: {ended:?}")));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// Ends it, as a power cut would.
    fn end(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        for place in PLACES {
            let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Whether the kernel can mount what a server exports.
fn has_client() -> bool {
    let has = || std::fs::read_to_string("/proc/filesystems").unwrap().lines().any(|line| line.ends_with("\tnfs4"));
    has() || (Command::new("modprobe").arg("nfsv4").stderr(Stdio::null()).status().is_ok_and(|s| s.success()) && has())
}

fn a_server_and_its_end() -> Outcome {
    let mut stage = Stage::new();
    let mut server = Server::new(&stage)?;
    if !has_client() {
        return Err(Skip("this kernel has no NFS client".into()));
    }
    if !Path::new("/usr/sbin/mount.nfs").exists() {
        return Err(Skip("there is no mount.nfs (nfs-common)".into()));
    }
    // The helper in the PATH hands over to it.
    std::fs::write(stage.path("host/export.how"), "real").unwrap();
    stage.options.operation_deadline = Duration::from_secs(10);
    let (local, folder) = (crate::stage::local("pv", Path::new("/none")), server.export.display().to_string());
    let source = format!(
        "nfs: {{server: 127.0.0.1, path: {folder}}}\n  mountOptions: [nfsvers=4.1, port={PORT}, timeo=10, retrans=1]"
    );
    stage.manifest("pv.yaml", &local.replace("local: {path: /none}", &source));
    stage.manifest("u1.yaml", &pod("u1", "  - {name: d, persistentVolumeClaim: {claimName: pv}}\n"));
    assert_all_mounted(&stage.settle_well(), 1);
    let target = stage.root(OF_U1);
    let table = stage.table();
    let mount = table.at(&target).unwrap();
    assert_eq!((&*mount.fs_type(), &*mount.source()), ("nfs4", format!("127.0.0.1:{folder}").as_str()));
    std::fs::write(target.join("written"), "by the pod").unwrap();
    assert_eq!(std::fs::read_to_string(server.export.join("written")).unwrap(), "by the pod");

    server.end();
    for lost in [false, true] {
        if lost {
            std::fs::remove_file(stage.record_file("volumes", "u1")).unwrap();
        }
        let begun = Instant::now();
        stage.settle();
        assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    }
    assert_all_mounted(&stage.settle_well(), 1);
    stage.remove_manifest("u1.yaml");
    stage.options.operation_deadline = Duration::from_secs(2);
    stage.options.lazy_unmount = true;
    let manager = stage.run();
    wait_for("the end of the pod", || !stage.root("pods/u1").exists() && !stage.is_mounted(OF_U1));
    manager.stop();
    assert!(server.export.join("written").exists());
    Ok(())
}
