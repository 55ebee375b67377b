//! `refloat record`: looks at the record store, and changes nothing.

use std::io::Write;

use anyhow::Context;
use refloat_record::{Loaded, Record, RecordKey, Store, Unreadable, codec};
use refloat_volume::migration::same_volume;
use serde::Serialize;

use crate::cli::{OutputFormat, RecordCommand};
use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::output::path_text::path_text;
use crate::output::{json, structured, table, yaml};

/// One record in `record list`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    kind: &'static str,
    file: String,
    pod: Option<String>,
    volume: Option<String>,
    unique_name: Option<String>,
    #[serde(rename = "bootID")]
    boot_id: Option<String>,
}

/// One file that is no good record.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Damaged {
    path: String,
    reason: String,
    code: &'static str,
    hint: &'static str,
}

/// What `record list` and `record verify` print.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RecordList {
    api_version: &'static str,
    kind: &'static str,
    state_dir: String,
    records: Vec<Entry>,
    damaged: Vec<Damaged>,
}

/// Runs the command.
pub(crate) fn run(command: &RecordCommand, settings: &Settings) -> Result<Done, Failure> {
    let loaded = read(settings)?;
    match command {
        RecordCommand::List => list(&loaded, settings),
        RecordCommand::Show { record } => show(record, &loaded, settings),
        RecordCommand::Verify => verify(&loaded, settings),
    }
}

/// Reads the store, which may be another manager's just now.
fn read(settings: &Settings) -> Result<Loaded, Failure> {
    Store::read(&settings.state_dir)
        .context("cannot read the records")
        .map_err(|e| Failure::with_hint(e, "name the state folder with --state-dir or REFLOAT_STATE_DIR"))
}

fn list(loaded: &Loaded, settings: &Settings) -> Result<Done, Failure> {
    let list = record_list(loaded, settings);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if !structured(&mut out, settings.output, &list)? {
        if list.records.is_empty() {
            writeln!(out, "No records in {}.", list.state_dir)?;
        } else {
            let wide = settings.output == OutputFormat::Wide;
            let mut header = vec!["KIND", "POD", "VOLUME"];
            header.extend(if wide { ["UNIQUE-NAME", "BOOT", "FILE"].as_slice() } else { &["FILE"] });
            let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
            let rows = list.records.iter().map(|e| {
                let mut row = vec![e.kind.to_owned(), dash(&e.pod), dash(&e.volume)];
                if wide {
                    row.extend([dash(&e.unique_name), dash(&e.boot_id)]);
                }
                row.push(e.file.clone());
                row
            });
            let look = table::Look::of_stdout(settings.color);
            table::print(&mut out, look, &header, &rows.collect::<Vec<_>>())?;
        }
        print_damaged(&mut out, &list)?;
    }
    Ok(Done::attention_if(!list.damaged.is_empty()))
}

fn verify(loaded: &Loaded, settings: &Settings) -> Result<Done, Failure> {
    let mut list = record_list(loaded, settings);
    // What was set aside earlier is damaged still, until somebody has looked at it.
    let aside = Store::set_aside(&settings.state_dir).context("cannot read what was set aside")?;
    list.damaged.extend(aside.into_iter().map(|file| Damaged {
        path: path_text(&file.path).0,
        reason: format!(
            "set aside{}{}",
            file.when.map_or_else(String::new, |when| format!(" at {when}")),
            file.reason.map_or_else(String::new, |why| format!(": {why}")),
        ),
        code: "RecordSetAside",
        hint: "it is kept as it was found; delete it when you no longer need it",
    }));
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if !structured(&mut out, settings.output, &list)? {
        let (good, bad) = (list.records.len(), list.damaged.len());
        writeln!(out, "{good} good, {bad} damaged records in {}.", list.state_dir)?;
        print_damaged(&mut out, &list)?;
    }
    Ok(Done::attention_if(!list.damaged.is_empty()))
}

fn print_damaged(out: &mut impl Write, list: &RecordList) -> Result<(), Failure> {
    for damaged in &list.damaged {
        let path = table::printable(&damaged.path);
        writeln!(out, "\n* {path}: {}: {}\n  {}", damaged.code, table::printable(&damaged.reason), damaged.hint)?;
    }
    Ok(out.flush()?)
}

