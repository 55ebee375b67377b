//! `refloat release`: every volume of the node is torn down, and it is proved that none is left.

use refloat_node::clean::{CleanOptions, Cleaner, CleanerOptions, Left, Seen, what_is_left};

use super::clean::{cleaner, explain, how, options, stopped};
use crate::cli::ReleaseArgs;
use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::output::clean_plan::CleanOutput;
use crate::output::table::Look;
use crate::sources::attachments;

/// Runs the command.
pub(crate) fn run(args: &ReleaseArgs, settings: &Settings) -> Result<Done, Failure> {
    let undo = &args.undo;
    let options = CleanOptions { release: true, including_running: args.including_running, ..options(undo)? };
    let how = CleanerOptions { write: args.yes, ..how(settings, &undo.drivers, undo.workers, undo.timeout) };
    let mut cleaner = cleaner(settings, &undo.authority, how)?;
    let (plan, seen) = cleaner.plan(&options).map_err(|e| explain(e, settings))?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let look = Look::of_stdout(settings.color);
    let everything = |cleaner: &Cleaner, seen: &Seen| -> Result<Vec<Left>, Failure> {
        let mut left = what_is_left(cleaner.host(), &seen.table, &seen.actual);
        left.extend(attachments(&undo.authority.sources)?);
        Ok(left)
    };
    if !args.yes {
        let left = everything(&cleaner, &seen)?;
        let output = CleanOutput::new("ReleasePlan", &plan, false, None).with_left(&left).with_sources(cleaner.asked());
        let output = output.with_problems(&seen.actual.problems);
        output.print(&mut out, settings.output, look)?;
        return Ok(Done::attention_if(!left.is_empty()));
    }
    let report = cleaner.execute(plan, &options).map_err(|e| explain(e, settings))?;
    let seen = cleaner.look().map_err(|e| explain(e, settings))?;
    let left = everything(&cleaner, &seen)?;
    let output = CleanOutput::new("ReleasePlan", &report.plan, true, report.stopped.clone())
        .with_left(&left)
        .with_sources(cleaner.asked())
        .with_problems(&seen.actual.problems);
    output.print(&mut out, settings.output, look)?;
    if let Some(why) = report.stopped {
        return Err(stopped(&why));
    }
    // Files that stay are no mount: a reset or reboot may go on.
    Ok(Done::attention_if(!left.is_empty()))
}
