//! `cargo xtask peer-check`: what `scan` finds on a kubelet's tree without a record, against the truth.
//!
//! The answers are written down in `docs/foreign-nodes.md`. An answer that became worse, or better, and is not written
//! down there fails.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::compare::Fields;
use super::table::{self, Row};
use super::{Peer, Programs, Tree};
use crate::process::build_refloat;

/// Arguments of `peer-check`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Write the answers down in docs/foreign-nodes.md
    #[arg(long)]
    write: bool,
    /// Ask the kubelet too, for its column of the table (builds its packages)
    #[arg(long, requires = "write")]
    kubelet: bool,
}

/// One line of `truth.jsonl`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fact {
    kind: String,
    case: String,
    #[serde(default)]
    pod: String,
    #[serde(default)]
    plugin: String,
    name: String,
    #[serde(default)]
    unique_name: String,
    path: String,
    mounted: bool,
    #[serde(default)]
    sub_paths: Vec<String>,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    spec: Value,
}

impl Fact {
    fn what(&self) -> String {
        match self.kind.as_str() {
            "Volume" => format!("{} {}", self.plugin, self.name),
            "Device" => format!("device {}", self.unique_name),
            _ => format!("leftover {} {}", self.name, self.path),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match check(args)? {
        Ok(summary) => println!("{summary}"),
        Err(why) => println!("skipped: the peer's check: {why}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks. The inner error says why it cannot be done here, the outer one what is not as it is written down.
pub(crate) fn check(args: &Args) -> Result<Result<String, String>> {
    let refloat = build_refloat(false)?;
    let folder = refloat.ancestors().nth(2).context("where is the build folder?")?;
    let peer = match Peer::build(if args.kubelet { Programs::All } else { Programs::Tree }, folder)? {
        Ok(peer) => peer,
        Err(why) => return Ok(Err(why)),
    };
    let mut rows = scan(&peer, &refloat)?;
    let known = table::read()?;
    let kubelet = if args.kubelet { Some(kubelet(&peer)?) } else { None };
    for row in &mut rows {
        row.kubelet = match &kubelet {
            Some(answers) => answers.get(&(row.case.clone(), row.what.clone())).cloned(),
            None => known.iter().find(|k| k.same(row)).and_then(|k| k.kubelet.clone()),
        };
    }
    let wrong = rows.iter().filter(|r| !r.wrong.is_empty()).count();
    let summary = format!("{} of {} answers are right or honest, {wrong} are wrong", rows.len() - wrong, rows.len());
    if args.write {
        table::write(&rows)?;
    } else if rows != known {
        bail!(
            "the answers are not those of docs/foreign-nodes.md:\n{}if they are better, write them down with `cargo xtask \
             peer-check --write`",
            difference(&known, &rows)
        );
    }
    Ok(Ok(summary))
}

fn difference(known: &[Row], rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows.iter().filter(|r| !known.contains(r)) {
        let was = known.iter().find(|k| k.same(row)).map_or_else(|| "not there".into(), |k| format!("{k:?}"));
        let _ = writeln!(text, "now: {row:?}\nwas: {was}");
    }
    for row in known.iter().filter(|k| !rows.iter().any(|r| r.same(k))) {
        let _ = writeln!(text, "gone: {row:?}");
    }
    if text.is_empty() {
        text.push_str("the order of the rows\n");
    }
    text
}

/// Scans a tree of odd cases and compares.
fn scan(peer: &Peer, refloat: &Path) -> Result<Vec<Row>> {
    let tree = Tree::new()?;
    let mut command = Command::new(refloat);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REFLOAT_")) {
        command.env_remove(name);
    }
    command.args(["scan", "-o", "json", "--root-dir"]).arg(tree.root());
    command.arg("--state-dir").arg(tree.base().join("no-records"));
    let printed = tree.run(peer, &["-edge"], &command, &[0, 3])?;
    let seen: Value = serde_json::from_slice(&printed).context("cannot read what scan printed")?;
    let truth = truth(&tree)?;
    let base = tree.base().join("fs");
    let base = base.to_str().context("the temporary folder's name is not UTF-8")?;
    let root = format!("{base}/kubelet/");
    let mut rows: Vec<_> = truth.iter().map(|fact| row(fact, &seen, &root)).collect();
    for (kind, list) in [("Volume", "volumes"), ("Device", "devices"), ("Leftover", "leftovers")] {
        for entry in entries(&seen, list).filter(|e| !truth.iter().any(|f| f.kind == kind && is(f, e, &root))) {
            let path = text(entry, "path");
            let pod = truth.iter().find(|f| !f.pod.is_empty() && path.contains(&f.pod));
            rows.push(Row {
                case: pod.map_or_else(|| "(none)".into(), |f| f.case.clone()),
                what: format!("{} {}", kind.to_lowercase(), path.trim_start_matches(&root)),
                reconstruction: String::new(),
                lost: String::new(),
                wrong: format!("invented: {}", text(entry, "kind")),
                problems: problems(entry),
                kubelet: None,
            });
        }
    }
    // The tree lies elsewhere each time.
    for row in &mut rows {
        for cell in [&mut row.what, &mut row.lost, &mut row.wrong] {
            *cell = cell.replace(&format!("{base}/"), "");
        }
    }
    Ok(rows)
}

fn truth(tree: &Tree) -> Result<Vec<Fact>> {
    let text = std::fs::read_to_string(tree.base().join("truth.jsonl")).context("cannot read the truth")?;
    text.lines().map(|line| serde_json::from_str(line).context("cannot read the truth")).collect()
}

fn entries<'a>(seen: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    seen[list].as_array().into_iter().flatten()
}

fn text<'a>(entry: &'a Value, field: &str) -> &'a str {
    entry[field].as_str().unwrap_or_default()
}

fn texts(entry: &Value, field: &str) -> Vec<String> {
    let list = entry[field].as_array().into_iter().flatten();
    list.filter_map(|value| value.as_str().map(ToOwned::to_owned)).collect()
}

/// The problems, without the one that everything has that nobody wrote a record of.
fn problems(entry: &Value) -> String {
    let codes = entries(entry, "problems").map(|p| text(p, "code")).filter(|code| *code != "RecordMissing");
    codes.collect::<Vec<_>>().join(", ")
}

/// Whether an entry of a scan is about this.
fn is(fact: &Fact, entry: &Value, root: &str) -> bool {
    match fact.kind.as_str() {
        "Volume" => {
            text(&entry["pod"], "uid") == fact.pod
                && text(entry, "plugin") == fact.plugin
                && text(entry, "specName") == fact.name
        }
        _ => text(entry, "path").strip_prefix(root) == Some(&fact.path),
    }
}

/// What a scan says of one thing.
fn row(fact: &Fact, seen: &Value, root: &str) -> Row {
    let list = match fact.kind.as_str() {
        "Volume" => "volumes",
        "Device" => "devices",
        _ => "leftovers",
    };
    let mut row = Row {
        case: fact.case.clone(),
        what: fact.what(),
        reconstruction: String::new(),
        lost: String::new(),
        wrong: "not found".into(),
        problems: String::new(),
        kubelet: None,
    };
    let Some(entry) = entries(seen, list).find(|e| is(fact, e, root)) else { return row };
    row.problems = problems(entry);
    let mut wrong = Vec::new();
    let mut expect = |what: &str, want: &str, have: &str| {
        if have.is_empty() && !want.is_empty() {
            wrong.push(format!("{what} unknown"));
        } else if have != want {
            wrong.push(format!("{what} = {have}, not {want}"));
        }
    };
    if fact.kind == "Leftover" {
        expect("kind", &fact.name, text(entry, "kind"));
    } else {
        expect("unique name", &fact.unique_name, text(entry, "uniqueName"));
        expect("path", &fact.path, text(entry, "path").trim_start_matches(root));
        expect("mounted", &fact.mounted.to_string(), &entry["mounted"].to_string());
    }
    if fact.kind == "Device" {
        let (mut want, mut have) = (fact.users.clone(), texts(entry, "users"));
        want.sort();
        have.sort();
        expect("users", &want.join(" "), &have.join(" "));
    }
    if fact.kind == "Volume" {
        row.reconstruction = text(entry, "reconstruction").into();
        for path in &fact.sub_paths {
            let mut found = entries(entry, "subPaths").map(|s| text(s, "path").trim_start_matches(root));
            expect("subPath", path, found.find(|p| p == path).unwrap_or_default());
        }
        match row.reconstruction.as_str() {
            "Full" | "Partial" => {
                let mut told = texts(entry, "lost");
                let doubt =
                    told.iter().any(|field| field == "persistentVolume") && fact.spec["persistentVolume"].is_object();
                let fields = if doubt {
                    // Then the names of the fields are those of the pod's own entry, and the rest of that kind is lost with it.
                    told.extend(told.iter().map(|field| format!("spec.{field}")).collect::<Vec<_>>());
                    told.extend(["spec.volumeMode", "spec.mountOptions"].map(ToOwned::to_owned));
                    Fields::compare_source(&fact.spec, &entry["spec"])
                } else {
                    Fields::compare(&fact.spec, &entry["spec"])
                };
                let (mut said, silent) = fields.split_lost(&told);
                if doubt {
                    said.insert(0, "persistentVolume".into());
                }
                row.lost = said.join(", ");
                wrong.extend(silent.into_iter().map(|field| format!("lost without a word: {field}")));
                wrong.extend(fields.wrong);
                wrong.extend(fields.invented.into_iter().map(|field| format!("invented: {field}")));
            }
            "UnmountOnly" => row.lost = "everything".into(),
            _ => wrong.push("not understood".into()),
        }
    }
    row.wrong = wrong.join("; ");
    row
}

/// What the kubelet reconstructs of the same tree, by case and thing.
fn kubelet(peer: &Peer) -> Result<BTreeMap<(String, String), String>> {
    let tree = Tree::new()?;
    let report = tree.base().join("report");
    let mut command = Command::new("sh");
    // Its log would fill the screen.
    command.args(["-c", "\"$0\" -v=0 -root \"$1\" -report \"$2\" 2>\"$3\""]);
    command.arg(peer.program("kubelet-reconstruct")).args([tree.root(), report.clone(), tree.base().join("log")]);
    tree.run(peer, &["-edge"], &command, &[0])?;
    let report = std::fs::read_to_string(&report).context("cannot read what the kubelet reported")?;
    let report: Vec<Value> = report.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let base = format!("{}/", tree.base().join("fs").display());
    let mut answers = BTreeMap::new();
    for fact in truth(&tree)? {
        let found = report.iter().find(|entry| {
            text(entry, "pod") == fact.pod && text(entry, "plugin") == fact.plugin && text(entry, "name") == fact.name
        });
        let answer = match found {
            // It knows devices by the volumes of pods, and leftovers not at all.
            _ if fact.kind == "Device" && !fact.users.is_empty() => String::new(),
            _ if fact.kind != "Volume" => "not seen".to_owned(),
            None => "not found".into(),
            Some(entry) if entry["failed"] == true => "fails".into(),
            Some(entry) => {
                let Fields { lost, wrong, invented } = Fields::compare(&fact.spec, &entry["spec"]);
                let lists = [("lost", lost), ("wrong", wrong), ("invented", invented)];
                let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
                let text: Vec<_> = lists.map(|(word, list)| format!("{word}: {}", list.join(", "))).collect();
                if text.is_empty() { "exact".into() } else { text.join("; ").replace(&base, "") }
            }
        };
        answers.insert((fact.case.clone(), fact.what()), answer);
    }
    Ok(answers)
}
