//! The way to one driver: its socket, the kept connection, and how a call over it ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tonic::{Code, Request, Response, Status};

use crate::connection::{Connection, MAX_MESSAGE, Seen, Wire, origin};
use crate::hide::Hidden;
use crate::proto::csi as pb;
use crate::proto::csi::identity_client::IdentityClient;
use crate::proto::csi::node_client::NodeClient;
use crate::socket::Socket;
use crate::{CallError, CallErrorKind, NodeCapabilities, Outcome};

/// A driver's name and socket, and the connection to it, made when it is first needed and anew when the socket changed.
#[derive(Debug)]
pub(crate) struct Link {
    name: String,
    endpoint: PathBuf,
    connection: Mutex<Option<Arc<Connection>>>,
}

/// Why one try of a call failed.
struct Failed {
    kind: CallErrorKind,
    outcome: Outcome,
    /// The connection broke before the request left: another one may do.
    again: bool,
}

impl Link {
    pub(crate) fn new(name: &str, endpoint: &Path) -> Self {
        Self { name: name.to_owned(), endpoint: endpoint.to_owned(), connection: Mutex::new(None) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn endpoint(&self) -> &Path {
        &self.endpoint
    }

    /// Makes one call of the node service. `ask` sends it; it may be called twice, if the first connection turns out to
    /// be closed before anything was sent. Dropping the future, as the deadline does, resets the stream and frees what
    /// the call held.
    pub(crate) async fn call<T, F>(
        &self,
        call: &'static str,
        deadline: Duration,
        hidden: &Hidden,
        ask: impl Fn(Wire, Duration) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let seen = Arc::new(Seen::default());
        let start = Instant::now();
        let work = async {
            let mut tries = 0;
            loop {
                tries += 1;
                let connection = self.connection().await?;
                self.check_name(&connection, deadline.saturating_sub(start.elapsed())).await?;
                let left = deadline.saturating_sub(start.elapsed());
                match ask(connection.wire(&seen), left).await {
                    Ok(response) => return Ok(response.into_inner()),
                    Err(status) => {
                        let failed = self.failed(&status, &seen, hidden, start, deadline);
                        if !(failed.again && tries == 1) {
                            return Err(failed);
                        }
                    }
                }
            }
        };
        let result = tokio::time::timeout(deadline, work).await.unwrap_or_else(|_| {
            let outcome = if seen.was_sent() { Outcome::Uncertain } else { Outcome::NotStarted };
            Err(Failed { kind: CallErrorKind::Deadline(deadline), outcome, again: false })
        });
        result.map_err(|f| CallError { driver: self.name.clone(), call, outcome: f.outcome, kind: f.kind })
    }

    /// The capabilities, asked once a connection.
    pub(crate) async fn capabilities(&self, deadline: Duration) -> Result<NodeCapabilities, CallError> {
        const CALL: &str = "NodeGetCapabilities";
        let error = |f: Failed| CallError { driver: self.name.clone(), call: CALL, outcome: f.outcome, kind: f.kind };
        let connection = self.connection().await.map_err(error)?;
        let ask = || async {
            let answer = self
                .call(CALL, deadline, &Hidden::default(), |wire, left| async move {
                    node_client(wire).node_get_capabilities(timed(pb::NodeGetCapabilitiesRequest {}, left)).await
                })
                .await?;
            Ok(crate::convert::capabilities(&answer))
        };
        // Many callers wait for one answer, but none longer than its own deadline.
        match tokio::time::timeout(deadline, connection.capabilities.get_or_try_init(ask)).await {
            Ok(answer) => answer.copied(),
            Err(_) => Err(error(Failed {
                kind: CallErrorKind::Deadline(deadline),
                outcome: Outcome::Uncertain,
                again: false,
            })),
        }
    }

    /// The kept connection, or a new one.
    async fn connection(&self) -> Result<Arc<Connection>, Failed> {
        // Held while connecting, which waits for nobody: a Unix socket accepts or refuses at once.
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|c| c.is_usable()) {
            return Ok(Arc::clone(connection));
        }
        *kept = None;
        let opened = match Socket::at(&self.endpoint) {
            Ok(socket) => Connection::open(Arc::new(socket)).await,
            Err(error) => Err(error),
        };
        let connection = Arc::new(opened.map_err(|error| self.not_connected(&error.to_string()))?);
        *kept = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Asks `GetPluginInfo` once a connection: a call must not reach a driver of another name, which may say OK to
    /// what it never did.
    async fn check_name(&self, connection: &Connection, left: Duration) -> Result<(), Failed> {
        let found = connection
            .name
            .get_or_try_init(|| async {
                let seen = Arc::new(Seen::default());
                let mut client = IdentityClient::with_origin(connection.wire(&seen), origin())
                    .max_decoding_message_size(MAX_MESSAGE);
                match client.get_plugin_info(timed(pb::GetPluginInfoRequest {}, left)).await {
                    Ok(answer) => Ok(answer.into_inner().name),
                    Err(status) => {
                        let failed = self.failed(&status, &seen, &Hidden::default(), Instant::now(), left);
                        Err(Failed { outcome: Outcome::NotStarted, ..failed })
                    }
                }
            })
            .await?;
        if *found == self.name {
            return Ok(());
        }
        let kind = CallErrorKind::OtherDriver {
            endpoint: self.endpoint.clone(),
            found: Hidden::default().clean(found).chars().take(80).collect(),
        };
        Err(Failed { kind, outcome: Outcome::NotStarted, again: false })
    }

    fn not_connected(&self, why: &str) -> Failed {
        let kind = CallErrorKind::NotConnected { endpoint: self.endpoint.clone(), why: why.to_owned() };
        Failed { kind, outcome: Outcome::NotStarted, again: false }
    }

    fn failed(&self, status: &Status, seen: &Seen, hidden: &Hidden, start: Instant, deadline: Duration) -> Failed {
        if !seen.was_sent() {
            return Failed { again: true, ..self.not_connected(&root_cause(status)) };
        }
        if !seen.has_error_status() {
            // Made up here, not the driver's: the connection broke, or the answer could not be read.
            let kind = CallErrorKind::Broken(hidden.clean(&root_cause(status)));
            return Failed { kind, outcome: Outcome::Uncertain, again: false };
        }
        let timed_out =
            matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled) && start.elapsed() >= deadline;
        let kind = if timed_out {
            // The driver, or its library, heeded our deadline a moment before we did.
            CallErrorKind::Deadline(deadline)
        } else {
            CallErrorKind::Status { code: code_name(status.code()), message: hidden.clean(status.message()) }
        };
        Failed { kind, outcome: outcome_of(status.code()), again: false }
    }
}

/// A client of the node service.
pub(crate) fn node_client(wire: Wire) -> NodeClient<Wire> {
    NodeClient::with_origin(wire, origin()).max_decoding_message_size(MAX_MESSAGE)
}

/// A request that tells the driver how long we wait.
pub(crate) fn timed<T>(message: T, left: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(left);
    request
}

/// What a code leaves open.
///
/// # Source
/// See [`Outcome`].
fn outcome_of(code: Code) -> Outcome {
    match code {
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted => {
            Outcome::Uncertain
        }
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => Outcome::Final,
    }
}

/// The code's name in the gRPC specification.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The text of the innermost cause.
pub(crate) fn root_cause(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}
