//! `cargo xtask vm`: the tests that need another kernel than this machine's, in a virtual machine.
//!
//! Debian's kernel has the NFS client and server, iSCSI initiator and target, SCSI and multipath that a small machine's kernel
//! has not. It runs emulated, so that no support by the processor is needed, with Debian's own tools beside it. The test program
//! is `crates/refloat/tests/vm`.

mod machine;
mod root;

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use refloat_test_support::virtual_machine::{BINARY, FOLDER, MARK};

use crate::process::{build_folder, cargo};

/// Arguments of `vm`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Only tests whose names contain this
    name: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    crate::packages::install_missing();
    match check(args.name.as_deref(), &mut |line| println!("{line}"))? {
        Ok(0) => Ok(ExitCode::SUCCESS),
        Ok(_) => Ok(ExitCode::FAILURE),
        Err(why) => bail!("there can be no virtual machine: {why}"),
    }
}

/// Boots, runs the tests and ends. Hands over every line that they print, and answers the code that the test program ended with.
/// The inner error says why there can be no virtual machine here.
pub(crate) fn check(name: Option<&str>, line: &mut dyn FnMut(&str)) -> Result<Result<i32, String>> {
    if let Some(why) = machine::unavailable() {
        return Ok(Err(why));
    }
    let folder = build_folder()?.join("vm");
    let root = match root::make(&folder)? {
        Ok(root) => root,
        Err(why) => return Ok(Err(why)),
    };
    let disk = folder.join("tests.img");
    let programs = build_programs()?;
    root.make_disk(&folder.join("tests"), &disk, |folder| write_tests(folder, &programs, name))?;
    machine::run(&root, &disk, &folder.join("console.log"), line).map(Ok)
}

/// The test program and the binary, as `cargo test --workspace` builds them too.
struct Programs {
    tests: PathBuf,
    refloat: PathBuf,
}

fn build_programs() -> Result<Programs> {
    // All tests, as they are built elsewhere: with fewer targets the dependencies would have other features, and be built anew.
    let args = ["test", "--quiet", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let output = cargo(&args).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the tests in the virtual machine do not build");
    }
    let find = |name: &str, kind: &str| -> Result<PathBuf> {
        for line in output.stdout.split(|&b| b == b'\n').filter(|l| !l.is_empty()) {
            let message: serde_json::Value = serde_json::from_slice(line).context("cannot read what cargo says")?;
            let target = &message["target"];
            if target["name"] == name
                && target["kind"][0] == kind
                // The binary has unit tests, too.
                && message["profile"]["test"] == (kind == "test")
                && let Some(path) = message["executable"].as_str()
            {
                return Ok(path.into());
            }
        }
        bail!("cargo did not say where {name} is")
    };
    Ok(Programs { tests: find("vm", "test")?, refloat: find("refloat", "bin")? })
}

/// What the machine finds on its second disk.
fn write_tests(folder: &Path, programs: &Programs, name: Option<&str>) -> Result<()> {
    std::fs::copy(&programs.tests, folder.join("tests"))?;
    std::fs::copy(&programs.refloat, folder.join(BINARY))?;
    let name = name.map(|name| format!("'{}'", name.replace('\'', ""))).unwrap_or_default();
    // They share one kernel, and so one NFS server and one list of iSCSI sessions.
    let script = format!("{MARK}=inside exec {FOLDER}/tests --test-threads=1 --color=never {name}\n");
    std::fs::write(folder.join("run"), script).context("cannot write what is to be run")
}
