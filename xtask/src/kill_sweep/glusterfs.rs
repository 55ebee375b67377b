//! Pods with volumes of a real `GlusterFS` cluster; `node --once` is killed. The clients are those that `mount.glusterfs` starts.
//!
//! One cluster serves all nodes: it runs in namespaces of its own, which end with this program, and its ports are the machine's.
//! Each node has a folder of its own on it.

use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::drivers::{names, wait_for_end};
use super::scenario::{Data, Kind, Scenario, check_volumes, volume_path};
use crate::node::Node;
use crate::process::{find_tool, is_real_root};

/// This scenario.
pub(super) const KIND: Kind = Kind {
    phases: &[FIRST, RESTART, TEAR_DOWN, END],
    others: &[],
    part: 16,
    shared: start_cluster,
    new: |binary, _| Ok(Box::new(Gluster::new(binary)?)),
};

/// The first start ever, with the pods there.
const FIRST: &str = "gluster-first";
/// A start with everything mounted.
const RESTART: &str = "gluster-restart";
/// One of two users of the volume goes.
const TEAR_DOWN: &str = "gluster-tear-down";
/// All pods go.
const END: &str = "gluster-end";

/// What pods write.
const POD_FILE: &str = "the pod's\n";

const PODS: [&str; 3] = ["claim-a", "claim-b", "inline"];
const REMOVED: [&str; 2] = ["claim-a", "inline"];

/// Makes the volume `vol`, says so in the file `made`, or in the file `why` what keeps it from that.
const CLUSTER: &str = r#"
set -u
for at in lib/glusterd log/glusterfs; do mkdir -p "$1/$at" "/var/$at"; mount --bind "$1/$at" "/var/$at" || exit; done
mkdir -p "$1/run" /run/gluster; mount --bind "$1/run" /run/gluster || exit
glusterd --no-daemon --log-level ERROR --pid-file "$1/pid" &
daemon=$!
host=$(uname -n)
tries=0
until gluster --mode=script pool list > /dev/null 2>&1; do
  tries=$((tries + 1)); [ $tries -lt 100 ] || { echo "glusterd does not answer here" > "$1/why"; exit 1; }; sleep 0.2
done
{ gluster --mode=script volume create vol transport tcp "$host:$1/brick" force && gluster --mode=script volume start vol; } \
  > "$1/said" 2>&1 || { cp "$1/said" "$1/why"; exit 1; }
: > "$1/made"
wait $daemon
"#;

/// Starts the cluster, once for the whole sweep. Answers why there is none, if there is none.
fn start_cluster(shared: &Path) -> Result<Option<String>> {
    /// Not waited for: it is killed when this program ends.
    static CLUSTER_PROCESS: Mutex<Option<Child>> = Mutex::new(None);
    if !is_real_root() || std::fs::metadata("/dev/fuse").is_err() {
        return Ok(Some("GlusterFS needs root and FUSE".into()));
    }
    for (tool, package) in
        [("glusterd", "glusterfs-server"), ("mount.glusterfs", "glusterfs-client"), ("setpriv", "util-linux")]
    {
        if find_tool(tool).is_none() {
            return Ok(Some(format!("there is no {tool} ({package})")));
        }
    }
    if TcpStream::connect((Ipv4Addr::LOCALHOST, 24007)).is_ok() {
        return Ok(Some("a glusterd runs on this machine already".into()));
    }
    let folder = shared.join("cluster");
    std::fs::create_dir(&folder)?;
    // Whatever it starts is in its process namespace, and ends with it.
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
    ]);
    command.arg(CLUSTER).arg("cluster").arg(&folder);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.context("cannot start the cluster")?;
    let begun = Instant::now();
    while std::fs::metadata(folder.join("made")).is_err() {
        let ended = child.try_wait()?;
        if ended.is_some() || begun.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            let _ = child.wait();
            let why = std::fs::read_to_string(folder.join("why")).unwrap_or_default();
            return Ok(Some(format!("no cluster can be had: {}", why.trim())));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    *CLUSTER_PROCESS.lock().expect("nobody panics with it") = Some(child);
    Ok(None)
}

