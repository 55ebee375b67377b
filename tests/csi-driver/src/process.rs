//! The driver as a process of its own.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use refloat_mount::loopdev;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal};

use crate::fault::Faults;
use crate::journal::{self, Entry};
use crate::options::Options;
use crate::server;

/// Set in the environment of a test program that is to be the driver, where that is not started by [`Process`].
pub const AS_DRIVER: &str = "REFLOAT_BE_TEST_CSI_DRIVER";

/// How long a driver may take to answer at its socket.
const PATIENCE: Duration = Duration::from_secs(20);

/// Becomes the driver if this program was started as one by [`Process`]; it then does not return, and ends with the thread
/// that started it. To be called first in the `main` of a test program that uses [`Program::This`].
pub fn run_if_driver() {
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }
    if std::env::var_os(AS_DRIVER).is_some() {
        // A test that is killed kills nobody. Where this cannot be had, the driver stays, as any other process.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        let result = server::run(Cli::parse().options);
        if let Err(error) = &result {
            eprintln!("{error}");
        }
        std::process::exit(i32::from(result.is_err()));
    }
}

/// The program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// This test program again; see [`run_if_driver`].
    This,
    /// The program `refloat-test-csi-driver`.
    At(PathBuf),
}

/// A driver that runs, in this process's mount namespace. Dropped, it is killed, and the loop devices of its volumes are
/// detached; its mounts and files are for who made the folders.
#[derive(Debug)]
pub struct Process {
    program: Program,
    options: Options,
    child: Option<Child>,
}

impl Process {
    /// Starts a driver and waits until it answers.
    pub fn start(program: Program, options: Options) -> io::Result<Self> {
        let mut process = Self { program, options, child: None };
        process.launch()?;
        Ok(process)
    }

    /// Its options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Its faults.
    ///
    /// # Panics
    /// If it has no folder for them.
    pub fn faults(&self) -> Faults {
        Faults::new(self.options.faults.as_ref().expect("it has a faults folder"))
    }

    /// Its journal, from the beginning.
    ///
    /// # Panics
    /// If it has none.
    pub fn journal(&self) -> io::Result<Vec<Entry>> {
        journal::read(self.options.journal.as_ref().expect("it has a journal"))
    }

    /// Its process id, if it was not seen to end.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills it hard, if it runs.
    pub fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Ends it as the system does: it removes its sockets.
    pub fn terminate(&mut self) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        self.wait()?;
        Ok(())
    }

    /// Waits until it ended by itself, as it does after an ordered crash. None if it was not running.
    pub fn wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.take().map(|mut child| child.wait()).transpose()
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> io::Result<bool> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?.is_none()),
            None => Ok(false),
        }
    }

    /// Stops it: it hangs, and so does whoever asks it.
    pub fn freeze(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills it if it runs, and starts it with its options changed.
    pub fn restart(&mut self, change: impl FnOnce(&mut Options)) -> io::Result<()> {
        self.kill()?;
        change(&mut self.options);
        self.launch()
    }

    fn launch(&mut self) -> io::Result<()> {
        std::fs::create_dir_all(&self.options.state)?;
        let program = match &self.program {
            Program::This => std::env::current_exe()?,
            Program::At(path) => path.clone(),
        };
        let mut command = Command::new(program);
        command.args(self.options.to_args()).env(AS_DRIVER, "1").stdin(Stdio::null()).stdout(Stdio::null());
        let child = self.child.insert(command.spawn()?);
        let start = Instant::now();
        let sockets = [Some(&self.options.endpoint), self.options.registration.as_ref()];
        // A connection that is closed at once; the driver's journal shows it. An older driver may still answer there.
        let pid = i32::try_from(child.id()).ok();
        let answers = |socket: &PathBuf| {
            let stream = UnixStream::connect(socket).ok()?;
            Some(socket_peercred(&stream).ok()?.pid.as_raw_nonzero().get())
        };
        while !sockets.iter().flatten().all(|socket| answers(socket) == pid) {
            if let Some(status) = child.try_wait()? {
                self.child = None;
                return Err(io::Error::other(format!("the driver ended: {status}")));
            }
            if start.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(child) = &self.child else { return Ok(()) };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
        for device in loopdev::all().unwrap_or_default() {
            if device.backing.starts_with(&self.options.state) {
                let _ = loopdev::detach(&device.path);
            }
        }
    }
}
