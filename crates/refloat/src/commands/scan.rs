//! `refloat scan`: every volume, device and leftover under the node root.

use crate::cli::{OutputFormat, ScanArgs};
use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::look::{View, look};
use crate::output::node_volumes::NodeVolumes;
use crate::output::{html, json, scan_table, table::Look, yaml};
use crate::usage;

use refloat_volume::Problem;

/// How much is written at once: what a pipe takes.
const BUFFER: usize = 64 * 1024;

/// Runs the command.
pub(crate) fn run(args: &ScanArgs, settings: &Settings) -> Result<Done, Failure> {
    let mut view = look(settings, &args.sources, &args.saved, refloat_node::reconstruct)?;
    if args.usage {
        usage::ask(&mut view);
    }
    let done = print(&view, &[], settings);
    // The process ends: giving back the many small texts of a large node one by one would only take time.
    std::mem::forget(view);
    done
}

/// Prints what was seen in the format that was asked for. `more` are problems that the view does not have.
pub(crate) fn print(view: &View, more: &[Problem], settings: &Settings) -> Result<Done, Failure> {
    // Not dropped: whoever prints ends right after it.
    let seen = std::mem::ManuallyDrop::new(NodeVolumes::new(view, more));
    let mut out = std::io::BufWriter::with_capacity(BUFFER, std::io::stdout().lock());
    match settings.output {
        OutputFormat::Json => json(&mut out, &*seen)?,
        OutputFormat::Yaml => yaml(&mut out, &*seen)?,
        OutputFormat::Html => html::page(&mut out, &seen)?,
        format @ (OutputFormat::Table | OutputFormat::Wide) => {
            scan_table::scan(&mut out, Look::of_stdout(settings.color), &seen, format == OutputFormat::Wide)?;
        }
    }
    Ok(Done::attention_if(seen.needs_attention()))
}
