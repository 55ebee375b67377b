//! One request and one answer over a Unix socket.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    shutdown, socket_with,
};

/// How long to wait before another look at a socket whose queue of connections is full.
const FULL: Duration = Duration::from_millis(20);

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum SocketError {
    /// Nobody listens there.
    Connect(io::Error),
    /// The connection ended in an error.
    Broken(io::Error),
    /// No answer in time.
    Deadline,
    /// The answer is longer than anybody would read.
    TooMuch,
}

/// Connects, sends the request, closes that side, and reads until the other side closes its own. Nothing of it waits longer
/// than the deadline.
pub(super) fn ask(path: &Path, request: &[u8], deadline: Duration, most: usize) -> Result<Vec<u8>, SocketError> {
    let until = Instant::now() + deadline;
    let socket = connected(path, until)?;
    let broken = |error: Errno| SocketError::Broken(error.into());
    let mut rest = request;
    let mut answer = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let wanted = if rest.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        wait(&socket, wanted, until)?;
        if !rest.is_empty() {
            // Who does not read all of it may answer all the same.
            match send(&socket, rest, SendFlags::NOSIGNAL) {
                Ok(n) => rest = &rest[n..],
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => rest = &[],
                Err(error) => return Err(broken(error)),
            }
            if rest.is_empty() {
                let _ = shutdown(&socket, Shutdown::Write);
            }
        }
        match recv(&socket, &mut buffer, RecvFlags::empty()) {
            Ok((0, _)) => return Ok(answer),
            Ok((n, _)) if answer.len() + n > most => return Err(SocketError::TooMuch),
            Ok((n, _)) => answer.extend_from_slice(&buffer[..n]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(broken(error)),
        }
    }
}

/// Connecting to a Unix socket waits while its queue is full, unless it is told not to.
fn connected(path: &Path, until: Instant) -> Result<OwnedFd, SocketError> {
    let failed = |error: Errno| SocketError::Connect(error.into());
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() + FULL < until => std::thread::sleep(FULL),
            Err(Errno::AGAIN) => return Err(SocketError::Deadline),
            Err(error) => return Err(failed(error)),
        }
    }
}

fn wait(socket: &OwnedFd, flags: PollFlags, until: Instant) -> Result<(), SocketError> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(socket, flags)], timeout.as_ref()) {
            Ok(0) => return Err(SocketError::Deadline),
            Ok(_) if left.is_zero() => return Err(SocketError::Deadline),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(SocketError::Broken(error.into())),
        }
    }
}
