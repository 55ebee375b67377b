//! What `clean` and `release` print.

use std::collections::BTreeMap;
use std::io::Write;

use refloat_node::Answers;
use refloat_node::clean::{CleanPlan, Kept, Left, Step, StepResult};
use refloat_volume::Problem;
use serde::Serialize;

use super::path_text::path_text;
use super::structured;
use super::table::{Look, print, printable};
use crate::cli::OutputFormat;
use crate::exit::Failure;
use crate::sources::{self, SourceOut};

/// A clean-up, planned or carried out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CleanOutput {
    api_version: &'static str,
    kind: &'static str,
    /// Whether it was carried out.
    executed: bool,
    /// Who was asked which pods are on the node.
    sources: Vec<SourceOut>,
    steps: Vec<StepOutput>,
    kept: Vec<KeptOutput>,
    /// What is wrong with the node, or with what was asked, and needs attention besides.
    problems: Vec<Problem>,
    /// Why it was stopped before its end, if it was.
    stopped: Option<String>,
    /// After a release: what is still mounted, attached or staged.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<Vec<LeftOutput>>,
    summary: Summary,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StepOutput {
    action: &'static str,
    path: String,
    volume: Option<String>,
    reason: String,
    result: &'static str,
    /// What went wrong, or how it was forced.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeptOutput {
    path: String,
    code: &'static str,
    reason: String,
    pod: Option<String>,
    volume: Option<String>,
    bytes: Option<u64>,
    entries: Option<u64>,
    command: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LeftOutput {
    kind: &'static str,
    path: String,
    what: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    steps: usize,
    done: usize,
    failed: usize,
    not_done: usize,
    kept: usize,
    wanted_pods: usize,
    by_action: BTreeMap<&'static str, usize>,
}

impl CleanOutput {
    /// What is printed of it.
    pub(crate) fn new(kind: &'static str, plan: &CleanPlan, executed: bool, stopped: Option<String>) -> Self {
        let steps: Vec<StepOutput> = plan.steps().map(step).collect();
        let mut by_action = BTreeMap::new();
        for step in &steps {
            *by_action.entry(step.action).or_default() += 1;
        }
        let count = |results: &[&str]| steps.iter().filter(|s| results.contains(&s.result)).count();
        let summary = Summary {
            steps: steps.len(),
            done: count(&["Done", "Forced"]),
            failed: count(&["Failed"]),
            not_done: count(&["NotDone"]),
            kept: plan.kept.len(),
            wanted_pods: plan.wanted.len(),
            by_action,
        };
        let kept = plan.kept.iter().map(kept).collect();
        let (sources, problems) = (Vec::new(), plan.not_here.iter().map(|name| not_here(name)).collect());
        let api_version = "refloat.dev/v1";
        Self { api_version, kind, executed, sources, steps, kept, problems, stopped, left: None, summary }
    }

    /// Adds what is wrong with the node.
    pub(crate) fn with_problems(mut self, of_node: &[Problem]) -> Self {
        self.problems.extend_from_slice(of_node);
        self
    }

    /// Whether something needs attention that no step and nothing that is kept tells of.
    pub(crate) fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Adds who was asked which pods are on the node.
    pub(crate) fn with_sources(self, answers: Option<&Answers>) -> Self {
        Self { sources: sources::printed(answers), ..self }
    }

    /// Adds what a release found at its end.
    pub(crate) fn with_left(self, left: &[Left]) -> Self {
        let left = left
            .iter()
            .map(|l| LeftOutput { kind: l.kind, path: path_text(&l.path).0, what: l.what.clone() })
            .collect();
        Self { left: Some(left), ..self }
    }

    /// Prints it.
    pub(crate) fn print(&self, out: &mut impl Write, format: OutputFormat, look: Look) -> Result<(), Failure> {
        if structured(out, format, self)? {
            return Ok(());
        }
        self.table(out, look, format == OutputFormat::Wide)
    }

    fn table(&self, out: &mut impl Write, look: Look, wide: bool) -> Result<(), Failure> {
        if self.steps.is_empty() {
            writeln!(out, "Nothing to do.")?;
        } else {
            let mut header = vec!["ACTION", "PATH", "RESULT", "REASON"];
            if wide {
                header.insert(2, "VOLUME");
            }
            let rows = self.steps.iter().map(|s| {
                let mut row = vec![s.action.to_owned(), s.path.clone(), s.result.to_owned(), s.reason.clone()];
                if wide {
                    row.insert(2, s.volume.clone().unwrap_or_else(|| "-".into()));
                }
                row
            });
            print(out, look, &header, &rows.collect::<Vec<_>>())?;
        }
        for step in self.steps.iter().filter(|s| s.message.is_some()) {
            let message = step.message.as_deref().unwrap_or_default();
            writeln!(out, "\n* {} {}: {}: {}", step.action, printable(&step.path), step.result, printable(message))?;
        }
        if !self.kept.is_empty() {
            writeln!(out, "\nLeft in place:")?;
        }
        for kept in &self.kept {
            let size = match (kept.bytes, kept.entries) {
                (Some(bytes), Some(entries)) => format!(" ({entries} entries, {bytes} bytes)"),
                _ => String::new(),
            };
            writeln!(out, "* {}{size}: {}: {}", printable(&kept.path), kept.code, printable(&kept.reason))?;
            if let Some(command) = &kept.command {
                writeln!(out, "  when you have looked at it: {}", printable(command))?;
            }
        }
        if let Some(left) = &self.left {
            if left.is_empty() {
                writeln!(out, "\nNo mount, loop device or staged volume is left.")?;
            } else {
                writeln!(out, "\nStill there:")?;
            }
            for one in left {
                writeln!(out, "* {} {}: {}", one.kind, printable(&one.path), printable(&one.what))?;
            }
        }
        if !self.sources.is_empty() {
            let asked: Vec<_> = self.sources.iter().map(SourceOut::text).collect();
            writeln!(out, "\nAsked which pods are here: {}", printable(&asked.join(", ")))?;
        }
        for problem in &self.problems {
            writeln!(out, "\n* {}: {}", problem.code, printable(&problem.message))?;
            writeln!(out, "  {}", printable(&problem.hint))?;
        }
        for source in self.sources.iter().filter(|source| source.state == "Failed") {
            writeln!(out, "* {}: {}", printable(&source.name), printable(source.message.as_deref().unwrap_or("-")))?;
        }
        let s = &self.summary;
        if self.executed {
            writeln!(
                out,
                "\n{} steps: {} done, {} failed, {} not done; {} left in place",
                s.steps, s.done, s.failed, s.not_done, s.kept
            )?;
        } else {
            let how = if s.steps > 0 { "; nothing was done, --yes does it" } else { "" };
            writeln!(out, "\n{} steps planned; {} left in place{how}", s.steps, s.kept)?;
        }
        if let Some(stopped) = &self.stopped {
            writeln!(out, "Stopped: {}", printable(stopped))?;
        }
        Ok(out.flush()?)
    }
}

fn step(step: &Step) -> StepOutput {
    let (result, message) = match &step.result {
        StepResult::Planned => ("Planned", None),
        StepResult::Done => ("Done", None),
        StepResult::Forced { lazily: false } => {
            ("Forced", Some("its file system was dead, so it was forced".to_owned()))
        }
        StepResult::Forced { lazily: true } => (
            "Forced",
            Some("its file system was dead; it is out of sight, and gone when nobody uses it any more".to_owned()),
        ),
        StepResult::Failed(why) => ("Failed", Some(why.clone())),
        StepResult::NotDone => ("NotDone", None),
    };
    StepOutput {
        action: step.action.name(),
        path: path_text(&step.path).0,
        volume: step.volume.clone(),
        reason: step.reason.clone(),
        result,
        message,
    }
}

fn not_here(name: &str) -> Problem {
    Problem::new(
        "AssumedNotHere",
        format!(
            "--assume-gone {name}: this node has nothing of a pod with that uid, and no device of that path or name"
        ),
        "look for a mistake in it; `refloat scan -o json` shows uids, devices' paths and unique names; if it is gone \
         altogether, all is well",
    )
}

fn kept(kept: &Kept) -> KeptOutput {
    KeptOutput {
        path: path_text(&kept.path).0,
        code: kept.code,
        reason: kept.reason.clone(),
        pod: kept.pod.as_ref().map(ToString::to_string),
        volume: kept.volume.clone(),
        bytes: kept.bytes,
        entries: kept.entries,
        command: kept.command.clone(),
    }
}
