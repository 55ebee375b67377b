//! The one thread that talks to drivers.

use std::convert::Infallible;
use std::io;
use std::thread::ThreadId;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// One thread with an asynchronous runtime; it sleeps while nothing happens and ends when this is dropped.
///
/// One thread is enough: it only moves messages, a driver's work is done by the driver, and a caller waits on its own
/// thread.
#[derive(Debug)]
pub(crate) struct Runtime {
    handle: Handle,
    thread: ThreadId,
    /// Dropped, it ends the thread.
    _stop: oneshot::Sender<Infallible>,
}

impl Runtime {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("csi".into()).spawn(move || {
            // Ends with an error, as nothing is ever sent.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        // Not joined: the last clone may be dropped on that very thread.
        Ok(Self { handle, thread: thread.thread().id(), _stop: stop })
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Waits for `work` on the caller's thread. None if the caller is the runtime's own thread, which would wait for
    /// itself.
    pub(crate) fn wait<T: Send>(&self, work: impl Future<Output = T> + Send) -> Option<T> {
        if std::thread::current().id() == self.thread {
            return None;
        }
        if Handle::try_current().is_err() {
            return Some(self.handle.block_on(work));
        }
        // The caller is a thread of another runtime, which may not block itself; it is the caller's to know why it does.
        std::thread::scope(|scope| scope.spawn(|| self.handle.block_on(work)).join().ok())
    }
}
