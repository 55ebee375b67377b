//! Messages on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::cli::{ColorWhen, LogFormat};
use crate::config::Settings;
use crate::exit::{Failure, chain};

/// Starts logging to standard error: warnings, with `-v` each step, with `-vv` each detail. `REFLOAT_LOG` takes a
/// filter in the syntax of `tracing` and wins.
pub(crate) fn start(settings: &Settings) -> Result<(), Failure> {
    let level = match settings.verbose {
        // What the client says of a server that does not answer is told as the source's problem.
        0 => "warn,kube_client=off",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = match std::env::var_os("REFLOAT_LOG").filter(|text| !text.is_empty()) {
        None => EnvFilter::new(level),
        Some(text) => filter(&text.to_string_lossy())?,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match settings.log_format {
        LogFormat::Text => {
            builder.with_ansi(wants_color(settings.color, &std::io::stderr())).with_target(false).init();
        }
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

/// What `REFLOAT_LOG` says.
fn filter(text: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(text).map_err(|error| {
        let message = format!("REFLOAT_LOG is {text:?}, which is no filter: {}", chain(&error));
        Failure::usage(message, "write a level, such as debug, or levels of modules, such as warn,refloat_node=debug")
    })
}

/// Whether to use colours on this stream: as asked, else on a terminal if `NO_COLOR` is not set.
pub(crate) fn wants_color(when: ColorWhen, stream: &impl IsTerminal) -> bool {
    match when {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto => stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
}
