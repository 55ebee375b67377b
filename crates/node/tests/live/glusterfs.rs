//! `GlusterFS` volumes, on a real cluster of one server on this machine.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use refloat_node::{RecordState, VolumeState};
use refloat_record::{PodVolume, Record};
use refloat_test_support::{Outcome, Skip};
use rustix::process::{Pid, Signal};

use crate::stage::{Stage, assert_all_mounted, pod, volume, wait_for};

refloat_test_support::tests![
    a_volume_lives_and_goes_without_being_looked_up_again,
    a_reboot_needs_no_api_server,
    a_lost_record_is_written_anew_or_undone,
    a_dead_client_is_unmounted,
    a_cluster_that_is_gone_stops_nothing,
    what_cannot_be_mounted_leaves_nothing_and_says_why,
    without_endpoints_it_waits,
];

const SERVER: &str = "127.0.0.1";
const OF_U1: &str = "pods/u1/volumes/kubernetes.io~glusterfs/v";
const LOG: &str = "plugins/kubernetes.io/glusterfs/v/pod-u1-glusterfs.log";
const ENDPOINTS: &str = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: cluster}\nsubsets:\n- addresses: [{ip: 127.0.0.1}, {ip: 127.0.0.2}]\n  ports: [{port: 1}]\n";

/// One server with one volume, `vol`.
struct Cluster {
    daemon: Child,
    folder: PathBuf,
    /// The servers' ports and folders are the machine's.
    _alone: MutexGuard<'static, ()>,
}

/// Runs a command to its end, and kills it when it takes long.
fn run(command: &mut Command) -> Result<(), String> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match child.try_wait().unwrap() {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{command:?} ended with {status}")),
            None if Instant::now() > end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{command:?} does not end"));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn gluster(args: &[&str]) -> Result<(), String> {
    run(Command::new("gluster").arg("--mode=script").args(args))
}

