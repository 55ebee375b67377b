//! Running other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The workspace's folder.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_owned()
}

/// `cargo` in the workspace, without standard input.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(workspace()).stdin(Stdio::null());
    command
}

/// Runs a command and shows what it prints; an error if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

/// Builds the binary with this profile and answers where it is.
pub(crate) fn build_refloat(release: bool) -> Result<PathBuf> {
    build("refloat", release)
}

/// Builds a package of the workspace and answers where its program of the same name is.
pub(crate) fn build(package: &str, release: bool) -> Result<PathBuf> {
    let mut args = vec!["build", "--quiet", "--package", package, "--message-format=json-render-diagnostics"];
    if release {
        args.push("--release");
    }
    let output = cargo(&args).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("{package} does not build");
    }
    for line in output.stdout.split(|&b| b == b'\n').filter(|l| !l.is_empty()) {
        let message: serde_json::Value = serde_json::from_slice(line).context("cannot read what cargo says")?;
        if message["target"]["name"] == package
            && let Some(path) = message["executable"].as_str()
        {
            return Ok(path.into());
        }
    }
    bail!("cargo did not say where {package} is")
}

/// This program, to be started once more: also after `cargo test --workspace` has built its file anew, when its path
/// names another file or none.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

/// The build folder, in which this program is.
pub(crate) fn build_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("where is this program?")?;
    Ok(program.ancestors().nth(2).context("where is the build folder?")?.to_owned())
}

/// Finds a tool in `PATH` and where system tools are.
pub(crate) fn find_tool(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.find_map(|folder| {
        let path = folder.join(tool);
        rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).is_ok().then_some(path)
    })
}

/// Whether this process is root in the machine's own user namespace.
pub(crate) fn is_real_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root() && map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Does a part of the work, and says how long it took.
pub(crate) fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = std::time::Instant::now();
    let result = work();
    println!("{what}: {} s", begun.elapsed().as_secs());
    result
}
