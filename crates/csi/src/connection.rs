//! One HTTP/2 connection to a socket, and what is known of a call that went over it.
//!
//! Below `tonic`'s own channel, because three things must be exact that a channel blurs: whether a request ever left
//! (then the driver may be at work), whether a status is the driver's own or made up here, and which socket it was.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};

use http::{HeaderMap, Request, Response, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::OnceCell;
use tonic::body::Body;

use crate::NodeCapabilities;
use crate::socket::Socket;

/// How long a driver's headers may be, its error text among them: 1 MiB. More ends the call, so that no driver can
/// fill the memory; less would turn a long error into a broken call.
const MAX_HEADERS: u32 = 1 << 20;

/// How long a message from a driver may be: 4 MiB, the usual limit of gRPC.
pub(crate) const MAX_MESSAGE: usize = 4 << 20;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Body>,
    socket: Arc<Socket>,
    /// The driver's name, asked once.
    pub(crate) name: OnceCell<String>,
    /// Its capabilities, asked once.
    pub(crate) capabilities: OnceCell<NodeCapabilities>,
}

impl Connection {
    /// Connects to a socket. The task that serves the connection ends when the connection does.
    pub(crate) async fn open(socket: Arc<Socket>) -> io::Result<Self> {
        let stream = socket.connect().await?;
        let (sender, serve) = Builder::new(TokioExecutor::new())
            .max_header_list_size(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        // How it ended is told to the calls.
        tokio::spawn(async move { drop(serve.await) });
        Ok(Self { sender, socket, name: OnceCell::new(), capabilities: OnceCell::new() })
    }

    /// Whether calls can go over it, and the path still leads to its socket.
    pub(crate) fn is_usable(&self) -> bool {
        !self.sender.is_closed() && self.socket.is_current()
    }

    pub(crate) fn wire(&self, seen: &Arc<Seen>) -> Wire {
        Wire { sender: self.sender.clone(), seen: Arc::clone(seen) }
    }
}

/// What was seen of one call.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    sent: AtomicBool,
    /// What stands in `grpc-status`: nothing (0), OK or an error.
    status: AtomicU8,
}

const OK_STATUS: u8 = 1;
const ERROR_STATUS: u8 = 2;

impl Seen {
    /// Whether the request may have reached the driver.
    pub(crate) fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    /// Whether the driver itself answered with an error status.
    pub(crate) fn has_error_status(&self) -> bool {
        self.status.load(Ordering::Acquire) == ERROR_STATUS
    }

    fn look_at(&self, headers: &HeaderMap) {
        if let Some(status) = headers.get("grpc-status") {
            let found = if status == "0" { OK_STATUS } else { ERROR_STATUS };
            self.status.store(found, Ordering::Release);
        }
    }
}

/// The service that the generated clients send a call over.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    sender: SendRequest<Body>,
    seen: Arc<Seen>,
}

/// A URI's scheme and authority, which HTTP/2 wants and drivers do not look at.
pub(crate) fn origin() -> Uri {
    Uri::from_static("http://localhost")
}

impl tower_service::Service<Request<Body>> for Wire {
    type Response = Response<SeenBody>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // A closed connection hands the request back unsent, which `call` can tell.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let seen = Arc::clone(&self.seen);
        seen.sent.store(true, Ordering::Release);
        let answer = self.sender.try_send_request(request);
        Box::pin(async move {
            match answer.await {
                Ok(response) => {
                    seen.look_at(response.headers());
                    Ok(response.map(|inner| SeenBody { inner, seen }))
                }
                Err(mut error) => {
                    if error.take_message().is_some() {
                        seen.sent.store(false, Ordering::Release);
                    }
                    Err(error.into_error())
                }
            }
        })
    }
}

/// A response's body, whose trailers hold the status.
#[derive(Debug)]
pub(crate) struct SeenBody {
    inner: Incoming,
    seen: Arc<Seen>,
}

impl HttpBody for SeenBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.seen.look_at(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
