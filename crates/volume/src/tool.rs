//! Runs an external tool (mkfs, fsck, blkid) with a deadline and bounded output.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use refloat_csi::Secrets;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde_json::{Map, Value};

/// The most that is kept of each output stream, in bytes. The rest is read, so that the tool does not block on a
/// full pipe, and dropped: what a tool has to say about one device fits many times.
pub(crate) const MAX_OUTPUT: usize = 64 << 10;

/// Where tools are looked for beyond the manager's own `PATH`: a service's `PATH` often lacks the `sbin` folders.
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The most of it that a message has, in characters.
const MAX_SAID: usize = 1000;

/// How much of a message in an answer is shown, in characters.
const MAX_ANSWERED: usize = 300;

/// What a tool did.
#[derive(Debug, Clone)]
pub struct ToolOutput {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output, at most 64 KiB of it.
    pub stdout: Vec<u8>,
    /// Its standard error, at most 64 KiB of it.
    pub stderr: Vec<u8>,
}

impl ToolOutput {
    /// The output of a tool that ended with 0; any other end is [`ToolError::Failed`] with what it said.
    pub fn success(self, program: &str) -> Result<Self, ToolError> {
        self.success_without(program, &Secrets::default())
    }

    /// The same without these secrets in what it said.
    pub(crate) fn success_without(self, program: &str, secrets: &Secrets) -> Result<Self, ToolError> {
        if self.code == Some(0) {
            return Ok(self);
        }
        let stderr = self.said(secrets);
        Err(ToolError::Failed { program: program.to_owned(), code: self.code, stderr })
    }

    /// What it said, for a message. Secrets go before it is cut, so that no half of one is left at the cut.
    pub(crate) fn said(&self, secrets: &Secrets) -> String {
        let said = if self.stderr.iter().all(u8::is_ascii_whitespace) { &self.stdout } else { &self.stderr };
        if secrets.is_empty() { in_a_message(said) } else { secrets.hidden_in(&String::from_utf8_lossy(said)) }
    }
}

/// Why a tool gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// It is not there, or could not be started.
    #[error("cannot run {program}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It was killed with its whole process group after the deadline.
    #[error("{program} did not end within {deadline:?} and was killed")]
    Deadline {
        /// The program.
        program: String,
        /// The deadline.
        deadline: Duration,
    },
    /// It said no.
    #[error("{program} failed ({}): {stderr}", .code.map_or_else(|| "ended by a signal".to_owned(), |c| format!("exit code {c}")))]
    Failed {
        /// The program.
        program: String,
        /// Its exit code; none if a signal ended it.
        code: Option<i32>,
        /// What it said.
        stderr: String,
    },
}

/// Runs the tool in a process group of its own, in the C locale, without standard input and without a shell.
///
/// Any exit code is an answer ([`ToolOutput::success`] makes an error of all but 0): `blkid` and `fsck` say things
/// with theirs. What the tool itself left running is not waited for, even if it holds the output open.
///
/// # Errors
/// [`ToolError::Start`] if it cannot be started or waited for, [`ToolError::Deadline`] if it was killed.
pub fn run_tool(program: impl AsRef<OsStr>, args: &[&OsStr], deadline: Duration) -> Result<ToolOutput, ToolError> {
    run(program.as_ref(), args, &[], None, deadline)
}

/// The same with these variables added to its environment, and with this on its standard input, if it is to have one. A tool
/// need not read it.
pub(crate) fn run(
    program: &OsStr,
    args: &[&OsStr],
    environment: &[(&str, &OsStr)],
    input: Option<&[u8]>,
    deadline: Duration,
) -> Result<ToolOutput, ToolError> {
    let shown = program.to_string_lossy();
    let start_error = |source: std::io::Error| ToolError::Start { program: shown.clone().into_owned(), source };
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(OsString::from(SYSTEM_PATH));

    let until = Instant::now().checked_add(deadline);
    let mut child = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .env("PATH", path)
        .envs(environment.iter().copied())
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(start_error)?;
    match attend(&mut child, input.unwrap_or_default(), until) {
        Ok(Some(output)) => Ok(output),
        Ok(None) => {
            kill_group(&mut child);
            Err(ToolError::Deadline { program: shown.into_owned(), deadline })
        }
        Err(source) => {
            kill_group(&mut child);
            Err(start_error(source))
        }
    }
}

