//! The CSI conformance suite, `csi-sanity`, run against the tests' own driver: what Refloat is tested with must be what
//! the specification asks for.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process::{build, find_tool};

/// The suite, as a Go package with its version.
const PACKAGE: &str = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0";
/// Where the driver listens.
const SOCKET: &str = "csi.sock";

/// Builds suite and driver and runs one against the other, with and without staging. The inner error says why that cannot
/// be done here.
pub(crate) fn check() -> Result<std::result::Result<String, String>> {
    for tool in ["go", "unshare", "mkfs.xfs", "xfs_growfs"] {
        if find_tool(tool).is_none() {
            return Ok(Err(format!("there is no {tool}")));
        }
    }
    if !crate::process::is_real_root() {
        return Ok(Err("loop devices need root".into()));
    }
    let folder = std::path::absolute("target/csi-sanity").context("there is no current folder")?;
    let suite = Command::new("go").args(["install", PACKAGE]).env("GOBIN", &folder).stdin(Stdio::null()).output();
    let suite = suite.context("cannot run go")?;
    if !suite.status.success() {
        return Ok(Err(format!("go cannot build csi-sanity: {}", String::from_utf8_lossy(&suite.stderr).trim_end())));
    }
    let driver = build("refloat-test-csi-driver", false)?;
    let mut said = vec![];
    for flags in [&[][..], &["--no-stage"]] {
        let line = run(&folder.join("csi-sanity"), &driver, flags)?;
        said.push(format!("{}: {line}", if flags.is_empty() { "with staging" } else { "without staging" }));
    }
    Ok(Ok(said.join("; ")))
}

/// One run: the suite's last words if it passed.
fn run(suite: &Path, driver: &Path, flags: &[&str]) -> Result<String> {
    let temp = tempfile::tempdir().context("cannot make a temporary folder")?;
    let at = |name: &str| temp.path().join(name);
    // XFS, since growing a mounted ext4 needs CAP_SYS_RESOURCE. Both are in one mount namespace, which ends with the shell,
    // and with it every mount; loop devices clear themselves.
    let script = "\"$DRIVER\" --name sanity.csi.test --endpoint \"$D/csi.sock\" --state \"$D/state\" --default-fs xfs $FLAGS & driver=$!\n\
                  while [ ! -S \"$D/csi.sock\" ] && kill -0 $driver; do sleep 0.05; done\n\
                  \"$SUITE\" --csi.endpoint \"$D/csi.sock\" --csi.mountdir \"$D/target\" --csi.stagingdir \"$D/staging\"\n\
                  code=$?; kill $driver; wait $driver; exit $code";
    let log = std::fs::File::create(at("log")).context("cannot write a log")?;
    let child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--kill-child", "--fork", "--pid", "--mount-proc", "sh", "-c"])
        .arg(script)
        .env("D", temp.path())
        .env("DRIVER", driver)
        .env("SUITE", suite)
        .env("FLAGS", flags.join(" "))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the suite")?;
    let ended = within(child, Duration::from_secs(300))?;
    let text = String::from_utf8_lossy(&std::fs::read(at("log"))?).into_owned();
    let tail: Vec<&str> = text.lines().rev().take(60).collect::<Vec<_>>().into_iter().rev().collect();
    ensure!(ended == Some(true), "csi-sanity {flags:?} at {SOCKET}:\n{}", tail.join("\n"));
    let words = text.lines().rev().find(|line| line.contains("Passed")).unwrap_or("it passed");
    Ok(without_colours(words))
}

/// Whether it ended well; none if it did not end in time and was killed.
fn within(mut child: Child, patience: Duration) -> Result<Option<bool>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if start.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn without_colours(line: &str) -> String {
    let mut clean = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        clean.push_str(before);
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    clean.push_str(rest);
    clean.trim().to_owned()
}
