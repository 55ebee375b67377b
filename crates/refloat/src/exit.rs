//! How a command ended, and the exit code for it: the one place that decides.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use crate::cli::LogFormat;
use crate::config::Settings;
use crate::output::shown::shown;

/// It could not do what was asked.
pub(crate) const FAILED: u8 = 1;
/// Bad usage or configuration.
pub(crate) const USAGE: u8 = 2;
/// Done, but something needs attention.
pub(crate) const ATTENTION: u8 = 3;

/// How a command ended that did what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    /// Nothing is wrong.
    Well,
    /// Something needs attention.
    NeedsAttention,
}

impl Done {
    /// Well, unless something needs attention.
    pub(crate) fn attention_if(needed: bool) -> Self {
        if needed { Self::NeedsAttention } else { Self::Well }
    }
}

/// Why a command could not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The user asked for something that makes no sense.
    Usage { message: String, hint: String },
    /// It went wrong.
    Failed { error: anyhow::Error, hint: String },
    /// Nobody reads what is printed any more (a closed pipe). That is success.
    NobodyReads,
}

impl Failure {
    /// Bad usage or configuration.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: hint.into() }
    }

    /// It could not be done, and here is what to do about it.
    pub(crate) fn with_hint(error: impl Into<anyhow::Error>, hint: impl Into<String>) -> Self {
        Self::Failed { error: error.into(), hint: hint.into() }
    }

    /// It could not be done: a message without a cause.
    pub(crate) fn message(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::with_hint(anyhow::Error::msg(message.into()), hint)
    }
}

/// Writing to standard output failed.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::NobodyReads;
        }
        Self::with_hint(anyhow::Error::new(error).context("cannot write the result"), "")
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::with_hint(error, "")
    }
}

/// Prints what went wrong, if something did, and answers the exit code.
pub(crate) fn report(result: Result<Done, Failure>, settings: Option<&Settings>) -> ExitCode {
    let (code, message, hint) = match result {
        Ok(Done::Well) | Err(Failure::NobodyReads) => return ExitCode::SUCCESS,
        Ok(Done::NeedsAttention) => return ExitCode::from(ATTENTION),
        Err(Failure::Usage { message, hint }) => (USAGE, message, hint),
        Err(Failure::Failed { error, hint }) => (FAILED, chain(error.as_ref()), hint),
    };
    let mut text = String::new();
    if settings.is_some_and(|s| s.log_format == LogFormat::Json) {
        text = serde_json::json!({ "level": "ERROR", "message": message, "hint": hint }).to_string();
    } else {
        text.push_str("error: ");
        // A message may have lines of its own, and in it names from the node.
        let lines: Vec<_> = message.split('\n').map(shown).collect();
        text.push_str(&lines.join("\n"));
        if !hint.is_empty() {
            text.push_str("\nhint: ");
            text.push_str(&hint);
        }
    }
    // If nobody listens on standard error either, the exit code still tells.
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::from(code)
}

/// An error with its causes on one line. No message holds its cause's text, so nothing is said twice.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_their_error() {
        let cause = std::io::Error::other("no space");
        let error = anyhow::Error::new(cause).context("cannot write a").context("cannot start");
        assert_eq!(chain(error.as_ref()), "cannot start: cannot write a: no space");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let failure = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(matches!(failure, Failure::NobodyReads));
    }
}
