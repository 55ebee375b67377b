//! Runs a program under ptrace, counts its state-changing system calls over all its threads, and kills at one of them.
//!
//! Only the program's own threads are traced. The programs that it starts are left alone: they run on when it is killed,
//! as they do on a node, and their calls do not count.
//!
//! Where a call counts, the thread stands still before it. A kill *before* call N is sent while the thread stands there:
//! the kernel skips the call, and those of threads that stand likewise. A kill *after* call N is sent when the call has
//! returned to its thread, and until then no other thread may begin a call that counts. So no later call happens. Earlier
//! ones of other threads that have not returned may get done or not, as on a node. In which order threads make their calls
//! may differ from run to run.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::calls::{Call, Entered};

/// The command of this program that calls [`exec`].
pub(crate) const EXEC: &str = "exec-traced";

/// On which side of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// It has not happened.
    Before,
    /// It has happened, and no counted call after it.
    After,
}

/// Who is killed, and when.
#[derive(Debug, Clone)]
pub(crate) struct Kill {
    /// At which counted call, from 1.
    pub(crate) number: usize,
    /// On which side of it.
    pub(crate) moment: Moment,
    /// Another process to kill instead of the traced one. It is dead before the traced one goes on.
    pub(crate) other: Option<Pid>,
}

/// What a traced program did.
#[derive(Debug)]
pub(crate) struct Trace {
    /// The counted calls in their order, with the number of the thread (from 0) that made each.
    pub(crate) calls: Vec<(usize, &'static str)>,
    /// The call at which was killed, if the program came that far.
    pub(crate) hit: Option<String>,
    /// How the program ended.
    pub(crate) status: ExitStatus,
}

/// This program, to be started once more: also when its file was built anew meanwhile.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// A command for [`run`] whose program is `program`; arguments are added as usual.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg(EXEC).arg(program);
    command
}

/// Becomes another program, stopped at its first instruction for the parent to trace.
pub(crate) fn exec(words: &[OsString]) -> Result<Infallible> {
    let [program, arguments @ ..] = words else { bail!("there is no program to run") };
    ptrace::traceme().context("cannot be traced")?;
    Err(Command::new(program).args(arguments).exec())
        .with_context(|| format!("cannot run {}", Path::new(program).display()))
}

/// Runs a command that [`command`] made to its end. `sockets`: names of calls that count too, on a socket.
pub(crate) fn run(command: &mut Command, sockets: &[&str], kill: Option<&Kill>) -> Result<Trace> {
    // In a thread of its own, so that waiting for any child takes no other child of this program; and if it fails, its
    // end kills what it traces.
    std::thread::scope(|scope| {
        let tracer = scope.spawn(|| Tracer::start(command, sockets, kill)?.run());
        tracer.join().map_err(|_| anyhow::anyhow!("the tracer panicked"))?
    })
}

struct Tracer<'a> {
    process: Pid,
    /// The threads that have stopped before, and their counted call last made.
    threads: HashMap<Pid, (usize, Option<&'static Call>)>,
    sockets: &'a [&'a str],
    kill: Option<&'a Kill>,
    calls: Vec<(usize, &'static str)>,
    hit: Option<String>,
    /// The thread that is in the call after which is to be killed.
    inside: Option<Pid>,
    /// Threads that stand before a call until that one has returned.
    held: Vec<Pid>,
}

/// A thread that was killed meanwhile is no error.
fn unless_gone<T>(result: nix::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ESRCH) => Ok(None),
        Err(error) => Err(error).context("cannot trace"),
    }
}

/// Lets a thread run up to its next call, or to its return from this one.
fn go_on(thread: Pid, signal: Option<Signal>) -> Result<()> {
    unless_gone(ptrace::syscall(thread, signal)).map(drop)
}

/// The next thing that happened to a child of this thread.
fn wait() -> Result<Option<WaitStatus>> {
    loop {
        match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
            Ok(status) => return Ok(Some(status)),
            Err(Errno::ECHILD) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for what is traced"),
        }
    }
}

