//! Messages on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::cli::{ColorWhen, LogFormat};
use crate::config::Settings;

/// Starts logging to standard error: warnings, with `-v` each step, with `-vv` each detail. `REFLOAT_LOG` takes a
/// filter in the syntax of `tracing` and wins.
pub(crate) fn start(settings: &Settings) {
    let level = match settings.verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("REFLOAT_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match settings.log_format {
        LogFormat::Text => {
            builder.with_ansi(wants_color(settings.color, &std::io::stderr())).with_target(false).init();
        }
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

/// Whether to use colours on this stream: as asked, else on a terminal if `NO_COLOR` is not set.
pub(crate) fn wants_color(when: ColorWhen, stream: &impl IsTerminal) -> bool {
    match when {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto => stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
}
