//! `refloat version`.

use std::io::Write;

use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::output::structured;

/// Runs the command.
pub(crate) fn run(settings: &Settings) -> Result<Done, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = std::io::stdout().lock();
    let value = serde_json::json!({
        "apiVersion": "refloat.dev/v1",
        "kind": "Version",
        "version": version,
        "recordVersions": [refloat_record::codec::API_VERSION],
    });
    if !structured(&mut out, settings.output, &value)? {
        writeln!(out, "refloat {version}\nrecords {}", refloat_record::codec::API_VERSION)?;
        out.flush()?;
    }
    Ok(Done::Well)
}
