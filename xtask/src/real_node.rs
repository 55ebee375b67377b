//! `cargo xtask real-node`: builds the kubelet and the API server that the tests run beside, and runs commands in such a node.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use refloat_test_support::real_node::TOOLS;

use crate::process::{build_folder, find_tool, is_real_root, run as run_command, workspace};

/// Arguments of `real-node`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to run in a node; without it the node's programs are only built
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<std::ffi::OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let out = match build()? {
        Ok(out) => out,
        Err(why) => bail!("there can be no real node: {why}"),
    };
    if args.command.is_empty() {
        println!("{}", out.display());
        return Ok(ExitCode::SUCCESS);
    }
    let script = workspace().join("tests/real-node/real-node");
    let mut command = Command::new("python3");
    command.arg(script).args(["run", "--"]).args(&args.command).env("REAL_NODE_OUT", out);
    let status = command.status().context("cannot start a real node")?;
    Ok(ExitCode::from(status.code().and_then(|code| code.try_into().ok()).unwrap_or(1)))
}

/// Builds the programs; answers the folder that they are in. The inner error says why there can be no real node here.
///
/// Go fetches the modules and builds for minutes at first. Afterwards the programs are in `real-node` in the build folder, and
/// Go builds only what changed.
pub(crate) fn build() -> Result<Result<PathBuf, String>> {
    if !is_real_root() {
        return Ok(Err("it needs root".into()));
    }
    let tools = TOOLS.iter().map(|(tool, _)| *tool).chain(["go"]);
    if let Some(tool) = tools.into_iter().find(|tool| find_tool(tool).is_none()) {
        return Ok(Err(format!("there is no {tool}")));
    }
    let source = workspace().join("tests/real-node");
    // In the module's folder Go says so if it is too old for it and cannot get a newer one.
    let version = Command::new("go").arg("version").current_dir(&source).output().context("cannot run go")?;
    if !version.status.success() {
        return Ok(Err(String::from_utf8_lossy(&version.stderr).trim().to_owned()));
    }
    let out = build_folder()?.join("real-node");
    println!("building kubelet and kube-apiserver in {}", out.display());
    let mut build = Command::new("python3");
    build.args(["real-node", "build"]).current_dir(&source).env("REAL_NODE_OUT", &out).stdin(Stdio::null());
    run_command(&mut build)?;
    Ok(Ok(out))
}