fn show(wanted: &str, loaded: &Loaded, settings: &Settings) -> Result<Done, Failure> {
    let found: Vec<&Record> = loaded.records.iter().filter(|r| is_named(r, wanted)).collect();
    if found.is_empty() {
        if let Some(bad) = loaded.unreadable.iter().find(|u| unreadable_is_named(u, wanted)) {
            let error =
                anyhow::Error::new(bad.reason.clone()).context(format!("{} is no good record", path_text(&bad.path).0));
            return Err(Failure::with_hint(error, damaged_code(bad).1));
        }
        let message = format!("there is no record {wanted:?} in {}", settings.state_dir.display());
        return Err(Failure::message(
            message,
            "`refloat record list` shows all; a record is named by its file, its \
            pod's uid, uid/volume, or its unique volume name",
        ));
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (number, record) in found.iter().enumerate() {
        // As its file has it, the checksum included.
        let bytes = codec::encode(record);
        let value: serde_json::Value = serde_json::from_slice(&bytes).context("cannot print the record")?;
        if settings.output == OutputFormat::Yaml {
            if number > 0 {
                writeln!(out, "---")?;
            }
            yaml(&mut out, &value)?;
        } else {
            json(&mut out, &value)?;
        }
    }
    Ok(Done::Well)
}

/// Whether the user means this record.
fn is_named(record: &Record, wanted: &str) -> bool {
    let key = record.key();
    let file = codec::file_name(&key);
    let by_file = wanted == file || wanted.rsplit_once('/').is_some_and(|(_, name)| name == file);
    by_file
        || match record {
            Record::DeviceMount(r) => same_volume(r.unique_name.as_str(), wanted),
            Record::Driver(r) => r.name.as_str() == wanted,
            Record::PodCheckpoint(r) => r.pod.uid.as_str() == wanted || pod_name(&r.pod) == wanted,
            Record::PodVolume(r) => {
                let (uid, named) = wanted.split_once('/').unwrap_or(("", ""));
                let volume = r.spec_name.as_str() == named || r.volume_names.iter().any(|n| n.as_str() == named);
                same_volume(r.unique_name.as_str(), wanted) || (r.pod.uid.as_str() == uid && volume)
            }
        }
}

fn unreadable_is_named(unreadable: &Unreadable, wanted: &str) -> bool {
    let by_key = match &unreadable.key {
        Some(RecordKey::DeviceMount(name)) => name.as_str() == wanted,
        Some(RecordKey::PodCheckpoint(uid)) => uid.as_str() == wanted,
        Some(RecordKey::Driver(name)) => name.as_str() == wanted,
        Some(RecordKey::PodVolume { pod, spec_name, .. }) => format!("{pod}/{spec_name}") == wanted,
        None => false,
    };
    by_key || unreadable.name == wanted || unreadable.path.as_os_str() == wanted
}

fn pod_name(pod: &refloat_record::PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn record_list(loaded: &Loaded, settings: &Settings) -> RecordList {
    let records = loaded.records.iter().map(|record| {
        let file = codec::file_name(&record.key());
        match record {
            Record::DeviceMount(r) => Entry {
                kind: "DeviceMount",
                file,
                pod: None,
                volume: None,
                unique_name: Some(r.unique_name.to_string()),
                boot_id: Some(r.boot_id.to_string()),
            },
            Record::PodVolume(r) => Entry {
                kind: "PodVolume",
                file,
                pod: Some(pod_name(&r.pod)),
                volume: r.volume_names.first().map(ToString::to_string),
                unique_name: Some(r.unique_name.to_string()),
                boot_id: Some(r.boot_id.to_string()),
            },
            // Its name is its file's.
            Record::Driver(_) => {
                Entry { kind: "Driver", file, pod: None, volume: None, unique_name: None, boot_id: None }
            }
            Record::PodCheckpoint(r) => Entry {
                kind: "PodCheckpoint",
                file,
                pod: Some(pod_name(&r.pod)),
                volume: None,
                unique_name: None,
                boot_id: None,
            },
        }
    });
    let damaged = loaded.unreadable.iter().map(|u| {
        let (code, hint) = damaged_code(u);
        Damaged { path: path_text(&u.path).0, reason: u.reason.to_string(), code, hint }
    });
    RecordList {
        api_version: "refloat.dev/v1",
        kind: "RecordList",
        state_dir: path_text(&settings.state_dir).0,
        records: records.collect(),
        damaged: damaged.collect(),
    }
}

fn damaged_code(unreadable: &Unreadable) -> (&'static str, &'static str) {
    match unreadable.reason {
        refloat_record::UnreadableReason::Newer { .. } => {
            ("RecordNewer", "a newer Refloat wrote it: run that version again; this one leaves the record as it is")
        }
        _ => (
            "RecordDamaged",
            "it is kept as it is; its volume is known from the mount table and the folders as far as they go, and \
             gets a new record when it is next set up; delete the file when you no longer need it",
        ),
    }
}
