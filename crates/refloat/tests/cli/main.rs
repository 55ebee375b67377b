//! The binary as a user and a script see it, on real mounts.
//!
//! Each test runs in a process of its own, in a private mount namespace: this program starts itself again for it.
//! A test that cannot run here says `skipped: NAME: REASON` and passes.

mod failures;
mod life;
mod looking;
mod node;
mod places;
mod records;
mod usage;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};
use node::Node;

/// Set for the process of one test.
const INSIDE: &str = "TEST_INSIDE";

/// How a test ended that did not fail.
enum Verdict {
    Passed,
    Skipped(String),
}

type Test = fn(&mut Node) -> anyhow::Result<Verdict>;

fn tests() -> Vec<(&'static str, Test)> {
    [usage::TESTS, looking::TESTS, life::TESTS, failures::TESTS, places::TESTS, records::TESTS].concat()
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(INSIDE) {
        return inside(&name);
    }
    let trials = tests().into_iter().map(|(name, _)| Trial::test(name, move || outside(name))).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Starts this program again for one test.
fn outside(name: &str) -> Result<(), Failed> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = Command::new(program).env(INSIDE, name).stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{}\n{text}", output.status).into());
    }
    for line in text.lines().filter(|l| l.starts_with("skipped: ")) {
        println!("{line}");
    }
    Ok(())
}

/// Runs one test, in this process.
fn inside(name: &str) -> ExitCode {
    let Some((_, test)) = tests().into_iter().find(|(n, _)| *n == name) else { return ExitCode::FAILURE };
    if let Err(error) = refloat_mount::enter_private_namespace() {
        println!("skipped: {name}: {error}");
        return ExitCode::SUCCESS;
    }
    let result = node::finish_on_signals();
    let result =
        result.and_then(|_| Node::new(Path::new(env!("CARGO_BIN_EXE_refloat")))).and_then(|mut node| test(&mut node));
    match result {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Skipped(why)) => {
            println!("skipped: {name}: {why}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

/// A pod of the namespace `test`.
fn pod(name: &str, mounts: &str, volumes: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  containers:\n  - name: main\n    \
         image: example.org/main\n    volumeMounts: {mounts}\n  volumes:\n{volumes}"
    )
}

/// A configMap with one key.
fn config_map(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: test}}\ndata: {{key: {value}}}\n")
}

/// A secret with one key.
fn secret(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: test}}\nstringData: {{key: {value}}}\n")
}

/// A volume in what a scan printed.
fn volume<'a>(scan: &'a serde_json::Value, pod: &str, name: &str) -> anyhow::Result<&'a serde_json::Value> {
    let mut volumes = scan["volumes"].as_array().into_iter().flatten();
    let found = volumes.find(|v| v["pod"]["name"] == pod && v["volume"] == name);
    found.ok_or_else(|| anyhow::anyhow!("there is no volume {pod}/{name} in {scan:#}"))
}

/// The path of a volume.
fn path_of(scan: &serde_json::Value, pod: &str, name: &str) -> anyhow::Result<std::path::PathBuf> {
    let path = volume(scan, pod, name)?["path"].as_str();
    Ok(path.ok_or_else(|| anyhow::anyhow!("{pod}/{name} has no path"))?.into())
}

/// Runs another program; an error if it fails.
fn tool(program: &str, args: &[&std::ffi::OsStr]) -> anyhow::Result<()> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output()?;
    anyhow::ensure!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Whether this is root in the machine's own user namespace.
fn is_real_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root() && map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}
