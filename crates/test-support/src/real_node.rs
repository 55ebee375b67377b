//! A whole real Kubernetes node: kubelet, API server, etcd, containerd with runc; `tests/real-node` says how.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

/// Names the folder of the node's own programs; `cargo xtask test` sets it. Otherwise it is `real-node` in the build folder.
pub const OUT: &str = "REFLOAT_REAL_NODE";
/// The programs that must be installed, and what brings them.
pub const TOOLS: &[(&str, &str)] = &[
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("etcd", "etcd-server"),
    ("busybox", "busybox-static"),
    ("openssl", "openssl"),
    ("python3", "python3"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
];
/// The node's name in the API.
pub const NODE_NAME: &str = "n1";

/// How a command in the node ended.
#[derive(Debug, Clone, Deserialize)]
pub struct Ran {
    /// The exit code; a signal as a negative number.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    /// Standard output as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("no JSON: {self:?}"))
    }

    /// An error with everything in it, unless it ended with one of these codes.
    pub fn expect(self, codes: &[i32]) -> Result<Self> {
        ensure!(codes.contains(&self.code), "expected {codes:?}: {}\n{}\n{}", self.code, self.stdout, self.stderr);
        Ok(self)
    }
}

/// A running node. When it is dropped, or this process ends in any way, all of it ends: its processes, mounts, cgroups and
/// containers.
#[derive(Debug)]
pub struct RealNode {
    child: Child,
    /// Closed first when the node is dropped: that ends it.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Its first process, as this process sees it.
    init: u32,
    /// Its folder, as it sees it.
    dir: PathBuf,
}

/// The folder of the node's own programs.
fn out() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(OUT) {
        return Some(folder.into());
    }
    // target/debug/deps/TEST
    Some(std::env::current_exe().ok()?.ancestors().nth(3)?.join("real-node"))
}

/// The program that starts a node.
fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/real-node/real-node")
}

fn is_installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}

