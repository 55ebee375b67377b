//! What commands print: the object of `scan -o json` and the other formats of it.

pub(crate) mod clean_plan;
pub(crate) mod html;
pub(crate) mod node_volumes;
pub(crate) mod path_text;
pub(crate) mod scan_table;
pub(crate) mod shown;
pub(crate) mod table;

use std::io::Write;

use serde::Serialize;

use crate::cli::OutputFormat;
use crate::exit::Failure;

/// Prints a value as JSON, indented, with a line's end. Kubernetes objects in it stay verbatim.
pub(crate) fn json(out: &mut impl Write, value: &impl Serialize) -> Result<(), Failure> {
    // As it is made: what many volumes give is larger than all that was gathered, and a reader can begin meanwhile.
    serde_json::to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Prints a value as one YAML document.
pub(crate) fn yaml(out: &mut impl Write, value: &impl Serialize) -> Result<(), Failure> {
    // By way of JSON, since Kubernetes objects are kept as JSON text.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let text = serde_json::to_string(value)
        .map_err(anyhow::Error::new)
        .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).map_err(anyhow::Error::new))
        .and_then(|value| serde_saphyr::to_string_with_options(&value, options).map_err(anyhow::Error::new))
        .map_err(|e| e.context("cannot print the result as YAML"))?;
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

/// Prints a value as JSON or YAML if that was asked for, else says that it was not.
pub(crate) fn structured(out: &mut impl Write, format: OutputFormat, value: &impl Serialize) -> Result<bool, Failure> {
    match format {
        OutputFormat::Json => json(out, value).map(|()| true),
        OutputFormat::Yaml => yaml(out, value).map(|()| true),
        // `html` is refused before a command runs that has no page.
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Html => Ok(false),
    }
}
