//! Mounting by a program, for file systems that need one.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::MountError;
use super::attach::Place;
use crate::{Dir, Kernel};

const DOING: &str = "mount by a helper on";

/// The most that is kept of a helper's output.
const MAX_OUTPUT: u64 = 4096;

/// Mounts by a helper program (`mount.TYPE`, by way of `mount(8)`), with a deadline after which the helper's whole
/// process group is killed. The target is given as its real path, which is checked before and after: if the mount
/// landed elsewhere than on the target it is an error.
pub fn mount_by_helper(
    fs_type: &str,
    source: &str,
    target: &Dir,
    options: &[String],
    deadline: Duration,
) -> Result<(), MountError> {
    let place = Place::free(target)?;
    let error = |source: std::io::Error| MountError::new(DOING, target.path(), source);
    // A file, not a pipe: a daemon that the helper leaves behind may hold its end for ever.
    let mut output = std::fs::File::from(
        rustix::fs::memfd_create("mount-output", MemfdFlags::CLOEXEC).map_err(|errno| error(errno.into()))?,
    );
    let mut command = Command::new("mount");
    command.args(["-t", fs_type]);
    if !options.is_empty() {
        command.arg("-o").arg(options.join(","));
    }
    command.arg("--").arg(source).arg(target.path());
    command.stdin(Stdio::null()).process_group(0).env("LC_ALL", "C");
    command.stdout(output.try_clone().map_err(error)?).stderr(output.try_clone().map_err(error)?);
    let child = command.spawn().map_err(|source| error(source).because("starting mount(8)"))?;
    let status = wait(child, deadline).map_err(error)?;
    let mut text = Vec::new();
    let _ = output.seek(SeekFrom::Start(0)).and_then(|_| output.take(MAX_OUTPUT).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    match status {
        Some(status) if status.success() => place.check_helper(Kernel::detect()),
        Some(status) => Err(error(std::io::Error::other(format!("mount(8) ended with {status}"))).because(text)),
        None => Err(error(Errno::TIMEDOUT.into()).because(format!("mount(8) was killed after {deadline:?}; {text}"))),
    }
}

/// Waits for the helper. `None`: the deadline passed, and its whole process group was killed.
fn wait(mut child: Child, deadline: Duration) -> std::io::Result<Option<ExitStatus>> {
    let end = Instant::now() + deadline;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(group) = group {
                // Its group has its own id (`process_group(0)`). Already gone is fine.
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            // One that hangs in the kernel goes when the kernel lets it; somebody has to take note of its end.
            std::thread::spawn(move || child.wait());
            return Ok(None);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
