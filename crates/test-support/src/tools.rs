//! Programs that stand where those of the machine would.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A mount helper for NFS that binds folders of this machine, under the name that it has to have.
pub const MOUNT_NFS: (&str, &str) = ("mount.nfs", include_str!("mount.nfs.sh"));

/// Set where the tools are in the `PATH`.
const MARK: &str = "REFLOAT_TEST_TOOLS";

/// Writes an executable script into a folder.
///
/// # Errors
/// It cannot be written.
pub fn write_tool(folder: &Path, (name, text): (&str, &str)) -> std::io::Result<PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Runs the rest of `main` in a process whose `PATH` has these scripts before all else. To be called before any thread is
/// started.
///
/// # Panics
/// The scripts cannot be written, or this program cannot be started once more.
pub fn with_tools(tools: &[(&str, &str)], main: impl FnOnce() -> ExitCode) -> ExitCode {
    if std::env::var_os(MARK).is_some() {
        return main();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for tool in tools {
        write_tool(folder.path(), *tool).expect("a script in it");
    }
    let mut path = folder.path().as_os_str().to_owned();
    if let Some(before) = std::env::var_os("PATH") {
        path.push(":");
        path.push(before);
    }
    let program = std::env::current_exe().expect("the path of this program");
    let status = Command::new(program).args(std::env::args_os().skip(1)).env("PATH", path).env(MARK, "1").status();
    match status.expect("this program once more").code() {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => ExitCode::FAILURE,
    }
}