impl RealNode {
    /// Why there can be none here, if so.
    pub fn unavailable() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("a real node needs root".into());
        }
        if let Some((tool, _)) = TOOLS.iter().find(|(tool, _)| !is_installed(tool)) {
            return Some(format!("there is no {tool}"));
        }
        let built = |out: &Path| ["kubelet", "kube-apiserver"].iter().all(|name| out.join(name).is_file());
        if !out().is_some_and(|out| built(&out)) {
            return Some(
                "kubelet and kube-apiserver are not built; `cargo xtask real-node` does that, where Go is".into(),
            );
        }
        match Command::new("python3").arg(script()).arg("check").stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() && output.stdout.is_empty() => None,
            Ok(output) => {
                let said = [output.stdout, output.stderr].concat();
                Some(String::from_utf8_lossy(&said).trim().replace('\n', " "))
            }
            Err(error) => Some(format!("python3 cannot be run: {error}")),
        }
    }

    /// Starts one, which takes some five seconds.
    pub fn start() -> Result<Self> {
        let out = out().context("where are the node's programs?")?;
        let mut command = Command::new("python3");
        command.arg(script()).arg("serve").env("REAL_NODE_OUT", out).stdin(Stdio::piped()).stdout(Stdio::piped());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REFLOAT_")) {
            command.env_remove(name);
        }
        // What interrupts the tests is not to interrupt its end.
        let mut child = command.process_group(0).spawn().context("cannot start a real node")?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("it has no output")?);
        let mut node = Self { child, input, output, init: 0, dir: PathBuf::new() };
        let told = node.read()?;
        node.init = told["init"].as_u64().and_then(|pid| pid.try_into().ok()).context("it has no first process")?;
        let told = node.read().context("the real node did not come up")?;
        node.dir = told["dir"].as_str().context("it has no folder")?.into();
        Ok(node)
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the real node has ended");
        serde_json::from_str(&line).with_context(|| format!("the real node said {line:?}"))
    }

    fn ask(&mut self, what: &Value) -> Result<Value> {
        let input = self.input.as_mut().context("the real node has ended")?;
        input.write_all(format!("{what}\n").as_bytes())?;
        input.flush()?;
        let answer = self.read()?;
        if let Some(error) = answer["error"].as_str() {
            bail!("{what}: {error}");
        }
        Ok(answer)
    }

    // ── where ──────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The folder of all its files, as a process in the node sees it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The kubelet's root folder, as a process in the node sees it.
    pub fn root(&self) -> PathBuf {
        self.dir.join("kubelet")
    }

    /// A path in the node, as this process reaches it.
    pub fn from_outside(&self, path: &Path) -> PathBuf {
        let path = path.strip_prefix("/").unwrap_or(path);
        Path::new("/proc").join(self.init.to_string()).join("root").join(path)
    }

    /// The file that has the node's mount table.
    pub fn mount_table(&self) -> PathBuf {
        format!("/proc/{}/mountinfo", self.init).into()
    }

    /// The mount points in the node at and below a path, each as often as it is mounted, in the order of the table.
    pub fn mounts_under(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let table = std::fs::read_to_string(self.mount_table())?;
        let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        Ok(points.filter(|point| point.starts_with(path)).collect())
    }

    /// The last lines of a log: `kubelet`, `containerd`, `apiserver`, or a program that was [started](Self::launch).
    pub fn log(&self, name: &str) -> String {
        let path = self.from_outside(&self.dir.join(format!("{name}.log")));
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    // ── processes ──────────────────────────────────────────────────────────────────────────────────────────────────

    /// Runs a command in the node to its end.
    pub fn run(&mut self, argv: &[&str]) -> Result<Ran> {
        let answer = self.ask(&json!({"do": "run", "argv": argv}))?;
        Ok(serde_json::from_value(answer)?)
    }

    /// Runs the binary with the node's root, and the state folder `refloat` in [`Self::dir`].
    pub fn refloat(&mut self, binary: &Path, args: &[&str]) -> Result<Ran> {
        let words = self.refloat_words(binary, args)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.run(&words)
    }

    fn refloat_words(&self, binary: &Path, args: &[&str]) -> Result<Vec<String>> {
        let text = |path: &Path| path.to_str().map(ToOwned::to_owned).context("a path is not UTF-8");
        let mut words = vec![text(binary)?];
        words.extend(args.iter().map(|&arg| arg.to_owned()));
        words.extend([
            "--root-dir".into(),
            text(&self.root())?,
            "--state-dir".into(),
            text(&self.dir.join("refloat"))?,
        ]);
        Ok(words)
    }

    /// Starts the binary under this name, with what [`Self::refloat`] gives it; its output goes to the name's log.
    pub fn launch(&mut self, name: &str, binary: &Path, args: &[&str]) -> Result<u32> {
        let words = self.refloat_words(binary, args)?;
        self.launch_words(name, &words)
    }

    /// Starts any program under this name; its output goes to the name's log.
    pub fn launch_words(&mut self, name: &str, words: &[String]) -> Result<u32> {
        let answer = self.ask(&json!({"do": "start", "name": name, "argv": words}))?;
        answer["pid"].as_u64().and_then(|pid| pid.try_into().ok()).context("it has no process")
    }

    /// Sends a signal to what was launched, unless none is given, and waits for its end. Answers its exit code; a signal as a
    /// negative number.
    pub fn end(&mut self, name: &str, signal: Option<i32>) -> Result<i32> {
        let answer = self.ask(&json!({"do": "end", "name": name, "signal": signal}))?;
        answer["code"].as_i64().and_then(|code| code.try_into().ok()).context("it has no exit code")
    }

    /// Kills the kubelet (SIGKILL) and waits until it is gone.
    pub fn kill_kubelet(&mut self) -> Result<()> {
        self.ask(&json!({"do": "kubelet", "how": "kill"})).map(drop)
    }

    /// Starts the kubelet again. It is not waited for.
    pub fn start_kubelet(&mut self) -> Result<()> {
        self.ask(&json!({"do": "kubelet", "how": "start"})).map(drop)
    }

    /// Ends the API server.
    pub fn stop_api_server(&mut self) -> Result<()> {
        self.ask(&json!({"do": "apiserver", "how": "stop"})).map(drop)
    }

    /// Starts the API server again, and waits until it answers.
    pub fn start_api_server(&mut self) -> Result<()> {
        self.ask(&json!({"do": "apiserver", "how": "start"})).map(drop)
    }

    // ── the API ────────────────────────────────────────────────────────────────────────────────────────────────────

    /// One request to the API server, with the administrator's client certificate: the status code (0 if nobody answers), and
    /// the body.
    pub fn request(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        self.request_at(None, method, path, body)
    }

    /// The same of the kubelet.
    pub fn ask_kubelet(&mut self, path: &str) -> Result<(u16, Value)> {
        self.request_at(Some(10250), "GET", path, None)
    }

    fn request_at(
        &mut self,
        port: Option<u16>,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value)> {
        let mut ask = json!({"do": "api", "method": method, "path": path});
        if let Some(port) = port {
            ask["port"] = port.into();
        }
        if let Some(body) = body {
            ask["body"] = body.clone();
        }
        let mut answer = self.ask(&ask)?;
        let code = answer["code"].as_u64().and_then(|code| code.try_into().ok()).context("no code")?;
        Ok((code, answer["body"].take()))
    }

    /// Creates an object. Answers it as the API server has it.
    pub fn create(&mut self, object: &Value) -> Result<Value> {
        let kind = object["kind"].as_str().context("an object without a kind")?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        match self.request("POST", &collection(kind, namespace)?, Some(object))? {
            (200..=202, created) => Ok(created),
            (code, why) => Err(anyhow!("cannot create {object}: {code} {why}")),
        }
    }

    /// An object of the namespace `default`; none if there is none.
    pub fn get(&mut self, kind: &str, name: &str) -> Result<Option<Value>> {
        match self.request("GET", &format!("{}/{name}", collection(kind, "default")?), None)? {
            (200, object) => Ok(Some(object)),
            (404, _) => Ok(None),
            (code, why) => Err(anyhow!("cannot get {kind} {name}: {code} {why}")),
        }
    }

    /// Deletes an object of the namespace `default`. A pod is deleted in order, with its time of grace; or at once and without
    /// waiting for its kubelet.
    pub fn delete(&mut self, kind: &str, name: &str, how: Delete) -> Result<()> {
        let body = match how {
            Delete::InOrder => json!({"kind": "DeleteOptions", "apiVersion": "v1"}),
            Delete::AtOnce => json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}),
        };
        match self.request("DELETE", &format!("{}/{name}", collection(kind, "default")?), Some(&body))? {
            (200 | 202 | 404, _) => Ok(()),
            (code, why) => Err(anyhow!("cannot delete {kind} {name}: {code} {why}")),
        }
    }

    /// Binds a claim of the namespace `default` to the volume that it names, as the controller manager would.
    pub fn bind(&mut self, claim: &str) -> Result<()> {
        self.ask(&json!({"do": "bind", "claim": claim, "namespace": "default"})).map(drop)
    }

    /// Waits until a pod's containers run. Answers its UID.
    pub fn wait_running(&mut self, pod: &str) -> Result<String> {
        let mut last = Value::Null;
        let running = self.wait_for(Duration::from_secs(60), |node| {
            last = node.get("Pod", pod)?.unwrap_or_default();
            Ok(last["status"]["phase"] == "Running")
        })?;
        ensure!(running, "pod {pod} does not run: {}\n{}", last["status"], tail(&self.log("kubelet")));
        Ok(last["metadata"]["uid"].as_str().context("a pod without a UID")?.to_owned())
    }

    /// Asks again and again until it is so; false if it is not within this time.
    pub fn wait_for(&mut self, patience: Duration, mut is: impl FnMut(&mut Self) -> Result<bool>) -> Result<bool> {
        let end = Instant::now() + patience;
        loop {
            if is(self)? {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// How a pod is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delete {
    /// Its kubelet ends it, and then it goes.
    InOrder,
    /// It goes, whatever its kubelet does.
    AtOnce,
}

impl Drop for RealNode {
    fn drop(&mut self) {
        self.input = None;
        let end = Instant::now() + Duration::from_secs(30);
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("the real node does not end; it is killed");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of all objects of a kind.
fn collection(kind: &str, namespace: &str) -> Result<String> {
    Ok(match kind {
        "Node" | "PersistentVolume" | "Namespace" => format!("/api/v1/{}s", kind.to_lowercase()),
        "Pod" | "ConfigMap" | "Secret" | "PersistentVolumeClaim" | "Event" => {
            format!("/api/v1/namespaces/{namespace}/{}s", kind.to_lowercase())
        }
        _ => bail!("no path is known for {kind}"),
    })
}

/// A pod that works on the real node, with these volumes, each mounted at `/<its name>` of the one container. `mounts` are more
/// of the container's `volumeMounts`.
pub fn real_pod(name: &str, volumes: &[Value], mounts: &[Value]) -> Value {
    let own = volumes.iter().map(|v| {
        let name = v["name"].as_str().unwrap_or_default();
        json!({"name": name, "mountPath": format!("/{name}")})
    });
    let mounts: Vec<Value> = own.chain(mounts.iter().cloned()).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": NODE_NAME,
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "app",
                "image": "docker.io/local/app:1",
                "imagePullPolicy": "Never",
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    })
}

/// The last lines of a log.
pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}
