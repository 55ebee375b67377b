//! `refloat explain TARGET`.

use std::io::Write;

use refloat_node::Holders;

use crate::cli::ExplainArgs;
use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::explain::{Explanation, explain};
use crate::look::look;
use crate::output::structured;
use crate::output::table::{Look, printable};

/// Runs the command.
pub(crate) fn run(args: &ExplainArgs, settings: &Settings) -> Result<Done, Failure> {
    let mut view = look(settings, &args.sources, &args.saved, refloat_node::reconstruct_explained)?;
    if view.mountinfo.is_none() {
        view.holders = Holders::look(&view.table, &view.root);
    }
    // A relative path is meant from the working folder, unless something bears that name.
    let as_path = || std::path::absolute(&args.target).ok().and_then(|path| explain(path.to_str()?, &view));
    let Some(explanation) = explain(&args.target, &view).or_else(as_path) else {
        let message = format!("nothing under {} is known as {:?}", view.root.display(), args.target);
        return Err(Failure::message(
            message,
            "`refloat scan -o wide` shows all; a target is a pod (uid or namespace/name), a volume (uid/volume, its \
             path or unique name), a device, or a path below the root",
        ));
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if !structured(&mut out, settings.output, &explanation)? {
        print(&mut out, Look::of_stdout(settings.color), &explanation)?;
    }
    Ok(Done::attention_if(explanation.needs_attention()))
}

fn print(out: &mut impl Write, look: Look, explanation: &Explanation) -> Result<(), Failure> {
    let bold = anstyle::Style::new().bold();
    for (number, subject) in explanation.subjects.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", look.paint(bold, &printable(&subject.subject)))?;
        section(out, "what it is", &subject.what)?;
        section(out, "who wants it", std::slice::from_ref(&subject.wanted))?;
        section(out, "evidence", &subject.evidence)?;
        section(out, "conclusion", &subject.conclusion)?;
        let problems = subject.problems.iter();
        let problems: Vec<_> = problems.map(|p| format!("{}: {} ({})", p.code, p.message, p.hint)).collect();
        section(out, "problems", &problems)?;
        let next: Vec<_> = subject.next.iter().map(|step| format!("{}: {}", step.decision, step.reason)).collect();
        section(out, "what would happen next", &next)?;
    }
    Ok(out.flush()?)
}

fn section(out: &mut impl Write, title: &str, lines: &[String]) -> Result<(), Failure> {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {title}:")?;
    for line in lines {
        writeln!(out, "    {}", printable(line))?;
    }
    Ok(())
}
