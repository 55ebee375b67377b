//! Asking over HTTPS, with a deadline.

use std::error::Error;
use std::fmt::Write as _;
use std::pin::pin;
use std::time::Instant;

use http::{Request, StatusCode};
use http_body::Body as _;
use kube::{Client, Config};
use refloat_node::SourceError;

/// How large an answer may be: 256 MiB. A pod is at most 1.5 MiB, and rarely more than 50 KiB.
const MAX_ANSWER: usize = 256 << 20;

/// How much of an error's text is told, in bytes.
const MAX_TEXT: usize = 300;

/// Waits for work until the deadline, on a runtime of its own: whoever asks has a thread of its own, too.
pub(crate) fn wait<T>(deadline: Instant, work: impl Future<Output = Result<T, SourceError>>) -> Result<T, SourceError> {
    let start = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|e| SourceError::failed("starting a runtime", e))?;
    let result = runtime.block_on(async { tokio::time::timeout_at(deadline.into(), work).await });
    // A look-up of a name that hangs is left behind.
    runtime.shutdown_background();
    result.unwrap_or_else(|_| Err(SourceError::Deadline(deadline.saturating_duration_since(start))))
}

/// A client by this configuration. It does not try again: whoever asks is told at once what is wrong.
pub(crate) fn client(mut config: Config, address: &str) -> Result<Client, SourceError> {
    config.default_retry = false;
    Client::try_from(config).map_err(|e| SourceError::failed(format!("preparing to ask {address}"), plain(&e)))
}

/// The body of the answer to a GET of this path, if the answer is 200 and whole.
pub(crate) async fn get(client: &Client, path: &str, hint: Hints) -> Result<Vec<u8>, SourceError> {
    let request = Request::get(path).header(http::header::ACCEPT, "application/json").body(kube::client::Body::empty());
    let request = request.map_err(|e| SourceError::failed(format!("asking for {path}"), e))?;
    send(client, path, request, hint).await
}

/// Sends an object to this path, and has an error if the answer is none of success.
pub(crate) async fn post(
    client: &Client,
    path: &str,
    object: &serde_json::Value,
    hint: Hints,
) -> Result<(), SourceError> {
    let body = kube::client::Body::from(object.to_string().into_bytes());
    let request = Request::post(path).header(http::header::CONTENT_TYPE, "application/json").body(body);
    let request = request.map_err(|e| SourceError::failed(format!("sending to {path}"), e))?;
    send(client, path, request, hint).await.map(drop)
}

async fn send(
    client: &Client,
    path: &str,
    request: Request<kube::client::Body>,
    hint: Hints,
) -> Result<Vec<u8>, SourceError> {
    let response = client.send(request).await.map_err(|e| broken(path, &e))?;
    let status = response.status();
    let mut body = pin!(response.into_body());
    let mut all = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let frame = frame.map_err(|e| SourceError::failed(format!("reading the answer to {path}"), plain(&e)))?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > MAX_ANSWER {
            return Err(SourceError::incomplete(format!("it is larger than {} MiB", MAX_ANSWER >> 20)));
        }
        all.extend_from_slice(&data);
    }
    if !matches!(status, StatusCode::OK | StatusCode::CREATED) {
        return Err(SourceError::Status { status: status.as_u16(), what: what_it_says(&all), hint: hint(status) });
    }
    Ok(all)
}

/// What a status means, where that can be told.
pub(crate) type Hints = fn(StatusCode) -> Option<&'static str>;

/// The message in a refusal: that of a `Status` object, or a line of text.
fn what_it_says(body: &[u8]) -> String {
    let object: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text = match object.as_ref().and_then(|o| o["message"].as_str()) {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    let line: String = text.lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).collect();
    let end = line.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_TEXT).last().unwrap_or(0);
    if line.len() <= MAX_TEXT { line } else { line[..end].to_owned() }
}

fn broken(path: &str, error: &kube::Error) -> SourceError {
    let why = plain(error);
    match why.0.split_once("invalid peer certificate: ") {
        Some((_, why)) => SourceError::Untrusted { why: why.to_owned() },
        None => SourceError::failed(format!("asking for {path}"), why),
    }
}

/// An error's text. Those of HTTP clients repeat their causes', or say nothing without them.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Plain(String);

/// The error and its causes in one text, each said once.
pub(crate) fn plain(error: &(dyn Error + 'static)) -> Plain {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        let own = error.to_string();
        let cause = next.map(ToString::to_string).unwrap_or_default();
        let own = own.strip_suffix(cause.as_str()).unwrap_or(&own).trim_end_matches([' ', ':']);
        if own.is_empty() || text.ends_with(own) {
            continue;
        }
        let between = if text.is_empty() { "" } else { ": " };
        let _ = write!(text, "{between}{own}");
    }
    Plain(text)
}

/// Whether an object can be called so as a part of an address: a DNS subdomain, whose labels are not empty, needs no escape and
/// is neither `.` nor `..`, which would lead elsewhere.
pub(crate) fn is_plain(name: &str) -> bool {
    name.split('.').all(|label| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        for good in ["n1", "ip-10-0-0-1.eu-west-1.compute.internal", "web.local"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in ["", ".", "..", "...", "a..b", ".a", "a.", "a/b", "../pods", "a?b", "a%2fb", "a b"] {
            assert!(!is_plain(bad), "{bad}");
        }
    }
}
