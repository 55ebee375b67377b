//! `refloat doctor`: checks what Refloat needs on this node, each with what to do.

mod checks;

use std::io::Write;

use serde::Serialize;

use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::output::table::{Look, print, printable};
use crate::output::{path_text::path_text, structured};

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Status {
    /// As it should be.
    Ok,
    /// Some volumes cannot be had, or not as well.
    Limited,
    /// Refloat cannot work so.
    Missing,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    /// What was checked; stable, for scripts.
    name: &'static str,
    status: Status,
    message: String,
    hint: String,
}

impl Check {
    fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, message: message.into(), hint: String::new() }
    }
    fn limited(name: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, status: Status::Limited, message: message.into(), hint: hint.into() }
    }
    fn missing(name: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, status: Status::Missing, message: message.into(), hint: hint.into() }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    api_version: &'static str,
    kind: &'static str,
    root_dir: String,
    state_dir: String,
    checks: Vec<Check>,
}

/// Runs the command.
pub(crate) fn run(settings: &Settings) -> Result<Done, Failure> {
    let report = Report {
        api_version: "refloat.dev/v1",
        kind: "DoctorReport",
        root_dir: path_text(&settings.root_dir).0,
        state_dir: path_text(&settings.state_dir).0,
        checks: checks::all(settings)?,
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if !structured(&mut out, settings.output, &report)? {
        let rows = report.checks.iter().map(|c| vec![c.name.into(), format!("{:?}", c.status), c.message.clone()]);
        print(&mut out, Look::of_stdout(settings.color), &["CHECK", "STATUS", "FOUND"], &rows.collect::<Vec<_>>())?;
        for check in report.checks.iter().filter(|c| !c.hint.is_empty()) {
            writeln!(out, "\n* {}: {}", check.name, printable(&check.hint))?;
        }
        out.flush()?;
    }
    Ok(Done::attention_if(report.checks.iter().any(|c| c.status == Status::Missing)))
}