/// What a tool said, as a part of a message: not more than fits, and nothing that a terminal would obey.
pub(crate) fn in_a_message(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let text = text.trim();
    let mut shown: String = text
        .chars()
        .take(MAX_SAID)
        .map(|c| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if text.chars().nth(MAX_SAID).is_some() {
        shown.push_str(" …");
    }
    shown
}

/// The one JSON object that a program answered with. The error is what it is instead of one, without a byte of it.
pub(crate) fn json_object(stdout: &[u8]) -> Result<Map<String, Value>, String> {
    serde_json::from_slice(stdout).map_err(|_| match stdout.len() {
        0 => "nothing".to_owned(),
        // No more is kept.
        n if n >= MAX_OUTPUT => format!("{} KiB or more that are no JSON object", n >> 10),
        n => format!("{n} bytes that are no JSON object"),
    })
}

/// What a program answered in words, as much as is shown.
pub(crate) fn shortened(text: &str) -> String {
    let short: String = text.chars().take(MAX_ANSWERED).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

/// Kills the child's process group and collects the child. It has not been waited for, so its id, which is the
/// group's, cannot have been given to anybody else.
fn kill_group(child: &mut Child) {
    if let Err(error) = kill_process_group(Pid::from_child(child), Signal::KILL) {
        tracing::warn!(%error, pid = child.id(), "cannot kill a tool's process group");
        return; // waiting could take for ever
    }
    // A process in uninterruptible sleep dies only when its device answers; the operation that called must not
    // hang with it.
    let patience = Instant::now() + Duration::from_secs(1);
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Gives the child its input and reads its output until it ends; none if `until` comes first.
fn attend(child: &mut Child, input: &[u8], until: Option<Instant>) -> std::io::Result<Option<ToolOutput>> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let mut streams =
        [Stream::new(child.stdout.take().map(OwnedFd::from))?, Stream::new(child.stderr.take().map(OwnedFd::from))?];
    let mut input = Input::new(child.stdin.take().map(OwnedFd::from), input)?;
    loop {
        input.push();
        let mut fds = vec![PollFd::new(&pidfd, PollFlags::IN)];
        fds.extend(input.pipe.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        fds.extend(streams.iter().filter_map(Stream::fd).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let left = until.map(|u| u.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) if left.is_some() => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let ended = !fds[0].revents().is_empty();
        drop(fds);
        for stream in &mut streams {
            stream.drain()?;
        }
        if ended {
            // All that it wrote was in the pipes before it ended, and has just been read.
            let status = child.wait()?;
            let [out, err] = streams;
            return Ok(Some(ToolOutput { code: status.code(), stdout: out.kept, stderr: err.kept }));
        }
    }
}

/// What is left to be written to a tool's standard input.
struct Input<'i> {
    pipe: Option<File>,
    rest: &'i [u8],
}

impl<'i> Input<'i> {
    fn new(pipe: Option<OwnedFd>, rest: &'i [u8]) -> std::io::Result<Self> {
        if let Some(pipe) = &pipe {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(Self { pipe: pipe.map(File::from), rest })
    }

    /// Writes what there is room for, and closes the pipe after the last byte, or if the tool has closed its end.
    fn push(&mut self) {
        while let Some(pipe) = &mut self.pipe {
            match pipe.write(self.rest) {
                Ok(n) if n < self.rest.len() => self.rest = &self.rest[n..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.pipe = None,
            }
        }
    }
}

/// One output stream of a tool.
struct Stream {
    pipe: Option<File>,
    kept: Vec<u8>,
}

impl Stream {
    fn new(pipe: Option<OwnedFd>) -> std::io::Result<Self> {
        if let Some(pipe) = &pipe {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(Self { pipe: pipe.map(File::from), kept: Vec::new() })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads what is there without waiting.
    fn drain(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; 8192];
        // Bounded, so that a tool which never stops writing cannot keep the deadline from being looked at.
        for _ in 0..64 {
            let Some(pipe) = &mut self.pipe else { return Ok(()) };
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(n) => {
                    let room = MAX_OUTPUT.saturating_sub(self.kept.len());
                    self.kept.extend_from_slice(&buffer[..n.min(room)]);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