impl<'a> Tracer<'a> {
    /// Starts the program, up to its first instruction.
    fn start(command: &mut Command, sockets: &'a [&'a str], kill: Option<&'a Kill>) -> Result<Self> {
        let child = command.spawn().context("cannot start what is to be traced")?;
        let process = Pid::from_raw(child.id().try_into().context("a process id is too large")?);
        match wait()? {
            Some(WaitStatus::Stopped(pid, Signal::SIGTRAP)) if pid == process => {}
            other => bail!("the program was not started: {other:?}"),
        }
        let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
            | ptrace::Options::PTRACE_O_TRACECLONE
            | ptrace::Options::PTRACE_O_TRACEEXEC
            | ptrace::Options::PTRACE_O_EXITKILL;
        ptrace::setoptions(process, options).context("cannot trace")?;
        ptrace::syscall(process, None).context("cannot let the program run")?;
        let threads = HashMap::from([(process, (0, None))]);
        Ok(Self { process, threads, sockets, kill, calls: Vec::new(), hit: None, inside: None, held: Vec::new() })
    }

    fn run(mut self) -> Result<Trace> {
        let mut ended = None;
        let mut left_alone = HashSet::new();
        while let Some(status) = wait()? {
            match status {
                WaitStatus::Exited(pid, code) if pid == self.process => ended = Some(ExitStatus::from_raw(code << 8)),
                WaitStatus::Signaled(pid, signal, _) if pid == self.process => {
                    ended = Some(ExitStatus::from_raw(signal as i32));
                }
                WaitStatus::PtraceSyscall(thread) => self.at_call(thread)?,
                WaitStatus::PtraceEvent(thread, ..) => go_on(thread, None)?,
                // The first stop of what a thread made.
                WaitStatus::Stopped(thread, Signal::SIGSTOP) if !self.threads.contains_key(&thread) => {
                    if self.is_own(thread) {
                        self.threads.insert(thread, (self.threads.len(), None));
                        go_on(thread, None)?;
                    } else if left_alone.insert(thread) {
                        unless_gone(ptrace::detach(thread, None))?;
                    }
                }
                WaitStatus::Stopped(thread, signal) => go_on(thread, Some(signal))?,
                _ => {}
            }
        }
        let status = ended.context("the traced program's end was not seen")?;
        Ok(Trace { calls: self.calls, hit: self.hit, status })
    }

    /// Whether this is a thread of the program, and not a process that it made.
    fn is_own(&self, thread: Pid) -> bool {
        std::fs::metadata(format!("/proc/{}/task/{thread}", self.process)).is_ok()
    }

    /// A thread stands before a call, or after it.
    fn at_call(&mut self, thread: Pid) -> Result<()> {
        let Some(info) = unless_gone(ptrace::syscall_info(thread))? else { return Ok(()) };
        match info.op {
            libc::PTRACE_SYSCALL_INFO_ENTRY => self.before(thread),
            libc::PTRACE_SYSCALL_INFO_EXIT if self.inside == Some(thread) => {
                self.inside = None;
                self.strike()?;
                for held in std::mem::take(&mut self.held) {
                    go_on(held, None)?;
                }
                go_on(thread, None)
            }
            libc::PTRACE_SYSCALL_INFO_EXIT => go_on(thread, None),
            other => bail!("a thread stands at a call in a way that is not known: {other}"),
        }
    }

    fn before(&mut self, thread: Pid) -> Result<()> {
        let Some(entered) = self.entered(thread)? else { return Ok(()) };
        let (index, previous) = self.threads.get(&thread).copied().context("a thread came from nowhere")?;
        let Some(call) = entered.counted(previous, self.sockets) else { return go_on(thread, None) };
        if self.inside.is_some() {
            self.held.push(thread);
            return Ok(());
        }
        self.threads.insert(thread, (index, Some(call)));
        self.calls.push((index, call.name));
        if let Some(kill) = self.kill
            && self.hit.is_none()
            && kill.number == self.calls.len()
        {
            self.hit = Some(entered.describe(call));
            match kill.moment {
                Moment::Before => self.strike()?,
                Moment::After => self.inside = Some(thread),
            }
        }
        go_on(thread, None)
    }

    /// Reads what a thread is about to call.
    fn entered(&self, thread: Pid) -> Result<Option<Entered>> {
        let Some(r) = unless_gone(ptrace::getregset::<ptrace::regset::NT_PRSTATUS>(thread))? else { return Ok(None) };
        #[cfg(target_arch = "x86_64")]
        let (number, arguments) = (r.orig_rax, [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]);
        #[cfg(target_arch = "aarch64")]
        let (number, arguments) = (r.regs[8], [r.regs[0], r.regs[1], r.regs[2], r.regs[3], r.regs[4], r.regs[5]]);
        Ok(Some(Entered { thread, process: self.process, number, arguments }))
    }

    fn strike(&self) -> Result<()> {
        let Some(other) = self.kill.and_then(|kill| kill.other) else {
            return unless_gone(kill(self.process, Signal::SIGKILL)).map(drop);
        };
        let pid = rustix::process::Pid::from_raw(other.as_raw()).context("there is no process 0")?;
        let pidfd = match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error).context("cannot find what is to be killed"),
        };
        let killed = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
        ensure!(matches!(killed, Ok(()) | Err(rustix::io::Errno::SRCH)), "cannot kill {other}: {killed:?}");
        let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        let patience = Duration::from_secs(10).try_into().context("a time is too long")?;
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&patience)));
        ensure!(ready.context("cannot wait for what was killed")? == 1, "{other} was killed and did not end");
        Ok(())
    }
}
