//! What every call goes through: the journal, the faults, and one operation a volume at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tonic::{Code, Response, Status};

use crate::disk::Disks;
use crate::fault::{Action, Faults};
use crate::journal::{Entry, Event, Journal};
use crate::options::Options;

/// What all services share.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) options: Options,
    pub(crate) disks: Disks,
    pub(crate) journal: Journal,
    faults: Option<Faults>,
    busy: Arc<Mutex<BTreeSet<String>>>,
}

/// A call, for journal and faults.
#[derive(Debug, Default)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) volume: String,
    pub(crate) path: String,
    pub(crate) secrets: BTreeMap<String, String>,
}

impl Call {
    pub(crate) fn new(name: &'static str, volume: &str, path: &str) -> Self {
        Self { name, volume: volume.into(), path: path.into(), ..Self::default() }
    }

    pub(crate) fn with_secrets(self, secrets: &BTreeMap<String, String>) -> Self {
        Self { secrets: secrets.clone(), ..self }
    }
}

impl Driver {
    pub(crate) fn new(options: Options) -> io::Result<Self> {
        Ok(Self {
            disks: Disks::new(&options.state)?,
            journal: Journal::open(options.journal.as_deref())?,
            faults: options.faults.as_ref().map(Faults::new),
            busy: Arc::default(),
            options,
        })
    }

    /// Answers a call: writes the journal, obeys what is ordered, and else does `work` on a thread that may block.
    /// `nothing` is the answer of a driver that does nothing.
    pub(crate) async fn answer<T: Clone + Send + 'static>(
        self: &Arc<Self>,
        call: Call,
        nothing: T,
        work: impl FnOnce(&Self) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let mut record = Recording::begin(self, &call);
        let result = self.obey(&call, nothing, work).await;
        let text = match &result {
            Ok(_) => "Ok".to_owned(),
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
        };
        record.end(text);
        result.map(Response::new)
    }

    async fn obey<T: Clone + Send + 'static>(
        self: &Arc<Self>,
        call: &Call,
        nothing: T,
        work: impl FnOnce(&Self) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let fault = match &self.faults {
            Some(faults) => {
                faults.take(call.name, &call.volume).map_err(|e| Status::data_loss(format!("fault: {e}")))?
            }
            None => None,
        };
        let work = async { if self.options.noop { Ok(nothing.clone()) } else { self.work(&call.volume, work).await } };
        match fault {
            Some(Action::Code { code, message }) => Err(status(code, &message, call)),
            Some(Action::CodeAfter { code, message }) => {
                work.await?;
                Err(status(code, &message, call))
            }
            Some(Action::Hang) => std::future::pending().await,
            Some(Action::HangAfter) => {
                work.await?;
                std::future::pending().await
            }
            Some(Action::Lie) => Ok(nothing.clone()),
            Some(Action::Crash) => crash(),
            Some(Action::CrashAfter) => {
                work.await?;
                crash()
            }
            Some(Action::Slow(milliseconds)) => {
                tokio::time::sleep(Duration::from_millis(milliseconds)).await;
                work.await
            }
            None => work.await,
        }
    }

    /// One operation a volume at a time, as the specification asks for: another is `ABORTED`. The volume stays busy
    /// until the work is done, also when its caller gave up.
    async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        volume: &str,
        work: impl FnOnce(&Self) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let busy = Busy::take(&self.busy, volume)?;
        let driver = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let _busy = busy;
            work(&driver)
        });
        done.await.map_err(|error| Status::internal(format!("the work panicked: {error}")))?
    }
}

/// A volume that is being worked on.
struct Busy {
    all: Arc<Mutex<BTreeSet<String>>>,
    volume: String,
}

impl Busy {
    fn take(all: &Arc<Mutex<BTreeSet<String>>>, volume: &str) -> Result<Option<Self>, Status> {
        if volume.is_empty() {
            return Ok(None);
        }
        if !all.lock().unwrap_or_else(PoisonError::into_inner).insert(volume.to_owned()) {
            return Err(Status::aborted(format!("an operation on volume {volume} goes on")));
        }
        Ok(Some(Self { all: Arc::clone(all), volume: volume.into() }))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.volume);
    }
}

/// A call that is in the journal and has not ended.
struct Recording<'a> {
    driver: &'a Driver,
    entry: Option<Entry>,
}

impl<'a> Recording<'a> {
    fn begin(driver: &'a Driver, call: &Call) -> Self {
        let entry = Entry {
            pid: std::process::id(),
            number: driver.journal.number(),
            call: call.name.into(),
            event: Event::Begin,
            volume: call.volume.clone(),
            path: call.path.clone(),
            secrets: call.secrets.keys().cloned().collect(),
        };
        driver.journal.write(&entry);
        Self { driver, entry: Some(entry) }
    }

    fn end(&mut self, result: String) {
        self.write(Event::End(result));
    }

    fn write(&mut self, event: Event) {
        if let Some(entry) = self.entry.take() {
            self.driver.journal.write(&Entry { event, ..entry });
        }
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        // The client reset the stream.
        self.write(Event::Dropped);
    }
}

fn status(code: i32, message: &str, call: &Call) -> Status {
    let secrets: Vec<_> = call.secrets.values().map(String::as_str).collect();
    Status::new(Code::from_i32(code), message.replace("{secrets}", &secrets.join(" ")))
}

/// As a kill from outside would end it: no destructor, no flush.
fn crash() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

/// An error of the system as a status.
pub(crate) fn internal(doing: &str) -> impl FnOnce(io::Error) -> Status + '_ {
    move |error| Status::internal(format!("cannot {doing}: {error}"))
}