/// The scenario on one node.
struct Gluster {
    node: Node,
}

impl Gluster {
    fn new(binary: &Path) -> Result<Self> {
        let gluster = Self { node: Node::new(binary)? };
        gluster.apply_all()?;
        Ok(gluster)
    }

    fn apply_all(&self) -> Result<()> {
        self.node.apply(
            "volumes.yaml",
            "apiVersion: v1\nkind: Endpoints\nmetadata: {name: cluster, namespace: test}\nsubsets:\n\
             - addresses: [{ip: 127.0.0.1}]\n  ports: [{port: 1}]\n---\n\
             apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: pv}\nspec:\n  capacity: {storage: 8Mi}\n  \
             accessModes: [ReadWriteMany]\n  claimRef: {namespace: test, name: pv}\n  \
             glusterfs: {endpoints: cluster, endpointsNamespace: test, path: vol}\n---\n\
             apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: pv, namespace: test}\nspec:\n  \
             accessModes: [ReadWriteMany]\n  volumeName: pv\n  resources: {requests: {storage: 8Mi}}\n",
        )?;
        for name in PODS {
            let volume = match name {
                "inline" => "glusterfs: {endpoints: cluster, path: vol}",
                _ => "persistentVolumeClaim: {claimName: pv}",
            };
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  containers:\n  \
                 - {{name: main, image: example.org/main}}\n  volumes:\n  - {{name: data, {volume}}}\n"
            );
            self.node.apply(&format!("pod-{name}.yaml"), &text)?;
        }
        Ok(())
    }

    /// The name of this node's own file of a pod: all nodes see one volume.
    fn file(&self, pod: &str) -> String {
        format!("{}-{pod}", self.node.folder().file_name().unwrap_or_default().to_string_lossy())
    }

    fn check_all_there(&self, some_removed: bool, data: Data) -> Result<()> {
        let scan = self.node.scan()?.expect(0).context("the scan after the restart")?.json()?;
        let there: Vec<_> = PODS.into_iter().filter(|pod| !some_removed || !REMOVED.contains(pod)).collect();
        let mut expected: Vec<_> = there.iter().map(|pod| format!("{pod}/data")).collect();
        expected.sort();
        check_volumes(&self.node, &scan, &expected)?;
        for pod in there.into_iter().filter(|_| data != Data::None) {
            let path = volume_path(&scan, pod, "data")?.join(self.file(pod));
            let found = std::fs::read_to_string(&path).with_context(|| format!("{pod} lost its data"))?;
            ensure!(found == POD_FILE, "the data of {pod} is {found:?}");
        }
        Ok(())
    }
}

impl Scenario for Gluster {
    fn prepare(&mut self, phase: &str) -> Result<()> {
        if phase == FIRST {
            return Ok(());
        }
        self.node.once()?.expect(0).context("the set-up before the kill")?;
        let scan = self.node.scan()?.json()?;
        for pod in PODS {
            std::fs::write(volume_path(&scan, pod, "data")?.join(self.file(pod)), POD_FILE)?;
        }
        match phase {
            RESTART => Ok(()),
            TEAR_DOWN => REMOVED.iter().try_for_each(|name| self.node.remove(&format!("pod-{name}.yaml"))),
            END => self.node.no_pods(),
            other => bail!("there is no phase {other:?}"),
        }
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn check_restart(&mut self, phase: &str) -> Result<()> {
        // The helper, and not the client, which stays as long as its mount.
        let is_helper = |words: &[&[u8]]| {
            let program = words.first().copied().unwrap_or_default();
            !program.ends_with(b"glusterfs") && !program.ends_with(b"xtask") && names(words, self.node.folder())
        };
        wait_for_end("a mount helper", is_helper)?;
        if phase == END {
            // "The same pods" are none here, which is checked afterwards. Before that they all come back.
            self.apply_all()?;
        }
        self.node.once()?.expect(0).context("the restart with the same pods")?;
        let data = if phase == FIRST { Data::None } else { Data::All };
        self.check_all_there(phase == TEAR_DOWN, data)
    }
}