impl Cluster {
    fn new(stage: &Stage) -> Result<Self, Skip> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = |why: &str| Skip(why.to_owned());
        for tool in ["/usr/sbin/glusterd", "/usr/sbin/mount.glusterfs"] {
            if !Path::new(tool).exists() {
                return Err(Skip(format!("there is no {tool} (glusterfs-server, glusterfs-client)")));
            }
        }
        if !Path::new("/dev/fuse").exists() {
            return Err(skip("there is no FUSE"));
        }
        if TcpStream::connect((Ipv4Addr::LOCALHOST, 24007)).is_ok() {
            return Err(skip("a glusterd runs on this machine already"));
        }
        // In the tests' own mount namespace.
        for (name, place) in [("lib", "/var/lib/glusterd"), ("log", "/var/log/glusterfs"), ("run", "/run/gluster")] {
            let own = stage.path("cluster").join(name);
            std::fs::create_dir_all(&own).unwrap();
            std::fs::create_dir_all(place).unwrap();
            rustix::mount::mount_bind(&own, place).unwrap();
        }
        let folder = stage.path("cluster");
        let daemon = Command::new("/usr/sbin/glusterd")
            .args(["--no-daemon", "--log-level", "ERROR", "--pid-file"])
            .arg(folder.join("glusterd.pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let daemon = daemon.map_err(|error| Skip(format!("glusterd cannot be run: {error}")))?;
        let cluster = Self { daemon, folder, _alone: alone };
        let end = Instant::now() + Duration::from_secs(20);
        while gluster(&["pool", "list"]).is_err() {
            if Instant::now() > end {
                return Err(skip("glusterd does not answer here"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // Servers refuse addresses and names of the loop.
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let brick = format!("{host}:{}", cluster.brick().display());
        let made = gluster(&["volume", "create", "vol", "transport", "tcp", &brick, "force"])
            .and_then(|()| gluster(&["volume", "start", "vol"]));
        made.map_err(|why| Skip(format!("no volume can be made on {host}: {why}")))?;
        Ok(cluster)
    }

    fn brick(&self) -> PathBuf {
        self.folder.join("brick")
    }

    /// Ends the servers, as a power cut would.
    fn end(&mut self) {
        let _ = gluster(&["volume", "stop", "vol", "force"]);
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
        for client in clients(self.folder.parent().unwrap()) {
            let _ = rustix::process::kill_process(client, Signal::KILL);
        }
        for place in ["/var/lib/glusterd", "/var/log/glusterfs", "/run/gluster"] {
            let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// The client processes of mounts below a folder.
fn clients(folder: &Path) -> Vec<Pid> {
    let is_client = |id: &i32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.first().is_some_and(|word| word.ends_with(b"glusterfs"))
            && words.iter().any(|word| word.starts_with(folder.as_os_str().as_encoded_bytes()))
    };
    let ids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    ids.filter(is_client).filter_map(Pid::from_raw).collect()
}

const INLINE: &str = "  - {name: v, glusterfs: {endpoints: cluster, path: vol}}\n";

fn record(stage: &Stage) -> Option<PodVolume> {
    stage.records().into_iter().find_map(|record| match record {
        Record::PodVolume(volume) => Some(volume),
        _ => None,
    })
}

fn info(stage: &Stage) -> serde_json::Value {
    record(stage).unwrap().provider_info.unwrap().parse().unwrap()
}

/// Two pods, one by a claim and read-only.
fn a_volume_lives_and_goes_without_being_looked_up_again() -> Outcome {
    let stage = Stage::new();
    let cluster = Cluster::new(&stage)?;
    stage.manifest("endpoints.yaml", ENDPOINTS);
    stage.manifest("u1.yaml", &pod("u1", INLINE));
    assert_all_mounted(&stage.settle_well(), 1);
    let target = stage.root(OF_U1);
    std::fs::write(target.join("written"), "by u1").unwrap();
    assert_eq!(std::fs::read_to_string(cluster.brick().join("written")).unwrap(), "by u1");
    let log = stage.root(LOG);
    let expected = serde_json::json!({
        "endpoints": "default/cluster", "servers": [SERVER, "127.0.0.2"], "port": 1, "path": "vol", "logFile": LOG,
        "options": ["backup-volfile-servers=127.0.0.2", "log-level=ERROR", format!("log-file={}", log.display())],
    });
    assert_eq!(info(&stage), expected);
    assert!(log.exists());
    let mount = record(&stage).unwrap().mount.unwrap();
    assert_eq!((mount.fs_type.as_str(), mount.source.as_str()), ("fuse.glusterfs", "127.0.0.1:vol"));

    let local = crate::stage::local("pv", Path::new("/none"));
    let source = "glusterfs: {endpoints: cluster, path: vol}\n  mountOptions: [direct-io-mode=disable]";
    stage.manifest("pv.yaml", &local.replace("local: {path: /none}", source));
    stage.manifest("u2.yaml", &pod("u2", "  - {name: d, persistentVolumeClaim: {claimName: pv, readOnly: true}}\n"));
    assert_all_mounted(&stage.settle_well(), 2);
    let second = stage.root("pods/u2/volumes/kubernetes.io~glusterfs/pv");
    assert_eq!(std::fs::read_to_string(second.join("written")).unwrap(), "by u1");
    assert_eq!(std::fs::write(second.join("x"), "").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    // Nobody can be asked any more.
    stage.remove_manifest("endpoints.yaml");
    let settled = stage.settle_well();
    assert_all_mounted(&settled, 2);
    stage.remove_manifest("u1.yaml");
    assert_all_mounted(&stage.settle_well(), 1);
    assert!(!target.exists() && !log.exists());
    assert_eq!(std::fs::read_to_string(second.join("written")).unwrap(), "by u1");
    stage.remove_manifest("u2.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert!(cluster.brick().join("written").exists());
    Ok(())
}

fn a_reboot_needs_no_api_server() -> Outcome {
    for wanted in [true, false] {
        let stage = Stage::new();
        let _cluster = Cluster::new(&stage)?;
        stage.manifest("endpoints.yaml", ENDPOINTS);
        stage.manifest("u1.yaml", &pod("u1", INLINE));
        assert_all_mounted(&stage.settle_well(), 1);
        let before = info(&stage);
        stage.reboot();
        stage.remove_manifest("endpoints.yaml");
        if wanted {
            assert_all_mounted(&stage.settle_well(), 1);
            assert_eq!(info(&stage), before);
        }
        stage.remove_manifest("u1.yaml");
        stage.settle_well();
        stage.assert_clean();
    }
    Ok(())
}

/// B14: kubernetes/kubernetes#52683, without an Endpoints object too.
fn a_lost_record_is_written_anew_or_undone() -> Outcome {
    for (wanted, damaged) in [(true, true), (true, false), (false, true), (false, false)] {
        let stage = Stage::new();
        let _cluster = Cluster::new(&stage)?;
        stage.manifest("endpoints.yaml", ENDPOINTS);
        stage.manifest("u1.yaml", &pod("u1", INLINE));
        assert_all_mounted(&stage.settle_well(), 1);
        let file = stage.record_file("volumes", "u1");
        if damaged {
            std::fs::write(file, "{").unwrap();
        } else {
            std::fs::remove_file(file).unwrap();
        }
        stage.remove_manifest("endpoints.yaml");
        if wanted {
            stage.settle();
            let settled = stage.settle();
            let seen = volume(&settled, "v");
            assert_eq!((seen.state, seen.record_state), (VolumeState::Mounted, RecordState::Ok), "{seen:#?}");
            assert_eq!((&info(&stage)["servers"], &info(&stage)["path"]), (&[SERVER].as_slice().into(), &"vol".into()));
        }
        stage.remove_manifest("u1.yaml");
        stage.settle();
        assert_eq!((stage.mounts(), stage.root("pods/u1").exists()), (vec![], false), "{wanted}, {damaged}");
    }
    Ok(())
}

/// "Transport endpoint is not connected".
fn a_dead_client_is_unmounted() -> Outcome {
    let stage = Stage::new();
    let _cluster = Cluster::new(&stage)?;
    stage.manifest("endpoints.yaml", ENDPOINTS);
    stage.manifest("u1.yaml", &pod("u1", INLINE));
    assert_all_mounted(&stage.settle_well(), 1);
    let target = stage.root(OF_U1);
    let [client] = clients(&target)[..] else { panic!("{:?}", clients(&target)) };
    rustix::process::kill_process(client, Signal::KILL).unwrap();
    let dead = |path: &Path| {
        let stat = Command::new("stat").arg(path).output().unwrap();
        String::from_utf8_lossy(&stat.stderr).contains("Transport endpoint is not connected")
    };
    wait_for("the client's end", || dead(&target));
    // While it is wanted it stays, since containers have it; a restart is not disturbed.
    let settled = stage.settle();
    assert_eq!(volume(&settled, "v").state, VolumeState::Mounted);
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.assert_clean();
    Ok(())
}

fn a_cluster_that_is_gone_stops_nothing() -> Outcome {
    let stage = Stage::new();
    let mut cluster = Cluster::new(&stage)?;
    stage.manifest("endpoints.yaml", ENDPOINTS);
    stage.manifest("u1.yaml", &pod("u1", INLINE));
    assert_all_mounted(&stage.settle_well(), 1);
    cluster.end();
    let begun = Instant::now();
    assert_all_mounted(&stage.settle_well(), 1);
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.assert_clean();
    assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
    Ok(())
}

fn what_cannot_be_mounted_leaves_nothing_and_says_why() -> Outcome {
    let stage = Stage::new();
    let _cluster = Cluster::new(&stage)?;
    stage.manifest("endpoints.yaml", ENDPOINTS);
    stage.manifest("u1.yaml", &pod("u1", &INLINE.replace("path: vol", "path: nothing")));
    let settled = stage.settle();
    let [failure] = settled.failures.as_slice() else { panic!("{:#?}", settled.failures) };
    assert_eq!(failure.code, "ToolFailed", "{failure:?}");
    // What the helper says is where to look; the log says what it met.
    for part in ["mount.glusterfs failed", "failed to fetch volume file"] {
        assert!(failure.message.contains(part), "{part}: {failure:?}");
    }
    assert_eq!((stage.mounts(), stage.root(OF_U1).exists(), stage.root(LOG).exists()), (vec![], false, false));
    stage.remove_manifest("u1.yaml");
    stage.settle_well();
    stage.assert_clean();
    Ok(())
}

fn without_endpoints_it_waits() {
    let stage = Stage::new();
    stage.manifest("u1.yaml", &pod("u1", INLINE));
    for (endpoints, word) in [
        (None, "there is no Endpoints default/cluster"),
        (Some("apiVersion: v1\nkind: Endpoints\nmetadata: {name: cluster}\n"), "no address of a server"),
    ] {
        if let Some(endpoints) = endpoints {
            stage.manifest("endpoints.yaml", endpoints);
        }
        let settled = stage.settle();
        let [failure] = settled.failures.as_slice() else { panic!("{:#?}", settled.failures) };
        assert_eq!(failure.code, "EndpointsMissing", "{failure:?}");
        assert!(failure.message.contains(word), "{failure:?}");
        assert_eq!(stage.files("plugins"), Vec::<PathBuf>::new());
    }
    assert!(record(&stage).is_none());
}
